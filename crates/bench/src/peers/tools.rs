//! The programs at hand, and what becomes of those that are not.

use std::path::PathBuf;

use super::{iperf3, libfabric, redis, ucx};

/// A program of somebody else's that must be installed before its rows can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    /// Both ends of UCX.
    Ucx,
    /// The Redis server.
    Redis,
    /// Both ends of iperf3.
    Iperf3,
    /// Both ends of libfabric.
    Libfabric,
}

impl Program {
    const ALL: [Program; 4] = [Program::Ucx, Program::Redis, Program::Iperf3, Program::Libfabric];

    /// What is run.
    pub fn name(self) -> &'static str {
        match self {
            Program::Ucx => ucx::PROGRAM,
            Program::Redis => redis::PROGRAM,
            Program::Iperf3 => iperf3::PROGRAM,
            Program::Libfabric => libfabric::PROGRAM,
        }
    }

    /// Debian's package of it.
    pub fn package(self) -> &'static str {
        match self {
            Program::Ucx => "ucx-utils",
            Program::Redis => "redis-server",
            Program::Iperf3 => "iperf3",
            Program::Libfabric => "libfabric-bin",
        }
    }

    fn is_installed(self) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(self.name()).is_file())
    }
}

/// What can be measured with.
pub struct Tools {
    /// The `halite` program.
    pub halite: PathBuf,
    /// What is not installed.
    pub missing: Vec<Program>,
}

impl Tools {
    /// Looks for everybody else's programs.
    pub fn find(halite: PathBuf) -> Tools {
        let missing = Program::ALL.into_iter().filter(|program| !program.is_installed()).collect();
        Tools { halite, missing }
    }

    /// Whether `program` is installed.
    pub fn has(&self, program: Program) -> bool {
        !self.missing.contains(&program)
    }
}
