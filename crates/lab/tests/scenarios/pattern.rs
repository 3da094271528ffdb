//! Bytes that say by themselves whether they are the right ones.

/// A sequence of numbers that looks random and is the same for the same seed (splitmix64).
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Scatters the bits of `word`.
pub fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// `len` bytes that no other seed has.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut numbers = Numbers::new(mix(seed));
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&numbers.next().to_le_bytes());
    }
    bytes.truncate(len);
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
