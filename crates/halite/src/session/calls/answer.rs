//! Answers that the application reads in place, in the memory of the node; see [`LentReply`].

use std::fmt;

use super::pending::OwnedRequest;
use crate::rpc::LentReply;

/// An answer that the application reads in place. Dropping this value releases the answer's memory. Like a clone of the
/// session, it keeps the session open.
///
/// [`PendingCall::lend_answer`](crate::PendingCall::lend_answer) returns it.
pub struct Answer {
    lent: LentReply,
    /// The request, which keeps the answer's slot until dropped; `None` if the answer is not in a slot.
    kept: Option<OwnedRequest>,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("len", &self.len()).finish()
    }
}

impl Answer {
    pub(super) fn new(lent: LentReply, request: OwnedRequest) -> Answer {
        let in_slot = matches!(lent, LentReply::InSlot(_));
        Answer { lent, kept: in_slot.then_some(request) }
    }

    /// Makes an answer from bytes that are already in this process.
    pub(super) fn fetched(bytes: Vec<u8>) -> Answer {
        Answer { lent: LentReply::Fetched(bytes), kept: None }
    }

    /// Returns the answer's length in bytes. In a fork of the node's process, returns 0 for an answer in the node's
    /// memory.
    pub fn len(&self) -> usize {
        match &self.lent {
            LentReply::InSlot(_) if self.kept.as_ref().is_some_and(OwnedRequest::is_forked) => 0,
            LentReply::Empty => 0,
            LentReply::InSlot(window) => window.len() as usize,
            LentReply::Fetched(bytes) => bytes.len(),
        }
    }

    /// Returns true if the answer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes of the answer from `offset` on into `into`, until the answer or `into` ends. Returns the number of
    /// bytes copied.
    pub fn copy_to(&self, offset: usize, into: &mut [u8]) -> usize {
        let count = self.len().saturating_sub(offset).min(into.len());
        let into = &mut into[..count];
        match &self.lent {
            _ if count == 0 => {}
            LentReply::Empty => unreachable!("an answer without memory has no bytes"),
            LentReply::InSlot(window) => window.read(offset as u64, into).expect("measured just before"),
            LentReply::Fetched(bytes) => into.copy_from_slice(&bytes[offset..][..count]),
        }
        count
    }

    /// Returns a copy of the whole answer.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.copy_to(0, &mut bytes);
        bytes
    }
}
