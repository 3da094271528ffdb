//! Finds the programs of the peers that are installed.

use std::path::PathBuf;

use super::{iperf3, libfabric, redis, ucx};

/// A program that some rows need. If it is not installed, these rows are omitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    /// UCX (both ends).
    Ucx,
    /// The Redis server.
    Redis,
    /// iperf3 (both ends).
    Iperf3,
    /// libfabric (both ends).
    Libfabric,
}

impl Program {
    const ALL: [Program; 4] = [Program::Ucx, Program::Redis, Program::Iperf3, Program::Libfabric];

    /// Returns the name of the executable.
    pub fn name(self) -> &'static str {
        match self {
            Program::Ucx => ucx::PROGRAM,
            Program::Redis => redis::PROGRAM,
            Program::Iperf3 => iperf3::PROGRAM,
            Program::Libfabric => libfabric::PROGRAM,
        }
    }

    /// Returns the name of the Debian package.
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

/// The path of `halite`, and the programs of peers that are not installed.
pub struct Tools {
    /// Path of the `halite` program.
    pub halite: PathBuf,
    /// Programs that are not installed.
    pub missing: Vec<Program>,
}

impl Tools {
    /// Searches `PATH` for the programs of the peers.
    pub fn find(halite: PathBuf) -> Tools {
        let missing = Program::ALL.into_iter().filter(|program| !program.is_installed()).collect();
        Tools { halite, missing }
    }

    /// Returns true if `program` is installed.
    pub fn has(&self, program: Program) -> bool {
        !self.missing.contains(&program)
    }
}
