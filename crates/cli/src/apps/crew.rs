//! The workers of a run, seen from the process that started them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use halite::Permissions;
use halite_apps::is_without_directory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::de::DeserializeOwned;

use super::worker::{Answer, Failure, Joined, Line};
use super::{Over, log};
use crate::client::Client;
use crate::coworker::Coworker;
use crate::output;
use crate::scratch::Scratch;

/// How long the end of a process may take to be seen by all.
const END_IS_SEEN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// All of them.  Fields are dropped in this order.
pub struct Crew {
    // The first node, which hosts the names, is the last to leave.
    workers: Vec<Coworker>,
    scratch: Option<Scratch>,
    dir: PathBuf,
    /// What the regions of this run are called.
    made: Option<String>,
    /// Whether somebody has been told that workers wait for something.
    has_told_of_waits: bool,
    /// Where they serve metrics, in their order, if they do.
    pub metrics: Vec<SocketAddr>,
}

impl Crew {
    /// Starts the workers, on the cluster in `dir` or one of their own.
    pub fn start(dir: Option<&Path>, over: &Over) -> anyhow::Result<Crew> {
        let scratch = if dir.is_none() { Some(Scratch::create()?) } else { None };
        Crew::start_in(dir, scratch, over)
    }

    /// As [`Crew::start`], for a command that sees to signals itself.
    pub fn start_unguarded(dir: Option<&Path>, over: &Over) -> anyhow::Result<Crew> {
        let scratch = if dir.is_none() { Some(Scratch::create_unguarded()?) } else { None };
        Crew::start_in(dir, scratch, over)
    }

    fn start_in(dir: Option<&Path>, scratch: Option<Scratch>, over: &Over) -> anyhow::Result<Crew> {
        let dir = dir.or(scratch.as_ref().map(Scratch::path)).expect("one of both").to_owned();
        let mut crew = Crew {
            workers: Vec::new(),
            scratch,
            dir,
            made: None,
            has_told_of_waits: false,
            metrics: Vec::new(),
        };
        for number in 0..over.nodes {
            let mut flags = Vec::new();
            if crew.scratch.is_some() {
                let said = [("--node", number.to_string()), ("--arena", over.arena().0.to_string())];
                let said = said.into_iter().chain([("--fabric", over.fabric().name().to_owned())]);
                flags.extend(said.flat_map(|(flag, value)| [flag.to_owned(), value]));
            }
            let metrics = over
                .metrics
                .of_node(number)
                .context("too few port numbers remain above that of --metrics; choose a lower port")?;
            flags.extend(["--metrics".to_owned(), metrics.to_string()]);
            let mut worker =
                Coworker::start(format!("worker process {number}"), &crew.dir, "run-worker", &flags)?;
            let joined: Joined = match hear(&mut worker)? {
                Heard::Answer(joined) => joined,
                Heard::Waits(why) => bail!("a worker process waits to join: {why}"),
            };
            worker.call(format!("the worker process of node {}", joined.node));
            crew.metrics.extend(joined.metrics);
            crew.workers.insert(0, worker);
        }
        Ok(crew)
    }

    /// Fails if there are regions that are called as those of a run of that name are: they are not this run's to use, or to free.
    pub fn claim(&self, name: &str) -> anyhow::Result<()> {
        if self.scratch.is_some() {
            return Ok(());
        }
        let named = Client::join(&self.dir)?.session.list()?.into_iter().filter_map(|info| info.name);
        let taken = named.into_iter().find(|region| is_part(region, name));
        taken.map_or(Ok(()), |region| {
            bail!("the name is taken: the region {region:?} exists already; choose another one with --name")
        })
    }

    /// Regions that are called so, or as parts of that, are this run's.
    pub fn note_made(&mut self, name: &str) {
        self.made = Some(name.to_owned());
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.workers.len()
    }

    /// Tells all of them something.
    pub fn tell(&mut self, line: &Line) -> anyhow::Result<()> {
        let told = self.workers.iter_mut().rev().try_for_each(|worker| worker.send(line));
        told.map_err(|error| self.why_ended().unwrap_or(error))
    }

    /// What each of them says next.
    pub fn hear<T: DeserializeOwned>(&mut self) -> anyhow::Result<Vec<T>> {
        self.hear_during(output::note)
    }

    /// The same; `note` tells people what workers wait for, once in a run.
    pub fn hear_during<T: DeserializeOwned>(&mut self, note: impl Fn(&str)) -> anyhow::Result<Vec<T>> {
        let mut answers: Vec<Option<T>> = (0..self.workers.len()).map(|_| None).collect();
        while answers.iter().any(Option::is_none) {
            // One that has ended is told at once, whatever the others are at.
            for place in self.ready(|place| answers[place].is_none())? {
                match hear(&mut self.workers[place]) {
                    Ok(Heard::Answer(value)) => answers[place] = Some(value),
                    Ok(Heard::Waits(why)) => self.note_wait(&why, &note),
                    // Others complain when one has ended, and that is what they complain of.
                    Err(error) => {
                        self.await_an_end();
                        return Err(self.why_ended().unwrap_or_else(|| self.first(error)));
                    }
                }
            }
        }
        Ok(answers.into_iter().rev().flatten().collect())
    }

    /// Those of some workers that have said something, or ended.
    fn ready(&self, is_awaited: impl Fn(usize) -> bool) -> anyhow::Result<Vec<usize>> {
        let mut places = Vec::new();
        let mut fds = Vec::new();
        for (place, worker) in self.workers.iter().enumerate().filter(|(place, _)| is_awaited(*place)) {
            let Some(unheard) = worker.unheard() else { return Ok(vec![place]) };
            places.push(place);
            fds.push(PollFd::from_borrowed_fd(unheard, PollFlags::IN));
        }
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for worker processes"),
        }
        let ready = places.into_iter().zip(fds).filter(|(_, fd)| !fd.revents().is_empty());
        Ok(ready.map(|(place, _)| place).collect())
    }

    /// What one of them says to something.
    pub fn ask<T: DeserializeOwned>(&mut self, number: usize, line: &Line) -> anyhow::Result<T> {
        let place = self.workers.len() - 1 - number;
        let answered = self.workers[place].send(line).and_then(|()| {
            loop {
                match hear(&mut self.workers[place])? {
                    Heard::Answer(value) => break Ok(value),
                    Heard::Waits(why) => self.note_wait(&why, output::note),
                }
            }
        });
        answered.map_err(|error| {
            self.await_an_end();
            self.why_ended().unwrap_or(error)
        })
    }

    /// Waits a moment for the end of one of them.  The kernel closes what a killed process has open in no order that we know of: others may have
    /// heard, and complained, before we see it.
    fn await_an_end(&self) {
        let mut fds: Vec<_> = self
            .workers
            .iter()
            .map(|worker| PollFd::from_borrowed_fd(worker.output(), PollFlags::empty()))
            .collect();
        // Where none ends, the complaint is what counts.
        let _ = poll(&mut fds, Some(&END_IS_SEEN));
    }

    fn note_wait(&mut self, why: &str, note: impl Fn(&str)) {
        if !std::mem::replace(&mut self.has_told_of_waits, true) {
            note(why);
        }
    }

    /// Why one of them has ended, if one has: what it says last, or how.
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

    /// Of a failure and those that others have said by now, the first: the others may have come of it.
    fn first(&mut self, heard: anyhow::Error) -> anyhow::Error {
        match heard.downcast::<Failure>() {
            Ok(heard) => {
                let said = self.workers.iter_mut().filter_map(failure);
                said.chain([heard]).min_by_key(|failure| failure.at_ns).expect("one was heard").into()
            }
            Err(heard) => heard,
        }
    }

    /// Has them do something and then leave, also after a failure: nothing is left behind.
    pub fn play<T>(mut self, play: impl FnOnce(&mut Crew) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let outcome = play(&mut self);
        let left = self.made.take().filter(|_| self.scratch.is_none()).map(|name| (self.dir.clone(), name));
        let ended = self.end();
        if let Some((dir, name)) = left.filter(|_| outcome.is_err() || ended.is_err()) {
            // What a worker has made that was killed.  Why the run failed is told in any case.
            if let Err(why) = sweep(&dir, &name) {
                output::note(&left_behind(&dir, &name, &why));
            }
        }
        let outcome = outcome?;
        ended?;
        Ok(outcome)
    }

    /// Has all of them leave, wherever they are; tells what went wrong.
    fn end(mut self) -> anyhow::Result<()> {
        let ended: Vec<anyhow::Result<()>> = self.workers.drain(..).map(end).collect();
        ended.into_iter().collect()
    }
}

/// Has one of them leave; it may fail in removing what it has made.
fn end(worker: Coworker) -> anyhow::Result<()> {
    for line in worker.end()?.lines() {
        if let Ok(Answer::Failed(failure)) = serde_json::from_str(line) {
            return Err(failure.into());
        }
    }
    Ok(())
}

/// Frees the regions of a run of which nobody is there any more.
fn sweep(dir: &Path, name: &str) -> anyhow::Result<()> {
    let client = Client::join(dir)?;
    let named = client.session.list()?.into_iter().filter_map(|info| info.name);
    let mut freed = Ok(());
    for region in named.filter(|region| is_part(region, name)) {
        let mapped = client.session.map(&region, Permissions::MASTER);
        match mapped.and_then(|lh| client.session.free(lh)) {
            // All others are tried, too.
            Err(error) if is_without_directory(error.cause()) => freed = Err(error.into()),
            // One that is gone by now is what is wanted.
            _ => {}
        }
    }
    freed
}

/// Which regions of a run may be left, and how they are removed.
fn left_behind(dir: &Path, name: &str, why: &anyhow::Error) -> String {
    let dir = dir.display();
    let progress = log::PROGRESS;
    format!(
        "cannot free the regions of this run ({}): {name:?}, \"{name}{progress}\" or \"{name}/...\" may be left; `halite ls --dir {dir}` lists them, and `halite rm --dir {dir} NAME` frees one",
        output::reasons(why)
    )
}

/// Whether a region is called as one of a run of that name.
fn is_part(region: &str, name: &str) -> bool {
    let rest = region.strip_prefix(name);
    rest.is_some_and(|rest| rest.is_empty() || rest == log::PROGRESS || rest.starts_with('/'))
}

/// What a worker says.
enum Heard<T> {
    Answer(T),
    Waits(String),
}

fn hear<T: DeserializeOwned>(worker: &mut Coworker) -> anyhow::Result<Heard<T>> {
    match worker.receive()? {
        Answer::Done(value) => serde_json::from_value(value)
            .map(Heard::Answer)
            .context("a worker process sent an unexpected answer"),
        Answer::Waits(why) => Ok(Heard::Waits(why)),
        Answer::Failed(failure) => Err(failure.into()),
    }
}

/// What one of them has failed of, if it has said so by now.
fn failure(worker: &mut Coworker) -> Option<Failure> {
    while worker.has_said() {
        match worker.receive().ok()? {
            Answer::Done(_) | Answer::Waits(_) => {}
            Answer::Failed(failure) => return Some(failure),
        }
    }
    None
}
