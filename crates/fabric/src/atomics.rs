//! Who carries atomics out on a peer's memory, and beside what they are in one piece.

use std::fmt;

/// The one-sided atomics that a provider offers on the memory of a peer: [`crate::Operation::FetchAdd`] and
/// [`crate::Operation::CompareSwap`], on aligned 8-byte words.
///
/// Whatever is offered, plain reads and writes of a whole word are never torn by them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Atomics {
    /// None: they must not be posted.
    None,
    /// Carried out as the peer's own processors would: in one piece beside what those do to the word by atomic
    /// instructions, all others who post to it, and the loads and stores of all.
    Processor,
    /// Carried out by the peer's adapter (verbs' `IBV_ATOMIC_HCA`): in one piece beside other atomics that are posted to the
    /// same adapter, and nothing else.  The adapter reads the word, and writes it a moment later: what a processor
    /// changed in between is lost.
    Adapter,
}

impl Atomics {
    /// Whether they may be mixed with atomic instructions of processors on the same word.
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
