//! Applications that use Halite's public interface. Each is small enough to read in one go, and useful in practice.
//! [`dsm`] also uses the pages of [`halite_mem::Paged`].
//!
//! - [`dsm`]: shared pages, which workers load from and store to as memory.
//! - [`graph`]: ranks and components of large graphs, by workers that read each other's values.
//! - [`kv`]: a key-value store; clients read the owner's memory, and the owner makes changes.
//! - [`log`]: a log with many writers and many followers, and no server.
//! - [`mapreduce`]: jobs in three phases, whose workers read each other's intermediate results by one-sided reads.
//!
//! `halite run` runs the applications on a cluster, measures them and verifies their results.

#![forbid(unsafe_code)]

mod directory;
pub mod dsm;
pub mod graph;
pub mod kv;
pub mod log;
pub mod mapreduce;

pub use directory::is_without_directory;
