//! The state of a measurement: both ends, and the size and number of operations of the current row.

use std::io;
use std::path::Path;

use anyhow::Context;
use halite::{Config, Lh, Node, NodeId, Permissions, Placement};

use super::baseline::{Copier, Direction};
use super::cores::{Cores, pin};
use super::end::End;
use super::job::Job;
use super::measure::{Measured, Timer, warm_up};
use super::pinned;
use super::relay;
use super::report::Row;
use super::server::{CLIENT, Request, Server, ServerTask};
use crate::output;
use crate::scratch::Scratch;
use crate::transport;

/// State of a measurement that all workloads share. Fields are dropped in the order of their declaration: this process
/// leaves the cluster before the server stops.
pub struct Bench {
    pub job: Job,
    /// The client's end.
    pub end: End,
    /// The attached process that serves functions; `None` if the server process does.
    attached_server: Option<Server>,
    /// The server process; `None` if the peer is a running node.
    pub server: Option<Server>,
    /// Regions that exist until the last row.
    pub regions: Vec<Lh>,
    /// Length of one operation in the current row, in bytes.
    pub size: u64,
    /// Number of operations of each thread in the current row.
    pub iterations: u64,
    /// Factor by which intervals between operations are longer than usual.
    pub slowdown: u64,
    has_server_threads: bool,
    _scratch: Option<Scratch>,
}

impl Bench {
    /// Joins the cluster in `dir` if the user names a peer, else starts a private one.
    pub fn open(dir: Option<&Path>, mut job: Job) -> anyhow::Result<Bench> {
        let cores = Cores::available(job.args.cores).context("cannot list the cores")?;
        if cores.are_too_few() {
            output::note("both ends share the only core: times include the switches between them");
        }
        let scratch = if job.args.peer.is_none() { Some(Scratch::create()?) } else { None };
        let server = scratch.as_ref().map(|scratch| Server::start(scratch.path(), &job)).transpose()?;
        let dir = scratch.as_ref().map(Scratch::path).or(dir);
        let dir = dir.map_or_else(|| Config::default().dir, Path::to_owned);
        let has_third = job.args.attached && job.plan.serves_functions;
        let attached_server = has_third.then(|| Server::start_attached(&dir, &job)).transpose()?;
        // This node runs on the first client thread's core. The server, a child, would inherit the core, so it started
        // before.
        pin(cores.of_client(0)).context("cannot pin the client to its core")?;
        let (node, arena_bytes) =
            server.as_ref().map_or((None, 0), |_| (Some(CLIENT), job.client_arena_bytes()));
        let config = Config { dir: dir.clone(), node, arena_bytes, ..transport::config() };
        let node = Node::embedded(config)
            .with_context(|| format!("cannot start the client in {}", dir.display()))?;
        let mut end = End::new(node, NodeId(job.args.peer.unwrap_or(0)), cores)?;
        // The nodes use the best network that both have.
        let connection = end.connection()?;
        job.fabric = connection.capabilities.context("the other end is not connected")?.provider;
        job.responder = connection.path.map(|path| path.responder.to_string());
        let wanted = transport::config().responder.name();
        if job.responder.is_none() && wanted != Config::default().responder.name() {
            output::note(&format!(
                "--responder {wanted} has no effect over {}: use --fabric roce",
                job.fabric
            ));
        }
        if job.args.attached {
            end.attach(&dir)?;
        }
        Ok(Bench {
            job,
            end,
            attached_server,
            server,
            regions: Vec::new(),
            size: 0,
            iterations: 0,
            slowdown: 1,
            has_server_threads: false,
            _scratch: scratch,
        })
    }

    /// Measures one row of the result table.
    pub fn row(&mut self, size: u64, slowdown: u64) -> anyhow::Result<Row> {
        (self.size, self.slowdown) = (size, slowdown);
        // Longer intervals need fewer operations, so that each row takes equally long.
        self.iterations = (self.job.iterations(size) / slowdown).max(1);
        (self.job.plan.measure)(self)
    }

    /// Frees the regions, leaves, and stops the server; returns the first error.
    pub fn close(self) -> anyhow::Result<()> {
        let Bench { end, attached_server, server, regions, _scratch, .. } = self;
        regions.into_iter().try_for_each(|lh| end.session.free(lh))?;
        end.leave();
        attached_server.map_or(Ok(()), Server::stop)?;
        server.map_or(Ok(()), Server::stop)
    }

    /// Creates the regions that all rows use: `count` regions of `bytes` bytes each, at the peer. Later calls have no
    /// effect.
    pub fn make_regions(&mut self, count: u64, bytes: u64) -> anyhow::Result<()> {
        if self.regions.is_empty() {
            let there = || Placement::On(self.end.peer);
            let make = |_| self.end.session.alloc(None, bytes, there(), Permissions::all());
            self.regions =
                (0..count).map(make).collect::<Result<_, _>>().context("cannot create the regions")?;
        }
        Ok(())
    }

    /// Returns the default task of the server's threads for this row.
    pub fn server_task(&self) -> ServerTask {
        let Job { args, plan, threads, .. } = &self.job;
        let warm_up = if plan.warms_up { warm_up(self.iterations) } else { 0 };
        ServerTask {
            test: args.test.name.to_owned(),
            threads: *threads,
            size: self.size,
            turns: warm_up + self.iterations,
            reply_bytes: args.reply_size.map_or(self.size, |size| size.0),
            batch: args.batch.unwrap_or(1) as usize,
        }
    }

    /// Returns the server process. Fails if the peer is a node of a running cluster, because there is no server process
    /// then.
    pub fn server(&mut self) -> anyhow::Result<&mut Server> {
        self.server.as_mut().context("this test needs its own server process")
    }

    /// Returns the process whose threads respond to the client's threads.
    fn responder(&mut self) -> anyhow::Result<&mut Server> {
        match self.attached_server {
            Some(ref mut server) => Ok(server),
            None => self.server(),
        }
    }

    /// Starts the server's threads, which respond to the client's threads until [`Bench::join_server_threads`].
    pub fn start_server_threads(&mut self, task: ServerTask) -> anyhow::Result<()> {
        self.has_server_threads = true;
        self.responder()?.ask(&Request::StartThreads(task)).map(|_| ())
    }

    /// Waits until the server's threads have ended; returns the number of their errors, 0 if none were started.
    pub fn join_server_threads(&mut self) -> anyhow::Result<u64> {
        match std::mem::take(&mut self.has_server_threads) {
            true => self.responder()?.ask(&Request::JoinThreads),
            false => Ok(0),
        }
    }

    /// Measures `operation` on one thread per worker. Returns the combined measurements and the workers.
    pub fn time<W: Send>(
        &mut self,
        workers: Vec<W>,
        operation: impl Fn(usize, &mut W, &Bench, &Timer) -> anyhow::Result<Measured> + Sync,
    ) -> anyhow::Result<(Row, Vec<W>)> {
        let (cores, operations) = (&self.end.cores, self.iterations);
        let bench = &*self;
        let timed = |thread, mut worker, participant| {
            let measured = operation(thread, &mut worker, bench, &Timer { participant, operations })?;
            Ok((measured, worker))
        };
        let done = pinned::run_all(workers, |thread| cores.of_client(thread), timed)?;
        // The longer direction counts for bandwidth.
        let payload = self.size.max(self.job.args.reply_size.map_or(0, |size| size.0));
        let mut row = Row { size: self.size, payload, iterations: operations, ..Row::default() };
        let add = |(measured, worker)| {
            row.add(&measured);
            worker
        };
        let workers = done.into_iter().map(add).collect();
        if let Some(relay_us) = self.relay_us()? {
            let ratio = row.ours.quantile_us(0.5) / relay_us;
            row.extra.extend([("relay_us", relay_us), ("relay_ratio", ratio)]);
        }
        Ok((row, workers))
    }

    /// Returns the time of a relay between the processes of the measured operation, in microseconds; `None` if there is
    /// no such baseline, or other threads use its cores.
    fn relay_us(&mut self) -> anyhow::Result<Option<f64>> {
        let cores = &self.end.cores;
        let relay_us = match (&mut self.server, &mut self.attached_server) {
            _ if !self.job.args.attached || !cores.are_apart() => return Ok(None),
            (Some(node), Some(server)) => relay::measure_three_us(cores, node, server)?,
            _ => relay::measure_us(cores)?,
        };
        if relay_us.is_none() {
            output::note("no relay_us: other threads compute on these cores; repeat on an idle machine");
        }
        Ok(relay_us)
    }

    /// Calls `make` if the baseline is to be measured; otherwise returns `None`.
    pub fn baseline<T>(&self, make: impl FnOnce() -> io::Result<T>) -> anyhow::Result<Option<T>> {
        self.job.args.check_memcpy.then(make).transpose().context("no memory for the baseline")
    }

    /// Returns a copier of the row's size as the baseline; `None` if no baseline is to be measured.
    pub fn copier(&self, direction: Direction) -> anyhow::Result<Option<Copier>> {
        self.baseline(|| Copier::new(direction, self.size))
    }
}
