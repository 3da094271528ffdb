//! The job that counts words.
//!
//! A word is a maximal run of Unicode alphabetic characters, in lower case. Bytes that are not UTF-8 separate words.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use super::job::{Job, Text};
use super::table::Table;

/// Counts words.
#[derive(Clone, Copy, Debug)]
pub struct WordCount {
    /// Maximum number of words in the answer, most frequent first.
    pub top: usize,
}

/// A word and how often it occurs. More frequent words come first, equally frequent ones in the order of their bytes.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Counted {
    /// Number of occurrences.
    pub count: Reverse<u64>,
    /// The word.
    pub word: String,
}

impl Job for WordCount {
    type Value = u64;
    type Record = Counted;

    fn is_boundary(byte: u8) -> bool {
        byte.is_ascii() && !byte.is_ascii_alphabetic()
    }

    #[inline]
    fn map(&self, text: Text<'_>, mut emit: impl FnMut(&[u8], u64)) {
        for_each_word(text.bytes, |word| emit(word, 1));
    }

    #[inline]
    fn combine(&self, into: &mut u64, more: u64) {
        *into += more;
    }

    fn weight(&self, value: &u64) -> u64 {
        *value
    }

    fn reduce(&self, part: Table<u64>) -> Vec<Counted> {
        // Sorts and copies only the words of the answer.
        let mut words: Vec<_> = part.iter().map(|(word, count)| (Reverse(*count), word)).collect();
        if self.top < words.len() {
            words.select_nth_unstable(self.top);
            words.truncate(self.top);
        }
        words.sort_unstable();
        let own = |(count, word)| Counted { count, word: String::from_utf8_lossy(word).into_owned() };
        words.into_iter().map(own).collect()
    }

    fn shorten(&self, records: &mut Vec<Counted>) {
        records.truncate(self.top);
    }
}

/// Calls `on_word` for each word of `text`, in order, in lower case. Changes the letters of `text` to lower case.
///
/// ASCII takes a fast path: the letters of 64 bytes become a mask of bits, and the ends of its runs are the ends of
/// words.
pub fn for_each_word(text: &mut [u8], mut on_word: impl FnMut(&[u8])) {
    text.make_ascii_lowercase();
    let text = &*text;
    let mut run = Run::default();
    let (blocks, rest) = text.as_chunks::<BLOCK_BYTES>();
    for (number, block) in blocks.iter().enumerate() {
        run.process_block(text, number * BLOCK_BYTES, Masks::of(block), &mut on_word);
    }
    let mut block = [b' '; BLOCK_BYTES];
    block[..rest.len()].copy_from_slice(rest);
    run.process_block(text, text.len() - rest.len(), Masks::of(&block), &mut on_word);
    run.end(text, text.len(), &mut on_word);
}

/// Adds the words of `text` to `counts`; returns their number. Changes the letters of `text` to lower case.
pub fn count_words(text: &mut [u8], counts: &mut Table<u64>) -> u64 {
    let mut words = 0;
    for_each_word(text, |word| {
        words += 1;
        counts.add(word, 1, |count, more| *count += more);
    });
    words
}

const BLOCK_BYTES: usize = 64;

/// Properties of the bytes of a block, one bit per byte. The lowest bit belongs to the first byte.
struct Masks {
    /// Small ASCII letters.
    letters: u64,
    /// Bytes beyond ASCII, which may belong to letters.
    non_ascii: u64,
}

impl Masks {
    #[inline]
    fn of(block: &[u8; BLOCK_BYTES]) -> Masks {
        let mut masks = Masks { letters: 0, non_ascii: 0 };
        for (number, word) in block.as_chunks::<8>().0.iter().enumerate() {
            let word = u64::from_le_bytes(*word);
            let seven_bits = word & !HIGH_BITS;
            // The first sum sets the high bit of bytes from `a` on, the second that of bytes after `z`.
            let letters = (seven_bits + ONES * (0x80 - b'a') as u64)
                & !(seven_bits + ONES * (0x7f - b'z') as u64)
                & !word
                & HIGH_BITS;
            masks.letters |= collect_high_bits(letters) << (8 * number);
            masks.non_ascii |= collect_high_bits(word & HIGH_BITS) << (8 * number);
        }
        masks
    }
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x80 * ONES;

/// Packs the high bits of 8 bytes into 8 bits.
#[inline]
fn collect_high_bits(high_bits: u64) -> u64 {
    // The products 2^(8i) * 2^(56 - 7i) = 2^(56 + i) move bit 0 of byte i to bit 56 + i; others do not reach that byte.
    (high_bits >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// A run of bytes that may be letters, across blocks.
#[derive(Default)]
struct Run {
    /// Offset of the first byte of the run; `None` between runs.
    start: Option<usize>,
    /// True if the run has bytes beyond ASCII.
    has_non_ascii: bool,
}

impl Run {
    /// Processes the block at `offset`: emits the words of the runs that end in it.
    #[inline]
    fn process_block(&mut self, text: &[u8], offset: usize, masks: Masks, on_word: &mut impl FnMut(&[u8])) {
        let Masks { letters, non_ascii } = masks;
        let bytes = letters | non_ascii;
        if non_ascii == 0 && !self.has_non_ascii {
            return self.process_ascii_block(text, offset, letters, on_word);
        }
        let mut at = 0;
        while at < BLOCK_BYTES {
            let rest = bytes >> at;
            let len =
                if self.start.is_some() { rest.trailing_ones() } else { rest.trailing_zeros() } as usize;
            let next = (at + len).min(BLOCK_BYTES);
            match self.start {
                None if next < BLOCK_BYTES => self.start = Some(offset + next),
                None => {}
                Some(_) => {
                    self.has_non_ascii |= non_ascii & bits_between(at, next) != 0;
                    if next < BLOCK_BYTES {
                        self.end(text, offset + next, on_word);
                    }
                }
            }
            at = next;
        }
    }

    /// Does what [`Run::process_block`] does, for a block and a run that consist of ASCII.
    #[inline]
    fn process_ascii_block(
        &mut self,
        text: &[u8],
        offset: usize,
        letters: u64,
        on_word: &mut impl FnMut(&[u8]),
    ) {
        let carried = u64::from(self.start.is_some());
        // A bit for each byte that starts a run, and for each byte that follows a run.
        let mut edges = letters ^ (letters << 1 | carried);
        let mut start = self.start;
        while edges != 0 {
            let at = offset + edges.trailing_zeros() as usize;
            edges &= edges - 1;
            start = match start {
                None => Some(at),
                Some(start) => {
                    on_word(&text[start..at]);
                    None
                }
            };
        }
        self.start = start;
    }

    /// Ends the run before the byte at `end`, and emits its words.
    #[inline]
    fn end(&mut self, text: &[u8], end: usize, on_word: &mut impl FnMut(&[u8])) {
        let Some(start) = self.start.take() else { return };
        if std::mem::take(&mut self.has_non_ascii) {
            emit_non_ascii_words(&text[start..end], on_word);
        } else {
            on_word(&text[start..end]);
        }
    }
}

/// Returns a mask of the bits from `begin` up to `end`, without `end`.
fn bits_between(begin: usize, end: usize) -> u64 {
    let below = |bit: usize| if bit < 64 { (1 << bit) - 1 } else { u64::MAX };
    below(end) & !below(begin)
}

/// Calls `on_word` for each word of a run with bytes beyond ASCII.
#[cold]
fn emit_non_ascii_words(run: &[u8], on_word: &mut impl FnMut(&[u8])) {
    for chunk in run.utf8_chunks() {
        let words = chunk.valid().split(|letter: char| !letter.is_alphabetic());
        for word in words.filter(|word| !word.is_empty()) {
            on_word(word.to_lowercase().as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the words of `text` by the definition.
    fn words_by_definition(text: &[u8]) -> Vec<String> {
        let mut words = Vec::new();
        for chunk in text.utf8_chunks() {
            words.extend(chunk.valid().split(|letter: char| !letter.is_alphabetic()).map(str::to_lowercase));
        }
        words.retain(|word| !word.is_empty());
        words
    }

    fn check(text: &[u8]) {
        let mut words = Vec::new();
        for_each_word(&mut text.to_vec(), |word| words.push(str::from_utf8(word).unwrap().to_owned()));
        assert_eq!(words, words_by_definition(text));
    }

    #[test]
    fn words_end_at_non_letters() {
        check("Der Übermut, ὉΔΟΣ's İstanbul; 3 x4y—z Straße\u{301}e\n".as_bytes());
        check(b"cut\xc3 in\xe2\x82two \xffz\xf0\x9f\x98");
        check(&[b'a'; 200]);
        check(b"");
    }

    proptest! {
        #[test]
        fn words_of_random_text_follow_the_definition(
            parts in prop::collection::vec(
                prop_oneof![
                    4 => "[a-zA-Z]{1,20}".prop_map(String::into_bytes),
                    4 => "[ -~\n]{0,9}".prop_map(String::into_bytes),
                    1 => "\\PC{0,9}".prop_map(String::into_bytes),
                    1 => "[äÖßЖИΣσ中Å٣]{1,9}".prop_map(String::into_bytes),
                    1 => prop::collection::vec(any::<u8>(), 0..9),
                ],
                0..60,
            )
        ) {
            check(&parts.concat());
        }
    }
}
