//! Operations without faults: effects, packets and acknowledgements.

use halite_rnic::wire::{Opcode, Packet};
use halite_rnic::{Config, Local, Mtu, Operation, PostError, Request, Status};

use crate::pair::*;

#[test]
fn lengths_around_each_mtu_arrive_whole() {
    for mtu in Mtu::ALL {
        let packet = mtu.bytes() as usize;
        let config = Config { mtu, ..Config::default() };
        let mut pair = Pair::with(config, [0xff_fffd, 0]);
        let lens = [0, 1, 7, packet - 1, packet, packet + 1, 2 * packet, 5 * packet + 3];
        for (round, len) in lens.into_iter().enumerate() {
            for off in [0, 3] {
                let bytes = pattern(len, round as u8);
                let (to, back) = (1024 + off, 60_000 + off);
                pair.a().write(to, &bytes);
                pair.a().send(&bytes, Some(len as u32));
                pair.run();
                pair.a().read(back, to, len as u32);
                pair.run();
                assert_eq!(pair.b().memory.get(to, len), bytes);
                assert_eq!(pair.a().memory.get(back, len), bytes);
                assert_eq!(pair.b().received().last(), Some(&(bytes, Some(len as u32))));
            }
        }
        assert!(pair.a().completions().iter().all(|(_, status)| *status == Status::Success));
        assert_eq!(pair.a().qp.counters().repeated, 0);
    }
}

#[test]
fn calls_need_two_packets_and_few_acknowledgements() {
    let mut pair = Pair::new();
    // The first packets request acknowledgements, which carry the grants.
    for side in [A, B] {
        pair.end(side).write(0, b"first");
    }
    pair.run();
    pair.log.clear();
    for call in 0..64 {
        pair.a().post_as(write(64, b"request", Some(call)), false);
        let now = pair.now_ns;
        pair.run_until(now + ONE_WAY_NS);
        pair.b().post_as(write(64, b"reply", Some(call)), false);
        let now = pair.now_ns;
        pair.run_until(now + ONE_WAY_NS);
    }
    let acks = pair.log.iter().filter(|line| line.contains("Acknowledge")).count();
    assert_eq!(pair.log.len() - acks, 128);
    assert_eq!(acks, 2 * 64 / 16, "one for each quarter of a window of 64");
    assert_eq!(pair.a().received().len() + pair.b().received().len(), 128);
}

#[test]
fn the_first_window_is_one_packet() {
    let mut pair = Pair::minimal(Config { mtu: Mtu::Bytes256, ..Config::default() }, [0, 0]);
    pair.a().write(0, &pattern(2560, 0));
    pair.run_until(ONE_WAY_NS - 1);
    assert_eq!(pair.log, ["a WriteFirst 0"]);
    pair.run_until(3 * ONE_WAY_NS - 1);
    assert_eq!(pair.log.len(), 3, "one packet per round trip: {:?}", pair.log);
    let now = pair.now_ns;
    pair.b().qp.set_grant(now, 4);
    pair.run_until(5 * ONE_WAY_NS);
    let in_flight = pair.log.iter().filter(|line| line.starts_with("a ")).count();
    assert_eq!((pair.a().qp.window_packets(), in_flight), (4, 6));
    pair.run();
    assert_eq!(pair.b().memory.get(0, 2560), pattern(2560, 0));
    assert_eq!(pair.a().qp.counters().timeouts, 0);
}

#[test]
fn read_responses_in_flight_fit_the_readers_room() {
    let config = Config { mtu: Mtu::Bytes256, room_packets: 8, ..Config::default() };
    let mut pair = Pair::with(config, [0, 0]);
    pair.b().memory.put(0, &pattern(20_000, 2));
    pair.a().read(0, 0, 20_000);
    pair.a().read(30_000, 0, 20_000);
    let (sender, receiver) = std::sync::mpsc::channel();
    pair.set_filter(move |sent| {
        let _ = sender.send((sent.opcode, sent.psn));
        Fate::Delivered
    });
    pair.run();
    assert_eq!(pair.a().memory.get(30_000, 20_000), pattern(20_000, 2));
    // Each request returns four packets, so at most two may be in flight.
    let mut in_flight = 0;
    for (opcode, _) in receiver.try_iter() {
        match opcode {
            Opcode::ReadRequest => in_flight += 1,
            Opcode::ReadResponseLast => in_flight -= 1,
            _ => {}
        }
        assert!(in_flight <= 2);
    }
}

#[test]
fn full_queue_and_malformed_requests_are_refused() {
    let config = Config { send_queue_max: 2, send_bytes_max: 10, ..Config::default() };
    let mut pair = Pair::with(config, [0, 0]);
    let mut post =
        |operation| pair.a().qp.post(Request { id: 0, operation, signalled: true, solicited: false });
    assert_eq!(post(Operation::Send { bytes: vec![0; 11], imm: None }), Err(PostError::Malformed));
    assert_eq!(post(write(0, b"1", None)), Ok(()));
    assert_eq!(post(write(0, b"2", None)), Ok(()));
    assert_eq!(post(write(0, b"3", None)), Err(PostError::QueueFull));
    pair.run();
    pair.a().write(0, b"4");
    pair.run();
    assert_eq!(pair.b().memory.get(0, 1), b"4");
}

/// Regression: each heartbeat woke an idle node twice, once for the delayed acknowledgement. It also rebalanced the
/// receive buffer twice and sent new grants to all peers.
#[test]
fn heartbeat_is_acknowledged_and_claims_no_share() {
    let mut pair = Pair::new();
    let imm = Some(0);
    let operation = Operation::Send { bytes: b"heartbeat".to_vec(), imm };
    pair.a().qp.post(Request { id: 7, operation, signalled: false, solicited: false }).expect("posted");
    pair.run_until(ONE_WAY_NS);
    assert_eq!(pair.log, ["a SendOnlyImm 0", "b Acknowledge 0"], "acknowledged on arrival");
    assert!(!pair.b().qp.take_has_begun());
    assert_eq!(pair.b().qp.share().used_ns, None);
    assert_eq!(pair.b().received(), [(b"heartbeat".to_vec(), imm)]);
    // A solicited message is not a heartbeat.
    let operation = Operation::Send { bytes: b"request".to_vec(), imm };
    pair.a().qp.post(Request { id: 8, operation, signalled: false, solicited: true }).expect("posted");
    // The first window is one packet, so this one leaves after the first acknowledgement.
    pair.run_until(3 * ONE_WAY_NS);
    assert_eq!(pair.log.len(), 3, "the acknowledgement of the message is delayed");
    assert!(pair.b().qp.take_has_begun());
}

/// An owner that holds acknowledgements back makes posted writes visible to its threads earlier.
#[test]
fn unawaited_acknowledgements_are_held_back() {
    for (solicited, is_held_back) in [(false, true), (true, false)] {
        let mut pair = Pair::new();
        pair.b().qp.hold_acks(true);
        let request = Request { id: 7, operation: write(0, b"word", None), signalled: true, solicited };
        pair.a().qp.post(request).expect("posted");
        pair.run_until(ONE_WAY_NS);
        assert_eq!(pair.b().memory.get(0, 4), b"word");
        assert_eq!(pair.b().qp.holds_ack(ONE_WAY_NS), is_held_back);
        assert_eq!(pair.log.len(), if is_held_back { 1 } else { 2 });
        pair.b().qp.hold_acks(false);
        pair.run();
        assert_eq!(pair.a().completions(), [(7, Status::Success)]);
        assert_eq!(pair.log, ["a WriteOnly 0", "b Acknowledge 0"], "acknowledged once");
        // The delayed acknowledgement of a message is not held back.
        pair.b().qp.hold_acks(true);
        let operation = Operation::Send { bytes: b"message".to_vec(), imm: None };
        pair.a().qp.post(Request { id: 8, operation, signalled: false, solicited: true }).expect("posted");
        pair.run();
        assert_eq!((pair.log.len(), pair.a().qp.counters().timeouts), (4, 0), "{:?}", pair.log);
    }
}

/// An adapter polls one packet at a time. Two peers that write without a pause must still get their acknowledgements.
#[test]
fn requests_do_not_hold_an_acknowledgement_back() {
    let mut pair =
        Pair::with(Config { mtu: Mtu::Bytes256, first_packets_max: 64, ..Config::default() }, [0, 0]);
    let poll_packet = |end: &mut End, now_ns| {
        let mut buffer = vec![0; end.qp.packet_bytes_max()];
        let len = end.qp.poll_transmit(now_ns, &end.memory, &mut buffer).expect("a packet is pending");
        buffer.truncate(len - 4);
        buffer
    };
    pair.a().write(0, b"acknowledge me");
    let write = poll_packet(pair.a(), 0);
    let b = pair.b();
    b.write(0, &pattern(64 * 256, 1));
    b.qp.handle_packet(0, &Packet::parse(&write).expect("sent packets are well-formed"), &b.memory);
    let mut is_acknowledgement = |time: u64| {
        let packet = poll_packet(pair.b(), time * 20_000);
        Packet::parse(&packet).expect("sent packets are well-formed").headers.opcode() == Opcode::Acknowledge
    };
    assert_eq!((0..50).filter(|time| is_acknowledgement(*time)).collect::<Vec<_>>(), [25], "after 500 us");
}

/// Regression: a read claimed no share, because its request has no payload. So a peer that only read got one packet per
/// round trip.
#[test]
fn reads_and_atomics_claim_a_share() {
    for operation in [
        Operation::Read { local: Local { key: KEY, address: 5000 }, remote: at(512), len: 3000 },
        Operation::FetchAdd { remote: at(0), add: 1 },
        Operation::CompareSwap { remote: at(0), expected: 0, new: 1 },
    ] {
        let mut pair = Pair::new();
        pair.a().post(operation);
        pair.run_until(ONE_WAY_NS);
        assert!(pair.b().qp.take_has_begun());
        assert_eq!(pair.b().qp.share().used_ns, Some(ONE_WAY_NS));
    }
}
