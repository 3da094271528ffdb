//! The receiving ends of the rings of all connected peers.
//!
//! A poll takes a limited number of messages from each ring in turn, so that one busy peer does not starve other peers.

use halite_fabric::{Completion, CompletionKind, Event, Key, PeerId, Status};
use halite_mem::Window;
use halite_mem::ring::{Consumer, Message};

use super::record;

/// Maximum number of messages that a poll takes from one ring before the next ring.
const TURN_MESSAGES_MAX: usize = 32;

/// The receiving ends of all rings.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    incoming: Vec<Incoming>,
    /// Index of the ring that the next poll starts with.
    first: usize,
    /// Peers that were waiting for room in their rings, and whose rings now have room.
    made_room: Vec<PeerId>,
    /// A copy of `Core::registered`, which avoids its lock.
    registered: Vec<Option<Window>>,
}

#[derive(Debug)]
struct Incoming {
    peer: PeerId,
    /// The connected event, until the inbox has delivered it.
    connected: Option<Event>,
    ring: Consumer,
}

/// An error: the ring of this peer contains an invalid message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CorruptRing(pub(super) PeerId);

impl Inbox {
    /// Adds the next segment of this process: from now on, peers may write into this segment.
    pub(super) fn register(&mut self, window: Window) {
        self.registered.push(Some(window));
    }

    /// Removes a segment of this process: from now on, the inbox drops peers' writes into this segment.
    pub(super) fn withdraw(&mut self, key: Key) {
        if let Some(window) = self.registered.get_mut(key.0 as usize) {
            *window = None;
        }
    }

    /// Adds a peer's ring. The inbox delivers the event `connected` before the messages of the ring.
    pub(super) fn add(&mut self, peer: PeerId, connected: Event, ring: Consumer) {
        self.incoming.push(Incoming { peer, connected: Some(connected), ring });
    }

    /// Polls every ring once, or until `events` holds `len_max` events. If a ring is corrupt, removes the ring and
    /// returns its peer. The events of the messages before the corruption are in `events`.
    pub(super) fn poll(&mut self, events: &mut Vec<Event>, len_max: usize) -> Option<CorruptRing> {
        let rings = self.incoming.len();
        // Rings may have been removed since the last poll.
        let first = if self.first < rings { self.first } else { 0 };
        for index in (first..rings).chain(0..first) {
            if events.len() >= len_max {
                break;
            }
            let turn_end = len_max.min(events.len() + TURN_MESSAGES_MAX);
            let incoming = &mut self.incoming[index];
            let taken = incoming.take(events, turn_end, &self.registered);
            if incoming.ring.take_made_room() {
                self.made_room.push(incoming.peer);
            }
            if let Err(corrupt) = taken {
                self.incoming.remove(index);
                return Some(corrupt);
            }
        }
        self.first = first + 1;
        None
    }

    /// Returns the peers that were waiting for room, and whose rings have got room since the last call. The caller must
    /// wake these peers.
    #[inline]
    pub(super) fn take_made_room(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.made_room)
    }

    /// Removes the ring of `peer`: executes the writes that are still in the ring, and returns the events of all its
    /// messages.
    pub(super) fn remove(&mut self, peer: PeerId) -> Vec<Event> {
        let mut rest = Vec::new();
        let found = self.incoming.iter().position(|incoming| incoming.peer == peer);
        if let Some(index) = found {
            let mut incoming = self.incoming.remove(index);
            // The peer may still push messages, so this stops after as many messages as a ring can hold.
            let len_max = 1 + incoming.ring.messages_max() as usize;
            let _ = incoming.take(&mut rest, len_max, &self.registered);
        }
        rest
    }
}

impl Incoming {
    fn take(
        &mut self,
        events: &mut Vec<Event>,
        len_max: usize,
        registered: &[Option<Window>],
    ) -> Result<(), CorruptRing> {
        let peer = self.peer;
        events.extend(self.connected.take());
        while events.len() < len_max {
            let Some(popped) = self.ring.try_pop() else {
                break;
            };
            let kind = popped.ok().and_then(|message| receive(&message, registered));
            if let Some(kind) = kind.ok_or(CorruptRing(peer))? {
                events.push(Event::Completed(Completion { peer, status: Status::Success, kind }));
            }
        }
        Ok(())
    }
}

/// Returns the completion of `message`, or `Some(None)` if it has none; `None` if the message is invalid.
fn receive(message: &Message<'_>, registered: &[Option<Window>]) -> Option<Option<CompletionKind>> {
    let imm = message.imm();
    match message.kind() {
        record::NOTICE if message.is_empty() => Some(Some(CompletionKind::Notified { imm })),
        record::SEND => Some(Some(CompletionKind::Received { bytes: message.to_vec(), imm })),
        record::WRITE => {
            let is_executed = execute_write(message, registered)?;
            Some(is_executed.then_some(CompletionKind::Notified { imm }))
        }
        _ => None,
    }
}

/// Executes the write in `message`. Returns false if its key is deregistered, and `None` if the address is invalid.
fn execute_write(message: &Message<'_>, registered: &[Option<Window>]) -> Option<bool> {
    if message.len() < record::ADDRESS_BYTES as u64 {
        return None;
    }
    let mut address = [0; record::ADDRESS_BYTES];
    message.read(0, &mut address);
    let address = record::unpack(u64::from_ne_bytes(address));
    let Some(target) = registered.get(address.key.0 as usize)? else { return Some(false) };
    message.copy_to(record::ADDRESS_BYTES as u64, target, address.offset).ok()?;
    Some(true)
}
