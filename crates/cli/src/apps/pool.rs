//! Controls the workers of a run from the process that started them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use halite::blocking::Server;
use halite::{Permissions, ServeCause, ServeError, ServeOptions};
use halite_apps::dsm::Dsm;
use halite_apps::graph::Crowd;
use halite_apps::is_without_directory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::de::DeserializeOwned;

use super::worker::{Failure, Joined, Reply, Request};
use super::{ClusterArgs, log};
use crate::child::{self, ChildProcess};
use crate::client::{self, Client};
use crate::output::{self, UsageError};
use crate::scratch::Scratch;
use crate::signals::{self, SignalWaiter, Wake};
use crate::threads;

/// Time within which the kernel closes all files of a killed process.
const EXIT_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Maximum time for another process to free the regions of a run, or to release the name because the regions exist.
const CLAIM_WAIT_MAX: Duration = Duration::from_secs(10);
const CLAIM_PAUSE: Duration = Duration::from_millis(20);

/// The workers of a run and their cluster. Fields are dropped in the order of their declaration.
pub struct WorkerPool {
    // Node 0 holds the names, so its worker is dropped last: workers are inserted at the front.
    workers: Vec<ChildProcess>,
    scratch: Option<Scratch>,
    dir: PathBuf,
    /// Name of this run's regions, once they exist.
    regions_name: Option<String>,
    /// True once a wait was reported; one report per run is enough.
    has_reported_wait: bool,
    /// True if the run continued without a worker. Regions of this worker may remain.
    has_lost_worker: bool,
    /// True if the workers' tasks cannot be stopped before they end.
    is_unstoppable: bool,
    /// True if the run continues when the process of a worker other than the first is killed.
    is_fault_tolerant: bool,
    /// Number of workers that were killed before they joined the cluster. They have no worker number.
    pub never_joined: u32,
    /// Nodes of the workers, indexed by worker number.
    pub nodes: Vec<u32>,
    /// Addresses of the workers' metrics, in the order of worker numbers.
    pub metrics: Vec<SocketAddr>,
}

impl WorkerPool {
    /// Starts the workers on the cluster in `dir`, or on a private cluster.
    pub fn start(dir: Option<&Path>, cluster: &ClusterArgs) -> anyhow::Result<WorkerPool> {
        WorkerPool::start_with(dir, cluster, Scratch::create, false)
    }

    /// Starts the workers as [`WorkerPool::start`] does. If workers other than the first are killed during the start,
    /// continues without them.
    pub fn start_fault_tolerant(dir: Option<&Path>, cluster: &ClusterArgs) -> anyhow::Result<WorkerPool> {
        WorkerPool::start_with(dir, cluster, Scratch::create, true)
    }

    /// Starts the workers as [`WorkerPool::start`] does, for a command that handles signals itself.
    pub fn start_without_signal_handler(
        dir: Option<&Path>,
        cluster: &ClusterArgs,
    ) -> anyhow::Result<WorkerPool> {
        WorkerPool::start_with(dir, cluster, Scratch::create_without_signal_handler, false)
    }

    fn start_with(
        dir: Option<&Path>,
        cluster: &ClusterArgs,
        create: fn() -> anyhow::Result<Scratch>,
        is_fault_tolerant: bool,
    ) -> anyhow::Result<WorkerPool> {
        let scratch = if dir.is_none() { Some(create()?) } else { None };
        let dir = dir.or(scratch.as_ref().map(Scratch::path)).expect("one of both").to_owned();
        // The loss of a worker shows by the loss of its node, which attached workers do not have.
        let is_fault_tolerant = is_fault_tolerant && !client::belongs_to_other_user(&dir);
        let mut pool = WorkerPool {
            workers: Vec::new(),
            scratch,
            dir,
            regions_name: None,
            has_reported_wait: false,
            has_lost_worker: false,
            is_unstoppable: false,
            is_fault_tolerant,
            never_joined: 0,
            nodes: Vec::new(),
            metrics: Vec::new(),
        };
        for number in 0..cluster.nodes {
            let mut worker = pool.launch(number, cluster)?;
            let joined = match receive_joined(&mut worker) {
                Ok(joined) => joined,
                Err(error) if pool.tolerates_loss_of(number as usize, &worker, &error) => {
                    pool.never_joined += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            pool.nodes.push(joined.node);
            pool.metrics.extend(joined.metrics);
            pool.workers.insert(0, worker);
        }
        Ok(pool)
    }

    /// Starts the process of a worker.
    fn launch(&self, number: u32, cluster: &ClusterArgs) -> anyhow::Result<ChildProcess> {
        let mut flags = Vec::new();
        if self.scratch.is_some() {
            let options = [("--node", number.to_string()), ("--arena", cluster.arena().0.to_string())];
            let options = options.into_iter().chain([("--fabric", cluster.fabric().name().to_owned())]);
            flags.extend(options.flat_map(|(flag, value)| [flag.to_owned(), value]));
        } else if let Some(arena) = cluster.arena {
            if client::belongs_to_other_user(&self.dir) {
                let why =
                    "the nodes belong to another user, so this run's processes attach to them without memory";
                return Err(UsageError(format!("--arena {arena}: {why}; omit it")).into());
            }
            flags.extend(["--arena".to_owned(), arena.0.to_string()]);
        }
        let metrics = cluster
            .metrics
            .of_node(number)
            .context("too few port numbers remain above that of --metrics; choose a lower port")?;
        flags.extend(["--metrics".to_owned(), metrics.to_string()]);
        ChildProcess::start(format!("worker process {number}"), &self.dir, "run-worker", &flags)
    }

    /// Replaces a worker whose process was killed from outside. Returns the worker's number and how its process ended,
    /// or `None` if all workers run. Fails if the first worker has ended, or if a worker reported a failure, because
    /// that failure would recur.
    pub fn replace_ended(&mut self, cluster: &ClusterArgs) -> anyhow::Result<Option<(usize, String)>> {
        let Some(index) = self.workers.iter().position(ChildProcess::has_ended) else { return Ok(None) };
        let number = self.workers.len() - 1 - index;
        let why = self.exit_cause().context("a worker has ended")?;
        if number == 0 || why.is::<Failure>() {
            return Err(why);
        }
        let mut worker = self.launch(number as u32, cluster)?;
        self.nodes[number] = receive_joined(&mut worker)?.node;
        self.workers[index] = worker;
        self.has_lost_worker = true;
        Ok(Some((number, output::error_chain(&why))))
    }

    /// Takes the name of this run, so that later runs cannot use it. Fails if another run has it, or if regions with
    /// the names of this run exist, because they belong to others.
    ///
    /// Also frees the regions of runs without `--name` whose processes were all killed.
    pub fn claim(&mut self, name: &str) -> anyhow::Result<()> {
        if name.is_empty() || name.contains('/') {
            let why = "the names of a run's regions begin with NAME/, so --name must not be empty or contain a slash";
            return Err(UsageError(format!("--name {name:?}: {why}")).into());
        }
        if self.scratch.is_some() {
            return Ok(());
        }
        self.request::<()>(0, &Request::Claim(name.to_owned()))?;
        let client = client::join_or_attach(&self.dir)?;
        let named: Vec<String> = client.session.list()?.into_iter().filter_map(|info| info.name).collect();
        let servers = client.session.servers(None)?;
        let has_ended = |run: &&str| !servers.iter().any(|server| server.service == claim_name(run));
        let runs: BTreeSet<&str> =
            named.iter().filter_map(|region| super::run_with_random_name(region)).collect();
        runs.into_iter().filter(has_ended).try_for_each(|run| sweep_with(&client, run))?;
        let taken = named.into_iter().find(|region| belongs_to_run(region, name));
        taken.map_or(Ok(()), |region| {
            bail!("the name is taken: the region {region:?} exists already; choose another name with --name")
        })
    }

    /// Records that the region `name`, and the regions with names derived from `name`, belong to this run.
    pub fn set_regions_name(&mut self, name: &str) {
        self.regions_name = Some(name.to_owned());
    }

    /// Records the regions as [`WorkerPool::set_regions_name`] does. From now on, a signal that asks this process to end
    /// kills the workers and frees the regions of this run. For workers whose tasks cannot be stopped before they end.
    pub fn free_when_stopped(&mut self, name: &str) -> anyhow::Result<()> {
        self.set_regions_name(name);
        self.is_unstoppable = true;
        if self.scratch.is_some() {
            // The regions end with the private cluster, which has a signal handler of its own.
            return Ok(());
        }
        let mut signals = SignalWaiter::listen().context("cannot listen for signals")?;
        let (dir, name) = (self.dir.clone(), name.to_owned());
        threads::spawn("halite-stop", move || {
            let signal = loop {
                if let Wake::Signal(signal) = signals.wait() {
                    break signal;
                }
            };
            // If the cluster does not answer, the next signal ends this process.
            let _ = signals::exit_on_next_signal();
            child::kill_all();
            if let Err(why) = sweep(&dir, &name) {
                output::note(&leftover_note(&dir, &name, &why));
            }
            std::process::exit(128 + signal.as_raw());
        })?;
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.workers.len()
    }

    /// Sends `request` to all workers.
    pub fn send_all(&mut self, request: &Request) -> anyhow::Result<()> {
        let sent = self.workers.iter_mut().rev().try_for_each(|worker| worker.send(request));
        sent.map_err(|error| self.exit_cause().unwrap_or(error))
    }

    /// Receives the next answer of each worker.
    pub fn receive_all<T: DeserializeOwned>(&mut self) -> anyhow::Result<Vec<T>> {
        self.receive_all_noting(output::note)
    }

    /// Receives the next answer of each worker. The first time in a run that a worker reports a wait, calls `note` with
    /// the reason.
    pub fn receive_all_noting<T: DeserializeOwned>(&mut self, note: impl Fn(&str)) -> anyhow::Result<Vec<T>> {
        let mut answers: Vec<Option<T>> = (0..self.workers.len()).map(|_| None).collect();
        while answers.iter().any(Option::is_none) {
            // Polls all workers, so that the end of one is reported at once.
            for index in self.ready(|index| answers[index].is_none())? {
                match receive(&mut self.workers[index]) {
                    Ok(Received::Reply(value)) => answers[index] = Some(value),
                    Ok(Received::Waiting(why)) => self.report_wait(&why, &note),
                    // If a worker has ended, the others fail, too, and its end is the cause.
                    Err(error) => {
                        self.wait_for_exit();
                        return Err(self.exit_cause().unwrap_or_else(|| self.earliest_failure(error)));
                    }
                }
            }
        }
        Ok(answers.into_iter().rev().flatten().collect())
    }

    /// Returns the indices of the awaited workers that have written output or have ended.
    fn ready(&self, is_awaited: impl Fn(usize) -> bool) -> anyhow::Result<Vec<usize>> {
        let mut indices = Vec::new();
        let mut fds = Vec::new();
        for (index, worker) in self.workers.iter().enumerate().filter(|(index, _)| is_awaited(*index)) {
            let Some(unbuffered_output) = worker.unbuffered_output() else { return Ok(vec![index]) };
            indices.push(index);
            fds.push(PollFd::from_borrowed_fd(unbuffered_output, PollFlags::IN));
        }
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for worker processes"),
        }
        let ready = indices.into_iter().zip(fds).filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ready.map(|(index, _)| index).collect())
    }

    /// Sends `request` to one worker and returns its answer.
    pub fn request<T: DeserializeOwned>(&mut self, number: usize, request: &Request) -> anyhow::Result<T> {
        let index = self.index_of(number);
        let answered = self.workers[index].send(request).and_then(|()| self.receive_from(number));
        answered.map_err(|error| {
            self.wait_for_exit();
            self.exit_cause().unwrap_or(error)
        })
    }

    /// Sends `request` to one worker and returns its answer; `None` if the worker was killed and the run continues
    /// without it.
    pub fn request_unless_killed<T: DeserializeOwned>(
        &mut self,
        number: usize,
        request: &Request,
    ) -> anyhow::Result<Option<T>> {
        let index = self.index_of(number);
        let answered = self.workers[index].send(request).and_then(|()| self.receive_from(number));
        match answered {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if self.tolerates_loss_of(number, &self.workers[index], &error) => Ok(None),
            Err(error) => {
                self.wait_for_exit();
                Err(self.exit_cause().unwrap_or(error))
            }
        }
    }

    /// Returns true if the run continues without a worker that failed with `error`, because its process was killed from
    /// outside. A failure that the worker reports itself would also occur in the other workers.
    fn tolerates_loss_of(&self, number: usize, worker: &ChildProcess, error: &anyhow::Error) -> bool {
        self.is_fault_tolerant && number > 0 && worker.has_ended() && !error.is::<Failure>()
    }

    /// Receives the next answer of one worker. Does not check whether the other workers still run.
    pub fn receive_from<T: DeserializeOwned>(&mut self, number: usize) -> anyhow::Result<T> {
        let index = self.index_of(number);
        loop {
            match receive(&mut self.workers[index])? {
                Received::Reply(value) => break Ok(value),
                Received::Waiting(why) => self.report_wait(&why, output::note),
            }
        }
    }

    fn index_of(&self, number: usize) -> usize {
        self.workers.len() - 1 - number
    }

    /// Removes the workers that have ended, so that a run that has succeeded without them does not fail.
    pub fn remove_ended(&mut self) {
        let workers = self.workers.len();
        self.workers.retain(|worker| !worker.has_ended());
        self.has_lost_worker |= self.workers.len() < workers;
    }

    /// Waits briefly for a worker to end. The kernel closes the files of a killed process in no fixed order, so another
    /// worker may report a failure before the end is visible.
    fn wait_for_exit(&self) {
        let mut fds: Vec<_> = self
            .workers
            .iter()
            .map(|worker| PollFd::from_borrowed_fd(worker.output(), PollFlags::empty()))
            .collect();
        // If no worker ends, the failure itself is reported.
        let _ = poll(&mut fds, Some(&EXIT_WAIT));
    }

    fn report_wait(&mut self, why: &str, note: impl Fn(&str)) {
        if !std::mem::replace(&mut self.has_reported_wait, true) {
            note(why);
        }
    }

    /// Returns the failure that an ended worker has reported, or else its exit status; `None` if all workers run.
    pub fn exit_cause(&mut self) -> Option<anyhow::Error> {
        let ended = self.workers.iter_mut().find_map(|worker| worker.has_ended().then_some(worker))?;
        loop {
            match ended.receive() {
                Ok(Reply::Done(_) | Reply::Waiting(_)) => {}
                Ok(Reply::Failed(failure)) => return Some(failure.into()),
                Err(error) => return Some(error),
            }
        }
    }

    /// Returns the earliest failure among `received` and the failures that workers have reported by now, because the
    /// earliest one may have caused the others.
    fn earliest_failure(&mut self, received: anyhow::Error) -> anyhow::Error {
        match received.downcast::<Failure>() {
            Ok(received) => {
                let reported = self.workers.iter_mut().filter_map(failure);
                reported
                    .chain([received])
                    .min_by_key(|failure| failure.at_ns)
                    .expect("one was received")
                    .into()
            }
            Err(received) => received,
        }
    }

    /// Runs `body`, then ends the workers. Frees the regions of a failed run.
    pub fn run<T>(mut self, body: impl FnOnce(&mut WorkerPool) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let outcome = body(&mut self);
        let leftover =
            self.regions_name.take().filter(|_| self.scratch.is_none()).map(|name| (self.dir.clone(), name));
        let has_lost_worker = self.has_lost_worker;
        if self.is_unstoppable && outcome.is_err() {
            // They may wait at a barrier for a worker that was killed before it reached the barrier.
            self.workers.clear();
        }
        let ended = self.end_all();
        if let Some((dir, name)) = leftover.filter(|_| outcome.is_err() || ended.is_err() || has_lost_worker)
        {
            // A killed worker leaves its regions behind. The failure of the run itself takes precedence.
            if let Err(why) = sweep(&dir, &name) {
                let text = leftover_note(&dir, &name, &why);
                match outcome.is_err() || ended.is_err() {
                    true => output::note_consequence(text),
                    false => output::note(&text),
                }
            }
        }
        let outcome = outcome?;
        ended?;
        Ok(outcome)
    }

    /// Ends all workers; returns the first failure.
    fn end_all(mut self) -> anyhow::Result<()> {
        let ended: Vec<anyhow::Result<()>> = self.workers.drain(..).map(end_worker).collect();
        ended.into_iter().collect()
    }
}

/// Ends one worker; fails if the worker could not remove its regions.
fn end_worker(mut worker: ChildProcess) -> anyhow::Result<()> {
    // Fails if the worker has ended, which is reported below.
    let _ = worker.send(&Request::Leave);
    for line in worker.close_and_wait()?.lines() {
        if let Ok(Reply::Failed(failure)) = serde_json::from_str(line) {
            return Err(failure.into());
        }
    }
    Ok(())
}

/// Frees the regions of a run whose workers have ended.
pub(super) fn sweep(dir: &Path, name: &str) -> anyhow::Result<()> {
    sweep_with(&client::join_or_attach(dir)?, name)
}

fn sweep_with(client: &Client, name: &str) -> anyhow::Result<()> {
    let Some(_claimed) = reclaim(client, name) else { return Ok(()) };
    let named = client.session.list()?.into_iter().filter_map(|info| info.name);
    let barriers = [Crowd::barrier(name), Dsm::barrier(name), Dsm::barrier(&Crowd::shared(name))];
    for barrier in barriers {
        // Fails where the run has no such barrier; it holds no data.
        let _ = client.session.free_barrier(&barrier);
    }
    let mut freed = Ok(());
    for region in named.filter(|region| belongs_to_run(region, name)) {
        let mapped = client.session.map(&region, Permissions::MASTER);
        match mapped.and_then(|lh| client.session.free(lh)) {
            // After an unavailable directory, the remaining regions are still tried.
            Err(error) if is_without_directory(error.cause()) => freed = Err(error.into()),
            // A region that no longer exists needs no removal.
            _ => {}
        }
    }
    freed
}

/// Takes the name of a run whose workers have ended, so that no other run can take it before the regions are freed.
/// Returns `None` if another run has the name: it took the name when the regions were free.
fn reclaim(client: &Client, name: &str) -> Option<Result<Server, ServeError>> {
    let begin = Instant::now();
    loop {
        match client.session.serve_named(&claim_name(name), ServeOptions::default()) {
            Err(error) if !matches!(error.cause(), ServeCause::NameTaken) => return Some(Err(error)),
            Ok(server) => return Some(Ok(server)),
            Err(_) if begin.elapsed() > CLAIM_WAIT_MAX => return None,
            // Another worker frees the regions, or a run has the name until it finds the regions.
            Err(_) => std::thread::sleep(CLAIM_PAUSE),
        }
    }
}

/// Returns the name of the server that holds the name of a run.
pub(super) fn claim_name(name: &str) -> String {
    format!("{name}/run")
}

/// Formats the names of regions that may remain, and the command that frees them.
pub(super) fn leftover_note(dir: &Path, name: &str, why: &anyhow::Error) -> String {
    let dir = dir.display();
    let progress = log::PROGRESS;
    format!(
        "cannot free the regions of this run ({}): {name:?}, \"{name}{progress}\" or \"{name}/...\" may be left; `halite ls --dir {dir}` lists them, and `halite rm --dir {dir} NAME` frees one",
        output::error_chain(why)
    )
}

/// Returns true if `region` belongs to a run called `name`.
pub(super) fn belongs_to_run(region: &str, name: &str) -> bool {
    let rest = region.strip_prefix(name);
    rest.is_some_and(|rest| rest.is_empty() || rest == log::PROGRESS || rest.starts_with('/'))
}

/// A message of a worker.
enum Received<T> {
    Reply(T),
    Waiting(String),
}

fn receive<T: DeserializeOwned>(worker: &mut ChildProcess) -> anyhow::Result<Received<T>> {
    match worker.receive()? {
        Reply::Done(value) => serde_json::from_value(value)
            .map(Received::Reply)
            .context("a worker process sent an unexpected answer"),
        Reply::Waiting(why) => Ok(Received::Waiting(why)),
        Reply::Failed(failure) => Err(failure.into()),
    }
}

/// Waits until a worker has joined, and names it after its node in errors.
fn receive_joined(worker: &mut ChildProcess) -> anyhow::Result<Joined> {
    let joined: Joined = match receive(worker)? {
        Received::Reply(joined) => joined,
        Received::Waiting(why) => bail!("a worker process cannot join yet: {why}"),
    };
    worker.rename(format!("the worker process of node {}", joined.node));
    Ok(joined)
}

/// Returns the failure that the worker has reported by now, if any.
fn failure(worker: &mut ChildProcess) -> Option<Failure> {
    while worker.has_output() {
        match worker.receive().ok()? {
            Reply::Done(_) | Reply::Waiting(_) => {}
            Reply::Failed(failure) => return Some(failure),
        }
    }
    None
}
