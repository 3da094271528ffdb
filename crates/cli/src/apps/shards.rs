//! The shard of a key-value store that a worker owns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Context;
use halite::{Function, Permissions, RegionCause, RegionError, blocking};
use halite_apps::kv::redis::Clock;
use halite_apps::kv::{Local, Owner, SHARDS_MAX};

use super::worker::{Worker, say_failed, told};
use super::{Over, away};
use crate::output::UsageError;

/// Which one.
pub(super) struct Place<'a> {
    /// Of the store.
    pub(super) name: &'a str,
    pub(super) number: usize,
    /// The first function of the store's; that of a shard is as many further.
    pub(super) functions: Function,
}

/// Whether a store can have a shard in each process.
pub(super) fn check(over: &Over) -> Result<(), UsageError> {
    if over.nodes as usize > SHARDS_MAX {
        let message = format!("--nodes {} is too large: a store has at most {SHARDS_MAX} shards", over.nodes);
        return Err(UsageError(message));
    }
    Ok(())
}

/// The clock by which keys expire: ms since now.
pub(super) fn clock() -> Clock {
    let begin = Instant::now();
    Arc::new(move || begin.elapsed().as_millis() as u64)
}

/// Makes a shard, serves it during `play`, and removes it, whatever happens.  The owner of the first shard removes the store's head, too.
pub(super) fn own(
    worker: &Worker,
    place: &Place<'_>,
    clock: Clock,
    play: impl FnOnce((usize, Local)) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let &Place { name, number, functions } = place;
    let session = &worker.session;
    let function = Function(functions.0 + number as u32);
    let creating = Owner::create(session.as_async(), name, number, function, Permissions::empty());
    let owner = session.block_on(creating);
    let owner = owner.with_context(|| format!("cannot create a shard of the store {name:?}"))?;
    let (stopper, shard) = (owner.stopper(), owner.local());
    // That the shard is to end.  Carries no data.
    let is_asked = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let served = session.block_on(owner.run(move || clock()));
            if let Err(error) = &served
                && !is_asked.load(Ordering::Relaxed)
            {
                // The parent process waits for our end, and for nothing that we say before.
                let why = anyhow::Error::msg(error.to_string()).context("the owner of a shard failed");
                let _ = say_failed(&why);
                std::process::exit(1);
            }
            served
        });
        // Others fail as soon as nobody serves the shard.
        let played = told(play(shard));
        is_asked.store(true, Ordering::Relaxed);
        let freed = match number {
            0 => away::remove(worker.is_over(), || free_head(session, name)),
            _ => Ok(()),
        };
        stopper.stop();
        let served = serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        played?;
        freed.with_context(|| format!("cannot remove the store {name:?}"))?;
        served.context("the owner of a shard failed")
    })
}

/// The first node has made it, if it came to that.
fn free_head(session: &blocking::Session, name: &str) -> Result<(), RegionError> {
    match session.map(name, Permissions::MASTER) {
        Ok(lh) => session.free(lh),
        Err(error) if *error.cause() == RegionCause::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
