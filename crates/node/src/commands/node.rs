//! `halite node`: one node, until it is asked to end.

use std::net::ToSocketAddrs;
use std::path::Path;

use anyhow::Context;
use halite::{Config, Hosts, NodeId};

use crate::args;
use crate::control::{FAILED, METRICS_AT};
use crate::output;
use crate::signals::{self, Ending, Interrupt, Woken};
use crate::supervisor::supervised;

/// Prints a line when others can reach the node; `halite up` waits for it, and scripts may too.
pub fn run(dir: &Path, args: &args::Node) -> anyhow::Result<()> {
    if let Some(parent) = args.parent {
        signals::die_with(parent)?;
    }
    if args.detached {
        rustix::process::setsid().context("cannot leave the terminal")?;
    }
    // Before the node exists, so that a signal during its start is not lost; a second one ends us at once.
    let mut ending = Ending::listen().context("cannot listen for signals")?;
    let _at_once = Interrupt::listen().context("cannot listen for signals")?;
    let mut config = Config {
        dir: dir.to_owned(),
        node: args.id.map(NodeId),
        arena_bytes: args.arena.0,
        providers: args.networks.fabric.clone(),
        address: args.networks.address,
        pcap: args.pcap.clone(),
        hosts: hosts(&args.hosts)?,
        clock_offset_s: args.clock_offset_s,
        metrics: args.metrics.0,
        ..Config::default()
    };
    // The error names the directory, or what is in it.
    let number = match config.node {
        Some(number) => Ok(number),
        None if args.hosts.join.is_empty() => Ok(NodeId::FIRST),
        None => halite::Node::take_number(&config),
    };
    let node = number.and_then(|number| {
        config.node = Some(number);
        halite::Node::embedded(config)
    });
    let node = match node {
        Ok(node) => node,
        Err(error) if args.parent.is_some() || args.detached => {
            // The parent that waits for the line that we are ready gets this one instead, and reports it.
            output::print(&format!("{FAILED}{error}\n"))?;
            std::process::exit(1);
        }
        Err(error) => {
            let which = args.id.map_or_else(|| "a node".to_owned(), |id| format!("node {id}"));
            return Err(error).with_context(|| format!("cannot run {which}"));
        }
    };
    let addresses: Vec<String> = node.addresses().iter().map(|address| address.to_string()).collect();
    let dialled = match addresses[..] {
        [] => String::new(),
        _ => format!(", dialled at {}", addresses.join(", ")),
    };
    let metrics = node.metrics_address().map(|address| format!("{METRICS_AT}{address}/metrics"));
    let (pid, metrics) = (std::process::id(), metrics.unwrap_or_default());
    let ready = format!("node {} ready, process {pid}{dialled}{metrics}", node.id());
    output::print(&format!("{ready}\n"))?;
    supervised(&node, &ready, || while ending.wait() != Woken::Asked {});
    node.leave();
    Ok(())
}

/// How other hosts are met, if they are.
fn hosts(args: &args::Hosts) -> anyhow::Result<Option<Hosts>> {
    let Some(secret_file) = args.secret_file.clone() else { return Ok(None) };
    let mut join = Vec::new();
    for host in &args.join {
        let addresses =
            host.to_socket_addrs().with_context(|| format!("cannot find {host}, which is to be joined"))?;
        let before = join.len();
        join.extend(addresses);
        anyhow::ensure!(join.len() > before, "{host} has no address");
    }
    Ok(Some(Hosts { listen: args.listen.clone(), join, secret_file }))
}
