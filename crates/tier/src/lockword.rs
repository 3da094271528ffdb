//! The words of a lock in shared memory.
//!
//! ```text
//!   0  state    bit 63: sessions wait at the home │ 47 bits of the holder's incarnation │ 16 bits: its session
//!               0: free
//!   8  tokens   the last fencing token issued
//! ```
//!
//! A session takes a free lock by a compare-swap from 0 to its own value, and releases the lock by a compare-swap from
//! its own value to 0. While sessions wait, both compare-swaps fail, and all requests go through the home. Only the
//! home sets and clears bit 63, so no session overtakes a waiter.

use halite_mem::Window;

use crate::ids::{NodeIncarnation, SessionId};

/// Bytes of the region behind a lock: one cache line.
pub const LOCK_BYTES: u64 = 64;
/// Offset of the state in the lock's region, in bytes.
pub const STATE_OFFSET: u64 = 0;
/// Offset of the last fencing token in the lock's region, in bytes.
pub const TOKENS_OFFSET: u64 = 8;

/// Bit that is set while sessions wait at the home.
pub const CONTENDED: u64 = 1 << 63;

const SESSION_BITS: u32 = 16;
const INCARNATION_MASK: u64 = (CONTENDED >> SESSION_BITS) - 1;

/// A counter below this value has not received its base yet: clocks that count nanoseconds since 1970 show higher
/// values.
const TOKEN_BASE_MIN: u64 = 1 << 60;

/// The holder of a lock: a session in one incarnation of a node. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Holder(u64);

impl Holder {
    /// Stands for a session that ended while it held the lock.
    pub const ABANDONED: Holder = Holder(!CONTENDED);

    /// Creates the holder value for a session of the given incarnation.
    pub fn new(incarnation: NodeIncarnation, session: SessionId) -> Holder {
        Holder(incarnation_bits(incarnation) << SESSION_BITS | u64::from(session.0))
    }

    /// Returns the holder that a lock's state names, or `None` if the lock is free.
    pub fn of_state(state: u64) -> Option<Holder> {
        let holder = state & !CONTENDED;
        (holder != 0).then_some(Holder(holder))
    }

    /// Returns the state of a lock with this holder and no waiters.
    pub fn state(self) -> u64 {
        self.0
    }

    /// Returns true if the holder's session belongs to `incarnation`. Compares only 47 random bits: among a thousand
    /// nodes, two incarnations have the same bits in one of 10^8 clusters.
    pub fn is_of(self, incarnation: NodeIncarnation) -> bool {
        self.0 >> SESSION_BITS == incarnation_bits(incarnation)
    }
}

/// Returns neither 0, which means free, nor all ones, which [`Holder::ABANDONED`] uses.
fn incarnation_bits(incarnation: NodeIncarnation) -> u64 {
    (incarnation.id.0 & INCARNATION_MASK).clamp(1, INCARNATION_MASK - 1)
}

/// Returns the number that a new holder must add to the token counter, which was `last` before the holder added 1. The
/// number is 0 unless the lock is new.
///
/// A new lock's counter starts at `base_ns`, the time in ns since 1970. So a lock that is created again after the end
/// of its home issues higher tokens than before, since no lock is taken once per nanosecond.
pub fn token_correction(last: u64, base_ns: impl FnOnce() -> u64) -> u64 {
    if last < TOKEN_BASE_MIN { base_ns().max(TOKEN_BASE_MIN) } else { 0 }
}

/// The two words of a lock, for the home, which changes them in its own memory.
#[derive(Clone, Debug)]
pub struct LockWords(Window);

impl LockWords {
    /// Returns the words of the lock at the start of `window`, or `None` if `window` is shorter than [`LOCK_BYTES`].
    pub fn new(window: Window) -> Option<LockWords> {
        (window.len() >= LOCK_BYTES).then_some(LockWords(window))
    }

    /// Returns the holder, or `None` if the lock is free.
    pub fn holder(&self) -> Option<Holder> {
        Holder::of_state(self.state())
    }

    fn state(&self) -> u64 {
        self.0.load_u64(STATE_OFFSET).expect("the window is long enough, and extents are aligned")
    }

    /// Takes the lock for `holder` and returns `None` if the lock is free; otherwise returns the current holder.
    pub fn try_take(&self, holder: Holder) -> Option<Holder> {
        let before = self.0.compare_exchange_u64(STATE_OFFSET, 0, holder.state());
        Holder::of_state(before.expect("as in state()"))
    }

    /// Sets the bit [`CONTENDED`], so that sessions take and release the lock through the home, and returns the holder.
    /// Other nodes change the state concurrently, but never this bit, so an addition sets the bit without a loop.
    pub fn mark_contended(&self) -> Option<Holder> {
        if self.state() & CONTENDED != 0 {
            return self.holder();
        }
        Holder::of_state(self.0.fetch_add_u64(STATE_OFFSET, CONTENDED).expect("as in state()"))
    }

    /// Clears the bit [`CONTENDED`]. Call this once no session waits.
    pub fn clear_contended(&self) {
        if self.state() & CONTENDED != 0 {
            self.0.fetch_add_u64(STATE_OFFSET, CONTENDED).expect("as in state()");
        }
    }

    /// Grants the lock to `holder`, and sets [`CONTENDED`] if `contended`. Requires that no other node can change the
    /// state: [`CONTENDED`] is already set, or the previous holder asked the home to release the lock, or the previous
    /// holder was lost and is cut off.
    pub fn give(&self, holder: Holder, contended: bool) {
        let mark = if contended { CONTENDED } else { 0 };
        self.0.store_u64(STATE_OFFSET, holder.state() | mark).expect("as in state()");
    }

    /// Frees the lock, under the same conditions as [`LockWords::give`].
    pub fn make_free(&self) {
        self.0.store_u64(STATE_OFFSET, 0).expect("as in state()");
    }

    /// Returns the next fencing token, for a new holder. The tokens of a new lock start at `base_ns`, the time in ns
    /// since 1970.
    pub fn next_token(&self, base_ns: u64) -> u64 {
        let last = self.0.fetch_add_u64(TOKENS_OFFSET, 1).expect("as in state()");
        let correction = token_correction(last, || base_ns);
        self.0.fetch_add_u64(TOKENS_OFFSET, correction).expect("as in state()");
        last.wrapping_add(1).wrapping_add(correction)
    }
}

/// The word of a barrier, in the memory of its home.
impl LockWords {
    /// Ends a round of the barrier and returns the number of the round, counted from 1.
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
    fn holders_avoid_reserved_states() {
        for id in [0, 1, 1 << 47, u64::MAX, 0x1234_5678_9abc_def0] {
            for session in [0, 1, u16::MAX] {
                let holder = Holder::new(incarnation(id), SessionId(session));
                assert_ne!(holder.state(), 0);
                assert_ne!(holder, Holder::ABANDONED);
                assert_eq!(holder.state() & CONTENDED, 0);
                assert!(holder.is_of(incarnation(id)));
                assert!(!Holder::ABANDONED.is_of(incarnation(id)));
                assert_eq!(Holder::of_state(holder.state() | CONTENDED), Some(holder));
            }
        }
    }

    #[test]
    fn contended_state_changes_at_home_only() {
        let (words, ada, bob) =
            (words(), Holder::new(incarnation(1), SessionId(1)), Holder::new(incarnation(2), SessionId(1)));
        assert_eq!(words.try_take(ada), None);
        assert_eq!(words.mark_contended(), Some(ada));
        assert_eq!(words.mark_contended(), Some(ada), "marking is idempotent");
        assert_eq!(words.try_take(bob), Some(ada));
        words.clear_contended();
        words.clear_contended();
        assert_eq!((words.holder(), words.state()), (Some(ada), ada.state()));
        words.make_free();
        assert_eq!(words.mark_contended(), None, "it was free");
        assert_eq!(words.try_take(bob), None);
        assert_ne!(words.holder(), Some(bob), "a marked lock cannot be taken");
    }
}
