//! A server's record of the calls of one client node. It shows whether the server may still answer a call.
//!
//! ```text
//!            open            begin             end(answered)
//!   Idle ──────────> Open ──────────> Busy ─────────────────> Idle
//!                      │ cancel         │ cancel: acknowledged by end()
//!                      └──> Idle        v
//! ```
//!
//! A call is *busy* while a server thread writes its slot or reads its input. Only then does a cancel have to wait. The
//! caller may see the answer, and reuse the slot, before the writing thread reaches `end`; `end` then has no effect.
//!
//! Answering threads take no lock, since each slot is one word.
//!
//! ```text
//!   | number of the request, 47 bits | generation, 15 bits | state, 2 bits |      0: never used
//! ```
//!
//! One thread at a time handles requests and cancels of a client; any thread may begin and end an answer.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;

use super::{SlotId, Violation};

/// The states of a client's calls, indexed by its slots; see the module's documentation.
#[derive(Debug)]
pub struct Served {
    /// The slots of most calls.
    first: Box<[AtomicU64]>,
    /// The other slots, allocated in blocks.
    others: Box<[OnceLock<Box<[AtomicU64]>>]>,
    /// Number of the latest request.
    count: AtomicU64,
}

/// Identifies one request. The pair of slot and generation repeats after 2^15 uses of the slot. The number repeats
/// after 2^47 requests: more than a day at one call per nanosecond.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServedId {
    /// The client's reply slot.
    pub slot: SlotId,
    number: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ServedState {
    Idle,
    Open,
    Busy,
    /// Busy, with a cancel to acknowledge at the end.
    Cancelled,
}

/// When the server must acknowledge a cancel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cancelling {
    /// The server must acknowledge the cancel now.
    Acknowledge,
    /// The server must acknowledge the cancel when [`Served::end`] returns true.
    Later,
}

/// Number of slots in a block, which is also the number of default slots.
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
    /// Opens the call that uses `slot`. Fails if the slot's previous call is still open. One thread at a time may call
    /// this.
    #[inline]
    pub fn open(&self, slot: SlotId) -> Result<ServedId, Violation> {
        // The poll token or a lock orders this access between the threads that handle requests.
        let number = self.count.load(Relaxed).wrapping_add(1) & NUMBER_MAX;
        self.count.store(number, Relaxed);
        let id = ServedId { slot, number };
        let call = self.of(slot.index);
        let word = call.load(Relaxed);
        match state_of(word) {
            ServedState::Idle => {}
            ServedState::Busy | ServedState::Cancelled if generation_of(word) != slot.generation => {}
            _ => return Err(Violation("a slot is used for two requests at the same time")),
        }
        store_open(call, word_of(id, ServedState::Open));
        Ok(id)
    }

    /// Returns true if the server may still answer the call: it is neither answered, busy nor cancelled.
    #[inline]
    pub fn is_open(&self, id: ServedId) -> bool {
        // Only a hint: callers that rely on it call begin().
        self.of(id.slot.index).load(Relaxed) == word_of(id, ServedState::Open)
    }

    /// Marks the call as busy, before a thread writes the call's slot or reads the call's input. Returns false if the
    /// call was cancelled.
    #[inline]
    pub fn begin(&self, id: ServedId) -> bool {
        // Pairs with open() and end(), and with cancel(), which finds the call open or busy.
        let (open, busy) = (word_of(id, ServedState::Open), word_of(id, ServedState::Busy));
        self.of(id.slot.index).compare_exchange(open, busy, Acquire, Relaxed).is_ok()
    }

    /// Ends the busy state that [`Served::begin`] began. `answered` is true if the call is done. Returns true if the
    /// server must acknowledge a cancel now. Has no effect if the slot is already in its next use.
    ///
    /// Acts as a full fence between the thread's earlier stores and its later loads.
    #[inline]
    pub fn end(&self, id: ServedId, answered: bool) -> bool {
        let call = self.of(id.slot.index);
        let busy = word_of(id, ServedState::Busy);
        let after = word_of(id, if answered { ServedState::Idle } else { ServedState::Open });
        // Never a plain store: the slot may already be open for the next call. Pairs with the Acquire of begin().
        let ended = call.compare_exchange(busy, after, SeqCst, Relaxed);
        fence_behind_exchange();
        let Err(found) = ended else { return false };
        if found != word_of(id, ServedState::Cancelled) {
            return false;
        }
        // Until the acknowledgement arrives, only the next use of the slot can change the word.
        call.compare_exchange(found, word_of(id, ServedState::Idle), AcqRel, Relaxed).is_ok()
    }

    /// Handles the cancel of a caller that has given up on `slot`. One thread at a time may call this.
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
                // The call was answered, and the reply precedes the acknowledgement.
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

/// A store suffices: only end() of a finished call may change the word concurrently. The exchange there writes
/// directly after what it read, so it precedes this store or fails. Pairs with the Acquire in begin().
#[inline]
#[cfg(not(loom))]
fn store_open(call: &AtomicU64, word: u64) {
    call.store(word, Release);
}

/// Loom allows other stores between an exchange's read and its write.
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

/// A fence after a compare-and-swap, which on x86-64 is a fence itself.
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
    fn callers_may_reuse_slots_before_end() {
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
            assert!(!served.end(call, true), "the caller already has the answer");
            assert!(served.begin(second));
            assert!(!served.end(second, true));
        }
    }

    #[test]
    fn reusing_an_open_slot_is_a_violation() {
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
    fn loom_end_keeps_the_next_call_open() {
        loom::model(|| {
            let served = Arc::new(Served::default());
            let first = served.open(ID).unwrap();
            assert!(served.begin(first));
            let ending = {
                let served = served.clone();
                thread::spawn(move || served.end(first, true))
            };
            // The client has seen the answer and makes its next call.
            let second = served.open(SlotId { generation: 4, ..ID }).unwrap();
            assert!(!ending.join().unwrap());
            assert!(served.begin(second), "the end of the first call ended the second");
        });
    }

    #[test]
    fn loom_cancels_are_acknowledged_once_after_the_write() {
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
                assert_ne!(writes.load(Relaxed), 1, "the reply is being written");
            }
            let (answered, later) = answering.join().unwrap();
            assert!(now != later, "acknowledged now: {now}, later: {later}, answered: {answered}");
        });
    }

    #[test]
    fn loom_end_orders_the_answer_before_the_flag() {
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
            // As the waiter for a reply line does.
            words[1].store(1, Release);
            loom::sync::atomic::fence(SeqCst);
            let found = words[0].load(Acquire) == 1;
            assert!(answering.join().unwrap() || found, "the wake-up is lost");
        });
    }
}
