//! The workers of a run, seen from the process that started them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use halite::Permissions;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::de::DeserializeOwned;

use super::Over;
use super::worker::{Answer, Line};
use crate::client::Client;
use crate::coworker::Coworker;
use crate::scratch::Scratch;

/// All of them.  Fields are dropped in this order.
pub struct Crew {
    // The first node, which hosts the names, is the last to leave.
    workers: Vec<Coworker>,
    scratch: Option<Scratch>,
    dir: PathBuf,
    /// What the regions of this run are called.
    made: Option<String>,
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
        let mut crew = Crew { workers: Vec::new(), scratch, dir, made: None, metrics: Vec::new() };
        for number in 0..over.nodes {
            let mut flags = Vec::new();
            if crew.scratch.is_some() {
                let said = [("--node", number.to_string()), ("--arena", over.arena.0.to_string())];
                let said = said.into_iter().chain([("--fabric", over.fabric.name().to_owned())]);
                flags.extend(said.flat_map(|(flag, value)| [flag.to_owned(), value]));
            }
            let metrics =
                over.metrics.of_node(number).context("there are not so many ports behind --metrics")?;
            flags.extend(["--metrics".to_owned(), metrics.to_string()]);
            let mut worker = Coworker::start("a worker process", &crew.dir, "run-worker", &flags)?;
            crew.metrics.extend(answer::<Option<SocketAddr>>(&mut worker)?);
            crew.workers.insert(0, worker);
        }
        Ok(crew)
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
        self.workers.iter_mut().rev().try_for_each(|worker| worker.send(line))
    }

    /// What each of them says next.
    pub fn hear<T: DeserializeOwned>(&mut self) -> anyhow::Result<Vec<T>> {
        let mut answers: Vec<Option<T>> = (0..self.workers.len()).map(|_| None).collect();
        while answers.iter().any(Option::is_none) {
            // One that has ended is told at once, whatever the others are at.
            for place in self.ready(|place| answers[place].is_none())? {
                answers[place] = Some(answer(&mut self.workers[place])?);
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
        let worker = &mut self.workers[place];
        worker.send(line)?;
        answer(worker)
    }

    /// Why one of them has ended, if one has.
    pub fn why_ended(&mut self) -> Option<anyhow::Error> {
        let ended = self.workers.iter_mut().find_map(|worker| worker.has_ended().then_some(worker))?;
        answer::<()>(ended).err()
    }

    /// Has them do something and then leave, also after a failure: nothing is left behind.
    pub fn play<T>(mut self, play: impl FnOnce(&mut Crew) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let outcome = play(&mut self);
        let left = self.made.take().filter(|_| self.scratch.is_none()).map(|name| (self.dir.clone(), name));
        let ended = self.end();
        if let Some((dir, name)) = left.filter(|_| outcome.is_err() || ended.is_err()) {
            // What a worker has made that was killed.  Why the run failed is told in any case.
            let _ = sweep(&dir, &name);
        }
        let outcome = outcome?;
        ended?;
        Ok(outcome)
    }

    /// Has all of them leave, wherever they are; tells what went wrong.
    fn end(mut self) -> anyhow::Result<()> {
        let ended: Vec<anyhow::Result<()>> = self.workers.drain(..).map(Coworker::end).collect();
        ended.into_iter().collect()
    }
}

/// Frees the regions of a run of which nobody is there any more.
fn sweep(dir: &Path, name: &str) -> anyhow::Result<()> {
    let client = Client::join(dir)?;
    let is_part = |region: &str| {
        region.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '.']))
    };
    let named = client.session.list()?.into_iter().filter_map(|info| info.name);
    for region in named.filter(|region| is_part(region)) {
        // One that is gone by now is what is wanted.
        if let Ok(lh) = client.session.map(&region, Permissions::MASTER) {
            let _ = client.session.free(lh);
        }
    }
    Ok(())
}

fn answer<T: DeserializeOwned>(worker: &mut Coworker) -> anyhow::Result<T> {
    match worker.receive()? {
        Answer::Done(value) => {
            serde_json::from_value(value).context("a worker process answers something else")
        }
        Answer::Failed(why) => bail!("{why}"),
    }
}
