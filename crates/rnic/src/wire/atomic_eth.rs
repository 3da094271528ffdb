//! The atomic extended transport header: which word, and what becomes of it.
//!
//! ```text
//!   0              8           12                    20
//!  | address u64  | rkey u32  | swap or add u64     | compare u64 |
//! ```

use super::{WireError, checked, u32_at, u64_at};

/// Its length.
pub const ATOMIC_ETH_BYTES: usize = 28;

/// A view over its bytes.
#[derive(Clone, Copy, Debug)]
pub struct AtomicEth<T: AsRef<[u8]>> {
    buffer: T,
}

/// What it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicEthRepr {
    /// The word, in the addresses of the key.
    pub address: u64,
    /// The key of the memory.
    pub rkey: u32,
    /// What is added, or what the word becomes.
    pub swap_or_add: u64,
    /// What the word must hold; of no meaning in a fetch-add.
    pub compare: u64,
}

impl<T: AsRef<[u8]>> AtomicEth<T> {
    /// A view of what is long enough.
    pub fn new_checked(buffer: T) -> Result<AtomicEth<T>, WireError> {
        Ok(AtomicEth { buffer: checked::<ATOMIC_ETH_BYTES, T>(buffer)? })
    }

    /// The word.
    pub fn address(&self) -> u64 {
        u64_at(self.buffer.as_ref(), 0)
    }

    /// The key.
    pub fn rkey(&self) -> u32 {
        u32_at(self.buffer.as_ref(), 8)
    }

    /// What is added, or what the word becomes.
    pub fn swap_or_add(&self) -> u64 {
        u64_at(self.buffer.as_ref(), 12)
    }

    /// What the word must hold.
    pub fn compare(&self) -> u64 {
        u64_at(self.buffer.as_ref(), 20)
    }
}

impl AtomicEthRepr {
    /// What the header says.
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
