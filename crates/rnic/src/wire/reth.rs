//! The RDMA extended transport header (RETH): the memory that a write or a read accesses.
//!
//! ```text
//!   0              8           12
//!  | address u64  | rkey u32  | length u32 |
//! ```

use super::{WireError, header, u32_at, u64_at};

/// Length of the header in bytes.
pub const RETH_BYTES: usize = 16;

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

impl RethRepr {
    /// Parses the header at the start of `bytes`. Returns [`WireError::Truncated`] if `bytes` is shorter than the header.
    pub fn parse(bytes: &[u8]) -> Result<RethRepr, WireError> {
        let bytes = header::<RETH_BYTES>(bytes)?;
        Ok(RethRepr { address: u64_at(bytes, 0), rkey: u32_at(bytes, 8), len: u32_at(bytes, 12) })
    }

    /// Writes the header to the start of `buffer`.
    pub fn emit(&self, buffer: &mut [u8]) {
        buffer[..8].copy_from_slice(&self.address.to_be_bytes());
        buffer[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        buffer[12..16].copy_from_slice(&self.len.to_be_bytes());
    }
}
