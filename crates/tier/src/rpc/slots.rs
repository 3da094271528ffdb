//! Reply slots: the places of a caller's node into which servers write.
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
//! Slots may also be *lent*, to a thread that sees to their uses by itself, one after the other, for as long as nothing
//! goes wrong; a use that is to be waited for by waker, to be cancelled, or to end with its server is taken back first:
//!
//! ```text
//!        lend           adopt
//!   Free ────> Lent ─────────> Waiting, or Down ── as above
//!     ^          │ take_back
//!     └──────────┘
//! ```
//!
//! A waiter holds a slot's number only.  A slot is free again only when nothing can be written to it any more;
//! then the next use has another generation, so that even a peer that breaks this rule is found out.

use std::task::Waker;

use halite_fabric::PeerId;

use super::Violation;
use super::wire::next_generation;

/// One use of a reply slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId {
    /// Which slot.
    pub index: u16,
    /// Which of its uses: 15 bits.
    pub generation: u16,
}

/// Who is to answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Target {
    /// A server on this node.
    Own,
    /// One behind a connection.
    Peer(PeerId),
}

/// All reply slots of a node, with what each holds while it is in use (memory, say).
#[derive(Debug)]
pub struct ReplySlots<H> {
    slots: Vec<Slot<H>>,
    /// Of the preferred ones.  The one used last is used first: it is in the cache.
    free: Vec<u16>,
    /// Of the others.
    free_others: Vec<u16>,
    preferred: usize,
    slots_max: usize,
    /// No slot that is waited for has an earlier deadline.
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
    /// Others see to it.
    Lent,
    Waiting {
        waker: Option<Waker>,
        deadline_ns: u64,
    },
    Replied,
    /// The server is gone; `cut_off` once it can write no more.
    Down {
        cut_off: bool,
    },
    Abandoned,
}

/// What a reply means.
#[derive(Debug)]
pub enum Arrival {
    /// Somebody waits for it.
    Expected(Option<Waker>),
    /// Nobody does any more: look at it, then [`ReplySlots::free`] the slot.
    Late,
    /// It is of a peer that was given up before it said that: it is not heeded.
    Posthumous,
}

/// What a waiter sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyState {
    /// Nothing yet.
    Waiting,
    /// The reply is there: copy it out, then [`ReplySlots::free`] the slot.
    Replied,
    /// The server's node is gone; then [`ReplySlots::abandon`] the slot.
    Down,
    /// The deadline has passed; then [`ReplySlots::abandon`] the slot.
    Overdue,
}

/// What is to be done about a slot that nobody waits for any more.
#[derive(Debug)]
pub enum Abandoned<H> {
    /// Ask the server to acknowledge that it will not write.  The waker is to be dropped when no lock is held.
    Cancel(Target, Option<Waker>),
    /// The reply had come: look at it, then [`ReplySlots::free`] the slot.
    Replied,
    /// It is free again.
    Freed(Option<H>),
    /// It is free when the server's node is cut off.
    Kept,
}

/// Whether a peer that is down can write no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CutOffYet(pub bool);

impl<H> Slot<H> {
    fn is_in_use(&self) -> bool {
        !matches!(self.state, SlotState::Free | SlotState::Lent)
    }
}

impl<H> ReplySlots<H> {
    /// At most `slots_max` slots, none in use.  The first `preferred` are used as long as there are some.
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

    /// Takes a slot into use; `None` if all are, or after the end.
    pub fn open(&mut self, target: Target) -> Option<SlotId> {
        if self.closed {
            return None;
        }
        // Others are made only when all that are preferred have been.
        let index = self.free.pop().or_else(|| self.free_others.pop()).or_else(|| self.make(target))?;
        let slot = &mut self.slots[usize::from(index)];
        slot.state = SlotState::Waiting { waker: None, deadline_ns: u64::MAX };
        slot.target = target;
        Some(SlotId { index, generation: slot.generation })
    }

    /// Takes a preferred slot out, for uses of which this hears nothing; `None` if all are in use, or after the end.
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

    /// A slot that was lent is not in use, and this would be its next one.
    pub fn take_back(&mut self, id: SlotId) {
        let slot = &mut self.slots[usize::from(id.index)];
        debug_assert!(matches!(slot.state, SlotState::Lent), "it is taken back once");
        slot.generation = id.generation;
        self.free(id);
    }

    /// A slot that was lent is in this use, which is seen to here from now on.  Its server `is_down`, and perhaps cut off, or may
    /// still answer.
    pub fn adopt(&mut self, id: SlotId, deadline_ns: u64, is_down: Option<CutOffYet>) {
        let slot = &mut self.slots[usize::from(id.index)];
        debug_assert!(matches!(slot.state, SlotState::Lent), "it is adopted once");
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

    /// The use in which a reply is waited for, or was, until now.
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

    /// Until when the reply is waited for; at first, for ever.
    pub fn set_deadline(&mut self, id: SlotId, at_ns: u64) {
        let slot = self.slot_mut(id).expect("its opener holds it");
        if let SlotState::Waiting { deadline_ns, .. } = &mut slot.state {
            *deadline_ns = at_ns;
            self.next_deadline_ns = self.next_deadline_ns.min(at_ns);
        }
    }

    /// Leaves something with a slot that is in use, until it is free again.
    pub fn hold(&mut self, id: SlotId, held: H) {
        self.slot_mut(id).expect("its opener holds it").held = Some(held);
    }

    /// Who is to answer into a slot that is in use.
    pub fn target(&self, id: SlotId) -> Target {
        self.slots[usize::from(id.index)].target
    }

    /// How many slots are in use that are not lent, from wherever their replies come.
    pub fn all_in_use(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_in_use()).count()
    }

    /// How many slots are in use for replies from there, those among them that nobody waits for any more.
    pub fn in_use(&self, target: Target) -> usize {
        self.slots.iter().filter(|slot| slot.is_in_use() && slot.target == target).count()
    }

    /// Takes what a slot holds; the outer `None` if that use of it is over.
    pub fn take_held(&mut self, id: SlotId) -> Option<Option<H>> {
        self.slot_mut(id).map(|slot| slot.held.take())
    }

    /// What a slot that is in use holds.
    pub fn held(&self, id: SlotId) -> Option<&H> {
        let slot = self.slots.get(usize::from(id.index))?;
        slot.held.as_ref().filter(|_| slot.generation == id.generation)
    }

    /// A reply has been written.
    pub fn handle_reply(&mut self, from: Target, id: SlotId) -> Result<Arrival, Violation> {
        let unknown = Violation("a reply that nothing was asked for");
        let slot = self.slot_mut(id).filter(|slot| slot.target == from).ok_or(unknown)?;
        match &mut slot.state {
            SlotState::Waiting { waker, .. } => {
                let waker = waker.take();
                slot.state = SlotState::Replied;
                Ok(Arrival::Expected(waker))
            }
            SlotState::Abandoned => {
                // From here on only its waiter frees it.
                slot.state = SlotState::Replied;
                Ok(Arrival::Late)
            }
            SlotState::Down { .. } => Ok(Arrival::Posthumous),
            // Nothing is answered twice.
            SlotState::Free | SlotState::Lent | SlotState::Replied => Err(unknown),
        }
    }

    /// Looks after a slot.
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

    /// As [`ReplySlots::look`]; where there is nothing yet, `waker` is woken when there is.  The previous waker comes back
    /// in its place: to drop it may run anything, so that is for when no lock is held.
    pub fn wait(&mut self, id: SlotId, now_ns: u64, waker: &mut Option<Waker>) -> ReplyState {
        let look = self.look(id, now_ns);
        if look == ReplyState::Waiting
            && let Some(Slot { state: SlotState::Waiting { waker: kept, .. }, .. }) = self.slot_mut(id)
        {
            std::mem::swap(kept, waker);
        }
        look
    }

    /// Nobody waits for this slot any more.
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

    /// The server acknowledges that it will not write.  Returns what the slot held, if it is free now.
    pub fn handle_cancelled(&mut self, from: Target, id: SlotId) -> Option<H> {
        let slot = self.slot_mut(id).filter(|slot| slot.target == from)?;
        // The reply may have come before the acknowledgement.
        if let SlotState::Abandoned = slot.state { self.free(id) } else { None }
    }

    /// The slot is free again; returns what it held.
    pub fn free(&mut self, id: SlotId) -> Option<H> {
        let slot = self.slot_mut(id).expect("its waiter holds it");
        slot.state = SlotState::Free;
        slot.generation = next_generation(slot.generation);
        let held = slot.held.take();
        let is_preferred = usize::from(id.index) < self.preferred;
        if is_preferred { &mut self.free } else { &mut self.free_others }.push(id.index);
        held
    }

    /// A peer is gone, but may be able to write still.  Returns whom to wake.
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

    /// A peer can write no more.  Returns what the slots held that are free now.
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

    /// When some slot may become overdue.
    pub fn next_deadline_ns(&self) -> u64 {
        self.next_deadline_ns
    }

    /// Time has passed.  Returns whom to wake.
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

    /// Everything ends: wakes all who wait.  Slots stay reserved, since replies may still be written.
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

    /// Whether everything has ended.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// How many slots are in use.
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
    fn a_slot_is_used_again_with_another_generation() {
        let mut slots = slots();
        let first = open(&mut slots);
        assert!(matches!(slots.handle_reply(SERVER, first), Ok(Arrival::Expected(None))));
        assert_eq!(slots.look(first, 0), ReplyState::Replied);
        assert_eq!(slots.free(first), Some("memory"));
        let second = open(&mut slots);
        assert_eq!((second.index, second.generation), (first.index, 1));
        assert!(slots.handle_reply(SERVER, first).is_err());
        assert!(slots.handle_reply(Target::Peer(PeerId(6)), second).is_err());
        assert!(slots.handle_reply(Target::Own, second).is_err());
    }

    #[test]
    fn preferred_slots_are_used_again_before_others() {
        let mut slots: ReplySlots<()> = ReplySlots::new(2, 4);
        let all = [(); 4].map(|()| slots.open(SERVER).unwrap());
        assert!(slots.open(SERVER).is_none());
        for id in [all[1], all[3], all[0], all[2]] {
            slots.abandon(id);
            slots.handle_cancelled(SERVER, id);
        }
        assert_eq!(slots.used(), 0);
        let again = [(); 4].map(|()| slots.open(SERVER).unwrap().index);
        assert_eq!(again, [0, 1, 2, 3]);
        assert_eq!(slots.used(), 4);
    }

    #[test]
    fn an_abandoned_slot_stays_reserved_until_the_server_acknowledges() {
        let mut slots = slots();
        let id = open(&mut slots);
        assert!(matches!(slots.abandon(id), Abandoned::Cancel(SERVER, None)));
        let other = open(&mut slots);
        assert!(slots.open(SERVER).is_none(), "both are in use");
        assert_eq!(slots.handle_cancelled(Target::Own, id), None, "that is not who was asked");
        assert_eq!(slots.handle_cancelled(SERVER, id), Some("memory"));
        assert_eq!(slots.handle_cancelled(SERVER, id), None, "it is not told twice");
        assert_eq!(slots.handle_cancelled(SERVER, other), None, "somebody waits for that");
        assert_eq!(open(&mut slots).index, id.index);
    }

    #[test]
    fn a_late_reply_frees_the_slot_and_the_acknowledgement_behind_it_means_nothing() {
        let mut slots = slots();
        let id = open(&mut slots);
        slots.abandon(id);
        assert!(matches!(slots.handle_reply(SERVER, id), Ok(Arrival::Late)));
        // It is being looked at, and nobody else frees it meanwhile.
        assert_eq!(slots.handle_cancelled(SERVER, id), None);
        assert!(slots.handle_cut_off(PEER).is_empty());
        assert_eq!(slots.free(id), Some("memory"));
        let next = open(&mut slots);
        assert_eq!(slots.handle_cancelled(SERVER, id), None);
        assert_eq!(slots.look(next, 0), ReplyState::Waiting);
    }

    #[test]
    fn a_dead_server_ends_the_waiting_but_frees_nothing_before_it_is_cut_off() {
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

    #[test]
    fn a_waiter_that_looks_after_the_cut_off_frees_the_slot_itself() {
        let mut slots = slots();
        let id = open(&mut slots);
        slots.handle_down(PEER);
        assert!(slots.handle_cut_off(PEER).is_empty());
        assert_eq!(slots.look(id, 0), ReplyState::Down);
        assert!(matches!(slots.abandon(id), Abandoned::Freed(Some("memory"))));
        assert_eq!(slots.used(), 0);
    }

    #[test]
    fn overdue_waiters_are_woken_and_the_others_are_not() {
        let mut slots = slots();
        let (soon, later) = (open(&mut slots), open(&mut slots));
        slots.set_deadline(soon, 10);
        slots.set_deadline(later, 20);
        for id in [soon, later] {
            assert_eq!(slots.wait(id, 0, &mut Some(Waker::noop().clone())), ReplyState::Waiting);
        }
        assert!(slots.handle_time(9).is_empty());
        assert_eq!(slots.handle_time(10).len(), 1);
        assert_eq!(slots.next_deadline_ns(), 20);
        assert_eq!(slots.look(soon, 10), ReplyState::Overdue);
        assert_eq!(slots.look(later, 10), ReplyState::Waiting);
    }

    #[test]
    fn a_waker_that_is_replaced_or_not_needed_any_more_is_handed_out() {
        let mut slots = slots();
        let id = open(&mut slots);
        let mut waker = Some(Waker::noop().clone());
        slots.wait(id, 0, &mut waker);
        assert!(waker.is_none());
        slots.wait(id, 0, &mut waker);
        assert!(waker.is_some(), "nobody is woken by the old one");
        slots.wait(id, 0, &mut waker);
        assert!(matches!(slots.abandon(id), Abandoned::Cancel(SERVER, Some(_))));
    }

    #[test]
    fn no_slot_is_opened_after_the_end() {
        let mut slots = slots();
        slots.close();
        assert!(slots.open(SERVER).is_none() && slots.is_closed());
    }
}
