//! The trailer that `put` stores after a file's bytes, so that `get` can verify them.
//!
//! ```text
//! 0        8         12      16             24            32
//! +--------+---------+-------+--------------+-------------+
//! | magic  | version | state | length       | xxh3-64     |     little-endian
//! +--------+---------+-------+--------------+-------------+
//! ```
//!
//! A region gets its name when it is complete, so the only state is *complete*. The trailer protects against
//! accidents, not against processes that may write to the region.

/// Bytes of a trailer.
pub const TRAILER_BYTES: usize = 32;

const MAGIC: [u8; 8] = *b"halite\r\n";
const VERSION: u32 = 1;
const COMPLETE: u32 = 1;

/// The last bytes of a region that holds a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trailer {
    /// Length of the file in bytes.
    pub len: u64,
    /// xxh3-64 of the file.
    pub checksum: u64,
}

/// The reason why a trailer cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TrailerError {
    /// A later version of this program wrote the trailer.
    #[error("the trailer has version {0}, which this program does not support")]
    Version(u32),
    /// The state is not *complete*.
    #[error("the trailer is damaged: its state is {0}, not {COMPLETE} (complete)")]
    State(u32),
    /// The trailer belongs to a file of another length.
    #[error("the trailer records a file of {claimed} bytes, but {present} bytes precede it")]
    Length {
        /// Length according to the trailer.
        claimed: u64,
        /// Number of bytes before the trailer.
        present: u64,
    },
}

impl Trailer {
    /// Encodes the trailer.
    pub fn to_bytes(self) -> [u8; TRAILER_BYTES] {
        let mut bytes = [0; TRAILER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&COMPLETE.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.len.to_le_bytes());
        bytes[24..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    /// Parses the last bytes of a region of `region_len` bytes; `None` if they are not a trailer.
    pub fn parse(bytes: &[u8; TRAILER_BYTES], region_len: u64) -> Result<Option<Trailer>, TrailerError> {
        if bytes[..8] != MAGIC {
            return Ok(None);
        }
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let (version, state, len) = (u32_at(8), u32_at(12), u64_at(16));
        if version != VERSION {
            return Err(TrailerError::Version(version));
        }
        let present = region_len.saturating_sub(TRAILER_BYTES as u64);
        if len != present {
            return Err(TrailerError::Length { claimed: len, present });
        }
        match state {
            COMPLETE => Ok(Some(Trailer { len, checksum: u64_at(24) })),
            other => Err(TrailerError::State(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_stable() {
        let bytes = Trailer { len: 0x0102, checksum: 0x0304 }.to_bytes();
        let mut expected = *b"halite\r\n\x01\0\0\0\x01\0\0\0........";
        expected[16..].copy_from_slice(&[2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[..24], expected);
        assert_eq!(bytes[24..], [4, 3, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn damaged_trailers_are_refused() {
        let good = Trailer { len: 100, checksum: 7 }.to_bytes();
        assert_eq!(Trailer::parse(&good, 133), Err(TrailerError::Length { claimed: 100, present: 101 }));
        assert_eq!(Trailer::parse(&good, 0), Err(TrailerError::Length { claimed: 100, present: 0 }));
        let mut bad = good;
        bad[8] = 2;
        assert_eq!(Trailer::parse(&bad, 132), Err(TrailerError::Version(2)));
        let mut bad = good;
        bad[12] = 9;
        assert_eq!(Trailer::parse(&bad, 132), Err(TrailerError::State(9)));
    }
}
