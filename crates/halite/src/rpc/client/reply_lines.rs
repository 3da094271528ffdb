//! The reply lines of this node, one for each default slot, and the owner words of lent slots. Threads take and free
//! lent slots without a shared lock.
//!
//! A lent slot serves one link repeatedly. The link takes it under its outbound lock. The thread that has read the
//! reply frees it with a store:
//!
//! ```text
//!   owner word   | borrower u32 | generation u16 | busy u16 |        0: not lent
//!
//!            lend          take                             free
//!   none ─────────> free ───────> busy (generation g) ────────────> free (g + 1)
//!     ^               │             │
//!     └── take back ──┴── adopt ────┘    from then on it belongs to the table of slots
//! ```

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;

use halite_fabric::{LINE_BYTES, LINE_WORDS, RemoteAddress};
use halite_mem::Window;
use halite_tier::rpc::SlotId;
use halite_tier::rpc::line::{REPLY_WORDS, reply_mark};

use super::slots::DEFAULT_SLOTS;
use crate::rpc::shared::Block;

pub(super) struct ReplyLines {
    block: Block,
    owners: Owners,
}

struct Owners(Box<[AtomicU64]>);

/// The result of an attempt to take a lent slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Take {
    Taken(SlotId),
    Busy,
    /// The slot is no longer lent to this link.
    Gone,
}

impl Owners {
    fn new(count: u16) -> Owners {
        Owners((0..count).map(|_| AtomicU64::new(0)).collect())
    }

    fn lend(&self, slot: SlotId, borrower: u32) {
        // The borrower's outbound lock orders this before take().
        self.of(slot.index).store(owned(borrower, slot.generation), Relaxed);
    }

    #[inline]
    fn take(&self, index: u16, borrower: u32) -> Take {
        let owner = self.of(index);
        // Pairs with the Release in free(): the reply of the last use has been read.
        let word = owner.load(Acquire);
        if word >> 32 != u64::from(borrower) {
            return Take::Gone;
        }
        if word & BUSY != 0 {
            return Take::Busy;
        }
        owner.store(word | BUSY, Relaxed);
        Take::Taken(SlotId { index, generation: (word >> 16) as u16 })
    }

    #[inline]
    fn free(&self, slot: SlotId) {
        let owner = self.of(slot.index);
        let borrower = (owner.load(Relaxed) >> 32) as u32;
        // Pairs with the Acquire in take().
        owner.store(owned(borrower, next_generation(slot.generation)), Release);
    }

    fn hand_back(&self, slot: SlotId) {
        // The table's lock orders this for the next borrower; for the last one it is a hint.
        self.of(slot.index).store(0, Relaxed);
    }

    fn busy(&self, borrower: Option<u32>) -> usize {
        let is_busy = |owner: &&AtomicU64| {
            let word = owner.load(Relaxed);
            word & BUSY != 0 && borrower.is_none_or(|borrower| word >> 32 == u64::from(borrower))
        };
        self.0.iter().filter(is_busy).count()
    }

    #[inline]
    fn of(&self, index: u16) -> &AtomicU64 {
        &self.0[usize::from(index)]
    }
}

/// Length of all reply lines, in bytes.
pub(super) const REPLY_LINES_BYTES: u64 = DEFAULT_SLOTS as u64 * LINE_BYTES as u64;
/// Offset in a line at which a caller requests a notification.
const NOTIFY_OFFSET: u64 = ((LINE_WORDS - 1) * size_of::<u64>()) as u64;

impl ReplyLines {
    /// Creates the lines in `block`, which has [`REPLY_LINES_BYTES`] bytes.
    pub(super) fn new(block: Block) -> ReplyLines {
        block.window().fill(0, REPLY_LINES_BYTES, 0).expect("the block is as long");
        ReplyLines { block, owners: Owners::new(DEFAULT_SLOTS) }
    }

    pub(super) fn address(&self) -> RemoteAddress {
        self.block.address()
    }

    fn window(&self) -> &Window {
        self.block.window()
    }

    /// Lends a slot to `borrower` and clears the slot's line. Called under the borrower's outbound lock.
    pub(super) fn lend(&self, slot: SlotId, borrower: u32) {
        self.window().publish_words(offset(slot), &[0; LINE_WORDS]).expect("each default slot has a line");
        self.owners.lend(slot, borrower);
    }

    /// Takes a lent slot into use. Called under the borrower's outbound lock.
    #[inline]
    pub(super) fn take(&self, index: u16, borrower: u32) -> Take {
        self.owners.take(index, borrower)
    }

    /// Frees a lent slot and advances its generation.
    #[inline]
    pub(super) fn free(&self, slot: SlotId) {
        self.owners.free(slot);
    }

    /// Returns the slot to the table of slots.
    pub(super) fn hand_back(&self, slot: SlotId) {
        self.owners.hand_back(slot);
    }

    /// Returns how many slots lent to `borrower`, or to any link if that is `None`, are in use.
    pub(super) fn busy(&self, borrower: Option<u32>) -> usize {
        self.owners.busy(borrower)
    }

    /// Returns true if the reply to this use of the slot has arrived.
    #[inline]
    pub(super) fn has_arrived(&self, slot: SlotId) -> bool {
        // Pairs with the Release with which the server stores the line: a thread that sees the mark sees the rest.
        let first = self.window().load_u64(offset(slot)).expect("each default slot has a line");
        first as u16 == reply_mark(slot)
    }

    #[inline]
    pub(super) fn read(&self, slot: SlotId) -> [u64; REPLY_WORDS] {
        self.window().load_words(offset(slot)).expect("each default slot has a line")
    }

    /// Returns a window of the `len` output bytes in a line.
    pub(super) fn output(&self, slot: SlotId, len: u64) -> Option<Window> {
        self.window().slice(offset(slot) + size_of::<u64>() as u64, len)
    }

    /// Asks the server to notify this node of the reply. Afterwards, the caller must check the line once more.
    pub(super) fn request_notification(&self, slot: SlotId) {
        self.window().store_u64(offset(slot) + NOTIFY_OFFSET, 1).expect("each default slot has a line");
        // Pairs with the server's fence after the line: either the server sees the request, or this thread sees the
        // line.
        fence(SeqCst);
    }
}

const BUSY: u64 = 1;

#[inline]
fn owned(borrower: u32, generation: u16) -> u64 {
    u64::from(borrower) << 32 | u64::from(generation) << 16
}

#[inline]
fn offset(slot: SlotId) -> u64 {
    u64::from(slot.index) * LINE_BYTES as u64
}

#[inline]
fn next_generation(generation: u16) -> u16 {
    generation.wrapping_add(1) & 0x7fff
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_use_of_a_lent_slot_has_its_own_generation() {
        let owners = Owners::new(2);
        let slot = SlotId { index: 1, generation: 0x7fff };
        assert_eq!(owners.take(1, 5), Take::Gone);
        owners.lend(slot, 5);
        assert_eq!(
            (owners.take(1, 6), owners.take(1, 5), owners.take(1, 5)),
            (Take::Gone, Take::Taken(slot), Take::Busy)
        );
        assert_eq!((owners.busy(None), owners.busy(Some(5)), owners.busy(Some(6))), (1, 1, 0));
        owners.free(slot);
        let next = SlotId { generation: 0, ..slot };
        assert_eq!((owners.busy(None), owners.take(1, 5)), (0, Take::Taken(next)));
        owners.hand_back(next);
        assert_eq!(owners.take(1, 5), Take::Gone);
    }
}

/// Model: a slot is reused only after its reply has been read, and a waiting caller sees its reply or is notified.
#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, fence};

    use super::*;

    const BORROWER: u32 = 7;

    #[test]
    fn loom_slot_is_reused_after_its_reply_is_read() {
        loom::model(|| {
            let slot = SlotId { index: 0, generation: 0 };
            let owners = Owners::new(1);
            owners.lend(slot, BORROWER);
            assert_eq!(owners.take(0, BORROWER), Take::Taken(slot));
            let lent = Arc::new((owners, AtomicU64::new(0)));
            let next = {
                let lent = lent.clone();
                loom::thread::spawn(move || match lent.0.take(0, BORROWER) {
                    Take::Taken(next) => {
                        assert_eq!(next.generation, 1);
                        assert_eq!(lent.1.load(Relaxed), 1, "the server may write the next reply now");
                    }
                    Take::Busy => {}
                    Take::Gone => unreachable!("the slot has a waiter"),
                })
            };
            // The reply is read.
            lent.1.store(1, Relaxed);
            lent.0.free(slot);
            next.join().unwrap();
        });
    }

    #[test]
    fn loom_caller_finds_the_line_or_is_notified() {
        loom::model(|| {
            let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
            let server = {
                let words = words.clone();
                // As Rpc::put_reply() and last_word().
                loom::thread::spawn(move || {
                    words[0].store(1, Release);
                    fence(SeqCst);
                    words[1].load(Relaxed) != 0
                })
            };
            // As ReplyLines::request_notification() and has_arrived().
            words[1].store(1, Release);
            fence(SeqCst);
            let found = words[0].load(Acquire) == 1;
            let told = server.join().unwrap();
            assert!(found || told, "the reply would never be found");
        });
    }
}
