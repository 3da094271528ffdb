//! The header of a part of a packet (PartETH): 8 bytes before the bytes of the part.
//!
//! ```text
//!   0 number u32 | 4 offset u16 | 6 whole u16
//! ```

use super::{WireError, checked, u32_at};

/// Length of the header in bytes.
pub const PART_ETH_BYTES: usize = 8;

/// A view over the header's bytes.
#[derive(Clone, Copy, Debug)]
pub struct PartEth<T: AsRef<[u8]>> {
    buffer: T,
}

/// The header's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartEthRepr {
    /// Number of the packet to which the part belongs. The sender numbers the packets that it sends in parts.
    pub number: u32,
    /// Offset of the part in the whole packet, in bytes.
    pub offset: u16,
    /// Length of the whole packet in bytes, without its ICRC.
    pub whole: u16,
}

impl<T: AsRef<[u8]>> PartEth<T> {
    /// Creates a view, or returns [`WireError::Truncated`] if the buffer is shorter than the header.
    pub fn new_checked(buffer: T) -> Result<PartEth<T>, WireError> {
        Ok(PartEth { buffer: checked::<PART_ETH_BYTES, T>(buffer)? })
    }

    fn u16_at(&self, at: usize) -> u16 {
        let bytes = self.buffer.as_ref();
        u16::from_be_bytes([bytes[at], bytes[at + 1]])
    }
}

impl PartEthRepr {
    /// Parses the header.
    pub fn parse<T: AsRef<[u8]>>(eth: &PartEth<T>) -> PartEthRepr {
        let number = u32_at(eth.buffer.as_ref(), 0);
        PartEthRepr { number, offset: eth.u16_at(4), whole: eth.u16_at(6) }
    }

    /// Writes the header to the start of `buffer`.
    pub fn emit(&self, buffer: &mut [u8]) {
        buffer[..4].copy_from_slice(&self.number.to_be_bytes());
        buffer[4..6].copy_from_slice(&self.offset.to_be_bytes());
        buffer[6..8].copy_from_slice(&self.whole.to_be_bytes());
    }
}
