//! The immediate data header (ImmDt): 4 bytes for the receiving application.

use super::{WireError, checked, u32_at};

/// Length of the header in bytes.
pub const IMMDT_BYTES: usize = 4;

/// A view over the header's bytes.
#[derive(Clone, Copy, Debug)]
pub struct ImmDt<T: AsRef<[u8]>> {
    buffer: T,
}

/// The header's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImmDtRepr {
    /// The immediate data.
    pub imm: u32,
}

impl<T: AsRef<[u8]>> ImmDt<T> {
    /// Creates a view, or returns [`WireError::Truncated`] if the buffer is shorter than the header.
    pub fn new_checked(buffer: T) -> Result<ImmDt<T>, WireError> {
        Ok(ImmDt { buffer: checked::<IMMDT_BYTES, T>(buffer)? })
    }

    /// Returns the immediate data.
    pub fn imm(&self) -> u32 {
        u32_at(self.buffer.as_ref(), 0)
    }
}

impl ImmDtRepr {
    /// Parses the header.
    pub fn parse<T: AsRef<[u8]>>(immdt: &ImmDt<T>) -> ImmDtRepr {
        ImmDtRepr { imm: immdt.imm() }
    }

    /// Writes the header to the start of `buffer`.
    pub fn emit(&self, buffer: &mut [u8]) {
        buffer[..IMMDT_BYTES].copy_from_slice(&self.imm.to_be_bytes());
    }
}
