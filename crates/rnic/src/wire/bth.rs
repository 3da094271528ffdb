//! The base transport header, with which every packet begins.
//!
//! ```text
//!   0        1                         2          4              5              8             9
//!  | opcode | SE 1, M 1, pad 2, ver 4 | pkey u16 | F B reserved | dest qp u24  | A 1, place 7 | psn u24 |
//! ```
//!
//! Byte 4 may change on the way (marks of congestion), so the ICRC does not cover it.  The seven bits behind `A` are reserved;
//! between our own ends they tell the packet's place in its train, see [`super::icrc`].

use super::{Opcode, Psn, Qpn, WireError, checked, put_u24, u24};

/// Its length.
pub const BTH_BYTES: usize = 12;

/// The partition of those who have not been given another one, as a full member.
pub const PKEY_DEFAULT: u16 = 0xffff;

/// The byte that the ICRC does not cover.
pub(super) const VARIANT_BYTE: usize = 4;

/// A view over its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bth<T: AsRef<[u8]>> {
    buffer: T,
}

/// What it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BthRepr {
    /// What the packet is.
    pub opcode: Opcode,
    /// Whether the receiver's doorbell is to ring (verbs' solicited event).
    pub solicited: bool,
    /// How many bytes of padding stand between payload and ICRC.
    pub pad: u8,
    /// The partition.
    pub pkey: u16,
    /// The queue pair that it is for.
    pub dest_qp: Qpn,
    /// Whether an acknowledgement is asked for.
    pub ack_request: bool,
    /// The packet's place in its train, at most [`super::PLACE_MAX`]; zero towards others than our own ends.
    pub place: u8,
    /// The number of the packet.
    pub psn: Psn,
}

impl<T: AsRef<[u8]>> Bth<T> {
    /// A view of what is long enough.
    pub fn new_checked(buffer: T) -> Result<Bth<T>, WireError> {
        Ok(Bth { buffer: checked::<BTH_BYTES, T>(buffer)? })
    }

    fn byte(&self, at: usize) -> u8 {
        self.buffer.as_ref()[at]
    }

    /// The opcode's byte.
    pub fn opcode(&self) -> u8 {
        self.byte(0)
    }

    /// Whether the doorbell is to ring.
    pub fn solicited(&self) -> bool {
        self.byte(1) & 0x80 != 0
    }

    /// Bytes of padding.
    pub fn pad(&self) -> u8 {
        self.byte(1) >> 4 & 3
    }

    /// Version of the transport header; there is only version 0.
    pub fn version(&self) -> u8 {
        self.byte(1) & 15
    }

    /// The partition.
    pub fn pkey(&self) -> u16 {
        u16::from_be_bytes([self.byte(2), self.byte(3)])
    }

    /// The queue pair that it is for.
    pub fn dest_qp(&self) -> Qpn {
        Qpn::new(u24(&self.buffer.as_ref()[5..]))
    }

    /// Whether an acknowledgement is asked for.
    pub fn ack_request(&self) -> bool {
        self.byte(8) & 0x80 != 0
    }

    /// The seven reserved bits.
    pub fn place(&self) -> u8 {
        self.byte(8) & 0x7f
    }

    /// The number of the packet.
    pub fn psn(&self) -> Psn {
        Psn::new(u24(&self.buffer.as_ref()[9..]))
    }
}

impl BthRepr {
    /// What the header says, if that has a meaning here.
    pub fn parse<T: AsRef<[u8]>>(bth: &Bth<T>) -> Result<BthRepr, WireError> {
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
        /// `M`: the connection has no other path that it could go over to.
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
