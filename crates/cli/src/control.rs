//! Node processes: starts them, waits until they are ready, and stops them.
//!
//! A pipe shows that a node is ready, a pidfd that it has ended. A lock in the cluster directory shows whether a node
//! lives, and the other end of its socket which process it is; contents and names of files prove neither.

mod start;
mod stop;
mod unlisted;

pub use start::{ClusterSpec, FAILED, Lifetime, METRICS_AT, NodeProcess};
pub use stop::{Found, GRACE, Outcome, Target, find, stop};
pub use unlisted::Unlisted;
