//! Bytes that say by themselves whether they are the right ones.

use fastrand::Rng;

/// `len` bytes that no other seed has.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Where `found` first differs from `wanted`; short enough to be shown, however long they are.
pub fn first_difference(found: &[u8], wanted: &[u8]) -> Option<(usize, u8, u8)> {
    assert_eq!(found.len(), wanted.len());
    if found == wanted {
        return None;
    }
    let at = found.iter().zip(wanted).position(|(found, wanted)| found != wanted)?;
    Some((at, found[at], wanted[at]))
}

/// Where the first byte stands that is not zero.
pub fn first_nonzero(bytes: &[u8]) -> Option<usize> {
    let zeros = [0; 4096];
    let page = bytes.chunks(zeros.len()).position(|page| page != &zeros[..page.len()])?;
    bytes[page * zeros.len()..].iter().position(|byte| *byte != 0).map(|at| page * zeros.len() + at)
}
