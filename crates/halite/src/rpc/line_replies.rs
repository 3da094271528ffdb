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

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;

use halite_fabric::{Local, Operation, PeerId, PostCause, WorkRequest};
use halite_tier::rpc::line::{OUTPUT_BYTES_MAX, REPLY_WORDS, address_of, output_of};
use halite_tier::rpc::wire::REPLY_HEADER_BYTES;
use halite_tier::rpc::{Arrival, Imm, ReplyLine, SlotId, Status, Target, Violation};

use super::answer::{Answered, ReplyTo, beyond};
use super::link::{Link, Row};
use super::replies::default_offset;
use super::request::{Into, LineUse, Posted, Reply};
use super::{Attempt, CALL_WORK, DEFAULT_SLOT_BYTES, DEFAULT_SLOTS, Rpc, SlotResources};
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

/// What is left to be done when an answer has ended.
struct EndedLine {
    acknowledge: bool,
    notify: bool,
}

/// At the server.
impl Rpc {
    /// Answers a short request.
    #[inline]
    pub(super) fn send_line_answer(&self, to: &ReplyTo, status: Status, output: &[u8]) -> Answered {
        let link = &**to.link();
        if link.is_gone() || !link.served.begin(to.id) {
            return Answered::Unwanted;
        }
        let written = if output.len() > OUTPUT_BYTES_MAX { self.write_output(to, output) } else { Ok(()) };
        if let Ok(()) = written
            && let Some(ended) = self.put_and_end(link, to, status, output)
        {
            self.follow_end(link, to.id.slot, ended);
            return Answered::Sent;
        }
        let put = written.and_then(|()| self.put_reply(link, to, status, output));
        if put == Err(PostCause::QueueFull) {
            self.hold_back(to, status, output);
            return Answered::Sent;
        }
        if link.served.end(to.id, true) {
            self.acknowledge(link, to.id.slot);
        }
        if put.is_ok() { Answered::Sent } else { Answered::Unwanted }
    }

    /// Puts a reply where stores reach its line, and ends the answer; `None` if they do not.
    #[inline]
    fn put_and_end(&self, link: &Link, to: &ReplyTo, status: Status, output: &[u8]) -> Option<EndedLine> {
        let slot = to.id.slot;
        let put_and_end = |row: &Row| {
            let lines = row.direct.as_ref()?;
            let (words, used) = ReplyLine::emit(status, slot, output);
            lines.put(u32::from(slot.index), &words[..used]);
            let acknowledge = link.served.end(to.id, true);
            // The end of the answer is the fence between the line and this look: see the header of this file.
            Some(EndedLine { acknowledge, notify: lines.last_word(u32::from(slot.index)) != 0 })
        };
        self.reply_rows.with(&link.replies, put_and_end).flatten()
    }

    #[inline]
    fn follow_end(&self, link: &Link, slot: SlotId, ended: EndedLine) {
        if ended.acknowledge {
            self.acknowledge(link, slot);
        }
        if ended.notify {
            self.notify(link, slot.index, Attempt::First);
        }
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
        self.put_reply(link, to, status, output)?;
        // Pairs with the one of who asks for a notice: see the header of this file.
        fence(SeqCst);
        if self.last_word(link, to.id.slot) != 0 {
            self.notify(link, to.id.slot.index, Attempt::Again);
        }
        Ok(())
    }

    /// Answers short requests that came over the same link, as far as the outputs are short; `None` for the others.
    pub(super) fn answer_lines(&self, batch: &[(&ReplyTo, &[u8])]) -> Vec<Option<Answered>> {
        let answer = |(to, output): &(&ReplyTo, &[u8])| {
            let is_short = output.len() <= OUTPUT_BYTES_MAX.min(to.bytes_max as usize);
            is_short.then(|| self.send_line_answer(to, Status::Done(output.len() as u32), output))
        };
        batch.iter().map(answer).collect()
    }

    #[inline]
    fn put_reply(&self, link: &Link, to: &ReplyTo, status: Status, output: &[u8]) -> Result<(), PostCause> {
        let slot = to.id.slot;
        let (words, used) = ReplyLine::emit(status, slot, output);
        let (words, index) = (&words[..used], u32::from(slot.index));
        let posted_at = self.reply_rows.with(&link.replies, |row| match &row.direct {
            Some(lines) => {
                lines.put(index, words);
                None
            }
            None => Some(row.at),
        });
        match posted_at {
            Some(None) => Ok(()),
            Some(Some(at)) => self.post_put(link, at, index, words, Imm::Look(slot.index)),
            None => Err(PostCause::NotConnected),
        }
    }

    /// Whether the caller is to be told of the line that has just been put.  Who is posted to is told anyway.
    #[inline]
    fn last_word(&self, link: &Link, slot: SlotId) -> u64 {
        let word = self.reply_rows.with(&link.replies, |row| {
            row.direct.as_ref().map_or(0, |lines| lines.last_word(u32::from(slot.index)))
        });
        word.unwrap_or(0)
    }

    /// Puts a long output into the slot, behind where the header of other replies is.
    fn write_output(&self, to: &ReplyTo, output: &[u8]) -> Result<(), PostCause> {
        let Some(peer) = to.link().peer() else { unreachable!("this node itself needs no lines") };
        let source = self.source(to.link(), peer, output)?;
        let operation =
            Operation::Write { local: source.local, remote: beyond(to.at, REPLY_HEADER_BYTES as u64) };
        let signalled = source.id != CALL_WORK;
        let written =
            self.post(peer, &[WorkRequest { id: source.id, operation, signalled, solicited: true }]);
        written.inspect_err(|_| self.give_back(&source))
    }

    /// Tells a caller that does not look by itself.
    pub(super) fn notify(&self, link: &Link, index: u16, attempt: Attempt) {
        let Some(peer) = link.peer() else { unreachable!("this node itself needs no lines") };
        let at = self.reply_rows.with(&link.replies, |row| row.at);
        // Who is gone is told of it otherwise.
        let Some(at) = at else { return };
        let (local, remote) = (Local::Inline(&[]), at);
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

/// At the caller.
impl Rpc {
    /// Whether the reply to a request that is answered by line is there.
    #[inline]
    pub(crate) fn has_line(&self, slot: SlotId) -> bool {
        self.reply_lines.has_arrived(slot)
    }

    /// Takes the reply to a short request, if it is here, and gives the slot back unless it is needed longer.
    #[inline]
    pub(crate) fn try_take_line(&self, slot: SlotId, into: Into<'_>) -> Option<Reply> {
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
    pub(crate) fn adopt(&self, posted: Posted, by_line: LineUse) {
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
    pub(crate) fn abandon_line(&self, posted: Posted, by_line: LineUse, wakes: &mut Wakes) {
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
    pub(crate) fn await_notice(&self, from: Target, slot: SlotId, wakes: &mut Wakes) {
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
