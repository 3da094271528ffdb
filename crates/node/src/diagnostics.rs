//! Diagnostics: which of the events that the libraries report people see, and in which form.
//!
//! A line on standard error for each, with time and level; a detached node's standard error is its log file.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::ChronoLocal;

use crate::args::{Arguments, Command};
use crate::output::UsageError;

/// Lets events be seen from here on, as the command line says.
pub fn start(arguments: &Arguments) -> anyhow::Result<()> {
    let filter = asked_for(arguments).unwrap_or_else(|| by_default(&arguments.command).to_owned());
    let filter = EnvFilter::builder().parse(&filter).map_err(|error| {
        UsageError(format!("{filter:?} does not say which events are to be told: {error}"))
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_timer(ChronoLocal::new("%Y-%m-%dT%H:%M:%S%.3f%:z".to_owned()))
        .with_target(false)
        // Standard error is closed: nobody wants to know.
        .log_internal_errors(false)
        .init();
    Ok(())
}

/// The filter that was asked for, if any was; processes that are started for this command are given the same.
pub fn asked_for(arguments: &Arguments) -> Option<String> {
    match arguments.verbose {
        0 => arguments.log.clone().filter(|filter| !filter.trim().is_empty()),
        1 => Some("info".to_owned()),
        2 => Some("debug".to_owned()),
        _ => Some("trace".to_owned()),
    }
}

fn by_default(command: &Command) -> &'static str {
    match command {
        Command::Node(node) if node.detached => "info",
        Command::Node(_) | Command::Up(_) => "warn",
        _ => "error",
    }
}
