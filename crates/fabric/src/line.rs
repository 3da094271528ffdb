//! Lines: pieces of 64 bytes in a peer's memory that are written whole, and found by who looks at them.
//!
//! A line is published by its first word, which is stored last: who sees a new first word sees the rest.  Its last word
//! belongs to the peer, which tells by it whether it is to be told of the line, where it does not look by itself.
//!
//! ```text
//!   0 first word, stored last | 8 up to six words | 56 last word: of a line that the peer looks for, written by the peer
//! ```
//!
//! Where no processor of ours reaches the peer's memory, a line is an inline write with immediate, and is told of each time.

use std::fmt;

/// Bytes of a line: a cache line.
pub const LINE_BYTES: usize = 64;
/// Words of a line.
pub const LINE_WORDS: usize = LINE_BYTES / size_of::<u64>();

/// A row of lines in the memory of a peer that stores reach.  Drop it before the peer's memory is to be given up.
pub trait Lines: fmt::Debug + Send + Sync {
    /// Writes `words` to the beginning of the line at `index`, the first one last.  Panics beyond the row, or a line.
    fn put(&self, index: u32, words: &[u64]);

    /// The last word of a line, as the peer has it.  In no order with what was put before, unless a fence is in between.
    fn last_word(&self, index: u32) -> u64;

    /// Wakes the peer if it sleeps, so that it looks at its lines.
    fn ring(&self);
}
