//! A graph engine in the style of PowerGraph: gather, apply and scatter, with delta caching.
//!
//! ```text
//!  load     each worker reads its part of the edges ── regions ──> the owner of each edge's target
//!  step     apply: new values of own vertices ──> own region ── barrier ──> all others read what has changed
//!           gather: fold the values of in-neighbours into one accumulator per own vertex
//! ```
//!
//! Each vertex has one owner, by a hash of its id. Its value has 8 bytes. A worker keeps a copy of all values, and
//! accumulators of its own vertices, from step to step. So a step reads only values that have changed and, if few have,
//! folds only these. No region has two writers, so no lock is needed: each worker writes its own, in two halves by
//! turns, and one barrier per step separates writing from reading.
//!
//! A step costs a worker about 3 ns per edge that it gathers, and 8 bytes read for each vertex of the others.

mod components;
mod csr;
mod engine;
mod error;
pub mod input;
mod load;
mod pagerank;
mod words;

pub use components::{components, sizes};
pub use csr::Csr;
pub use engine::Crowd;
pub use error::GraphError;
pub use load::Shard;
pub use pagerank::{PageRank, pagerank};

/// What a worker found out about its own vertices.
#[derive(Clone, Debug)]
pub struct Found<V> {
    /// Number of steps until the values settled, or the limit.
    pub steps: u64,
    /// The values of all own vertices, in the order of [`Shard::ids`].
    pub values: Vec<V>,
    /// Whether the result passed its check.
    pub verified: bool,
}
