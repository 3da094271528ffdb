//! `halite set`: changes settings of a running node of this host.

use std::path::Path;

use halite::{NodeId, Policy, Qos, QosNow, blocking};

use crate::args::{SetCommand, SetQos};
use crate::output;

pub fn run(dir: &Path, command: &SetCommand) -> anyhow::Result<()> {
    match command {
        SetCommand::Qos(args) => qos(dir, args),
    }
}

/// Sets the policy for priorities, if the user names one, and shows it.
fn qos(dir: &Path, args: &SetQos) -> anyhow::Result<()> {
    let session = match args.node {
        Some(node) => blocking::Session::attach_to(dir, NodeId(node))?,
        None => blocking::Session::attach(dir)?,
    };
    if let Some(policy) = args.policy {
        let known = if policy == Policy::SwPri { None } else { session.qos()?.qos.rate };
        session.set_qos(Qos { policy, rate: args.rate.map(|rate| rate.0).or(known) })?;
    }
    let now = session.qos()?;
    match args.listing.json {
        true => output::print_json(&now)?,
        false => output::print(&text(&now))?,
    }
    Ok(())
}

fn text(now: &QosNow) -> String {
    let Qos { policy, rate } = now.qos;
    let rate = rate.map_or(String::new(), |rate| format!(", link rate {rate} bytes/s"));
    let limit = |limit: Option<u64>| limit.map_or("no limit".to_owned(), |limit| format!("{limit} bytes/s"));
    let class = |name: &str, [out, into]: [Option<u64>; 2]| {
        format!("  {name} priority: {} out of the node, {} into it\n", limit(out), limit(into))
    };
    format!("node {}: policy {policy}{rate}\n{}{}", now.node, class("high", now.high), class("low", now.low))
}
