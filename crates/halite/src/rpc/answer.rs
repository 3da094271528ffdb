//! Answers: from a handler, or from the node itself, into the slot that the caller named.

use std::iter::once;
use std::sync::Arc;

use halite_fabric::{Local, Operation, PeerId, PostCause, RemoteAddress, WorkId, WorkRequest};
use halite_tier::rpc::wire::{REPLY_HEADER_BYTES, emit_output_address};
use halite_tier::rpc::{Arrival, CallControl, Imm, ReplyHeader, ServedId, SlotId, Status, Target};

use super::link::{Caller, Link};
use super::{Attempt, CALL_WORK, PART_BYTES_MAX, Rpc};
use crate::runtime::lanes::CALLS;
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

/// Where an answer goes.
#[derive(Clone, Debug)]
pub(crate) struct ReplyTo {
    pub(crate) caller: Arc<Caller>,
    /// [`Link::cancels`] when the request arrived.
    pub(crate) cancels: u32,
    pub(crate) id: ServedId,
    /// The place of the slot, and how many bytes it has.
    pub(crate) at: RemoteAddress,
    pub(crate) room: u32,
    /// Longest output that the caller takes.
    pub(crate) bytes_max: u32,
    /// Whether the answer ends with a line.
    pub(crate) by_line: bool,
}

impl ReplyTo {
    #[inline]
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.caller.link
    }

    #[inline]
    pub(crate) fn target(&self) -> Target {
        self.link().target
    }

    /// Whether somebody still waits for it.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        let untouched = || self.link().cancels() == self.cancels;
        !self.link().is_gone() && (untouched() || self.link().served.is_open(self.id))
    }
}

/// An answer that the fabric did not take yet.  Its call stays busy, so that a cancel waits for it.
#[derive(Debug)]
pub(crate) struct DeferredReply {
    to: ReplyTo,
    status: Status,
    output: Vec<u8>,
}

/// What became of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answered {
    /// It is on its way.
    Sent,
    /// The caller has gone, or has lost interest.
    Unwanted,
    /// It is longer than what the caller takes, who is told so.
    TooLong,
    /// There is no memory to keep it in for the caller, who is told so.
    NoMemory,
}

/// What fits into a cache line with its header and address, on the fabrics that have such.
pub(super) const LINE_BYTES: usize = 64;
/// Longer outputs than this are not written where only an adapter reaches: the caller reads them, slice by slice, and what is small has
/// its turn between the slices.
const WRITTEN_BYTES_MAX: usize = 64 << 10;

/// Bytes to be posted, and the number of that.
pub(super) struct Source<'b> {
    pub(super) id: WorkId,
    pub(super) local: Local<'b>,
}

impl Rpc {
    /// Answers with a status and nothing else.
    pub(crate) fn refuse(&self, to: &ReplyTo, status: Status, wakes: &mut Wakes) {
        self.send_answer(to, status, &[], wakes);
    }

    /// Answers with the output of a handler.
    #[inline]
    pub(crate) fn answer(&self, to: &ReplyTo, output: &[u8], wakes: &mut Wakes) -> Answered {
        if output.len() > to.bytes_max as usize {
            let len = output.len().min(u32::MAX as usize) as u32;
            self.send_answer(to, Status::TooLong(len), &[], wakes);
            return Answered::TooLong;
        }
        if output.len() + REPLY_HEADER_BYTES > to.room as usize || self.is_better_read(to, output) {
            return self.answer_from_here(to, output, wakes);
        }
        self.send_answer(to, Status::Done(output.len() as u32), output, wakes)
    }

    /// Whether it would hold up all that is said to the caller's node, heartbeats included.
    fn is_better_read(&self, to: &ReplyTo, output: &[u8]) -> bool {
        let is_posted = || match to.target() {
            Target::Own => false,
            Target::Peer(peer) => !self.fabric.capabilities(peer).direct,
        };
        output.len() > WRITTEN_BYTES_MAX && is_posted()
    }

    /// The output stays here until the caller's node has read it.
    fn answer_from_here(&self, to: &ReplyTo, output: &[u8], wakes: &mut Wakes) -> Answered {
        if to.target() == Target::Own {
            return self.answer_in_own_block(to, output, wakes);
        }
        let Some(block) = self.pool.allocate(&*self.fabric, output.len() as u64) else {
            self.refuse(to, Status::NoMemory, wakes);
            return Answered::NoMemory;
        };
        block.window().write(0, output).expect("the block is as long");
        let address = emit_output_address(block.address());
        {
            let mut inbound = lock(&to.link().inbound);
            if !to.link().served.is_open(to.id) {
                return Answered::Unwanted;
            }
            inbound.kept.insert(to.id.slot, block);
        }
        let answered = self.send_answer(to, Status::DoneAt(output.len() as u32), &address, wakes);
        if answered == Answered::Unwanted {
            lock(&to.link().inbound).kept.remove(&to.id.slot);
        }
        answered
    }

    /// A call of this node itself gets its memory now.
    fn answer_in_own_block(&self, to: &ReplyTo, output: &[u8], wakes: &mut Wakes) -> Answered {
        let Some(block) = self.pool.allocate(&*self.fabric, (output.len() + REPLY_HEADER_BYTES) as u64)
        else {
            self.refuse(to, Status::NoMemory, wakes);
            return Answered::NoMemory;
        };
        if !self.give_slot_memory(to.id.slot, block) {
            return Answered::Unwanted;
        }
        self.send_answer(to, Status::Done(output.len() as u32), output, wakes)
    }

    #[inline]
    pub(super) fn send_answer(
        &self,
        to: &ReplyTo,
        status: Status,
        output: &[u8],
        wakes: &mut Wakes,
    ) -> Answered {
        if to.by_line {
            return self.send_line_answer(to, status, output);
        }
        if to.link().is_gone() || !to.link().served.begin(to.id) {
            return Answered::Unwanted;
        }
        if to.target() == Target::Own {
            return self.send_own_answer(to, status, output, wakes);
        }
        let posted = self.write_answer(to, status, output);
        if posted == Err(PostCause::QueueFull) {
            self.hold_back(to, status, output);
            return Answered::Sent;
        }
        self.end_answers(to.link(), once(to));
        if posted == Err(PostCause::NotConnected) { Answered::Unwanted } else { Answered::Sent }
    }

    /// A call of this node itself sees its answer and its end in one step: neither comes before the other.
    fn send_own_answer(&self, to: &ReplyTo, status: Status, output: &[u8], wakes: &mut Wakes) -> Answered {
        self.write_own_slot(to.id.slot, &ReplyHeader { status }.emit(), output);
        let arrival = {
            let _inbound = lock(&to.link().inbound);
            let arrival = self.arrive(Target::Own, to.id.slot);
            // If the call was cancelled meanwhile, a late answer is all the acknowledgement that it needs.
            to.link().served.end(to.id, true);
            arrival
        };
        // The node ended before, and with it all waiting.
        let Ok(arrival) = arrival else { return Answered::Unwanted };
        let answered =
            if matches!(arrival, Arrival::Expected(_)) { Answered::Sent } else { Answered::Unwanted };
        self.handle_arrival(Target::Own, to.id.slot, arrival, wakes);
        answered
    }

    /// They have been posted, or are for a peer that is gone.
    #[inline]
    pub(super) fn end_answers<'r>(&self, link: &Link, ended: impl Iterator<Item = &'r ReplyTo>) {
        let cancelled = ended.filter(|to| link.served.end(to.id, true));
        cancelled.for_each(|to| self.acknowledge(link, to.id.slot));
    }

    /// The caller is told that nothing will be written to its slot any more.
    pub(crate) fn acknowledge(&self, link: &Link, slot: SlotId) {
        match link.target {
            Target::Own => {
                let held = lock(&self.slots).handle_cancelled(Target::Own, slot);
                drop(held);
            }
            Target::Peer(peer) => {
                self.send_control(
                    peer,
                    CallControl::Cancelled { index: slot.index, generation: slot.generation },
                );
            }
        }
    }

    fn write_answer(&self, to: &ReplyTo, status: Status, output: &[u8]) -> Result<(), PostCause> {
        if to.by_line {
            return self.retry_line_answer(to, status, output);
        }
        let header = ReplyHeader { status }.emit();
        self.post_parts(to.link(), to.at, [&header, &[]], output, Imm::Reply(to.id.slot).emit())
    }

    /// Posts `head`, and `rest` behind it, to `at`: in one piece where that is short enough to be put together.
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
        self.post_apart(link, peer, at, &head.concat(), rest, imm)
    }

    /// Posts `rest` first, and then `head`, with the immediate.
    fn post_apart(
        &self,
        link: &Link,
        peer: PeerId,
        at: RemoteAddress,
        head: &[u8],
        rest: &[u8],
        imm: u32,
    ) -> Result<(), PostCause> {
        let payload = self.source(link, peer, rest)?;
        let notice = self.source(link, peer, head).inspect_err(|_| self.give_back(&payload))?;
        let request = |source: &Source<'_>, operation| WorkRequest {
            id: source.id,
            operation,
            signalled: source.id != CALL_WORK,
            solicited: true,
        };
        let to_rest = Operation::Write { local: payload.local, remote: beyond(at, head.len() as u64) };
        let to_head = Operation::WriteImm { local: notice.local, remote: at, imm };
        let requests = [request(&payload, to_rest), request(&notice, to_head)];
        // A write of nothing is none.
        let first = usize::from(rest.is_empty());
        self.fabric.post(peer, CALLS, &requests[first..]).map_err(|error| {
            [payload, notice][first + error.posted..].iter().for_each(|source| self.give_back(source));
            error.cause
        })
    }

    /// Posts all in one piece, put together in `whole`, whose size is that of most: to clear more takes time.
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
        self.post(peer, &[WorkRequest { id: CALL_WORK, operation, signalled: false, solicited: true }])
    }

    /// `bytes` to be posted: inline, or where they are too long for that, in registered memory that is kept meanwhile.
    pub(super) fn source<'b>(
        &self,
        link: &Link,
        peer: PeerId,
        bytes: &'b [u8],
    ) -> Result<Source<'b>, PostCause> {
        if bytes.len() <= link.inline_bytes_max {
            return Ok(Source { id: CALL_WORK, local: Local::Inline(bytes) });
        }
        let Some(block) = self.pool.allocate(&*self.fabric, bytes.len() as u64) else {
            self.set_short();
            return Err(PostCause::QueueFull);
        };
        block.window().write(0, bytes).expect("the block is as long");
        let local = block.local();
        Ok(Source { id: self.posted.keep(peer, Box::new(block)), local })
    }

    /// It was not posted.
    pub(super) fn give_back(&self, source: &Source<'_>) {
        if source.id != CALL_WORK {
            self.posted.release(source.id);
        }
    }

    pub(crate) fn post(&self, peer: PeerId, requests: &[WorkRequest<'_>]) -> Result<(), PostCause> {
        self.fabric.post(peer, CALLS, requests).map_err(|error| error.cause)
    }

    /// Keeps an answer that the fabric did not take until it does.
    pub(super) fn hold_back(&self, to: &ReplyTo, status: Status, output: &[u8]) {
        self.owe(DeferredReply { to: to.clone(), status, output: output.to_vec() }, Attempt::First);
    }

    fn owe(&self, deferred: DeferredReply, attempt: Attempt) {
        lock(&self.deferred).push(deferred);
        self.set_stuck(attempt);
    }

    /// Tries again to post the answers that the fabric did not take.
    pub(super) fn retry_deferred(&self) {
        // Taken before the loop, whose head would hold the lock while it runs.
        let all = std::mem::take(&mut *lock(&self.deferred));
        for deferred in all {
            match self.write_answer(&deferred.to, deferred.status, &deferred.output) {
                Err(PostCause::QueueFull) => self.owe(deferred, Attempt::Again),
                _ => self.end_answers(deferred.to.link(), once(&deferred.to)),
            }
        }
    }
}

#[inline]
pub(crate) fn beyond(at: RemoteAddress, bytes: u64) -> RemoteAddress {
    RemoteAddress { offset: at.offset + bytes, ..at }
}
