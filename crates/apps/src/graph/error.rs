//! Errors of the graph engine.

use std::io;
use std::path::PathBuf;

use halite::{AccessError, BarrierError, RegionError};

use crate::dsm::DsmError;

/// Cause of a failed load or computation of a graph.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum GraphError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A line is neither an edge nor a comment.
    #[error("{}:{line}: expected two vertex ids from 0 to 2^64-1, found {text:?}", path.display())]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// The line's number, from 1 on.
        line: u64,
        /// Beginning of the line.
        text: String,
    },
    /// A line with an edge is too long.
    #[error("{}:{line}: a line with an edge has at most {} bytes", path.display(), super::input::LINE_BYTES_MAX - 1)]
    LongLine {
        /// Path of the file.
        path: PathBuf,
        /// The line's number, from 1 on.
        line: u64,
    },
    /// The graph has more vertices than the engine can number.
    #[error("the graph has {vertices} vertices; the maximum is {}", super::load::VERTICES_MAX)]
    TooManyVertices {
        /// Number of vertices.
        vertices: u64,
    },
    /// A worker could not allocate a region from which the other workers read.
    #[error("worker {worker} cannot allocate {bytes} bytes of its node's memory for {what}")]
    Memory {
        /// Number of the worker.
        worker: usize,
        /// Number of bytes that the worker needs.
        bytes: u64,
        /// Description of the data for which the worker needs the region.
        what: &'static str,
        /// Cause of the failed allocation.
        source: RegionError,
    },
    /// A worker's region cannot be allocated, mapped or freed.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A worker's memory cannot be read or written.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The workers did not all reach the end of a step.
    #[error(transparent)]
    Barrier(#[from] BarrierError),
    /// The values are in distributed shared memory, which failed.
    #[error(transparent)]
    Shared(#[from] DsmError),
}
