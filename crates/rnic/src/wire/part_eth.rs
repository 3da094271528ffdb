//! The header of a part of a packet (PartETH): 8 bytes before the bytes of the part.
//!
//! ```text
//!   0 number u32 | 4 offset u16 | 6 whole u16
//! ```

use super::{WireError, header, u32_at};

/// Length of the header in bytes.
pub const PART_ETH_BYTES: usize = 8;

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

impl PartEthRepr {
    /// Parses the header at the start of `bytes`. Returns [`WireError::Truncated`] if `bytes` is shorter than the header.
    pub fn parse(bytes: &[u8]) -> Result<PartEthRepr, WireError> {
        let bytes = header::<PART_ETH_BYTES>(bytes)?;
        let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        Ok(PartEthRepr { number: u32_at(bytes, 0), offset: u16_at(4), whole: u16_at(6) })
    }

    /// Writes the header to the start of `buffer`.
    pub fn emit(&self, buffer: &mut [u8]) {
        buffer[..4].copy_from_slice(&self.number.to_be_bytes());
        buffer[4..6].copy_from_slice(&self.offset.to_be_bytes());
        buffer[6..8].copy_from_slice(&self.whole.to_be_bytes());
    }
}
