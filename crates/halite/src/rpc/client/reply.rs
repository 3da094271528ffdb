//! Replies as their callers take them: what came back, and where its bytes go.

use halite_fabric::RemoteAddress;
use halite_mem::Window;
use halite_tier::rpc::wire::{OUTPUT_ADDRESS_BYTES, REPLY_HEADER_BYTES, parse_output_address};
use halite_tier::rpc::{PAYLOAD_BYTES_MAX, ReplyHeader, Status};

/// What came back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// So many bytes were copied to where the caller wants them.
    Done(usize),
    /// So many bytes stay in the slot, which the caller frees.
    Lent(usize),
    /// So many bytes are still at the server, at this address.
    DoneAt(usize, RemoteAddress),
    /// The reply has so many bytes, and the caller has room for so many.
    TooLong(usize, usize),
    /// No answer, for this reason.
    Refused(Status),
    /// The reply violates the protocol.
    NotUnderstood,
}

impl Reply {
    /// Returns true if the slot is still in use.
    #[inline]
    pub(crate) fn needs_slot(&self) -> bool {
        matches!(self, Reply::DoneAt(..) | Reply::Lent(_))
    }
}

/// Where the bytes of a reply go.
pub(crate) enum Into<'a> {
    /// A buffer that grows.
    Vec(&'a mut Vec<u8>),
    /// The caller's buffer.
    Slice(&'a mut [u8]),
    /// They stay where they are, as far as possible.
    Lent(&'a mut Lent),
}

impl Into<'_> {
    #[inline]
    pub(crate) fn reborrow(&mut self) -> Into<'_> {
        match self {
            Into::Vec(bytes) => Into::Vec(bytes),
            Into::Slice(bytes) => Into::Slice(bytes),
            Into::Lent(lent) => Into::Lent(lent),
        }
    }

    /// A buffer for exactly `len` bytes.
    #[inline]
    pub(crate) fn prepare(&mut self, len: usize) -> Result<&mut [u8], Reply> {
        match self {
            Into::Slice(bytes) => {
                let room = bytes.len();
                bytes.get_mut(..len).ok_or(Reply::TooLong(len, room))
            }
            Into::Vec(_) | Into::Lent(_) if len as u64 > PAYLOAD_BYTES_MAX => Err(Reply::NotUnderstood),
            Into::Vec(bytes) => {
                bytes.resize(len, 0);
                Ok(bytes.as_mut_slice())
            }
            Into::Lent(lent) => Ok(lent.fetched(len)),
        }
    }

    /// Lends the `len` bytes in the slot.
    pub(super) fn lend(self, answer: Option<Window>, len: usize) -> Reply {
        match (self, answer) {
            (Into::Lent(lent), Some(answer)) => {
                *lent = Lent::InSlot(answer);
                Reply::Lent(len)
            }
            _ => Reply::NotUnderstood,
        }
    }

    /// Copies, or lends, the `len` bytes at `offset`.
    pub(super) fn read(mut self, window: &Window, offset: u64, len: usize) -> Reply {
        if let Into::Lent(_) = self {
            return self.lend(window.slice(offset, len as u64), len);
        }
        // An honest server writes nothing outside of the slot: no memory is allocated for that.
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

/// Where a lent answer is: read where it has arrived, instead of copied out first.
///
/// A long answer costs a copy into the caller's slot.  A second copy out of the slot costs more, for every byte comes over from
/// the processor that wrote it.  A caller that wants only a part, or copies the answer somewhere else anyway, does without.
#[derive(Default)]
pub(crate) enum Lent {
    /// Nowhere yet.
    #[default]
    Nowhere,
    /// In the slot, which the server's node could still write to: never a slice.
    InSlot(Window),
    /// It was too long for a slot, and has been fetched.
    Fetched(Vec<u8>),
}

impl Lent {
    /// Memory to fetch so many bytes into.
    pub(super) fn fetched(&mut self, len: usize) -> &mut [u8] {
        *self = Lent::Fetched(vec![0; len]);
        match self {
            Lent::Fetched(bytes) => bytes,
            Lent::Nowhere | Lent::InSlot(_) => unreachable!("set just before"),
        }
    }
}

/// Reads the reply that lies at `offset`.
pub(super) fn read_reply(window: &Window, offset: u64, room: u64, into: Into<'_>) -> Reply {
    let mut header = [0; REPLY_HEADER_BYTES];
    window.read(offset, &mut header).expect("a slot holds a header");
    let behind = offset + REPLY_HEADER_BYTES as u64;
    match ReplyHeader::parse(header).map(|header| header.status) {
        // Nothing behind the slot is read, whatever the server says.
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
