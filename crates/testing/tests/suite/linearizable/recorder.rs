//! Recording what threads do, in an order that all of them agree on.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread;

use halite_trials::linearizability::Span;

/// One thread's record.
pub struct Recorder<'c, T> {
    clock: &'c AtomicU64,
    pub thread: usize,
    entries: Vec<(Span, T)>,
}

impl<T> Recorder<'_, T> {
    /// Runs an operation, of which `describe` tells how it is noted.
    pub fn record<R>(&mut self, run: impl FnOnce() -> R, describe: impl FnOnce(&R) -> T) -> R {
        // Sequentially consistent, as are its partners on other threads: an operation that ends before another
        // begins has the lower numbers.
        let begin_ns = self.clock.fetch_add(1, SeqCst);
        let result = run();
        let end_ns = self.clock.fetch_add(1, SeqCst);
        self.entries.push((Span { begin_ns, end_ns }, describe(&result)));
        result
    }
}

/// What all threads did, each by `play`, which all begin together.
pub fn history<T: Send>(threads: usize, play: impl Fn(&mut Recorder<'_, T>) + Sync) -> Vec<(Span, T)> {
    let (clock, absent, play) = (AtomicU64::new(0), AtomicUsize::new(threads), &play);
    let (clock, absent) = (&clock, &absent);
    thread::scope(|scope| {
        let play_one = move |thread| {
            let mut recorder = Recorder { clock, thread, entries: Vec::new() };
            // Not by a sleep: by the time that the last one woke, the first would be done.
            absent.fetch_sub(1, SeqCst);
            while absent.load(SeqCst) > 0 {
                thread::yield_now();
            }
            play(&mut recorder);
            recorder.entries
        };
        let players: Vec<_> = (0..threads).map(|thread| scope.spawn(move || play_one(thread))).collect();
        players.into_iter().flat_map(|player| player.join().expect("no panic")).collect()
    })
}
