//! A soak: processes that do random things to what they share, while some of them are killed.
//!
//! The first node is in the program that runs the soak, and is never killed.  It keeps the [`board`], a region in which
//! everybody notes what it is about to do and what it has done; so what a killed process leaves behind can be
//! checked as well.  Each of the others is a process of its own, with a [`worker`]; a killed one is followed by another in
//! its place, the next *incarnation* of that node.
//!
//! ```text
//!   first node: board, crew, verdict          kills, starts
//!      ▲ words, records, locks                     │
//!      │                                           ▼
//!   workers 1..=8  ◄── calls, messages, regions ──► each other
//! ```
//!
//! What went wrong is judged where it is seen: an operation may fail only if one of the nodes that it needs was killed
//! meanwhile (see [`excuse`]), and all bytes can be told from their place.

pub mod board;
pub mod crew;
pub mod excuse;
mod locks;
mod mailbox;
mod regions;
mod scratch;
mod talk;
mod verdict;
mod words;
pub mod worker;

use std::path::PathBuf;
use std::time::Instant;

use crew::Crew;
use fastrand::Rng;

/// How many processes work at a time.
pub const WORKERS: u32 = 8;

/// What `lab soak` is told.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// How many operations, of all processes together
    #[arg(long, default_value_t = 32_000)]
    pub operations: u64,
    /// What the choices of all processes are drawn from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How many processes are killed on the way [default: one every 4000 operations, 300 at most]
    #[arg(long)]
    pub kills: Option<u64>,
}

/// What one process of the soak is told.
#[derive(clap::Args, Clone, Debug)]
pub struct WorkerOptions {
    /// The cluster directory
    #[arg(long)]
    pub dir: PathBuf,
    /// Which node to be
    #[arg(long)]
    pub node: u32,
    /// Which incarnation this is, counted over all nodes
    #[arg(long)]
    pub incarnation: u64,
    /// See [`Options::seed`]
    #[arg(long)]
    pub seed: u64,
}

/// Something was not as it must be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);

/// How everything here ends.
pub type Result<T> = std::result::Result<T, Failure>;

/// Fails with a text unless something holds.
macro_rules! ensure {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err($crate::soak::Failure(format!($($text)+)));
        }
    };
}
use ensure;

impl Options {
    fn kills(&self) -> u64 {
        self.kills.unwrap_or((self.operations / 4000).min(300))
    }
}

/// Runs the soak, and prints what it was made of.
pub fn run(options: &Options) -> Result<()> {
    let begin = Instant::now();
    let ended = soak(options).map_err(|Failure(what)| {
        let Options { operations, seed, .. } = options;
        let kills = options.kills();
        Failure(format!("{what}\nagain: lab soak --operations {operations} --kills {kills} --seed {seed}"))
    });
    println!("{} in {:.1} s", ended?, begin.elapsed().as_secs_f64());
    Ok(())
}

fn soak(options: &Options) -> Result<String> {
    let mut crew = Crew::start(options.seed)?;
    crew.work(options.operations, options.kills())?;
    verdict::judge(crew)
}

/// A number that has nothing to do with the one it is made from.
pub fn mix(seed: u64) -> u64 {
    Rng::with_seed(seed).u64(..)
}
