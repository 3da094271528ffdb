//! Lines: 64-byte messages that one end writes into the other's memory, whose owner finds them by polling that memory.
//!
//! The writer stores the first word of a line last: a reader that sees a new first word also sees the new rest of the
//! line. Only the reader writes the last word, in which it requests a ring of the doorbell while it does not poll.
//!
//! ```text
//!   0 first word, stored last | 8 up to six words | 56 last word, written by the peer
//! ```
//!
//! If stores do not reach the peer's memory, the writer posts the line as an inline write with immediate, so the reader
//! gets a completion for each line.

use std::fmt;

/// Length of a line in bytes: one cache line.
pub const LINE_BYTES: usize = 64;
/// Words per line.
pub const LINE_WORDS: usize = LINE_BYTES / size_of::<u64>();

/// An array of lines in a peer's memory, to be written by stores. It keeps the peer's memory mapped; drop it before
/// that memory is to be released.
pub trait Lines: fmt::Debug + Send + Sync {
    /// Writes `words` to the start of the line at `index`, storing the first word last. Panics if there is no such
    /// line, or if it is shorter than `words`.
    fn put(&self, index: u32, words: &[u64]);

    /// Returns the last word of a line, which the peer writes. To read it after an earlier `put` has become visible,
    /// the caller needs a fence between the two.
    fn last_word(&self, index: u32) -> u64;

    /// Wakes the peer if it sleeps, so that it polls its lines.
    fn ring(&self);
}
