//! The one-sided atomics of a provider, and the other accesses with respect to which they are atomic.

use std::fmt;

/// The one-sided atomics that a provider offers on a peer's memory: [`crate::Operation::FetchAdd`] and
/// [`crate::Operation::CompareSwap`], on aligned 8-byte words.
///
/// With every variant, a plain read of the word never returns a mixture of its old and its new value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Atomics {
    /// The provider has no atomics; callers must not post atomics.
    None,
    /// Posted atomics are atomic with respect to all accesses: the atomic instructions, loads and stores of the peer's
    /// processors, and the atomics that any process posts.
    Processor,
    /// The peer's adapter executes posted atomics (verbs' `IBV_ATOMIC_HCA`). They are atomic only with respect to other
    /// atomics posted to the same adapter. The adapter reads the word and writes it a moment later, so a change that a
    /// processor makes in between is lost.
    Adapter,
}

impl Atomics {
    /// Returns true if callers may use posted atomics and processors' atomic instructions on the same word.
    pub fn are_coherent(self) -> bool {
        self == Atomics::Processor
    }
}

impl fmt::Display for Atomics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Atomics::None => "none",
            Atomics::Processor => "processor",
            Atomics::Adapter => "adapter",
        })
    }
}
