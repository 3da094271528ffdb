//! Whether a node has been drained: for the thread that is to let it leave then, and has nothing else to do with it.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// To wait until a node has been drained; it may be gone by then.
#[derive(Clone, Default, Debug)]
pub struct DrainedNode(Arc<Latch>);

#[derive(Default, Debug)]
struct Latch {
    left: Mutex<Option<u64>>,
    is_set: Condvar,
}

impl DrainedNode {
    /// Sleeps until all that was on the node has been brought to others, or could not be.  Returns how many regions are left.
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
