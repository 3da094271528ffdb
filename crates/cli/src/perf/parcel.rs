//! Messages with stamps, by which the receiver verifies them.
//!
//! ```text
//!   stamp | pattern ... | stamp
//! ```
//!
//! A caller checks the stamps of each answer but the pattern of only one, because reading a long answer costs as much as
//! sending it.

use halite::{Lh, blocking};

/// Length of a stamp in bytes. A shorter message holds only the stamp's first bytes.
pub const STAMP_BYTES: usize = 8;

/// Returns a pattern of `len` bytes that differs between threads.
pub fn pattern(len: u64, thread: usize) -> Vec<u8> {
    let byte = |at: u64| (at ^ (at >> 8) ^ (at >> 16)).wrapping_mul(0x9D).wrapping_add(thread as u64 + 1);
    (0..len).map(|at| byte(at) as u8).collect()
}

/// Returns the complement of each byte.
pub fn inverse(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| !byte).collect()
}

/// Returns 1 if the region's bytes at `offset` differ from `expected`, otherwise 0.
pub fn differs(session: &blocking::Session, lh: Lh, offset: u64, expected: &[u8]) -> anyhow::Result<u64> {
    let mut found = vec![0; expected.len()];
    session.read(lh, offset, &mut found)?;
    Ok(u64::from(found != expected))
}

/// A message with a stamp at both ends.
#[derive(Clone, Debug)]
pub struct Parcel(Vec<u8>);

impl Parcel {
    /// Creates a message of `len` bytes with stamp 0; messages of different threads differ.
    pub fn new(len: u64, thread: usize) -> Parcel {
        let mut parcel = Parcel(pattern(len, thread));
        parcel.stamp(0);
        parcel
    }

    /// Writes the stamp at both ends of the message.
    #[inline]
    pub fn stamp(&mut self, stamp: u64) {
        let stamp = stamp.to_le_bytes();
        let len = self.0.len();
        let front = len.min(STAMP_BYTES);
        self.0[..front].copy_from_slice(&stamp[..front]);
        if len >= 2 * STAMP_BYTES {
            self.0[len - STAMP_BYTES..].copy_from_slice(&stamp);
        }
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns true if `found` has the length and the stamps of this message.
    #[inline]
    pub fn is_stamped_like(&self, found: &[u8]) -> bool {
        let len = self.0.len();
        let ends = STAMP_BYTES.min(len);
        len == found.len() && self.0[..ends] == found[..ends] && self.0[len - ends..] == found[len - ends..]
    }
}

/// Returns the stamp of a received message.
#[inline]
pub fn stamp_of(bytes: &[u8]) -> u64 {
    let mut stamp = [0; STAMP_BYTES];
    let front = bytes.len().min(STAMP_BYTES);
    stamp[..front].copy_from_slice(&bytes[..front]);
    u64::from_le_bytes(stamp)
}
