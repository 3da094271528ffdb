//! Buffers of long requests and replies, which the thread uses again.
//!
//! The allocator would give the pages of each freed buffer back to the system, and fault them in again for the next
//! one.

use std::cell::RefCell;
use std::rc::Rc;

use crate::session::attached::wire::SLICE_BYTES;

/// Maximum number of buffers that are kept, for all clients.
const BUFFERS_MAX: usize = 16;
/// Minimum and maximum capacity of a kept buffer, in bytes.
const CAPACITY_MIN: usize = 16 << 10;
const CAPACITY_MAX: usize = 2 * SLICE_BYTES;

/// The buffers of one thread.
#[derive(Clone, Default)]
pub(super) struct Buffers(Rc<RefCell<Vec<Vec<u8>>>>);

impl Buffers {
    /// Returns an empty buffer with room for `len` bytes.
    pub(super) fn take(&self, len: usize) -> Vec<u8> {
        // Short requests may stay for long, and the quotas count their bytes.
        let kept = if len < CAPACITY_MIN { None } else { self.0.borrow_mut().pop() };
        let mut buffer = kept.unwrap_or_default();
        buffer.reserve(len);
        buffer
    }

    /// Keeps a buffer for its next use, if its capacity is within the bounds and there is room.
    pub(super) fn give_back(&self, mut buffer: Vec<u8>) {
        let mut kept = self.0.borrow_mut();
        if (CAPACITY_MIN..=CAPACITY_MAX).contains(&buffer.capacity()) && kept.len() < BUFFERS_MAX {
            buffer.clear();
            kept.push(buffer);
        }
    }
}
