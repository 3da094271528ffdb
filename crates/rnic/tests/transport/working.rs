//! Operations without faults: their effects, their packets, and their acknowledgements.

use halite_rnic::wire::{Headers, Opcode, Packet, RethRepr};
use halite_rnic::{Config, Local, Mtu, Operation, PostError, Request, Source, Status};

use crate::pair::*;

#[test]
fn write_lands_and_is_acknowledged() {
    let mut pair = Pair::new();
    let id = pair.a().write(100, b"salt");
    pair.run();
    assert_eq!(pair.b().memory.get(100, 4), b"salt");
    assert_eq!(pair.a().completions(), [(id, Status::Success)]);
    assert_eq!(pair.log, ["a WriteOnly 0", "b Acknowledge 0"]);
}

#[test]
fn every_operation_has_its_effect() {
    let mut pair = Pair::new();
    pair.b().memory.put(0, &41u64.to_le_bytes());
    pair.b().memory.put(512, &pattern(3000, 1));
    pair.a().memory.put(9000, b"from memory");
    let a = pair.a();
    a.fetch_add(0, 1);
    a.post(Operation::CompareSwap { remote: at(0), expected: 42, new: 7 });
    a.post(Operation::CompareSwap { remote: at(0), expected: 42, new: 8 });
    a.read(5000, 512, 3000);
    a.send(b"hello", None);
    a.send(b"", Some(5));
    a.post(write(64, b"sent", Some(6)));
    let local = Local { key: KEY, address: 9000 };
    a.post(Operation::Write { source: Source::Registered { local, len: 11 }, remote: at(128), imm: None });
    pair.run();
    assert_eq!(pair.a().fetched(), [41, 42, 7]);
    assert_eq!(pair.b().memory.word(0), 7);
    assert_eq!(pair.a().memory.get(5000, 3000), pattern(3000, 1));
    let arrived = [(b"hello".to_vec(), None), (vec![], Some(5)), (vec![], Some(6))];
    assert_eq!(pair.b().received(), arrived);
    assert_eq!(pair.b().memory.get(64, 4), b"sent");
    assert_eq!(pair.b().memory.get(128, 11), b"from memory");
    let in_order: Vec<_> = (0..8).map(|id| (id, Status::Success)).collect();
    assert_eq!(pair.a().completions(), in_order);
    assert_eq!(pair.a().qp.posted(), 0);
}

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
fn sequence_numbers_wrap_with_operations_in_flight() {
    let mut pair = Pair::with(Config { mtu: Mtu::Bytes256, ..Config::default() }, [0xff_fffe, 0xff_ffff]);
    let bytes = pattern(2000, 9);
    for side in [A, B] {
        pair.end(side).write(0, &bytes);
        pair.end(side).read(4096, 0, 2000);
        pair.end(side).fetch_add(8192, 3);
        pair.end(side).send(&bytes, None);
    }
    pair.run();
    for side in [A, B] {
        assert_eq!(pair.end(side).memory.word(8192), 3);
        assert_eq!(pair.end(side).received().len(), 1);
        assert_eq!(pair.end(side).memory.get(4096, 2000), bytes);
        assert_eq!(pair.end(side).completions().len(), 4);
    }
}

#[test]
fn foreign_peer_may_send_an_empty_write_or_read_with_any_key() {
    let mut pair = Pair::with(Config { grants: false, ..Config::default() }, [0, 0]);
    let remote = halite_rnic::Remote { rkey: 999, address: u64::MAX };
    pair.a().post(Operation::Write { source: Source::Inline(vec![]), remote, imm: Some(1) });
    pair.a().post(Operation::Read { local: Local { key: 999, address: 5 }, remote, len: 0 });
    pair.run();
    assert_eq!(pair.b().received(), [(vec![], Some(1))]);
    assert_eq!(pair.log.len(), 3, "{:?}", pair.log);
    assert_eq!(pair.a().completions(), [(0, Status::Success), (1, Status::Success)]);
}

#[test]
fn write_may_be_split_into_one_packet_messages() {
    let mut pair = Pair::with(Config { write_packets_max: 1, ..Config::default() }, [0, 0]);
    pair.a().post(write(0, &pattern(3000, 1), Some(9)));
    pair.run();
    let from_a: Vec<_> = pair.log.iter().filter(|line| line.starts_with("a ")).collect();
    assert_eq!(from_a, ["a WriteOnly 0", "a WriteOnly 1", "a WriteOnlyImm 2"]);
    assert_eq!(pair.b().memory.get(0, 3000), pattern(3000, 1));
    assert_eq!(pair.b().received(), [(vec![], Some(9))], "one immediate, in the last message");
    assert_eq!(pair.a().completions(), [(0, Status::Success)]);
}

#[test]
fn read_may_be_split_into_one_packet_requests() {
    let mut pair = Pair::with(Config { read_packets_max: 1, ..Config::default() }, [0, 0]);
    pair.b().memory.put(0, &pattern(3000, 1));
    pair.a().read(5000, 0, 3000);
    pair.run();
    let responses: Vec<_> = pair.log.iter().filter(|line| line.starts_with("b ")).collect();
    assert_eq!(responses, ["b ReadResponseOnly 0", "b ReadResponseOnly 1", "b ReadResponseOnly 2"]);
    assert_eq!(pair.a().memory.get(5000, 3000), pattern(3000, 1));
    assert_eq!(pair.a().completions(), [(0, Status::Success)]);
}

#[test]
fn halite_peer_needs_a_valid_key_for_an_empty_write_or_read() {
    let remote = halite_rnic::Remote { rkey: 999, address: 0 };
    let local = Local { key: 999, address: 0 };
    for operation in [
        Operation::Write { source: Source::Inline(vec![]), remote, imm: Some(1) },
        Operation::Read { local, remote, len: 0 },
    ] {
        let mut pair = Pair::new();
        pair.a().post(operation);
        pair.run();
        assert_eq!(pair.a().completions(), [(0, Status::RemoteAccess)]);
        assert_eq!(pair.b().received(), []);
    }
}

#[test]
fn unaligned_write_splits_no_word() {
    let mut pair = Pair::with(Config { mtu: Mtu::Bytes256, ..Config::default() }, [0, 0]);
    pair.a().post(write(5, &pattern(600, 0), Some(3)));
    pair.run();
    let from_a: Vec<_> = pair.log.iter().filter(|line| line.starts_with("a ")).collect();
    assert_eq!(from_a, ["a WriteOnly 0", "a WriteFirst 1", "a WriteLastImm 2"]);
    assert_eq!(pair.b().memory.get(5, 600), pattern(600, 0));
    assert_eq!(pair.b().received().len(), 1, "one immediate");
}

#[test]
fn calls_take_two_packets_and_few_acknowledgements() {
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
fn unrequested_acknowledgement_follows_after_half_a_millisecond() {
    let mut pair = Pair::new();
    pair.a().write(0, b"first");
    pair.run();
    pair.log.clear();
    let begin = pair.now_ns;
    pair.a().post_as(write(64, b"unsignalled", None), false);
    pair.run_until(begin + 400_000);
    assert_eq!(pair.log, ["a WriteOnly 1"]);
    pair.run();
    assert_eq!(pair.log, ["a WriteOnly 1", "b Acknowledge 1"]);
    assert_eq!(pair.now_ns, begin + ONE_WAY_NS + 500_000 + ONE_WAY_NS);
    assert_eq!(pair.a().qp.counters().timeouts, 0);
}

#[test]
fn the_first_window_is_one_packet_and_the_peer_grants_more() {
    let mut pair = Pair::minimal(Config { mtu: Mtu::Bytes256, ..Config::default() }, [0, 0]);
    pair.a().write(0, &pattern(2560, 0));
    pair.run_until(ONE_WAY_NS - 1);
    assert_eq!(pair.log, ["a WriteFirst 0"]);
    pair.run_until(3 * ONE_WAY_NS - 1);
    assert_eq!(pair.log.len(), 3, "one by one: {:?}", pair.log);
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
fn first_window_is_configurable() {
    let config = Config { mtu: Mtu::Bytes256, first_packets_max: 3, ..Config::default() };
    let mut pair = Pair::minimal(config, [0, 0]);
    pair.a().write(0, &pattern(2560, 0));
    pair.run_until(ONE_WAY_NS - 1);
    assert_eq!(pair.log, ["a WriteFirst 0", "a WriteMiddle 1", "a WriteMiddle 2"]);
    pair.run();
    assert_eq!(pair.b().memory.get(0, 2560), pattern(2560, 0));
}

#[test]
fn changed_grant_is_sent_at_once_and_once() {
    let mut pair = Pair::new();
    pair.a().write(0, b"first");
    pair.run();
    let now = pair.now_ns;
    pair.b().qp.set_grant(now, 200);
    pair.run();
    assert_eq!(pair.a().qp.window_packets(), 192, "grants round down to a credit step");
    // An idle requester would otherwise keep a grant that others use by now.
    pair.b().qp.set_grant(now, 2);
    pair.run();
    assert_eq!(pair.a().qp.window_packets(), 2);
    let sent = pair.log.len();
    pair.b().qp.set_grant(now, 2);
    pair.run();
    assert_eq!(pair.log.len(), sent, "an unchanged grant is not sent");
}

#[test]
fn foreign_peers_exchange_no_grants() {
    let config = Config { grants: false, window_packets_max: 7, mtu: Mtu::Bytes256, ..Config::default() };
    let mut pair = Pair::minimal(config, [0, 0]);
    pair.b().qp.set_grant(0, 3);
    pair.a().write(0, &pattern(256 * 20, 0));
    pair.run_until(1);
    assert_eq!(pair.log.len(), 7);
    pair.run();
    assert!(!pair.granted.is_empty() && pair.granted.iter().all(Option::is_none));
    assert_eq!(pair.b().memory.get(0, 256 * 20), pattern(256 * 20, 0));
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

#[test]
fn responses_and_requests_of_one_side_alternate() {
    let mut pair = Pair::with(Config { mtu: Mtu::Bytes256, ..Config::default() }, [0, 0]);
    pair.b().write(0, b"first");
    pair.run();
    pair.log.clear();
    let reth = RethRepr { address: 0, rkey: KEY, len: 256 * 10 };
    let (dest_qp, psn) = (pair.b().qp.qpn(), pair.psn(A, 0));
    let headers = Headers::ReadRequest(reth);
    pair.forge(B, &Packet { dest_qp, psn, ack_request: false, solicited: false, headers, payload: b"" });
    pair.b().write(8192, &pattern(256 * 10, 0));
    pair.run();
    let from_b: Vec<_> = pair.log.iter().filter(|line| line.starts_with("b ")).collect();
    assert!(from_b[..6].iter().any(|line| line.contains("Read")), "{from_b:?}");
    assert!(from_b[..12].iter().filter(|line| line.contains("Write")).count() >= 5, "{from_b:?}");
}

/// Regression: each heartbeat woke an idle node twice, once for the delayed acknowledgement, and rebalanced the receive buffer
/// twice, with new grants to all peers.
#[test]
fn heartbeat_is_acknowledged_at_once_and_claims_no_share() {
    let mut pair = Pair::new();
    let imm = Some(0);
    let operation = Operation::Send { bytes: b"I live".to_vec(), imm };
    pair.a().qp.post(Request { id: 7, operation, signalled: false, solicited: false }).expect("posted");
    pair.run_until(ONE_WAY_NS);
    assert_eq!(pair.log, ["a SendOnlyImm 0", "b Acknowledge 0"], "acknowledged on arrival");
    assert!(!pair.b().qp.take_has_begun());
    assert_eq!(pair.b().qp.share().used_ns, None);
    assert_eq!(pair.b().received(), [(b"I live".to_vec(), imm)]);
    // A solicited message is no heartbeat.
    let operation = Operation::Send { bytes: b"I ask".to_vec(), imm };
    pair.a().qp.post(Request { id: 8, operation, signalled: false, solicited: true }).expect("posted");
    // The first window is one packet: this one is sent when the first is acknowledged.
    pair.run_until(3 * ONE_WAY_NS);
    assert_eq!(pair.log.len(), 3, "its acknowledgement is delayed");
    assert!(pair.b().qp.take_has_begun());
}

/// Regression: the wait was counted from an earlier acknowledgement request, so the network seemed to take no time.
#[test]
fn acknowledgement_of_a_heartbeat_reports_the_heartbeats_own_wait() {
    let mut pair = Pair::with(Config { selective: true, tells_waits: true, ..Config::default() }, [0, 0]);
    pair.a().write(100, b"salt");
    pair.run_until(1000 * ONE_WAY_NS);
    let operation = Operation::Send { bytes: b"I live".to_vec(), imm: Some(0) };
    pair.a().qp.post(Request { id: 7, operation, signalled: false, solicited: false }).expect("posted");
    pair.run_until(1001 * ONE_WAY_NS);
    assert_eq!(pair.log, ["a WriteOnly 0", "b Acknowledge 0", "a SendOnlyImm 1", "b Acknowledge 1"]);
    assert_eq!(pair.waits_ns, [0, 0]);
}

/// Regression: a read claimed no share, since its request has no payload, so a pure reader got one packet per round trip.
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
