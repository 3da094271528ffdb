//! Panics in trials: which one it was, told before anything else can go wrong.
//!
//! A trial that panics is reported as one that fails.  But a second panic while the first unwinds ends the whole
//! program, and then these lines are all that is left.

use std::cell::RefCell;
use std::panic;

use super::plans::Source;
use crate::output;

thread_local! {
    /// The command that repeats the trial that this thread is running.
    static AGAIN: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// From now on, a panic in a trial tells which trial it was.
pub fn name_their_trials() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        AGAIN.with_borrow(|again| again.iter().for_each(|again| output::note(&format!("panic in: {again}"))));
        usual(info);
    }));
}

/// Does `work`, which runs a trial.
pub fn in_trial<T>(source: &Source, seed: u64, work: impl FnOnce() -> T) -> T {
    AGAIN.set(Some(source.again(seed)));
    let done = work();
    AGAIN.set(None);
    done
}
