//! Answers that travel in the next request of the end that answers.

use std::cell::RefCell;
use std::net::SocketAddr;

use halite_rnic::stateless::{
    Answer, EFFECT_LIFE_NS, Lane, PACKET_BYTES_MAX, PAYLOAD_BYTES_FIRST, Responder, Rights, ServerClock,
};
use halite_rnic::wire::{ICRC_BYTES, Qpn};
use halite_rnic::{Event, Operation, Remote, Request, Source, Status};

use super::Bytes;

const PATIENCE_NS: u64 = 1_000_000_000;
/// First opcode of writes, and the bit of requests with an acknowledgement, as in docs/protocol.md.
const RD: u8 = 0xe0;
const HAS_ACK: u8 = 0x10;

/// One of two ends that send requests to each other.
struct End {
    address: SocketAddr,
    lane: Lane,
    clock: ServerClock,
    responder: Responder,
    memory: Bytes,
}

/// Two ends, and the time of both.
struct World {
    now_ns: u64,
    ends: [End; 2],
}

/// What a packet does at its receiver.
enum Handled {
    /// The packet is a request, with its answer.
    Request(Answer),
    Answer,
    Nothing,
}

impl World {
    fn new() -> World {
        let end = |index: u8| End {
            address: format!("10.0.0.{}:4791", index + 1).parse().unwrap(),
            lane: Lane::default(),
            clock: ServerClock::default(),
            responder: Responder::new(1, [index; 32]),
            memory: Bytes(RefCell::new(vec![0; 1 << 16]), None),
        };
        let mut ends = [0, 1].map(end);
        for from in [0, 1] {
            let address = ends[from].address;
            let grant = ends[1 - from].responder.grant(address, Qpn::new(3), 0, Rights::AnyKey);
            ends[from].lane.set_grant(grant, 1 << 32, PATIENCE_NS);
        }
        let mut world = World { now_ns: 1_000_000_000, ends };
        // The first requests ask for the responder's clock.
        for from in [0, 1] {
            world.write(from, 0, &[0]);
            while world.ends[from].lane.posted() > 0 {
                let packet = world.request(from);
                let Handled::Request(answer) = world.deliver(1 - from, &packet) else { panic!() };
                world.answer_at_once(from, &answer);
            }
            world.completed(from);
        }
        world
    }

    fn write(&mut self, from: usize, address: u64, bytes: &[u8]) {
        let (source, remote) = (Source::Inline(bytes.to_vec()), Remote { rkey: 0, address });
        let operation = Operation::Write { source, remote, imm: None };
        self.ends[from].lane.post(Request { id: address, operation, signalled: true, solicited: false });
    }

    fn poll_request(&mut self, from: usize) -> Option<Vec<u8>> {
        let End { lane, clock, memory, .. } = &mut self.ends[from];
        let mut buffer = [0; PACKET_BYTES_MAX];
        let len = lane.poll_transmit(self.now_ns, clock, memory, &mut buffer)?;
        Some(buffer[..len - ICRC_BYTES].to_vec())
    }

    fn request(&mut self, from: usize) -> Vec<u8> {
        self.poll_request(from).expect("a request is due")
    }

    fn deliver(&mut self, to: usize, packet: &[u8]) -> Handled {
        let (now_ns, from) = (self.now_ns, self.ends[1 - to].address);
        let End { lane, clock, responder, memory, .. } = &mut self.ends[to];
        let mut buffer = [0; PACKET_BYTES_MAX];
        if lane.handle_answer(now_ns, clock, packet, memory) {
            return Handled::Answer;
        }
        let Some(answer) = responder.execute(now_ns, from, packet, memory, &mut buffer) else {
            return Handled::Nothing;
        };
        if let Some(ack) = answer.acknowledged {
            lane.handle_ack(now_ns, clock, ack, memory);
        }
        Handled::Request(answer)
    }

    fn answer_at_once(&mut self, to: usize, answer: &Answer) {
        let mut buffer = [0; PACKET_BYTES_MAX];
        let len = answer.seal(&mut buffer);
        assert!(matches!(self.deliver(to, &buffer[..len - ICRC_BYTES]), Handled::Answer));
    }

    /// Sends the write of the first end, and keeps the second end's answer.
    fn write_and_hold(&mut self, address: u64) -> Vec<u8> {
        self.write(0, address, b"salt");
        let packet = self.request(0);
        let Handled::Request(answer) = self.deliver(1, &packet) else { panic!("no answer") };
        self.ends[1].lane.hold_answer(answer);
        packet
    }

    /// Returns the ids of the requests that have completed, all of them successfully.
    fn completed(&mut self, end: usize) -> Vec<u64> {
        let events = std::iter::from_fn(|| self.ends[end].lane.poll_event());
        let id = |event| match event {
            Event::Completed { id, status: Status::Success, .. } => id,
            other => panic!("{other:?}"),
        };
        events.map(id).collect()
    }
}

#[test]
fn an_answer_without_bytes_travels_in_the_next_request() {
    let mut world = World::new();
    world.write_and_hold(8);
    world.write(1, 16, b"halite");
    let packet = world.request(1);
    assert_eq!(packet[0], RD | HAS_ACK);
    assert!(!world.ends[1].lane.holds_answers(), "there is no packet for it");
    // Without its tag, the bit of the opcode means nothing.
    let mut forged = packet.clone();
    forged[0] = RD;
    assert!(matches!(world.deliver(0, &forged), Handled::Nothing));
    assert!(world.completed(0).is_empty());
    let Handled::Request(answer) = world.deliver(0, &packet) else { panic!("no answer") };
    assert_eq!(world.completed(0), [8]);
    assert_eq!(&world.ends[0].memory.0.borrow()[16..22], b"halite");
    // A copy of the packet has no effect.
    world.ends[0].memory.0.borrow_mut()[16..22].copy_from_slice(b"newest");
    assert!(matches!(world.deliver(0, &packet), Handled::Request(_)));
    assert_eq!(&world.ends[0].memory.0.borrow()[16..22], b"newest");
    assert!(world.completed(0).is_empty());
    world.answer_at_once(1, &answer);
    assert_eq!(world.completed(1), [16]);
}

#[test]
fn an_answer_that_is_lost_with_its_request_comes_again() {
    let mut world = World::new();
    let first = world.write_and_hold(8);
    world.write(1, 16, b"halite");
    let lost = world.request(1);
    world.now_ns = world.ends[0].lane.poll_timeout().unwrap();
    let again = world.request(0);
    assert_eq!(again, first);
    let Handled::Request(answer) = world.deliver(1, &again) else { panic!("no answer") };
    assert_eq!(world.ends[1].responder.counters().repeated, 1);
    world.answer_at_once(0, &answer);
    assert_eq!(world.completed(0), [8]);
    // The request is repeated alone; then its first copy arrives, too.
    world.now_ns = world.now_ns.max(world.ends[1].lane.poll_timeout().unwrap());
    assert_eq!(world.request(1)[0], RD);
    let Handled::Request(answer) = world.deliver(0, &lost) else { panic!("no answer") };
    world.answer_at_once(1, &answer);
    assert_eq!((world.completed(0), world.completed(1)), (vec![], vec![16]));
}

/// A late packet proves no more about this end's requests than about its own effect.
#[test]
fn an_answer_in_an_expired_request_does_not_count() {
    let mut world = World::new();
    world.write_and_hold(8);
    world.write(1, 16, b"halite");
    let packet = world.request(1);
    world.now_ns += EFFECT_LIFE_NS + 1_000_000;
    assert!(matches!(world.deliver(0, &packet), Handled::Request(_)));
    assert!(world.completed(0).is_empty());
    assert_eq!(world.ends[0].memory.0.borrow()[16], 0);
}

#[test]
fn an_answer_without_room_in_the_request_is_a_packet() {
    let mut world = World::new();
    world.write_and_hold(8);
    world.write(1, 16, &[1; PAYLOAD_BYTES_FIRST]);
    assert_eq!(world.request(1)[0], RD);
    let mut buffer = [0; PACKET_BYTES_MAX];
    let len = world.ends[1].lane.poll_answer(&mut buffer).expect("the answer is a packet");
    assert!(matches!(world.deliver(0, &buffer[..len - ICRC_BYTES]), Handled::Answer));
    assert_eq!(world.completed(0), [8]);
}

/// Two ends write to each other, and lose and repeat packets. Each write lands once, and completes.
#[test]
fn answers_in_requests_survive_packet_faults() {
    let (mut world, mut seed) = (World::new(), 1u64);
    let mut below = move |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % bound
    };
    let (mut done, mut carried) = ([0u64; 2], 0);
    let mut late: Vec<(usize, Vec<u8>)> = Vec::new();
    for round in 0..4_000u64 {
        world.now_ns += 200_000;
        for from in [0, 1] {
            if world.ends[from].lane.posted() == 0 {
                assert_eq!(world.completed(from).len(), usize::from(done[from] > 0));
                let written = world.ends[1 - from].memory.0.borrow()[8..16].to_vec();
                assert_eq!(written, done[from].to_ne_bytes(), "round {round}: a write is there");
                done[from] += 1;
                world.write(from, 8, &done[from].to_ne_bytes());
            }
            let mut packets: Vec<_> = std::iter::from_fn(|| world.poll_request(from)).collect();
            carried += packets.iter().filter(|packet| packet[0] & HAS_ACK != 0).count();
            let mut buffer = [0; PACKET_BYTES_MAX];
            while below(4) == 0
                && let Some(len) = world.ends[from].lane.poll_answer(&mut buffer)
            {
                packets.push(buffer[..len - ICRC_BYTES].to_vec());
            }
            for packet in packets {
                if below(10) == 0 {
                    late.push((1 - from, packet.clone()));
                }
                if below(10) > 0 {
                    late.insert(0, (1 - from, packet));
                }
            }
        }
        let arriving = late.len() - late.len() / 4;
        for (to, packet) in late.drain(..arriving).collect::<Vec<_>>() {
            if let Handled::Request(answer) = world.deliver(to, &packet) {
                world.ends[to].lane.hold_answer(answer);
            }
        }
    }
    assert!(done.iter().all(|done| *done > 400) && carried > 400, "{done:?}, {carried}");
}
