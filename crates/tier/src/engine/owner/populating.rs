//! Populating: taking the memory of new chunks of ours from the system before anybody uses them.
//!
//! The system counts a page as taken by the process that touches it first.  Here that is this node, whose memory it is, and not
//! the first writer to a region; and who is told of a region need not fear for its memory.  It is done
//! in pieces, so that others have their turn, and stops when nobody waits for it any more.

use std::collections::{BTreeMap, BTreeSet};

use super::OwnerSide;
use crate::effect::{Effect, Token};
use crate::ids::{NodeId, Requester};
use crate::layout::{Extent, Extents};
use crate::message::{ErrorReply, Reply};

/// Bytes of one piece: about 1 ms.
const PIECE_BYTES_MAX: u64 = 4 << 20;

/// All that is being populated.
#[derive(Debug, Default)]
pub(super) struct Populations {
    under_way: BTreeMap<Token, Populating>,
}

impl Populations {
    /// Whether the driver still touches memory there.
    pub(super) fn touches(&self, extent: &Extent) -> bool {
        let mut extents = self.under_way.values().flat_map(|populating| &populating.extents);
        extents.any(|other| other.touches(extent))
    }
}

/// Chunks of ours whose memory is being taken from the system.
#[derive(Debug)]
struct Populating {
    requester: Requester,
    extents: Extents,
    /// The extent under way, and how much of it is done.
    at: usize,
    done: u64,
}

impl Populating {
    /// The next piece; `None` when all is done.
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
    /// Populates chunks that have just been reserved, and answers when that is done.
    pub(super) fn start_populating(&mut self, requester: Requester, extents: Extents) {
        let token = Token(self.cx.next_number());
        self.populate_next(token, Populating { requester, extents, at: 0, done: 0 });
    }

    fn populate_next(&mut self, token: Token, mut populating: Populating) {
        let Some(Extent { key, offset, len, .. }) = populating.piece() else {
            return self.cx.answer(populating.requester, Ok(Reply::Reserved { extents: populating.extents }));
        };
        self.owner.populating.under_way.insert(token, populating);
        self.cx.push(Effect::Populate { token, key, offset, len });
    }

    /// A piece has been populated, or the system refused.
    pub(in crate::engine) fn handle_populated(&mut self, token: Token, len: u64, is_done: bool) {
        let Some(populating) = self.owner.populating.under_way.remove(&token) else { return };
        let requester = populating.requester;
        // Where the requester has died, its chunks are freed with all that was held for it.
        if self.cx.is_present(requester.incarnation) {
            match is_done {
                true => self.populate_next(token, populating),
                false => self.refuse_populated(populating, len),
            }
        }
        // Chunks may have been given up meanwhile, and have waited for the piece.
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
