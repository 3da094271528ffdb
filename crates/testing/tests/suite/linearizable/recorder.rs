//! Records the operations of threads, with times on which all threads agree.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread;

use halite_trials::linearizability::Span;

/// The record of one thread.
pub struct Recorder<'c, T> {
    clock: &'c AtomicU64,
    pub thread: usize,
    entries: Vec<(Span, T)>,
}

impl<T> Recorder<'_, T> {
    /// Runs an operation, and records its description.
    pub fn record<R>(&mut self, run: impl FnOnce() -> R, describe: impl FnOnce(&R) -> T) -> R {
        // Sequentially consistent, like those of other threads: an operation that ends before another one begins has
        // lower numbers.
        let begin_ns = self.clock.fetch_add(1, SeqCst);
        let result = run();
        let end_ns = self.clock.fetch_add(1, SeqCst);
        self.entries.push((Span { begin_ns, end_ns }, describe(&result)));
        result
    }
}

/// Runs `play` on each thread, starting at the same time, and returns the operations of all.
pub fn history<T: Send>(threads: usize, play: impl Fn(&mut Recorder<'_, T>) + Sync) -> Vec<(Span, T)> {
    let (clock, absent, play) = (AtomicU64::new(0), AtomicUsize::new(threads), &play);
    let (clock, absent) = (&clock, &absent);
    thread::scope(|scope| {
        let play_one = move |thread| {
            let mut recorder = Recorder { clock, thread, entries: Vec::new() };
            // Without sleeping: the first thread could be done when the last one wakes.
            absent.fetch_sub(1, SeqCst);
            while absent.load(SeqCst) > 0 {
                thread::yield_now();
            }
            play(&mut recorder);
            recorder.entries
        };
        let players: Vec<_> = (0..threads).map(|thread| scope.spawn(move || play_one(thread))).collect();
        players.into_iter().flat_map(|player| player.join().expect("the thread does not panic")).collect()
    })
}
