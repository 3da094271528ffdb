//! Lines: pieces of 64 bytes in a peer's memory, written as a whole and found by polling.
//!
//! A line is published by its first word, which is stored last: a reader of a new first word sees the rest. The last
//! word belongs to the peer, which uses it to ask for a ring when it does not poll.
//!
//! ```text
//!   0 first word, stored last | 8 up to six words | 56 last word, written by the peer
//! ```
//!
//! Where stores do not reach the peer's memory, a line is an inline write with immediate, and always produces a
//! completion.

use std::fmt;

/// Bytes of a line: a cache line.
pub const LINE_BYTES: usize = 64;
/// Words per line.
pub const LINE_WORDS: usize = LINE_BYTES / size_of::<u64>();

/// A row of lines in a peer's memory that stores reach. Drop it before the peer's memory is released.
pub trait Lines: fmt::Debug + Send + Sync {
    /// Writes `words` to the start of the line at `index`, the first word last. Panics if `index` or `words` exceed the
    /// row or the line.
    fn put(&self, index: u32, words: &[u64]);

    /// Returns the last word of a line, as the peer last wrote it. Not ordered after an earlier `put` without a fence.
    fn last_word(&self, index: u32) -> u64;

    /// Wakes the peer if it sleeps, so that it polls its lines.
    fn ring(&self);
}
