//! Progress bars for transfers and runs, on terminals only.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::output;
use crate::threads;

/// Creates a bar with this format on standard error; hidden unless standard error is a terminal.
fn on_terminal(len: Option<u64>, template: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = len.map_or_else(ProgressBar::no_length, ProgressBar::new);
    bar.with_style(ProgressStyle::with_template(template).expect("a fixed template is well formed"))
}

/// Creates a bar of `len` bytes.
pub fn bar(len: u64, what: &str) -> ProgressBar {
    let template = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
    on_terminal(Some(len), template).with_message(crate::table::printable(what))
}

/// Creates a counter of bytes for a transfer of unknown length.
pub fn counter(what: &str) -> ProgressBar {
    let template = "{msg} {binary_bytes} {binary_bytes_per_sec}";
    on_terminal(None, template).with_message(crate::table::printable(what))
}

/// Creates a bar of steps.
pub fn steps(what: &'static str) -> ProgressBar {
    on_terminal(Some(0), "{msg} {wide_bar} {pos}/{len} {eta}").with_message(what)
}

/// Creates a spinner for work of unknown length.
pub fn spinner(what: &'static str) -> ProgressBar {
    let bar = on_terminal(None, "{spinner} {msg} {elapsed}").with_message(what);
    if !bar.is_hidden() {
        bar.enable_steady_tick(TICK);
    }
    bar
}

/// Interval between two updates of a bar of time.
const TICK: Duration = Duration::from_millis(100);

/// A bar of elapsed time, which disappears when it is dropped.
pub struct TimeBar {
    bar: ProgressBar,
    // Dropping the sender ends the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Creates a bar that is full after `seconds`.
pub fn time_bar(seconds: f64, what: &str) -> TimeBar {
    let bar = on_terminal(Some((seconds * 1e3) as u64), "{msg} {wide_bar} {elapsed}");
    let bar = bar.with_message(what.to_owned());
    if bar.is_hidden() {
        return TimeBar { bar, end: None, thread: None };
    }
    let (end, ended) = std::sync::mpsc::channel();
    let shown = bar.clone();
    // Without the thread, the bar stays empty.
    let thread = threads::spawn("halite-bar", move || {
        while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            shown.set_position((shown.elapsed().as_millis() as u64).min(shown.length().unwrap_or(0)));
        }
    });
    TimeBar { bar, end: Some(end), thread: thread.ok() }
}

impl TimeBar {
    /// Prints a note to standard error, above the bar.
    pub fn note(&self, text: &str) {
        self.bar.suspend(|| output::note(text));
    }
}

impl Drop for TimeBar {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // The thread only draws, so its result does not matter.
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}
