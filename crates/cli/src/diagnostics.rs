//! Logging: selects which events of the libraries are logged, and in which format.
//!
//! Each event becomes a line of text, a JSON object or a journal entry. The standard error of a detached node is its
//! log file.

use std::io::{self, IsTerminal};

use anyhow::Context;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::ChronoLocal;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::{Arguments, Command, LogFormat};
use crate::output::UsageError;

/// Checks a log filter; returns it.
pub fn checked_filter(text: &str) -> Result<String, String> {
    let parsed = EnvFilter::builder().parse(text);
    let refused = |error| format!("{error}; valid filters are, for example, warn or warn,halite=info");
    parsed.map(|_| text.to_owned()).map_err(refused)
}

/// Starts logging with the filter and the format from the command line.
pub fn init(arguments: &Arguments) -> anyhow::Result<()> {
    let filter = requested_filter(arguments).unwrap_or_else(|| default_filter(&arguments.command).to_owned());
    let filter = EnvFilter::builder()
        .parse(&filter)
        .map_err(|error| UsageError(format!("{filter:?} is not a log filter: {error}")))?;
    let timer = ChronoLocal::new("%Y-%m-%dT%H:%M:%S%.3f%:z".to_owned());
    // If standard error is closed, log lines are lost.
    let lines =
        tracing_subscriber::fmt::layer().with_writer(io::stderr).log_internal_errors(false).with_timer(timer);
    let events = tracing_subscriber::registry().with(filter);
    match arguments.log_format {
        LogFormat::Text => {
            events.with(lines.with_ansi(io::stderr().is_terminal()).with_target(false)).init();
        }
        LogFormat::Json => events.with(lines.json().flatten_event(true)).init(),
        LogFormat::Journald => {
            let journal =
                tracing_journald::layer().context("cannot log to journald (--log-format journald)")?;
            events.with(journal.with_syslog_identifier("halite".to_owned())).init();
        }
    }
    Ok(())
}

/// Returns the filter from the command line, if any. Processes that this command starts use the same filter.
pub fn requested_filter(arguments: &Arguments) -> Option<String> {
    match arguments.verbose {
        0 => arguments.log.clone().filter(|filter| !filter.trim().is_empty()),
        1 => Some("info".to_owned()),
        2 => Some("debug".to_owned()),
        _ => Some("trace".to_owned()),
    }
}

fn default_filter(command: &Command) -> &'static str {
    match command {
        // Nodes of `halite up` in the foreground share a terminal, so they log less.
        Command::Node(node) if node.parent.is_none() => "info",
        Command::Node(_) | Command::Up(_) => "warn",
        // The server of `halite run kv` warns, for example of clients that it disconnects.
        Command::RunWorker(_) => "error,halite_apps=warn",
        _ => "error",
    }
}
