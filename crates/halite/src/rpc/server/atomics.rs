//! Atomics that peers request by a call, and that the owner of the word executes. [`halite_tier::rpc::atomic`] defines
//! the messages.
//!
//! The polling thread executes these atomics, without the runner's lock. A request of a peer that is not up changes
//! nothing.

use std::collections::VecDeque;

use halite_fabric::{Operation, PeerId, PostCause};
use halite_tier::rpc::atomic::{ATOMIC_ANSWER_IMM, ATOMICS_UNDER_WAY_MAX};
use halite_tier::rpc::{AtomicAnswer, AtomicCall, Violation};

use crate::rpc::Rpc;
use crate::rpc::shared::{Attempt, CALL_WORK};
use crate::runtime::locks::lock;

impl Rpc {
    /// Executes an atomic for a peer, and answers.
    pub(crate) fn handle_atomic(&self, peer: PeerId, bytes: &[u8]) {
        let Ok(call) = AtomicCall::parse(bytes) else {
            return self.poster.enforce(peer, Err(Violation("a call of an atomic is malformed")));
        };
        // Held until the word is changed, so that no atomic of a peer that is down is half done.
        let table = self.peers.read();
        let Some(caller) = table.up(peer) else { return };
        let old = table.arena.get(&call.word.key).and_then(|segment| call.apply(segment));
        let unanswered = &mut *lock(&caller.atomics);
        unanswered.push_back(AtomicAnswer { id: call.id, old });
        self.answer_atomics(peer, unanswered, Attempt::First);
    }

    /// Posts answers to a peer's atomics in order, until the fabric refuses one.
    fn answer_atomics(&self, peer: PeerId, unanswered: &mut VecDeque<AtomicAnswer>, attempt: Attempt) {
        while let Some(answer) = unanswered.front() {
            match self.post_atomic_answer(peer, answer) {
                Err(PostCause::QueueFull) if unanswered.len() > ATOMICS_UNDER_WAY_MAX => {
                    return self
                        .poster
                        .enforce(peer, Err(Violation("more calls of atomics are outstanding than allowed")));
                }
                Err(PostCause::QueueFull) => {
                    lock(&self.server.deferred_atomics).insert(peer);
                    return self.poster.set_deferred(attempt);
                }
                // A peer that is gone needs no answer.
                _ => unanswered.pop_front(),
            };
        }
    }

    fn post_atomic_answer(&self, peer: PeerId, answer: &AtomicAnswer) -> Result<(), PostCause> {
        let operation = Operation::Send { bytes: &answer.emit(), imm: ATOMIC_ANSWER_IMM };
        self.poster.post(peer, CALL_WORK, operation)
    }

    /// Retries the answers that the fabric refused.
    pub(in crate::rpc) fn retry_atomics(&self) {
        // Taken before the loop, which would otherwise hold the lock.
        let late = std::mem::take(&mut *lock(&self.server.deferred_atomics));
        let table = self.peers.read();
        for (peer, caller) in late.into_iter().filter_map(|peer| Some((peer, table.up(peer)?))) {
            self.answer_atomics(peer, &mut lock(&caller.atomics), Attempt::Retry);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use halite_fabric::{Fabric, Key, RemoteAddress, WorkId};
    use halite_mem::{PagePolicy, Segment, Window};
    use halite_tier::access::Atomic;
    use halite_tier::ids::{Incarnation, NodeId, NodeIncarnation};

    use super::*;
    use crate::posted::InFlight;
    use crate::rpc::peers::Peers;
    use crate::runtime::outbox::tests::FullFabric;

    const PEER: PeerId = PeerId(7);
    const ARENA: Key = Key(40);

    fn add(key: Key, offset: u64) -> Vec<u8> {
        let word = RemoteAddress { key, offset };
        AtomicCall { id: WorkId(1), word, atomic: Atomic::FetchAdd { add: 1 } }.emit().to_vec()
    }

    /// Returns an owner of 64 bytes.
    fn owner(fabric: Arc<dyn Fabric>) -> (Rpc, Window) {
        let (posted, peers) = (Arc::new(InFlight::new(1)), Arc::new(Peers::new(NodeId(0))));
        let rpc = Rpc::new(fabric, posted, peers, Arc::new(halite_mem::Pins::new()), 1 << 16).unwrap();
        let window = Segment::create("halite-test", 64, PagePolicy::Normal).unwrap().window(0, 64).unwrap();
        rpc.peers.write().arena.insert(ARENA, window.clone());
        (rpc, window)
    }

    fn set_up(rpc: &Rpc) {
        let incarnation = NodeIncarnation { node: NodeId(1), id: Incarnation(1) };
        rpc.peers.set_up(PEER, incarnation, None);
    }

    #[test]
    fn only_connected_peers_change_words_of_the_arena() {
        let (rpc, window) = owner(Arc::new(FullFabric::open()));
        rpc.handle_atomic(PEER, &add(ARENA, 8));
        assert_eq!(window.load_u64(8), Ok(0), "the peer is not up");
        set_up(&rpc);
        for nowhere in [add(Key(0), 8), add(Key(41), 8), add(ARENA, 4), add(ARENA, 64), add(ARENA, u64::MAX)]
        {
            rpc.handle_atomic(PEER, &nowhere);
        }
        for nonsense in [&b""[..], &[7; 40], &[0; 41]] {
            rpc.handle_atomic(PEER, nonsense);
        }
        rpc.handle_atomic(PEER, &add(ARENA, 8));
        assert_eq!(window.load_u64(8), Ok(1));
        rpc.peers.set_down(PEER);
        rpc.handle_atomic(PEER, &add(ARENA, 8));
        assert_eq!(window.load_u64(8), Ok(1), "the peer is down");
    }

    #[test]
    fn deferred_atomic_answers_keep_their_order() {
        let fabric = Arc::new(FullFabric::open());
        let (rpc, _) = owner(fabric.clone());
        let unanswered = || {
            let table = rpc.peers.read();
            table.up(PEER).map(|up| lock(&up.atomics).iter().map(|answer| answer.old).collect::<Vec<_>>())
        };
        set_up(&rpc);
        (0..3).for_each(|_| rpc.handle_atomic(PEER, &add(ARENA, 0)));
        assert_eq!(unanswered(), Some(vec![Some(0), Some(1), Some(2)]));
        assert!(rpc.poster.has_deferred());
        rpc.retry_atomics();
        assert_eq!(unanswered().map(|unanswered| unanswered.len()), Some(3));
        fabric.make_room();
        rpc.retry_atomics();
        assert_eq!(unanswered(), Some(vec![]));
        rpc.peers.set_down(PEER);
        assert_eq!(unanswered(), None);
        rpc.retry_atomics();
    }

    #[test]
    fn a_peer_that_takes_no_answers_is_disconnected() {
        let fabric = Arc::new(FullFabric::open());
        let (rpc, window) = owner(fabric.clone());
        set_up(&rpc);
        (0..ATOMICS_UNDER_WAY_MAX).for_each(|_| rpc.handle_atomic(PEER, &add(ARENA, 0)));
        assert_eq!(window.load_u64(0), Ok(ATOMICS_UNDER_WAY_MAX as u64));
        assert_eq!(fabric.disconnected(), [], "the maximum of answers may wait");
        rpc.handle_atomic(PEER, &add(ARENA, 0));
        assert_eq!(fabric.disconnected(), [PEER]);
    }
}
