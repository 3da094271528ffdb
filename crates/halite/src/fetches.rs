//! Fetches: chunks that the engine has read from peers' memory into ours, a few slices at a time.

use std::collections::BTreeMap;

use halite_fabric::{
    Fabric, Key, Local, Operation, PeerId, PostCause, RemoteAddress, Status, WorkId, WorkRequest,
};
use halite_tier::effect::{CopyFailure, Token};

use crate::posted::SLICE_BYTES_MAX;

/// Slices of one chunk that are under way together; see `posted::pipeline`.
const SLICES_MAX: u32 = 8;

/// A chunk that is to be read.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) peer: PeerId,
    pub(crate) from: RemoteAddress,
    pub(crate) key: Key,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// All that are under way.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    chunks: BTreeMap<Token, Chunk>,
    slices: BTreeMap<WorkId, Token>,
    /// The number last given to a slice; 0 is that of messages.
    last: u64,
}

#[derive(Debug)]
struct Chunk {
    fetch: Fetch,
    posted: u64,
    under_way: u32,
    failed: Option<CopyFailure>,
}

impl Fetches {
    pub(crate) fn begin(&mut self, token: Token, fetch: Fetch) {
        let chunk = Chunk { fetch, posted: 0, under_way: 0, failed: None };
        self.chunks.insert(token, chunk);
    }

    /// A slice has ended; completions of others change nothing.
    pub(crate) fn complete(&mut self, id: WorkId, status: Status) {
        let Some(token) = self.slices.remove(&id) else { return };
        let chunk = self.chunks.get_mut(&token).expect("a chunk stays while slices of it are under way");
        chunk.under_way -= 1;
        chunk.failed = chunk.failed.or(match status {
            Status::Success => None,
            Status::Unmapped => Some(CopyFailure::Unmapped),
            _ => Some(CopyFailure::PeerGone),
        });
    }

    /// Posts what may be posted.  Returns the chunks that have ended, and why not all of them is there.
    pub(crate) fn go_on(&mut self, fabric: &dyn Fabric) -> Vec<(Token, Result<(), CopyFailure>)> {
        let Fetches { chunks, slices, last } = self;
        let mut ended = Vec::new();
        chunks.retain(|token, chunk| {
            while let Some(len) = chunk.next_len() {
                let id = WorkId(*last + 1);
                if !chunk.post(fabric, id, len) {
                    break;
                }
                *last = id.0;
                slices.insert(id, *token);
            }
            let goes_on = chunk.under_way > 0 || chunk.next_len().is_some();
            if !goes_on {
                ended.push((*token, chunk.failed.map_or(Ok(()), Err)));
            }
            goes_on
        });
        ended
    }
}

impl Chunk {
    fn next_len(&self) -> Option<u64> {
        let left = self.fetch.len - self.posted;
        let wanted = left > 0 && self.under_way < SLICES_MAX && self.failed.is_none();
        wanted.then_some(left.min(SLICE_BYTES_MAX as u64))
    }

    /// Whether the next slice is under way now.
    fn post(&mut self, fabric: &dyn Fabric, id: WorkId, len: u64) -> bool {
        let Fetch { peer, from, key, offset, .. } = self.fetch;
        let local = Local::Registered { key, offset: offset + self.posted, len };
        let remote = RemoteAddress { offset: from.offset + self.posted, ..from };
        let operation = Operation::Read { local, remote };
        let posted = fabric.post(peer, &[WorkRequest { id, operation, signalled: true, solicited: true }]);
        let cause = posted.err().map(|error| error.cause);
        match cause {
            None => {
                self.posted += len;
                self.under_way += 1;
            }
            // It is tried again when the machine settles, which room that is made sees to.
            Some(PostCause::QueueFull) => {}
            Some(_) => self.failed = Some(CopyFailure::PeerGone),
        }
        cause.is_none()
    }
}
