//! Node processes: starting them, waiting until they are ready, and stopping them.
//!
//! A start is awaited on a pipe, an end on a pidfd.  Whether a node lives is told by its locks in the cluster
//! directory, and which process it is by the other end of its socket: never by what a file says, nor by a name.

mod start;
mod stop;
mod unlisted;

pub use start::{ClusterSpec, FAILED, Lifetime, METRICS_AT, NodeProcess};
pub use stop::{Found, GRACE, Outcome, Target, find, stop};
pub use unlisted::Unlisted;
