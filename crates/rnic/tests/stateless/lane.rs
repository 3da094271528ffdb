//! Lanes without connection state at the responder: what overlaps, and what keeps its order.

use std::cell::RefCell;
use std::net::SocketAddr;

use halite_rnic::stateless::{
    Lane, OVERHEAD_BYTES, PACKET_BYTES_MAX, PAYLOAD_BYTES_FIRST, PAYLOAD_BYTES_MAX, Responder, Rights,
    ServerClock, WINDOW_PACKETS,
};
use halite_rnic::wire::{ICRC_BYTES, Qpn};
use halite_rnic::{Event, Local, Operation, Remote, Request, Source, Status};

use super::Bytes;

const MEMORY_BYTES: usize = 1 << 20;
const DELAY_NS: u64 = 20_000;
const PATIENCE_NS: u64 = 1_000_000_000;
/// First opcode of writes, as in docs/protocol.md.
const RD: u8 = 0xe0;

/// A lane, the peer's responder and its end of the lane, and packets that are lost, repeated and late.
struct World {
    now_ns: u64,
    lane: Lane,
    clock: ServerClock,
    own: Bytes,
    peer: Lane,
    responder: Responder,
    theirs: Bytes,
    /// Chance of each fault in percent.
    faults: u64,
    seed: u64,
    /// Packets in flight, with their arrival times.
    requests: Vec<(u64, Vec<u8>)>,
    answers: Vec<(u64, Vec<u8>)>,
}

fn address() -> SocketAddr {
    "10.0.0.1:4791".parse().unwrap()
}

impl World {
    fn new() -> World {
        let responder = Responder::new(1, [7; 32]);
        let mut lane = Lane::default();
        lane.set_grant(responder.grant(address(), Qpn::new(3), 0, Rights::AnyKey), 1 << 32, PATIENCE_NS);
        World {
            now_ns: 1_000_000_000,
            lane,
            clock: ServerClock::default(),
            own: Bytes(RefCell::new(vec![0; MEMORY_BYTES]), None),
            peer: Lane::default(),
            responder,
            theirs: Bytes(RefCell::new((0..MEMORY_BYTES).map(|index| (index % 251) as u8).collect()), None),
            faults: 0,
            seed: 1,
            requests: Vec::new(),
            answers: Vec::new(),
        }
    }

    fn post(&mut self, id: u64, operation: Operation) {
        self.lane.post(Request { id, operation, signalled: true, solicited: false });
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % bound
    }

    /// Returns the arrivals of a packet: none, one or two.
    fn arrivals(&mut self) -> Vec<u64> {
        let is_lost = self.below(100) < self.faults;
        let copies = if self.below(100) < self.faults { 2 } else { 1 };
        let mut arrivals = Vec::new();
        for _ in 0..if is_lost { 0 } else { copies } {
            let late_ns = if self.below(100) < self.faults { self.below(10 * DELAY_NS) } else { 0 };
            arrivals.push(self.now_ns + DELAY_NS + late_ns);
        }
        arrivals
    }

    /// Sends what is due, and returns the packets.
    fn send(&mut self) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        let mut buffer = [0; PACKET_BYTES_MAX];
        while let Some(len) = self.lane.poll_transmit(self.now_ns, &self.clock, &self.own, &mut buffer) {
            let packet = buffer[..len - ICRC_BYTES].to_vec();
            for at_ns in self.arrivals() {
                self.requests.push((at_ns, packet.clone()));
            }
            sent.push(packet);
        }
        sent
    }

    /// Advances to the next arrival or timer, and handles it. Returns false if nothing is outstanding.
    fn step(&mut self) -> bool {
        self.send();
        let arrivals = self.requests.iter().chain(&self.answers).map(|(at_ns, _)| *at_ns);
        let Some(next_ns) = arrivals.chain(self.lane.poll_timeout()).min() else { return false };
        self.now_ns = self.now_ns.max(next_ns);
        let now_ns = self.now_ns;
        for (_, packet) in self.requests.extract_if(.., |(at_ns, _)| *at_ns <= now_ns).collect::<Vec<_>>() {
            let mut answer = [0; PACKET_BYTES_MAX];
            let (responder, memory) = (&mut self.responder, &self.theirs);
            let len = responder.handle_packet(now_ns, address(), &packet, memory, &mut answer);
            if let Some(message) = responder.poll_message() {
                self.peer.handle_message(message);
            }
            let answer = answer[..len.expect("the packet is valid") - ICRC_BYTES].to_vec();
            for at_ns in self.arrivals() {
                self.answers.push((at_ns, answer.clone()));
            }
        }
        for (_, answer) in self.answers.extract_if(.., |(at_ns, _)| *at_ns <= now_ns).collect::<Vec<_>>() {
            assert!(self.lane.handle_answer(now_ns, &mut self.clock, &answer, &self.own));
        }
        true
    }

    /// Returns the ids of the requests that have completed, all of them successfully.
    fn completed(&mut self) -> Vec<u64> {
        let events = std::iter::from_fn(|| self.lane.poll_event());
        let id = |event| match event {
            Event::Completed { id, status: Status::Success, .. } => id,
            other => panic!("{other:?}"),
        };
        events.map(id).collect()
    }
}

fn read(address: u64, len: u32) -> Operation {
    Operation::Read { local: Local { key: 0, address }, remote: Remote { rkey: 0, address }, len }
}

fn write(address: u64, bytes: &[u8]) -> Operation {
    Operation::Write {
        source: Source::Inline(bytes.to_vec()),
        remote: Remote { rkey: 0, address },
        imm: None,
    }
}

#[test]
fn reads_overlap_and_a_write_waits_for_them() {
    let mut world = World::new();
    // The window has room for the packets of all three reads.
    let len = (WINDOW_PACKETS / 4 * PAYLOAD_BYTES_FIRST) as u32;
    (0..3).for_each(|id| world.post(id, read(id * u64::from(len), len)));
    world.post(3, write(0, b"later"));
    assert_eq!(world.send().len(), 3 * WINDOW_PACKETS / 4, "one round trip for all reads");
    while world.lane.posted() > 1 {
        assert!(world.send().iter().all(|packet| packet[0] != RD), "a write overtakes a read");
        assert!(world.step());
    }
    while world.step() {}
    assert_eq!(world.completed(), [0, 1, 2, 3]);
    assert!(world.own.0.borrow()[..5] == [0, 1, 2, 3, 4], "the read has the bytes from before the write");
    assert_eq!(&world.theirs.0.borrow()[..5], b"later");
}

/// A message tells the peer that what was written before it is there, whatever the packets suffered.
#[test]
fn a_message_arrives_after_the_writes_before_it() {
    for (faults, len) in [(0, 8), (10, 8), (10, 600_000)] {
        let mut world = World { faults, ..World::new() };
        for round in 1..=20u8 {
            world.post(round.into(), write(0, &vec![round; len]));
            world.post(100, write(0, &[round; 4]));
            world.post(100, Operation::Send { bytes: vec![round], imm: None });
        }
        let mut received = 0;
        while world.step() {
            while let Some(event) = world.peer.poll_event() {
                received += 1;
                let Event::Received { bytes, .. } = event else { panic!("{event:?}") };
                assert_eq!(bytes, [received], "messages arrive once, in order");
                let written = &world.theirs.0.borrow()[..len];
                assert!(written.iter().all(|byte| *byte >= received), "round {received}: {written:?}");
            }
        }
        assert_eq!(received, 20);
        assert_eq!(world.completed().len(), 60);
    }
}

/// A write with an immediate takes one round trip, also if it is long.
#[test]
fn a_long_write_is_reported_once_after_all_its_bytes() {
    for (faults, len) in [(0, 10_000), (10, 10_000), (10, 600_000)] {
        let mut world = World { faults, ..World::new() };
        let post = |world: &mut World, round: u8| {
            let operation = Operation::Write {
                source: Source::Inline(vec![round; len]),
                remote: Remote { rkey: 0, address: 0 },
                imm: Some(round.into()),
            };
            world.post(round.into(), operation);
        };
        post(&mut world, 1);
        while world.step() {}
        assert_eq!(world.completed(), [1]);
        assert!(matches!(world.peer.poll_event(), Some(Event::Notified { imm: 1, .. })));
        (2..=20).for_each(|round| post(&mut world, round));
        if faults == 0 {
            assert_eq!(world.send().len(), len.div_ceil(PAYLOAD_BYTES_FIRST - 8), "one round trip");
        }
        let mut reported = 1;
        while world.step() {
            while let Some(event) = world.peer.poll_event() {
                reported += 1;
                assert!(
                    matches!(event, Event::Notified { imm, .. } if imm == u32::from(reported)),
                    "{event:?}"
                );
                let written = &world.theirs.0.borrow()[..len];
                assert!(written.iter().all(|byte| *byte >= reported), "round {reported}");
            }
        }
        assert_eq!((reported, world.completed().len()), (20, 19));
    }
}

/// The path MTU becomes known while requests are under way. Longer packets have the same room in the window.
#[test]
fn packets_become_as_long_as_the_path_permits() {
    let mut world = World { faults: 10, ..World::new() };
    let bytes: Vec<u8> = (0..300_000u32).map(|index| (index / 5) as u8).collect();
    world.theirs.0.borrow_mut()[400_000..700_000].copy_from_slice(&bytes);
    for round in 0..3 {
        world.post(10 * round, write(0, &bytes));
        world.post(10 * round + 1, read(400_000, 300_000));
        world.post(10 * round + 2, Operation::Send { bytes: bytes[..20_000].to_vec(), imm: None });
        let mut longest = 0;
        for _ in 0..20 {
            longest = world.send().iter().map(Vec::len).fold(longest, usize::max);
            assert!(world.step());
        }
        let expected = if round == 0 { OVERHEAD_BYTES + PAYLOAD_BYTES_FIRST } else { PACKET_BYTES_MAX };
        assert_eq!(longest, expected - ICRC_BYTES, "round {round}");
        world.lane.set_packet_max(PACKET_BYTES_MAX);
        while world.step() {}
        assert_eq!(world.completed(), [0, 1, 2].map(|id| 10 * round + id));
        assert!(world.theirs.0.borrow()[..300_000] == bytes[..], "round {round}");
        assert!(world.own.0.borrow()[400_000..700_000] == bytes[..], "round {round}");
        let received = world.peer.poll_event();
        assert!(
            matches!(received, Some(Event::Received { bytes: message, .. }) if message == bytes[..20_000])
        );
    }
    world.post(1, read(0, 1 << 20));
    let asked: usize = world.send().len() * PAYLOAD_BYTES_MAX / PAYLOAD_BYTES_FIRST;
    assert!(asked.abs_diff(world.lane.window_packets()) <= 4, "{asked} KiB");
}

#[test]
fn the_window_grows_with_answers_and_a_loss_halves_it() {
    let mut world = World::new();
    world.post(1, read(0, 800 << 10));
    while world.step() {}
    let full = world.lane.window_packets();
    assert!(full >= 10 * WINDOW_PACKETS, "{full} packets");
    world.post(2, read(0, full as u32 * PAYLOAD_BYTES_FIRST as u32));
    world.faults = 100;
    assert_eq!(world.send().len(), full);
    world.faults = 0;
    while world.lane.window_packets() == full {
        assert!(world.step());
    }
    assert_eq!(world.lane.window_packets(), full / 2, "all of these packets were lost at the same time");
    while world.step() {}
    assert_eq!(world.completed(), [1, 2]);
}
