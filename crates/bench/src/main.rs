//! The `halite-bench` program: compares Halite with its usual alternatives.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use halite_bench::peers::{self, Options};
#[cfg(target_arch = "x86_64")]
use halite_bench::price;

/// Compares Halite with its usual alternatives.
#[derive(Parser)]
#[command(name = "halite-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run Halite, UCX, gRPC, Redis and the bare machine in alternating rounds and print the ratios
    Peers(Options),
    #[cfg(target_arch = "x86_64")]
    /// Count instructions, locked instructions, allocations and system calls of each operation
    Price(price::Options),
    #[cfg(target_arch = "x86_64")]
    /// Run the operations that `price` counts
    #[command(hide = true)]
    PriceWork,
    /// Serve the echo service of the gRPC rows of `peers`
    #[command(hide = true)]
    GrpcEcho {
        /// Address of the socket to listen on
        #[arg(long)]
        socket: PathBuf,
    },
    /// Run a program that is killed when its parent dies
    #[command(hide = true)]
    Tethered {
        /// Pid of the expected parent
        #[arg(long)]
        parent: u32,
        /// Core to run on
        #[arg(long)]
        core: Option<usize>,
        /// Program and arguments
        #[arg(last = true, required = true)]
        program: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let result: Result<(), Box<dyn std::error::Error>> = match Arguments::parse().command {
        Command::Peers(options) => peers::run(&options),
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
