//! `halite run`: applications on the public interface, over a cluster of their own or one that runs already.
//!
//! Workers are processes of this program, one for each node of the cluster of their own, and join as applications do.  This
//! process only tells them what to do, and puts together what they have seen.

mod away;
mod crew;
mod kv;
mod log;
mod shards;
mod worker;
mod ycsb;

use std::path::Path;

use clap::{Args, Subcommand};
use halite::Provider;

pub use worker::{WorkerArgs, work};

use crate::args::network;
use crate::bytes::ByteCount;
use crate::metrics_at::MetricsAt;
use crate::output::UsageError;

/// `halite run`
#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(subcommand)]
    app: App,
}

#[derive(Subcommand, Debug)]
enum App {
    /// Appends to a log that all followers see in one order, and checks that each sees every record once
    Log(log::LogArgs),
    /// Serves a key-value store, of which each process owns a part, to clients of Redis, until it is ended
    Kv(kv::KvArgs),
    /// Asks a key-value store, of which each process owns a part, as YCSB does, and checks each value
    Ycsb(ycsb::YcsbArgs),
}

/// Over what an application runs.
#[derive(Args, Clone, Debug)]
struct Over {
    /// Processes of the application, each a node of its own
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    nodes: u32,
    /// Memory that each of them contributes to a cluster of their own, as 512M or 8G [default: 2G]
    #[arg(long, value_name = "BYTES")]
    arena: Option<ByteCount>,
    /// The network of a cluster of their own [default: shm]
    #[arg(long, value_parser = network())]
    fabric: Option<Provider>,
    /// Where the first process serves metrics, and each next one at the next port; port 0 has the system choose
    #[arg(long, value_name = "IP:PORT|none", default_value_t = MetricsAt(None))]
    metrics: MetricsAt,
    /// Prints one JSON object
    #[arg(long)]
    json: bool,
}

/// Memory of each process, where nothing is said.
const ARENA_BYTES: ByteCount = ByteCount(2 << 30);

impl Over {
    fn arena(&self) -> ByteCount {
        self.arena.unwrap_or(ARENA_BYTES)
    }

    fn fabric(&self) -> Provider {
        self.fabric.unwrap_or(Provider::Shm)
    }

    /// Fails where something is said of a cluster of the application's own, and it runs over one in `dir`.
    fn check(&self, dir: Option<&Path>) -> Result<(), UsageError> {
        let Some(dir) = dir else { return Ok(()) };
        let said = [("--arena", self.arena.is_some()), ("--fabric", self.fabric.is_some())];
        let Some((flag, _)) = said.into_iter().find(|(_, is_said)| *is_said) else { return Ok(()) };
        Err(UsageError(format!(
            "{flag} is for a cluster of the application's own, and this is over the one in {}; leave {flag} out, or --dir and HALITE_DIR",
            dir.display()
        )))
    }
}

impl App {
    fn over(&self) -> &Over {
        match self {
            App::Log(args) => &args.over,
            App::Kv(args) => &args.over,
            App::Ycsb(args) => &args.over,
        }
    }
}

/// Runs an application; fails if it did not do what it is to do.  `dir` is where the cluster is that the user means, if any.
pub fn run(dir: Option<&Path>, args: &RunArgs) -> anyhow::Result<()> {
    args.app.over().check(dir)?;
    match &args.app {
        App::Log(args) => log::run(dir, args),
        App::Kv(args) => kv::run(dir, args),
        App::Ycsb(args) => ycsb::run(dir, args),
    }
}

/// For how long something is measured.
fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.01..=86_400.0).contains(&value) { Ok(value) } else { Err("not from 0.01 to 86400".to_owned()) }
}
