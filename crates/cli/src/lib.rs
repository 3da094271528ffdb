//! What the `halite` program is made of: commands, the control of node processes, and measurements.
//!
//! Applications link crate `halite` instead.

mod apps;
mod args;
mod bytes;
mod client;
mod commands;
mod control;
mod coworker;
mod diagnostics;
mod doctor;
mod letters;
mod limits;
mod loss;
mod metrics_at;
mod output;
mod perf;
mod progress;
mod scratch;
mod settings;
mod shell;
mod signals;
mod sim;
mod sink;
mod source;
mod supervisor;
mod table;
mod trailer;

use std::process::ExitCode;

pub use bytes::{ByteCount, ByteCountError};

/// Runs the program: reads the command line and the environment, does what they say, and returns the exit
/// status: 0 for success, 1 for failure, 2 for arguments that make no sense, 3 for a cluster or a host that is not well,
/// 4 for a host that is not fit.
pub fn run() -> ExitCode {
    signals::refuse_large_files();
    let arguments = args::parse();
    arguments.notes().for_each(|unknown| output::note(&unknown.to_string()));
    match diagnostics::start(&arguments).and_then(|()| commands::run(arguments)) {
        Ok(status) => status,
        Err(error) => output::failure(&loss::explain(error)),
    }
}
