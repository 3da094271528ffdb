//! Posts to peers, and records the work that the runner must settle.
//!
//! Posting never waits. The runner settles rare work: control messages, and posts that a full queue refused.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::{Arc, Mutex};

use halite_fabric::{Fabric, Local, Operation, PeerId, PostCause, RemoteAddress, WorkId, WorkRequest};
use halite_tier::rpc::{CallControl, Imm, Target, Violation};

use super::link::Link;
use super::memory::{Block, Pool};
use crate::posted::InFlight;
use crate::runtime::lanes::CALLS;
use crate::runtime::locks::{lock, ranked};

/// Id of the work requests whose completions this node ignores.
pub(crate) const CALL_WORK: WorkId = WorkId(0);

/// Maximum total length, in bytes, up to which the head and the rest of a request or reply are copied together and
/// posted as one write.
pub(crate) const PART_BYTES_MAX: usize = 512;

/// Length of a cache line, in bytes. Writes up to this length have a faster path.
pub(in crate::rpc) const LINE_BYTES: usize = 64;

ranked! {
    Vec<(PeerId, CallControl)> => Deferred;
}

pub(crate) struct Poster {
    pub(in crate::rpc) fabric: Arc<dyn Fabric>,
    pub(in crate::rpc) posted: Arc<InFlight>,
    pool: Arc<Pool>,
    controls: Mutex<Vec<(PeerId, CallControl)>>,
    /// True if there is work for the runner to settle.
    dirty: AtomicBool,
    /// True if an answer, a head, a notification or a handshake may be deferred.
    deferred: AtomicBool,
}

/// Distinguishes the first attempt to post from a retry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::rpc) enum Attempt {
    First,
    Retry,
}

/// Bytes to be posted, and the id of their work request.
pub(in crate::rpc) struct Source<'b> {
    pub(in crate::rpc) id: WorkId,
    pub(in crate::rpc) local: Local<'b>,
}

impl Poster {
    pub(in crate::rpc) fn new(fabric: Arc<dyn Fabric>, posted: Arc<InFlight>) -> Poster {
        Poster {
            fabric,
            posted,
            pool: Arc::default(),
            controls: Mutex::default(),
            dirty: AtomicBool::new(false),
            deferred: AtomicBool::new(false),
        }
    }

    /// Allocates registered memory. Returns `None` if the system has none.
    #[inline]
    pub(in crate::rpc) fn allocate(&self, len: u64) -> Option<Block> {
        self.pool.allocate(&*self.fabric, len)
    }

    pub(in crate::rpc) fn post(
        &self,
        peer: PeerId,
        id: WorkId,
        operation: Operation<'_>,
    ) -> Result<(), PostCause> {
        self.fabric.post(peer, CALLS, &[work_request(id, operation)]).map_err(|error| error.cause)
    }

    /// Writes `head`, then `rest`, to `at`; as one write if both together are short.
    pub(crate) fn post_parts(
        &self,
        link: &Link,
        at: RemoteAddress,
        head: [&[u8]; 2],
        rest: &[u8],
        imm: u32,
    ) -> Result<(), PostCause> {
        let Target::Peer(peer) = link.target else { unreachable!("this node itself needs no fabric") };
        let len = head[0].len() + head[1].len() + rest.len();
        if len <= LINE_BYTES && len <= link.inline_bytes_max {
            return self.post_whole(peer, at, [0; LINE_BYTES], [head[0], head[1], rest], imm);
        }
        if len <= PART_BYTES_MAX && len <= link.inline_bytes_max {
            return self.post_whole(peer, at, [0; PART_BYTES_MAX], [head[0], head[1], rest], imm);
        }
        self.post_separately(link, peer, at, &head.concat(), rest, imm)
    }

    /// Posts `rest` first, then `head` with the immediate, as two writes.
    fn post_separately(
        &self,
        link: &Link,
        peer: PeerId,
        at: RemoteAddress,
        head: &[u8],
        rest: &[u8],
        imm: u32,
    ) -> Result<(), PostCause> {
        let payload = self.source(link, peer, rest)?;
        let header = self.source(link, peer, head).inspect_err(|_| self.give_back(&payload))?;
        let to_rest = Operation::Write { local: payload.local, remote: offset_by(at, head.len() as u64) };
        let to_head = Operation::WriteImm { local: header.local, remote: at, imm };
        let requests = [work_request(payload.id, to_rest), work_request(header.id, to_head)];
        // An empty `rest` needs no write.
        let first = usize::from(rest.is_empty());
        self.fabric.post(peer, CALLS, &requests[first..]).map_err(|error| {
            [payload, header][first + error.posted..].iter().for_each(|source| self.give_back(source));
            error.cause
        })
    }

    /// Copies `parts` together into `whole`, and posts them as one write. The size `N` is close to their length,
    /// because clearing more bytes takes time.
    #[inline]
    fn post_whole<const N: usize>(
        &self,
        peer: PeerId,
        at: RemoteAddress,
        mut whole: [u8; N],
        parts: [&[u8]; 3],
        imm: u32,
    ) -> Result<(), PostCause> {
        let mut len = 0;
        for part in parts {
            whole[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        }
        let operation = Operation::WriteImm { local: Local::Inline(&whole[..len]), remote: at, imm };
        self.post(peer, CALL_WORK, operation)
    }

    /// Posts a line to a row that stores do not reach.
    pub(in crate::rpc) fn post_to_row(
        &self,
        link: &Link,
        at: RemoteAddress,
        index: u32,
        words: &[u64],
        imm: Imm,
    ) -> Result<(), PostCause> {
        let Some(peer) = link.peer() else { unreachable!("this node itself needs no lines") };
        let mut bytes = [0; LINE_BYTES];
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        let local = Local::Inline(&bytes[..size_of_val(words)]);
        let remote = offset_by(at, u64::from(index) * LINE_BYTES as u64);
        let operation = Operation::WriteImm { local, remote, imm: imm.emit() };
        self.post(peer, CALL_WORK, operation)
    }

    /// Prepares `bytes` for posting: inline, or, if they are too long, in registered memory that is kept until the
    /// completion.
    pub(in crate::rpc) fn source<'b>(
        &self,
        link: &Link,
        peer: PeerId,
        bytes: &'b [u8],
    ) -> Result<Source<'b>, PostCause> {
        if bytes.len() <= link.inline_bytes_max {
            return Ok(Source { id: CALL_WORK, local: Local::Inline(bytes) });
        }
        // Without memory, the post is retried as one that finds the queue full.
        let block = self.allocate(bytes.len() as u64).ok_or(PostCause::QueueFull)?;
        block.window().write(0, bytes).expect("the block is as long");
        let local = block.local();
        Ok(Source { id: self.posted.keep(peer, Box::new(block)), local })
    }

    /// Releases the memory of a source that the fabric did not take.
    pub(in crate::rpc) fn give_back(&self, source: &Source<'_>) {
        if source.id != CALL_WORK {
            self.posted.release(source.id);
        }
    }

    /// Disconnects a peer if `handled` says that the peer violates the protocol.
    pub(in crate::rpc) fn enforce(&self, peer: PeerId, handled: Result<(), Violation>) {
        if handled.is_err() {
            self.fabric.disconnect(peer);
        }
    }

    // Work for the runner to settle.

    pub(in crate::rpc) fn send_control(&self, peer: PeerId, control: CallControl) {
        lock(&self.controls).push((peer, control));
        self.set_dirty();
    }

    /// Takes the control messages that the runner must send.
    pub(crate) fn take_controls(&self) -> Vec<(PeerId, CallControl)> {
        std::mem::take(&mut *lock(&self.controls))
    }

    pub(in crate::rpc) fn set_dirty(&self) {
        // Pairs with the AcqRel in take_dirty().
        self.dirty.store(true, Release);
    }

    #[inline]
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Relaxed)
    }

    /// Returns true if there is work for the runner to settle, and clears the flag.
    pub(crate) fn take_dirty(&self) -> bool {
        // Pairs with the Release in set_dirty(), so that the work is visible.
        self.is_dirty() && self.dirty.swap(false, AcqRel)
    }

    /// Makes the runner retry a refused post whenever it settles, and at least once per interval.
    pub(in crate::rpc) fn set_deferred(&self, attempt: Attempt) {
        self.deferred.store(true, Relaxed);
        match attempt {
            // The fabric may have reported room already, so the runner retries once.
            Attempt::First => self.set_dirty(),
            // The thread that handles the report waits for the runner's lock, which this one holds.
            Attempt::Retry => {}
        }
    }

    /// Clears the flag of deferred posts; posts that are deferred later set it again.
    pub(in crate::rpc) fn clear_deferred(&self) {
        self.deferred.store(false, Relaxed);
    }

    /// Returns true if a deferred post may exist.
    pub(crate) fn has_deferred(&self) -> bool {
        // A hint: a thread that sets it also makes the runner settle, which checks again.
        self.deferred.load(Relaxed)
    }
}

/// Makes a work request whose completion is reported only if this node needs it.
#[inline]
pub(in crate::rpc) fn work_request(id: WorkId, operation: Operation<'_>) -> WorkRequest<'_> {
    WorkRequest { id, operation, signalled: id != CALL_WORK, solicited: true }
}

#[inline]
pub(crate) fn offset_by(at: RemoteAddress, bytes: u64) -> RemoteAddress {
    RemoteAddress { offset: at.offset + bytes, ..at }
}
