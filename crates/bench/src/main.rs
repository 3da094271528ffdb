//! The `halite-bench` program: measures Halite beside what its users would pick instead.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use halite_bench::links;
use halite_bench::peers::{self, Options};
#[cfg(target_arch = "x86_64")]
use halite_bench::price;

/// Measures Halite beside what its users would pick instead.
#[derive(Parser)]
#[command(name = "halite-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs Halite, UCX, gRPC, Redis and the bare machine in alternating rounds and prints the ratios
    Peers(Options),
    /// Runs Halite, TCP and QUIC over emulated networks that lose, delay and share, and prints what comes through
    Links(links::Options),
    #[cfg(target_arch = "x86_64")]
    /// Counts instructions, locked instructions and allocations of each operation
    Price(price::Options),
    #[cfg(target_arch = "x86_64")]
    /// Does what `price` counts
    #[command(hide = true)]
    PriceWork,
    /// Serves the echo that `peers` measures gRPC with
    #[command(hide = true)]
    GrpcEcho {
        /// Where to listen
        #[arg(long)]
        socket: PathBuf,
    },
    /// Runs a program that dies together with its parent
    #[command(hide = true)]
    Tethered {
        /// The process that must still be the parent
        #[arg(long)]
        parent: u32,
        /// The core to run on
        #[arg(long)]
        core: Option<usize>,
        /// The program and its arguments
        #[arg(last = true, required = true)]
        program: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let result: Result<(), Box<dyn std::error::Error>> = match Arguments::parse().command {
        Command::Peers(options) => peers::run(&options).map_err(Into::into),
        Command::Links(options) => links::run(&options).map_err(Into::into),
        #[cfg(target_arch = "x86_64")]
        Command::Price(options) => price::run(&options).map_err(Into::into),
        #[cfg(target_arch = "x86_64")]
        Command::PriceWork => price::work::run(),
        Command::GrpcEcho { socket } => peers::grpc::serve(&socket).map_err(Into::into),
        Command::Tethered { parent, core, program } => {
            Err(peers::child::become_tethered(parent, core, &program).into())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("halite-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
