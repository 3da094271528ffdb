//! `halite up`: starts a cluster of several node processes on this host.

use std::path::Path;

use anyhow::{Context, bail};
use halite::cluster_dir::{ClusterDir, Made, Presence, Starting};
use halite::{Config, EPHEMERAL_NODE_MIN, Provider};

use super::down::{applications, remove_stale_files};
use crate::args::Up;
use crate::bytes::ByteCount;
use crate::control::{self, ClusterSpec, GRACE, Lifetime, NodeProcess, Target};
use crate::limits;
use crate::output;
use crate::signals::{self, SignalWaiter, Wake};
use crate::table::{Align, Table};

/// Starts the nodes. Unless they are detached, waits for a signal and then stops them. `log` is their log filter.
pub fn run(dir: &Path, args: &Up, log: Option<String>) -> anyhow::Result<()> {
    if let Some(parent) = args.parent {
        signals::die_with(parent)?;
    }
    // The listener precedes the nodes, so that a signal during the start stops them.
    let mut signals = SignalWaiter::listen().context("cannot listen for signals")?;
    // The check precedes the start, because the user would not learn of the nodes otherwise.
    output::standard_output()?;
    Config { arena_bytes: args.arena.0, ..Config::default() }.check()?;
    limits::check_descriptors(args.nodes)?;
    let made = Made::expect(dir);
    let started = start(dir, args, log);
    if let (Err(_), Some(made)) = (&started, made) {
        made.remove();
    }
    let (dir, mut cluster) = started?;
    let path = std::path::absolute(dir.path())?;
    output::print(&cluster.table(args).to_string())?;
    if args.detach {
        output::print(&format!("`halite down --dir {}` stops them\n", path.display()))?;
        cluster.nodes.clear();
        return Ok(());
    }
    output::print(&format!("cluster in {}; ctrl-C stops it\n", path.display()))?;
    let outcome = cluster.wait(&mut signals);
    cluster.stop()?;
    remove_stale_files(&dir)?;
    outcome
}

/// Starts the nodes in `path`.
fn start(path: &Path, args: &Up, log: Option<String>) -> anyhow::Result<(ClusterDir, Cluster)> {
    let (dir, starting) = prepare(path)?;
    let lifetime = if args.detach { Lifetime::Detached } else { Lifetime::OfParent };
    let networks = args.networks.flags();
    let (arena_bytes, metrics) = (args.arena.0, args.metrics);
    let directory = args.names.directory.clone();
    let sessions = args.sessions.flags();
    let spec =
        ClusterSpec { dir: dir.clone(), arena_bytes, networks, directory, sessions, metrics, lifetime, log };
    let mut cluster = Cluster { nodes: Vec::new() };
    cluster.start(&spec, args.nodes)?;
    drop(starting);
    Ok((dir, cluster))
}

/// Prepares `path`: a private directory in which no cluster runs or starts, without files of an earlier cluster.
fn prepare(path: &Path) -> anyhow::Result<(ClusterDir, Starting)> {
    let failed = || format!("cannot use {} as the directory of a cluster", path.display());
    let dir = ClusterDir::found(path).with_context(failed)?;
    let starting = dir.start().with_context(failed)?;
    let nodes = dir.nodes().with_context(failed)?;
    let running: Vec<String> = (nodes.iter())
        .filter(|node| node.alive && node.node.0 < EPHEMERAL_NODE_MIN)
        .map(|node| match pid_of(&dir, node) {
            Some(pid) => format!("node {} is process {pid}", node.node),
            None => format!("node {} runs, but its files were removed", node.node),
        })
        .collect();
    if !running.is_empty() {
        bail!(
            "a cluster is running in {0} already ({1}): `halite down --dir {0}` stops it",
            path.display(),
            running.join(", ")
        );
    }
    // Applications that still run would belong to both the ended cluster and the new one.
    if let Some(applications) = applications(&dir)? {
        bail!(
            "cannot start a cluster in {0}: {applications}; stop them, or run `halite down --all --dir {0}`",
            path.display()
        );
    }
    dir.clean().and_then(|()| dir.clean_logs()).with_context(failed)?;
    Ok((dir, starting))
}

/// Returns the process of a live node: from its lock file, or from its socket if the lock file was removed.
fn pid_of(dir: &ClusterDir, node: &Presence) -> Option<u32> {
    match node.pid {
        0 => dir.process_of(node.node).ok().flatten().map(|process| process.pid.unsigned_abs()),
        pid => Some(pid),
    }
}

/// The nodes that this process started. Dropping it stops them.
struct Cluster {
    nodes: Vec<NodeProcess>,
}

impl Cluster {
    /// Starts `count` nodes: node 0 first, the others through it in parallel.
    fn start(&mut self, spec: &ClusterSpec, count: u32) -> anyhow::Result<()> {
        self.nodes.push(NodeProcess::start(spec, 0)?);
        self.nodes[0].await_ready()?;
        for id in 1..count {
            self.nodes.push(NodeProcess::start(spec, id)?);
        }
        for node in &mut self.nodes[1..] {
            node.await_ready()?;
        }
        Ok(())
    }

    fn table(&self, args: &Up) -> Table {
        let mut columns = vec![
            ("node", Align::Right),
            ("process", Align::Right),
            ("fabric", Align::Left),
            ("arena", Align::Right),
        ];
        let serves_metrics = args.metrics.0.is_some();
        if serves_metrics {
            columns.push(("metrics", Align::Left));
        }
        let mut table = Table::new(&columns);
        let names: Vec<&str> = args.networks.fabric.iter().map(|fabric| fabric.name()).collect();
        // As in the output of `halite status`.
        let fabric = if names.is_empty() { Provider::Shm.name().to_owned() } else { names.join("+") };
        for node in &self.nodes {
            let arena = ByteCount(args.arena.0).to_string();
            let mut cells = vec![node.id.to_string(), node.pid().to_string(), fabric.clone(), arena];
            if serves_metrics {
                cells.push(node.metrics.clone().unwrap_or_default());
            }
            table.row(cells);
        }
        table
    }

    /// Waits for a signal or the end of all nodes; reports nodes that failed.
    fn wait(&mut self, signals: &mut SignalWaiter) -> anyhow::Result<()> {
        let mut failures = 0;
        while !self.nodes.is_empty() {
            if matches!(signals.wait(), Wake::Signal(_)) {
                return Ok(());
            }
            self.nodes.retain_mut(|node| match node.ended() {
                None => true,
                Some(status) => {
                    failures += u32::from(!status.success());
                    output::note(&format!("node {} (process {}) ended: {status}", node.id, node.pid()));
                    false
                }
            });
        }
        if failures > 0 {
            bail!("all nodes have ended; {failures} of them failed");
        }
        Ok(())
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        let mut targets = Vec::new();
        for node in &self.nodes {
            // These children were not waited for, so their pids cannot have been reused.
            targets.extend(Target::of_child(node.id, node.pid())?);
        }
        control::stop(targets, GRACE)?;
        for mut node in self.nodes.drain(..) {
            node.reap().with_context(|| format!("cannot get the exit status of node {}", node.id))?;
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            output::note(&output::error_chain(&error));
        }
    }
}
