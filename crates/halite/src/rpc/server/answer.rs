//! Answers, which a handler or the node itself writes to the caller's slot.

use std::iter::once;
use std::sync::Arc;

use halite_fabric::{PostCause, RemoteAddress};
use halite_tier::rpc::wire::{REPLY_HEADER_BYTES, emit_output_address};
use halite_tier::rpc::{CallControl, Imm, ReplyHeader, ServedId, SlotId, Status, Target};

use crate::rpc::Rpc;
use crate::rpc::shared::{Attempt, Caller, Link};
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

/// The caller to answer, and its slot.
#[derive(Clone, Debug)]
pub(crate) struct ReplyTo {
    pub(crate) caller: Arc<Caller>,
    /// Value of [`Link::cancels`] when the request arrived.
    pub(crate) cancels: u32,
    pub(crate) id: ServedId,
    /// Address of the slot.
    pub(crate) at: RemoteAddress,
    /// Length of the slot in bytes.
    pub(crate) room: u32,
    /// Longest output that the caller accepts, in bytes.
    pub(crate) bytes_max: u32,
    /// True if the answer goes to, or ends with, a reply line.
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

    /// Returns true if the caller still waits for the answer.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        let untouched = || self.link().cancels() == self.cancels;
        !self.link().is_gone() && (untouched() || self.link().served.is_open(self.id))
    }
}

/// An answer that the fabric has not taken yet. Its call stays busy, so that a cancel waits for the answer.
#[derive(Debug)]
pub(crate) struct DeferredReply {
    to: ReplyTo,
    status: Status,
    output: Vec<u8>,
}

/// Result of answering a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answered {
    /// The answer was posted, or deferred until the fabric takes it.
    Sent,
    /// The caller is gone, or has cancelled the call.
    Unwanted,
    /// The output is longer than the caller accepts; the caller gets an error.
    TooLong,
    /// There is no memory to keep the output for the caller; the caller gets an error.
    NoMemory,
    /// This process is a fork of the node's process.
    Forked,
}

/// Longest output, in bytes, that the server writes to a caller that stores do not reach. The caller reads a longer
/// output in slices, and small messages pass between the slices.
const WRITTEN_BYTES_MAX: usize = 64 << 10;

impl Rpc {
    /// Answers a request with a status and no output.
    pub(crate) fn refuse(&self, to: &ReplyTo, status: Status, wakes: &mut Wakes) {
        self.send_answer(to, status, &[], wakes);
    }

    /// Answers a request with the output of a handler.
    #[inline]
    pub(crate) fn answer(&self, to: &ReplyTo, output: &[u8], wakes: &mut Wakes) -> Answered {
        if output.len() > to.bytes_max as usize {
            let len = output.len().min(u32::MAX as usize) as u32;
            self.send_answer(to, Status::TooLong(len), &[], wakes);
            return Answered::TooLong;
        }
        if output.len() + REPLY_HEADER_BYTES > to.room as usize || self.must_be_fetched(to, output) {
            return self.answer_by_reference(to, output, wakes);
        }
        self.send_answer(to, Status::Done(output.len() as u32), output, wakes)
    }

    /// Returns true if writing the output would delay everything else that goes to the caller's node, including
    /// heartbeats.
    fn must_be_fetched(&self, to: &ReplyTo, output: &[u8]) -> bool {
        let is_posted = || match to.target() {
            Target::Own => false,
            Target::Peer(peer) => !self.poster.fabric.capabilities(peer).direct,
        };
        output.len() > WRITTEN_BYTES_MAX && is_posted()
    }

    /// Tells the caller where the output is, and keeps the output until the caller's node has read it.
    fn answer_by_reference(&self, to: &ReplyTo, output: &[u8], wakes: &mut Wakes) -> Answered {
        if to.target() == Target::Own {
            return self.answer_in_own_block(to, output, wakes);
        }
        let Some(block) = self.poster.allocate(output.len() as u64) else {
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

    #[inline]
    pub(in crate::rpc) fn send_answer(
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
            self.defer_answer(to, status, output);
            return Answered::Sent;
        }
        self.end_answers(to.link(), once(to));
        if posted == Err(PostCause::NotConnected) { Answered::Unwanted } else { Answered::Sent }
    }

    fn write_answer(&self, to: &ReplyTo, status: Status, output: &[u8]) -> Result<(), PostCause> {
        if to.by_line {
            return self.retry_line_answer(to, status, output);
        }
        let header = ReplyHeader { status }.emit();
        self.poster.post_parts(to.link(), to.at, [&header, &[]], output, Imm::Reply(to.id.slot).emit())
    }

    /// Ends the calls whose answers have been posted, or whose peer is gone.
    #[inline]
    pub(super) fn end_answers<'r>(&self, link: &Link, ended: impl Iterator<Item = &'r ReplyTo>) {
        let cancelled = ended.filter(|to| link.served.end(to.id, true));
        cancelled.for_each(|to| self.acknowledge(link, to.id.slot));
    }

    /// Promises the caller that this node writes nothing more to the caller's slot.
    pub(crate) fn acknowledge(&self, link: &Link, slot: SlotId) {
        match link.target {
            Target::Own => {
                self.client.handle_cancelled(Target::Own, slot);
            }
            Target::Peer(peer) => {
                self.poster.send_control(
                    peer,
                    CallControl::Cancelled { index: slot.index, generation: slot.generation },
                );
            }
        }
    }

    /// Keeps an answer until the fabric takes it.
    pub(super) fn defer_answer(&self, to: &ReplyTo, status: Status, output: &[u8]) {
        self.defer(DeferredReply { to: to.clone(), status, output: output.to_vec() }, Attempt::First);
    }

    fn defer(&self, deferred: DeferredReply, attempt: Attempt) {
        lock(&self.server.deferred).push(deferred);
        self.poster.set_deferred(attempt);
    }

    /// Retries the answers that the fabric refused.
    pub(in crate::rpc) fn retry_deferred(&self) {
        // Taken before the loop, which would otherwise hold the lock.
        let all = std::mem::take(&mut *lock(&self.server.deferred));
        for deferred in all {
            match self.write_answer(&deferred.to, deferred.status, &deferred.output) {
                Err(PostCause::QueueFull) => self.defer(deferred, Attempt::Retry),
                _ => self.end_answers(deferred.to.link(), once(&deferred.to)),
            }
        }
    }
}
