//! Atomics by call, at the owner of the words and back at who asked; [`halite_tier::rpc::atomic`] says how they travel.
//!
//! Whoever polls carries them out, without the machine's lock.  What arrives of a peer that is not connected, or not any
//! more, changes nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;

use halite_fabric::{Key, Operation, PeerId, PostCause, Status, WorkRequest};
use halite_mem::Window;
use halite_tier::rpc::atomic::{ATOMIC_ANSWER_IMM, ATOMICS_UNDER_WAY_MAX};
use halite_tier::rpc::{AtomicAnswer, AtomicCall, Violation};

use super::{CALL_WORK, Rpc};
use crate::posted::Ended;
use crate::wait::{Wakes, lock};

/// What the owner of words keeps.
#[derive(Debug, Default)]
pub(super) struct Atomics {
    reach: Mutex<Reach>,
}

/// Under one lock, beneath which words are changed: whoever removes a peer knows that nothing of it is half done.
#[derive(Debug, Default)]
struct Reach {
    /// Who may change words.
    peers: BTreeSet<PeerId>,
    /// The memory that regions are in.
    arena: BTreeMap<Key, Window>,
    /// Answers that the fabric did not take yet, in order.
    owed: BTreeMap<PeerId, VecDeque<AtomicAnswer>>,
}

impl Atomics {
    pub(super) fn handle_connected(&self, peer: PeerId) {
        lock(&self.reach).peers.insert(peer);
    }

    /// Nothing of the peer is carried out from here on.
    pub(super) fn handle_disconnected(&self, peer: PeerId) {
        let mut reach = lock(&self.reach);
        reach.peers.remove(&peer);
        reach.owed.remove(&peer);
    }
}

impl Rpc {
    /// The arena has grown by a segment.
    pub(crate) fn handle_grown(&self, key: Key, segment: Window) {
        lock(&self.atomics.reach).arena.insert(key, segment);
    }

    /// A peer calls for an atomic.
    pub(crate) fn handle_atomic(&self, peer: PeerId, bytes: &[u8]) {
        let Ok(call) = AtomicCall::parse(bytes) else {
            return self.enforce(peer, Err(Violation("not a call of an atomic")));
        };
        let reach = &mut *lock(&self.atomics.reach);
        if !reach.peers.contains(&peer) {
            return;
        }
        let old = reach.arena.get(&call.word.key).and_then(|segment| call.apply(segment));
        reach.owed.entry(peer).or_default().push_back(AtomicAnswer { id: call.id, old });
        self.answer_atomics(reach, peer);
    }

    /// Answers in order as much as the fabric takes.
    fn answer_atomics(&self, reach: &mut Reach, peer: PeerId) {
        let Some(owed) = reach.owed.get_mut(&peer) else { return };
        while let Some(answer) = owed.front() {
            match self.post_atomic_answer(peer, answer) {
                Err(PostCause::QueueFull) if owed.len() > ATOMICS_UNDER_WAY_MAX => {
                    return self.enforce(peer, Err(Violation("more calls of atomics than one may have")));
                }
                Err(PostCause::QueueFull) => return self.set_stuck(),
                // Who is gone needs none.
                _ => owed.pop_front(),
            };
        }
    }

    fn post_atomic_answer(&self, peer: PeerId, answer: &AtomicAnswer) -> Result<(), PostCause> {
        let operation = Operation::Send { bytes: &answer.emit(), imm: ATOMIC_ANSWER_IMM };
        self.post(peer, &[WorkRequest { id: CALL_WORK, operation, signalled: false, solicited: true }])
    }

    /// Tries again to post the answers that the fabric did not take.
    pub(super) fn retry_atomics(&self) {
        let reach = &mut *lock(&self.atomics.reach);
        let waiting: Vec<PeerId> =
            reach.owed.iter().filter(|(_, owed)| !owed.is_empty()).map(|(peer, _)| *peer).collect();
        for peer in waiting {
            self.answer_atomics(reach, peer);
        }
    }

    /// A peer has answered.
    pub(crate) fn handle_atomic_answer(&self, peer: PeerId, bytes: &[u8], wakes: &mut Wakes) {
        match AtomicAnswer::parse(bytes) {
            Ok(AtomicAnswer { id, old }) => {
                let status = if old.is_some() { Status::Success } else { Status::RemoteAccess };
                self.posted.answer(peer, id, Ended { status, old: old.unwrap_or(0) }, wakes);
            }
            Err(_) => self.enforce(peer, Err(Violation("not an answer to an atomic"))),
        }
    }
}
