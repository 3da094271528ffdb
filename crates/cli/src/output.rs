//! Output for users and scripts: results on standard output, everything else on standard error.

use std::io::{self, Stdout, Write};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use halite_providers::inherited::{Standard, was_closed};
use serde::Serialize;

use crate::signals::Interrupted;

/// The error of arguments that are valid but contradict each other. The exit status is 2, as for invalid arguments.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Returns standard output. Fails if the parent process closed it, because Rust would silently write to `/dev/null`.
pub fn standard_output() -> io::Result<Stdout> {
    if was_closed(Standard::Output) {
        return Err(io::Error::other("standard output is closed (`>/dev/null` drops what is printed)"));
    }
    Ok(io::stdout())
}

/// Writes `text` to standard output.
pub fn print(text: &str) -> io::Result<()> {
    print_bytes(text.as_bytes())
}

/// Writes text that was made as bytes to standard output.
pub fn print_bytes(text: &[u8]) -> io::Result<()> {
    let mut stdout = standard_output()?.lock();
    stdout.write_all(text)?;
    stdout.flush()
}

/// Writes one JSON object and a line feed to standard output.
pub fn print_json(object: &impl Serialize) -> io::Result<()> {
    print(&(json_line(object) + "\n"))
}

/// Formats `object` on one line.
pub fn json_line(object: &impl Serialize) -> String {
    serde_json::to_string(object).expect("what we print has string keys and finite numbers")
}

/// Prints a note to standard error, so that scripts can parse standard output.
pub fn note(text: &str) {
    // If standard error is closed, notes are lost.
    let _ = writeln!(io::stderr(), "halite: {text}");
}

/// Notes that [`report_failure`] prints after the failure.
static CONSEQUENCES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Prints a note about a consequence of the failure that the program is about to report, after this failure.
pub fn note_consequence(text: String) {
    CONSEQUENCES.lock().unwrap_or_else(PoisonError::into_inner).push(text);
}

/// Formats an error and its causes. Omits a cause if the preceding text already ends with the text of this cause.
pub fn error_chain(error: &anyhow::Error) -> String {
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

/// Prints the error and returns its exit status.
pub fn report_failure(error: &anyhow::Error) -> ExitCode {
    // A reader that has closed standard output (`halite ls | head -1`) is not an error.
    let is_closed = |cause: &(dyn std::error::Error + 'static)| match cause
        .downcast_ref::<io::Error>()
        .map(io::Error::kind)
    {
        Some(kind) => kind == io::ErrorKind::BrokenPipe,
        None => false,
    };
    if !error.chain().any(is_closed) {
        note(&error_chain(error));
    }
    CONSEQUENCES.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|text| note(text));
    if error.is::<UsageError>() {
        return ExitCode::from(2);
    }
    match error.downcast_ref::<Interrupted>() {
        Some(interrupted) => ExitCode::from(interrupted.status()),
        None => ExitCode::FAILURE,
    }
}
