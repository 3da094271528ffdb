//! Applications on the public interface, small enough to be read in one go, and of use beyond a demonstration.
//!
//! - [`kv`]: values by key, read from the memory of others, and changed by its owner.
//! - [`log`]: many append, many follow, and nobody serves them.
//!
//! `halite run` starts them over a cluster, measures and verifies them.

#![forbid(unsafe_code)]

mod directory;
pub mod kv;
pub mod log;

pub use directory::is_without_directory;
