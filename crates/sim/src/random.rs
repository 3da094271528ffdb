//! Seeded random numbers: one independent generator for each named purpose.

use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// A generator whose numbers follow from a seed and a name. They are the same on every machine and in every version.
///
/// Each purpose has its own name, so an extra draw for one purpose does not change the numbers of the others.
#[derive(Clone, Debug)]
pub struct Random {
    generator: Pcg64Mcg,
}

impl Random {
    /// Creates the generator for the purpose `stream` of a run with this seed.
    pub fn new(seed: u64, stream: &str) -> Random {
        Random { generator: Pcg64Mcg::new(xxh3_128_with_seed(stream.as_bytes(), seed)) }
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.generator.next_u64()
    }

    /// Returns a number below `bound`. Panics if `bound` is 0.
    ///
    /// This is implemented here, because the next version of a library might draw other numbers. The probability of
    /// each number deviates by less than `bound` / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below zero");
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number from `low` to `high`, both included. Panics if `low` exceeds `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "no number is between {low} and {high}");
        match (high - low).checked_add(1) {
            Some(count) => low + self.below(count),
            None => self.bits(),
        }
    }

    /// Returns true with a probability of `ppm` in a million. With 0, returns false without drawing a number.
    pub fn chance_ppm(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// Returns true with a probability of `numerator` in `denominator`.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// Returns an index below `len`. Panics if `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let drawn = self.bits().to_le_bytes();
            chunk.copy_from_slice(&drawn[..chunk.len()]);
        }
    }
}
