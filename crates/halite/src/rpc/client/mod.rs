//! The caller's side of calls and messages: posts requests, waits for their replies, and takes them.
//!
//! ```text
//!   request ──> ring or lines ──> (the server) ──> slot or line ──> reply
//!      └── cancelled ──> the slot stays in use until the server has acknowledged the cancel
//! ```
//!
//! `Client` has the state: the reply slots, the lines for replies to short requests, and the principals of this node.

mod arrivals;
mod batch;
mod cancel;
mod lent_slots;
mod lines;
mod reply;
mod reply_lines;
mod request;
mod ring;
mod short_replies;
mod slots;

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use halite_fabric::{PeerId, RemoteAddress};
use halite_tier::ids::Principal;
use halite_tier::rpc::line::PRINCIPALS_MAX;
use halite_tier::rpc::{ReplySlots, SlotId, Target};

use self::reply_lines::{REPLY_LINES_BYTES, ReplyLines};
use self::slots::{SLOTS_MAX, SlotResources};
use super::shared::{Block, Link, Poster};
use crate::runtime::locks::{lock, ranked};
use crate::runtime::wait::Wakes;

pub(crate) use self::reply::{LentReply, Reply, ReplyBuffer};
pub(crate) use self::request::{NotPosted, Posted, Request};
pub(super) use self::slots::{DEFAULT_SLOT_BYTES, DEFAULT_SLOTS};

ranked! {
    ReplySlots<SlotResources> => Slots;
    Vec<(u16, u32)> => Orphans;
    Vec<Principal> => Deferred;
}

pub(crate) struct Client {
    default_slots: Block,
    slots: Mutex<ReplySlots<SlotResources>>,
    reply_lines: ReplyLines,
    /// Slots that links had borrowed when they ended, with the numbers of these links as borrowers.
    orphans: Mutex<Vec<(u16, u32)>>,
    /// Number of links that have borrowed slots so far.
    borrowers: AtomicU32,
    /// Principals of this node, by their numbers.
    principals: Mutex<Vec<Principal>>,
    arrivals: AtomicU64,
    /// True if a request may wait for room in a ring.
    ring_waiters: AtomicBool,
}

impl Client {
    /// Creates the client's state. Returns `None` if the system has no memory for the slots.
    pub(super) fn new(poster: &Poster) -> Option<Client> {
        let default_slots = poster.allocate(u64::from(DEFAULT_SLOTS) * DEFAULT_SLOT_BYTES)?;
        Some(Client {
            default_slots,
            slots: Mutex::new(ReplySlots::new(usize::from(DEFAULT_SLOTS), SLOTS_MAX)),
            reply_lines: ReplyLines::new(poster.allocate(REPLY_LINES_BYTES)?),
            orphans: Mutex::default(),
            borrowers: AtomicU32::new(0),
            principals: Mutex::default(),
            arrivals: AtomicU64::new(0),
            ring_waiters: AtomicBool::new(false),
        })
    }

    /// Returns the addresses of the default slots and of the reply lines, which this node tells its peers.
    pub(super) fn addresses(&self) -> (RemoteAddress, RemoteAddress) {
        (self.default_slots.address(), self.reply_lines.address())
    }

    /// Returns a unique number for a link that borrows slots.
    pub(super) fn new_borrower(&self) -> u32 {
        1 + self.borrowers.fetch_add(1, Relaxed)
    }

    /// Returns the number that replaces a principal's name in lines; `None` if all numbers are in use.
    pub(crate) fn number_of(&self, principal: &Principal) -> Option<u16> {
        let mut principals = lock(&self.principals);
        let known = principals.iter().position(|known| known == principal);
        let number = known.unwrap_or(principals.len());
        if number >= usize::from(PRINCIPALS_MAX) {
            return None;
        }
        if known.is_none() {
            principals.push(principal.clone());
        }
        Some(number as u16)
    }

    /// Ends the calls to a peer that is down. Their slots stay reserved, because the peer may still write to them.
    pub(super) fn handle_down(&self, peer: PeerId, wakes: &mut Wakes) {
        let mut slots = lock(&self.slots);
        wakes.extend(slots.handle_down(peer));
        self.count_arrival(&slots);
    }

    /// Frees the slots that a peer held, because it can no longer access this node's memory.
    pub(super) fn handle_cut_off(&self, peer: PeerId) {
        let held = lock(&self.slots).handle_cut_off(peer);
        drop(held);
    }

    /// Frees a slot, because its server has promised to write nothing more to it.
    pub(super) fn handle_cancelled(&self, from: Target, slot: SlotId) {
        let held = lock(&self.slots).handle_cancelled(from, slot);
        drop(held);
    }

    /// Ends all waits, because the node ends.
    pub(super) fn close(&self, wakes: &mut Wakes) {
        let mut slots = lock(&self.slots);
        wakes.extend(slots.close());
        self.count_arrival(&slots);
    }

    /// Returns the number of slots in use for replies by the peer of `link`.
    pub(super) fn under_way(&self, link: &Link) -> usize {
        // One lock after the other; nested, they would be out of order.
        let borrower =
            lock(&link.outbound).as_ref().and_then(|o| o.lines.as_ref()).map(|lines| lines.borrower);
        let short = borrower.map_or(0, |borrower| self.reply_lines.busy(Some(borrower)));
        lock(&self.slots).in_use(link.target) + short
    }

    /// Returns the number of reply slots in use.
    pub(crate) fn all_under_way(&self) -> usize {
        lock(&self.slots).all_in_use() + self.reply_lines.busy(None)
    }

    /// Returns the earliest deadline of a call, in nanoseconds on the node's clock.
    pub(crate) fn next_deadline_ns(&self) -> u64 {
        lock(&self.slots).next_deadline_ns()
    }

    /// Ends the calls whose deadlines have passed.
    pub(crate) fn handle_time(&self, now_ns: u64, wakes: &mut Wakes) {
        wakes.extend(lock(&self.slots).handle_time(now_ns));
    }

    /// Records that a request waits for room in a ring.
    pub(crate) fn set_ring_waiters(&self) {
        self.ring_waiters.store(true, Relaxed);
    }

    /// Returns true if a request waits for room in a ring, and clears the flag.
    pub(crate) fn take_ring_waiters(&self) -> bool {
        // The ring's lock orders this: a waiter sets the flag before it checks the ring.
        self.ring_waiters.load(Relaxed) && self.ring_waiters.swap(false, Relaxed)
    }
}
