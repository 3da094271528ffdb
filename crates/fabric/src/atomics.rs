//! The atomics that a provider offers, and the accesses with respect to which they are atomic.

use std::fmt;

/// The one-sided atomics that a provider offers on a peer's memory: [`crate::Operation::FetchAdd`] and
/// [`crate::Operation::CompareSwap`], on aligned 8-byte words.
///
/// In every case, plain reads and writes of a whole word are never torn by them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Atomics {
    /// No atomics; they must not be posted.
    None,
    /// Atomic with respect to the peer's processors: with their atomic instructions, plain loads and stores, and the
    /// atomics of all posters.
    Processor,
    /// Executed by the peer's adapter (verbs' `IBV_ATOMIC_HCA`): atomic with other atomics posted to the same adapter,
    /// and with nothing else. The adapter reads the word and writes it a moment later; a processor's change in between
    /// is lost.
    Adapter,
}

impl Atomics {
    /// Returns true if the atomics may be mixed with processors' atomic instructions on the same word.
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
