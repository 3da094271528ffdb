//! The `halite` program: its commands, the control of node processes, and measurements.
//!
//! Applications link crate `halite` instead.

mod addresses;
mod apps;
mod args;
mod bytes;
mod child;
mod client;
mod commands;
mod control;
mod diagnostics;
mod doctor;
mod figure;
mod letters;
mod limits;
mod loss;
mod metrics_at;
mod output;
mod perf;
mod progress;
mod quotas;
mod scratch;
mod settings;
mod shell;
mod signals;
mod sim;
mod sink;
mod source;
mod supervisor;
mod table;
mod target;
mod threads;
mod trailer;
mod transport;

use std::process::ExitCode;

use halite::Config;

pub use bytes::{ByteCount, ByteCountError};

/// Runs the program and returns its exit status: 0 for success, 1 for failure, 2 for invalid arguments, 3 for a
/// degraded cluster or host, 4 for an unfit host.
pub fn run() -> ExitCode {
    signals::catch_file_size_signal();
    let arguments = args::parse();
    arguments.notes().for_each(|unknown| output::note(&unknown.to_string()));
    transport::set_options(arguments.congestion, arguments.lanes, arguments.responder);
    client::set_options(arguments.embed, arguments.priority);
    let dir = arguments.dir.clone();
    match diagnostics::init(&arguments).and_then(|()| commands::run(arguments)) {
        Ok(status) => status,
        Err(error) => {
            let dir = dir.unwrap_or_else(|| Config::default().dir);
            output::report_failure(&client::add_reason(&dir, loss::explain(error)))
        }
    }
}
