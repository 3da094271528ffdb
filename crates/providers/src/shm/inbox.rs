//! The rings of all connected peers, seen from where they end.
//!
//! Polling takes a few messages from each ring in turn, so that one busy peer does not starve the others.

use halite_fabric::{Completion, CompletionKind, PeerId, Status};
use halite_mem::ring::Consumer;

use super::peer::TAG_SEND;

/// Messages taken from one ring before the next one has its turn.
const TURN_MESSAGES_MAX: usize = 32;

/// See the header of this file.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    incoming: Vec<Incoming>,
    /// Whose turn is first in the next poll.
    first: usize,
}

#[derive(Debug)]
struct Incoming {
    peer: PeerId,
    ring: Consumer,
}

/// The peer published something that is no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Scribbled(pub(super) PeerId);

impl Inbox {
    pub(super) fn add(&mut self, peer: PeerId, ring: Consumer) {
        self.incoming.push(Incoming { peer, ring });
    }

    /// Gives every ring one turn, until `completions` holds `len_max`.  A ring that is found scribbled is taken
    /// out and reported; what it held before the scribble has been delivered.
    pub(super) fn poll(&mut self, completions: &mut Vec<Completion>, len_max: usize) -> Option<Scribbled> {
        let rings = self.incoming.len();
        for turn in 0..rings {
            if completions.len() >= len_max {
                break;
            }
            let index = (self.first + turn) % rings;
            let turn_end = len_max.min(completions.len() + TURN_MESSAGES_MAX);
            if let Err(scribbled) = self.incoming[index].take(completions, turn_end) {
                self.incoming.remove(index);
                return Some(scribbled);
            }
        }
        self.first = (self.first + 1) % rings.max(1);
        None
    }

    /// Takes the ring of `peer` out and returns what it still holds.
    pub(super) fn remove(&mut self, peer: PeerId) -> Vec<Completion> {
        let mut rest = Vec::new();
        let found = self.incoming.iter().position(|incoming| incoming.peer == peer);
        if let Some(index) = found {
            let mut incoming = self.incoming.remove(index);
            // The peer may be alive and pushing still: what one ring can hold at a time is enough.
            let len_max = incoming.ring.records_max() as usize;
            let _ = incoming.take(&mut rest, len_max);
        }
        rest
    }
}

impl Incoming {
    fn take(&mut self, completions: &mut Vec<Completion>, len_max: usize) -> Result<(), Scribbled> {
        while completions.len() < len_max {
            let mut payload = Vec::new();
            let Some(popped) = self.ring.try_pop(&mut payload) else {
                break;
            };
            let imm = popped.map_err(|_| Scribbled(self.peer))?;
            let kind = match payload.pop() {
                None => CompletionKind::Notified { imm },
                Some(TAG_SEND) => CompletionKind::Received { bytes: payload, imm },
                Some(_) => return Err(Scribbled(self.peer)),
            };
            completions.push(Completion { peer: self.peer, status: Status::Success, kind });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use halite_mem::ring::{Producer, ring_bytes};
    use halite_mem::{PagePolicy, Segment};

    use super::*;

    fn ring() -> (Producer, Consumer) {
        let segment = Segment::create("ring", ring_bytes(4096), PagePolicy::Normal).unwrap();
        let window = segment.window(0, segment.len()).unwrap();
        (Producer::new(window.clone()).unwrap(), Consumer::new(window).unwrap())
    }

    fn poll(inbox: &mut Inbox, len_max: usize) -> (Vec<u32>, Option<Scribbled>) {
        let mut completions = Vec::new();
        let scribbled = inbox.poll(&mut completions, len_max);
        let peers = completions.iter().map(|completion| completion.peer.0);
        (peers.collect(), scribbled)
    }

    #[test]
    fn a_flood_leaves_room_for_the_others() {
        let mut inbox = Inbox::default();
        let (mut flood, flooded) = ring();
        let (mut calm, calmed) = ring();
        inbox.add(PeerId(1), flooded);
        inbox.add(PeerId(2), calmed);
        for _ in 0..100 {
            flood.try_push(0, &[]).unwrap();
        }
        calm.try_push(0, &[]).unwrap();
        let (peers, _) = poll(&mut inbox, 1000);
        assert_eq!(peers.len(), TURN_MESSAGES_MAX + 1);
        assert_eq!(peers.last(), Some(&2));
        // With room for one turn only, the next peer begins next time.
        calm.try_push(0, &[]).unwrap();
        let (peers, _) = poll(&mut inbox, 1);
        assert_eq!(peers, [2]);
    }

    #[test]
    fn a_scribbled_ring_is_taken_out_and_the_others_go_on() {
        let mut inbox = Inbox::default();
        let (mut bad, bad_end) = ring();
        let (mut good, good_end) = ring();
        inbox.add(PeerId(1), bad_end);
        inbox.add(PeerId(2), good_end);
        bad.try_push(0, &[&[TAG_SEND]]).unwrap();
        bad.try_push(0, &[&[77]]).unwrap();
        good.try_push(0, &[]).unwrap();
        assert_eq!(poll(&mut inbox, 10), (vec![1], Some(Scribbled(PeerId(1)))));
        assert_eq!(poll(&mut inbox, 10), (vec![2], None));
        assert!(inbox.remove(PeerId(1)).is_empty());
    }

    #[test]
    fn what_a_leaving_peer_said_last_is_kept() {
        let mut inbox = Inbox::default();
        let (mut leaving, end) = ring();
        inbox.add(PeerId(1), end);
        for imm in 0..100 {
            leaving.try_push(imm, &[]).unwrap();
        }
        let rest = inbox.remove(PeerId(1));
        let imms = rest.iter().map(|completion| match completion.kind {
            CompletionKind::Notified { imm } => imm,
            _ => panic!("only notifications were pushed"),
        });
        assert!(imms.eq(0..100));
    }
}
