//! When nothing goes wrong: what each operation does, how it is cut, and when it is acknowledged.

use halite_rnic::wire::{Headers, Opcode, Packet, RethRepr};
use halite_rnic::{Config, Local, Mtu, Operation, PostError, Request, Source, Status};

use crate::pair::*;

#[test]
fn a_write_lands_and_is_acknowledged() {
    let mut pair = Pair::new();
    let id = pair.a().write(100, b"salt");
    pair.run();
    assert_eq!(pair.b().memory.get(100, 4), b"salt");
    assert_eq!(pair.a().ended(), [(id, Status::Success)]);
    assert_eq!(pair.told, ["a WriteOnly 0", "b Acknowledge 0"]);
}

#[test]
fn every_operation_does_what_it_is_called() {
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
    a.post(write(64, b"told", Some(6)));
    let local = Local { key: KEY, address: 9000 };
    a.post(Operation::Write { source: Source::Registered { local, len: 11 }, remote: at(128), imm: None });
    pair.run();
    assert_eq!(pair.a().found(), [41, 42, 7]);
    assert_eq!(pair.b().memory.word(0), 7);
    assert_eq!(pair.a().memory.get(5000, 3000), pattern(3000, 1));
    let arrived = [(b"hello".to_vec(), None), (vec![], Some(5)), (vec![], Some(6))];
    assert_eq!(pair.b().received(), arrived);
    assert_eq!(pair.b().memory.get(64, 4), b"told");
    assert_eq!(pair.b().memory.get(128, 11), b"from memory");
    let in_order: Vec<_> = (0..8).map(|id| (id, Status::Success)).collect();
    assert_eq!(pair.a().ended(), in_order);
    assert_eq!(pair.a().qp.posted(), 0);
}

#[test]
fn every_length_around_a_packets_arrives_whole_with_every_mtu() {
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
        assert!(pair.a().ended().iter().all(|(_, status)| *status == Status::Success));
        assert_eq!(pair.a().qp.counters().repeated, 0);
    }
}

#[test]
fn numbers_wrap_around_under_all_that_is_under_way() {
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
        assert_eq!(pair.end(side).ended().len(), 4);
    }
}

#[test]
fn of_others_an_empty_write_or_read_asks_for_no_key() {
    let mut pair = Pair::with(Config { grants: false, ..Config::default() }, [0, 0]);
    let remote = halite_rnic::Remote { rkey: 999, address: u64::MAX };
    pair.a().post(Operation::Write { source: Source::Inline(vec![]), remote, imm: Some(1) });
    pair.a().post(Operation::Read { local: Local { key: 999, address: 5 }, remote, len: 0 });
    pair.run();
    assert_eq!(pair.b().received(), [(vec![], Some(1))]);
    assert_eq!(pair.told.len(), 3, "{:?}", pair.told);
    assert_eq!(pair.a().ended(), [(0, Status::Success), (1, Status::Success)]);
}

#[test]
fn a_write_may_be_cut_into_messages_that_take_one_packet_each_and_are_of_one_length() {
    let mut pair = Pair::with(Config { write_packets_max: 1, ..Config::default() }, [0, 0]);
    pair.a().post(write(0, &pattern(3000, 1), Some(9)));
    pair.run();
    let of_a: Vec<_> = pair.told.iter().filter(|line| line.starts_with("a ")).collect();
    assert_eq!(of_a, ["a WriteOnly 0", "a WriteOnly 1", "a WriteOnlyImm 2"]);
    assert_eq!(pair.b().memory.get(0, 3000), pattern(3000, 1));
    assert_eq!(pair.b().received(), [(vec![], Some(9))], "told once, behind the last");
    assert_eq!(pair.a().ended(), [(0, Status::Success)]);
}

#[test]
fn a_read_may_be_cut_into_requests_whose_answers_take_one_packet_each() {
    let mut pair = Pair::with(Config { read_packets_max: 1, ..Config::default() }, [0, 0]);
    pair.b().memory.put(0, &pattern(3000, 1));
    pair.a().read(5000, 0, 3000);
    pair.run();
    let answers: Vec<_> = pair.told.iter().filter(|line| line.starts_with("b ")).collect();
    assert_eq!(answers, ["b ReadResponseOnly 0", "b ReadResponseOnly 1", "b ReadResponseOnly 2"]);
    assert_eq!(pair.a().memory.get(5000, 3000), pattern(3000, 1));
    assert_eq!(pair.a().ended(), [(0, Status::Success)]);
}

#[test]
fn between_our_own_ends_an_empty_write_or_read_needs_a_key_that_exists() {
    let remote = halite_rnic::Remote { rkey: 999, address: 0 };
    let local = Local { key: 999, address: 0 };
    for operation in [
        Operation::Write { source: Source::Inline(vec![]), remote, imm: Some(1) },
        Operation::Read { local, remote, len: 0 },
    ] {
        let mut pair = Pair::new();
        pair.a().post(operation);
        pair.run();
        assert_eq!(pair.a().ended(), [(0, Status::RemoteAccess)]);
        assert_eq!(pair.b().received(), []);
    }
}

#[test]
fn a_write_off_a_words_boundary_is_cut_so_that_no_word_is_in_two_packets() {
    let mut pair = Pair::with(Config { mtu: Mtu::Bytes256, ..Config::default() }, [0, 0]);
    pair.a().post(write(5, &pattern(600, 0), Some(3)));
    pair.run();
    let of_a: Vec<_> = pair.told.iter().filter(|line| line.starts_with("a ")).collect();
    assert_eq!(of_a, ["a WriteOnly 0", "a WriteFirst 1", "a WriteLastImm 2"]);
    assert_eq!(pair.b().memory.get(5, 600), pattern(600, 0));
    assert_eq!(pair.b().received().len(), 1, "told once");
}

#[test]
fn calls_back_and_forth_take_two_packets_each_and_an_acknowledgement_now_and_then() {
    let mut pair = Pair::new();
    // The first packets ask for acknowledgements, and hear what is granted.
    for side in [A, B] {
        pair.end(side).write(0, b"first");
    }
    pair.run();
    pair.told.clear();
    for call in 0..64 {
        pair.a().post_as(write(64, b"request", Some(call)), false);
        let now = pair.now_ns;
        pair.run_until(now + TRIP_NS);
        pair.b().post_as(write(64, b"reply", Some(call)), false);
        let now = pair.now_ns;
        pair.run_until(now + TRIP_NS);
    }
    let acks = pair.told.iter().filter(|line| line.contains("Acknowledge")).count();
    assert_eq!(pair.told.len() - acks, 128);
    assert_eq!(acks, 2 * 64 / 16, "one for each quarter of a window of 64");
    assert_eq!(pair.a().received().len() + pair.b().received().len(), 128);
}

#[test]
fn what_nobody_asked_for_is_acknowledged_half_a_millisecond_later() {
    let mut pair = Pair::new();
    pair.a().write(0, b"first");
    pair.run();
    pair.told.clear();
    let begin = pair.now_ns;
    pair.a().post_as(write(64, b"unsignalled", None), false);
    pair.run_until(begin + 400_000);
    assert_eq!(pair.told, ["a WriteOnly 1"]);
    pair.run();
    assert_eq!(pair.told, ["a WriteOnly 1", "b Acknowledge 1"]);
    assert_eq!(pair.now_ns, begin + TRIP_NS + 500_000 + TRIP_NS);
    assert_eq!(pair.a().qp.counters().timeouts, 0);
}

#[test]
fn the_first_window_is_one_packet_and_the_peer_grants_more() {
    let mut pair = Pair::strict(Config { mtu: Mtu::Bytes256, ..Config::default() }, [0, 0]);
    pair.a().write(0, &pattern(2560, 0));
    pair.run_until(TRIP_NS - 1);
    assert_eq!(pair.told, ["a WriteFirst 0"]);
    pair.run_until(3 * TRIP_NS - 1);
    assert_eq!(pair.told.len(), 3, "one by one: {:?}", pair.told);
    let now = pair.now_ns;
    pair.b().qp.set_grant(now, 4);
    pair.run_until(5 * TRIP_NS);
    let under_way = pair.told.iter().filter(|line| line.starts_with("a ")).count();
    assert_eq!((pair.a().qp.window_packets(), under_way), (4, 6));
    pair.run();
    assert_eq!(pair.b().memory.get(0, 2560), pattern(2560, 0));
    assert_eq!(pair.a().qp.counters().timeouts, 0);
}

#[test]
fn ends_that_have_room_in_any_case_begin_with_as_many_packets_as_they_agreed_on() {
    let config = Config { mtu: Mtu::Bytes256, first_packets_max: 3, ..Config::default() };
    let mut pair = Pair::strict(config, [0, 0]);
    pair.a().write(0, &pattern(2560, 0));
    pair.run_until(TRIP_NS - 1);
    assert_eq!(pair.told, ["a WriteFirst 0", "a WriteMiddle 1", "a WriteMiddle 2"]);
    pair.run();
    assert_eq!(pair.b().memory.get(0, 2560), pattern(2560, 0));
}

#[test]
fn what_is_granted_is_told_at_once_and_once() {
    let mut pair = Pair::new();
    pair.a().write(0, b"first");
    pair.run();
    let now = pair.now_ns;
    pair.b().qp.set_grant(now, 200);
    pair.run();
    assert_eq!(pair.a().qp.window_packets(), 192, "the step below");
    // Who has nothing to send would keep, and use at once one day, what others have by then.
    pair.b().qp.set_grant(now, 2);
    pair.run();
    assert_eq!(pair.a().qp.window_packets(), 2);
    let told = pair.told.len();
    pair.b().qp.set_grant(now, 2);
    pair.run();
    assert_eq!(pair.told.len(), told, "nothing is said that is known");
}

#[test]
fn towards_others_no_credit_is_given_or_heeded() {
    let config = Config { grants: false, window_packets_max: 7, mtu: Mtu::Bytes256, ..Config::default() };
    let mut pair = Pair::strict(config, [0, 0]);
    pair.b().qp.set_grant(0, 3);
    pair.a().write(0, &pattern(256 * 20, 0));
    pair.run_until(1);
    assert_eq!(pair.told.len(), 7);
    pair.run();
    assert!(!pair.granted.is_empty() && pair.granted.iter().all(Option::is_none));
    assert_eq!(pair.b().memory.get(0, 256 * 20), pattern(256 * 20, 0));
}

#[test]
fn answers_to_reads_that_are_under_way_fit_into_the_readers_room() {
    let config = Config { mtu: Mtu::Bytes256, room_packets: 8, ..Config::default() };
    let mut pair = Pair::with(config, [0, 0]);
    pair.b().memory.put(0, &pattern(20_000, 2));
    pair.a().read(0, 0, 20_000);
    pair.a().read(30_000, 0, 20_000);
    let (sender, receiver) = std::sync::mpsc::channel();
    pair.tell(move |sent| {
        let _ = sender.send((sent.opcode, sent.psn));
        Fate::Arrives
    });
    pair.run();
    assert_eq!(pair.a().memory.get(30_000, 20_000), pattern(20_000, 2));
    // Each request asks for four packets, and at most two are under way.
    let mut under_way = 0;
    for (opcode, _) in receiver.try_iter() {
        match opcode {
            Opcode::ReadRequest => under_way += 1,
            Opcode::ReadResponseLast => under_way -= 1,
            _ => {}
        }
        assert!(under_way <= 2);
    }
}

#[test]
fn a_queue_that_is_full_and_requests_that_make_no_sense_are_refused() {
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
fn answers_and_requests_of_one_side_take_turns() {
    let mut pair = Pair::with(Config { mtu: Mtu::Bytes256, ..Config::default() }, [0, 0]);
    pair.b().write(0, b"first");
    pair.run();
    pair.told.clear();
    let reth = RethRepr { address: 0, rkey: KEY, len: 256 * 10 };
    let (dest_qp, psn) = (pair.b().qp.qpn(), pair.psn(A, 0));
    let headers = Headers::ReadRequest(reth);
    pair.forge(B, &Packet { dest_qp, psn, ack_request: false, solicited: false, headers, payload: b"" });
    pair.b().write(8192, &pattern(256 * 10, 0));
    pair.run();
    let of_b: Vec<_> = pair.told.iter().filter(|line| line.starts_with("b ")).collect();
    assert!(of_b[..6].iter().any(|line| line.contains("Read")), "{of_b:?}");
    assert!(of_b[..12].iter().filter(|line| line.contains("Write")).count() >= 5, "{of_b:?}");
}

/// An idle node was woken twice by each heartbeat, once to acknowledge it later; and each had the receive buffer shared anew, twice, of which all
/// were told.
#[test]
fn a_sign_of_life_is_acknowledged_at_once_and_takes_no_share() {
    let mut pair = Pair::new();
    let imm = Some(0);
    let operation = Operation::Send { bytes: b"I live".to_vec(), imm };
    pair.a().qp.post(Request { id: 7, operation, signalled: false, solicited: false }).expect("posted");
    pair.run_until(TRIP_NS);
    assert_eq!(pair.told, ["a SendOnlyImm 0", "b Acknowledge 0"], "as soon as it has come");
    assert!(!pair.b().qp.take_has_begun());
    assert_eq!(pair.b().qp.share().used_ns, None);
    assert_eq!(pair.b().received(), [(b"I live".to_vec(), imm)]);
    // What somebody waits for is another matter.
    let operation = Operation::Send { bytes: b"I ask".to_vec(), imm };
    pair.a().qp.post(Request { id: 8, operation, signalled: false, solicited: true }).expect("posted");
    // At first one packet may be under way: it leaves when the first one is acknowledged.
    pair.run_until(3 * TRIP_NS);
    assert_eq!(pair.told.len(), 3, "it is acknowledged with its answer, or later");
    assert!(pair.b().qp.take_has_begun());
}

/// The time since the last packet that asked was told as a wait, so that the network seemed to take no time at all.
#[test]
fn the_answer_to_a_sign_of_life_tells_how_long_that_has_waited_and_not_for_how_long_nobody_has_asked() {
    let mut pair = Pair::with(Config { selective: true, tells_waits: true, ..Config::default() }, [0, 0]);
    pair.a().write(100, b"salt");
    pair.run_until(1000 * TRIP_NS);
    let operation = Operation::Send { bytes: b"I live".to_vec(), imm: Some(0) };
    pair.a().qp.post(Request { id: 7, operation, signalled: false, solicited: false }).expect("posted");
    pair.run_until(1001 * TRIP_NS);
    assert_eq!(pair.told, ["a WriteOnly 0", "b Acknowledge 0", "a SendOnlyImm 1", "b Acknowledge 1"]);
    assert_eq!(pair.waits_ns, [0, 0]);
}

/// A read was none of what a share is given for, since its request has no bytes: who did nothing but read asked for one packet in each round trip.
#[test]
fn who_only_reads_or_changes_words_has_begun_to_send() {
    for operation in [
        Operation::Read { local: Local { key: KEY, address: 5000 }, remote: at(512), len: 3000 },
        Operation::FetchAdd { remote: at(0), add: 1 },
        Operation::CompareSwap { remote: at(0), expected: 0, new: 1 },
    ] {
        let mut pair = Pair::new();
        pair.a().post(operation);
        pair.run_until(TRIP_NS);
        assert!(pair.b().qp.take_has_begun());
        assert_eq!(pair.b().qp.share().used_ns, Some(TRIP_NS));
    }
}
