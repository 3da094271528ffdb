//! The base transport header (BTH), the first header of every packet.
//!
//! ```text
//!   0        1                         2          4              5              8             9
//!  | opcode | SE 1, M 1, pad 2, ver 4 | pkey u16 | F B reserved | dest qp u24  | A 1, place 7 | psn u24 |
//! ```
//!
//! Switches may change byte 4 (congestion marks), so the ICRC does not cover this byte. The seven bits after `A` are
//! reserved in the architecture; between Halite peers, they contain the packet's place in its train, see
//! [`super::icrc`].

use super::{Opcode, Psn, Qpn, WireError, header, put_u24, u24};

/// Length of the header in bytes.
pub const BTH_BYTES: usize = 12;

/// Key of the default partition, with full membership.
pub const PKEY_DEFAULT: u16 = 0xffff;

/// The byte that the ICRC does not cover.
pub(super) const VARIANT_BYTE: usize = 4;

/// A view over the header's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bth<'a>(&'a [u8; BTH_BYTES]);

/// The header's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BthRepr {
    /// The kind of the packet.
    pub opcode: Opcode,
    /// True if the packet rings the receiver's doorbell (verbs' solicited event).
    pub solicited: bool,
    /// Number of padding bytes between payload and ICRC.
    pub pad: u8,
    /// The partition key.
    pub pkey: u16,
    /// The number of the destination queue pair.
    pub dest_qp: Qpn,
    /// True if the packet requests an acknowledgement.
    pub ack_request: bool,
    /// Index of the packet in its train (the packets that one system call sends, see [`super::icrc`]), at most
    /// [`super::PLACE_MAX`]; 0 in packets to implementations other than Halite.
    pub place: u8,
    /// The sequence number of the packet.
    pub psn: Psn,
}

impl Bth<'_> {
    /// Creates a view of the header at the start of `bytes`, or returns [`WireError::Truncated`] if `bytes` is shorter.
    pub fn new_checked(bytes: &[u8]) -> Result<Bth<'_>, WireError> {
        header(bytes).map(Bth)
    }

    /// Returns the byte that encodes the opcode.
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// Returns true if the packet rings the receiver's doorbell.
    pub fn solicited(&self) -> bool {
        self.0[1] & 0x80 != 0
    }

    /// Returns the number of padding bytes.
    pub fn pad(&self) -> u8 {
        self.0[1] >> 4 & 3
    }

    /// Returns the version of the transport header; only 0 is valid.
    pub fn version(&self) -> u8 {
        self.0[1] & 15
    }

    /// Returns the partition key.
    pub fn pkey(&self) -> u16 {
        u16::from_be_bytes([self.0[2], self.0[3]])
    }

    /// Returns the number of the destination queue pair.
    pub fn dest_qp(&self) -> Qpn {
        Qpn::new(u24(&self.0[5..]))
    }

    /// Returns true if the packet requests an acknowledgement.
    pub fn ack_request(&self) -> bool {
        self.0[8] & 0x80 != 0
    }

    /// Returns the seven reserved bits: the index of the packet in its train.
    pub fn place(&self) -> u8 {
        self.0[8] & 0x7f
    }

    /// Returns the sequence number of the packet.
    pub fn psn(&self) -> Psn {
        Psn::new(u24(&self.0[9..]))
    }
}

impl BthRepr {
    /// Parses the header.
    pub fn parse(bth: &Bth<'_>) -> Result<BthRepr, WireError> {
        if bth.version() != 0 {
            return Err(WireError::Version(bth.version()));
        }
        Ok(BthRepr {
            opcode: Opcode::parse(bth.opcode())?,
            solicited: bth.solicited(),
            pad: bth.pad(),
            pkey: bth.pkey(),
            dest_qp: bth.dest_qp(),
            ack_request: bth.ack_request(),
            place: bth.place(),
            psn: bth.psn(),
        })
    }

    /// Writes the header to the start of `buffer`.
    // [ROCE-BTH-1]
    pub fn emit(&self, buffer: &mut [u8]) {
        /// `M`: the connection has no alternate path.
        const MIGRATED: u8 = 0x40;
        buffer[0] = self.opcode as u8;
        buffer[1] = u8::from(self.solicited) << 7 | MIGRATED | (self.pad & 3) << 4;
        buffer[2..4].copy_from_slice(&self.pkey.to_be_bytes());
        buffer[VARIANT_BYTE] = 0;
        put_u24(&mut buffer[5..], self.dest_qp.value());
        buffer[8] = u8::from(self.ack_request) << 7 | self.place & 0x7f;
        put_u24(&mut buffer[9..], self.psn.value());
    }
}
