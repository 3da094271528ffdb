//! The parts of one access that are under way together.

use std::collections::VecDeque;

use halite_fabric::{PeerId, RemoteAddress};
use halite_tier::rpc::atomic::ATOMIC_CALL_BYTES;

use super::{Ended, PendingOperation};

/// Most parts that one access has under way.
const PARTS_MAX: usize = 64;

/// Bytes under way up to which more are posted: a wire of 100 Gbit/s carries them in 63 us, in which a copy of a slice, or a
/// thread that is woken late, leaves it idle for no time.  Small accesses of others to the same peer wait as long at most.
const BYTES_MAX: usize = 768 << 10;

/// Whether more may be posted beside so many parts under way, of `bytes` together.
pub(super) fn has_room(parts: usize, bytes: usize) -> bool {
    parts < PARTS_MAX && bytes < BYTES_MAX
}

/// Down to how many of so many parts under way must have gone before more are posted: a post for each that goes would cost more,
/// and a wire must not wait for the copy of what has landed.
pub(crate) fn low(parts: usize) -> usize {
    parts - parts.div_ceil(4)
}

/// How far a transfer has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Cursor {
    /// Which access.
    pub(crate) index: usize,
    /// How many bytes of it are done.
    pub(crate) done: usize,
}

/// A part of an access.
#[derive(Debug)]
pub(crate) struct Part<'p> {
    pub(crate) operation: PendingOperation<'p>,
    pub(crate) peer: PeerId,
    pub(crate) address: RemoteAddress,
    /// Where it begins.
    pub(crate) at: Cursor,
    pub(crate) len: usize,
    /// What is sent where it travels as a call.
    pub(crate) call: Option<[u8; ATOMIC_CALL_BYTES]>,
}

/// Parts that have been posted, in their order.  One alone takes no memory of its own.
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

    /// Whether more may be posted beside `parts` others of `bytes` together.
    pub(crate) fn has_room_beside(&self, parts: usize, bytes: usize) -> bool {
        has_room(self.len() + parts, self.bytes + bytes)
    }

    /// A part has been posted.
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

    /// Waits for the end of the oldest part, which stays: dropping this gives it up as a posted one.
    pub(crate) async fn oldest_ended(&mut self) -> Option<Ended> {
        Some(self.oldest.as_mut()?.operation.ended().await)
    }

    /// The oldest part has landed.
    pub(crate) fn remove_oldest(&mut self) {
        self.bytes -= self.oldest.as_ref().map_or(0, |part| part.len);
        self.oldest = self.others.pop_front();
    }
}
