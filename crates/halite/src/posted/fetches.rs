//! Fetches: reads of chunks from peers' memory into this node's arena, on behalf of the engine.
//!
//! A chunk is read in slices, with a limited window of them in progress, like an access. The slices land directly in
//! the chunk's memory in the arena, and need no staging memory.

use std::collections::BTreeMap;

use halite_fabric::{
    Fabric, Key, Local, Operation, PeerId, PostCause, RemoteAddress, Status, WorkId, WorkRequest,
};
use halite_tier::effect::{CopyFailure, Token};

use super::pipeline::{bytes_max, has_room, refill_threshold};
use crate::runtime::lanes::TRANSFERS;

/// Length of a slice in bytes: shorter than the slices of accesses, so that other operations on the same peer do not
/// wait long behind a move.
const SLICE_BYTES: usize = 32 << 10;

/// A chunk to be read from a peer.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) peer: PeerId,
    pub(crate) from: RemoteAddress,
    pub(crate) key: Key,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Fetches {
    chunks: BTreeMap<Token, Chunk>,
    slices: BTreeMap<WorkId, Token>,
    /// Number of the last slice; 0 is the number of messages.
    last: u64,
}

#[derive(Debug)]
struct Chunk {
    fetch: Fetch,
    /// Number of bytes that have been posted.
    posted: u64,
    /// Number of slices in progress.
    slices: usize,
    /// Number of slices in progress at or below which more slices are posted.
    refill_at: usize,
    failed: Option<CopyFailure>,
}

impl Fetches {
    pub(crate) fn begin(&mut self, token: Token, fetch: Fetch) {
        let chunk = Chunk { fetch, posted: 0, slices: 0, refill_at: 0, failed: None };
        self.chunks.insert(token, chunk);
    }

    /// Handles the completion of a slice; ignores completions of other operations.
    pub(crate) fn complete(&mut self, id: WorkId, status: Status) {
        let Some(token) = self.slices.remove(&id) else { return };
        let chunk = self.chunks.get_mut(&token).expect("a chunk stays while slices of it are under way");
        chunk.slices -= 1;
        chunk.failed = chunk.failed.or(match status {
            Status::Success => None,
            Status::Unmapped => Some(CopyFailure::Unmapped),
            _ => Some(CopyFailure::PeerGone),
        });
    }

    /// Posts as many slices of all chunks as the windows allow. Returns the chunks that have ended, with their results.
    pub(crate) fn advance(&mut self, fabric: &dyn Fabric) -> Vec<(Token, Result<(), CopyFailure>)> {
        let Fetches { chunks, slices, last } = self;
        let mut ended = Vec::new();
        chunks.retain(|token, chunk| {
            let first = *last + 1;
            *last += chunk.post(fabric, first) as u64;
            slices.extend((first..=*last).map(|id| (WorkId(id), *token)));
            let continues = chunk.slices > 0 || chunk.wants_more();
            if !continues {
                ended.push((*token, chunk.failed.map_or(Ok(()), Err)));
            }
            continues
        });
        ended
    }
}

impl Chunk {
    fn wants_more(&self) -> bool {
        self.posted < self.fetch.len && self.failed.is_none()
    }

    /// Posts slices until the window is full, if at least a quarter of the previous ones have landed. The slices get
    /// numbers from `first` on. Returns how many slices were posted.
    fn post(&mut self, fabric: &dyn Fabric, first: u64) -> usize {
        if !self.wants_more() || self.slices > self.refill_at {
            return 0;
        }
        let Fetch { peer, from, key, offset, len } = self.fetch;
        let slice = SLICE_BYTES as u64;
        let bytes_max = bytes_max(fabric.round_trip(peer));
        let starts = (self.posted..len).step_by(SLICE_BYTES).enumerate();
        let fits = starts.take_while(|(count, _)| {
            let slices = self.slices + count;
            has_room(slices, slices * SLICE_BYTES, bytes_max)
        });
        let request = |(count, start): (usize, u64)| {
            let len = slice.min(len - start);
            let local = Local::Registered { key, offset: offset + start, len };
            let remote = RemoteAddress { offset: from.offset + start, ..from };
            let id = WorkId(first + count as u64);
            WorkRequest { id, operation: Operation::Read { local, remote }, signalled: true, solicited: true }
        };
        let requests: Vec<WorkRequest<'_>> = fits.map(request).collect();
        let count = match fabric.post(peer, TRANSFERS, &requests) {
            Ok(()) => requests.len(),
            Err(error) => {
                // A full queue: retried when the runner settles, which it does once there is room.
                if error.cause != PostCause::QueueFull {
                    self.failed = Some(CopyFailure::PeerGone);
                }
                error.posted
            }
        };
        self.posted = len.min(self.posted + count as u64 * slice);
        self.slices += count;
        self.refill_at = refill_threshold(self.slices);
        count
    }
}
