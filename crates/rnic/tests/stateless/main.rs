//! Stateless pairs: each request takes effect at most once, despite lost, repeated and late packets.

mod acks;
mod calls;
mod cut_off;
mod inputs;
mod kinds;
mod lane;
mod orders;
mod path;

use std::cell::RefCell;
use std::net::SocketAddr;

use halite_rnic::stateless::{
    AnswerError, CALL_BYTES_MAX, CutOffFull, Done, EFFECT_LIFE_NS, NOTE_BYTES, NOTED_BYTES_MAX,
    OVERHEAD_BYTES, Order, OrderDone, OrderKind, OrderOutcome, Outcome, PAYLOAD_BYTES_FIRST,
    PAYLOAD_BYTES_MAX, PostError, Requester, Responder, Rights, SEND_BYTES_MAX, ServerClock, Target, Work,
};
use halite_rnic::wire::{ICRC_BYTES, Qpn};
use halite_rnic::{Access, Memory, Refused};

const KEY: u32 = 7;
const MEMORY_BYTES: usize = 1 << 16;
const DELAY_NS: u64 = 20_000;

/// The memory of an end, and the only key that names it; `None` if each key names it.
struct Bytes(RefCell<Vec<u8>>, Option<u32>);

impl Memory for Bytes {
    fn check(&self, key: u32, _: Access, address: u64, len: u64) -> Result<(), Refused> {
        let end = address.checked_add(len).ok_or(Refused)?;
        let is_named = self.1.is_none_or(|only| key == only);
        if is_named && end <= self.0.borrow().len() as u64 { Ok(()) } else { Err(Refused) }
    }

    fn read(&self, _: u32, address: u64, target: &mut [u8]) -> Result<(), Refused> {
        target.copy_from_slice(&self.0.borrow()[address as usize..][..target.len()]);
        Ok(())
    }

    fn write(&self, _: u32, address: u64, source: &[u8]) -> Result<(), Refused> {
        self.0.borrow_mut()[address as usize..][..source.len()].copy_from_slice(source);
        Ok(())
    }

    fn fetch_add(&self, _: u32, address: u64, add: u64) -> Result<u64, Refused> {
        Ok(self.change(address, |old| old.wrapping_add(add)))
    }

    fn compare_swap(&self, _: u32, address: u64, expected: u64, new: u64) -> Result<u64, Refused> {
        Ok(self.change(address, |old| if old == expected { new } else { old }))
    }
}

impl Bytes {
    /// Replaces the word at an address, and returns its previous value.
    fn change(&self, address: u64, new: impl FnOnce(u64) -> u64) -> u64 {
        let old = self.word(address);
        self.0.borrow_mut()[address as usize..][..8].copy_from_slice(&new(old).to_ne_bytes());
        old
    }

    fn word(&self, address: u64) -> u64 {
        u64::from_ne_bytes(self.0.borrow()[address as usize..][..8].try_into().unwrap())
    }
}

/// Chances of faults in percent, for each packet.
#[derive(Clone, Copy, Default)]
struct Faults {
    lost: u64,
    repeated: u64,
    late: u64,
}

/// One requester, one responder, and the packets between them.
struct World {
    now_ns: u64,
    memory: Bytes,
    /// Memory of the requester.
    theirs: Bytes,
    responder: Responder,
    requester: Requester,
    clock: ServerClock,
    faults: Faults,
    /// The opcode of the packets that have faults; `None` for all packets.
    faulty: Option<u8>,
    /// Number of packets lost by chance.
    lost: u64,
    /// Delay of packets in ns, and its random part.
    delay_ns: u64,
    jitter_ns: u64,
    /// Index of a packet among those still to be sent, and the additional delay in ns of each of its copies.
    chosen: Option<(u64, Vec<u64>)>,
    /// Additional delay of the next packet.
    next_delay_ns: Option<u64>,
    /// Times until which all packets in one direction are lost.
    requests_lost_until_ns: u64,
    answers_lost_until_ns: u64,
    seed: u64,
    /// Packets in flight, with their arrival times.
    to_responder: Vec<(u64, Vec<u8>)>,
    to_requester: Vec<(u64, Vec<u8>)>,
    /// Time that the responder's process takes to answer a call; `None` while it polls no messages.
    answer_after_ns: Option<u64>,
    /// Minimum length of answers to calls.
    answer_bytes_min: usize,
    /// Messages and calls that the responder's process has received.
    received: Vec<Vec<u8>>,
    /// Unanswered calls, with the times of their answers.
    calls: Vec<(u64, u64, Vec<u8>)>,
    /// All requests that were sent, and all orders.
    sent: Vec<Vec<u8>>,
    orders_sent: Vec<Vec<u8>>,
}

fn address() -> SocketAddr {
    "10.0.0.1:4791".parse().unwrap()
}

fn target() -> Target {
    Target { to: address(), qpn: Qpn::new(5), rkey: KEY, rights: Rights::ReadWrite }
}

impl World {
    fn new(rights: Rights) -> World {
        let responder = Responder::new(1, [9; 32]);
        let grant = responder.grant(address(), Qpn::new(5), KEY, rights);
        World {
            now_ns: 1_000_000_000,
            memory: Bytes(RefCell::new(vec![0; MEMORY_BYTES]), Some(KEY)),
            theirs: Bytes(
                RefCell::new((0..MEMORY_BYTES).map(|index| (index % 251) as u8).collect()),
                Some(KEY),
            ),
            responder,
            requester: Requester::new(grant, 1),
            clock: ServerClock::default(),
            faults: Faults::default(),
            faulty: None,
            lost: 0,
            delay_ns: DELAY_NS,
            jitter_ns: 0,
            chosen: None,
            next_delay_ns: None,
            requests_lost_until_ns: 0,
            answers_lost_until_ns: 0,
            seed: 1,
            to_responder: Vec::new(),
            to_requester: Vec::new(),
            answer_after_ns: Some(0),
            answer_bytes_min: 0,
            received: Vec::new(),
            calls: Vec::new(),
            sent: Vec::new(),
            orders_sent: Vec::new(),
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % bound
    }

    /// Returns the arrivals of a packet: none, one or two.
    fn arrivals(&mut self, lost_until_ns: u64, body: &[u8]) -> Vec<u64> {
        let is_faulty = self.faulty.is_none_or(|opcode| body[0] == opcode);
        let Faults { lost, repeated, late } = if is_faulty { self.faults } else { Faults::default() };
        match &mut self.chosen {
            Some((0, delays_ns)) => {
                let arrivals =
                    delays_ns.iter().map(|delay_ns| self.now_ns + self.delay_ns + delay_ns).collect();
                self.chosen = None;
                return arrivals;
            }
            Some((index, _)) => *index -= 1,
            None => {}
        }
        if self.now_ns < lost_until_ns {
            return Vec::new();
        }
        if self.below(100) < lost {
            self.lost += 1;
            return Vec::new();
        }
        let jitter_ns = if self.jitter_ns > 0 { self.below(self.jitter_ns) } else { 0 };
        let delay_ns = jitter_ns + if self.below(100) < late { 40 * DELAY_NS } else { self.delay_ns };
        let mut arrivals = vec![self.now_ns + delay_ns + self.next_delay_ns.take().unwrap_or(0)];
        if self.below(100) < repeated {
            arrivals.push(self.now_ns + 30 * DELAY_NS);
        }
        arrivals
    }

    fn deliver(&mut self, body: &[u8]) {
        let mut answer = [0; OVERHEAD_BYTES + PAYLOAD_BYTES_MAX];
        let len = self.responder.handle_packet(self.now_ns, address(), body, &self.memory, &mut answer);
        if let Some(len) = len {
            for at_ns in self.arrivals(self.answers_lost_until_ns, &answer) {
                self.to_requester.push((at_ns, answer[..len - ICRC_BYTES].to_vec()));
            }
        }
    }

    /// Receives messages, and answers calls: with the complements of their bytes, and further bytes as far as needed.
    fn serve(&mut self) {
        let Some(ns) = self.answer_after_ns else { return };
        while let Some(message) = self.responder.poll_message() {
            assert_eq!((message.from, message.qpn), (address(), Qpn::new(5)));
            if message.is_call {
                let answer = answer_bytes(&message.bytes, self.answer_bytes_min);
                self.calls.push((self.now_ns + ns, message.id, answer));
            }
            self.received.push(message.bytes);
        }
        while let Some(at) = self.calls.iter().position(|(at_ns, ..)| *at_ns <= self.now_ns) {
            let (_, id, bytes) = self.calls.remove(at);
            let mut buffer = [0; OVERHEAD_BYTES + PAYLOAD_BYTES_MAX];
            let (to, len) = self.responder.answer(self.now_ns, id, &bytes, &mut buffer).unwrap();
            assert_eq!(to, address());
            for at_ns in self.arrivals(self.answers_lost_until_ns, &buffer) {
                self.to_requester.push((at_ns, buffer[..len - ICRC_BYTES].to_vec()));
            }
        }
    }

    /// Lets time pass until the next packet, timeout or answer; returns false if there is none.
    fn step(&mut self) -> bool {
        let mut buffer = [0; OVERHEAD_BYTES + PAYLOAD_BYTES_MAX];
        while let Some(len) = self.requester.poll_transmit(self.now_ns, &self.clock, &mut buffer) {
            let body = buffer[..len - ICRC_BYTES].to_vec();
            self.sent.push(body.clone());
            for at_ns in self.arrivals(self.requests_lost_until_ns, &body) {
                self.to_responder.push((at_ns, body.clone()));
            }
        }
        while let Some((to, len)) = self.responder.poll_transmit(self.now_ns, &mut buffer) {
            assert_eq!(to, address());
            let body = buffer[..len - ICRC_BYTES].to_vec();
            self.orders_sent.push(body.clone());
            for at_ns in self.arrivals(self.answers_lost_until_ns, &body) {
                self.to_requester.push((at_ns, body.clone()));
            }
        }
        let packets = self.to_responder.iter().chain(&self.to_requester).map(|(at_ns, _)| *at_ns);
        let packets = packets.chain(self.calls.iter().map(|(at_ns, ..)| *at_ns));
        let Some(next_ns) =
            packets.chain(self.requester.poll_timeout()).chain(self.responder.poll_timeout()).min()
        else {
            return false;
        };
        self.now_ns = self.now_ns.max(next_ns);
        assert!(self.now_ns < 100_000_000_000, "the run exceeds 100 s of virtual time");
        let now_ns = self.now_ns;
        let arrived = |packets: &mut Vec<(u64, Vec<u8>)>| {
            let (arrived, rest) =
                std::mem::take(packets).into_iter().partition(|(at_ns, _)| *at_ns <= now_ns);
            *packets = rest;
            arrived
        };
        let here: Vec<_> = arrived(&mut self.to_requester);
        for (_, body) in &here {
            self.requester.handle_packet(now_ns, &mut self.clock, body, &self.theirs);
        }
        let there: Vec<_> = arrived(&mut self.to_responder);
        there.iter().for_each(|(_, body)| self.deliver(body));
        self.serve();
        true
    }

    /// Executes one request to its end.
    fn execute(&mut self, work: Work) -> Outcome {
        self.requester.post(1, work).unwrap();
        loop {
            let has_progress = self.step();
            if let Some(Done { outcome, .. }) = self.requester.poll_done() {
                return outcome;
            }
            assert!(has_progress, "no packet is in flight, but the request has not completed");
        }
    }

    /// Begins an order, and returns its id.
    fn begin(&mut self, order: Order) -> u64 {
        self.responder.order(self.now_ns, target(), order, &self.memory).unwrap()
    }

    /// Executes one order until both ends have nothing left to do.
    fn order(&mut self, order: Order) -> OrderOutcome {
        let order = self.begin(order);
        while self.step() {}
        let Some(OrderDone { id, outcome }) = self.responder.poll_order() else { panic!("no end") };
        assert_eq!((id, self.responder.orders()), (order, 0));
        assert_eq!(self.responder.poll_order(), None, "an order ends once");
        outcome
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Outcome {
        self.execute(Work::Write { address, bytes: bytes.to_vec() })
    }

    /// Adds to the word at an address, and returns its previous value.
    fn fetch_add(&mut self, address: u64, add: u64) -> u64 {
        previous(self.execute(Work::FetchAdd { address, add }))
    }

    fn send(&mut self, bytes: &[u8]) -> Outcome {
        self.execute(Work::Send { bytes: bytes.to_vec() })
    }

    fn call(&mut self, bytes: &[u8]) -> Outcome {
        self.execute(Work::Call { bytes: bytes.to_vec() })
    }

    fn compare_swap(&mut self, address: u64, expected: u64, new: u64) -> u64 {
        previous(self.execute(Work::CompareSwap { address, expected, new }))
    }

    fn read(&mut self, address: u64, len: usize) -> Vec<u8> {
        match self.execute(Work::Read { address, len }) {
            Outcome::Success(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the previous value of an atomic's word.
fn previous(outcome: Outcome) -> u64 {
    match outcome {
        Outcome::Success(bytes) => u64::from_be_bytes(bytes.try_into().expect("eight bytes")),
        other => panic!("{other:?}"),
    }
}

/// Writes and reads at random, and compares with a model: each packet of a write has an effect once.
#[track_caller]
fn check_effects(faults: Faults) {
    let mut world = World::new(Rights::ReadWrite);
    world.faults = faults;
    let mut model = vec![0; MEMORY_BYTES];
    let mut packets = 0;
    for round in 0..300u64 {
        let len = world.below(5 * PAYLOAD_BYTES_FIRST as u64) as usize;
        let address = world.below((MEMORY_BYTES - len) as u64) as usize;
        let bytes: Vec<u8> = (0..len).map(|index| (index as u64 * round + round) as u8).collect();
        model[address..address + len].copy_from_slice(&bytes);
        assert_eq!(world.write(address as u64, &bytes), Outcome::Success(Vec::new()), "round {round}");
        packets += len.div_ceil(PAYLOAD_BYTES_FIRST).max(1) as u64;
        let (from, len) = (world.below(1 << 15) as usize, world.below(1 << 15) as usize);
        assert!(world.read(from as u64, len) == model[from..from + len], "round {round}");
    }
    assert!(*world.memory.0.borrow() == model);
    let counters = world.responder.counters();
    assert!(counters.done >= packets && counters.forged == 0, "{counters:?}");
    assert_eq!(counters.repeated == 0, faults.lost + faults.repeated + faults.late == 0, "{counters:?}");
}

#[test]
fn each_packet_is_executed_once_without_faults() {
    check_effects(Faults::default());
}

#[test]
fn lost_packets_have_no_visible_effect() {
    check_effects(Faults { lost: 10, ..Faults::default() });
}

#[test]
fn repeated_and_late_packets_have_no_visible_effect() {
    check_effects(Faults { repeated: 20, late: 20, ..Faults::default() });
    check_effects(Faults { lost: 10, repeated: 10, late: 10 });
}

#[test]
fn replayed_write_has_no_effect() {
    let mut world = World::new(Rights::ReadWrite);
    assert_eq!(world.write(64, b"first"), Outcome::Success(Vec::new()));
    let copies = world.sent.clone();
    assert_eq!(world.write(64, b"later"), Outcome::Success(Vec::new()));
    for after_ns in [0, EFFECT_LIFE_NS / 2, EFFECT_LIFE_NS, 3 * EFFECT_LIFE_NS] {
        world.now_ns += after_ns;
        copies.iter().for_each(|copy| world.deliver(copy));
        assert_eq!(&world.memory.0.borrow()[64..69], b"later", "after {after_ns} ns");
    }
    let counters = world.responder.counters();
    assert!(counters.repeated > 0 && counters.expired > 0, "{counters:?}");
}

/// Otherwise, "expired" would not tell a requester that a request had no effect.
#[test]
fn an_effect_is_recorded_for_twice_t() {
    for phase in 0..12 {
        let mut world = World::new(Rights::ReadWrite);
        assert_eq!(world.write(0, b"salt"), Outcome::Success(Vec::new()));
        world.now_ns += phase * 5_000_000;
        assert_eq!(world.fetch_add(8, 1), 0);
        let (copy, executed_ns) = (world.sent.last().unwrap().clone(), world.now_ns);
        while world.now_ns < executed_ns + 2 * EFFECT_LIFE_NS {
            world.deliver(&copy);
            assert_eq!(world.responder.counters().expired, 0, "phase {phase}");
            assert_eq!(world.write(0, b"salt"), Outcome::Success(Vec::new()));
            world.now_ns += 5_000_000;
        }
    }
}

#[test]
fn packets_with_other_bytes_rights_or_addresses_have_no_effect() {
    // A short packet, and one whose tag covers a digest.
    for bytes in [&b"salt"[..], &[7; 300]] {
        others_of_a_write_have_no_effect(bytes);
    }
}

fn others_of_a_write_have_no_effect(bytes: &[u8]) {
    let mut world = World::new(Rights::ReadWrite);
    assert_eq!(world.write(64, bytes), Outcome::Success(Vec::new()));
    let before = world.memory.0.borrow().clone();
    let done = world.responder.counters().done;
    let copy = world.sent.last().unwrap().clone();
    let mut answer = [0; OVERHEAD_BYTES + PAYLOAD_BYTES_MAX];
    // Switches and the ICRC change some bytes of the transport header.
    let is_covered = |byte: &usize| *byte == 0 || (5..8).contains(byte) || *byte >= 12;
    let covered: Vec<usize> = (0..copy.len()).filter(is_covered).collect();
    for byte in &covered {
        let mut other = copy.clone();
        other[*byte] ^= 1;
        world.deliver(&other);
    }
    let elsewhere = "10.0.0.2:4791".parse().unwrap();
    assert_eq!(
        world.responder.handle_packet(world.now_ns, elsewhere, &copy, &world.memory, &mut answer),
        None
    );
    for len in 0..copy.len() {
        world.deliver(&copy[..len]);
    }
    let counters = world.responder.counters();
    assert_eq!(counters.forged, (covered.len() + 1 + copy.len()) as u64);
    assert_eq!((counters.done, counters.repeated), (done, 0));
    assert!(*world.memory.0.borrow() == before);
}

#[test]
fn a_grant_permits_its_own_access_only() {
    let mut world = World::new(Rights::Read);
    assert_eq!(world.write(0, b"salt"), Outcome::Refused);
    assert_eq!(world.read(0, 4), [0; 4]);
    let mut world = World::new(Rights::Write);
    assert_eq!(world.execute(Work::Read { address: 0, len: 4 }), Outcome::Refused);
    assert_eq!(world.write(MEMORY_BYTES as u64 - 2, b"salt"), Outcome::Refused);
    assert_eq!(world.write(u64::MAX - 2, b"salt"), Outcome::Refused);
}

#[test]
fn a_refused_write_changes_nothing() {
    let mut world = World::new(Rights::ReadWrite);
    assert_eq!(world.write(0, b"salt"), Outcome::Success(Vec::new()));
    // Only the second packet is out of bounds.
    let address = (MEMORY_BYTES - PAYLOAD_BYTES_FIRST) as u64;
    world.requester.post(1, Work::Write { address, bytes: vec![1; 2 * PAYLOAD_BYTES_FIRST] }).unwrap();
    world.next_delay_ns = Some(EFFECT_LIFE_NS / 2);
    while world.requester.poll_done().is_none_or(|done| done.outcome != Outcome::Refused) {
        assert!(world.step());
    }
    assert_eq!(world.write(address, b"later"), Outcome::Success(Vec::new()));
    world.now_ns += EFFECT_LIFE_NS / 2;
    while world.step() {}
    assert_eq!(&world.memory.0.borrow()[address as usize..][..6], b"later\0");
}

#[test]
fn an_idle_requester_requests_the_clock_once() {
    let mut world = World::new(Rights::ReadWrite);
    for round in 1..=3 {
        assert_eq!(world.write(0, b"salt"), Outcome::Success(Vec::new()));
        assert_eq!(world.requester.clock_questions(), round);
        assert_eq!(world.write(0, b"salt"), Outcome::Success(Vec::new()));
        assert_eq!(world.requester.clock_questions(), round, "the clock is known");
        world.now_ns += 1_000_000_000;
    }
    assert_eq!(world.responder.counters().expired, 0);
}

#[test]
fn a_new_epoch_ends_all_grants() {
    let mut world = World::new(Rights::ReadWrite);
    assert_eq!(world.write(0, b"salt"), Outcome::Success(Vec::new()));
    world.responder.raise_epoch([3; 32]);
    assert_eq!(world.write(0, b"bread"), Outcome::MaybeDone, "the responder must not answer");
    assert_eq!(&world.memory.0.borrow()[..5], b"salt\0");
    let grant = world.responder.grant(address(), Qpn::new(5), KEY, Rights::ReadWrite);
    world.requester.regrant(grant);
    assert_eq!(world.write(0, b"bread"), Outcome::Success(Vec::new()));
}

/// The repeated request has another key, and thus another tag.
#[test]
fn an_effect_whose_answer_was_lost_is_not_repeated_in_a_new_epoch() {
    let mut world = World::new(Rights::ReadWrite);
    assert_eq!(world.write(0, &1u64.to_ne_bytes()), Outcome::Success(Vec::new()));
    world.requester.post(1, Work::FetchAdd { address: 0, add: 1 }).unwrap();
    world.chosen = Some((1, Vec::new()));
    while world.chosen.is_some() {
        assert!(world.step());
    }
    world.responder.raise_epoch([3; 32]);
    world.requester.regrant(world.responder.grant(address(), Qpn::new(5), KEY, Rights::ReadWrite));
    while world.step() {}
    assert!(world.requester.poll_done().is_some_and(|done| matches!(done.outcome, Outcome::Success(_))));
    assert_eq!(world.memory.0.borrow()[..8], 2u64.to_ne_bytes());
}

/// The record has the effects of the last intervals, of any requester, and no memory after a silence.
#[test]
fn the_record_forgets_former_requesters() {
    let mut world = World::new(Rights::ReadWrite);
    for port in 1..2_000 {
        let from: SocketAddr = format!("10.0.0.3:{port}").parse().unwrap();
        let grant = world.responder.grant(from, Qpn::new(1), KEY, Rights::Write);
        let mut requester = Requester::new(grant, 1);
        requester.post(1, Work::Write { address: 0, bytes: vec![1; 8] }).unwrap();
        let (mut buffer, mut answer) =
            ([0; OVERHEAD_BYTES + PAYLOAD_BYTES_MAX], [0; OVERHEAD_BYTES + PAYLOAD_BYTES_MAX]);
        let mut clock = ServerClock::default();
        for _ in 0..2 {
            let len = requester.poll_transmit(world.now_ns, &clock, &mut buffer).expect("a packet");
            let body = &buffer[..len - ICRC_BYTES];
            let len = world.responder.handle_packet(world.now_ns, from, body, &world.memory, &mut answer);
            let body = &answer[..len.expect("an answer") - ICRC_BYTES];
            requester.handle_packet(world.now_ns, &mut clock, body, &world.theirs);
        }
        assert!(requester.poll_done().is_some_and(|done| done.outcome == Outcome::Success(Vec::new())));
    }
    assert_eq!(world.responder.recorded(), 1_999);
    // Without packets, the responder's process sweeps.
    let begin_ns = world.now_ns;
    while let Some(due_ns) = world.responder.sweep_ns() {
        assert!(due_ns > world.now_ns);
        world.now_ns = due_ns;
        world.responder.sweep(due_ns);
    }
    assert_eq!(world.responder.recorded(), 0);
    assert!(world.now_ns <= begin_ns + 4 * EFFECT_LIFE_NS);
}

#[test]
fn a_read_sweeps_the_record() {
    let mut world = World::new(Rights::ReadWrite);
    assert_eq!(world.write(0, b"salt"), Outcome::Success(Vec::new()));
    assert_eq!(world.responder.recorded(), 1);
    world.now_ns += 4 * EFFECT_LIFE_NS;
    assert_eq!(world.read(0, 4), b"salt");
    assert_eq!((world.responder.recorded(), world.responder.sweep_ns()), (0, None));
}

#[test]
fn atomics_take_effect_once_despite_packet_faults() {
    for faults in [Faults::default(), Faults { lost: 10, repeated: 10, late: 10 }] {
        let mut world = World::new(Rights::ReadWrite);
        world.faults = faults;
        let mut model = 0u64;
        for round in 0..400 {
            assert_eq!(world.fetch_add(64, round), model, "round {round}");
            model += round;
            let expected = if round % 2 == 0 { model } else { !model };
            assert_eq!(world.compare_swap(64, expected, 3 * round), model, "round {round}");
            model = if expected == model { 3 * round } else { model };
        }
        assert_eq!(world.memory.word(64), model);
    }
}

#[test]
fn replayed_atomic_has_no_effect() {
    let mut world = World::new(Rights::ReadWrite);
    assert_eq!(world.fetch_add(8, 1), 0);
    let copies = world.sent.clone();
    assert_eq!(world.fetch_add(8, 1), 1);
    for after_ns in [0, EFFECT_LIFE_NS / 2, EFFECT_LIFE_NS, 3 * EFFECT_LIFE_NS] {
        world.now_ns += after_ns;
        copies.iter().for_each(|copy| world.deliver(copy));
        assert_eq!(world.memory.word(8), 2, "after {after_ns} ns");
    }
}

#[test]
fn an_expired_request_is_sent_again() {
    let mut world = World::new(Rights::ReadWrite);
    assert_eq!(world.fetch_add(8, 1), 0);
    let begin_ns = world.now_ns;
    world.requests_lost_until_ns = begin_ns + EFFECT_LIFE_NS;
    assert_eq!(world.fetch_add(8, 1), 1);
    assert_eq!((world.memory.word(8), world.responder.counters().expired), (2, 1));
}

#[test]
fn an_answer_lost_beyond_the_record_leaves_the_outcome_unknown() {
    let mut world = World::new(Rights::ReadWrite);
    assert_eq!(world.fetch_add(8, 1), 0);
    world.answers_lost_until_ns = world.now_ns + EFFECT_LIFE_NS;
    assert_eq!(world.fetch_add(8, 1), 1, "the record has the answer");
    world.answers_lost_until_ns = world.now_ns + 6 * EFFECT_LIFE_NS;
    assert_eq!(world.execute(Work::FetchAdd { address: 8, add: 1 }), Outcome::MaybeDone);
    assert_eq!(world.memory.word(8), 3, "it was executed once");
}

/// A request that was sent once, and whose only answer is about a copy that the network delayed, may be done.
#[test]
fn an_expired_late_copy_leaves_the_outcome_unknown() {
    let mut world = World::new(Rights::ReadWrite);
    assert_eq!(world.fetch_add(8, 1), 0);
    world.requester.post(1, Work::FetchAdd { address: 8, add: 1 }).unwrap();
    // The answer is lost, and the requester's process sleeps.
    world.answers_lost_until_ns = world.now_ns + 2 * DELAY_NS;
    assert!(world.step());
    let copy = world.sent.last().unwrap().clone();
    assert_eq!(world.memory.word(8), 2);
    world.now_ns += 4 * EFFECT_LIFE_NS;
    world.deliver(&copy);
    let (_, answer) = world.to_requester.remove(0);
    world.requester.handle_packet(world.now_ns, &mut world.clock, &answer, &world.theirs);
    assert_eq!(world.requester.poll_done().map(|done| done.outcome), Some(Outcome::MaybeDone));
    assert_eq!(world.memory.word(8), 2);
}

#[test]
fn an_atomic_needs_both_rights_and_an_aligned_word() {
    for rights in [Rights::Read, Rights::Write] {
        let mut world = World::new(rights);
        assert_eq!(world.execute(Work::FetchAdd { address: 8, add: 1 }), Outcome::Refused);
    }
    let mut world = World::new(Rights::ReadWrite);
    for address in [4, MEMORY_BYTES as u64, u64::MAX - 7] {
        assert_eq!(world.execute(Work::FetchAdd { address, add: 1 }), Outcome::Refused, "{address}");
        let swap = Work::CompareSwap { address, expected: 0, new: 1 };
        assert_eq!(world.execute(swap), Outcome::Refused, "{address}");
    }
}

/// Returns the outcome of a call that the process of [`World`] has answered.
fn answer_to(bytes: &[u8]) -> Outcome {
    Outcome::Success(answer_bytes(bytes, 0))
}

/// Returns the answer to a call, of at least `bytes_min` bytes.
fn answer_bytes(call: &[u8], bytes_min: usize) -> Vec<u8> {
    let further = (call.len()..bytes_min).map(|index| (index % 253) as u8);
    call.iter().map(|byte| !byte).chain(further).collect()
}

#[test]
fn messages_and_calls_arrive_once_despite_packet_faults() {
    for faults in [Faults::default(), Faults { lost: 10, repeated: 10, late: 10 }] {
        let mut world = World::new(Rights::Read);
        world.faults = faults;
        let mut sent = Vec::new();
        for round in 0..300u64 {
            let bytes = vec![round as u8; world.below(PAYLOAD_BYTES_FIRST as u64 + 1) as usize];
            // Some answers take longer than T.
            world.answer_after_ns = Some(if round % 10 == 0 { 2 * EFFECT_LIFE_NS } else { round * 1_000 });
            match round % 3 {
                0 => assert_eq!(world.send(&bytes), Outcome::Success(Vec::new()), "round {round}"),
                _ => assert_eq!(world.call(&bytes), answer_to(&bytes), "round {round}"),
            }
            sent.push(bytes);
        }
        assert!(world.received == sent);
    }
}

#[test]
fn a_lost_answer_to_a_long_call_is_fetched() {
    let mut world = World::new(Rights::Read);
    assert_eq!(world.call(b"salt"), answer_to(b"salt"));
    let (sent, end_ns) = (world.sent.len(), world.now_ns + 1_000_000_000);
    world.answer_after_ns = Some(1_000_000_000);
    world.requester.post(1, Work::Call { bytes: b"bread".to_vec() }).unwrap();
    while world.now_ns < end_ns - EFFECT_LIFE_NS {
        assert!(world.step() && world.requester.poll_done().is_none());
    }
    assert!(world.sent.len() - sent < 60, "{} packets in a second", world.sent.len() - sent);
    world.answers_lost_until_ns = end_ns + EFFECT_LIFE_NS / 2;
    while world.step() {}
    assert_eq!(world.requester.poll_done().map(|done| done.outcome), Some(answer_to(b"bread")));
    assert_eq!(world.received, [&b"salt"[..], b"bread"]);
}

#[test]
fn replayed_message_and_call_do_not_arrive_again() {
    let mut world = World::new(Rights::Read);
    assert_eq!(world.send(b"salt"), Outcome::Success(Vec::new()));
    assert_eq!(world.call(b"bread"), answer_to(b"bread"));
    let copies = world.sent.clone();
    for after_ns in [0, EFFECT_LIFE_NS / 2, EFFECT_LIFE_NS, 4 * EFFECT_LIFE_NS] {
        world.now_ns += after_ns;
        copies.iter().for_each(|copy| world.deliver(copy));
        world.serve();
        assert_eq!(world.received, [&b"salt"[..], b"bread"], "after {after_ns} ns");
    }
}

#[test]
fn a_full_pool_refuses_messages() {
    let mut world = World::new(Rights::ReadWrite);
    world.answer_after_ns = None;
    let mut count = 0;
    let refused = loop {
        match world.send(b"salt") {
            Outcome::Success(_) if count < 10_000 => count += 1,
            other => break other,
        }
    };
    assert_eq!((refused, count), (Outcome::Busy, 4_096));
    assert_eq!(world.call(b"bread"), Outcome::Busy);
    assert_eq!(world.write(0, b"salt"), Outcome::Success(Vec::new()), "memory needs no room in the pool");
    world.answer_after_ns = Some(0);
    while world.step() {}
    world.serve();
    assert_eq!(world.received.len(), 4_096);
    assert_eq!(world.call(b"bread"), answer_to(b"bread"));
    assert_eq!(world.received.len(), 4_097, "a refused message arrived");
}

#[test]
fn a_call_without_an_answer_is_forgotten_after_ten_seconds() {
    let mut world = World::new(Rights::Read);
    world.answer_after_ns = None;
    let mut buffer = [0; OVERHEAD_BYTES + PAYLOAD_BYTES_MAX];
    assert_eq!(world.responder.answer(world.now_ns, 0, b"salt", &mut buffer), Err(AnswerError::Unknown));
    world.requester.post(1, Work::Call { bytes: b"salt".to_vec() }).unwrap();
    let begin_ns = world.now_ns;
    while world.now_ns < begin_ns + 9_000_000_000 {
        assert!(world.step());
    }
    let id = world.responder.poll_message().expect("the call has arrived").id;
    let long = vec![0; CALL_BYTES_MAX + 1];
    assert_eq!(world.responder.answer(world.now_ns, id, &long, &mut buffer), Err(AnswerError::TooLong));
    while world.step() {}
    assert_eq!(world.requester.poll_done().map(|done| done.outcome), Some(Outcome::MaybeDone));
    assert_eq!(world.responder.answer(world.now_ns, id, b"salt", &mut buffer), Err(AnswerError::Unknown));
}

#[test]
fn messages_beyond_their_maximum_are_refused() {
    let mut world = World::new(Rights::Read);
    let bytes = vec![0; CALL_BYTES_MAX + 1];
    let note = |len| Work::WriteNote { address: 0, note_and_bytes: vec![0; len] };
    let send = Work::Send { bytes: vec![0; SEND_BYTES_MAX + 1] };
    let longest = NOTE_BYTES + NOTED_BYTES_MAX;
    for work in [send, Work::Call { bytes }, note(longest + 1), note(NOTE_BYTES - 1)] {
        assert_eq!(world.requester.post(1, work), Err(PostError::MessageTooLong));
    }
}

/// The parts of a message arrive in any order, but each arrives once, and before the next message.
#[test]
fn a_long_message_arrives_in_parts_each_once() {
    let mut world = World::new(Rights::Read);
    world.faults = Faults { lost: 10, repeated: 10, late: 10 };
    world.answer_after_ns = None;
    for round in 0..20u8 {
        let len = world.below(SEND_BYTES_MAX as u64) as usize;
        let bytes: Vec<u8> = (0..len).map(|index| (index / 7) as u8 ^ round).collect();
        assert_eq!(world.send(&bytes), Outcome::Success(Vec::new()));
        let mut parts: Vec<_> = std::iter::from_fn(|| world.responder.poll_message()).collect();
        parts.sort_by_key(|part| part.offset);
        assert!(parts.iter().all(|part| part.len as usize == len), "round {round}");
        let joined: Vec<u8> = parts.into_iter().flat_map(|part| part.bytes).collect();
        assert!(joined == bytes, "round {round}");
    }
}

/// A note is reported once, after the bytes of its write, and not at all if the memory refuses these.
#[test]
fn a_note_arrives_once_with_its_bytes() {
    let mut world = World::new(Rights::ReadWrite);
    world.faults = Faults { lost: 20, repeated: 20, late: 20 };
    for round in 0..100u64 {
        let note = round.to_be_bytes();
        let work = Work::WriteNote { address: round, note_and_bytes: [&note[..], b"salt"].concat() };
        assert_eq!(world.execute(work), Outcome::Success(Vec::new()));
        assert_eq!(std::mem::take(&mut world.received), [note.to_vec()], "round {round}");
        assert_eq!(&world.memory.0.borrow()[round as usize..][..4], b"salt");
    }
    let address = MEMORY_BYTES as u64 - 3;
    let work = Work::WriteNote { address, note_and_bytes: b"eight888salt".to_vec() };
    assert_eq!(world.execute(work), Outcome::Refused);
    assert!(world.received.is_empty());
}

/// One grant permits all keys, each named in the packet; the responder's memory then decides.
#[test]
fn a_grant_of_all_keys_permits_each_known_key() {
    let mut world = World::new(Rights::AnyKey);
    let mut post = |rkey, work: Work| {
        world.requester.post_to(1, rkey, work, false).unwrap();
        loop {
            assert!(world.step());
            if let Some(done) = world.requester.poll_done() {
                return done.outcome;
            }
        }
    };
    let write = || Work::Write { address: 8, bytes: b"salt".to_vec() };
    assert_eq!(post(KEY, write()), Outcome::Success(Vec::new()));
    assert_eq!(post(KEY, Work::Read { address: 8, len: 4 }), Outcome::Success(b"salt".to_vec()));
    assert_eq!(post(KEY, Work::FetchAdd { address: 0, add: 1 }), Outcome::Success(vec![0; 8]));
    assert_eq!(post(KEY + 1, write()), Outcome::Refused);
    // Under a grant of one key, the tag of a packet that names another is wrong: the responder never answers it.
    let mut world = World::new(Rights::ReadWrite);
    world.requester.post_to(1, KEY + 1, write(), false).unwrap();
    while world.step() {}
    assert_eq!(world.requester.poll_done().map(|done| done.outcome), Some(Outcome::MaybeDone));
    assert!(world.responder.counters().forged > 0);
}

/// A patient requester bears an interruption of less than 2 T, and a responder without an answer for its patience.
#[test]
fn a_patient_requester_waits_for_the_responder() {
    let life_ns = 10 * EFFECT_LIFE_NS;
    let mut world = World::new(Rights::ReadWrite);
    world.responder = Responder::with_effect_life(1, [9; 32], life_ns);
    let grant = world.responder.grant(address(), Qpn::new(5), KEY, Rights::ReadWrite);
    world.requester = Requester::new(grant, 1);
    world.requester.set_patience(50 * life_ns);
    assert_eq!(world.fetch_add(8, 1), 0);
    for lost_ns in [life_ns / 2, life_ns + life_ns / 2] {
        world.requests_lost_until_ns = world.now_ns + lost_ns;
        let before = world.fetch_add(8, 1);
        world.answers_lost_until_ns = world.now_ns + lost_ns;
        assert_eq!(world.fetch_add(8, 1), before + 1);
    }
    assert_eq!(world.fetch_add(8, 0), 5);
    // Reads have no effect, so they may be repeated for as long as the requester's patience.
    world.requests_lost_until_ns = world.now_ns + 40 * life_ns;
    assert_eq!(world.read(0, 8), [0; 8]);
    let begin_ns = world.now_ns;
    world.requests_lost_until_ns = begin_ns + 100 * life_ns;
    assert_eq!(world.execute(Work::Read { address: 0, len: 8 }), Outcome::MaybeDone);
    assert!((50..52).contains(&((world.now_ns - begin_ns) / life_ns)), "it gives up then");
}
