//! Replies to short requests: put into the line of the caller's slot, where the caller looks for them.
//!
//! Long outputs go to the slot first.  A caller that does not look any more has said so in its line, and is told by a notice:
//!
//! ```text
//!   server                           caller
//!     put the line                     say that it wants a notice
//!     fence                            fence
//!     does it want a notice?           look at the line
//! ```
//!
//! One of the two sees what the other has done.

use std::iter::once;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;

use halite_fabric::{Local, Operation, PeerId, PostCause, WorkRequest};
use halite_tier::rpc::line::{OUTPUT_BYTES_MAX, REPLY_WORDS, address_of, output_of};
use halite_tier::rpc::wire::REPLY_HEADER_BYTES;
use halite_tier::rpc::{Arrival, Imm, ReplyLine, SlotId, Status, Target, Violation};

use super::answer::{Answered, ReplyTo, UNDER_LOCK_BYTES_MAX, remote};
use super::link::{Inbound, Link};
use super::replies::default_offset;
use super::request::{Into, LineUse, Posted, Reply};
use super::{Attempt, CALL_WORK, DEFAULT_SLOT_BYTES, DEFAULT_SLOTS, Rpc, SlotResources};
use crate::runtime::wait::{Wakes, lock};

/// At the server.
impl Rpc {
    /// Answers a short request.
    pub(super) fn send_line_answer(&self, to: &ReplyTo, status: Status, output: &[u8]) -> Answered {
        let link = to.link();
        let mut inbound = lock(&link.inbound);
        if link.is_gone() || !inbound.served.begin(to.id) {
            return Answered::Unwanted;
        }
        let mut put = Ok(());
        if output.len() > OUTPUT_BYTES_MAX {
            // A long one is written without the lock.
            let kept = (output.len() <= UNDER_LOCK_BYTES_MAX).then_some(inbound);
            put = self.write_output(to, output);
            inbound = kept.unwrap_or_else(|| lock(&link.inbound));
        }
        let put = put.and_then(|()| self.put_reply(link, &inbound, to, status, output));
        if put == Err(PostCause::QueueFull) {
            drop(inbound);
            self.hold_back(to, status, output);
            return Answered::Sent;
        }
        let wants_notice = put.is_ok() && wants_notice(&inbound, to.id.slot);
        self.end_answers(link, inbound, once(to));
        if wants_notice {
            self.notify(link, to.id.slot.index, Attempt::First);
        }
        if put.is_ok() { Answered::Sent } else { Answered::Unwanted }
    }

    /// Tries again to answer, as far as the fabric takes it.
    pub(super) fn retry_line_answer(
        &self,
        to: &ReplyTo,
        status: Status,
        output: &[u8],
    ) -> Result<(), PostCause> {
        if output.len() > OUTPUT_BYTES_MAX {
            self.write_output(to, output)?;
        }
        let link = to.link();
        let inbound = lock(&link.inbound);
        self.put_reply(link, &inbound, to, status, output)?;
        let wants_notice = wants_notice(&inbound, to.id.slot);
        drop(inbound);
        if wants_notice {
            self.notify(link, to.id.slot.index, Attempt::Again);
        }
        Ok(())
    }

    /// Answers short requests that came over the same link, as far as the outputs are short; `None` for the others.
    pub(super) fn answer_lines(&self, link: &Link, batch: &[(&ReplyTo, &[u8])]) -> Vec<Option<Answered>> {
        let mut inbound = lock(&link.inbound);
        let answered: Vec<_> = batch
            .iter()
            .map(|(to, output)| {
                let is_short = output.len() <= OUTPUT_BYTES_MAX.min(to.bytes_max as usize);
                if !is_short {
                    return None;
                }
                if link.is_gone() || !inbound.served.begin(to.id) {
                    return Some(Answered::Unwanted);
                }
                let put = self.put_reply(link, &inbound, to, Status::Done(output.len() as u32), output);
                if put == Err(PostCause::QueueFull) {
                    // By itself, then.
                    inbound.served.end(to.id, false);
                    return None;
                }
                Some(if put.is_ok() { Answered::Sent } else { Answered::Unwanted })
            })
            .collect();
        fence(SeqCst);
        let of_sent = batch.iter().zip(&answered).filter(|(_, answered)| answered.is_some());
        let sent: Vec<_> = of_sent.map(|((to, _), _)| *to).collect();
        let told: Vec<_> =
            sent.iter().map(|to| to.id.slot).filter(|slot| last_word(&inbound, *slot) != 0).collect();
        self.end_answers(link, inbound, sent.into_iter());
        told.into_iter().for_each(|slot| self.notify(link, slot.index, Attempt::First));
        answered
    }

    fn put_reply(
        &self,
        link: &Link,
        inbound: &Inbound,
        to: &ReplyTo,
        status: Status,
        output: &[u8],
    ) -> Result<(), PostCause> {
        let row = inbound.replies.as_ref().ok_or(PostCause::NotConnected)?;
        let slot = to.id.slot;
        let (words, used) = ReplyLine::emit(status, slot, output);
        self.put(link, row, u32::from(slot.index), &words[..used], Imm::Look(slot.index))
    }

    /// Puts a long output into the slot, behind where the header of other replies is.
    fn write_output(&self, to: &ReplyTo, output: &[u8]) -> Result<(), PostCause> {
        let Some(peer) = to.link().peer() else { unreachable!("this node itself needs no lines") };
        let source = self.source(to.link(), peer, output)?;
        let operation =
            Operation::Write { local: source.local, remote: remote(to.at, REPLY_HEADER_BYTES as u64) };
        let signalled = source.id != CALL_WORK;
        let written =
            self.post(peer, &[WorkRequest { id: source.id, operation, signalled, solicited: true }]);
        written.inspect_err(|_| self.give_back(&source))
    }

    /// Tells a caller that does not look by itself.
    pub(super) fn notify(&self, link: &Link, index: u16, attempt: Attempt) {
        let Some(peer) = link.peer() else { unreachable!("this node itself needs no lines") };
        let at = lock(&link.inbound).replies.as_ref().map(|row| row.at);
        // Who is gone is told of it otherwise.
        let Some(at) = at else { return };
        let (local, remote) = (Local::Inline(&[]), remote(at, 0));
        let operation = Operation::WriteImm { local, remote, imm: Imm::Look(index).emit() };
        let request = WorkRequest { id: CALL_WORK, operation, signalled: false, solicited: true };
        if self.post(peer, &[request]) == Err(PostCause::QueueFull) {
            lock(&self.notices).push((peer, index));
            self.set_stuck(attempt);
        }
    }

    /// Tries again to tell those for whom the fabric had no room.
    pub(super) fn retry_notices(&self) {
        let notices: Vec<(PeerId, u16)> = std::mem::take(&mut *lock(&self.notices));
        for (peer, index) in notices {
            if let Some(link) = self.peers.link_of(peer) {
                self.notify(&link, index, Attempt::Again);
            }
        }
    }
}

/// Whether the caller is to be told of the line that has just been put.
#[inline]
fn wants_notice(inbound: &Inbound, slot: SlotId) -> bool {
    // Pairs with the one of who asks for a notice: see the header of this file.
    fence(SeqCst);
    last_word(inbound, slot) != 0
}

/// Who is posted to is told anyway.
#[inline]
fn last_word(inbound: &Inbound, slot: SlotId) -> u64 {
    let lines = inbound.replies.as_ref().and_then(|row| row.direct.as_ref());
    lines.map_or(0, |lines| lines.last_word(u32::from(slot.index)))
}

/// At the caller.
impl Rpc {
    /// Takes the reply to a short request, if it is here, and gives the slot back unless it is needed longer.
    #[inline]
    pub(super) fn try_take_line(&self, slot: SlotId, into: Into<'_>) -> Option<Reply> {
        if !self.reply_lines.has_arrived(slot) {
            return None;
        }
        let reply = self.read_line(slot, into);
        if !reply.needs_slot() {
            self.reply_lines.free(slot);
        }
        Some(reply)
    }

    /// The reply to a short request, which is here.
    pub(super) fn read_line(&self, slot: SlotId, into: Into<'_>) -> Reply {
        let words = self.reply_lines.read(slot);
        match ReplyLine::parse(words[0]) {
            Ok(ReplyLine { status: Status::Done(len), is_here: true }) => {
                self.take_output(slot, &words, len as usize, into)
            }
            // Not what lies behind the slot, whatever the server says.
            Ok(ReplyLine { status: Status::Done(len), .. })
                if REPLY_HEADER_BYTES as u64 + u64::from(len) > DEFAULT_SLOT_BYTES =>
            {
                Reply::NotUnderstood
            }
            Ok(ReplyLine { status: Status::Done(len), is_here: false }) => {
                let at = default_offset(slot) + REPLY_HEADER_BYTES as u64;
                into.read(self.default_slots.window(), at, len as usize)
            }
            Ok(ReplyLine { status: Status::DoneAt(len), is_here: true }) => match address_of(&words) {
                Ok(address) => Reply::DoneAt(len as usize, address),
                Err(_) => Reply::NotUnderstood,
            },
            Ok(ReplyLine { status: Status::DoneAt(_), .. }) | Err(_) => Reply::NotUnderstood,
            Ok(ReplyLine { status, .. }) => Reply::Refused(status),
        }
    }

    #[inline]
    fn take_output(&self, slot: SlotId, words: &[u64; REPLY_WORDS], len: usize, mut into: Into<'_>) -> Reply {
        let output = output_of(words);
        let Some(output) = output.get(..len) else { return Reply::NotUnderstood };
        if let Into::Lent(_) = into {
            let lent = self.reply_lines.output(slot, len as u64);
            return into.lend(lent, len);
        }
        match into.prepare(len) {
            Ok(target) => {
                target.copy_from_slice(output);
                Reply::Done(len)
            }
            Err(refused) => refused,
        }
    }

    /// A short request is to be waited for by waker, or not any more: the table sees to its slot from now on.
    pub(super) fn adopt(&self, posted: Posted, by_line: LineUse) {
        let Target::Peer(peer) = posted.target else { unreachable!("this node itself needs no lines") };
        let table = self.peers.read();
        let is_down = table.is_down(peer);
        let mut slots = lock(&self.slots);
        let before = slots.next_deadline_ns();
        slots.adopt(posted.slot, by_line.deadline_ns, is_down);
        slots.hold(posted.slot, SlotResources { port: by_line.port, by_line: true, ..Default::default() });
        self.reply_lines.leave(posted.slot);
        if slots.next_deadline_ns() < before {
            // The thread that sleeps until the next deadline is to sleep less.
            self.set_dirty();
        }
    }

    /// Nobody waits for a short request any more.
    pub(super) fn abandon_line(&self, posted: Posted, by_line: LineUse, wakes: &mut Wakes) {
        if self.reply_lines.has_arrived(posted.slot) {
            let status = self.line_status(posted.slot);
            self.decline_offer(posted.target, posted.slot, status, by_line.port, wakes);
            self.reply_lines.free(posted.slot);
            return;
        }
        self.adopt(posted, by_line);
        self.abandon(posted.slot, wakes);
    }

    /// What a line says that is here.
    pub(super) fn line_status(&self, slot: SlotId) -> Option<Status> {
        ReplyLine::parse(self.reply_lines.read(slot)[0]).ok().map(|line| line.status)
    }

    /// From now on the server tells of the reply to a short request.  What has come before is taken in.
    pub(super) fn await_notice(&self, from: Target, slot: SlotId, wakes: &mut Wakes) {
        self.reply_lines.ask_for_notice(slot);
        if self.reply_lines.has_arrived(slot) {
            self.look_at_line(from, slot.index, wakes);
        }
    }

    /// A reply that the table waits for may be in its line: takes note of it.
    pub(super) fn look_at_line(&self, from: Target, index: u16, wakes: &mut Wakes) {
        let found = {
            let mut slots = lock(&self.slots);
            let slot = slots.awaited(index).filter(|slot| {
                slots.held(*slot).is_some_and(|held| held.by_line) && self.reply_lines.has_arrived(*slot)
            });
            let arrival = slot.and_then(|slot| slots.handle_reply(from, slot).ok());
            if let Some(Arrival::Expected(_)) = arrival {
                self.arrived(&slots);
            }
            slot.zip(arrival)
        };
        if let Some((slot, arrival)) = found {
            self.handle_arrival(from, slot, arrival, wakes);
        }
    }

    /// A server says that a line holds a reply.  It may have been seen without that.
    pub(super) fn handle_look(&self, from: Target, index: u16, wakes: &mut Wakes) -> Result<(), Violation> {
        if index >= DEFAULT_SLOTS {
            return Err(Violation("a reply in no line"));
        }
        self.look_at_line(from, index, wakes);
        Ok(())
    }
}
