//! Node processes: starts them, waits until they are ready, and stops them.
//!
//! A pipe reports when a node is ready, and a pidfd reports when it has ended. A lock in the cluster directory shows
//! whether a node runs. The peer credentials of the node's socket show which process it is. Names and contents of files
//! prove neither that a node runs nor which process it is.

mod start;
mod stop;
mod unlisted;

pub use start::{ClusterSpec, FAILED, Lifetime, METRICS_AT, NodeProcess};
pub use stop::{Found, GRACE, Outcome, Target, find, stop};
pub use unlisted::Unlisted;
