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

use super::worker::{Answer, Failure, Joined, Line};
use super::{Over, log};
use crate::client::{self, Client};
use crate::coworker::{self, Coworker};
use crate::output::{self, UsageError};
use crate::scratch::Scratch;
use crate::signals::{self, Ending, Woken};
use crate::threads;

/// Time within which the kernel closes all files of a killed process.
const END_IS_SEEN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Maximum time for another process to free the regions of a run, or to release the name because the regions exist.
const CLAIM_ENDS: Duration = Duration::from_secs(10);
const CLAIM_PAUSE: Duration = Duration::from_millis(20);

/// The workers of a run and their cluster. Fields are dropped in the order of their declaration.
pub struct Crew {
    // Node 0 holds the names, so its worker is dropped last: workers are inserted at the front.
    workers: Vec<Coworker>,
    scratch: Option<Scratch>,
    dir: PathBuf,
    /// Name of this run's regions, once they exist.
    made: Option<String>,
    /// True once a wait was reported; one report per run is enough.
    has_reported_wait: bool,
    /// True if the run continued without a worker. Regions of this worker may remain.
    has_lost: bool,
    /// True if the workers' tasks cannot be stopped before they end.
    is_unstoppable: bool,
    /// True if the run continues when the process of a worker other than the first is killed.
    is_enduring: bool,
    /// Number of workers that were killed before they joined the cluster. They have no worker number.
    pub never_joined: u32,
    /// Nodes of the workers, indexed by worker number.
    pub nodes: Vec<u32>,
    /// Addresses of the workers' metrics, in the order of worker numbers.
    pub metrics: Vec<SocketAddr>,
}

impl Crew {
    /// Starts the workers on the cluster in `dir`, or on a private cluster.
    pub fn start(dir: Option<&Path>, over: &Over) -> anyhow::Result<Crew> {
        Crew::start_with(dir, over, Scratch::create, false)
    }

    /// Starts the workers as [`Crew::start`] does. If workers other than the first are killed during the start,
    /// continues without them.
    pub fn start_fault_tolerant(dir: Option<&Path>, over: &Over) -> anyhow::Result<Crew> {
        Crew::start_with(dir, over, Scratch::create, true)
    }

    /// Starts the workers as [`Crew::start`] does, for a command that handles signals itself.
    pub fn start_without_signal_handler(dir: Option<&Path>, over: &Over) -> anyhow::Result<Crew> {
        Crew::start_with(dir, over, Scratch::create_unguarded, false)
    }

    fn start_with(
        dir: Option<&Path>,
        over: &Over,
        create: fn() -> anyhow::Result<Scratch>,
        is_enduring: bool,
    ) -> anyhow::Result<Crew> {
        let scratch = if dir.is_none() { Some(create()?) } else { None };
        let dir = dir.or(scratch.as_ref().map(Scratch::path)).expect("one of both").to_owned();
        // The loss of a worker shows by the loss of its node, which attached workers do not have.
        let is_enduring = is_enduring && !client::belongs_to_other_user(&dir);
        let mut crew = Crew {
            workers: Vec::new(),
            scratch,
            dir,
            made: None,
            has_reported_wait: false,
            has_lost: false,
            is_unstoppable: false,
            is_enduring,
            never_joined: 0,
            nodes: Vec::new(),
            metrics: Vec::new(),
        };
        for number in 0..over.nodes {
            let mut worker = crew.launch(number, over)?;
            let joined = match receive_joined(&mut worker) {
                Ok(joined) => joined,
                Err(error) if crew.can_do_without(number as usize, &worker, &error) => {
                    crew.never_joined += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            crew.nodes.push(joined.node);
            crew.metrics.extend(joined.metrics);
            crew.workers.insert(0, worker);
        }
        Ok(crew)
    }

    /// Starts the process of a worker.
    fn launch(&self, number: u32, over: &Over) -> anyhow::Result<Coworker> {
        let mut flags = Vec::new();
        if self.scratch.is_some() {
            let said = [("--node", number.to_string()), ("--arena", over.arena().0.to_string())];
            let said = said.into_iter().chain([("--fabric", over.fabric().name().to_owned())]);
            flags.extend(said.flat_map(|(flag, value)| [flag.to_owned(), value]));
        } else if let Some(arena) = over.arena {
            if client::belongs_to_other_user(&self.dir) {
                let why =
                    "the nodes belong to another user, so this run's processes attach to them without memory";
                return Err(UsageError(format!("--arena {arena}: {why}; omit it")).into());
            }
            flags.extend(["--arena".to_owned(), arena.0.to_string()]);
        }
        let metrics = over
            .metrics
            .of_node(number)
            .context("too few port numbers remain above that of --metrics; choose a lower port")?;
        flags.extend(["--metrics".to_owned(), metrics.to_string()]);
        Coworker::start(format!("worker process {number}"), &self.dir, "run-worker", &flags)
    }

    /// Replaces a worker whose process was killed from outside. Returns the worker's number and how its process ended,
    /// or `None` if all workers run. Fails if the first worker has ended, or if a worker reported a failure, because
    /// that failure would recur.
    pub fn replace_ended(&mut self, over: &Over) -> anyhow::Result<Option<(usize, String)>> {
        let Some(place) = self.workers.iter().position(Coworker::has_ended) else { return Ok(None) };
        let number = self.workers.len() - 1 - place;
        let why = self.why_ended().context("a worker has ended")?;
        if number == 0 || why.is::<Failure>() {
            return Err(why);
        }
        let mut worker = self.launch(number as u32, over)?;
        self.nodes[number] = receive_joined(&mut worker)?.node;
        self.workers[place] = worker;
        self.has_lost = true;
        Ok(Some((number, output::reasons(&why))))
    }

    /// Takes the name of this run, so that later runs cannot use it. Fails if another run has it, or if regions with
    /// the names of this run exist, because they belong to others.
    ///
    /// Also frees the regions of runs of the graph engine and of shared pages whose processes were all killed.
    pub fn claim(&mut self, name: &str) -> anyhow::Result<()> {
        if name.is_empty() || name.contains('/') {
            let why = "the names of a run's regions begin with NAME/, so --name must not be empty or contain a slash";
            return Err(UsageError(format!("--name {name:?}: {why}")).into());
        }
        if self.scratch.is_some() {
            return Ok(());
        }
        self.ask::<()>(0, &Line::Claim(name.to_owned()))?;
        let client = client::join_or_attach(&self.dir)?;
        let named: Vec<String> = client.session.list()?.into_iter().filter_map(|info| info.name).collect();
        let servers = client.session.servers(None)?;
        let has_ended = |run: &&str| !servers.iter().any(|server| server.service == claim_of(run));
        let runs: BTreeSet<&str> = named.iter().filter_map(|region| super::unnamed_run(region)).collect();
        runs.into_iter().filter(has_ended).try_for_each(|run| sweep_by(&client, run))?;
        let taken = named.into_iter().find(|region| is_part(region, name));
        taken.map_or(Ok(()), |region| {
            bail!("the name is taken: the region {region:?} exists already; choose another name with --name")
        })
    }

    /// Records that the region `name`, and the regions with names derived from `name`, belong to this run.
    pub fn note_made(&mut self, name: &str) {
        self.made = Some(name.to_owned());
    }

    /// Records the regions as [`Crew::note_made`] does. From now on, a signal that asks this process to end kills the
    /// workers and frees the regions of this run. Use this for workers whose tasks cannot be stopped before they end.
    pub fn free_when_stopped(&mut self, name: &str) -> anyhow::Result<()> {
        self.note_made(name);
        self.is_unstoppable = true;
        if self.scratch.is_some() {
            // The regions end with the private cluster, which has a signal handler of its own.
            return Ok(());
        }
        let mut ending = Ending::listen().context("cannot listen for signals")?;
        let (dir, name) = (self.dir.clone(), name.to_owned());
        threads::spawn("halite-stop", move || {
            let signal = loop {
                if let Woken::Asked(signal) = ending.wait() {
                    break signal;
                }
            };
            // If the cluster does not answer, the next signal ends this process.
            let _ = signals::end_if_asked_again();
            coworker::kill_all();
            if let Err(why) = sweep(&dir, &name) {
                output::note(&left_behind(&dir, &name, &why));
            }
            std::process::exit(128 + signal.as_raw());
        })?;
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.workers.len()
    }

    /// Sends `line` to all workers.
    pub fn tell(&mut self, line: &Line) -> anyhow::Result<()> {
        let told = self.workers.iter_mut().rev().try_for_each(|worker| worker.send(line));
        told.map_err(|error| self.why_ended().unwrap_or(error))
    }

    /// Receives the next answer of each worker.
    pub fn receive<T: DeserializeOwned>(&mut self) -> anyhow::Result<Vec<T>> {
        self.receive_noting(output::note)
    }

    /// Receives the next answer of each worker. The first time in a run that a worker reports a wait, calls `note` with
    /// the reason.
    pub fn receive_noting<T: DeserializeOwned>(&mut self, note: impl Fn(&str)) -> anyhow::Result<Vec<T>> {
        let mut answers: Vec<Option<T>> = (0..self.workers.len()).map(|_| None).collect();
        while answers.iter().any(Option::is_none) {
            // Polls all workers, so that the end of one is reported at once.
            for place in self.ready(|place| answers[place].is_none())? {
                match receive(&mut self.workers[place]) {
                    Ok(Received::Answer(value)) => answers[place] = Some(value),
                    Ok(Received::Waits(why)) => self.note_wait(&why, &note),
                    // If a worker has ended, the others fail, too, and its end is the cause.
                    Err(error) => {
                        self.await_an_end();
                        return Err(self.why_ended().unwrap_or_else(|| self.first(error)));
                    }
                }
            }
        }
        Ok(answers.into_iter().rev().flatten().collect())
    }

    /// Returns the indices of the awaited workers that have written output or have ended.
    fn ready(&self, is_awaited: impl Fn(usize) -> bool) -> anyhow::Result<Vec<usize>> {
        let mut places = Vec::new();
        let mut fds = Vec::new();
        for (place, worker) in self.workers.iter().enumerate().filter(|(place, _)| is_awaited(*place)) {
            let Some(unbuffered_output) = worker.unbuffered_output() else { return Ok(vec![place]) };
            places.push(place);
            fds.push(PollFd::from_borrowed_fd(unbuffered_output, PollFlags::IN));
        }
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for worker processes"),
        }
        let ready = places.into_iter().zip(fds).filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ready.map(|(place, _)| place).collect())
    }

    /// Sends `line` to one worker and returns its answer.
    pub fn ask<T: DeserializeOwned>(&mut self, number: usize, line: &Line) -> anyhow::Result<T> {
        let place = self.place(number);
        let answered = self.workers[place].send(line).and_then(|()| self.receive_from(number));
        answered.map_err(|error| {
            self.await_an_end();
            self.why_ended().unwrap_or(error)
        })
    }

    /// Sends `line` to one worker and returns its answer. Returns `None` if the worker was killed and the run continues
    /// without it.
    pub fn ask_unless_killed<T: DeserializeOwned>(
        &mut self,
        number: usize,
        line: &Line,
    ) -> anyhow::Result<Option<T>> {
        let place = self.place(number);
        let answered = self.workers[place].send(line).and_then(|()| self.receive_from(number));
        match answered {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if self.can_do_without(number, &self.workers[place], &error) => Ok(None),
            Err(error) => {
                self.await_an_end();
                Err(self.why_ended().unwrap_or(error))
            }
        }
    }

    /// Returns true if the run continues without a worker that failed with `error`, because its process was killed from
    /// outside. A failure that the worker reports itself would also occur in the other workers.
    fn can_do_without(&self, number: usize, worker: &Coworker, error: &anyhow::Error) -> bool {
        self.is_enduring && number > 0 && worker.has_ended() && !error.is::<Failure>()
    }

    /// Receives the next answer of one worker. Does not check whether the other workers still run.
    pub fn receive_from<T: DeserializeOwned>(&mut self, number: usize) -> anyhow::Result<T> {
        let place = self.place(number);
        loop {
            match receive(&mut self.workers[place])? {
                Received::Answer(value) => break Ok(value),
                Received::Waits(why) => self.note_wait(&why, output::note),
            }
        }
    }

    fn place(&self, number: usize) -> usize {
        self.workers.len() - 1 - number
    }

    /// Removes the workers that have ended, so that a run that has succeeded without them does not fail.
    pub fn dismiss_ended(&mut self) {
        let workers = self.workers.len();
        self.workers.retain(|worker| !worker.has_ended());
        self.has_lost |= self.workers.len() < workers;
    }

    /// Waits briefly for a worker to end. The kernel closes the files of a killed process in no fixed order, so another
    /// worker may report a failure before the end is visible.
    fn await_an_end(&self) {
        let mut fds: Vec<_> = self
            .workers
            .iter()
            .map(|worker| PollFd::from_borrowed_fd(worker.output(), PollFlags::empty()))
            .collect();
        // If no worker ends, the failure itself is reported.
        let _ = poll(&mut fds, Some(&END_IS_SEEN));
    }

    fn note_wait(&mut self, why: &str, note: impl Fn(&str)) {
        if !std::mem::replace(&mut self.has_reported_wait, true) {
            note(why);
        }
    }

    /// Returns the failure that an ended worker reported, or else the exit status of that worker; `None` if all workers
    /// run.
    pub fn why_ended(&mut self) -> Option<anyhow::Error> {
        let ended = self.workers.iter_mut().find_map(|worker| worker.has_ended().then_some(worker))?;
        loop {
            match ended.receive() {
                Ok(Answer::Done(_) | Answer::Waits(_)) => {}
                Ok(Answer::Failed(failure)) => return Some(failure.into()),
                Err(error) => return Some(error),
            }
        }
    }

    /// Returns the earliest failure among `heard` and the failures that workers have reported by now, because the
    /// earliest one may have caused the others.
    fn first(&mut self, heard: anyhow::Error) -> anyhow::Error {
        match heard.downcast::<Failure>() {
            Ok(heard) => {
                let said = self.workers.iter_mut().filter_map(failure);
                said.chain([heard]).min_by_key(|failure| failure.at_ns).expect("one was heard").into()
            }
            Err(heard) => heard,
        }
    }

    /// Runs `play`, then ends the workers. Frees the regions of a failed run.
    pub fn play<T>(mut self, play: impl FnOnce(&mut Crew) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let outcome = play(&mut self);
        let left = self.made.take().filter(|_| self.scratch.is_none()).map(|name| (self.dir.clone(), name));
        let has_lost = self.has_lost;
        if self.is_unstoppable && outcome.is_err() {
            // They may wait at a barrier for a worker that was killed before it reached the barrier.
            self.workers.clear();
        }
        let ended = self.end();
        if let Some((dir, name)) = left.filter(|_| outcome.is_err() || ended.is_err() || has_lost) {
            // A killed worker leaves its regions behind. The failure of the run itself takes precedence.
            if let Err(why) = sweep(&dir, &name) {
                output::note(&left_behind(&dir, &name, &why));
            }
        }
        let outcome = outcome?;
        ended?;
        Ok(outcome)
    }

    /// Ends all workers; returns the first failure.
    fn end(mut self) -> anyhow::Result<()> {
        let ended: Vec<anyhow::Result<()>> = self.workers.drain(..).map(end).collect();
        ended.into_iter().collect()
    }
}

/// Ends one worker; fails if the worker could not remove its regions.
fn end(mut worker: Coworker) -> anyhow::Result<()> {
    // Fails if the worker has ended, which is reported below.
    let _ = worker.send(&Line::Leave);
    for line in worker.end()?.lines() {
        if let Ok(Answer::Failed(failure)) = serde_json::from_str(line) {
            return Err(failure.into());
        }
    }
    Ok(())
}

/// Frees the regions of a run whose workers have ended.
pub(super) fn sweep(dir: &Path, name: &str) -> anyhow::Result<()> {
    sweep_by(&client::join_or_attach(dir)?, name)
}

fn sweep_by(client: &Client, name: &str) -> anyhow::Result<()> {
    let Some(_claimed) = reclaim(client, name) else { return Ok(()) };
    let named = client.session.list()?.into_iter().filter_map(|info| info.name);
    let barriers = [Crowd::barrier(name), Dsm::barrier(name), Dsm::barrier(&Crowd::shared(name))];
    for barrier in barriers {
        // Fails where the run has no such barrier; it holds no data.
        let _ = client.session.free_barrier(&barrier);
    }
    let mut freed = Ok(());
    for region in named.filter(|region| is_part(region, name)) {
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
        match client.session.serve_named(&claim_of(name), ServeOptions::default()) {
            Err(error) if !matches!(error.cause(), ServeCause::NameTaken) => return Some(Err(error)),
            Ok(server) => return Some(Ok(server)),
            Err(_) if begin.elapsed() > CLAIM_ENDS => return None,
            // Another worker frees the regions, or a run has the name until it finds the regions.
            Err(_) => std::thread::sleep(CLAIM_PAUSE),
        }
    }
}

/// Returns the name of the server that holds the name of a run.
pub(super) fn claim_of(name: &str) -> String {
    format!("{name}/run")
}

/// Formats the names of regions that may remain, and the command that frees them.
pub(super) fn left_behind(dir: &Path, name: &str, why: &anyhow::Error) -> String {
    let dir = dir.display();
    let progress = log::PROGRESS;
    format!(
        "cannot free the regions of this run ({}): {name:?}, \"{name}{progress}\" or \"{name}/...\" may be left; `halite ls --dir {dir}` lists them, and `halite rm --dir {dir} NAME` frees one",
        output::reasons(why)
    )
}

/// Returns true if `region` belongs to a run called `name`.
pub(super) fn is_part(region: &str, name: &str) -> bool {
    let rest = region.strip_prefix(name);
    rest.is_some_and(|rest| rest.is_empty() || rest == log::PROGRESS || rest.starts_with('/'))
}

/// A message of a worker.
enum Received<T> {
    Answer(T),
    Waits(String),
}

fn receive<T: DeserializeOwned>(worker: &mut Coworker) -> anyhow::Result<Received<T>> {
    match worker.receive()? {
        Answer::Done(value) => serde_json::from_value(value)
            .map(Received::Answer)
            .context("a worker process sent an unexpected answer"),
        Answer::Waits(why) => Ok(Received::Waits(why)),
        Answer::Failed(failure) => Err(failure.into()),
    }
}

/// Waits until a worker has joined, and names it after its node in errors.
fn receive_joined(worker: &mut Coworker) -> anyhow::Result<Joined> {
    let joined: Joined = match receive(worker)? {
        Received::Answer(joined) => joined,
        Received::Waits(why) => bail!("a worker process cannot join yet: {why}"),
    };
    worker.rename(format!("the worker process of node {}", joined.node));
    Ok(joined)
}

/// Returns the failure that the worker has reported by now, if any.
fn failure(worker: &mut Coworker) -> Option<Failure> {
    while worker.has_line() {
        match worker.receive().ok()? {
            Answer::Done(_) | Answer::Waits(_) => {}
            Answer::Failed(failure) => return Some(failure),
        }
    }
    None
}
