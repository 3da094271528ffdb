//! Threads that measure together.

use anyhow::Context;

use super::cores::pin;
use super::gate::{self, Seat};

/// Does `work` on `threads` threads, each on its core and with a seat at their gate.  Their results are in order.
pub fn run<T: Send>(
    threads: usize,
    core: impl Fn(usize) -> usize + Sync,
    work: impl Fn(usize, Seat) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    share((0..threads).collect(), core, work)
}

/// As [`run`], with a thread for each of `shares`.
pub fn share<S: Send, T: Send>(
    shares: Vec<S>,
    core: impl Fn(usize) -> usize + Sync,
    work: impl Fn(S, Seat) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let each = |thread: usize, share: S, seat: Seat| {
        pin(core(thread)).context("cannot stay on the thread's core")?;
        work(share, seat)
    };
    std::thread::scope(|scope| {
        let each = &each;
        let seats = gate::seats(shares.len());
        let threads: Vec<_> = (shares.into_iter().zip(seats).enumerate())
            .map(|(thread, (share, seat))| scope.spawn(move || each(thread, share, seat)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a measuring thread does not panic")).collect()
    })
}
