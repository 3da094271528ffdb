//! `halite-bench price`: counts the instructions of each operation. A child process runs the operation several times,
//! and the parent single-steps the child and counts.
//!
//! One thread of the child drives two nodes over shared memory, and the instructions of both ends count. So the result
//! does not depend on the speed and load of the machine, or on the order in which threads poll. The counted path is
//! that of a thread that finds its result on the first poll. A mark is a system call that delimits the counted part.
//!
//! ```text
//!  parent                                            child
//!   attaches ───────────────────────────────────────► mark, operations, mark, ...
//!   steps from mark to mark, and counts
//! ```

mod instruction;
mod stepper;
pub mod work;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::Args;

use self::stepper::{Count, Stepper};
use self::work::{OPERATIONS, Operation, ROUNDS};

/// Options of `halite-bench price`.
#[derive(Args, Debug)]
pub struct Options {
    /// Fail if an operation exceeds its bound
    #[arg(long)]
    check: bool,
    /// Write the number of executions of each instruction address to this file, operation by operation
    #[arg(long, value_name = "FILE")]
    addresses: Option<PathBuf>,
}

/// Cause of a failed run: `price` cannot count, or operations exceed their bounds.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process could not be started or single-stepped.
    #[error("cannot step through a process: {0}")]
    Step(#[from] io::Error),
    /// The child process failed.
    #[error("the child process failed during {0}")]
    Child(&'static str),
    /// Operations exceed their bounds.
    #[error(
        "{0} exceed their bounds; make them cheaper, or raise the bounds in crates/bench/src/price/work.rs"
    )]
    OverBound(String),
}

/// Counts the cost of each operation, and prints it with its bound.
pub fn run(options: &Options) -> Result<(), Error> {
    let mut addresses = options.addresses.as_ref().map(File::create).transpose()?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg("price-work")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let ready =
        BufReader::new(child.stdout.take().expect("the stream is a pipe")).lines().next().transpose()?;
    let allocators = ready.as_deref().map(work::parse_allocators).ok_or(Error::Child("its start"))?;
    let mut stepper = Stepper::attach(child.id(), allocators)?;
    child.stdin.take().expect("the stream is a pipe").write_all(b"\n")?;
    println!(
        "{:<32} {:>14} {:>16} {:>12} {:>9}",
        "per operation", "instructions", "locked", "allocations", "calls"
    );
    println!("{:<32} {:>14} {:>16} {:>12} {:>9}", "", "(bound)", "(bound)", "", "(system)");
    let mut over_bound = Vec::new();
    for Operation { name, per_round, bounds, .. } in OPERATIONS {
        let count = stepper.count_between_marks()?.ok_or(Error::Child(name))?;
        let per = |all: u64| all as f64 / (ROUNDS * per_round) as f64;
        let costs = [count.instructions, count.locked, count.allocations].map(per);
        let [instructions, locked, allocations] = costs;
        println!(
            "{name:<32} {instructions:>7.0} ({:>4}) {locked:>9.1} ({:>4}) {allocations:>12.1} {:>9.1}",
            bounds[0],
            bounds[1],
            per(count.system_calls),
        );
        if costs.iter().zip(bounds).any(|(cost, bound)| *cost > f64::from(bound)) {
            over_bound.push(name);
        }
        if let Some(file) = &mut addresses {
            write_addresses(file, name, &count)?;
        }
    }
    stepper.detach()?;
    if !child.wait()?.success() {
        return Err(Error::Child("its end"));
    }
    if options.check && !over_bound.is_empty() {
        Err(Error::OverBound(over_bound.join(", ")))
    } else {
        Ok(())
    }
}

/// Writes one line per executed instruction: its offset in the file of the program or library, the number of
/// executions, and the file.
fn write_addresses(file: &mut File, name: &str, count: &Count) -> io::Result<()> {
    writeln!(file, "{name}")?;
    for (place, times) in &count.addresses {
        writeln!(file, "{:#x} {times} {}", place.offset, place.file)?;
    }
    Ok(())
}
