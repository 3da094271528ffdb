//! Atomics by call: the processor of the word's owner executes them. Used where the fabric's posted atomics are not
//! atomic with respect to processors.
//!
//! ```text
//!   requester                                              owner of the word
//!     begins an operation ── AtomicCall, a send ────────>  the poller checks it, and changes the word
//!     the operation ends  <─────────── AtomicAnswer ─────  by its processor, at once; no handler, no engine
//! ```
//!
//! Both messages are sends with their own immediates, and so are ordered with all other sends of a node. This layer
//! does not repeat a lost message: if the connection breaks, the operation ends with an unknown result, as a posted
//! atomic does. Until then, the operation counts as posted work to the owner, and changes of the region wait for it.
//!
//! The owner executes a call only while the requester is connected, and only in the owner's arena. While executing, the
//! owner holds the lock under which it declares peers lost, so it executes no call of a lost peer.
//!
//! All integers are little-endian.

use halite_fabric::{Key, RemoteAddress, WorkId};
use halite_mem::Window;

use super::wire::WireError;
use crate::access::Atomic;

/// The immediate of a send that carries an [`AtomicCall`].
pub const ATOMIC_IMM: u32 = 2;
/// The immediate of a send that carries an [`AtomicAnswer`].
pub const ATOMIC_ANSWER_IMM: u32 = 3;

/// Maximum number of atomic calls in flight from a node to one peer. The peer may have to buffer as many answers.
pub const ATOMICS_UNDER_WAY_MAX: usize = 1 << 16;

/// A request to change a word in the receiver's memory.
///
/// ```text
///   0 id u64 | 8 key u32 | 12 kind u32 | 16 offset u64 | 24 added or expected u64 | 32 new u64
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicCall {
    /// Id of the request, chosen by the requester.
    pub id: WorkId,
    /// Address of the word to change.
    pub word: RemoteAddress,
    /// The operation to apply to the word.
    pub atomic: Atomic,
}

/// Length of an encoded [`AtomicCall`], in bytes.
pub const ATOMIC_CALL_BYTES: usize = 40;

impl AtomicCall {
    /// Encodes the call.
    pub fn emit(&self) -> [u8; ATOMIC_CALL_BYTES] {
        let (kind, one, two) = match self.atomic {
            Atomic::FetchAdd { add } => (0, add, 0),
            Atomic::CompareSwap { expected, new } => (1, expected, new),
        };
        words([self.id.0, u64::from(self.word.key.0) | kind << 32, self.word.offset, one, two])
    }

    /// Decodes a call. Fails if `bytes` have another length or no valid content.
    pub fn parse(bytes: &[u8]) -> Result<AtomicCall, WireError> {
        let [id, place, offset, one, two] = parse_words::<5>(bytes).ok_or(BAD_CALL)?;
        let atomic = match (place >> 32, two) {
            (0, 0) => Atomic::FetchAdd { add: one },
            (1, new) => Atomic::CompareSwap { expected: one, new },
            _ => return Err(BAD_CALL),
        };
        let word = RemoteAddress { key: Key(place as u32), offset };
        Ok(AtomicCall { id: WorkId(id), word, atomic })
    }

    /// Changes the word in `segment`, which is the memory behind the address's key, and returns the old value. Returns
    /// `None`, without effect, if `segment` has no aligned word at the address.
    pub fn apply(&self, segment: &Window) -> Option<u64> {
        self.atomic.try_apply(segment, self.word.offset)
    }
}

/// The result of an [`AtomicCall`].
///
/// ```text
///   0 id u64 | 8 status u64 (0 done, 1 there is no such word) | 16 old u64
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicAnswer {
    /// Id of the request that this answers.
    pub id: WorkId,
    /// The old value; `None` if the address was invalid and no word was changed.
    pub old: Option<u64>,
}

/// Length of an encoded [`AtomicAnswer`], in bytes.
pub const ATOMIC_ANSWER_BYTES: usize = 24;

impl AtomicAnswer {
    /// Encodes the answer.
    pub fn emit(&self) -> [u8; ATOMIC_ANSWER_BYTES] {
        words([self.id.0, u64::from(self.old.is_none()), self.old.unwrap_or(0)])
    }

    /// Decodes an answer. Fails if `bytes` have another length or no valid content.
    pub fn parse(bytes: &[u8]) -> Result<AtomicAnswer, WireError> {
        let [id, status, old] = parse_words::<3>(bytes).ok_or(BAD_ANSWER)?;
        let old = match (status, old) {
            (0, old) => Some(old),
            (1, 0) => None,
            _ => return Err(BAD_ANSWER),
        };
        Ok(AtomicAnswer { id: WorkId(id), old })
    }
}

const BAD_CALL: WireError = WireError("atomic call");
const BAD_ANSWER: WireError = WireError("answer to an atomic");

fn words<const WORDS: usize, const BYTES: usize>(words: [u64; WORDS]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Decodes exactly `WORDS` words. Returns `None` if the length differs.
fn parse_words<const WORDS: usize>(bytes: &[u8]) -> Option<[u64; WORDS]> {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let chunks: &[[u8; 8]; WORDS] = chunks.try_into().ok()?;
    rest.is_empty().then(|| chunks.map(u64::from_le_bytes))
}

#[cfg(test)]
mod tests {
    use halite_mem::{PagePolicy, Segment};
    use proptest::prelude::*;

    use super::*;

    fn call(offset: u64, atomic: Atomic) -> AtomicCall {
        AtomicCall { id: WorkId(7), word: RemoteAddress { key: Key(3), offset }, atomic }
    }

    #[test]
    fn invalid_words_are_not_changed() {
        let segment = Segment::create("halite-test", 64, PagePolicy::Normal).unwrap();
        let window = segment.window(0, 64).unwrap();
        let add = Atomic::FetchAdd { add: 1 };
        for offset in [4, 57, 64, u64::MAX - 7, u64::MAX] {
            assert_eq!(call(offset, add).apply(&window), None);
        }
        assert_eq!(call(56, add).apply(&window), Some(0));
        assert_eq!(call(56, Atomic::CompareSwap { expected: 1, new: 9 }).apply(&window), Some(1));
        assert_eq!(window.load_u64(56).unwrap(), 9);
    }

    proptest! {
        #[test]
        fn bytes_are_refused_or_round_trip(bytes in prop::collection::vec(any::<u8>(), 0..48)) {
            if let Ok(call) = AtomicCall::parse(&bytes) {
                prop_assert_eq!(&call.emit()[..], &bytes[..]);
            }
            if let Ok(answer) = AtomicAnswer::parse(&bytes) {
                prop_assert_eq!(&answer.emit()[..], &bytes[..]);
            }
        }
    }
}
