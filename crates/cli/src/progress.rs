//! Progress bars for transfers and runs, on terminals only.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::output;
use crate::threads;

/// Creates a bar of `len` bytes on standard error; hidden unless standard error is a terminal.
pub fn bar(len: u64, what: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
    let style = ProgressStyle::with_template(template).expect("a fixed template is well formed");
    ProgressBar::new(len).with_style(style).with_message(crate::table::printable(what))
}

/// Creates a counter of bytes for a transfer of unknown length, on standard error; hidden unless standard error is a
/// terminal.
pub fn counter(what: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} {binary_bytes} {binary_bytes_per_sec}");
    let style = style.expect("a fixed template is well formed");
    ProgressBar::no_length().with_style(style).with_message(crate::table::printable(what))
}

/// Creates a bar of steps on standard error; hidden unless standard error is a terminal.
pub fn steps(what: &'static str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}");
    ProgressBar::new(0).with_style(style.expect("a fixed template is well formed")).with_message(what)
}

/// Creates a spinner on standard error for work of unknown length; hidden unless standard error is a terminal.
pub fn spinner(what: &'static str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{spinner} {msg} {elapsed}").expect("a fixed template is well formed");
    let bar = ProgressBar::new_spinner().with_style(style).with_message(what);
    bar.enable_steady_tick(TICK);
    bar
}

/// Interval between two updates of a bar of time.
const TICK: Duration = Duration::from_millis(100);

/// A bar of elapsed time, which disappears when it is dropped.
pub struct Passing {
    bar: ProgressBar,
    // Dropping the sender ends the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Creates a bar on standard error that is full after `seconds`; hidden unless standard error is a terminal.
pub fn passing(seconds: f64, what: &str) -> Passing {
    if !io::stderr().is_terminal() {
        return Passing { bar: ProgressBar::hidden(), end: None, thread: None };
    }
    let style =
        ProgressStyle::with_template("{msg} {wide_bar} {elapsed}").expect("a fixed template is well formed");
    let bar = ProgressBar::new((seconds * 1e3) as u64).with_style(style).with_message(what.to_owned());
    let (end, ended) = std::sync::mpsc::channel();
    let shown = bar.clone();
    // Without the thread, the bar stays empty.
    let thread = threads::spawn("halite-bar", move || {
        while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            shown.set_position((shown.elapsed().as_millis() as u64).min(shown.length().unwrap_or(0)));
        }
    });
    Passing { bar, end: Some(end), thread: thread.ok() }
}

impl Passing {
    /// Prints a note to standard error, above the bar.
    pub fn note(&self, text: &str) {
        self.bar.suspend(|| output::note(text));
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // The thread only draws, so its result does not matter.
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}
