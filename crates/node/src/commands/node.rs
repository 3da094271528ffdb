//! `halite node`: one node, until it is asked to end.

use std::path::Path;

use anyhow::Context;
use halite::{Config, NodeId};

use crate::args;
use crate::control::FAILED;
use crate::output;
use crate::signals::{self, Ending, Interrupt, Woken};

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
    let config = Config {
        dir: dir.to_owned(),
        node: Some(NodeId(args.id)),
        arena_bytes: args.arena.0,
        ..Config::default()
    };
    // The error names the directory, or what is in it.
    let node = match halite::Node::embedded(config) {
        Ok(node) => node,
        Err(error) if args.parent.is_some() || args.detached => {
            // Whoever waits for the line that we are ready gets this one instead, and tells people.
            output::print(&format!("{FAILED}{error}\n"))?;
            std::process::exit(1);
        }
        Err(error) => return Err(error).with_context(|| format!("cannot run node {}", args.id)),
    };
    output::print(&format!("node {} ready, process {}\n", node.id(), std::process::id()))?;
    while ending.wait() != Woken::Asked {}
    node.leave();
    Ok(())
}
