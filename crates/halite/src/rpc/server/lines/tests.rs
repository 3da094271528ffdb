use halite_providers::{ShmConfig, ShmFabric};
use halite_tier::ids::{Incarnation, NodeId, NodeIncarnation, Principal};
use halite_tier::rpc::line::INPUT_BYTES_MAX;
use halite_tier::rpc::{CallControl, Kind, SlotId};

use super::*;
use crate::posted::InFlight;
use crate::rpc::client::DEFAULT_SLOT_BYTES;
use crate::rpc::peers::Peers;
use crate::rpc::server::{ServeOptions, Service};
use crate::rpc::shared::PeerParameters;

const PEER: PeerId = PeerId(7);
const NUMBER: u32 = 5;

/// A node with one function or port, and a peer that has introduced itself and principal 0.
struct Served {
    rpc: Rpc,
    link: Arc<Link>,
    service: Arc<Service>,
}

impl Served {
    fn function() -> Served {
        Served::new(ServiceId::Function(NUMBER), ServeOptions::default())
    }

    fn new(id: ServiceId, options: ServeOptions) -> Served {
        // No peer connects through the fabric, so its directory may be removed.
        let dir = crate::runtime::scratch();
        let fabric = ShmFabric::open(ShmConfig::new(dir.path(), "one")).unwrap();
        let (posted, peers) = (Arc::new(InFlight::new(1)), Arc::new(Peers::new(NodeId(0))));
        let pins = Arc::new(halite_mem::Pins::new());
        let rpc = Rpc::new(fabric, posted, peers.clone(), pins, 1 << 16).unwrap();
        let link = rpc.make_link(PEER, NodeId(1)).unwrap();
        let incarnation = NodeIncarnation { node: NodeId(1), id: Incarnation(1) };
        peers.set_up(PEER, incarnation, Some(link.clone()));
        let owner = Principal("ada".into());
        let service = Arc::new(Service::new(id, owner, options));
        peers.write().services.insert(service.clone());
        let inbound = &mut *lock(&link.inbound);
        inbound.parameters = PeerParameters::parse(&handshake());
        let caller = inbound.caller(&link, b"ada").unwrap();
        inbound.introduce(0, &caller).unwrap();
        Served { rpc, link: link.clone(), service }
    }

    /// Puts the peer's call or message into its row, at `position`.
    fn put(&self, position: u64, input: &[u8]) {
        let mut line = RequestLine {
            kind: if let ServiceId::Port(_) = self.service.id { Kind::Send } else { Kind::Call },
            number: NUMBER,
            slot: SlotId { index: position as u16, generation: 0 },
            principal: 0,
            posted_before: 0,
            reply_bytes_max: 0,
            input_bytes: input.len() as u8,
            input: [0; INPUT_BYTES_MAX],
        };
        line.input[..input.len()].copy_from_slice(input);
        let lines = lock(&self.link.inbound).lines.clone().unwrap();
        let words = line.emit(request_mark(position));
        lines.window().publish_words(offset_of(position), &words).unwrap();
    }

    /// Polls once. Returns the input of the request that went directly to a receiver.
    fn poll(&self, received: &mut ReceiveBatch) -> Option<Vec<u8>> {
        let mut direct = DirectReceiver { service: Some(&self.service), request: None };
        assert!(self.rpc.poll_lines(received, &mut direct, &mut Wakes::default()));
        direct.request.map(|request| request.input.as_slice().to_vec())
    }

    /// Queues the next request as if it had come by the ring.
    fn queue_next(&self) {
        let mut requests = Vec::new();
        let inbound = lock(&self.link.inbound);
        self.rpc.read_lines(PEER, &self.link, &inbound, &mut requests, 1).unwrap();
        drop(inbound);
        self.service.push_all(requests.into_iter());
    }

    fn next_queued(&self) -> Option<Vec<u8>> {
        let taken = self.service.try_take().ok().flatten()?;
        taken.incoming.map(|incoming| incoming.input.as_slice().to_vec())
    }
}

fn handshake() -> CallControl {
    CallControl::Handshake {
        ring_key: 0,
        ring_offset: 0,
        ring_bytes: 1 << 16,
        head_key: 0,
        head_offset: 0,
        slots_key: 0,
        slots_offset: 0,
        slot_bytes: DEFAULT_SLOT_BYTES as u32,
        slots: 1024,
        lines_key: 0,
        lines_offset: 0,
        replies_key: 0,
        replies_offset: 0,
    }
}

#[test]
fn the_first_call_bypasses_the_queue() {
    let (served, mut received) = (Served::function(), ReceiveBatch::default());
    (0..3).for_each(|position| served.put(position, &[position as u8]));
    assert_eq!(served.poll(&mut received), Some(vec![0]));
    assert_eq!([served.next_queued(), served.next_queued()], [Some(vec![1]), Some(vec![2])]);
    assert_eq!(served.link.reader.position(), 3);
}

#[test]
fn a_call_does_not_overtake_queued_calls() {
    let (served, mut received) = (Served::function(), ReceiveBatch::default());
    served.put(0, b"one");
    served.queue_next();
    served.put(1, b"two");
    assert_eq!(served.poll(&mut received), None, "another call waits");
    let queued = [served.next_queued(), served.next_queued()];
    assert_eq!(queued, [Some(b"one".to_vec()), Some(b"two".to_vec())]);
}

#[test]
fn a_message_may_bypass_the_queue_and_is_acknowledged() {
    let port = ServiceId::Port(NUMBER);
    let (served, mut received) = (Served::new(port, ServeOptions::default()), ReceiveBatch::default());
    served.put(0, b"one");
    assert_eq!(served.poll(&mut received), Some(b"one".to_vec()));
    let slot = SlotId { index: 0, generation: 0 };
    // Its slot may be reused by a sender that has seen the answer.
    assert!(served.link.served.open(SlotId { generation: 1, ..slot }).is_ok());
}

#[test]
fn a_message_does_not_overtake_a_parked_one() {
    let options = ServeOptions { requests_max: 1, ..ServeOptions::default() };
    let (served, mut received) = (Served::new(ServiceId::Port(NUMBER), options), ReceiveBatch::default());
    (0..2).for_each(|position| served.put(position, &[position as u8]));
    served.queue_next();
    served.queue_next();
    // The second sender gets a grant, which reserves room.
    assert_eq!(served.next_queued(), Some(vec![0]));
    served.put(2, &[2]);
    assert_eq!(served.poll(&mut received), None, "the message waits for room, behind the parked one");
    assert_eq!(served.next_queued(), None);
}

#[test]
fn finished_requests_are_recycled() {
    let (served, mut received) = (Served::function(), ReceiveBatch::default());
    served.put(0, b"a call of some bytes");
    let mut direct = DirectReceiver { service: Some(&served.service), request: None };
    served.rpc.poll_lines(&mut received, &mut direct, &mut Wakes::default());
    let mut first = direct.request.take().unwrap();
    first.answered = true;
    let (at, callers) = (&raw const *first, Arc::strong_count(&first.to.caller));
    first.recycle();
    served.put(1, b"next");
    served.rpc.poll_lines(&mut received, &mut direct, &mut Wakes::default());
    let next = direct.request.take().unwrap();
    assert_eq!((&raw const *next, Arc::strong_count(&next.to.caller)), (at, callers));
    assert_eq!((next.input.as_slice(), next.answered), (&b"next"[..], false));
}

#[test]
fn a_number_refers_to_one_principal() {
    let served = Served::function();
    let inbound = &mut *lock(&served.link.inbound);
    let again = inbound.caller(&served.link, b"ada").unwrap();
    assert!(inbound.introduce(0, &again).is_ok());
    let other = inbound.caller(&served.link, b"bob").unwrap();
    assert!(inbound.introduce(0, &other).is_err());
}
