//! Messages between workers: words in little-endian order.

pub(super) fn encode(words: impl IntoIterator<Item = u64>) -> Vec<u8> {
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// Returns the words of a message. Ignores an incomplete last word.
pub(super) fn decode(bytes: &[u8]) -> Vec<u64> {
    let words = bytes.chunks_exact(8).map(|word| word.try_into().expect("it has 8 bytes"));
    words.map(u64::from_le_bytes).collect()
}
