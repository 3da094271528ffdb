//! Bytes that follow from a seed, so that a reader can check them.

use fastrand::Rng;

/// Returns `len` pseudorandom bytes, different for each seed.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Returns the offset of the first difference, and the found and wanted byte at this offset; `None` if all bytes are
/// equal.
pub fn first_difference(found: &[u8], wanted: &[u8]) -> Option<(usize, u8, u8)> {
    assert_eq!(found.len(), wanted.len());
    if found == wanted {
        return None;
    }
    let at = found.iter().zip(wanted).position(|(found, wanted)| found != wanted)?;
    Some((at, found[at], wanted[at]))
}

/// Returns the offset of the first byte that is not zero.
pub fn first_nonzero(bytes: &[u8]) -> Option<usize> {
    let zeros = [0; 4096];
    let page = bytes.chunks(zeros.len()).position(|page| page != &zeros[..page.len()])?;
    bytes[page * zeros.len()..].iter().position(|byte| *byte != 0).map(|at| page * zeros.len() + at)
}
