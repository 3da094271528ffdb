//! Node processes: starting them, waiting until they are ready, and stopping them.
//!
//! Nothing here sleeps and looks again: a start is awaited on a pipe, an end on a pidfd.  Who is a node is
//! decided by the lock files of the cluster directory, never by a process name.

mod start;
mod stop;

pub use start::{FAILED, Lifetime, NodeProcess, Plan, logs_dir};
pub use stop::{GRACE, Outcome, Target, stop, targets_in};
