//! The atomic acknowledge extended transport header (AtomicAckETH): 8 bytes with the previous value of the word.

use super::{WireError, checked, u64_at};

/// Length of the header in bytes.
pub const ATOMIC_ACK_ETH_BYTES: usize = 8;

/// A view over the header's bytes.
#[derive(Clone, Copy, Debug)]
pub struct AtomicAckEth<T: AsRef<[u8]>> {
    buffer: T,
}

/// The header's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicAckEthRepr {
    /// The word's previous value.
    pub old: u64,
}

impl<T: AsRef<[u8]>> AtomicAckEth<T> {
    /// Creates a view, or returns [`WireError::Truncated`] if the buffer is shorter than the header.
    pub fn new_checked(buffer: T) -> Result<AtomicAckEth<T>, WireError> {
        Ok(AtomicAckEth { buffer: checked::<ATOMIC_ACK_ETH_BYTES, T>(buffer)? })
    }

    /// Returns the word's previous value.
    pub fn old(&self) -> u64 {
        u64_at(self.buffer.as_ref(), 0)
    }
}

impl AtomicAckEthRepr {
    /// Parses the header.
    pub fn parse<T: AsRef<[u8]>>(eth: &AtomicAckEth<T>) -> AtomicAckEthRepr {
        AtomicAckEthRepr { old: eth.old() }
    }

    /// Writes the header to the start of `buffer`.
    pub fn emit(&self, buffer: &mut [u8]) {
        buffer[..ATOMIC_ACK_ETH_BYTES].copy_from_slice(&self.old.to_be_bytes());
    }
}
