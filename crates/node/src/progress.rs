//! How far a transfer has come: a bar where a person watches, nothing elsewhere.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `len` bytes on standard error, hidden unless that is a terminal.
pub fn bar(len: u64, what: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
    let style = ProgressStyle::with_template(template).expect("a fixed template is well formed");
    ProgressBar::new(len).with_style(style).with_message(crate::table::printable(what))
}

/// As [`bar`], where nobody knows the length.
pub fn counter(what: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} {binary_bytes} {binary_bytes_per_sec}");
    let style = style.expect("a fixed template is well formed");
    ProgressBar::no_length().with_style(style).with_message(crate::table::printable(what))
}
