//! The parts of one access that are under way together.

use std::collections::VecDeque;

use halite_fabric::{PeerId, RemoteAddress};

use super::carry::Cursor;
use super::{Ended, Operation};

/// Most parts that one access has under way.
pub(super) const PARTS_MAX: usize = 64;

/// Bytes under way up to which more are posted: a wire of 100 Gbit/s carries them in 63 us, in which a copy of a slice, or a
/// thread that is woken late, leaves it idle for no time.  Small requests of others to the same peer wait as long at most.
pub(super) const BYTES_MAX: usize = 768 << 10;

/// A part of an access.
#[derive(Debug)]
pub(super) struct Part<'p> {
    pub(super) operation: Operation<'p>,
    pub(super) peer: PeerId,
    pub(super) address: RemoteAddress,
    /// Where it begins.
    pub(super) at: Cursor,
    pub(super) len: usize,
}

/// Parts that have been posted, in their order.  One alone takes no memory of its own.
#[derive(Debug, Default)]
pub(super) struct Pipeline<'p> {
    oldest: Option<Part<'p>>,
    others: VecDeque<Part<'p>>,
    bytes: usize,
}

impl<'p> Pipeline<'p> {
    pub(super) fn is_empty(&self) -> bool {
        self.oldest.is_none()
    }

    fn len(&self) -> usize {
        usize::from(self.oldest.is_some()) + self.others.len()
    }

    /// Whether more may be posted beside `parts` others of `bytes` together.
    pub(super) fn has_room_beside(&self, parts: usize, bytes: usize) -> bool {
        self.len() + parts < PARTS_MAX && self.bytes + bytes < BYTES_MAX
    }

    pub(super) fn push(&mut self, mut part: Part<'p>) {
        part.operation.set_posted();
        self.bytes += part.len;
        match self.oldest {
            None => self.oldest = Some(part),
            Some(_) => self.others.push_back(part),
        }
    }

    /// Waits for the end of the oldest part.
    pub(super) async fn pop(&mut self) -> Option<(Part<'p>, Ended)> {
        // It stays here while that is waited for, so that dropping this gives it up as a posted one.
        let ended = self.oldest.as_mut()?.operation.ended().await;
        let next = self.others.pop_front();
        let part = std::mem::replace(&mut self.oldest, next)?;
        self.bytes -= part.len;
        Some((part, ended))
    }
}
