//! Our reply slots and their memory, and what becomes of replies that nobody waits for any more.

use halite_mem::Window;
use halite_tier::rpc::wire::REPLY_HEADER_BYTES;
use halite_tier::rpc::{CallControl, ReplyHeader, ReplySlots, SlotId, Status, Target};

use super::memory::Block;
use super::{DEFAULT_SLOT_BYTES, Rpc, SlotResources};
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

impl Rpc {
    /// The memory of a slot that is in use.
    pub(super) fn slot_window(&self, slot: SlotId) -> Window {
        let own =
            lock(&self.slots).held(slot).and_then(|held| held.reply.as_ref().map(|b| b.window().clone()));
        own.unwrap_or_else(|| {
            let window = self.default_slots.window().slice(default_offset(slot), DEFAULT_SLOT_BYTES);
            window.expect("slots beyond the default ones hold memory")
        })
    }

    /// Memory for the reply of a call of our own, once it is known how much that needs.  `false` if nobody waits.
    pub(super) fn give_slot_memory(&self, slot: SlotId, block: Block) -> bool {
        let mut slots = lock(&self.slots);
        let Some(held) = slots.take_held(slot) else { return false };
        slots.hold(slot, SlotResources { reply: Some(block), ..held.unwrap_or_default() });
        true
    }

    pub(super) fn write_own_slot(&self, slot: SlotId, header: &[u8], output: &[u8]) {
        let window = self.slot_window(slot);
        window.write(0, header).expect("a slot holds a header");
        window.write(header.len() as u64, output).expect("the output fits");
    }

    /// A reply that nobody waits for any more: what it offers is declined.
    pub(super) fn drop_reply(&self, from: Target, slot: SlotId, wakes: &mut Wakes) {
        let held = |slots: &ReplySlots<SlotResources>| slots.held(slot).map(|held| (held.port, held.by_line));
        let (port, by_line) = held(&lock(&self.slots)).unwrap_or_default();
        let status = if by_line { self.line_status(slot) } else { self.slot_status(slot) };
        self.decline_offer(from, slot, status, port, wakes);
        self.free_slot(slot);
    }

    fn slot_status(&self, slot: SlotId) -> Option<Status> {
        let mut header = [0; REPLY_HEADER_BYTES];
        self.slot_window(slot).read(0, &mut header).expect("a slot holds a header");
        ReplyHeader::parse(header).ok().map(|header| header.status)
    }

    /// What a reply offers is not wanted.
    pub(super) fn decline_offer(
        &self,
        from: Target,
        slot: SlotId,
        status: Option<Status>,
        port: Option<u32>,
        wakes: &mut Wakes,
    ) {
        match (status, port) {
            (Some(Status::DoneAt(_)), _) => self.release_output(from, slot),
            (Some(Status::Granted(grant)), Some(port)) => self.decline_room(from, port, grant, wakes),
            _ => {}
        }
    }

    /// A slot is free again; what it held is given back outside of the lock.
    pub(super) fn free_slot(&self, slot: SlotId) {
        let held = lock(&self.slots).free(slot);
        drop(held);
    }

    /// The server need not keep an output for us any longer.
    pub(super) fn release_output(&self, from: Target, slot: SlotId) {
        match from {
            // Outputs of this node itself are in the memory of their slots.
            Target::Own => {}
            Target::Peer(peer) => {
                self.send_control(
                    peer,
                    CallControl::Release { index: slot.index, generation: slot.generation },
                );
            }
        }
    }

    /// The room that is kept for a message of ours is not needed.
    pub(crate) fn decline_room(&self, at: Target, port: u32, grant: u32, wakes: &mut Wakes) {
        match at {
            Target::Own => self.decline(port, Target::Own, grant, wakes),
            Target::Peer(peer) => self.send_control(peer, CallControl::Decline { port, grant }),
        }
    }
}

/// Where a slot is in the memory of the default slots.
pub(super) fn default_offset(slot: SlotId) -> u64 {
    u64::from(slot.index) * DEFAULT_SLOT_BYTES
}

/// A reply is found by a caller that sleeps, by one that spins, and by one that gives up at the same moment.
#[cfg(all(test, loom))]
mod loom_tests {
    use std::task::Poll;

    use halite_fabric::PeerId;
    use halite_tier::rpc::{Abandoned, Arrival, ReplySlots, ReplyState, SlotId, Target};
    use loom::sync::atomic::AtomicU64;
    use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
    use loom::sync::{Arc, Mutex};

    const SERVER: Target = Target::Peer(PeerId(1));

    /// What [`super::Rpc`] has of slots, with the count of arrivals that spinning callers look at.
    struct Node {
        slots: Mutex<ReplySlots<()>>,
        arrivals: AtomicU64,
    }

    impl Node {
        fn new() -> (Arc<Node>, SlotId) {
            let mut slots = ReplySlots::new(1, 1);
            let slot = slots.open(SERVER).unwrap();
            (Arc::new(Node { slots: Mutex::new(slots), arrivals: AtomicU64::new(0) }), slot)
        }

        /// As `Rpc::handle_replies` does with each, for the polling thread.
        fn reply(&self, slot: SlotId) {
            let mut slots = self.slots.lock().unwrap();
            let waker = match slots.handle_reply(SERVER, slot).unwrap() {
                Arrival::Expected(waker) => waker,
                Arrival::Late => {
                    slots.free(slot);
                    None
                }
                Arrival::Posthumous => unreachable!("nobody goes down"),
            };
            self.arrivals.store(self.arrivals.load(Relaxed) + 1, Release);
            drop(slots);
            waker.map(|waker| waker.wake());
        }
    }

    fn with_reply(caller: impl Fn(&Node, SlotId) + Sync + Send + 'static) {
        loom::model(move || {
            let (node, slot) = Node::new();
            let poller = {
                let node = node.clone();
                loom::thread::spawn(move || node.reply(slot))
            };
            caller(&node, slot);
            poller.join().unwrap();
            assert_eq!(node.slots.lock().unwrap().used(), 0, "the slot is free again, and once");
        });
    }

    #[test]
    fn loom_a_caller_that_sleeps_is_woken() {
        with_reply(|node, slot| {
            let look = loom::future::block_on(std::future::poll_fn(|context| {
                match node.slots.lock().unwrap().wait(slot, 0, &mut Some(context.waker().clone())) {
                    ReplyState::Waiting => Poll::Pending,
                    look => Poll::Ready(look),
                }
            }));
            assert_eq!(look, ReplyState::Replied);
            node.slots.lock().unwrap().free(slot);
        });
    }

    #[test]
    fn loom_a_caller_that_spins_sees_the_count_and_then_the_reply() {
        with_reply(|node, slot| {
            let seen = node.arrivals.load(Acquire);
            if node.slots.lock().unwrap().look(slot, 0) == ReplyState::Waiting {
                while node.arrivals.load(Acquire) == seen {
                    loom::thread::yield_now();
                }
                assert_eq!(node.slots.lock().unwrap().look(slot, 0), ReplyState::Replied);
            }
            node.slots.lock().unwrap().free(slot);
        });
    }

    #[test]
    fn loom_a_caller_that_gives_up_leaves_the_slot_to_the_reply_or_frees_it() {
        with_reply(|node, slot| {
            let mut slots = node.slots.lock().unwrap();
            if let Abandoned::Replied = slots.abandon(slot) {
                slots.free(slot);
            }
        });
    }
}
