//! The atomic extended transport header (AtomicETH): the target word and the operands.
//!
//! ```text
//!   0              8           12                    20
//!  | address u64  | rkey u32  | swap or add u64     | compare u64 |
//! ```

use super::{WireError, header, u32_at, u64_at};

/// Length of the header in bytes.
pub const ATOMIC_ETH_BYTES: usize = 28;

/// The header's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicEthRepr {
    /// The address of the word, in the address space of the key.
    pub address: u64,
    /// The remote key of the memory.
    pub rkey: u32,
    /// The addend of a fetch-add, or the replacement of a compare-swap.
    pub swap_or_add: u64,
    /// The expected value of a compare-swap; unused by a fetch-add.
    pub compare: u64,
}

impl AtomicEthRepr {
    /// Parses the header at the start of `bytes`. Returns [`WireError::Truncated`] if `bytes` is shorter than the header.
    pub fn parse(bytes: &[u8]) -> Result<AtomicEthRepr, WireError> {
        let bytes = header::<ATOMIC_ETH_BYTES>(bytes)?;
        Ok(AtomicEthRepr {
            address: u64_at(bytes, 0),
            rkey: u32_at(bytes, 8),
            swap_or_add: u64_at(bytes, 12),
            compare: u64_at(bytes, 20),
        })
    }

    /// Writes the header to the start of `buffer`.
    pub fn emit(&self, buffer: &mut [u8]) {
        buffer[..8].copy_from_slice(&self.address.to_be_bytes());
        buffer[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        buffer[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        buffer[20..28].copy_from_slice(&self.compare.to_be_bytes());
    }
}
