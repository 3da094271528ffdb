//! The immediate data header: 4 bytes that the receiver is told, and that mean nothing to the transport.

use super::{WireError, checked, u32_at};

/// Its length.
pub const IMMDT_BYTES: usize = 4;

/// A view over its bytes.
#[derive(Clone, Copy, Debug)]
pub struct ImmDt<T: AsRef<[u8]>> {
    buffer: T,
}

/// What it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImmDtRepr {
    /// What the receiver is told.
    pub imm: u32,
}

impl<T: AsRef<[u8]>> ImmDt<T> {
    /// A view of what is long enough.
    pub fn new_checked(buffer: T) -> Result<ImmDt<T>, WireError> {
        Ok(ImmDt { buffer: checked::<IMMDT_BYTES, T>(buffer)? })
    }

    /// What the receiver is told.
    pub fn imm(&self) -> u32 {
        u32_at(self.buffer.as_ref(), 0)
    }
}

impl ImmDtRepr {
    /// What the header says.
    pub fn parse<T: AsRef<[u8]>>(immdt: &ImmDt<T>) -> ImmDtRepr {
        ImmDtRepr { imm: immdt.imm() }
    }

    /// Writes the header to the start of `buffer`.
    pub fn emit(&self, buffer: &mut [u8]) {
        buffer[..IMMDT_BYTES].copy_from_slice(&self.imm.to_be_bytes());
    }
}
