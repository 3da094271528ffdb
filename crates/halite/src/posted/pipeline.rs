//! The parts of one access that are in progress together.

use std::collections::VecDeque;
use std::time::Duration;

use halite_fabric::{PeerId, RemoteAddress};
use halite_tier::rpc::atomic::ATOMIC_CALL_BYTES;

use super::{OperationResult, PendingOperation};

/// Maximum number of parts of one access in progress.
const PARTS_MAX: usize = 128;

/// Limit of the bytes in progress over a short path; below it, an access posts more. A wire of 100 Gbit/s carries these
/// bytes in 63 us, so neither a copy of a slice nor a thread that wakes late leaves the wire idle. Small accesses to
/// the same peer wait no longer than this.
const BYTES_MAX: usize = 768 << 10;
/// Limit of the bytes in progress over the longest paths. Where packets are lost, this is at least twice the bytes that
/// the path holds: a lost packet arrives a round trip later, and all operations after it complete only then.
const BYTES_MAX_FAR: usize = 8 << 20;

/// Returns the limit of the bytes in progress: the bytes that 1 GB/s carries in a round trip, from `BYTES_MAX` to
/// `BYTES_MAX_FAR`.
pub(crate) fn bytes_max(round_trip: Option<Duration>) -> usize {
    let bytes = round_trip.map_or(0, |round_trip| round_trip.as_nanos());
    usize::try_from(bytes).unwrap_or(usize::MAX).clamp(BYTES_MAX, BYTES_MAX_FAR)
}

/// Returns true if an access with `parts` parts of `bytes` bytes in progress may post more.
pub(super) fn has_room(parts: usize, bytes: usize, bytes_max: usize) -> bool {
    parts < PARTS_MAX && bytes < bytes_max
}

/// Returns how many of `parts` may still be in progress when more are posted: three quarters. To post after each
/// completion would cost more; to post after all would leave the wire idle while landed bytes are copied.
pub(crate) fn refill_threshold(parts: usize) -> usize {
    parts - parts.div_ceil(4)
}

/// A position in a transfer of several accesses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Cursor {
    /// Index of the access in the transfer.
    pub(crate) index: usize,
    /// Number of the access's bytes that are done.
    pub(crate) done: usize,
}

#[derive(Debug)]
pub(crate) struct Part<'p> {
    pub(crate) operation: PendingOperation<'p>,
    pub(crate) peer: PeerId,
    pub(crate) address: RemoteAddress,
    /// Position at which the part begins.
    pub(crate) at: Cursor,
    pub(crate) len: usize,
    /// The message of an atomic that travels as a call; `None` for other parts.
    pub(crate) call: Option<[u8; ATOMIC_CALL_BYTES]>,
}

/// Posted parts, in order. A single part needs no allocation.
#[derive(Debug, Default)]
pub(crate) struct Pipeline<'p> {
    oldest: Option<Part<'p>>,
    others: VecDeque<Part<'p>>,
    bytes: usize,
}

impl<'p> Pipeline<'p> {
    pub(crate) fn is_empty(&self) -> bool {
        self.oldest.is_none()
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.oldest.is_some()) + self.others.len()
    }

    /// Returns true if more may be posted, counting `parts` other parts of `bytes` bytes in addition to those in
    /// progress.
    pub(crate) fn has_room_with(&self, parts: usize, bytes: usize, bytes_max: usize) -> bool {
        has_room(self.len() + parts, self.bytes + bytes, bytes_max)
    }

    pub(crate) fn push(&mut self, part: Part<'p>) {
        self.bytes += part.len;
        match self.oldest {
            None => self.oldest = Some(part),
            Some(_) => self.others.push_back(part),
        }
    }

    pub(crate) fn oldest(&self) -> Option<&Part<'p>> {
        self.oldest.as_ref()
    }

    /// Waits for the end of the oldest part, and leaves this part in the pipeline. If this future is dropped, the
    /// pipeline still tracks the part.
    pub(crate) async fn oldest_ended(&mut self) -> Option<OperationResult> {
        Some(self.oldest.as_mut()?.operation.ended().await)
    }

    /// Removes the oldest part, which has landed.
    pub(crate) fn remove_oldest(&mut self) {
        self.bytes -= self.oldest.as_ref().map_or(0, |part| part.len);
        self.oldest = self.others.pop_front();
    }
}
