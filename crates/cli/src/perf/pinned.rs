//! Measuring threads, each pinned to its core.

use anyhow::Context;
use rustix::thread::CpuSet;

use super::cores::pin;
use super::gate::{self, Participant};
use crate::threads;

/// Runs `work` on one thread per element of `shares`, each bound to its `cores`. All threads share one gate. Returns
/// the results in order.
pub fn run_all<S: Send, T: Send>(
    shares: Vec<S>,
    cores: impl Fn(usize) -> CpuSet + Sync,
    work: impl Fn(usize, S, Participant) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let each = |thread: usize, share: S, participant: Participant| {
        pin(cores(thread)).context("cannot pin the thread to its core")?;
        work(thread, share, participant)
    };
    std::thread::scope(|scope| {
        let each = &each;
        let participants = gate::participants(shares.len());
        let works = (shares.into_iter().zip(participants).enumerate())
            .map(|(thread, (share, participant))| move || each(thread, share, participant));
        threads::start_all(scope, works)?.into_iter().map(threads::Member::join).collect()
    })
}
