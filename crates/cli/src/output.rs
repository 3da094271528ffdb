//! What people and scripts see: results on standard output, everything else on standard error.

use std::io::{self, Stdout, Write};
use std::process::ExitCode;

use halite_providers::inherited::{Standard, was_closed};
use serde::Serialize;

use crate::signals::Interrupted;

/// Arguments that were read well but make no sense together: exit status 2, as for those that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Standard output; an error if the parent process closed it, where Rust would write to `/dev/null` instead.
pub fn standard_output() -> io::Result<Stdout> {
    if was_closed(Standard::Output) {
        return Err(io::Error::other("standard output is closed (`>/dev/null` drops what is printed)"));
    }
    Ok(io::stdout())
}

/// Writes `text` to standard output.
pub fn print(text: &str) -> io::Result<()> {
    let mut stdout = standard_output()?.lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Writes one JSON object and a line feed to standard output.
pub fn print_json(object: &impl Serialize) -> io::Result<()> {
    print(&(json_line(object) + "\n"))
}

/// `object` on one line.
pub fn json_line(object: &impl Serialize) -> String {
    serde_json::to_string(object).expect("what we print has string keys and finite numbers")
}

/// Tells people on standard error; scripts that read standard output are not disturbed.
pub fn note(text: &str) {
    // Standard error is closed: nobody wants to know.
    let _ = writeln!(io::stderr(), "halite: {text}");
}

/// An error and what it comes from, each told once: some errors say themselves what they come from.
pub fn reasons(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for reason in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = reason;
        } else if !text.ends_with(&reason) {
            text = format!("{text}: {reason}");
        }
    }
    text
}

/// Tells what went wrong and returns the exit status for it.
pub fn failure(error: &anyhow::Error) -> ExitCode {
    // The reader of our output has seen enough (`halite ls | head -1`): nothing to complain about.
    let is_closed = |cause: &(dyn std::error::Error + 'static)| match cause
        .downcast_ref::<io::Error>()
        .map(io::Error::kind)
    {
        Some(kind) => kind == io::ErrorKind::BrokenPipe,
        None => false,
    };
    if !error.chain().any(is_closed) {
        note(&reasons(error));
    }
    if error.is::<UsageError>() {
        return ExitCode::from(2);
    }
    match error.downcast_ref::<Interrupted>() {
        Some(interrupted) => ExitCode::from(interrupted.status()),
        None => ExitCode::FAILURE,
    }
}
