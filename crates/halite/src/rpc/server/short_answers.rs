//! Answers to short requests. The server puts them into the line of the caller's slot, which the caller polls.
//!
//! The server writes a long output to the slot before the line. A caller that stops polling requests a notification in
//! its line:
//!
//! ```text
//!   server                           caller
//!     put the line                     request a notification
//!     fence                            fence
//!     is a notification requested?     check the line
//! ```
//!
//! At least one of the two sides sees the store of the other side.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;

use halite_fabric::{Local, Operation, PeerId, PostCause};
use halite_tier::rpc::line::OUTPUT_BYTES_MAX;
use halite_tier::rpc::wire::REPLY_HEADER_BYTES;
use halite_tier::rpc::{Imm, ReplyLine, SlotId, Status};

use super::answer::{Answered, ReplyTo};
use crate::rpc::Rpc;
use crate::rpc::shared::{Attempt, CALL_WORK, Link, Row, offset_by};
use crate::runtime::locks::lock;

/// Work that remains after an answer has ended.
struct EndedLine {
    acknowledge: bool,
    notify: bool,
}

impl Rpc {
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
            self.finish_line(link, to.id.slot, ended);
            return Answered::Sent;
        }
        let put = written.and_then(|()| self.put_reply(link, to, status, output));
        if put == Err(PostCause::QueueFull) {
            self.defer_answer(to, status, output);
            return Answered::Sent;
        }
        if link.served.end(to.id, true) {
            self.acknowledge(link, to.id.slot);
        }
        if put.is_ok() { Answered::Sent } else { Answered::Unwanted }
    }

    /// Stores a reply into its line, and ends the call. Returns `None` if stores do not reach the line.
    #[inline]
    fn put_and_end(&self, link: &Link, to: &ReplyTo, status: Status, output: &[u8]) -> Option<EndedLine> {
        let slot = to.id.slot;
        let put_and_end = |row: &Row| {
            let lines = row.direct.as_ref()?;
            let (words, used) = ReplyLine::emit(status, slot, output);
            lines.put(u32::from(slot.index), &words[..used]);
            let acknowledge = link.served.end(to.id, true);
            // The end of the answer is the fence between the line and this load; see the header of this file.
            Some(EndedLine { acknowledge, notify: lines.last_word(u32::from(slot.index)) != 0 })
        };
        self.server.reply_rows.with(&link.replies, put_and_end).flatten()
    }

    #[inline]
    fn finish_line(&self, link: &Link, slot: SlotId, ended: EndedLine) {
        if ended.acknowledge {
            self.acknowledge(link, slot);
        }
        if ended.notify {
            self.notify(link, slot.index, Attempt::First);
        }
    }

    /// Retries an answer that the fabric refused.
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
        // Pairs with the fence of a caller that requests a notification; see the header of this file.
        fence(SeqCst);
        if self.last_word(link, to.id.slot) != 0 {
            self.notify(link, to.id.slot.index, Attempt::Retry);
        }
        Ok(())
    }

    /// Answers short requests with short outputs over one link, in a batch. Returns `None` for each of the other
    /// requests.
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
        let posted_at = self.server.reply_rows.with(&link.replies, |row| match &row.direct {
            Some(lines) => {
                lines.put(index, words);
                None
            }
            None => Some(row.at),
        });
        match posted_at {
            Some(None) => Ok(()),
            Some(Some(at)) => self.poster.post_to_row(link, at, index, words, Imm::Look(slot.index)),
            None => Err(PostCause::NotConnected),
        }
    }

    /// Returns a value other than 0 if the caller requests a notification of the line just stored. Returns 0 for a
    /// posted line, which notifies the caller anyway.
    #[inline]
    fn last_word(&self, link: &Link, slot: SlotId) -> u64 {
        let word = self.server.reply_rows.with(&link.replies, |row| {
            row.direct.as_ref().map_or(0, |lines| lines.last_word(u32::from(slot.index)))
        });
        word.unwrap_or(0)
    }

    /// Writes a long output to the slot, at the offset that follows the header of a reply.
    fn write_output(&self, to: &ReplyTo, output: &[u8]) -> Result<(), PostCause> {
        let Some(peer) = to.link().peer() else { unreachable!("this node itself needs no lines") };
        let remote = offset_by(to.at, REPLY_HEADER_BYTES as u64);
        self.poster.post_joined(to.link(), peer, &[output], |local| Operation::Write { local, remote })
    }

    /// Notifies a caller that has stopped polling.
    pub(super) fn notify(&self, link: &Link, index: u16, attempt: Attempt) {
        let Some(peer) = link.peer() else { unreachable!("this node itself needs no lines") };
        let at = self.server.reply_rows.with(&link.replies, |row| row.at);
        // A peer that is down needs no notification.
        let Some(at) = at else { return };
        let (local, remote) = (Local::Inline(&[]), at);
        let operation = Operation::WriteImm { local, remote, imm: Imm::Look(index).emit() };
        if self.poster.post(peer, CALL_WORK, operation) == Err(PostCause::QueueFull) {
            lock(&self.server.notifications).push((peer, index));
            self.poster.set_deferred(attempt);
        }
    }

    /// Retries the notifications that the fabric refused.
    pub(in crate::rpc) fn retry_notifications(&self) {
        let notifications: Vec<(PeerId, u16)> = std::mem::take(&mut *lock(&self.server.notifications));
        for (peer, index) in notifications {
            if let Some(link) = self.peers.link_of(peer) {
                self.notify(&link, index, Attempt::Retry);
            }
        }
    }
}
