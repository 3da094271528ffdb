//! A worker's shard of a key-value store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use anyhow::Context;
use halite::{Function, Permissions, RegionCause, RegionError, blocking};
use halite_apps::kv::redis::Clock;
use halite_apps::kv::{Local, Owner, SHARDS_MAX};

use super::worker::{Worker, reply_failure, report_failure};
use super::{ClusterArgs, outage, pool};
use crate::output::{self, UsageError};
use crate::threads;

/// The shard of a worker.
pub(super) struct Shard<'a> {
    /// Name of the store.
    pub(super) name: &'a str,
    pub(super) number: usize,
    /// Function of shard 0; the functions of the next shards follow.
    pub(super) functions: Function,
    /// True if the process of an earlier owner was killed. Its regions may remain, in memory of other nodes.
    pub(super) is_replacement: bool,
    /// True if the shard continues without keys when its memory is lost with a node.
    pub(super) outlives_memory: bool,
}

/// Checks the number of shards.
pub(super) fn check(cluster: &ClusterArgs) -> Result<(), UsageError> {
    if cluster.nodes as usize > SHARDS_MAX {
        let message =
            format!("--nodes {} is too large: a store has at most {SHARDS_MAX} shards", cluster.nodes);
        return Err(UsageError(message));
    }
    Ok(())
}

/// Creates the clock for the expiry of keys: Unix time in milliseconds, as in Redis.
pub(super) fn clock() -> Clock {
    Arc::new(|| SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64))
}

/// Creates a shard, serves it during `body`, and removes the shard in any case. The owner of shard 0 also removes the
/// head.
pub(super) fn serve_during(
    worker: &Worker,
    shard: &Shard<'_>,
    clock: Clock,
    body: impl FnOnce((usize, Local)) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let &Shard { name, number, functions, is_replacement, outlives_memory } = shard;
    let session = &worker.session;
    let function = Function(functions.0 + number as u32);
    if is_replacement {
        free_shard(session, name, number)?;
    }
    let creating = Owner::create(session.as_async(), name, number, function, Permissions::empty());
    let owner = session.block_on(creating);
    let mut owner = owner.with_context(|| format!("cannot create a shard of the store {name:?}"))?;
    if outlives_memory {
        owner = owner.outliving_memory();
    }
    let (stopper, shard) = (owner.stopper(), owner.local());
    // Set when the shard must end. Orders no other memory.
    let is_ending = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let serving = threads::spawn_in(scope, || {
            let served = session.block_on(owner.run(move || clock()));
            if let Err(error) = &served
                && !is_ending.load(Ordering::Relaxed)
            {
                // The parent process notices the exit status in any case; the message is optional.
                let why = anyhow::Error::msg(error.to_string()).context("the owner of a shard failed");
                let _ = reply_failure(&why);
                std::process::exit(1);
            }
            served
        })?;
        // The failure must be reported before the shard ends, because then other workers fail, too.
        let result = report_failure(body(shard));
        is_ending.store(true, Ordering::Relaxed);
        let freed = match number {
            0 => outage::retry_removal(worker.is_over(), || free_head(session, name)),
            _ => Ok(()),
        };
        stopper.stop();
        let served = serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        if number == 0 {
            remove_lost_names(session, name);
        }
        result?;
        freed.with_context(|| format!("cannot remove the store {name:?}"))?;
        served.context("the owner of a shard failed")
    })
}

/// Frees the regions of a shard.
fn free_shard(session: &blocking::Session, name: &str, number: usize) -> Result<(), RegionError> {
    let root = format!("{name}/{number}");
    let is_part = |region: &String| {
        region.strip_prefix(&root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    for region in session.list()?.into_iter().filter_map(|info| info.name).filter(is_part) {
        // A region that cannot be freed keeps its name, which is reported when the shard is created.
        let _ = session.map(&region, Permissions::MASTER).and_then(|lh| session.free(lh));
    }
    Ok(())
}

/// Frees the store's own region, if worker 0 has created it already.
fn free_head(session: &blocking::Session, name: &str) -> Result<(), RegionError> {
    match session.map(name, Permissions::MASTER) {
        Ok(lh) => session.free(lh),
        Err(error) if *error.cause() == RegionCause::NotFound => Ok(()),
        // Its memory has ended with a node.
        Err(error) if matches!(error.cause(), RegionCause::Lost(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes the names of the store's regions that were lost with a node. Names what is left.
fn remove_lost_names(session: &blocking::Session, name: &str) {
    let lost = session.list_lost().unwrap_or_default().into_iter();
    for region in lost.map(|region| region.name).filter(|region| pool::belongs_to_run(region, name)) {
        if let Err(error) = session.forget_name(&region) {
            output::note(&format!("{error}; `halite rm {region}` removes the name"));
        }
    }
}
