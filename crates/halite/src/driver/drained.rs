//! Lets the thread that will make the node leave wait until a drain has ended.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// A handle to wait until a node has been drained. It may outlive the node.
#[derive(Clone, Default, Debug)]
pub struct DrainedNode(Arc<Latch>);

#[derive(Default, Debug)]
struct Latch {
    left: Mutex<Option<u64>>,
    is_set: Condvar,
}

impl DrainedNode {
    /// Blocks until the drain is over. Returns the number of regions that could not be moved.
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
