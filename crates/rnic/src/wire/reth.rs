//! The RDMA extended transport header (RETH): the memory that a write or a read accesses.
//!
//! ```text
//!   0              8           12
//!  | address u64  | rkey u32  | length u32 |
//! ```

use super::{WireError, checked, u32_at, u64_at};

/// Length of the header in bytes.
pub const RETH_BYTES: usize = 16;

/// A view over the header's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Reth<T: AsRef<[u8]>> {
    buffer: T,
}

/// The header's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RethRepr {
    /// The address of the first byte, in the address space of the key.
    pub address: u64,
    /// The remote key of the memory.
    pub rkey: u32,
    /// Length of the whole message in bytes.
    pub len: u32,
}

impl<T: AsRef<[u8]>> Reth<T> {
    /// Creates a view, or returns [`WireError::Truncated`] if the buffer is shorter than the header.
    pub fn new_checked(buffer: T) -> Result<Reth<T>, WireError> {
        Ok(Reth { buffer: checked::<RETH_BYTES, T>(buffer)? })
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> u64 {
        u64_at(self.buffer.as_ref(), 0)
    }

    /// Returns the remote key of the memory.
    pub fn rkey(&self) -> u32 {
        u32_at(self.buffer.as_ref(), 8)
    }

    /// Returns the length of the whole message in bytes.
    pub fn length(&self) -> u32 {
        u32_at(self.buffer.as_ref(), 12)
    }
}

impl RethRepr {
    /// Parses the header.
    pub fn parse<T: AsRef<[u8]>>(reth: &Reth<T>) -> RethRepr {
        RethRepr { address: reth.address(), rkey: reth.rkey(), len: reth.length() }
    }

    /// Writes the header to the start of `buffer`.
    pub fn emit(&self, buffer: &mut [u8]) {
        buffer[..8].copy_from_slice(&self.address.to_be_bytes());
        buffer[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        buffer[12..16].copy_from_slice(&self.len.to_be_bytes());
    }
}
