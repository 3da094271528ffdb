//! A graph engine in the style of PowerGraph: gather, apply and scatter, with delta caching.
//!
//! ```text
//!  load     each worker reads its part of the edges ── regions ──> the owner of each edge's target
//!  step     apply: new values of own vertices ──> own region ── barrier ──> all others read what has changed
//!           gather: fold the values of in-neighbours into one accumulator per own vertex
//! ```
//!
//! A hash of its id assigns each vertex to one worker, its owner. The value of a vertex has 8 bytes. A worker keeps a
//! copy of all values, and accumulators of its own vertices, from step to step. So if few values have changed, a step
//! reads and folds only these. Each worker writes only its own region, alternating between two halves, and one barrier
//! per step separates writing from reading. So no lock is needed.
//!
//! [`pagerank_on_dsm`] and [`components_on_dsm`] keep the values in [distributed shared memory](crate::dsm) instead:
//! the same programs run by loads and stores, and a step costs two pairs of `acquire` and `release`, to store and to
//! load.
//!
//! In each step, a worker spends about 3 ns per gathered edge, and reads 8 bytes per vertex of the other workers.

mod components;
mod csr;
mod engine;
mod error;
pub mod input;
mod load;
mod pagerank;
mod shared;
mod words;

pub use components::{components, components_on_dsm, sizes};
pub use csr::Csr;
pub use engine::Crowd;
pub use error::GraphError;
pub use load::Shard;
pub use pagerank::{PageRank, pagerank, pagerank_on_dsm};

/// A worker's result for its own vertices.
#[derive(Clone, Debug)]
pub struct Found<V> {
    /// Number of steps until the values stopped changing or the limit was reached.
    pub steps: u64,
    /// The values of all vertices of this worker, in the order of [`Shard::ids`].
    pub values: Vec<V>,
    /// True if the result passed its check.
    pub verified: bool,
}
