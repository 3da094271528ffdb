//! The flags of `halite sim`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

use super::seeds::Seeds;
use crate::args::Listing;

/// `halite sim`
#[derive(Args, Debug)]
pub struct SimArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: SimCommand,
}

/// One variant for each command.
#[derive(Subcommand, Debug)]
pub enum SimCommand {
    /// Runs one trial and reports; fails if anything was observed that must not be
    Run(RunArgs),
    /// Walks seeds on all cores until one fails
    Soak(SoakArgs),
    /// Lists the plans that need no file, and the profiles of hardware that plans can name
    List(Listing),
    /// Prints what each operation costs in simulated time, where nothing goes wrong
    Golden,
}

/// `halite sim run`
#[derive(Args, Debug)]
pub struct RunArgs {
    /// A TOML file, or the name of a plan of `halite sim list`
    pub plan: String,
    /// What everything that is left open by the plan follows from
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// The hardware between nodes, or between their hosts, in place of the plan's: a name of `halite sim list`
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
    /// Writes every event to this file
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

/// `halite sim soak`
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("bound").required(true).multiple(true).args(["seconds", "seeds"])))]
pub struct SoakArgs {
    /// A TOML file, or the name of a plan; of several, each seed takes the next one [default: all small ones of `halite sim list`]
    #[arg(long = "plan", value_name = "PLAN")]
    pub plans: Vec<String>,
    /// Ends after so long
    #[arg(long, value_name = "S")]
    pub seconds: Option<u64>,
    /// Walks the seeds from A until before B, or without an end [default: 0..]
    #[arg(long, value_name = "A..B")]
    pub seeds: Option<Seeds>,
    /// The hardware between nodes, or between their hosts, in place of the plans': a name of `halite sim list`
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Trials at a time [default: one on each core]
    #[arg(long, value_name = "T")]
    pub threads: Option<NonZeroUsize>,
    /// Tells of every seed that fails, and shows the first
    #[arg(long)]
    pub keep_going: bool,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
    /// Writes every event of the first seed that fails to this file
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}
