//! The rings of all connected peers, seen from where they end.
//!
//! Polling takes a few messages from each ring in turn, so that one busy peer does not starve the others.

use halite_fabric::{Completion, CompletionKind, Event, Key, PeerId, Status};
use halite_mem::Window;
use halite_mem::ring::{Consumer, Message};

use super::record;

/// Messages taken from one ring before the next one has its turn.
const TURN_MESSAGES_MAX: usize = 32;

/// See the header of this file.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    incoming: Vec<Incoming>,
    /// Whose turn is first in the next poll.
    first: usize,
    /// Peers that wait for room in their rings, and for whom there is some now.
    made_room: Vec<PeerId>,
    /// Windows of our own segments, as in the table that all threads share, but behind no lock of its own.
    registered: Vec<Option<Window>>,
}

#[derive(Debug)]
struct Incoming {
    peer: PeerId,
    /// That it is connected, until somebody has been told.
    connected: Option<Event>,
    ring: Consumer,
}

/// The peer published something that is no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CorruptRing(pub(super) PeerId);

impl Inbox {
    /// Our next segment, into which peers may write from now on.
    pub(super) fn register(&mut self, window: Window) {
        self.registered.push(Some(window));
    }

    /// One of our segments, into which peers may write no more.
    pub(super) fn withdraw(&mut self, key: Key) {
        if let Some(window) = self.registered.get_mut(key.0 as usize) {
            *window = None;
        }
    }

    /// A peer's ring, of which `connected` is told before anything that is in it.
    pub(super) fn add(&mut self, peer: PeerId, connected: Event, ring: Consumer) {
        self.incoming.push(Incoming { peer, connected: Some(connected), ring });
    }

    /// Gives every ring one turn, until `events` holds `len_max`.  A ring that is found corrupt is taken out and
    /// reported; what it held before that has been delivered.
    pub(super) fn poll(&mut self, events: &mut Vec<Event>, len_max: usize) -> Option<CorruptRing> {
        let rings = self.incoming.len();
        // A ring may have been taken out since.
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

    /// Peers that sleep, perhaps, until there is room in their rings, and for whom some was made since this was last asked.
    #[inline]
    pub(super) fn take_made_room(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.made_room)
    }

    /// Takes the ring of `peer` out, lands the writes that it still holds and returns what it says.
    pub(super) fn remove(&mut self, peer: PeerId) -> Vec<Event> {
        let mut rest = Vec::new();
        let found = self.incoming.iter().position(|incoming| incoming.peer == peer);
        if let Some(index) = found {
            let mut incoming = self.incoming.remove(index);
            // The peer may be alive and pushing still: what one ring can hold at a time is enough.
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

/// What the poller is told of `message`, if anything; `None` if it is none that an honest peer sends.
fn receive(message: &Message<'_>, registered: &[Option<Window>]) -> Option<Option<CompletionKind>> {
    let imm = message.imm();
    match message.kind() {
        record::NOTICE if message.is_empty() => Some(Some(CompletionKind::Notified { imm })),
        record::SEND => Some(Some(CompletionKind::Received { bytes: message.to_vec(), imm })),
        record::WRITE => {
            let has_landed = land(message, registered)?;
            Some(has_landed.then_some(CompletionKind::Notified { imm }))
        }
        _ => None,
    }
}

/// Makes the write inside of `message`, unless its key was taken back since; `None` if it leads nowhere.
fn land(message: &Message<'_>, registered: &[Option<Window>]) -> Option<bool> {
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

#[cfg(test)]
mod tests {
    use halite_fabric::RemoteAddress;
    use halite_mem::ring::{Producer, ring_bytes};
    use halite_mem::{PagePolicy, Segment};

    use super::*;

    fn ring() -> (Producer, Consumer) {
        let segment = Segment::create("ring", ring_bytes(4096), PagePolicy::Normal).unwrap();
        let window = segment.window(0, segment.len()).unwrap();
        (Producer::new(window.clone()).unwrap(), Consumer::new(window).unwrap())
    }

    /// A ring whose peer is known already.
    fn add(inbox: &mut Inbox, peer: u32, ring: Consumer) {
        inbox.incoming.push(Incoming { peer: PeerId(peer), connected: None, ring });
    }

    fn completion(event: &Event) -> &Completion {
        match event {
            Event::Completed(completion) => completion,
            event => panic!("expected a completion, got {event:?}"),
        }
    }

    fn poll(inbox: &mut Inbox, len_max: usize) -> (Vec<u32>, Option<CorruptRing>) {
        let mut events = Vec::new();
        let corrupt = inbox.poll(&mut events, len_max);
        let peers = events.iter().map(|event| completion(event).peer.0);
        (peers.collect(), corrupt)
    }

    #[test]
    fn a_peer_is_connected_before_it_says_anything_even_if_it_has_left() {
        let connected = |peer| Event::Connected { peer: PeerId(peer), hello: vec![], dialled: None };
        let mut inbox = Inbox::default();
        let mut producers = Vec::new();
        for peer in [1, 2] {
            let (mut producer, end) = ring();
            producer.try_push(record::NOTICE, 0, &[]).unwrap();
            inbox.add(PeerId(peer), connected(peer), end);
            producers.push(producer);
        }
        let gone = inbox.remove(PeerId(2));
        assert_eq!((&gone[0], completion(&gone[1]).peer), (&connected(2), PeerId(2)));
        let mut events = Vec::new();
        inbox.poll(&mut events, 10);
        assert_eq!((&events[0], completion(&events[1]).peer), (&connected(1), PeerId(1)));
        assert_eq!((gone.len(), events.len()), (2, 2));
    }

    #[test]
    fn a_flood_leaves_room_for_the_others() {
        let mut inbox = Inbox::default();
        let (mut flood, flooded) = ring();
        let (mut calm, calmed) = ring();
        add(&mut inbox, 1, flooded);
        add(&mut inbox, 2, calmed);
        for _ in 0..60 {
            flood.try_push(record::NOTICE, 0, &[]).unwrap();
        }
        calm.try_push(record::NOTICE, 0, &[]).unwrap();
        let (peers, _) = poll(&mut inbox, 1000);
        assert_eq!(peers.len(), TURN_MESSAGES_MAX + 1);
        assert_eq!(peers.last(), Some(&2));
        // With room for one turn only, the next peer begins next time.
        calm.try_push(record::NOTICE, 0, &[]).unwrap();
        let (peers, _) = poll(&mut inbox, 1);
        assert_eq!(peers, [2]);
    }

    #[test]
    fn a_corrupt_ring_is_taken_out_and_the_others_go_on() {
        let mut inbox = Inbox::default();
        let (mut bad, bad_end) = ring();
        let (mut good, good_end) = ring();
        add(&mut inbox, 1, bad_end);
        add(&mut inbox, 2, good_end);
        bad.try_push(record::SEND, 0, &[]).unwrap();
        bad.try_push(record::NOTICE, 0, &[&[77]]).unwrap();
        good.try_push(record::NOTICE, 0, &[]).unwrap();
        assert_eq!(poll(&mut inbox, 10), (vec![1], Some(CorruptRing(PeerId(1)))));
        assert_eq!(poll(&mut inbox, 10), (vec![2], None));
        assert!(inbox.remove(PeerId(1)).is_empty());
    }

    #[test]
    fn what_a_leaving_peer_said_last_is_kept() {
        let mut inbox = Inbox::default();
        let (mut leaving, end) = ring();
        add(&mut inbox, 1, end);
        for imm in 0..60 {
            leaving.try_push(record::NOTICE, imm, &[]).unwrap();
        }
        let rest = inbox.remove(PeerId(1));
        let imms = rest.iter().map(|event| match completion(event).kind {
            CompletionKind::Notified { imm } => imm,
            _ => panic!("only notifications were pushed"),
        });
        assert!(imms.eq(0..60));
    }

    fn segment() -> Window {
        Segment::create("target", 4096, PagePolicy::Normal).unwrap().window(0, 4096).unwrap()
    }

    fn push_write(ring: &mut Producer, key: u32, offset: u64, bytes: &[u8]) {
        let address = record::pack(RemoteAddress { key: Key(key), offset }).unwrap();
        ring.try_push(record::WRITE, 0, &[&address.to_ne_bytes(), bytes]).unwrap();
    }

    fn bytes_at(window: &Window, offset: u64) -> [u8; 4] {
        let mut bytes = [0; 4];
        window.read(offset, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_small_write_lands_when_it_is_polled_and_not_before() {
        let mut inbox = Inbox::default();
        let (one, two) = (segment(), segment());
        inbox.register(one.clone());
        inbox.register(two.clone());
        let (mut writer, end) = ring();
        add(&mut inbox, 1, end);
        push_write(&mut writer, 1, 4092, b"last");
        assert_eq!(bytes_at(&two, 4092), [0; 4]);
        assert_eq!(poll(&mut inbox, 10), (vec![1], None));
        assert_eq!((bytes_at(&two, 4092), bytes_at(&one, 4092)), (*b"last", [0; 4]));
    }

    #[test]
    fn a_small_write_whose_key_was_taken_back_meanwhile_is_dropped_and_the_ring_goes_on() {
        let mut inbox = Inbox::default();
        let target = segment();
        inbox.register(target.clone());
        let (mut writer, end) = ring();
        add(&mut inbox, 1, end);
        push_write(&mut writer, 0, 0, b"late");
        writer.try_push(record::NOTICE, 7, &[]).unwrap();
        inbox.withdraw(Key(0));
        assert_eq!(poll(&mut inbox, 10), (vec![1], None));
        assert_eq!(bytes_at(&target, 0), [0; 4]);
    }

    #[test]
    fn what_a_leaving_peer_wrote_last_lands_with_its_last_words() {
        let mut inbox = Inbox::default();
        let target = segment();
        inbox.register(target.clone());
        let (mut leaving, end) = ring();
        add(&mut inbox, 1, end);
        push_write(&mut leaving, 0, 0, b"last");
        assert_eq!(inbox.remove(PeerId(1)).len(), 1);
        assert_eq!(bytes_at(&target, 0), *b"last");
        push_write(&mut leaving, 0, 0, b"late");
        assert_eq!(poll(&mut inbox, 10), (vec![], None));
        assert_eq!(bytes_at(&target, 0), *b"last");
    }

    #[test]
    fn a_small_write_that_leads_nowhere_costs_the_ring() {
        let lies: [fn(&mut Producer); 4] = [
            |ring| push_write(ring, 1, 0, b"no such key"),
            |ring| push_write(ring, 0, 4093, b"over the end"),
            |ring| push_write(ring, 0, (1 << 48) - 1, b"far over"),
            |ring| ring.try_push(record::WRITE, 0, &[b"short"]).unwrap(),
        ];
        for lie in lies {
            let mut inbox = Inbox::default();
            let target = segment();
            inbox.register(target.clone());
            let (mut liar, end) = ring();
            add(&mut inbox, 1, end);
            push_write(&mut liar, 0, 0, b"true");
            lie(&mut liar);
            assert_eq!(poll(&mut inbox, 10), (vec![1], Some(CorruptRing(PeerId(1)))));
            assert_eq!((bytes_at(&target, 0), bytes_at(&target, 4092)), (*b"true", [0; 4]));
        }
    }
}
