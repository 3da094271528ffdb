//! Arrays of words in regions, in little-endian order.

use halite::{AccessError, Lh, Session};

/// Number of words that are converted and copied at a time, so that their bytes stay in the cache.
const PIECE_WORDS: usize = 32 << 10;

/// Writes words from `offset` on. Returns the offset behind the last word.
pub(super) async fn write(
    session: &Session,
    lh: Lh,
    mut offset: u64,
    words: impl IntoIterator<Item = u64>,
) -> Result<u64, AccessError> {
    let mut words = words.into_iter();
    let mut bytes = Vec::with_capacity(PIECE_WORDS * 8);
    loop {
        bytes.clear();
        words.by_ref().take(PIECE_WORDS).for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        if bytes.is_empty() {
            return Ok(offset);
        }
        session.write(lh, offset, &bytes).await?;
        offset += bytes.len() as u64;
    }
}

/// Reads `count` words from `offset` on, and passes each word to `each`, in order.
pub(super) async fn read(
    session: &Session,
    lh: Lh,
    mut offset: u64,
    mut count: usize,
    mut each: impl FnMut(u64),
) -> Result<(), AccessError> {
    let mut bytes = vec![0; count.min(PIECE_WORDS) * 8];
    while count > 0 {
        let piece = &mut bytes[..count.min(PIECE_WORDS) * 8];
        session.read(lh, offset, piece).await?;
        for word in piece.chunks_exact(8) {
            each(u64::from_le_bytes(word.try_into().expect("it has 8 bytes")));
        }
        offset += piece.len() as u64;
        count -= piece.len() / 8;
    }
    Ok(())
}
