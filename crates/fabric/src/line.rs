//! Lines: 64-byte messages that one end writes into the memory of the other end, which polls this memory.
//!
//! The writer stores the first word of a line last, so a reader that sees a new first word also sees the rest of the
//! new line. Only the reader writes the last word: before the reader stops polling, it sets this word to ask the writer
//! to ring the reader's doorbell.
//!
//! ```text
//!   0 first word, stored last | 8 up to six words | 56 last word, written by the reader
//! ```
//!
//! If stores do not reach the peer's memory, the writer posts the line as an inline write with immediate, so the reader
//! gets a completion for each line.

use std::fmt;

/// Length of a line in bytes: one cache line.
pub const LINE_BYTES: usize = 64;
/// Number of 8-byte words per line.
pub const LINE_WORDS: usize = LINE_BYTES / size_of::<u64>();

/// An array of lines in a peer's memory, which this process writes by stores. The peer's memory stays mapped as long as
/// the value exists, so the caller must drop the value before the peer can release the memory.
pub trait Lines: fmt::Debug + Send + Sync {
    /// Writes `words` to the start of the line at `index`, and stores the first word last. Panics if the line does not
    /// exist, or if a line is shorter than `words`.
    fn put(&self, index: u32, words: &[u64]);

    /// Returns the last word of a line, which the reader writes. A caller that must read this word after an earlier
    /// [`Lines::put`] has become visible needs a fence between the two calls.
    fn last_word(&self, index: u32) -> u64;

    /// Rings the doorbell of the peer: a sleeping peer wakes and polls its lines.
    fn ring(&self);
}
