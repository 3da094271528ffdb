//! Errors of the graph engine.

use std::io;
use std::path::PathBuf;

use halite::{AccessError, BarrierError, RegionError};

/// Cause of a failed load or computation of a graph.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum GraphError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line is neither an edge nor a comment.
    #[error("{}:{line}: expected two vertex ids from 0 to 2^64-1, found {text:?}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1 on.
        line: u64,
        /// Its beginning.
        text: String,
    },
    /// The graph has more vertices than the engine can number.
    #[error("the graph has {vertices} vertices; the maximum is {}", super::load::VERTICES_MAX)]
    TooManyVertices {
        /// Number of vertices.
        vertices: u64,
    },
    /// A worker could not allocate a region from which the other workers read.
    #[error("worker {worker} needs {bytes} bytes of its node's memory for {what}")]
    Memory {
        /// The worker.
        worker: usize,
        /// Bytes that it needs.
        bytes: u64,
        /// What it stores there.
        what: &'static str,
        /// Why it did not get them.
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
}
