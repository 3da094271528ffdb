//! Lets a thread wait until the node's drain has ended; the thread then makes the node leave.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// A handle with which a thread waits until a node has been drained. It may outlive the node.
#[derive(Clone, Default, Debug)]
pub struct DrainedNode(Arc<Latch>);

#[derive(Default, Debug)]
struct Latch {
    left: Mutex<Option<u64>>,
    is_set: Condvar,
}

impl DrainedNode {
    /// Blocks until the drain has ended, or until the node's incarnation has ended. Returns the number of regions that
    /// could not be moved.
    pub fn wait(&self) -> u64 {
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
