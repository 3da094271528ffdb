//! The workers of a run, seen from the process that started them.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;

use super::Over;
use super::worker::{Answer, Line};
use crate::coworker::Coworker;
use crate::scratch::Scratch;

/// All of them.  Fields are dropped in this order.
pub struct Crew {
    // The first node, which hosts the names, is the last to leave.
    workers: Vec<Coworker>,
    _scratch: Option<Scratch>,
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
        let dir: PathBuf = dir.or(scratch.as_ref().map(Scratch::path)).expect("one of both").to_owned();
        let mut crew = Crew { workers: Vec::new(), _scratch: scratch };
        for number in 0..over.nodes {
            let mut flags = Vec::new();
            if crew._scratch.is_some() {
                let said = [("--node", number.to_string()), ("--arena", over.arena.0.to_string())];
                let said = said.into_iter().chain([("--fabric", over.fabric.name().to_owned())]);
                flags.extend(said.flat_map(|(flag, value)| [flag.to_owned(), value]));
            }
            let mut worker = Coworker::start("a worker process", &dir, "run-worker", &flags)?;
            answer::<()>(&mut worker)?;
            crew.workers.insert(0, worker);
        }
        Ok(crew)
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
        self.workers.iter_mut().rev().map(answer).collect()
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
        let ended = self.end();
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

fn answer<T: DeserializeOwned>(worker: &mut Coworker) -> anyhow::Result<T> {
    match worker.receive()? {
        Answer::Done(value) => {
            serde_json::from_value(value).context("a worker process answers something else")
        }
        Answer::Failed(why) => bail!("{why}"),
    }
}
