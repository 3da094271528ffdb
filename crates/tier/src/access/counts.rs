//! Counters of the data path. Each thread increments its own counters, in a cache line that no other thread writes, so
//! it needs no atomic addition.

use halite_mem::{COUNTS, Pin};

use super::DataPath;

/// A counter. Each thread has its own value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Count {
    /// Pieces read by loads.
    DirectReads,
    /// Bytes read by loads.
    DirectReadBytes,
    /// Pieces written by stores.
    DirectWrites,
    /// Bytes written by stores.
    DirectWriteBytes,
    /// Atomic operations executed by this node's processor.
    DirectAtomics,
    /// Pieces filled by stores.
    DirectFills,
    /// Bytes filled by stores.
    DirectFillBytes,
    /// Pieces copied by loads and stores.
    DirectCopies,
    /// Bytes copied by loads and stores.
    DirectCopyBytes,
    /// Pieces read by posted operations.
    PostedReads,
    /// Bytes read by posted operations.
    PostedReadBytes,
    /// Pieces written by posted operations.
    PostedWrites,
    /// Bytes written by posted operations.
    PostedWriteBytes,
    /// Atomic operations executed by posting them, or by the processor of the word's owner.
    PostedAtomics,
    /// Accesses that failed.
    AccessFailures,
    /// Calls made.
    Calls,
    /// Input bytes of the calls made.
    CallBytes,
    /// Calls that failed.
    CallFailures,
    /// Calls received.
    CallsReceived,
    /// Input bytes of the calls received.
    CallBytesReceived,
    /// Messages sent.
    Messages,
    /// Bytes of messages sent.
    MessageBytes,
    /// Messages that could not be sent.
    MessageFailures,
    /// Messages received.
    MessagesReceived,
    /// Bytes of messages received.
    MessageBytesReceived,
}

const _: () = assert!((Count::MessageBytesReceived as usize) < COUNTS);

/// The sums over all threads of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts([u64; COUNTS]);

impl Counts {
    /// The value of one counter.
    pub fn of(&self, count: Count) -> u64 {
        self.0[count as usize]
    }
}

impl DataPath {
    /// Adds to a counter of the calling thread, and returns the thread's new value.
    #[inline]
    pub fn count(&self, count: Count, more: u64) -> u64 {
        note(&self.pins.pin(), count, more)
    }

    /// Counts one event and its bytes, in two counters.
    #[inline]
    pub fn count_one(&self, count: Count, of_bytes: Count, bytes: u64) {
        let pin = self.pins.pin();
        note(&pin, count, 1);
        note(&pin, of_bytes, bytes);
    }

    /// The sums over all threads at this time.
    pub fn counts(&self) -> Counts {
        Counts(self.pins.counts())
    }
}

/// As [`DataPath::count`], for a thread that is already pinned.
#[inline]
pub(super) fn note(pin: &Pin<'_>, count: Count, more: u64) -> u64 {
    pin.count(count as usize, more)
}
