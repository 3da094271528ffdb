//! Reply slots: memory of a caller's node into which servers write replies.
//!
//! ```text
//!           open            handle_reply         free
//!   Free ────────> Waiting ──────────────> Replied ────> Free
//!                    │ │ handle_down
//!            abandon │ └──────────> Down ── free, handle_cut_off (both) ──> Free
//!                    v
//!                Abandoned ── handle_cancelled, handle_cut_off ──> Free
//!                    └─────── handle_reply (late) ──> Replied ────> Free
//! ```
//!
//! The table may also *lend* a slot to a thread, which then manages the slot's uses itself. If a use needs a waker or a
//! cancel, or its server is lost, the table *adopts* this use first:
//!
//! ```text
//!        lend           adopt
//!   Free ────> Lent ─────────> Waiting, or Down ── as above
//!     ^          │ take_back
//!     └──────────┘
//! ```
//! A waiter holds only a slot's id. A slot becomes free only when no server can write to it any more. The next use of
//! the slot has another generation, so the table detects a peer that still replies to the previous use.

use std::task::Waker;

use halite_fabric::PeerId;

use super::Violation;
use super::wire::next_generation;

/// Identifies one use of a reply slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId {
    /// Index of the slot in the node's table of reply slots.
    pub index: u16,
    /// Number of this use of the slot, in 15 bits.
    pub generation: u16,
}

/// The node that serves a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Target {
    /// This node itself.
    Own,
    /// Another node, behind this connection.
    Peer(PeerId),
}

/// All reply slots of a node. A slot in use may hold a resource of type `H`, for example memory for a long reply.
#[derive(Debug)]
pub struct ReplySlots<H> {
    slots: Vec<Slot<H>>,
    /// Free preferred slots. The slot used last is reused first, since it is in the cache.
    free: Vec<u16>,
    /// Other free slots, used if no preferred one is free.
    free_others: Vec<u16>,
    preferred: usize,
    slots_max: usize,
    /// Time in ns before which no waiting slot is overdue.
    next_deadline_ns: u64,
    closed: bool,
}

#[derive(Debug)]
struct Slot<H> {
    generation: u16,
    state: SlotState,
    target: Target,
    held: Option<H>,
}

#[derive(Debug)]
enum SlotState {
    Free,
    /// Managed by the thread to which it is lent.
    Lent,
    Waiting {
        waker: Option<Waker>,
        deadline_ns: u64,
    },
    Replied,
    /// The server is lost. `cut_off` is true once it can no longer write.
    Down {
        cut_off: bool,
    },
    Abandoned,
}

/// The state of a call when its reply arrives.
#[derive(Debug)]
pub enum Arrival {
    /// The caller waits for the reply, perhaps asleep: wake the waker.
    Expected(Option<Waker>),
    /// The caller has given up: inspect the reply, then [`ReplySlots::free`] the slot.
    Late,
    /// This node declared the peer lost before the reply arrived: ignore the reply.
    Posthumous,
}

/// The state of a slot, as its waiter sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyState {
    /// The reply has not arrived yet.
    Waiting,
    /// The reply has arrived: copy it out of the slot, then [`ReplySlots::free`] the slot.
    Replied,
    /// The server's node is lost: [`ReplySlots::abandon`] the slot.
    Down,
    /// The deadline has passed: [`ReplySlots::abandon`] the slot.
    Overdue,
}

/// The action that the caller must take after it has abandoned a slot.
#[derive(Debug)]
pub enum Abandoned<H> {
    /// Ask this server to acknowledge that it will not write to the slot, and drop the waker without holding a lock.
    Cancel(Target, Option<Waker>),
    /// The reply had already arrived: inspect it, then [`ReplySlots::free`] the slot.
    Replied,
    /// No action is needed: the slot is free. The value is the resource that the slot held, if any.
    Freed(Option<H>),
    /// No action is needed: the slot becomes free when the server's node is cut off.
    Kept,
}

/// Whether a lost peer is cut off, so that it can no longer write to reply slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CutOffYet(pub bool);

impl<H> Slot<H> {
    fn is_in_use(&self) -> bool {
        !matches!(self.state, SlotState::Free | SlotState::Lent)
    }
}

impl<H> ReplySlots<H> {
    /// Creates an empty table that grows to `slots_max` slots (65,536 or fewer). While one of the first `preferred`
    /// slots is free, the table uses such a slot.
    pub fn new(preferred: usize, slots_max: usize) -> ReplySlots<H> {
        assert!(slots_max <= 1 << 16, "an index has 16 bits");
        ReplySlots {
            slots: Vec::new(),
            free: Vec::new(),
            free_others: Vec::new(),
            preferred,
            slots_max,
            next_deadline_ns: u64::MAX,
            closed: false,
        }
    }

    /// Takes a free slot into use for a call to `target`. Returns `None` if all slots are in use, or after
    /// [`ReplySlots::close`].
    pub fn open(&mut self, target: Target) -> Option<SlotId> {
        if self.closed {
            return None;
        }
        // Other slots are created only after all preferred ones.
        let index = self.free.pop().or_else(|| self.free_others.pop()).or_else(|| self.make(target))?;
        let slot = &mut self.slots[usize::from(index)];
        slot.state = SlotState::Waiting { waker: None, deadline_ns: u64::MAX };
        slot.target = target;
        Some(SlotId { index, generation: slot.generation })
    }

    /// Lends a preferred slot to a thread, which manages the uses of the slot by itself. Returns `None` if all
    /// preferred slots are in use, or after [`ReplySlots::close`].
    pub fn lend(&mut self, target: Target) -> Option<SlotId> {
        if self.closed {
            return None;
        }
        let next = |slots: &mut Self| (slots.slots.len() < slots.preferred).then(|| slots.make(target))?;
        let index = self.free.pop().or_else(|| next(self))?;
        let slot = &mut self.slots[usize::from(index)];
        slot.state = SlotState::Lent;
        slot.target = target;
        Some(SlotId { index, generation: slot.generation })
    }

    /// Takes back a lent slot that is not in use. `id` names the next use of the slot.
    pub fn take_back(&mut self, id: SlotId) {
        let slot = &mut self.slots[usize::from(id.index)];
        debug_assert!(matches!(slot.state, SlotState::Lent), "a slot is taken back once");
        slot.generation = id.generation;
        self.free(id);
    }

    /// Starts to manage the current use `id` of a lent slot, with a deadline in ns. `is_down` is `Some` if the slot's
    /// server is lost.
    pub fn adopt(&mut self, id: SlotId, deadline_ns: u64, is_down: Option<CutOffYet>) {
        let slot = &mut self.slots[usize::from(id.index)];
        debug_assert!(matches!(slot.state, SlotState::Lent), "a slot is adopted once");
        slot.generation = id.generation;
        slot.state = match is_down {
            _ if self.closed => SlotState::Down { cut_off: false },
            Some(CutOffYet(cut_off)) => SlotState::Down { cut_off },
            None => {
                self.next_deadline_ns = self.next_deadline_ns.min(deadline_ns);
                SlotState::Waiting { waker: None, deadline_ns }
            }
        };
    }

    /// Returns the current use of a slot if a reply may still arrive, even if the waiter has given up; otherwise
    /// `None`.
    pub fn awaited(&self, index: u16) -> Option<SlotId> {
        let slot = self.slots.get(usize::from(index))?;
        let is_awaited = matches!(slot.state, SlotState::Waiting { .. } | SlotState::Abandoned);
        is_awaited.then_some(SlotId { index, generation: slot.generation })
    }

    fn make(&mut self, target: Target) -> Option<u16> {
        let index = self.slots.len();
        (index < self.slots_max).then(|| {
            self.slots.push(Slot { generation: 0, state: SlotState::Free, target, held: None });
            index as u16
        })
    }

    /// Sets the deadline, in ns, for the reply in a slot. By default, a reply has no deadline.
    pub fn set_deadline(&mut self, id: SlotId, at_ns: u64) {
        let slot = self.slot_mut(id).expect("its opener holds it");
        if let SlotState::Waiting { deadline_ns, .. } = &mut slot.state {
            *deadline_ns = at_ns;
            self.next_deadline_ns = self.next_deadline_ns.min(at_ns);
        }
    }

    /// Attaches a resource to a slot in use. The slot holds the resource until the slot is free.
    pub fn hold(&mut self, id: SlotId, held: H) {
        self.slot_mut(id).expect("its opener holds it").held = Some(held);
    }

    /// Returns the node that will write the reply into a slot in use.
    pub fn target(&self, id: SlotId) -> Target {
        self.slots[usize::from(id.index)].target
    }

    /// Returns the number of slots in use for replies from all servers: counts abandoned slots, but not lent slots.
    pub fn all_in_use(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_in_use()).count()
    }

    /// Returns the number of slots in use for replies from `target`: counts abandoned slots, but not lent slots.
    pub fn in_use(&self, target: Target) -> usize {
        self.slots.iter().filter(|slot| slot.is_in_use() && slot.target == target).count()
    }

    /// Takes the resource out of a slot. Returns `None` if this use of the slot has ended, and `Some(None)` if the slot
    /// holds no resource.
    pub fn take_held(&mut self, id: SlotId) -> Option<Option<H>> {
        self.slot_mut(id).map(|slot| slot.held.take())
    }

    /// Returns the resource of a slot in use, or `None` if the slot holds no resource.
    pub fn held(&self, id: SlotId) -> Option<&H> {
        let slot = self.slots.get(usize::from(id.index))?;
        slot.held.as_ref().filter(|_| slot.generation == id.generation)
    }

    /// Handles a reply that `from` has written into a slot. Fails if the slot expects no reply from `from`.
    pub fn handle_reply(&mut self, from: Target, id: SlotId) -> Result<Arrival, Violation> {
        let unknown = Violation("a reply names a slot that expects no reply");
        let slot = self.slot_mut(id).filter(|slot| slot.target == from).ok_or(unknown)?;
        match &mut slot.state {
            SlotState::Waiting { waker, .. } => {
                let waker = waker.take();
                slot.state = SlotState::Replied;
                Ok(Arrival::Expected(waker))
            }
            SlotState::Abandoned => {
                // From now on, only the slot's waiter frees it.
                slot.state = SlotState::Replied;
                Ok(Arrival::Late)
            }
            SlotState::Down { .. } => Ok(Arrival::Posthumous),
            // This is a second reply.
            SlotState::Free | SlotState::Lent | SlotState::Replied => Err(unknown),
        }
    }

    /// Returns the state of a slot at `now_ns`, for the slot's waiter.
    pub fn look(&mut self, id: SlotId, now_ns: u64) -> ReplyState {
        let slot = self.slot_mut(id).expect("its waiter holds it");
        match &slot.state {
            SlotState::Waiting { deadline_ns, .. } if *deadline_ns <= now_ns => ReplyState::Overdue,
            SlotState::Waiting { .. } => ReplyState::Waiting,
            SlotState::Replied => ReplyState::Replied,
            SlotState::Down { .. } => ReplyState::Down,
            SlotState::Free | SlotState::Lent | SlotState::Abandoned => unreachable!("its waiter holds it"),
        }
    }

    /// Returns the state of a slot at `now_ns`, and registers `waker` if the reply has not arrived. Leaves the
    /// previously registered waker in `waker`; the caller must drop that waker without holding a lock, since dropping
    /// may run arbitrary code.
    pub fn wait(&mut self, id: SlotId, now_ns: u64, waker: &mut Option<Waker>) -> ReplyState {
        let look = self.look(id, now_ns);
        if look == ReplyState::Waiting
            && let Some(Slot { state: SlotState::Waiting { waker: kept, .. }, .. }) = self.slot_mut(id)
        {
            std::mem::swap(kept, waker);
        }
        look
    }

    /// Abandons a slot, because its waiter has given up. Returns the action that the caller must take.
    pub fn abandon(&mut self, id: SlotId) -> Abandoned<H> {
        let slot = self.slot_mut(id).expect("its waiter holds it");
        match &mut slot.state {
            SlotState::Waiting { waker, .. } => {
                let waker = waker.take();
                slot.state = SlotState::Abandoned;
                Abandoned::Cancel(slot.target, waker)
            }
            SlotState::Replied => Abandoned::Replied,
            SlotState::Down { cut_off: true } => Abandoned::Freed(self.free(id)),
            SlotState::Down { cut_off: false } => {
                slot.state = SlotState::Abandoned;
                Abandoned::Kept
            }
            SlotState::Free | SlotState::Lent | SlotState::Abandoned => {
                unreachable!("a slot is abandoned once")
            }
        }
    }

    /// Handles the server's acknowledgement that it will not write to the slot. Returns the slot's resource if the slot
    /// is free now.
    pub fn handle_cancelled(&mut self, from: Target, id: SlotId) -> Option<H> {
        let slot = self.slot_mut(id).filter(|slot| slot.target == from)?;
        // The reply may have preceded the acknowledgement.
        if let SlotState::Abandoned = slot.state { self.free(id) } else { None }
    }

    /// Frees a slot and returns its resource.
    pub fn free(&mut self, id: SlotId) -> Option<H> {
        let slot = self.slot_mut(id).expect("its waiter holds it");
        slot.state = SlotState::Free;
        slot.generation = next_generation(slot.generation);
        let held = slot.held.take();
        let is_preferred = usize::from(id.index) < self.preferred;
        if is_preferred { &mut self.free } else { &mut self.free_others }.push(id.index);
        held
    }

    /// Records that a peer is lost, but may still write to reply slots. Returns the wakers that the caller must wake.
    pub fn handle_down(&mut self, peer: PeerId) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for slot in self.slots.iter_mut().filter(|slot| slot.target == Target::Peer(peer)) {
            if let SlotState::Waiting { waker, .. } = &mut slot.state {
                wakers.extend(waker.take());
                slot.state = SlotState::Down { cut_off: false };
            }
        }
        wakers
    }

    /// Records that a peer is cut off and can no longer write to reply slots. Returns the resources of the slots that
    /// are free now.
    pub fn handle_cut_off(&mut self, peer: PeerId) -> Vec<H> {
        let mut held = Vec::new();
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if slot.target != Target::Peer(peer) {
                continue;
            }
            match slot.state {
                SlotState::Down { .. } => slot.state = SlotState::Down { cut_off: true },
                SlotState::Abandoned => {
                    let id = SlotId { index: index as u16, generation: slot.generation };
                    held.extend(self.free(id));
                }
                SlotState::Free | SlotState::Lent | SlotState::Waiting { .. } | SlotState::Replied => {}
            }
        }
        held
    }

    /// Returns the earliest time in ns at which a slot may become overdue, or `u64::MAX` without a deadline.
    pub fn next_deadline_ns(&self) -> u64 {
        self.next_deadline_ns
    }

    /// Returns the wakers of the slots that are overdue at `now_ns`, which the caller must wake.
    pub fn handle_time(&mut self, now_ns: u64) -> Vec<Waker> {
        if now_ns < self.next_deadline_ns {
            return Vec::new();
        }
        let mut wakers = Vec::new();
        self.next_deadline_ns = u64::MAX;
        for slot in &mut self.slots {
            if let SlotState::Waiting { waker, deadline_ns } = &mut slot.state {
                match *deadline_ns <= now_ns {
                    true => wakers.extend(waker.take()),
                    false => self.next_deadline_ns = self.next_deadline_ns.min(*deadline_ns),
                }
            }
        }
        wakers
    }

    /// Ends all waits and returns the wakers that the caller must wake. Slots stay reserved, since servers may still
    /// write replies.
    pub fn close(&mut self) -> Vec<Waker> {
        self.closed = true;
        let mut wakers = Vec::new();
        for slot in &mut self.slots {
            if let SlotState::Waiting { waker, .. } = &mut slot.state {
                wakers.extend(waker.take());
                slot.state = SlotState::Down { cut_off: false };
            }
        }
        wakers
    }

    /// Returns true after [`ReplySlots::close`].
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns the number of slots in use, including lent slots.
    pub fn used(&self) -> usize {
        self.slots.len() - self.free.len() - self.free_others.len()
    }

    fn slot_mut(&mut self, id: SlotId) -> Option<&mut Slot<H>> {
        let slot = self.slots.get_mut(usize::from(id.index))?;
        (slot.generation == id.generation && !matches!(slot.state, SlotState::Free)).then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerId = PeerId(5);
    const SERVER: Target = Target::Peer(PEER);

    fn slots() -> ReplySlots<&'static str> {
        ReplySlots::new(2, 2)
    }

    fn open(slots: &mut ReplySlots<&'static str>) -> SlotId {
        let id = slots.open(SERVER).unwrap();
        slots.hold(id, "memory");
        id
    }

    #[test]
    fn late_replies_free_slots_without_acknowledgement() {
        let mut slots = slots();
        let id = open(&mut slots);
        slots.abandon(id);
        assert!(matches!(slots.handle_reply(SERVER, id), Ok(Arrival::Late)));
        // The reply is being inspected, and only the inspector frees the slot.
        assert_eq!(slots.handle_cancelled(SERVER, id), None);
        assert!(slots.handle_cut_off(PEER).is_empty());
        assert_eq!(slots.free(id), Some("memory"));
        let next = open(&mut slots);
        assert_eq!(slots.handle_cancelled(SERVER, id), None);
        assert_eq!(slots.look(next, 0), ReplyState::Waiting);
    }

    #[test]
    fn dead_servers_free_slots_after_cut_off_only() {
        let mut slots = slots();
        let (waiting, abandoned) = (open(&mut slots), open(&mut slots));
        slots.abandon(abandoned);
        slots.handle_down(PEER);
        assert_eq!(slots.look(waiting, 0), ReplyState::Down);
        assert!(matches!(slots.abandon(waiting), Abandoned::Kept));
        assert!(slots.open(SERVER).is_none());
        assert_eq!(slots.handle_cut_off(PEER), ["memory", "memory"]);
        assert_eq!(slots.used(), 0);
    }
}
