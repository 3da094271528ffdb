//! Counters of the data path.  Each thread counts by a load and a store, on a cache line that no other thread writes.

use halite_mem::{COUNTS, Pin};

use super::DataPath;

/// A counter, per thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Count {
    /// Pieces read by loads.
    DirectReads,
    /// Their bytes.
    DirectReadBytes,
    /// Pieces written by stores.
    DirectWrites,
    /// Their bytes.
    DirectWriteBytes,
    /// Words changed by this processor.
    DirectAtomics,
    /// Pieces filled by stores.
    DirectFills,
    /// Their bytes.
    DirectFillBytes,
    /// Pieces copied by loads and stores.
    DirectCopies,
    /// Their bytes.
    DirectCopyBytes,
    /// Pieces read by posting.
    PostedReads,
    /// Their bytes.
    PostedReadBytes,
    /// Pieces written by posting.
    PostedWrites,
    /// Their bytes.
    PostedWriteBytes,
    /// Words changed by posting, or by their owner's processor.
    PostedAtomics,
    /// Accesses that failed.
    AccessFailures,
    /// Calls made.
    Calls,
    /// Bytes of their inputs.
    CallBytes,
    /// Calls that failed.
    CallFailures,
    /// Calls received.
    CallsReceived,
    /// Bytes of their inputs.
    CallBytesReceived,
    /// Messages sent.
    Messages,
    /// Their bytes.
    MessageBytes,
    /// Messages that could not be sent.
    MessageFailures,
    /// Messages received.
    MessagesReceived,
    /// Their bytes.
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
    /// Adds to a counter of the calling thread; returns its new value there.
    #[inline]
    pub fn count(&self, count: Count, more: u64) -> u64 {
        note(&self.pins.pin(), count, more)
    }

    /// Counts one event and its bytes.
    #[inline]
    pub fn count_one(&self, count: Count, of_bytes: Count, bytes: u64) {
        let pin = self.pins.pin();
        note(&pin, count, 1);
        note(&pin, of_bytes, bytes);
    }

    /// The sums over all threads so far.
    pub fn counts(&self) -> Counts {
        Counts(self.pins.counts())
    }
}

/// As [`DataPath::count`], for a pinned thread.
#[inline]
pub(super) fn note(pin: &Pin<'_>, count: Count, more: u64) -> u64 {
    pin.count(count as usize, more)
}
