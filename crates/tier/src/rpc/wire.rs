//! Encodings of requests, replies and control messages of calls, as drawn in `docs/protocol.md`.
//!
//! All integers are little-endian. A parser works on a private copy, and rejects bytes that the encoder never writes.

use halite_fabric::{Key, RemoteAddress};
use serde::{Deserialize, Serialize};

use super::line::PRINCIPALS_MAX;
use super::{PAYLOAD_BYTES_MAX, SlotId};

/// The immediate of a send that carries a [`CallControl`]. Sends of the control protocol have the immediate 0.
pub const CONTROL_IMM: u32 = 1;

const REPLY_FLAG: u32 = 1 << 31;
/// Greater than every ring offset.
const LINES_FLAG: u32 = 1 << 30;
const LOOK_FLAG: u32 = 1 << 29;
const GENERATION_MASK: u16 = 0x7fff;

/// The error for bytes that cannot be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the bytes are not a valid {0}")]
pub struct WireError(pub(super) &'static str);

/// The meaning of an immediate that belongs to calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Imm {
    /// A request has arrived in the ring.
    Request {
        /// Offset of the request in the ring, in bytes.
        offset: u64,
    },
    /// A reply has arrived in the given slot.
    Reply(SlotId),
    /// Requests have arrived in the lines.
    Lines,
    /// A reply has arrived in the line of the slot with this index. The caller must poll the line; it may have consumed
    /// the reply already.
    Look(u16),
}

impl Imm {
    /// Encodes the immediate.
    #[inline]
    pub fn emit(self) -> u32 {
        match self {
            Imm::Request { offset } => offset as u32,
            Imm::Reply(slot) => REPLY_FLAG | u32::from(slot.generation) << 16 | u32::from(slot.index),
            Imm::Lines => LINES_FLAG,
            Imm::Look(index) => LINES_FLAG | LOOK_FLAG | u32::from(index),
        }
    }

    /// Decodes an immediate.
    #[inline]
    pub fn parse(imm: u32) -> Imm {
        if imm & REPLY_FLAG == 0 && imm & LINES_FLAG != 0 {
            return if imm & LOOK_FLAG == 0 { Imm::Lines } else { Imm::Look(imm as u16) };
        }
        if imm & REPLY_FLAG == 0 {
            return Imm::Request { offset: u64::from(imm) };
        }
        let generation = (imm >> 16) as u16 & GENERATION_MASK;
        Imm::Reply(SlotId { index: imm as u16, generation })
    }
}

/// Returns the generation after `generation`, in 15 bits.
pub(super) fn next_generation(generation: u16) -> u16 {
    (generation + 1) & GENERATION_MASK
}

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Call a function.
    Call,
    /// Put a message into a port, waiting until the port has space.
    Send,
    /// Put a message into a port if the port has space now.
    TrySend,
    /// Put a message into a port, using the space reserved under this number.
    GrantedSend(u32),
    /// Put a message into a port, buffered until the port has space, so that the sender does not wait.
    Publish,
}

/// Maximum offset in a message, in bytes. It exceeds the length of any segment, and is low enough that sums with other
/// lengths do not overflow.
pub const OFFSET_BYTES_MAX: u64 = 1 << 56;

/// The location of a request's input bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// The input follows the header and the principal's name in the ring.
    InRing,
    /// The input is in the client's memory, at this address, from which the server reads it.
    At(RemoteAddress),
}

/// The header of a request.
///
/// ```text
///   0 kind | 1 name len | 2 slot u16 | 4 generation u16 | 6 flags u16 | 8 number u32 | 12 input len u32 | 16 reply max u32
///  20 [key u32 | room u32 | offset u64]    place of the reply, unless the default slot
///     [key u32 | zero u32 | offset u64]    place of the input, unless it follows
///     name of the principal
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestHeader {
    /// The kind of request.
    pub kind: Kind,
    /// Number of the function or port.
    pub number: u32,
    /// The caller's reply slot.
    pub slot: SlotId,
    /// Address and length in bytes of the memory for the reply; `None` if the reply goes into the default slot.
    pub reply_at: Option<(RemoteAddress, u32)>,
    /// Maximum length of the reply that the caller accepts, in bytes.
    pub reply_bytes_max: u32,
    /// Length of the input in bytes.
    pub input_bytes: u32,
    /// Location of the input.
    pub input: Input,
    /// Length in bytes of the principal's name, which follows the header.
    pub name_bytes: u8,
    /// Number that the client assigns to the principal, if any. Later requests in lines contain the number instead of
    /// the name.
    pub principal: Option<u16>,
}

const FIXED_BYTES: usize = 20;
const ADDRESS_BYTES: usize = 16;
const FLAG_REPLY_AT: u16 = 1;
const FLAG_INPUT_AT: u16 = 2;
/// The bits from this one on hold the principal's number plus one, or zero.
const PRINCIPAL_SHIFT: u32 = 4;

/// Maximum length of an encoded [`RequestHeader`], in bytes.
pub const REQUEST_HEADER_BYTES_MAX: usize = FIXED_BYTES + 2 * ADDRESS_BYTES;

impl RequestHeader {
    /// Returns the length of the encoded header, in bytes.
    pub fn len_bytes(&self) -> usize {
        let input_at = matches!(self.input, Input::At(_));
        FIXED_BYTES + ADDRESS_BYTES * (usize::from(self.reply_at.is_some()) + usize::from(input_at))
    }

    /// Returns the length of the whole request in the ring, in bytes: header, name, and an input that follows.
    pub fn request_bytes(&self) -> u64 {
        let input_bytes = if self.input == Input::InRing { u64::from(self.input_bytes) } else { 0 };
        self.len_bytes() as u64 + u64::from(self.name_bytes) + input_bytes
    }

    /// Encodes the header at the front of `bytes`. Returns the length of the header in bytes.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; REQUEST_HEADER_BYTES_MAX]) -> usize {
        let (kind, limit) = kind_code(self.kind, self.reply_bytes_max);
        bytes[0] = kind;
        bytes[1] = self.name_bytes;
        bytes[2..4].copy_from_slice(&self.slot.index.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.slot.generation.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.number.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.input_bytes.to_le_bytes());
        bytes[16..20].copy_from_slice(&limit.to_le_bytes());
        let principal = self.principal.map_or(0, |principal| principal + 1);
        let (mut flags, mut at) = (principal << PRINCIPAL_SHIFT, FIXED_BYTES);
        if let Some((address, room)) = self.reply_at {
            flags |= FLAG_REPLY_AT;
            emit_address(&mut bytes[at..at + ADDRESS_BYTES], address, room);
            at += ADDRESS_BYTES;
        }
        if let Input::At(address) = self.input {
            flags |= FLAG_INPUT_AT;
            emit_address(&mut bytes[at..at + ADDRESS_BYTES], address, 0);
            at += ADDRESS_BYTES;
        }
        bytes[6..8].copy_from_slice(&flags.to_le_bytes());
        at
    }

    /// Decodes the header at the front of `bytes`, which must be a private copy of the request. Fails if the content is
    /// invalid.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<RequestHeader, WireError> {
        let bad = WireError("request");
        let fixed: &[u8; FIXED_BYTES] = bytes.first_chunk().ok_or(bad)?;
        let (kind, reply_bytes_max) = kind_of(fixed[0], u32_at(fixed, 16)).ok_or(bad)?;
        let flags = u16_at(fixed, 6);
        let principal = (flags >> PRINCIPAL_SHIFT).checked_sub(1);
        let is_known = flags & ((1 << PRINCIPAL_SHIFT) - 1) & !(FLAG_REPLY_AT | FLAG_INPUT_AT) == 0;
        if !is_known || principal.is_some_and(|principal| principal >= PRINCIPALS_MAX) {
            return Err(bad);
        }
        let mut rest = &bytes[FIXED_BYTES..];
        let mut address = |flag| match flags & flag {
            0 => Ok(None),
            _ => parse_address(&mut rest).map(Some),
        };
        let (reply_at, input_at) = (address(FLAG_REPLY_AT)?, address(FLAG_INPUT_AT)?);
        let header = RequestHeader {
            kind,
            number: u32_at(fixed, 8),
            slot: SlotId { index: u16_at(fixed, 2), generation: u16_at(fixed, 4) & GENERATION_MASK },
            reply_at,
            reply_bytes_max,
            input_bytes: u32_at(fixed, 12),
            input: input_at.map_or(Input::InRing, |(address, _)| Input::At(address)),
            name_bytes: fixed[1],
            principal,
        };
        let has_room = header.reply_at.is_none_or(|(_, room)| room as usize >= REPLY_HEADER_BYTES);
        let fits = u64::from(header.input_bytes) <= PAYLOAD_BYTES_MAX;
        if has_room && fits { Ok(header) } else { Err(bad) }
    }
}

/// Encodes a kind and the number beside it, which for a call is the maximum length of the reply.
#[inline]
pub(super) fn kind_code(kind: Kind, reply_bytes_max: u32) -> (u8, u32) {
    match kind {
        Kind::Call => (0, reply_bytes_max),
        Kind::Send => (1, 0),
        Kind::TrySend => (2, 0),
        Kind::GrantedSend(grant) => (3, grant),
        Kind::Publish => (4, 0),
    }
}

/// Decodes a kind, with the maximum length of the reply for a call. Returns `None` if the code is invalid.
#[inline]
pub(super) fn kind_of(code: u8, limit: u32) -> Option<(Kind, u32)> {
    match code {
        0 => Some((Kind::Call, limit)),
        1 if limit == 0 => Some((Kind::Send, 0)),
        2 if limit == 0 => Some((Kind::TrySend, 0)),
        3 => Some((Kind::GrantedSend(limit), 0)),
        4 if limit == 0 => Some((Kind::Publish, 0)),
        _ => None,
    }
}

fn emit_address(bytes: &mut [u8], address: RemoteAddress, room: u32) {
    bytes[0..4].copy_from_slice(&address.key.0.to_le_bytes());
    bytes[4..8].copy_from_slice(&room.to_le_bytes());
    bytes[8..16].copy_from_slice(&address.offset.to_le_bytes());
}

fn parse_address(rest: &mut &[u8]) -> Result<(RemoteAddress, u32), WireError> {
    let (bytes, behind) = rest.split_first_chunk::<ADDRESS_BYTES>().ok_or(WireError("address"))?;
    *rest = behind;
    let offset = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
    if offset > OFFSET_BYTES_MAX {
        return Err(WireError("address"));
    }
    Ok((RemoteAddress { key: Key(u32_at(bytes, 0)), offset }, u32_at(bytes, 4)))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

/// Length of an encoded [`ReplyHeader`], in bytes.
pub const REPLY_HEADER_BYTES: usize = 8;

/// The header of a reply: status u32, number u32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyHeader {
    /// The result of the request.
    pub status: Status,
}

/// The result of a request, as the server reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The request is done; an output of this many bytes follows the header.
    Done(u32),
    /// The request is done; the header is followed by the address of an output of this many bytes in the server's
    /// memory.
    DoneAt(u32),
    /// No server offers the function or has opened the port.
    Unknown,
    /// The function's queue is full.
    Busy,
    /// The function or port does not accept requests from the principal.
    Denied,
    /// The output, of this many bytes, is longer than the caller accepts.
    TooLong(u32),
    /// The handler dropped the call without answering.
    Dropped,
    /// The server was closed while the call waited.
    Closed,
    /// The server has no memory for the output.
    NoMemory,
    /// The port has no space for the message now.
    WouldBlock,
    /// The port has reserved space for the message under this number: send it again with [`Kind::GrantedSend`].
    Granted(u32),
    /// The server's node is draining, and accepts no requests.
    Draining,
}

impl ReplyHeader {
    /// Encodes the header.
    #[inline]
    pub fn emit(self) -> [u8; REPLY_HEADER_BYTES] {
        let (code, number): (u32, u32) = match self.status {
            Status::Done(len) => (0, len),
            Status::DoneAt(len) => (1, len),
            Status::Unknown => (2, 0),
            Status::Busy => (3, 0),
            Status::Denied => (4, 0),
            Status::TooLong(len) => (5, len),
            Status::Dropped => (6, 0),
            Status::Closed => (7, 0),
            Status::NoMemory => (8, 0),
            Status::WouldBlock => (9, 0),
            Status::Granted(grant) => (10, grant),
            Status::Draining => (11, 0),
        };
        (u64::from(code) | u64::from(number) << 32).to_le_bytes()
    }

    /// Decodes `bytes`, which must be a private copy of a reply header. Fails if the content is invalid.
    #[inline]
    pub fn parse(bytes: [u8; REPLY_HEADER_BYTES]) -> Result<ReplyHeader, WireError> {
        let word = u64::from_le_bytes(bytes);
        let (code, number) = (word as u32, (word >> 32) as u32);
        let status = match (code, number) {
            (0, len) => Status::Done(len),
            (1, len) => Status::DoneAt(len),
            (2, 0) => Status::Unknown,
            (3, 0) => Status::Busy,
            (4, 0) => Status::Denied,
            (5, len) => Status::TooLong(len),
            (6, 0) => Status::Dropped,
            (7, 0) => Status::Closed,
            (8, 0) => Status::NoMemory,
            (9, 0) => Status::WouldBlock,
            (10, grant) => Status::Granted(grant),
            (11, 0) => Status::Draining,
            _ => return Err(WireError("reply")),
        };
        Ok(ReplyHeader { status })
    }
}

/// Encodes the address of an output, which follows the header of a reply with [`Status::DoneAt`].
pub fn emit_output_address(address: RemoteAddress) -> [u8; ADDRESS_BYTES] {
    let mut bytes = [0; ADDRESS_BYTES];
    emit_address(&mut bytes, address, 0);
    bytes
}

/// Decodes the address of an output, which follows the header of a reply with [`Status::DoneAt`]. Fails if the address
/// is invalid.
pub fn parse_output_address(bytes: [u8; ADDRESS_BYTES]) -> Result<RemoteAddress, WireError> {
    parse_address(&mut bytes.as_slice()).map(|(address, _)| address)
}

/// Length of the encoded address of an output, in bytes.
pub const OUTPUT_ADDRESS_BYTES: usize = ADDRESS_BYTES;

/// Control messages about calls. They travel in sends with the immediate [`CONTROL_IMM`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CallControl {
    /// Announces addresses in the sender's memory. Into the ring and lines there, the receiver writes requests; into
    /// the default slots and their lines, it writes replies.
    Handshake {
        /// Key of the ring's segment.
        ring_key: u32,
        /// Offset of the ring in its segment, in bytes.
        ring_offset: u64,
        /// Length of the ring in bytes.
        ring_bytes: u64,
        /// Key of the segment of the sender's head word, in which the receiver reports how far it has read the sender's
        /// requests.
        head_key: u32,
        /// Offset of the head word, in bytes.
        head_offset: u64,
        /// Key of the segment of the sender's default reply slots.
        slots_key: u32,
        /// Offset of the first default slot, in bytes.
        slots_offset: u64,
        /// Distance between slots, in bytes.
        slot_bytes: u32,
        /// Number of default slots.
        slots: u32,
        /// Key of the segment of the lines for the receiver's requests.
        lines_key: u32,
        /// Offset of the first line for requests, in bytes.
        lines_offset: u64,
        /// Key of the segment of the lines for the receiver's replies, one per default slot.
        replies_key: u32,
        /// Offset of the first line for replies, in bytes.
        replies_offset: u64,
    },
    /// The sender no longer waits for the reply in this slot, and asks the receiver to acknowledge this.
    Cancel {
        /// Index of the sender's reply slot.
        index: u16,
        /// Generation of the slot's use.
        generation: u16,
    },
    /// The sender will not write to this use of a slot any more: it acknowledges a cancel.
    Cancelled {
        /// Index of the receiver's reply slot.
        index: u16,
        /// Generation of the slot's use.
        generation: u16,
    },
    /// The sender has read the output that the receiver kept in its memory for this slot.
    Release {
        /// Index of the sender's reply slot.
        index: u16,
        /// Generation of the slot's use.
        generation: u16,
    },
    /// The sender no longer needs the space that a port has reserved for its message.
    Decline {
        /// The port that has reserved the space.
        port: u32,
        /// The number of the reservation, from [`Status::Granted`].
        grant: u32,
    },
}

impl CallControl {
    /// Returns true if the server must handle this message in order with requests: it counts in
    /// [`RequestLine::posted_before`](super::line::RequestLine::posted_before).
    pub fn is_ordered(&self) -> bool {
        matches!(self, CallControl::Cancel { .. })
    }

    /// Encodes the message.
    #[inline]
    pub fn emit(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("control messages have no unencodable parts")
    }

    /// Decodes a message. Fails if the content is invalid or an offset is above [`OFFSET_BYTES_MAX`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<CallControl, WireError> {
        match postcard::take_from_bytes(bytes) {
            Ok((control, [])) if are_offsets_plausible(&control) => Ok(control),
            _ => Err(WireError("control message")),
        }
    }
}

/// Returns true if all offsets in a message are at most [`OFFSET_BYTES_MAX`].
fn are_offsets_plausible(control: &CallControl) -> bool {
    match *control {
        CallControl::Handshake {
            ring_offset,
            head_offset,
            slots_offset,
            lines_offset,
            replies_offset,
            ..
        } => [ring_offset, head_offset, slots_offset, lines_offset, replies_offset]
            .iter()
            .all(|offset| *offset <= OFFSET_BYTES_MAX),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> RequestHeader {
        RequestHeader {
            kind: Kind::Call,
            number: 7,
            slot: SlotId { index: 3, generation: 4 },
            reply_at: None,
            reply_bytes_max: 100,
            input_bytes: 8,
            input: Input::InRing,
            name_bytes: 4,
            principal: None,
        }
    }

    fn check(header: RequestHeader) {
        let mut bytes = [0; REQUEST_HEADER_BYTES_MAX];
        let len = header.emit(&mut bytes);
        assert_eq!(len, header.len_bytes());
        assert_eq!(RequestHeader::parse(&bytes[..len]), Ok(header));
        assert!(RequestHeader::parse(&bytes[..len - 1]).is_err(), "truncated");
    }

    #[test]
    fn headers_round_trip() {
        let address = RemoteAddress { key: Key(9), offset: 1 << 40 };
        check(header());
        check(RequestHeader { reply_at: Some((address, 1 << 20)), ..header() });
        check(RequestHeader { input: Input::At(address), ..header() });
        let both = RequestHeader { reply_at: Some((address, 64)), input: Input::At(address), ..header() };
        check(both);
        for kind in [Kind::Send, Kind::TrySend, Kind::GrantedSend(5), Kind::Publish] {
            check(RequestHeader { kind, reply_bytes_max: 0, ..both });
        }
    }

    #[test]
    fn overflowing_offsets_are_refused() {
        let out_of_range = RemoteAddress { key: Key(9), offset: u64::MAX };
        let mut bytes = [0; REQUEST_HEADER_BYTES_MAX];
        for far in [
            RequestHeader { reply_at: Some((out_of_range, 64)), ..header() },
            RequestHeader { input: Input::At(out_of_range), ..header() },
        ] {
            let len = far.emit(&mut bytes);
            assert!(RequestHeader::parse(&bytes[..len]).is_err());
        }
        assert!(parse_output_address(emit_output_address(out_of_range)).is_err());
        let open = |ring_offset, head_offset, slots_offset| CallControl::Handshake {
            ring_key: 1,
            ring_offset,
            ring_bytes: 4096,
            head_key: 1,
            head_offset,
            slots_key: 1,
            slots_offset,
            slot_bytes: 4160,
            slots: 1024,
            lines_key: 1,
            lines_offset: 0,
            replies_key: 1,
            replies_offset: 0,
        };
        assert!(CallControl::parse(&open(1, 2, 3).emit()).is_ok());
        for control in [open(u64::MAX, 2, 3), open(1, u64::MAX, 3), open(1, 2, u64::MAX)] {
            assert!(CallControl::parse(&control.emit()).is_err());
        }
    }

    proptest! {
        #[test]
        fn bytes_are_refused_or_round_trip(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(header) = RequestHeader::parse(&bytes) {
                let mut again = [0; REQUEST_HEADER_BYTES_MAX];
                let len = header.emit(&mut again);
                prop_assert_eq!(RequestHeader::parse(&again[..len]), Ok(header));
            }
            let _ = CallControl::parse(&bytes);
        }

        #[test]
        fn reply_headers_are_refused_or_round_trip(bytes: [u8; REPLY_HEADER_BYTES]) {
            if let Ok(header) = ReplyHeader::parse(bytes) {
                prop_assert_eq!(header.emit(), bytes);
            }
        }
    }
}
