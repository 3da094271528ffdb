//! The packet format of stateless pairs: a transport header, one header for all kinds, a payload, and a tag.
//!
//! ```text
//!   BTH, 12 bytes: opcode 0xe0 to 0xef or 0xcf, queue pair of the requester, packet number = lower bits of `number`
//!   0        8        16       24     28     32      36       37        38
//!  | number | stamp  | address| rkey | len  | epoch | rights | status  | payload len |     40 bytes, big-endian
//!   payload, padded to 4 ─ acknowledgement, 16 bytes, if bit 0x10 of the opcode is set ─ tag, 16 bytes ─ ICRC, 4 bytes
//! ```

use super::tag::{Grant, Rights, TAG_BYTES};
use crate::wire::{ICRC_BYTES, Qpn};

/// Bit of the opcode of a request that has an [`Ack`].
const HAS_ACK: u8 = 0x10;
/// Length of an [`Ack`] in bytes.
pub(super) const ACK_BYTES: usize = 16;

/// Length of the transport header in bytes.
pub(super) const BTH_BYTES: usize = 12;
const HEADER_BYTES: usize = 40;
/// Offset of the payload in a packet.
pub(super) const PAYLOAD_AT: usize = BTH_BYTES + HEADER_BYTES;
/// Maximum payload of a stateless pair's packet, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 4_096;
/// Maximum payload over a path whose MTU is unknown: with all headers, the packet fits into an Ethernet frame of 1,500
/// bytes.
pub const PAYLOAD_BYTES_FIRST: usize = 1_024;
/// Length in bytes of a stateless pair's packet without its payload and padding.
pub const OVERHEAD_BYTES: usize = BTH_BYTES + HEADER_BYTES + TAG_BYTES + ICRC_BYTES;

/// Length in bytes of the message of a [`Work::WriteNote`](super::Work::WriteNote).
pub const NOTE_BYTES: usize = 8;
/// Maximum length in bytes of a message that a [`Work::Send`](super::Work::Send) carries in several packets.
pub const SEND_BYTES_MAX: usize = 1 << 17;

/// Maximum length in bytes of a [`Work::Call`](super::Work::Call), and of its answer.
pub const CALL_BYTES_MAX: usize = 1 << 17;
/// Length in bytes of a part of a call's input. A packet has one or several, and the last part may be shorter.
pub(super) const PART_BYTES: usize = PAYLOAD_BYTES_FIRST;
/// Length in bytes of the number of a call, the payload of a [`Kind::Gdc`].
pub(super) const CALL_NUMBER_BYTES: usize = 8;

/// Maximum number of bytes that a [`Work::WriteNote`](super::Work::WriteNote) writes to memory.
pub const NOTED_BYTES_MAX: usize = 1 << 18;

/// The kind of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Receive data: a write of the payload to the responder's memory.
    Rd = 0xe0,
    /// Answers an RD.
    Rda,
    /// Give data: a read of the responder's memory.
    Gd,
    /// Answers a GD.
    Gda,
    /// A work queue entry: announces an order of the responder.
    Wqep,
    /// Acknowledges a WQEP or a CQEP.
    Ea,
    /// A completion queue entry: reports the end of an order.
    Cqep,
    /// Adds to a word of the responder's memory.
    FetchAdd,
    /// Compares a word of the responder's memory, and replaces it if it is equal.
    CompareSwap,
    /// Answers a [`Kind::FetchAdd`] or a [`Kind::CompareSwap`]: carries the previous value of the word.
    Ata,
    /// A message for the responder's process.
    Send,
    /// Answers a [`Kind::Send`].
    Senda,
    /// A message for the responder's process, which answers it.
    Call,
    /// Carries the answer to a [`Kind::Call`], or reports that the call is in progress.
    Calla,
    /// Receive data with a message: a write of the payload to the responder's memory, and, after it, a message for the
    /// responder's process, which precedes the payload. Several packets may carry a long write, each with the message.
    Rdm,
    /// Give data of an answer: a read of the recorded answer to a call, whose number is the payload.
    Gdc,
    /// Receive data of an input: parts of the input of a call. The address is the number of the call.
    Rdc = 0xcf,
}

/// The end that handles a packet; see [`receiver_of`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receiver {
    /// The responder: the packet is a request.
    Responder,
    /// The requester: the packet is the answer to a request.
    Requester,
}

/// Returns the end that handles a packet, if the packet is a read, a write, an atomic, a message other than a call, or
/// the answer to one of these; otherwise `None`. Reads only the opcode.
pub fn receiver_of(packet: &[u8]) -> Option<Receiver> {
    let opcode = *packet.first()?;
    // Most packets of queue pairs end here.
    if opcode < Kind::Rd as u8 {
        return None;
    }
    Kind::from_opcode(opcode & !HAS_ACK)?.receiver()
}

impl Kind {
    /// All kinds, in the order of their opcodes.
    const ALL: [Kind; 17] = [
        Kind::Rd,
        Kind::Rda,
        Kind::Gd,
        Kind::Gda,
        Kind::Wqep,
        Kind::Ea,
        Kind::Cqep,
        Kind::FetchAdd,
        Kind::CompareSwap,
        Kind::Ata,
        Kind::Send,
        Kind::Senda,
        Kind::Call,
        Kind::Calla,
        Kind::Rdm,
        Kind::Gdc,
        Kind::Rdc,
    ];

    fn from_opcode(opcode: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == opcode)
    }

    /// See [`receiver_of`].
    fn receiver(self) -> Option<Receiver> {
        match self {
            Kind::Rd | Kind::Gd | Kind::FetchAdd | Kind::CompareSwap | Kind::Send | Kind::Rdm => {
                Some(Receiver::Responder)
            }
            Kind::Rda | Kind::Gda | Kind::Ata | Kind::Senda => Some(Receiver::Requester),
            Kind::Wqep | Kind::Ea | Kind::Cqep | Kind::Call | Kind::Calla | Kind::Gdc | Kind::Rdc => None,
        }
    }

    /// Returns the kind of the answer to a request; `None` if packets of this kind are no requests.
    pub(super) fn answer(self) -> Option<Kind> {
        match self {
            Kind::Rd | Kind::Rdm | Kind::Rdc => Some(Kind::Rda),
            Kind::Gd | Kind::Gdc => Some(Kind::Gda),
            Kind::Cqep => Some(Kind::Ea),
            Kind::FetchAdd | Kind::CompareSwap => Some(Kind::Ata),
            Kind::Send => Some(Kind::Senda),
            Kind::Call => Some(Kind::Calla),
            Kind::Rda | Kind::Gda | Kind::Wqep | Kind::Ea | Kind::Ata | Kind::Senda | Kind::Calla => None,
        }
    }
}

/// The outcome of a request, in its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Status {
    Done = 0,
    /// The stamp is too old or in the future. The request had no effect.
    Expired,
    /// The record of effects or the pool of messages is full. The request had no effect.
    Busy,
    /// The memory does not exist, or the grant does not permit this access. The request had no effect.
    Refused,
    /// The responder waits for the rest of the call's input, or its process has the call and has not answered it yet.
    InProgress,
}

/// A successful RDA or SENDA that travels in a request of the answering end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ack {
    /// Number of the answered packet.
    pub(super) number: u64,
    /// Stamp of the answer: the time of the answering responder's clock in ns.
    pub(super) stamp_ns: u64,
}

/// A packet without its ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Packet<'a> {
    pub(super) kind: Kind,
    /// The queue pair of the requester, in both directions.
    pub(super) qpn: Qpn,
    /// The packet's number, unique among the packets of its requester; in WQEP, EA and CQEP, the number of the order.
    pub(super) number: u64,
    /// Time of the responder's clock in ns: in a request, at its first transmission; in an answer, at its transmission.
    pub(super) stamp_ns: u64,
    pub(super) address: u64,
    pub(super) rkey: u32,
    /// In a GD, the number of bytes to read. In an RD, the number of bytes from `address` to the end of the request, which
    /// begin with the payload; in an RDM, this number plus the length of its message. In a CALL, the length of the input.
    /// In an RDC, the number of bytes to the end of the input. In other packets, the length of the payload.
    pub(super) len: u32,
    pub(super) epoch: u32,
    pub(super) rights: Rights,
    pub(super) status: Status,
    pub(super) payload: &'a [u8],
    pub(super) ack: Option<Ack>,
}

impl<'a> Packet<'a> {
    /// Returns a packet under a grant, without address and payload.
    pub(super) fn new(kind: Kind, grant: &Grant, number: u64, stamp_ns: u64) -> Packet<'a> {
        let Grant { qpn, rkey, rights, epoch, .. } = *grant;
        Packet {
            kind,
            qpn,
            number,
            stamp_ns,
            address: 0,
            rkey,
            len: 0,
            epoch,
            rights,
            status: Status::Done,
            payload: &[],
            ack: None,
        }
    }

    /// Parses a packet without its ICRC. Returns the packet, its bytes before the tag, and the tag.
    // [ROCE-STATELESS-1]
    pub(super) fn parse(body: &'a [u8]) -> Option<(Packet<'a>, &'a [u8], &'a [u8; TAG_BYTES])> {
        let (covered, tag) = body.split_last_chunk::<TAG_BYTES>()?;
        let (bth, rest) = covered.split_first_chunk::<BTH_BYTES>()?;
        let (header, rest) = rest.split_first_chunk::<HEADER_BYTES>()?;
        let kind = Kind::from_opcode(bth[0] & !HAS_ACK)?;
        let (padded, ack) = match bth[0] & HAS_ACK {
            0 => (rest, None),
            _ => {
                let (padded, ack) = rest.split_last_chunk::<ACK_BYTES>()?;
                (padded, Some(ack))
            }
        };
        let u64_at = |at: usize| u64::from_be_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        let u32_at = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let status = match header[37] {
            0 => Status::Done,
            1 => Status::Expired,
            2 => Status::Busy,
            3 => Status::Refused,
            4 => Status::InProgress,
            _ => return None,
        };
        let len = u32_at(28);
        let carried = usize::from(u16::from_be_bytes([header[38], header[39]]));
        let is_complete = match kind {
            Kind::Gd => carried == 0,
            Kind::Gdc => carried == CALL_NUMBER_BYTES,
            // Every packet but the last one has a payload, so each makes progress.
            Kind::Rd => carried <= len as usize && (carried > 0 || len == 0),
            Kind::Call | Kind::Rdc => {
                let is_whole = carried == len as usize || carried.is_multiple_of(PART_BYTES) && carried > 0;
                len as usize <= CALL_BYTES_MAX && carried <= len as usize && is_whole
            }
            Kind::Rdm => carried <= len as usize && (carried > NOTE_BYTES || len as usize == carried),
            _ => carried == len as usize,
        };
        let may_have_ack = kind.receiver() == Some(Receiver::Responder);
        if !is_complete
            || ack.is_some() && !may_have_ack
            || carried > PAYLOAD_BYTES_MAX
            || kind == Kind::Rdm && carried < NOTE_BYTES
            || padded.len() != carried.next_multiple_of(4)
        {
            return None;
        }
        let packet = Packet {
            kind,
            qpn: Qpn::new(u32::from_be_bytes([0, bth[5], bth[6], bth[7]])),
            number: u64_at(0),
            stamp_ns: u64_at(8),
            address: u64_at(16),
            rkey: u32_at(24),
            len,
            epoch: u32_at(32),
            rights: Rights::from_bits(header[36])?,
            status,
            payload: &padded[..carried],
            ack: ack.map(Ack::parse),
        };
        Some((packet, covered, tag))
    }

    /// Writes the packet without tag and ICRC, and returns its length.
    pub(super) fn emit(&self, buffer: &mut [u8]) -> usize {
        buffer[PAYLOAD_AT..][..self.payload.len()].copy_from_slice(self.payload);
        self.emit_around(self.payload.len(), buffer)
    }

    /// Writes the packet, as [`Packet::emit`] does, around `carried` bytes of payload that `buffer` already has at
    /// [`PAYLOAD_AT`].
    pub(super) fn emit_around(&self, carried: usize, buffer: &mut [u8]) -> usize {
        let padded = carried.next_multiple_of(4);
        buffer[0] = self.kind as u8 | self.ack.map_or(0, |_| HAS_ACK);
        // Bit "migrated" and length of the padding; then the default partition.
        buffer[1] = 0x40 | ((padded - carried) as u8) << 4;
        buffer[2..5].copy_from_slice(&[0xff, 0xff, 0]);
        buffer[5..8].copy_from_slice(&self.qpn.value().to_be_bytes()[1..]);
        buffer[8] = 0;
        buffer[9..12].copy_from_slice(&self.number.to_be_bytes()[5..]);
        let header = &mut buffer[BTH_BYTES..PAYLOAD_AT];
        header[..8].copy_from_slice(&self.number.to_be_bytes());
        header[8..16].copy_from_slice(&self.stamp_ns.to_be_bytes());
        header[16..24].copy_from_slice(&self.address.to_be_bytes());
        header[24..28].copy_from_slice(&self.rkey.to_be_bytes());
        header[28..32].copy_from_slice(&self.len.to_be_bytes());
        header[32..36].copy_from_slice(&self.epoch.to_be_bytes());
        header[36..38].copy_from_slice(&[self.rights.bits(), self.status as u8]);
        header[38..40].copy_from_slice(&(carried as u16).to_be_bytes());
        buffer[PAYLOAD_AT + carried..PAYLOAD_AT + padded].fill(0);
        let end = PAYLOAD_AT + padded;
        let Some(Ack { number, stamp_ns }) = self.ack else { return end };
        buffer[end..end + 8].copy_from_slice(&number.to_be_bytes());
        buffer[end + 8..end + ACK_BYTES].copy_from_slice(&stamp_ns.to_be_bytes());
        end + ACK_BYTES
    }
}

impl Ack {
    fn parse(bytes: &[u8; ACK_BYTES]) -> Ack {
        let [number, stamp_ns] =
            [0, 8].map(|at| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes")));
        Ack { number, stamp_ns }
    }
}
