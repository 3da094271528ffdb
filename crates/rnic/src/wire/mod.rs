//! The format of RoCEv2 packets in UDP payloads: headers, packets and the invariant checksum (ICRC).
//!
//! ```text
//!  | BTH 12 | RETH 16, AtomicETH 28 or AETH 4 | ImmDt 4 or AtomicAckETH 8 | payload | padding 0..3 | ICRC 4 |
//! ```
//!
//! Each header has a file with a `Repr` of its fields, which can only hold valid values; ImmDt and AtomicAckETH are plain
//! integers. [`bth::Bth`] also reads single fields of a packet. [`Packet`] combines the headers; [`Flow`] writes and
//! verifies the ICRC of packets between two addresses. All numbers are big-endian, except the ICRC.

pub mod aeth;
pub mod atomic_eth;
pub mod bth;
pub mod icrc;
mod number;
pub mod opcode;
pub mod packet;
pub mod part_eth;
pub mod path_eth;
pub mod reth;

pub use aeth::{AethRepr, Credit, Nak, RnrTimer, Syndrome};
pub use atomic_eth::AtomicEthRepr;
pub use bth::BthRepr;
pub use icrc::{Flow, ICRC_BYTES, PLACE_MAX};
pub use number::{Psn, Qpn, SEQUENCE_WINDOW};
pub use opcode::{Opcode, Range};
pub use packet::{HEADER_BYTES_MAX, Headers, Packet};
pub use part_eth::PartEthRepr;
pub use path_eth::PathEthRepr;
pub use reth::RethRepr;

/// The reason why a packet is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    /// The packet is shorter than its headers.
    #[error("the packet is shorter than its headers")]
    Truncated,
    /// The opcode belongs neither to reliable connections nor to Halite's extensions.
    #[error("opcode {0:#04x} belongs neither to reliable connections nor to Halite's extensions")]
    Opcode(u8),
    /// The version of the transport header is not 0.
    #[error("the transport header has version {0}; only version 0 is valid")]
    Version(u8),
    /// The padding exceeds the payload, or the length of the packet is not a multiple of four.
    #[error("the padding exceeds the payload, or the length is not a multiple of four")]
    Padding,
    /// The syndrome is neither an acknowledgement nor a known NAK.
    #[error("syndrome {0:#04x} is not defined")]
    Syndrome(u8),
    /// The code in a path probe does not stand for a packet size.
    #[error("code {0} does not stand for a packet size")]
    Size(u8),
    /// The ICRC does not match the packet.
    #[error("the invariant checksum (ICRC) does not match the packet")]
    Icrc,
}

/// Returns the first `LEN` bytes, or [`WireError::Truncated`].
fn header<const LEN: usize>(bytes: &[u8]) -> Result<&[u8; LEN], WireError> {
    bytes.first_chunk().ok_or(WireError::Truncated)
}

fn u24(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn put_u24(bytes: &mut [u8], value: u32) {
    bytes[..3].copy_from_slice(&value.to_be_bytes()[1..]);
}
