//! The `halite` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    halite_cli::run()
}
