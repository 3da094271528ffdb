//! Counters of the data path. Each thread increments its own counters, in cache lines that no other thread writes, so
//! that an increment needs no locked instruction.

use halite_mem::{COUNTS, Pin};

use super::DataPath;

/// A counter of the data path. Each thread has its own value.
///
/// Reads, writes, fills and copies are executed in pieces: contiguous bytes of one owner, of limited length. An access
/// that needs several pieces counts once per piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Count {
    /// Number of pieces read by loads.
    DirectReads,
    /// Bytes read by loads.
    DirectReadBytes,
    /// Number of pieces written by stores.
    DirectWrites,
    /// Bytes written by stores.
    DirectWriteBytes,
    /// Atomic operations executed by this node's processor.
    DirectAtomics,
    /// Number of pieces filled by stores.
    DirectFills,
    /// Bytes filled by stores.
    DirectFillBytes,
    /// Number of pieces copied by loads and stores.
    DirectCopies,
    /// Bytes copied by loads and stores.
    DirectCopyBytes,
    /// Number of pieces read by posted operations.
    PostedReads,
    /// Bytes read by posted operations.
    PostedReadBytes,
    /// Number of pieces written by posted operations.
    PostedWrites,
    /// Bytes written by posted operations.
    PostedWriteBytes,
    /// Atomic operations that this node posted, or that the processor of the word's owner executed for this node.
    PostedAtomics,
    /// Number of accesses that failed.
    AccessFailures,
    /// Number of calls that this node made.
    Calls,
    /// Input bytes of the calls made.
    CallBytes,
    /// Number of calls by this node that failed.
    CallFailures,
    /// Number of calls that this node received.
    CallsReceived,
    /// Input bytes of the calls received.
    CallBytesReceived,
    /// Number of messages that this node sent.
    Messages,
    /// Bytes of messages sent.
    MessageBytes,
    /// Number of messages that this node could not send.
    MessageFailures,
    /// Number of messages that this node received.
    MessagesReceived,
    /// Bytes of messages received.
    MessageBytesReceived,
}

const _: () = assert!((Count::MessageBytesReceived as usize) < COUNTS);

/// The values of all counters, each summed over all threads of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts([u64; COUNTS]);

impl Counts {
    /// Returns the value of one counter.
    pub fn of(&self, count: Count) -> u64 {
        self.0[count as usize]
    }
}

impl DataPath {
    /// Adds `more` to a counter of the calling thread, and returns the thread's new value.
    #[inline]
    pub fn count(&self, count: Count, more: u64) -> u64 {
        add(&self.pins.pin(), count, more)
    }

    /// Adds 1 to the counter `count`, and `bytes` to the counter `of_bytes`.
    #[inline]
    pub fn count_one(&self, count: Count, of_bytes: Count, bytes: u64) {
        let pin = self.pins.pin();
        add(&pin, count, 1);
        add(&pin, of_bytes, bytes);
    }

    /// Returns the current sums over all threads of the node.
    pub fn counts(&self) -> Counts {
        Counts(self.pins.counts())
    }
}

/// Adds `more` to a counter of the calling thread, which already holds a pin, and returns the thread's new value.
#[inline]
pub(super) fn add(pin: &Pin<'_>, count: Count, more: u64) -> u64 {
    pin.count(count as usize, more)
}
