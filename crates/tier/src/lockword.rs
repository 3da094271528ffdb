//! The words of a lock, as its home and all who take it see them.
//!
//! ```text
//!   0  state    bit 63: somebody waits at the home │ 47 bits of the holder's incarnation │ 16 bits: its session
//!               0: free
//!   8  tokens   the last fencing token given out
//! ```
//!
//! A free lock is taken by a compare-swap from 0, by the session that wants it, and given up by one to 0.  While somebody waits
//! neither succeeds: then all go through the home, which alone sets and clears the bit, and nobody is overtaken.

use halite_mem::Window;

use crate::ids::{NodeIncarnation, SessionId};

/// Bytes of the region behind a lock: a cache line of its own.
pub const LOCK_BYTES: u64 = 64;
/// Where the state is.
pub const STATE_OFFSET: u64 = 0;
/// Where the last token is.
pub const TOKENS_OFFSET: u64 = 8;

/// Somebody waits.
pub const CONTENDED: u64 = 1 << 63;

const SESSION_BITS: u32 = 16;
const INCARNATION_MASK: u64 = (CONTENDED >> SESSION_BITS) - 1;

/// Counters below were begun without a base: no clock that counts nanoseconds since 1970 shows less.
const TOKEN_BASE_MIN: u64 = 1 << 60;

/// Who holds a lock: a session in one incarnation of a node.  Never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Holder(u64);

impl Holder {
    /// A session that has ended while it held the lock.
    pub const NOBODY: Holder = Holder(!CONTENDED);

    /// A session of a node in that incarnation.
    pub fn new(incarnation: NodeIncarnation, session: SessionId) -> Holder {
        Holder(incarnation_bits(incarnation) << SESSION_BITS | u64::from(session.0))
    }

    /// Who holds a lock in that state; `None` if it is free.
    pub fn of_state(state: u64) -> Option<Holder> {
        let holder = state & !CONTENDED;
        (holder != 0).then_some(Holder(holder))
    }

    /// The state of a lock that it holds, and for which nobody waits.
    pub fn state(self) -> u64 {
        self.0
    }

    /// Whether its session is, or was, one of that incarnation.  Of two random incarnations with the same 47 bits, one would be
    /// taken for the other: among a thousand incarnations, there are such two once in 10^8 clusters.
    pub fn is_of(self, incarnation: NodeIncarnation) -> bool {
        self.0 >> SESSION_BITS == incarnation_bits(incarnation)
    }
}

/// Neither 0, which is nobody's, nor all ones, which are those of [`Holder::NOBODY`].
fn incarnation_bits(incarnation: NodeIncarnation) -> u64 {
    (incarnation.id.0 & INCARNATION_MASK).clamp(1, INCARNATION_MASK - 1)
}

/// What is to be added to a counter that stood at `last` before this acquisition added 1.
///
/// A new lock's counter begins at `base_ns`, the time since 1970, so that a lock that is made again after the death of its
/// home gives out higher tokens than before: nobody takes a lock once per nanosecond.
pub fn token_correction(last: u64, base_ns: impl FnOnce() -> u64) -> u64 {
    if last < TOKEN_BASE_MIN { base_ns().max(TOKEN_BASE_MIN) } else { 0 }
}

/// The words as the home changes them, in its own memory.
#[derive(Clone, Debug)]
pub struct LockWords(Window);

impl LockWords {
    /// `window` has at least [`LOCK_BYTES`].
    pub fn new(window: Window) -> Option<LockWords> {
        (window.len() >= LOCK_BYTES).then_some(LockWords(window))
    }

    /// Who holds it.
    pub fn holder(&self) -> Option<Holder> {
        Holder::of_state(self.state())
    }

    fn state(&self) -> u64 {
        self.0.load_u64(STATE_OFFSET).expect("the window is long enough, and extents are aligned")
    }

    /// Takes it if it is free; else tells who holds it.
    pub fn try_take(&self, holder: Holder) -> Option<Holder> {
        let before = self.0.compare_exchange_u64(STATE_OFFSET, 0, holder.state());
        Holder::of_state(before.expect("as in state()"))
    }

    /// Lets nobody take it, or give it up, any more without asking; tells who holds it.  Callers elsewhere change
    /// the state at the same time, but never this bit, so that adding it sets it without a loop.
    pub fn mark_contended(&self) -> Option<Holder> {
        if self.state() & CONTENDED != 0 {
            return self.holder();
        }
        Holder::of_state(self.0.fetch_add_u64(STATE_OFFSET, CONTENDED).expect("as in state()"))
    }

    /// Nobody waits any more.
    pub fn clear_contended(&self) {
        if self.state() & CONTENDED != 0 {
            self.0.fetch_add_u64(STATE_OFFSET, CONTENDED).expect("as in state()");
        }
    }

    /// Gives it to `holder`.  The caller knows that nobody else changes it: it is marked, or its holder asked for
    /// this, or is dead and cut off.
    pub fn give(&self, holder: Holder, contended: bool) {
        let mark = if contended { CONTENDED } else { 0 };
        self.0.store_u64(STATE_OFFSET, holder.state() | mark).expect("as in state()");
    }

    /// Makes it free, under the same conditions.
    pub fn make_free(&self) {
        self.0.store_u64(STATE_OFFSET, 0).expect("as in state()");
    }

    /// The token for its new holder.
    pub fn next_token(&self, base_ns: u64) -> u64 {
        let last = self.0.fetch_add_u64(TOKENS_OFFSET, 1).expect("as in state()");
        let correction = token_correction(last, || base_ns);
        self.0.fetch_add_u64(TOKENS_OFFSET, correction).expect("as in state()");
        last.wrapping_add(1).wrapping_add(correction)
    }
}

/// The word of a barrier, in its home's memory.
impl LockWords {
    /// Another round has ended: its number, counted from 1.
    pub fn next_round(&self) -> u64 {
        self.0.fetch_add_u64(STATE_OFFSET, 1).expect("as in state()").wrapping_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Incarnation, NodeId};
    use halite_mem::{PagePolicy, Segment};

    fn incarnation(id: u64) -> NodeIncarnation {
        NodeIncarnation { node: NodeId(3), id: Incarnation(id) }
    }

    fn words() -> LockWords {
        let segment = Segment::create("test", 4096, PagePolicy::Normal).unwrap();
        LockWords::new(segment.window(0, LOCK_BYTES).unwrap()).unwrap()
    }

    #[test]
    fn a_holder_is_never_nothing_nobody_or_contended() {
        for id in [0, 1, 1 << 47, u64::MAX, 0x1234_5678_9abc_def0] {
            for session in [0, 1, u16::MAX] {
                let holder = Holder::new(incarnation(id), SessionId(session));
                assert_ne!(holder.state(), 0);
                assert_ne!(holder, Holder::NOBODY);
                assert_eq!(holder.state() & CONTENDED, 0);
                assert!(holder.is_of(incarnation(id)));
                assert!(!Holder::NOBODY.is_of(incarnation(id)));
                assert_eq!(Holder::of_state(holder.state() | CONTENDED), Some(holder));
            }
        }
    }

    #[test]
    fn while_somebody_waits_the_state_can_be_changed_by_the_home_only() {
        let (words, ada, bob) =
            (words(), Holder::new(incarnation(1), SessionId(1)), Holder::new(incarnation(2), SessionId(1)));
        assert_eq!(words.try_take(ada), None);
        assert_eq!(words.mark_contended(), Some(ada));
        assert_eq!(words.mark_contended(), Some(ada), "marking twice is marking");
        assert_eq!(words.try_take(bob), Some(ada));
        words.clear_contended();
        words.clear_contended();
        assert_eq!((words.holder(), words.state()), (Some(ada), ada.state()));
        words.make_free();
        assert_eq!(words.mark_contended(), None, "it was free");
        assert_eq!(words.try_take(bob), None);
        assert_ne!(words.holder(), Some(bob), "and yet it could not be taken");
    }

    #[test]
    fn tokens_rise_also_when_the_lock_is_made_anew_or_its_first_holder_died_between_two_additions() {
        let first = words();
        let tokens = [first.next_token(1 << 61), first.next_token(1 << 62), first.next_token(0)];
        assert!(tokens.is_sorted() && tokens[0] > 1 << 61 && tokens[2] < 1 << 62, "{tokens:?}");
        let anew = words();
        anew.0.fetch_add_u64(TOKENS_OFFSET, 1).unwrap();
        assert!(anew.next_token(1 << 62) > tokens[2]);
    }
}
