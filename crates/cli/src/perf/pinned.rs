//! Measuring threads, each pinned to its core.

use anyhow::Context;
use rustix::thread::CpuSet;

use super::cores::pin;
use super::gate::{self, Participant};
use crate::threads;

/// Runs `work` on one thread per element of `items`, each bound to its `cores`. All threads share one gate. Returns
/// the results in order.
pub fn run_all<S: Send, T: Send>(
    items: Vec<S>,
    cores: impl Fn(usize) -> CpuSet + Sync,
    work: impl Fn(usize, S, Participant) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let each = |thread: usize, item: S, participant: Participant| {
        pin(cores(thread)).context("cannot pin the thread to its core")?;
        work(thread, item, participant)
    };
    std::thread::scope(|scope| {
        let each = &each;
        let participants = gate::participants(items.len());
        let works = (items.into_iter().zip(participants).enumerate())
            .map(|(thread, (item, participant))| move || each(thread, item, participant));
        threads::start_all(scope, works)?.into_iter().map(threads::Member::join).collect()
    })
}
