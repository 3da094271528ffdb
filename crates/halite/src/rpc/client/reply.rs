//! Replies: the result for the caller, and the memory to which its bytes go.

use halite_fabric::RemoteAddress;
use halite_mem::Window;
use halite_tier::rpc::wire::{OUTPUT_ADDRESS_BYTES, REPLY_HEADER_BYTES, parse_output_address};
use halite_tier::rpc::{PAYLOAD_BYTES_MAX, ReplyHeader, Status};

/// The result of a request to a function or port.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// This many bytes were copied to the caller's memory.
    Done(usize),
    /// This many bytes stay in the slot, which the caller frees after reading them.
    Lent(usize),
    /// This many bytes are still at the server, at this address, from which the caller must read them.
    DoneAt(usize, RemoteAddress),
    /// Length of the reply, and length of the caller's buffer, which is smaller.
    TooLong(usize, usize),
    /// The server refused the request with this status.
    Refused(Status),
    /// The reply violates the protocol.
    NotUnderstood,
}

impl Reply {
    /// Returns true if the slot must stay in use after this result.
    #[inline]
    pub(crate) fn needs_slot(&self) -> bool {
        matches!(self, Reply::DoneAt(..) | Reply::Lent(_))
    }
}

/// The memory to which a reply's bytes go.
pub(crate) enum ReplyBuffer<'a> {
    /// A buffer that grows to the length of the reply.
    Vec(&'a mut Vec<u8>),
    Slice(&'a mut [u8]),
    /// The caller reads the bytes in place, if possible.
    Lent(&'a mut LentReply),
}

impl ReplyBuffer<'_> {
    #[inline]
    pub(crate) fn reborrow(&mut self) -> ReplyBuffer<'_> {
        match self {
            ReplyBuffer::Vec(bytes) => ReplyBuffer::Vec(bytes),
            ReplyBuffer::Slice(bytes) => ReplyBuffer::Slice(bytes),
            ReplyBuffer::Lent(lent) => ReplyBuffer::Lent(lent),
        }
    }

    /// Returns a buffer of exactly `len` bytes, or [`Reply::TooLong`] if the caller's buffer is shorter.
    #[inline]
    pub(crate) fn prepare(&mut self, len: usize) -> Result<&mut [u8], Reply> {
        match self {
            ReplyBuffer::Slice(bytes) => {
                let room = bytes.len();
                bytes.get_mut(..len).ok_or(Reply::TooLong(len, room))
            }
            ReplyBuffer::Vec(_) | ReplyBuffer::Lent(_) if len as u64 > PAYLOAD_BYTES_MAX => {
                Err(Reply::NotUnderstood)
            }
            ReplyBuffer::Vec(bytes) => {
                bytes.resize(len, 0);
                Ok(bytes.as_mut_slice())
            }
            ReplyBuffer::Lent(lent) => Ok(lent.fetched(len)),
        }
    }

    /// Lends the `len` bytes of `answer` to the caller, in place.
    pub(super) fn lend(self, answer: Option<Window>, len: usize) -> Reply {
        match (self, answer) {
            (ReplyBuffer::Lent(lent), Some(answer)) => {
                *lent = LentReply::InSlot(answer);
                Reply::Lent(len)
            }
            _ => Reply::NotUnderstood,
        }
    }

    /// Copies the `len` bytes at `offset` to the caller's memory, or lends them.
    pub(super) fn read(mut self, window: &Window, offset: u64, len: usize) -> Reply {
        if let ReplyBuffer::Lent(_) = self {
            return self.lend(window.slice(offset, len as u64), len);
        }
        // An honest server writes nothing outside of the slot, so a longer length must not allocate memory.
        if len as u64 > window.len() {
            return Reply::NotUnderstood;
        }
        match self.prepare(len).map(|target| window.read(offset, target)) {
            Ok(Ok(())) => Reply::Done(len),
            Ok(Err(_)) => Reply::NotUnderstood,
            Err(refused) => refused,
        }
    }
}

/// The memory of a lent answer, which the caller reads in place instead of copying it out first.
///
/// A long answer costs a copy into the caller's slot. A second copy, out of the slot, costs even more, because every
/// byte comes from another processor's cache. A caller that needs only a part of the answer, or copies it elsewhere
/// anyway, avoids the second copy.
#[derive(Default)]
pub(crate) enum LentReply {
    #[default]
    Empty,
    /// The answer is in the slot. The server's node could still write to the slot, so it is never a slice.
    InSlot(Window),
    /// The answer was too long for a slot; the caller has read it from the server's memory.
    Fetched(Vec<u8>),
}

impl LentReply {
    /// Returns memory for an answer of `len` bytes that the caller reads from the server's memory.
    pub(super) fn fetched(&mut self, len: usize) -> &mut [u8] {
        *self = LentReply::Fetched(vec![0; len]);
        match self {
            LentReply::Fetched(bytes) => bytes,
            LentReply::Empty | LentReply::InSlot(_) => unreachable!("set just before"),
        }
    }
}

/// Reads the reply at `offset` of `window`, of which `room` bytes may be read.
pub(super) fn read_reply(window: &Window, offset: u64, room: u64, into: ReplyBuffer<'_>) -> Reply {
    let mut header = [0; REPLY_HEADER_BYTES];
    window.read(offset, &mut header).expect("a slot holds a header");
    let behind = offset + REPLY_HEADER_BYTES as u64;
    match ReplyHeader::parse(header).map(|header| header.status) {
        // Never read beyond the slot, whatever the server claims.
        Ok(Status::Done(len)) if REPLY_HEADER_BYTES as u64 + u64::from(len) > room => Reply::NotUnderstood,
        Ok(Status::Done(len)) => into.read(window, behind, len as usize),
        Ok(Status::DoneAt(len)) => {
            let mut address = [0; OUTPUT_ADDRESS_BYTES];
            window.read(behind, &mut address).expect("a slot holds an address");
            match parse_output_address(address) {
                Ok(address) => Reply::DoneAt(len as usize, address),
                Err(_) => Reply::NotUnderstood,
            }
        }
        Ok(status) => Reply::Refused(status),
        Err(_) => Reply::NotUnderstood,
    }
}
