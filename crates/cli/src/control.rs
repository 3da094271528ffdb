//! Node processes: starts them, waits until they are ready, and stops them.
//!
//! A start is awaited on a pipe, an end on a pidfd.  Locks in the cluster directory show whether a node lives, and the
//! other end of its socket shows which process it is: the contents and names of files prove neither.

mod start;
mod stop;
mod unlisted;

pub use start::{ClusterSpec, FAILED, Lifetime, METRICS_AT, NodeProcess};
pub use stop::{Found, GRACE, Outcome, Target, find, stop};
pub use unlisted::Unlisted;
