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

    /// Writes `head`, and `rest` behind it, to `at`, and notifies the peer with `imm` after both.
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
        let parts = [head[0], head[1], rest];
        if len <= LINE_BYTES && len <= link.inline_bytes_max {
            return self.post_whole(peer, at, [0; LINE_BYTES], parts, imm);
        }
        if len <= PART_BYTES_MAX && len <= link.inline_bytes_max {
            return self.post_whole(peer, at, [0; PART_BYTES_MAX], parts, imm);
        }
        if link.copies_at_post() {
            return self.post_separately(peer, at, &head.concat(), rest, imm);
        }
        self.post_joined(link, peer, &parts, |local| Operation::WriteImm { local, remote: at, imm })
    }

    /// Posts an operation on the joined `parts`: inline, or, if they are too long, from registered memory that is kept until
    /// the completion.
    pub(in crate::rpc) fn post_joined(
        &self,
        link: &Link,
        peer: PeerId,
        parts: &[&[u8]],
        operation: impl for<'b> FnOnce(Local<'b>) -> Operation<'b>,
    ) -> Result<(), PostCause> {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        if len <= link.inline_bytes_max {
            return self.post(peer, CALL_WORK, operation(Local::Inline(&parts.concat())));
        }
        // Without memory, the post is retried as one that finds the queue full.
        let block = self.allocate(len as u64).ok_or(PostCause::QueueFull)?;
        let mut begin = 0;
        for part in parts {
            block.window().write(begin, part).expect("the block is as long as the parts");
            begin += part.len() as u64;
        }
        let operation = operation(block.local());
        let id = self.posted.keep(peer, Box::new(block));
        self.post(peer, id, operation).inspect_err(|_| self.posted.release(id))
    }

    /// Posts `rest` first, then `head` with the immediate, as two writes, which need no copy that joins them.
    fn post_separately(
        &self,
        peer: PeerId,
        at: RemoteAddress,
        head: &[u8],
        rest: &[u8],
        imm: u32,
    ) -> Result<(), PostCause> {
        let remote = offset_by(at, head.len() as u64);
        let to_rest = Operation::Write { local: Local::Inline(rest), remote };
        let to_head = Operation::WriteImm { local: Local::Inline(head), remote: at, imm };
        let requests = [to_rest, to_head].map(|operation| work_request(CALL_WORK, operation));
        // An empty `rest` needs no write.
        let first = usize::from(rest.is_empty());
        self.fabric.post(peer, CALLS, &requests[first..]).map_err(|error| error.cause)
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
