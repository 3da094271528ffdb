//! What an operation costs, in instructions: a process does each operation some times, and another one takes it through them step by
//! step and counts.
//!
//! Two nodes are driven by one thread over shared memory, and what both ends do is counted: nothing depends on how fast the machine is,
//! on what else runs, or on who polls first.  What is counted is the path of a thread that finds what it waits for at its first look.
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
use self::work::{Kind, ROUNDS};

/// How `halite-bench price` counts.
#[derive(Args, Debug)]
pub struct Options {
    /// Fails where an operation costs more than its bound
    #[arg(long)]
    check: bool,
    /// Writes, for each operation, how often each address of the program was executed
    #[arg(long, value_name = "FILE")]
    addresses: Option<PathBuf>,
}

/// Why nothing could be counted, or what costs too much.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process could not be started, or not be stepped through.
    #[error("cannot step through a process: {0}")]
    Step(#[from] io::Error),
    /// The process that does the operations failed.
    #[error("the process that does the operations failed while {0} was counted")]
    Child(&'static str),
    /// An operation costs more than it may.
    #[error("{0} cost more than their bounds")]
    TooDear(String),
}

/// Counts what each operation costs, and prints it beside its bound.
pub fn run(options: &Options) -> Result<(), Error> {
    let mut addresses = options.addresses.as_ref().map(File::create).transpose()?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg("price-work")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let ready = BufReader::new(child.stdout.take().expect("it is a pipe")).lines().next().transpose()?;
    let allocators = ready.as_deref().map(work::parse_allocators).ok_or(Error::Child("nothing"))?;
    let mut stepper = Stepper::attach(child.id(), allocators)?;
    child.stdin.take().expect("it is a pipe").write_all(b"\n")?;
    println!(
        "{:<32} {:>14} {:>16} {:>12} {:>9}",
        "per operation", "instructions", "locked", "allocations", "calls"
    );
    println!("{:<32} {:>14} {:>16} {:>12} {:>9}", "", "(bound)", "(bound)", "", "of kernel");
    let mut dear = Vec::new();
    for kind in Kind::ALL {
        let count = stepper.count_between_marks()?.ok_or(Error::Child(kind.name()))?;
        let per = |all: u64| all as f64 / (ROUNDS * kind.operations()) as f64;
        let (instructions, locked) = (per(count.instructions), per(count.locked));
        let bound = kind.bound();
        println!(
            "{:<32} {:>7.0} ({:>4}) {:>9.1} ({:>4}) {:>12.1} {:>9.1}",
            kind.name(),
            instructions,
            bound.instructions,
            locked,
            bound.locked,
            per(count.allocations),
            per(count.system_calls),
        );
        let is_dear = instructions > f64::from(bound.instructions)
            || locked > f64::from(bound.locked)
            || per(count.allocations) > f64::from(bound.allocations);
        if is_dear {
            dear.push(kind.name());
        }
        if let Some(file) = &mut addresses {
            write_addresses(file, kind, &count)?;
        }
    }
    stepper.detach()?;
    if !child.wait()?.success() {
        return Err(Error::Child("its end"));
    }
    if options.check && !dear.is_empty() { Err(Error::TooDear(dear.join(", "))) } else { Ok(()) }
}

/// The address of an instruction in the program's file or library, how often it was executed, and the file.
fn write_addresses(file: &mut File, kind: Kind, count: &Count) -> io::Result<()> {
    writeln!(file, "{}", kind.name())?;
    for (place, times) in &count.addresses {
        writeln!(file, "{:#x} {times} {}", place.offset, place.file)?;
    }
    Ok(())
}
