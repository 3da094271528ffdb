//! Populating: allocates the pages of new local chunks before their first use.
//!
//! The operating system charges a page to the process that accesses it first. That process should be this node, which
//! owns the memory, rather than the first writer. And once a region is allocated, accesses to the region must not fail
//! for lack of memory. Populating proceeds in pieces, between which other work runs, and stops when the requester is
//! lost.

use std::collections::{BTreeMap, BTreeSet};

use super::OwnerSide;
use crate::effect::{Effect, Token};
use crate::ids::{NodeId, Requester};
use crate::layout::{Extent, Extents};
use crate::message::{ErrorReply, Reply};

/// Maximum bytes of one piece, which takes about 1 ms.
const PIECE_BYTES_MAX: u64 = 4 << 20;

/// All populations in progress.
#[derive(Debug, Default)]
pub(super) struct Populations {
    in_progress: BTreeMap<Token, Populating>,
}

impl Populations {
    /// Returns true if the driver is still populating part of `extent`.
    pub(super) fn touches(&self, extent: &Extent) -> bool {
        let mut extents = self.in_progress.values().flat_map(|populating| &populating.extents);
        extents.any(|other| other.touches(extent))
    }
}

/// Local chunks that are being populated.
#[derive(Debug)]
struct Populating {
    requester: Requester,
    extents: Extents,
    /// Index of the current extent.
    at: usize,
    /// Number of the current extent's bytes that are done.
    done: u64,
}

impl Populating {
    /// Returns the next piece, or `None` if all is done.
    fn piece(&mut self) -> Option<Extent> {
        let extent = *self.extents.get(self.at)?;
        let len = (extent.len - self.done).min(PIECE_BYTES_MAX);
        let piece = Extent { offset: extent.offset + self.done, len, ..extent };
        self.done += len;
        if self.done == extent.len {
            (self.at, self.done) = (self.at + 1, 0);
        }
        Some(piece)
    }

    fn refusal(&self, node: NodeId, piece_len: u64) -> ErrorReply {
        let len = |extents: &[Extent]| extents.iter().map(|extent| extent.len).sum::<u64>();
        let asked = len(&self.extents[..self.at]) + self.done;
        ErrorReply::OutOfMemory { node, wanted: len(&self.extents), given: asked - piece_len }
    }
}

impl OwnerSide<'_> {
    /// Populates newly reserved chunks, then replies.
    pub(super) fn start_populating(&mut self, requester: Requester, extents: Extents) {
        let token = Token(self.cx.next_number());
        self.populate_next(token, Populating { requester, extents, at: 0, done: 0 });
    }

    fn populate_next(&mut self, token: Token, mut populating: Populating) {
        let Some(Extent { key, offset, len, .. }) = populating.piece() else {
            return self.cx.answer(populating.requester, Ok(Reply::Reserved { extents: populating.extents }));
        };
        self.owner.populating.in_progress.insert(token, populating);
        self.cx.push(Effect::Populate { token, key, offset, len });
    }

    /// Handles a populated piece of `len` bytes; `is_done` is false if the operating system refused.
    pub(in crate::engine) fn handle_populated(&mut self, token: Token, len: u64, is_done: bool) {
        let Some(populating) = self.owner.populating.in_progress.remove(&token) else { return };
        let requester = populating.requester;
        // The chunks of a lost requester are freed with everything held for it.
        if self.cx.is_present(requester.incarnation) {
            match is_done {
                true => self.populate_next(token, populating),
                false => self.refuse_populated(populating, len),
            }
        }
        // Chunks released in the meantime may have waited for the piece.
        self.release_copied();
    }

    fn refuse_populated(&mut self, populating: Populating, piece_len: u64) {
        let refusal = populating.refusal(self.cx.incarnation().node, piece_len);
        let Populating { requester, extents, .. } = populating;
        match requester.incarnation == self.cx.incarnation() {
            true => self.release(extents, BTreeSet::new()),
            false => self.handle_return(requester.incarnation, extents),
        }
        self.cx.answer(requester, Err(refusal));
    }
}
