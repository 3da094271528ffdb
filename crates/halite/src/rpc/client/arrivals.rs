//! Handles replies: wakes their callers, or drops late replies.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use halite_fabric::{PeerId, Status};
use halite_tier::rpc::{Arrival, AtomicAnswer, ReplySlots, SlotId, Target, Violation};

use super::Client;
use super::slots::SlotResources;
use crate::posted::OperationResult;
use crate::rpc::Rpc;
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

impl Rpc {
    pub(in crate::rpc) fn handle_replies(
        &self,
        from: Target,
        batch: impl Iterator<Item = SlotId>,
        wakes: &mut Wakes,
    ) -> Result<(), Violation> {
        let mut batch = batch.peekable();
        if batch.peek().is_none() {
            return Ok(());
        }
        let mut late = Vec::new();
        let handled = {
            let mut slots = lock(&self.client.slots);
            let handled = batch.try_for_each(|slot| {
                match slots.handle_reply(from, slot)? {
                    Arrival::Expected(waker) => wakes.add(waker),
                    Arrival::Late => late.push(slot),
                    Arrival::Posthumous => {}
                }
                Ok(())
            });
            self.client.count_arrival(&slots);
            handled
        };
        for slot in late {
            self.drop_reply(from, slot, wakes);
        }
        handled
    }

    /// Second step for a reply, without a lock: wakes the caller, or drops the reply.
    pub(in crate::rpc) fn handle_arrival(
        &self,
        from: Target,
        slot: SlotId,
        arrival: Arrival,
        wakes: &mut Wakes,
    ) {
        match arrival {
            Arrival::Expected(waker) => wakes.add(waker),
            Arrival::Late => self.drop_reply(from, slot, wakes),
            Arrival::Posthumous => {}
        }
    }

    /// Handles a peer's answer to an atomic that this node requested by a call.
    pub(crate) fn handle_atomic_answer(&self, peer: PeerId, bytes: &[u8], wakes: &mut Wakes) {
        match AtomicAnswer::parse(bytes) {
            Ok(AtomicAnswer { id, old }) => {
                let status = if old.is_some() { Status::Success } else { Status::RemoteAccess };
                self.poster.posted.answer(peer, id, OperationResult { status, old: old.unwrap_or(0) }, wakes);
            }
            Err(_) => self.poster.enforce(peer, Err(Violation("an answer to an atomic is malformed"))),
        }
    }
}

impl Client {
    /// First step for a reply: records its arrival. May run under a link's lock.
    pub(in crate::rpc) fn record_reply(&self, from: Target, slot: SlotId) -> Result<Arrival, Violation> {
        let mut slots = lock(&self.slots);
        let arrival = slots.handle_reply(from, slot)?;
        if let Arrival::Expected(_) = arrival {
            self.count_arrival(&slots);
        }
        Ok(arrival)
    }

    /// Counts an arrival, so that spinning callers check again. Called under the lock of the slots.
    pub(super) fn count_arrival(&self, _: &ReplySlots<SlotResources>) {
        // Pairs with the Acquire in arrivals(): a thread that sees the count finds the reply.
        self.arrivals.store(self.arrivals.load(Relaxed) + 1, Release);
    }

    pub(crate) fn arrivals(&self) -> u64 {
        // Pairs with the Release in count_arrival().
        self.arrivals.load(Acquire)
    }
}

/// Model: a sleeping caller finds its reply, and so do a spinning caller and one that gives up at the same moment.
#[cfg(all(test, loom))]
mod loom_tests {
    use std::task::Poll;

    use halite_fabric::PeerId;
    use halite_tier::rpc::{Abandoned, Arrival, ReplySlots, ReplyState, SlotId, Target};
    use loom::sync::atomic::AtomicU64;
    use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
    use loom::sync::{Arc, Mutex};

    const SERVER: Target = Target::Peer(PeerId(1));

    /// The slots of a [`super::Client`], and its count of arrivals.
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

        /// Handles a reply as `Rpc::handle_replies` does on the polling thread.
        fn reply(&self, slot: SlotId) {
            let mut slots = self.slots.lock().unwrap();
            let waker = match slots.handle_reply(SERVER, slot).unwrap() {
                Arrival::Expected(waker) => waker,
                Arrival::Late => {
                    slots.free(slot);
                    None
                }
                Arrival::Posthumous => unreachable!("no peer goes down"),
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
    fn loom_sleeping_caller_is_woken() {
        with_reply(|node, slot| {
            let state = loom::future::block_on(std::future::poll_fn(|context| {
                match node.slots.lock().unwrap().wait(slot, 0, &mut Some(context.waker().clone())) {
                    ReplyState::Waiting => Poll::Pending,
                    state => Poll::Ready(state),
                }
            }));
            assert_eq!(state, ReplyState::Replied);
            node.slots.lock().unwrap().free(slot);
        });
    }

    #[test]
    fn loom_spinning_caller_sees_the_reply() {
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
    fn loom_abandoned_slot_is_freed_once() {
        with_reply(|node, slot| {
            let mut slots = node.slots.lock().unwrap();
            if let Abandoned::Replied = slots.abandon(slot) {
                slots.free(slot);
            }
        });
    }
}
