//! `halite node`: runs one node until a signal.
//!
//! SIGTERM drains the node first, as `halite drain` does; SIGINT and SIGHUP stop it at once.

use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use halite::cluster_dir::Made;
use halite::{Config, Hosts, JoinError, NodeId};
use halite_providers::allocator;
use rustix::process::Signal;

use super::drain;
use crate::addresses;
use crate::args;
use crate::control::{FAILED, METRICS_AT};
use crate::output;
use crate::signals::{self, ExitOnSecondSignal, SignalWaiter, Wake};
use crate::supervisor::run_supervised;
use crate::threads::{self, Refused};
use crate::transport;

/// Runs a node. Prints a line when other nodes can connect; `halite up` and scripts wait for this line.
pub fn run(dir: &Path, args: &args::Node) -> anyhow::Result<ExitCode> {
    if let Some(parent) = args.parent {
        signals::die_with(parent)?;
    }
    if args.detached {
        rustix::process::setsid().context("cannot leave the terminal")?;
    }
    allocator::return_long_blocks();
    // Listens before the node starts, so that no signal is lost.
    let mut signals = SignalWaiter::listen().context("cannot listen for signals")?;
    let second_signal = ExitOnSecondSignal::listen().context("cannot listen for signals")?;
    let (hosts, unresolved) = hosts(&args.hosts)?;
    let mut config = Config {
        dir: dir.to_owned(),
        node: args.id.map(NodeId),
        arena_bytes: args.arena.0,
        providers: args.networks.fabric.clone(),
        address: args.networks.address,
        full_mesh_nodes_max: args.networks.full_mesh_nodes_max as usize,
        pcap: args.pcap.clone(),
        receivers: args.networks.receivers as usize,
        qos: args.networks.qos(),
        hosts,
        found: args.hosts.found,
        directory: args.names.directory.clone(),
        clock_offset_s: args.clock_offset_s,
        attach: Some(args.sessions.attach_mode),
        principals: args.sessions.principals.clone(),
        quotas: args.sessions.amounts(args.arena.0),
        low_priority: args.sessions.low_priority.clone(),
        metrics: args.metrics.0,
        ..transport::config()
    };
    let made = Made::expect(dir);
    // The error names the directory or file.
    let number = match config.node {
        Some(number) => Ok(number),
        None if args.hosts.join.is_empty() && config.directory.is_none() => Ok(NodeId::FIRST),
        None => halite::Node::take_number(&config),
    };
    let node = number.and_then(|number| {
        config.node = Some(number);
        halite::Node::embedded(config)
    });
    // A node that is ready needs no further thread.
    let node = node.and_then(|node| {
        let drained =
            DrainWatch::watch(&node, &signals).map_err(|refused| JoinError::Resource(refused.into()))?;
        Ok((node, drained))
    });
    if let (Err(_), Some(made)) = (&node, made) {
        made.remove();
    }
    let (node, drained) = match node {
        Ok(started) => started,
        Err(error) if args.parent.is_some() || args.detached => {
            // The parent process waits for the first line, and reports this one.
            output::print(&format!("{FAILED}{error}{unresolved}\n"))?;
            std::process::exit(1);
        }
        Err(error) => {
            let which = args.id.map_or_else(|| "a node".to_owned(), |id| format!("node {id}"));
            let error = match unresolved.is_empty() {
                true => anyhow::Error::from(error),
                false => anyhow!("{}{unresolved}", output::error_chain(&error.into())),
            };
            return Err(error).with_context(|| format!("cannot run {which}"));
        }
    };
    drop(second_signal);
    let addresses: Vec<String> = node
        .addresses()
        .iter()
        .map(|address| addresses::format_address(*address, Some(address.ip())))
        .collect();
    let dialled = match addresses[..] {
        [] => String::new(),
        _ => format!(", dialled at {}", addresses.join(", ")),
    };
    let metrics = node.metrics_address().map(|address| format!("{METRICS_AT}{address}/metrics"));
    let (pid, metrics) = (std::process::id(), metrics.unwrap_or_default());
    let ready = format!("node {} ready, process {pid}{dialled}{metrics}", node.id());
    let left = run_supervised(&node, &ready, || {
        output::print(&format!("{ready}\n"))?;
        run_until_stopped(&node, &mut signals, &drained, args.drain_within)
    });
    node.leave();
    Ok(drain::exit_code(left??))
}

/// Waits on a thread for the end of a drain, and then ends the main thread's wait for signals.
struct DrainWatch(Receiver<u64>);

impl DrainWatch {
    fn watch(node: &halite::Node, signals: &SignalWaiter) -> Result<DrainWatch, Refused> {
        let (drained, waker) = (node.drained(), signals.waker());
        let (sender, receiver) = channel();
        let listen = move || {
            // The receiver is gone if a signal has ended the wait.
            let _ = sender.send(drained.wait());
            waker.wake();
        };
        threads::spawn("halite-drained", listen)?;
        Ok(DrainWatch(receiver))
    }
}

/// Runs until a signal, or until the node has been drained. Returns the number of regions that could not be moved.
fn run_until_stopped(
    node: &halite::Node,
    signals: &mut SignalWaiter,
    drained: &DrainWatch,
    drain_within: u32,
) -> anyhow::Result<u64> {
    loop {
        match signals.wait() {
            Wake::Signal(signal) => {
                if let Err(error) = signals::exit_on_next_signal() {
                    tracing::warn!("a second signal will not end this process at once: {error}");
                }
                match signal {
                    Signal::TERM => break,
                    _ => return Ok(0),
                }
            }
            Wake::Child => {}
            Wake::Closed => match node.over() {
                Some(over) => return Err(over.into()),
                None => return Ok(drained.0.recv().unwrap_or(0)),
            },
        }
    }
    let within = Duration::from_secs(drain_within.into());
    // The sender of SIGTERM ends this process in any case, if need be by SIGKILL.
    match node.blocking_session().drain(node.id(), within, true) {
        Ok(drained) => {
            match drained.left_count {
                0 => tracing::info!("{}", drain::summary(node.id().0, &drained)),
                _ => tracing::warn!("{}, and are lost", drain::summary(node.id().0, &drained)),
            }
            drain::remaining_regions(&drained).into_iter().for_each(|line| tracing::warn!("{line}"));
            Ok(drained.left_count)
        }
        // The node leaves even if the drain failed.
        Err(error) => {
            tracing::error!("{error}");
            Ok(1)
        }
    }
}

/// Resolves the addresses of other hosts; returns no hosts without a secret. Skips names that do not resolve if another
/// one does, and returns them as the end of an error message.
fn hosts(args: &args::Hosts) -> anyhow::Result<(Option<Hosts>, String)> {
    let Some(secret_file) = args.secret_file.clone() else { return Ok((None, String::new())) };
    let (mut join, mut unresolved) = (Vec::new(), Vec::new());
    for host in &args.join {
        match addresses::resolve(host) {
            Ok(addresses) if !addresses.is_empty() => join.extend(addresses),
            Ok(_) => unresolved.push(format!("{host} of --join: it has no address")),
            Err(error) => unresolved.push(format!("{host} of --join: {error}")),
        }
    }
    if join.is_empty() && !unresolved.is_empty() {
        bail!("cannot resolve {}", unresolved.join("; cannot resolve "));
    }
    let skipped: String = unresolved.iter().map(|why| format!("; cannot resolve {why}")).collect();
    Ok((Some(Hosts { listen: args.listen.clone(), join, secret_file }), skipped))
}
