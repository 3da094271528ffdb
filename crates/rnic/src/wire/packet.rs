//! Packets: the headers, which the opcode determines, and the payload between the headers and the ICRC.
//!
//! Parsing checks that a packet is well-formed; the queue pair checks that a packet is valid in the state of its
//! connection.

use super::aeth::AETH_BYTES;
use super::atomic_eth::ATOMIC_ETH_BYTES;
use super::bth::{BTH_BYTES, Bth, PKEY_DEFAULT};
use super::icrc::ICRC_BYTES;
use super::part_eth::PART_ETH_BYTES;
use super::path_eth::PATH_ETH_BYTES;
use super::reth::RETH_BYTES;
use super::{
    AethRepr, AtomicEthRepr, BthRepr, Opcode, PartEthRepr, PathEthRepr, Psn, Qpn, RethRepr, WireError, header,
};

/// Maximum length of all headers of a packet, in bytes. Atomic requests have the longest headers.
pub const HEADER_BYTES_MAX: usize = BTH_BYTES + ATOMIC_ETH_BYTES;

/// Length in bytes of the immediate data header (ImmDt), which consists of the immediate data.
const IMMDT_BYTES: usize = 4;
/// Length in bytes of the atomic acknowledge extended transport header (AtomicAckETH): the previous value of the word.
const ATOMIC_ACK_ETH_BYTES: usize = 8;

/// The kind of a packet, with its headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Headers {
    /// The first of several packets of a send.
    SendFirst,
    /// A middle packet of a send.
    SendMiddle,
    /// The last packet of a send.
    SendLast {
        /// Immediate data, delivered with the message.
        imm: Option<u32>,
    },
    /// The only packet of a send.
    SendOnly {
        /// Immediate data, delivered with the message.
        imm: Option<u32>,
    },
    /// The first of several packets of a write.
    WriteFirst(RethRepr),
    /// A middle packet of a write.
    WriteMiddle,
    /// The last packet of a write.
    WriteLast {
        /// Immediate data, delivered after the bytes have landed.
        imm: Option<u32>,
    },
    /// The only packet of a write.
    WriteOnly {
        /// The target of the write.
        reth: RethRepr,
        /// Immediate data, delivered after the bytes have landed.
        imm: Option<u32>,
    },
    /// Requests a read.
    ReadRequest(RethRepr),
    /// The first of several packets of a read response.
    ReadResponseFirst(AethRepr),
    /// A middle packet of a read response.
    ReadResponseMiddle,
    /// The last packet of a read response.
    ReadResponseLast(AethRepr),
    /// The only packet of a read response.
    ReadResponseOnly(AethRepr),
    /// An acknowledgement or a NAK.
    Acknowledge(AethRepr),
    /// The response to an atomic.
    AtomicAcknowledge {
        /// The outcome of the request.
        aeth: AethRepr,
        /// The word's previous value.
        old: u64,
    },
    /// Requests a compare-swap: replaces a word if it equals an expected value.
    CompareSwap(AtomicEthRepr),
    /// Requests a fetch-add: adds to a word.
    FetchAdd(AtomicEthRepr),
    /// Reports a missing packet. The payload is a bitmap of the later packets that the responder keeps, starting with
    /// the lowest bit of the first byte.
    Missing(AethRepr),
    /// Tests whether the network delivers packets of a given size.
    Probe(PathEthRepr),
    /// Answers a probe.
    ProbeAnswer(PathEthRepr),
    /// A part of a packet longer than the path MTU.
    Part(PartEthRepr),
}

/// A packet without its ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// The number of the destination queue pair.
    pub dest_qp: Qpn,
    /// The sequence number of the packet.
    pub psn: Psn,
    /// True if the packet requests an acknowledgement.
    pub ack_request: bool,
    /// True if the packet rings the receiver's doorbell.
    pub solicited: bool,
    /// The kind of the packet, with its headers.
    pub headers: Headers,
    /// The payload, without padding.
    pub payload: &'a [u8],
}

impl Headers {
    /// Returns the opcode.
    pub fn opcode(&self) -> Opcode {
        match self {
            Headers::SendFirst => Opcode::SendFirst,
            Headers::SendMiddle => Opcode::SendMiddle,
            Headers::SendLast { imm: None } => Opcode::SendLast,
            Headers::SendLast { imm: Some(_) } => Opcode::SendLastImm,
            Headers::SendOnly { imm: None } => Opcode::SendOnly,
            Headers::SendOnly { imm: Some(_) } => Opcode::SendOnlyImm,
            Headers::WriteFirst(_) => Opcode::WriteFirst,
            Headers::WriteMiddle => Opcode::WriteMiddle,
            Headers::WriteLast { imm: None } => Opcode::WriteLast,
            Headers::WriteLast { imm: Some(_) } => Opcode::WriteLastImm,
            Headers::WriteOnly { imm: None, .. } => Opcode::WriteOnly,
            Headers::WriteOnly { imm: Some(_), .. } => Opcode::WriteOnlyImm,
            Headers::ReadRequest(_) => Opcode::ReadRequest,
            Headers::ReadResponseFirst(_) => Opcode::ReadResponseFirst,
            Headers::ReadResponseMiddle => Opcode::ReadResponseMiddle,
            Headers::ReadResponseLast(_) => Opcode::ReadResponseLast,
            Headers::ReadResponseOnly(_) => Opcode::ReadResponseOnly,
            Headers::Acknowledge(_) => Opcode::Acknowledge,
            Headers::AtomicAcknowledge { .. } => Opcode::AtomicAcknowledge,
            Headers::CompareSwap(_) => Opcode::CompareSwap,
            Headers::FetchAdd(_) => Opcode::FetchAdd,
            Headers::Missing(_) => Opcode::Missing,
            Headers::Probe(_) => Opcode::Probe,
            Headers::ProbeAnswer(_) => Opcode::ProbeAnswer,
            Headers::Part(_) => Opcode::Part,
        }
    }

    /// Returns the AETH; `None` if packets of this kind have none.
    pub fn aeth(&self) -> Option<AethRepr> {
        match *self {
            Headers::ReadResponseFirst(aeth)
            | Headers::ReadResponseLast(aeth)
            | Headers::ReadResponseOnly(aeth)
            | Headers::Acknowledge(aeth)
            | Headers::Missing(aeth)
            | Headers::AtomicAcknowledge { aeth, .. } => Some(aeth),
            _ => None,
        }
    }

    /// Returns the length of all headers in bytes, including the base transport header.
    pub fn len_bytes(&self) -> usize {
        BTH_BYTES
            + match self {
                Headers::WriteOnly { imm: Some(_), .. } => RETH_BYTES + IMMDT_BYTES,
                Headers::WriteFirst(_) | Headers::WriteOnly { imm: None, .. } | Headers::ReadRequest(_) => {
                    RETH_BYTES
                }
                Headers::SendLast { imm: Some(_) }
                | Headers::SendOnly { imm: Some(_) }
                | Headers::WriteLast { imm: Some(_) } => IMMDT_BYTES,
                Headers::ReadResponseFirst(_)
                | Headers::ReadResponseLast(_)
                | Headers::ReadResponseOnly(_)
                | Headers::Acknowledge(_)
                | Headers::Missing(_) => AETH_BYTES,
                Headers::AtomicAcknowledge { .. } => AETH_BYTES + ATOMIC_ACK_ETH_BYTES,
                Headers::CompareSwap(_) | Headers::FetchAdd(_) => ATOMIC_ETH_BYTES,
                Headers::Probe(_) | Headers::ProbeAnswer(_) => PATH_ETH_BYTES,
                Headers::Part(_) => PART_ETH_BYTES,
                _ => 0,
            }
    }

    /// Returns true if the packet may carry a payload.
    fn may_have_payload(&self) -> bool {
        !matches!(
            self,
            Headers::ReadRequest(_)
                | Headers::Acknowledge(_)
                | Headers::AtomicAcknowledge { .. }
                | Headers::CompareSwap(_)
                | Headers::FetchAdd(_)
        )
    }

    /// Writes the headers behind the transport header.
    fn emit(&self, buffer: &mut [u8]) {
        let emit_imm = |imm: &Option<u32>, buffer: &mut [u8]| {
            if let Some(imm) = *imm {
                buffer[..IMMDT_BYTES].copy_from_slice(&imm.to_be_bytes());
            }
        };
        match self {
            Headers::WriteFirst(reth) | Headers::ReadRequest(reth) => reth.emit(buffer),
            Headers::WriteOnly { reth, imm } => {
                reth.emit(buffer);
                emit_imm(imm, &mut buffer[RETH_BYTES..]);
            }
            Headers::SendLast { imm } | Headers::SendOnly { imm } | Headers::WriteLast { imm } => {
                emit_imm(imm, buffer);
            }
            Headers::ReadResponseFirst(aeth)
            | Headers::ReadResponseLast(aeth)
            | Headers::ReadResponseOnly(aeth)
            | Headers::Acknowledge(aeth)
            | Headers::Missing(aeth) => aeth.emit(buffer),
            Headers::AtomicAcknowledge { aeth, old } => {
                aeth.emit(buffer);
                buffer[AETH_BYTES..][..ATOMIC_ACK_ETH_BYTES].copy_from_slice(&old.to_be_bytes());
            }
            Headers::CompareSwap(eth) | Headers::FetchAdd(eth) => eth.emit(buffer),
            Headers::Probe(path) | Headers::ProbeAnswer(path) => path.emit(buffer),
            Headers::Part(part) => part.emit(buffer),
            Headers::SendFirst | Headers::SendMiddle | Headers::WriteMiddle | Headers::ReadResponseMiddle => {
            }
        }
    }

    /// Parses the headers of `opcode`, which follow the transport header.
    fn parse(opcode: Opcode, bytes: &[u8]) -> Result<Headers, WireError> {
        let imm = |at: usize| {
            let bytes = bytes.get(at..).ok_or(WireError::Truncated)?;
            header(bytes).map(|imm| Some(u32::from_be_bytes(*imm)))
        };
        let reth = || RethRepr::parse(bytes);
        let aeth = || AethRepr::parse(bytes);
        let atomic = || AtomicEthRepr::parse(bytes);
        Ok(match opcode {
            Opcode::SendFirst => Headers::SendFirst,
            Opcode::SendMiddle => Headers::SendMiddle,
            Opcode::SendLast => Headers::SendLast { imm: None },
            Opcode::SendLastImm => Headers::SendLast { imm: imm(0)? },
            Opcode::SendOnly => Headers::SendOnly { imm: None },
            Opcode::SendOnlyImm => Headers::SendOnly { imm: imm(0)? },
            Opcode::WriteFirst => Headers::WriteFirst(reth()?),
            Opcode::WriteMiddle => Headers::WriteMiddle,
            Opcode::WriteLast => Headers::WriteLast { imm: None },
            Opcode::WriteLastImm => Headers::WriteLast { imm: imm(0)? },
            Opcode::WriteOnly => Headers::WriteOnly { reth: reth()?, imm: None },
            Opcode::WriteOnlyImm => Headers::WriteOnly { reth: reth()?, imm: imm(RETH_BYTES)? },
            Opcode::ReadRequest => Headers::ReadRequest(reth()?),
            Opcode::ReadResponseFirst => Headers::ReadResponseFirst(aeth()?),
            Opcode::ReadResponseMiddle => Headers::ReadResponseMiddle,
            Opcode::ReadResponseLast => Headers::ReadResponseLast(aeth()?),
            Opcode::ReadResponseOnly => Headers::ReadResponseOnly(aeth()?),
            Opcode::Acknowledge => Headers::Acknowledge(aeth()?),
            Opcode::AtomicAcknowledge => {
                let old = bytes.get(AETH_BYTES..).ok_or(WireError::Truncated)?;
                let old = u64::from_be_bytes(*header(old)?);
                Headers::AtomicAcknowledge { aeth: aeth()?, old }
            }
            Opcode::CompareSwap => Headers::CompareSwap(atomic()?),
            Opcode::FetchAdd => Headers::FetchAdd(atomic()?),
            Opcode::Missing => Headers::Missing(aeth()?),
            Opcode::Probe => Headers::Probe(PathEthRepr::parse(bytes)?),
            Opcode::ProbeAnswer => Headers::ProbeAnswer(PathEthRepr::parse(bytes)?),
            Opcode::Part => Headers::Part(PartEthRepr::parse(bytes)?),
        })
    }
}

/// Returns the length in bytes of a packet with these headers and a payload of `payload_bytes`, including padding and
/// ICRC.
pub fn packet_bytes(headers: &Headers, payload_bytes: usize) -> usize {
    headers.len_bytes() + payload_bytes.next_multiple_of(4) + ICRC_BYTES
}

impl<'a> Packet<'a> {
    /// Parses a packet without its ICRC: the bytes that [`super::Flow::open`] returns.
    // [ROCE-PKT-1]
    pub fn parse(body: &'a [u8]) -> Result<Packet<'a>, WireError> {
        let bth = BthRepr::parse(&Bth::new_checked(body)?)?;
        let headers = Headers::parse(bth.opcode, &body[BTH_BYTES..])?;
        let padded = body.get(headers.len_bytes()..).ok_or(WireError::Truncated)?;
        let pad = usize::from(bth.pad);
        if padded.len() % 4 != 0 || pad > padded.len() || !headers.may_have_payload() && !padded.is_empty() {
            return Err(WireError::Padding);
        }
        Ok(Packet {
            dest_qp: bth.dest_qp,
            psn: bth.psn,
            ack_request: bth.ack_request,
            solicited: bth.solicited,
            headers,
            payload: &padded[..padded.len() - pad],
        })
    }

    /// Writes the packet without the ICRC to the start of `buffer`, and returns its length in bytes with the ICRC.
    ///
    /// # Panics
    /// Panics if the buffer is shorter than [`packet_bytes`].
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        let payload = self.emit_headers(self.payload.len(), buffer);
        buffer[payload..][..self.payload.len()].copy_from_slice(self.payload);
        packet_bytes(&self.headers, self.payload.len())
    }

    /// Writes headers and padding for a payload of `payload_bytes`, and returns the offset at which the caller then
    /// writes the payload. Ignores the payload of `self`.
    ///
    /// # Panics
    /// Panics if the buffer is shorter than [`packet_bytes`].
    pub fn emit_headers(&self, payload_bytes: usize, buffer: &mut [u8]) -> usize {
        let padded = payload_bytes.next_multiple_of(4);
        let bth = BthRepr {
            opcode: self.headers.opcode(),
            solicited: self.solicited,
            pad: (padded - payload_bytes) as u8,
            pkey: PKEY_DEFAULT,
            dest_qp: self.dest_qp,
            ack_request: self.ack_request,
            place: 0,
            psn: self.psn,
        };
        bth.emit(buffer);
        self.headers.emit(&mut buffer[BTH_BYTES..]);
        let begin = self.headers.len_bytes();
        buffer[begin + payload_bytes..begin + padded].fill(0);
        begin
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Credit, Nak, RnrTimer, Syndrome};
    use super::*;
    use crate::config::Mtu;

    fn reth() -> impl Strategy<Value = RethRepr> {
        any::<(u64, u32, u32)>().prop_map(|(address, rkey, len)| RethRepr { address, rkey, len })
    }

    fn aeth() -> impl Strategy<Value = AethRepr> {
        let syndrome = prop_oneof![
            any::<u32>().prop_map(|packets| Syndrome::Ack(Credit::at_most(packets))),
            Just(Syndrome::Ack(Credit::UNLIMITED)),
            any::<u32>().prop_map(|ns| Syndrome::RnrNak(RnrTimer::at_least(u64::from(ns)))),
            prop::sample::select(vec![
                Nak::Sequence,
                Nak::InvalidRequest,
                Nak::RemoteAccess,
                Nak::RemoteOperation
            ])
            .prop_map(Syndrome::Nak),
        ];
        (syndrome, 0u32..1 << 24).prop_map(|(syndrome, msn)| AethRepr { syndrome, msn })
    }

    fn atomic() -> impl Strategy<Value = AtomicEthRepr> {
        any::<(u64, u32, u64, u64)>().prop_map(|(address, rkey, swap_or_add, compare)| AtomicEthRepr {
            address,
            rkey,
            swap_or_add,
            compare,
        })
    }

    fn path() -> impl Strategy<Value = PathEthRepr> {
        let mtu = || prop::sample::select(Mtu::ALL.to_vec());
        (mtu(), mtu(), any::<u8>()).prop_map(|(size, found, grant)| PathEthRepr { size, found, grant })
    }

    fn headers() -> impl Strategy<Value = Headers> {
        prop_oneof![
            prop::sample::select(vec![
                Headers::SendFirst,
                Headers::SendMiddle,
                Headers::WriteMiddle,
                Headers::ReadResponseMiddle
            ]),
            any::<Option<u32>>().prop_map(|imm| Headers::SendLast { imm }),
            any::<Option<u32>>().prop_map(|imm| Headers::SendOnly { imm }),
            any::<Option<u32>>().prop_map(|imm| Headers::WriteLast { imm }),
            reth().prop_map(Headers::WriteFirst),
            (reth(), any::<Option<u32>>()).prop_map(|(reth, imm)| Headers::WriteOnly { reth, imm }),
            reth().prop_map(Headers::ReadRequest),
            aeth().prop_map(Headers::ReadResponseFirst),
            aeth().prop_map(Headers::ReadResponseLast),
            aeth().prop_map(Headers::ReadResponseOnly),
            aeth().prop_map(Headers::Acknowledge),
            aeth().prop_map(Headers::Missing),
            (aeth(), any::<u64>()).prop_map(|(aeth, old)| Headers::AtomicAcknowledge { aeth, old }),
            atomic().prop_map(Headers::CompareSwap),
            atomic().prop_map(Headers::FetchAdd),
            path().prop_map(Headers::Probe),
            path().prop_map(Headers::ProbeAnswer),
            any::<(u32, u16, u16)>().prop_map(|(number, offset, whole)| Headers::Part(PartEthRepr {
                number,
                offset,
                whole
            })),
        ]
    }

    #[test]
    fn write_has_the_byte_layout_of_the_architecture() {
        let packet = Packet {
            dest_qp: Qpn::new(0x00_0102),
            psn: Psn::new(0xab_cdef),
            ack_request: true,
            solicited: true,
            headers: Headers::WriteOnly {
                reth: RethRepr { address: 0x1122_3344_5566_7788, rkey: 0x99aa_bbcc, len: 5 },
                imm: Some(0x0d0e_0f10),
            },
            payload: b"hello",
        };
        let mut buffer = [0xee; 64];
        let len = packet.emit(&mut buffer);
        #[rustfmt::skip]
        let expected = [
            0x0b, 0x80 | 0x40 | 3 << 4, 0xff, 0xff, 0, 0, 1, 2, 0x80, 0xab, 0xcd, 0xef,
            0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0, 0, 0, 5,
            0x0d, 0x0e, 0x0f, 0x10,
            b'h', b'e', b'l', b'l', b'o', 0, 0, 0,
        ];
        assert_eq!(len, expected.len() + ICRC_BYTES);
        assert_eq!(buffer[..expected.len()], expected);
    }

    #[test]
    fn truncated_or_wrongly_padded_packets_are_rejected() {
        let refused = |hex: &[u8], why| assert_eq!(Packet::parse(hex), Err(why));
        let bth = [0x04, 0x00, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 1];
        let with = |at: usize, byte: u8, behind: &[u8]| {
            let mut packet = bth.to_vec();
            packet[at] = byte;
            packet.extend(behind);
            packet
        };
        refused(&bth[..11], WireError::Truncated);
        refused(&with(0, 0x0a, &[0; 15]), WireError::Truncated);
        refused(&with(0, 0x12, &[0; 8]), WireError::Truncated);
        refused(&with(0, 0x16, &[]), WireError::Opcode(0x16));
        refused(&with(1, 0x01, &[]), WireError::Version(1));
        refused(&with(1, 0x10, &[]), WireError::Padding);
        refused(&with(1, 0x00, &[0; 3]), WireError::Padding);
        refused(&with(0, 0x11, &[0; 8]), WireError::Padding);
        refused(&with(0, 0x11, &[0x40, 0, 0, 0]), WireError::Syndrome(0x40));
        assert!(Packet::parse(&with(1, 0x30, &[7; 4])).is_ok_and(|packet| packet.payload == [7]));
    }

    proptest! {
        #[test]
        fn emitted_packets_parse_back(
            headers in headers(),
            numbers: (u32, u32),
            ack_request: bool,
            solicited: bool,
            payload in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let payload = if headers.may_have_payload() { &payload[..] } else { &[] };
            let (dest_qp, psn) = (Qpn::new(numbers.0), Psn::new(numbers.1));
            let packet = Packet { dest_qp, psn, ack_request, solicited, headers, payload };
            let mut buffer = [0xee; HEADER_BYTES_MAX + 64 + ICRC_BYTES];
            let len = packet.emit(&mut buffer);
            prop_assert!(headers.len_bytes() <= HEADER_BYTES_MAX);
            prop_assert_eq!(Packet::parse(&buffer[..len - ICRC_BYTES]), Ok(packet));
            for cut in 0..headers.len_bytes() {
                prop_assert_eq!(Packet::parse(&buffer[..cut]), Err(WireError::Truncated));
            }
        }

        #[test]
        fn parsing_random_bytes_never_panics(
            opcode in prop_oneof![0u8..0x18, 0xd0u8..0xd4],
            rest in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let mut packet = vec![opcode];
            packet.extend(rest);
            if let Ok(parsed) = Packet::parse(&packet) {
                let mut again = vec![0; packet.len() + ICRC_BYTES];
                let len = parsed.emit(&mut again);
                prop_assert_eq!(Packet::parse(&again[..len - ICRC_BYTES]), Ok(parsed));
            }
        }
    }
}
