//! Lets a thread wait until the node's drain has ended; the thread then makes the node leave.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use halite_mem::fork::Process;

/// A handle with which a thread waits until a node has been drained. It may outlive the node.
#[derive(Clone, Default, Debug)]
pub struct DrainedNode(Arc<Latch>);

#[derive(Debug)]
struct Latch {
    left: Mutex<Option<u64>>,
    is_set: Condvar,
    /// The node's process. A fork of it has no thread that sets the latch.
    process: Process,
}

impl Default for Latch {
    fn default() -> Latch {
        Latch { left: Mutex::default(), is_set: Condvar::default(), process: Process::current() }
    }
}

impl DrainedNode {
    /// Blocks until the drain has ended, or until the node's incarnation has ended. Returns the number of regions that
    /// could not be moved. Returns 0 at once in a fork of the process.
    pub fn wait(&self) -> u64 {
        if !self.0.process.is_current() {
            return 0;
        }
        let mut left = self.0.left.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *left {
                Some(left) => return left,
                None => left = self.0.is_set.wait(left).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    pub(crate) fn set(&self, left: u64) {
        *self.0.left.lock().unwrap_or_else(PoisonError::into_inner) = Some(left);
        self.0.is_set.notify_all();
    }
}
