//! Replies to short requests, which the caller finds in the line of its slot.
//!
//! A caller that stops polling requests a notification in its line; `server::short_answers` describes the order of
//! steps on both sides.

use halite_tier::rpc::line::{REPLY_WORDS, address_of, output_of};
use halite_tier::rpc::wire::REPLY_HEADER_BYTES;
use halite_tier::rpc::{Arrival, ReplyLine, SlotId, Status, Target, Violation};

use super::Client;
use super::reply::{Reply, ReplyBuffer};
use super::request::{LineUse, Posted};
use super::slots::{DEFAULT_SLOT_BYTES, DEFAULT_SLOTS, SlotResources, default_offset};
use crate::rpc::Rpc;
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

impl Client {
    /// Returns true if the reply to a short request has arrived.
    #[inline]
    pub(crate) fn has_line(&self, slot: SlotId) -> bool {
        self.reply_lines.has_arrived(slot)
    }

    /// Takes the reply to a short request, if it has arrived. Frees the slot, unless the reply still needs it.
    #[inline]
    pub(crate) fn try_take_line(&self, slot: SlotId, into: ReplyBuffer<'_>) -> Option<Reply> {
        if !self.reply_lines.has_arrived(slot) {
            return None;
        }
        let reply = self.read_line(slot, into);
        if !reply.needs_slot() {
            self.reply_lines.free(slot);
        }
        Some(reply)
    }

    /// Reads the reply to a short request; the reply must have arrived.
    pub(super) fn read_line(&self, slot: SlotId, into: ReplyBuffer<'_>) -> Reply {
        let words = self.reply_lines.read(slot);
        match ReplyLine::parse(words[0]) {
            Ok(ReplyLine { status: Status::Done(len), is_here: true }) => {
                self.take_output(slot, &words, len as usize, into)
            }
            // Never read beyond the slot, whatever the server claims.
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
    fn take_output(
        &self,
        slot: SlotId,
        words: &[u64; REPLY_WORDS],
        len: usize,
        mut into: ReplyBuffer<'_>,
    ) -> Reply {
        let output = output_of(words);
        let Some(output) = output.get(..len) else { return Reply::NotUnderstood };
        if let ReplyBuffer::Lent(_) = into {
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

    /// Returns the status in the line of a reply that has arrived; `None` if the line is malformed.
    pub(super) fn line_status(&self, slot: SlotId) -> Option<Status> {
        ReplyLine::parse(self.reply_lines.read(slot)[0]).ok().map(|line| line.status)
    }
}

impl Rpc {
    /// Moves the slot of a short request to the table of slots, so that the caller can wait by waker or cancel.
    pub(crate) fn adopt(&self, posted: Posted, by_line: LineUse) {
        let Target::Peer(peer) = posted.target else { unreachable!("this node itself needs no lines") };
        let table = self.peers.read();
        let is_down = table.is_down(peer);
        let mut slots = lock(&self.client.slots);
        let before = slots.next_deadline_ns();
        slots.adopt(posted.slot, by_line.deadline_ns, is_down);
        slots.hold(posted.slot, SlotResources { port: by_line.port, by_line: true, ..Default::default() });
        self.client.reply_lines.hand_back(posted.slot);
        if slots.next_deadline_ns() < before {
            // The sleeping progress thread must wake earlier.
            self.poster.set_dirty();
        }
    }

    /// Cancels a short request, or declines its reply if that has arrived.
    pub(crate) fn abandon_line(&self, posted: Posted, by_line: LineUse, wakes: &mut Wakes) {
        if self.client.reply_lines.has_arrived(posted.slot) {
            let status = self.client.line_status(posted.slot);
            self.decline_offer(posted.target, posted.slot, status, by_line.port, wakes);
            self.client.reply_lines.free(posted.slot);
            return;
        }
        self.adopt(posted, by_line);
        self.abandon(posted.slot, wakes);
    }

    /// Requests a notification of the reply to a short request. Handles the reply if it has arrived before the request.
    pub(crate) fn await_notification(&self, from: Target, slot: SlotId, wakes: &mut Wakes) {
        self.client.reply_lines.request_notification(slot);
        if self.client.reply_lines.has_arrived(slot) {
            self.check_line(from, slot.index, wakes);
        }
    }

    /// Handles the reply in line `index`, if it has arrived and the table of slots waits for it.
    pub(in crate::rpc) fn check_line(&self, from: Target, index: u16, wakes: &mut Wakes) {
        let found = {
            let mut slots = lock(&self.client.slots);
            let slot = slots.awaited(index).filter(|slot| {
                slots.held(*slot).is_some_and(|held| held.by_line)
                    && self.client.reply_lines.has_arrived(*slot)
            });
            let arrival = slot.and_then(|slot| slots.handle_reply(from, slot).ok());
            if let Some(Arrival::Expected(_)) = arrival {
                self.client.count_arrival(&slots);
            }
            slot.zip(arrival)
        };
        if let Some((slot, arrival)) = found {
            self.handle_arrival(from, slot, arrival, wakes);
        }
    }

    /// Handles a notification that a line holds a reply. The caller may already have taken the reply.
    pub(in crate::rpc) fn handle_line_notification(
        &self,
        from: Target,
        index: u16,
        wakes: &mut Wakes,
    ) -> Result<(), Violation> {
        if index >= DEFAULT_SLOTS {
            return Err(Violation("a notification names a line that does not exist"));
        }
        self.check_line(from, index, wakes);
        Ok(())
    }
}
