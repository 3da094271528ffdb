//! The atomic extended transport header (AtomicETH): the target word and the operands.
//!
//! ```text
//!   0              8           12                    20
//!  | address u64  | rkey u32  | swap or add u64     | compare u64 |
//! ```

use super::{WireError, checked, u32_at, u64_at};

/// Length of the header in bytes.
pub const ATOMIC_ETH_BYTES: usize = 28;

/// A view over the header's bytes.
#[derive(Clone, Copy, Debug)]
pub struct AtomicEth<T: AsRef<[u8]>> {
    buffer: T,
}

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

impl<T: AsRef<[u8]>> AtomicEth<T> {
    /// Creates a view, or returns [`WireError::Truncated`] if the buffer is shorter than the header.
    pub fn new_checked(buffer: T) -> Result<AtomicEth<T>, WireError> {
        Ok(AtomicEth { buffer: checked::<ATOMIC_ETH_BYTES, T>(buffer)? })
    }

    /// Returns the word's address.
    pub fn address(&self) -> u64 {
        u64_at(self.buffer.as_ref(), 0)
    }

    /// Returns the remote key of the memory.
    pub fn rkey(&self) -> u32 {
        u32_at(self.buffer.as_ref(), 8)
    }

    /// Returns the addend of a fetch-add, or the replacement of a compare-swap.
    pub fn swap_or_add(&self) -> u64 {
        u64_at(self.buffer.as_ref(), 12)
    }

    /// Returns the expected value of a compare-swap.
    pub fn compare(&self) -> u64 {
        u64_at(self.buffer.as_ref(), 20)
    }
}

impl AtomicEthRepr {
    /// Parses the header.
    pub fn parse<T: AsRef<[u8]>>(eth: &AtomicEth<T>) -> AtomicEthRepr {
        AtomicEthRepr {
            address: eth.address(),
            rkey: eth.rkey(),
            swap_or_add: eth.swap_or_add(),
            compare: eth.compare(),
        }
    }

    /// Writes the header to the start of `buffer`.
    pub fn emit(&self, buffer: &mut [u8]) {
        buffer[..8].copy_from_slice(&self.address.to_be_bytes());
        buffer[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        buffer[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        buffer[20..28].copy_from_slice(&self.compare.to_be_bytes());
    }
}
