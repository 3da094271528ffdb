//! The flags of `halite sim`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

use super::seeds::Seeds;
use crate::args::Listing;

/// Arguments of `halite sim`
#[derive(Args, Debug)]
pub struct SimArgs {
    #[command(subcommand)]
    pub command: SimCommand,
}

#[derive(Subcommand, Debug)]
pub enum SimCommand {
    /// Run one trial and report; fails on any violation
    Run(RunArgs),
    /// Run trials of many seeds on all cores until one fails
    Soak(SoakArgs),
    /// List the built-in plans and the hardware profiles
    List(Listing),
    /// Print the simulated cost of each operation without faults
    Golden,
    /// Sessions of two priorities beside each other under each policy, as in LITE's figures 15 and 16
    Qos(QosArgs),
}

/// Arguments of `halite sim qos`
#[derive(Args, Debug)]
pub struct QosArgs {
    /// Hardware profile, from `halite sim list`
    #[arg(long, value_name = "NAME", default_value = "cx3-40g")]
    pub profile: String,
    /// Instead of bare writes, a log and PageRank of high priority beside constant writes of low priority (figure 15)
    #[arg(long)]
    pub apps: bool,
    #[command(flatten)]
    pub listing: Listing,
}

/// Arguments of `halite sim run`
#[derive(Args, Debug)]
pub struct RunArgs {
    /// TOML file, or name of a plan from `halite sim list`
    pub plan: String,
    /// Seed of all randomness
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Hardware profile instead of the plan's, from `halite sim list`
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Write every event to this file
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

/// Arguments of `halite sim soak`
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("bound").required(true).multiple(true).args(["seconds", "seeds"])))]
pub struct SoakArgs {
    /// TOML file, or name of a plan; several plans take turns, one seed each [default: the small plans of `halite sim
    /// list`]
    #[arg(long = "plan", value_name = "PLAN")]
    pub plans: Vec<String>,
    /// Stop after this many seconds
    #[arg(long, value_name = "S")]
    pub seconds: Option<u64>,
    /// Seeds from A up to, not including, B; A.. has no end [default: 0..]
    #[arg(long, value_name = "A..B")]
    pub seeds: Option<Seeds>,
    /// Hardware profile instead of the plans', from `halite sim list`
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Concurrent trials [default: one per core]
    #[arg(long, value_name = "T")]
    pub threads: Option<NonZeroUsize>,
    /// Continue after a failing seed, and report all failing seeds; print only the trace of the first
    #[arg(long)]
    pub keep_going: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Write every event of the first failing seed to this file
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}
