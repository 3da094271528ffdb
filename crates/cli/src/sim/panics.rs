//! Reports which trial panics, at once.
//!
//! A panic counts as a failure of the trial. But a second panic during unwinding aborts the program, and then the lines
//! printed here are the only report.

use std::cell::RefCell;
use std::panic;

use super::plans::Source;
use crate::output;

thread_local! {
    /// The command that repeats the trial of this thread.
    static REPEAT_COMMAND: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Installs a panic hook that names the trial.
pub fn report_trials() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        REPEAT_COMMAND.with_borrow(|command| {
            command.iter().for_each(|command| output::note(&format!("panic in: {command}")))
        });
        usual(info);
    }));
}

/// Runs `work`, which runs a trial, and names that trial if it panics.
pub fn in_trial<T>(source: &Source, seed: u64, work: impl FnOnce() -> T) -> T {
    REPEAT_COMMAND.set(Some(source.repeat_command(seed)));
    let done = work();
    REPEAT_COMMAND.set(None);
    done
}
