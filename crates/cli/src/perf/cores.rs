//! Placement of threads on cores.

use std::io;

use clap::ValueEnum;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pinning {
    /// The client thread and the server thread of a pair on two cores; pairs use all cores in turn: best if both ends
    /// are busy
    Apart,
    /// Both ends on the first core, with all their threads: best if the threads mostly sleep
    Shared,
    /// On any core that the scheduler chooses
    Any,
}

/// The cores that this process may use, and how both ends share them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cores {
    available: Vec<usize>,
    pinning: Pinning,
}

impl Cores {
    pub fn available(pinning: Pinning) -> io::Result<Cores> {
        let set = sched_getaffinity(None)?;
        let available = (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect();
        Ok(Cores { available, pinning })
    }

    /// Returns true if both ends share a core although `--cores` does not ask for it, because this process may use only
    /// one.
    pub fn are_too_few(&self) -> bool {
        self.available.len() < 2 && self.pinning != Pinning::Shared
    }

    /// Returns true if a pair has a core for each of its two ends.
    pub fn are_apart(&self) -> bool {
        self.available.len() > 1 && self.pinning == Pinning::Apart
    }

    /// Returns the same cores for a process whose server threads run where the client's threads run.
    pub fn of_other_end(mut self) -> Cores {
        let first = 1.min(self.available.len());
        self.available.rotate_left(first);
        self
    }

    /// Returns all cores that this process may use.
    pub fn all(&self) -> CpuSet {
        set_of(&self.available)
    }

    /// Returns the cores for a server thread: with `Apart`, one core for each, in turn.
    pub fn of_server(&self, thread: usize) -> CpuSet {
        match self.pinning {
            Pinning::Apart => set_of(&[self.available[thread % self.available.len()]]),
            Pinning::Shared => set_of(&[self.available[0]]),
            Pinning::Any => self.all(),
        }
    }

    /// Returns the cores for a client thread: with `Apart`, the core after its server thread's, so each pair has two.
    pub fn of_client(&self, thread: usize) -> CpuSet {
        self.of_server(thread + 1)
    }
}

fn set_of(cores: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    set
}

/// Binds the calling thread, and threads that it starts later, to `cores`.
pub fn pin(cores: CpuSet) -> io::Result<()> {
    Ok(sched_setaffinity(None, &cores)?)
}
