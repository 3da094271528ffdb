//! The digest of a run: one number over all events.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Folds events in order. Integers are folded as little-endian bytes, so the digest is the same on all machines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Digest {
    state: u64,
}

impl Digest {
    pub(crate) fn value(&self) -> u64 {
        self.state
    }

    #[inline]
    pub(crate) fn fold(&mut self, words: [u64; 4]) {
        let mut bytes = [0; 32];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        self.state = xxh3_64_with_seed(&bytes, self.state);
    }
}

/// Returns a checksum of a payload.
#[inline]
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}
