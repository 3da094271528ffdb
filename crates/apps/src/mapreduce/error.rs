//! Errors of a run.

use std::io;
use std::path::PathBuf;

use halite::{AccessError, NamedCallError, RegionError, ServeError};

/// Cause of a failed run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Input {
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A worker cannot allocate a region for its results.
    #[error("worker {worker} cannot publish {bytes} bytes of results: {source}")]
    Publish {
        /// Number of the worker.
        worker: u32,
        /// Length of the results, in bytes.
        bytes: u64,
        /// Cause.
        source: RegionError,
    },
    /// A region cannot be mapped or freed.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A region cannot be read or written.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// Results that were read are malformed.
    #[error("the results of a worker are malformed: {0}")]
    Malformed(#[from] postcard::Error),
    /// The master does not answer.
    #[error("the master of this run does not answer: {0}")]
    NoMaster(#[from] NamedCallError),
    /// The master cannot serve.
    #[error("the master of this run cannot serve: {0}")]
    NotServed(#[from] ServeError),
    /// The caller of the run stopped it.
    #[error("the run was stopped")]
    Stopped,
    /// The run failed at a worker.
    #[error("{0}")]
    Failed(String),
}
