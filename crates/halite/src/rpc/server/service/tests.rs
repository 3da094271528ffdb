use std::sync::Arc;

use halite_fabric::{Key, RemoteAddress};
use halite_tier::ids::NodeId;
use halite_tier::rpc::SlotId;

use super::*;
use crate::rpc::server::{Bytes, Payload, ReplyTo};
use crate::rpc::shared::{DropCount, Link};

fn link() -> Arc<Link> {
    Arc::new(Link::new(NodeId(1), Target::Own, 0, None, DropCount::default()))
}

/// A message of `bytes` bytes, from a sender that waits for its answer.
fn message(link: &Arc<Link>, slot: u16, bytes: usize) -> Box<Incoming> {
    let mut inbound = lock(&link.inbound);
    let id = link.served.open(SlotId { index: slot, generation: 0 }).unwrap();
    let caller = inbound.caller(link, b"bob").unwrap();
    let at = RemoteAddress { key: Key(0), offset: 0 };
    let to = ReplyTo { caller, cancels: 0, id, at, room: 64, bytes_max: 0, by_line: false };
    Incoming::new(to, Payload::Local(Bytes::zeroed(bytes)))
}

#[test]
fn grants_do_not_exceed_the_free_bytes() {
    let options = ServeOptions { bytes_max: 100, ..ServeOptions::default() };
    let service = Service::new(ServiceId::Port(1), Principal("ada".into()), options);
    let link = link();
    let decoded = |slot| DecodedRequest { kind: Kind::Send, number: 1, incoming: message(&link, slot, 60) };
    let done = service.push_all((0..4).map(decoded));
    assert!(matches!(done[..], [Admission::Queued { accepted: Some(_), .. }]), "the others are parked");
    let taken = service.try_take().unwrap().expect("a message waits");
    let [Promoted::Granted(_, grant)] = taken.promoted[..] else {
        panic!("two grants exceed the free bytes")
    };
    assert_eq!(service.decline(Target::Own, grant).len(), 1, "the next sender gets the room");
    link.drop_callers();
}

#[test]
fn cancelled_requests_make_room() {
    let options = ServeOptions { requests_max: 2, ..ServeOptions::default() };
    let service = Service::new(ServiceId::Function(1), Principal("ada".into()), options);
    let link = link();
    let push = |slot| {
        let decoded = DecodedRequest { kind: Kind::Call, number: 1, incoming: message(&link, slot, 1) };
        service.push_all([decoded].into_iter()).is_empty()
    };
    assert_eq!([push(0), push(1), push(2)], [true, true, false]);
    for slot in [0, 1] {
        link.record_cancel();
        link.served.cancel(SlotId { index: slot, generation: 0 });
        link.record_drop();
    }
    assert_eq!([push(3), push(4), push(5)], [true, true, false]);
    link.drop_callers();
}

#[test]
fn requests_of_dead_peers_make_room() {
    let options = ServeOptions { requests_max: 2, ..ServeOptions::default() };
    let service = Service::new(ServiceId::Function(1), Principal("ada".into()), options);
    let drops = DropCount::default();
    let [gone, other] =
        [1, 2].map(|node| Arc::new(Link::new(NodeId(node), Target::Own, 0, None, drops.clone())));
    let push = |link, slot| {
        let decoded = DecodedRequest { kind: Kind::Call, number: 1, incoming: message(link, slot, 1) };
        service.push_all([decoded].into_iter()).is_empty()
    };
    assert_eq!([push(&gone, 0), push(&other, 0), push(&other, 1)], [true, true, false]);
    gone.set_gone();
    assert_eq!([push(&other, 2), push(&other, 3)], [true, false]);
    [gone, other].iter().for_each(|link| link.drop_callers());
}

#[test]
fn a_batch_skips_cancelled_calls() {
    let options = ServeOptions { bytes_max: 100, ..ServeOptions::default() };
    let service = Service::new(ServiceId::Function(1), Principal("ada".into()), options);
    let link = link();
    for round in 0..3 {
        let decoded =
            |slot| DecodedRequest { kind: Kind::Call, number: 1, incoming: message(&link, slot, 30) };
        let first = 10 * round;
        assert!(service.push_all((first..first + 3).map(decoded)).is_empty(), "there is room");
        link.record_cancel();
        link.served.cancel(SlotId { index: first, generation: 0 });
        let slots: Vec<_> = service.take_batch(9).iter().map(|taken| taken.to.id.slot.index).collect();
        assert_eq!(slots, [first + 1, first + 2]);
        assert!(!service.is_waiting());
    }
    link.drop_callers();
}

#[test]
fn ended_services_take_no_requests_back() {
    let service = Service::new(ServiceId::Port(1), Principal("ada".into()), ServeOptions::default());
    let link = link();
    assert!(service.requeue(message(&link, 0, 1)).is_ok());
    assert!(service.close().is_some());
    assert!(service.requeue(message(&link, 1, 1)).is_err(), "a request in an ended service gets no answer");
    link.drop_callers();
}
