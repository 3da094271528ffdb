//! What a server's node remembers of the calls of one client node: whether each may still be answered.
//!
//! ```text
//!            open            begin             end(answered)
//!   Idle ──────────> Open ──────────> Busy ─────────────────> Idle
//!                      │ cancel         │ cancel: acknowledged by end()
//!                      └──> Idle        v
//! ```
//!
//! A call is *busy* while its slot is being written, or its input read: only then must a cancel wait.  The caller may
//! see the answer, and use the slot for its next call, before the thread that wrote it comes to `end`; that then ends
//! nothing.
//!
//! Threads that answer take no lock for it: each slot is a word, which holds all of that.
//!
//! ```text
//!   | number of the request, 47 bits | generation, 15 bits | state, 2 bits |      0: never used
//! ```
//!
//! Requests and cancels of a client are heard by one thread at a time; answers are begun and ended by any.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;

use super::{SlotId, Violation};

/// See the header of this file.  Indexed by the client's slots.
#[derive(Debug)]
pub struct Served {
    /// Those of most calls.
    first: Box<[AtomicU64]>,
    /// The others, a block at a time.
    others: Box<[OnceLock<Box<[AtomicU64]>>]>,
    /// Requests that have arrived.
    count: AtomicU64,
}

/// One request.  Its slot and generation come back when the client has used the slot often enough; its number does so when a node
/// that asks for a call each nanosecond has done that for a day.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServedId {
    /// Where the client waits.
    pub slot: SlotId,
    number: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ServedState {
    Idle,
    Open,
    Busy,
    /// Busy, and an acknowledgement is owed.
    Cancelled,
}

/// What is to be done about a cancel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cancelling {
    /// Acknowledge it now.
    Acknowledge,
    /// [`Served::end`] will say so.
    Later,
}

/// Slots of a block: as many as have a default place for the reply.
const BLOCK_SLOTS: usize = if cfg!(loom) { 4 } else { 1024 };
const BLOCKS: usize = (u16::MAX as usize + 1) / BLOCK_SLOTS;
const STATE_BITS: u32 = 2;
const GENERATION_BITS: u32 = 15;
const NUMBER_MAX: u64 = (1 << (64 - STATE_BITS - GENERATION_BITS)) - 1;

impl Default for Served {
    fn default() -> Served {
        let others = (1..BLOCKS).map(|_| OnceLock::new()).collect();
        Served { first: block(), others, count: AtomicU64::new(0) }
    }
}

fn block() -> Box<[AtomicU64]> {
    (0..BLOCK_SLOTS).map(|_| AtomicU64::new(0)).collect()
}

impl Served {
    /// A request has arrived.  By one thread at a time.
    #[inline]
    pub fn open(&self, slot: SlotId) -> Result<ServedId, Violation> {
        // Who hears requests hands this on to the next who does: by the poll token, or a lock.
        let number = self.count.load(Relaxed).wrapping_add(1) & NUMBER_MAX;
        self.count.store(number, Relaxed);
        let id = ServedId { slot, number };
        let call = self.of(slot.index);
        let word = call.load(Relaxed);
        match state_of(word) {
            ServedState::Idle => {}
            ServedState::Busy | ServedState::Cancelled if generation_of(word) != slot.generation => {}
            _ => return Err(Violation("a slot is used for two requests")),
        }
        store_open(call, word_of(id, ServedState::Open));
        Ok(id)
    }

    /// Whether the call may still be answered.
    #[inline]
    pub fn is_open(&self, id: ServedId) -> bool {
        // A hint; who acts on it begins.
        self.of(id.slot.index).load(Relaxed) == word_of(id, ServedState::Open)
    }

    /// The call's slot is about to be written, or its input to be read.  `false` if nobody waits any more.
    #[inline]
    pub fn begin(&self, id: ServedId) -> bool {
        // Pairs with open() and end(), and with a cancel, which finds the call open or busy.
        let (open, busy) = (word_of(id, ServedState::Open), word_of(id, ServedState::Busy));
        self.of(id.slot.index).compare_exchange(open, busy, Acquire, Relaxed).is_ok()
    }

    /// That is over; the call is `answered` or not yet.  Returns whether a cancel is to be acknowledged now.  Nothing is
    /// left to be ended where the slot is in its next use.
    ///
    /// Where it returns, all that the thread has stored before is ordered as if by a fence before all that it loads from then on.
    #[inline]
    pub fn end(&self, id: ServedId, answered: bool) -> bool {
        let call = self.of(id.slot.index);
        let busy = word_of(id, ServedState::Busy);
        let after = word_of(id, if answered { ServedState::Idle } else { ServedState::Open });
        // Never a plain store: the slot may be open for the next call already.  Pairs with the Acquire of begin().
        let ended = call.compare_exchange(busy, after, SeqCst, Relaxed);
        fence_behind_exchange();
        let Err(found) = ended else { return false };
        if found != word_of(id, ServedState::Cancelled) {
            return false;
        }
        // Nobody else changes it until the acknowledgement has been heard, but the next use of the slot.
        call.compare_exchange(found, word_of(id, ServedState::Idle), AcqRel, Relaxed).is_ok()
    }

    /// The caller has lost interest.  By one thread at a time.
    pub fn cancel(&self, slot: SlotId) -> Cancelling {
        let call = self.of(slot.index);
        let mut word = call.load(Acquire);
        loop {
            let (next, cancelling) = match state_of(word) {
                ServedState::Open if generation_of(word) == slot.generation => {
                    (ServedState::Idle, Cancelling::Acknowledge)
                }
                ServedState::Busy if generation_of(word) == slot.generation => {
                    (ServedState::Cancelled, Cancelling::Later)
                }
                // It has been answered: the reply is on its way, in front of the acknowledgement.
                _ => return Cancelling::Acknowledge,
            };
            match call.compare_exchange(word, with_state(word, next), AcqRel, Acquire) {
                Ok(_) => return cancelling,
                Err(found) => word = found,
            }
        }
    }

    #[inline]
    fn of(&self, index: u16) -> &AtomicU64 {
        match self.first.get(usize::from(index)) {
            Some(call) => call,
            None => self.of_others(index),
        }
    }

    #[cold]
    fn of_others(&self, index: u16) -> &AtomicU64 {
        let index = usize::from(index);
        &self.others[index / BLOCK_SLOTS - 1].get_or_init(block)[index % BLOCK_SLOTS]
    }
}

/// A store is enough: besides who hears requests only end() changes the word then, of a call that is over for its client.  Its exchange
/// writes just behind what it has read, so either before this store, or not at all.  Pairs with the Acquire in begin().
#[inline]
#[cfg(not(loom))]
fn store_open(call: &AtomicU64, word: u64) {
    call.store(word, Release);
}

/// Loom lets other stores come between what an exchange reads and what it writes.
#[cfg(loom)]
fn store_open(call: &AtomicU64, word: u64) {
    call.swap(word, Release);
}

#[inline]
fn word_of(id: ServedId, state: ServedState) -> u64 {
    let generation = u64::from(id.slot.generation);
    id.number << (GENERATION_BITS + STATE_BITS) | generation << STATE_BITS | state as u64
}

#[inline]
fn with_state(word: u64, state: ServedState) -> u64 {
    word >> STATE_BITS << STATE_BITS | state as u64
}

#[inline]
fn state_of(word: u64) -> ServedState {
    match word & 3 {
        0 => ServedState::Idle,
        1 => ServedState::Open,
        2 => ServedState::Busy,
        _ => ServedState::Cancelled,
    }
}

#[inline]
fn generation_of(word: u64) -> u16 {
    (word >> STATE_BITS) as u16 & 0x7fff
}

/// A fence behind a compare-and-swap.  On x86-64 that is one itself.
#[inline]
fn fence_behind_exchange() {
    #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
    std::sync::atomic::compiler_fence(SeqCst);
    #[cfg(loom)]
    loom::sync::atomic::fence(SeqCst);
    #[cfg(not(any(loom, all(target_arch = "x86_64", not(miri)))))]
    std::sync::atomic::fence(SeqCst);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const ID: SlotId = SlotId { index: 3, generation: 7 };

    #[test]
    fn a_cancelled_call_is_never_answered() {
        let served = Served::default();
        let call = served.open(ID).unwrap();
        assert_eq!(served.cancel(ID), Cancelling::Acknowledge);
        assert!(!served.begin(call));
        // Its slot may be used for the next at once.
        served.open(SlotId { generation: 8, ..ID }).unwrap();
        assert!(!served.begin(call));
    }

    #[test]
    fn a_cancelled_call_is_not_answered_when_its_generation_comes_round_again() {
        let served = Served::default();
        let old = served.open(ID).unwrap();
        served.cancel(ID);
        let new = served.open(ID).unwrap();
        assert!(!served.begin(old));
        assert!(served.begin(new));
    }

    #[test]
    fn a_cancel_during_the_answer_waits_for_its_end() {
        let served = Served::default();
        let call = served.open(ID).unwrap();
        assert!(served.begin(call));
        assert_eq!(served.cancel(ID), Cancelling::Later);
        assert!(served.end(call, true));
    }

    #[test]
    fn reading_the_input_leaves_the_call_open_unless_it_was_cancelled() {
        let served = Served::default();
        let call = served.open(ID).unwrap();
        assert!(served.begin(call));
        assert!(!served.end(call, false));
        assert!(served.begin(call));
        assert_eq!(served.cancel(ID), Cancelling::Later);
        assert!(served.end(call, false));
        assert!(!served.is_open(call));
    }

    #[test]
    fn a_cancel_that_crosses_the_answer_is_acknowledged() {
        let served = Served::default();
        let call = served.open(ID).unwrap();
        assert!(served.begin(call));
        assert!(!served.end(call, true));
        assert_eq!(served.cancel(ID), Cancelling::Acknowledge);
    }

    #[test]
    fn a_caller_may_call_again_before_its_answer_is_noted_down() {
        let next = SlotId { generation: 8, ..ID };
        for cancelled in [false, true] {
            let served = Served::default();
            let call = served.open(ID).unwrap();
            assert!(served.begin(call));
            if cancelled {
                assert_eq!(served.cancel(ID), Cancelling::Later);
            }
            assert!(served.open(ID).is_err(), "not in the same use");
            let second = served.open(next).unwrap();
            assert!(!served.end(call, true), "the answer told the caller all there is to know");
            assert!(served.begin(second));
            assert!(!served.end(second, true));
        }
    }

    #[test]
    fn one_slot_for_two_requests_is_a_violation() {
        let served = Served::default();
        served.open(ID).unwrap();
        assert!(served.open(SlotId { generation: 8, ..ID }).is_err());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    const ID: SlotId = SlotId { index: 1, generation: 3 };

    #[test]
    fn loom_the_end_of_an_answer_leaves_the_next_call_of_its_slot_open() {
        loom::model(|| {
            let served = Arc::new(Served::default());
            let first = served.open(ID).unwrap();
            assert!(served.begin(first));
            let ending = {
                let served = served.clone();
                thread::spawn(move || served.end(first, true))
            };
            // The client has seen the answer, and calls again.
            let second = served.open(SlotId { generation: 4, ..ID }).unwrap();
            assert!(!ending.join().unwrap());
            assert!(served.begin(second), "the end of the first call has ended the second");
        });
    }

    #[test]
    fn loom_a_cancel_is_acknowledged_once_and_never_while_the_answer_is_written() {
        loom::model(|| {
            let served = Arc::new(Served::default());
            let call = served.open(ID).unwrap();
            let writes = Arc::new(AtomicU64::new(0));
            let answering = {
                let (served, writes) = (served.clone(), writes.clone());
                thread::spawn(move || {
                    if !served.begin(call) {
                        return (false, false);
                    }
                    writes.store(1, Relaxed);
                    writes.store(2, Relaxed);
                    (true, served.end(call, true))
                })
            };
            let now = served.cancel(ID) == Cancelling::Acknowledge;
            if now {
                assert_ne!(writes.load(Relaxed), 1, "it is being written");
            }
            let (answered, later) = answering.join().unwrap();
            assert!(now != later, "acknowledged now: {now}, later: {later}, answered: {answered}");
        });
    }

    #[test]
    fn loom_behind_its_end_an_answer_sees_who_wants_to_be_told_or_is_seen() {
        loom::model(|| {
            let served = Arc::new(Served::default());
            let call = served.open(ID).unwrap();
            assert!(served.begin(call));
            let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
            let answering = {
                let (served, words) = (served.clone(), words.clone());
                thread::spawn(move || {
                    words[0].store(1, Release);
                    served.end(call, true);
                    words[1].load(Relaxed) == 1
                })
            };
            // As who waits for a reply line does.
            words[1].store(1, Release);
            loom::sync::atomic::fence(SeqCst);
            let found = words[0].load(Acquire) == 1;
            assert!(answering.join().unwrap() || found, "nobody would ever look");
        });
    }
}
