//! Selective repeat: only lost packets are retransmitted, and no packet lands out of order or twice.

use halite_rnic::wire::{Headers, Opcode, Packet, Qpn, RethRepr};
use halite_rnic::{Config, Mtu};

use crate::pair::*;

fn selective() -> Config {
    Config {
        mtu: Mtu::Bytes256,
        selective: true,
        reads_max: 64,
        answers_max: 64,
        room_packets: 64,
        ..Config::default()
    }
}

/// Returns a pair with a measured round trip and an open window; packet 1 is next.
fn pair_after_first_write_with(config: Config, psns: [u32; 2]) -> Pair {
    let mut pair = Pair::with(config, psns);
    pair.a().write(0, b"first");
    pair.run();
    pair.log.clear();
    pair
}

fn pair_after_first_write() -> Pair {
    pair_after_first_write_with(selective(), [0, 0])
}

/// Loses A's first transmissions of packets with these numbers.
fn lose(numbers: impl Fn(u32) -> bool + 'static) -> impl FnMut(&Sent) -> Fate {
    move |sent| {
        if sent.from == A && sent.repetition == 0 && numbers(sent.psn) { Fate::Lost } else { Fate::Delivered }
    }
}

/// Writes `packets` full packets from A, and checks that all arrive. Returns the number of retransmissions.
fn write_all(pair: &mut Pair, packets: u32) -> u64 {
    let before = pair.a().qp.counters().repeated;
    let bytes = pattern(packets as usize * 256, 7);
    let ended = pair.a().completions().len();
    pair.a().write(0, &bytes);
    pair.run();
    assert_eq!(pair.b().memory.get(0, bytes.len()), bytes);
    assert_eq!(pair.a().completions().len(), ended + 1);
    pair.a().qp.counters().repeated - before
}

#[test]
fn only_a_lost_packet_is_retransmitted() {
    let mut pair = pair_after_first_write();
    pair.set_filter(lose(|psn| psn == 3));
    let begin = pair.now_ns;
    assert_eq!(write_all(&mut pair, 8), 1);
    assert_eq!(
        pair.log,
        [
            "a WriteOnly 1",
            "a WriteOnly 2",
            "a WriteOnly 3 lost",
            "a WriteOnly 4",
            "a WriteOnly 5",
            "a WriteOnly 6",
            "a WriteOnly 7",
            "a WriteOnly 8",
            "b Missing 3",
            "a WriteOnly 3",
            "b Acknowledge 8"
        ]
    );
    assert_eq!(pair.now_ns - begin, 4 * ONE_WAY_NS, "repaired without a timeout");
    assert_eq!((pair.b().qp.counters().kept, pair.b().qp.counters().duplicates), (5, 0));
}

#[test]
fn several_losses_are_repaired_in_one_round_trip() {
    let mut pair = pair_after_first_write();
    pair.set_filter(lose(|psn| psn % 5 == 0));
    assert_eq!(write_all(&mut pair, 40), 8);
    assert_eq!(pair.b().qp.counters().duplicates, 0);
    assert_eq!(pair.a().qp.counters().timeouts, 0);
}

#[test]
fn a_lost_retransmission_is_retransmitted() {
    let mut pair = pair_after_first_write();
    pair.set_filter(|sent| {
        if sent.psn == 2 && sent.from == A && sent.repetition < 2 { Fate::Lost } else { Fate::Delivered }
    });
    pair.a().write(0, &pattern(256 * 8, 7));
    let now = pair.now_ns;
    // Further packets follow the retransmission.
    pair.run_until(now + 2 * ONE_WAY_NS);
    pair.a().write(4096, &pattern(256 * 4, 8));
    pair.run();
    assert_eq!(pair.b().memory.get(0, 256 * 8), pattern(256 * 8, 7));
    assert_eq!(pair.b().memory.get(4096, 1024), pattern(1024, 8));
    assert_eq!((pair.a().qp.counters().repeated, pair.a().qp.counters().timeouts), (2, 0), "{:?}", pair.log);
}

#[test]
fn late_duplicates_never_land() {
    let mut pair = pair_after_first_write();
    pair.set_filter(|sent| match (sent.from, sent.repetition) {
        (A, 0) => Fate::Duplicated(700_000 + 10_000 * u64::from(sent.psn % 7)),
        _ => Fate::Delivered,
    });
    for round in 0..6u8 {
        pair.a().write(0, &pattern(1024, round));
    }
    pair.a().fetch_add(1 << 16, 1);
    pair.run_until(650_000);
    assert_eq!(pair.b().memory.get(0, 1024), pattern(1024, 5));
    // The duplicate must not undo later changes to these bytes.
    pair.b().memory.put(0, &[9; 1024]);
    pair.run();
    assert_eq!(pair.b().memory.get(0, 1024), [9; 1024]);
    assert_eq!(pair.b().memory.word(1 << 16), 1);
    assert_eq!(pair.b().qp.counters().duplicates, 25);
}

#[test]
fn slight_reordering_causes_no_retransmission() {
    let mut pair = pair_after_first_write();
    // A packet that two others overtake does not count as lost.
    pair.set_filter(|sent| if sent.psn == 2 && sent.from == A { Fate::Delayed(20) } else { Fate::Delivered });
    pair.a().write(0, &pattern(256 * 4, 1));
    pair.run();
    assert_eq!(pair.a().qp.counters().repeated, 0, "{:?}", pair.log);
    assert_eq!(pair.b().memory.get(0, 1024), pattern(1024, 1));
    // The network reorders by many packets: the threshold grows after a few needless retransmissions.
    pair.set_filter(|sent| {
        if sent.psn % 20 == 10 && sent.from == A { Fate::Delayed(15_000) } else { Fate::Delivered }
    });
    let mut repeated = Vec::new();
    for _ in 0..12 {
        repeated.push(write_all(&mut pair, 40));
    }
    assert!(repeated[0] > 0 && repeated[8..] == [0; 4], "{repeated:?}");
}

#[test]
fn losses_are_repaired_fast_again_after_reordering_ends() {
    let mut pair = pair_after_first_write();
    pair.b().qp.set_grant(0, 64);
    let late = |sent: &Sent| {
        if sent.from == A { Fate::Delayed(u64::from(sent.psn) * 7919 % 64 * 1_000) } else { Fate::Delivered }
    };
    pair.set_filter(late);
    write_all(&mut pair, 600);
    // No packet of the last four of a write is lost.
    pair.set_filter(lose(|psn| psn % 10 == 5));
    let mut took_ns = Vec::new();
    for _ in 0..200 {
        let begin_ns = pair.now_ns;
        write_all(&mut pair, 50);
        took_ns.push(pair.now_ns - begin_ns);
    }
    assert!(took_ns[0] > 4 * ONE_WAY_NS, "at first, the path still counts as reordering: {took_ns:?}");
    assert_eq!(took_ns.last(), Some(&(4 * ONE_WAY_NS)), "{took_ns:?}");
}

#[test]
fn early_packets_are_kept_within_the_span() {
    let mut pair = pair_after_first_write_with(selective(), [0xff_fff0, 0]);
    // With packets of 256 bytes, the span is 1,024 packets.
    for (ahead, kept, dropped) in [(1024, 1, 0), (1025, 1, 1), (1, 2, 1), (1 << 20, 2, 2)] {
        let psn = pair.psn(A, 1 + ahead);
        let headers = Headers::WriteOnly { reth: RethRepr { address: 0, rkey: KEY, len: 4 }, imm: None };
        let (dest_qp, solicited) = (Qpn::new(0xbbb), false);
        pair.forge(B, &Packet { dest_qp, psn, ack_request: false, solicited, headers, payload: b"ahea" });
        let counters = pair.b().qp.counters();
        assert_eq!((counters.kept, counters.ahead), (kept, dropped), "{ahead}");
    }
    assert_eq!(pair.b().memory.get(0, 4), b"firs", "early packets have not landed");
}

/// Reads `packets` full packets into A, and checks that all arrive. Returns the number of requests.
fn read_all(pair: &mut Pair, packets: u32) -> usize {
    let bytes = pattern(packets as usize * 256, 7);
    pair.b().memory.put(0, &bytes);
    pair.a().memory.put(0, &vec![0; bytes.len()]);
    pair.log.clear();
    pair.a().read(0, 0, bytes.len() as u32);
    pair.run();
    assert_eq!(pair.a().memory.get(0, bytes.len()), bytes);
    pair.log.iter().filter(|line| line.starts_with("a ReadRequest")).count()
}

#[test]
fn one_request_reads_many_packets() {
    let mut pair = pair_after_first_write();
    pair.b().qp.set_grant(0, 64);
    read_all(&mut pair, 1);
    assert_eq!(read_all(&mut pair, 40), 1);
    assert_eq!(pair.log.len(), 41);
    // A read that exceeds the reader's room needs few requests.
    assert!(read_all(&mut pair, 300) <= 20, "{:?}", pair.log);
}

#[test]
fn only_lost_packets_of_a_response_are_requested_again() {
    let mut pair = pair_after_first_write();
    pair.b().qp.set_grant(0, 64);
    read_all(&mut pair, 1);
    pair.set_filter(|sent| match (sent.from, sent.repetition, sent.psn % 8) {
        (B, 0, 3) => Fate::Lost,
        (B, 0, 5) => Fate::Duplicated(70_000),
        _ => Fate::Delivered,
    });
    assert_eq!(read_all(&mut pair, 40), 1 + 5);
    assert_eq!(pair.a().qp.counters().timeouts, 0);
    let counters = pair.a().qp.counters();
    assert_eq!(counters.duplicates, 5, "a duplicate lands once");
    assert!(counters.kept >= 5, "responses behind each lost response: {}", counters.kept);
}

#[test]
fn a_lost_read_of_many_packets_is_retransmitted() {
    let mut pair = pair_after_first_write();
    pair.b().qp.set_grant(0, 64);
    read_all(&mut pair, 1);
    pair.set_filter(lose(|psn| psn == 2));
    pair.a().read(1 << 16, 0, 256 * 20);
    for round in 0..4u8 {
        pair.a().write(1 << 17, &[round; 8]);
    }
    pair.run();
    assert_eq!(pair.a().memory.get(1 << 16, 256 * 20), pair.b().memory.get(0, 256 * 20));
    assert_eq!(pair.b().memory.get(1 << 17, 8), [3; 8]);
    assert_eq!(pair.b().qp.counters().kept, 4);
}

#[test]
fn lost_requests_and_responses_are_counted() {
    let lost = |pair: &mut Pair, fate: fn(&Sent) -> Fate| {
        let before = pair.a().qp.counters().lost;
        pair.set_filter(fate);
        read_all(pair, 20);
        pair.a().qp.counters().lost - before
    };
    let mut pair = pair_after_first_write();
    pair.b().qp.set_grant(0, 64);
    read_all(&mut pair, 1);
    // The reports for the writes behind the read show that the read request was lost.
    pair.set_filter(lose(|psn| psn == 2));
    pair.a().read(1 << 16, 0, 256 * 20);
    for _ in 0..4 {
        pair.a().write(1 << 17, b"behind");
    }
    pair.run();
    assert_eq!(pair.a().qp.counters().lost, 1);
    let every_fourth = |sent: &Sent| match (sent.from, sent.repetition, sent.psn % 4) {
        (B, 0, 1) => Fate::Lost,
        _ => Fate::Delivered,
    };
    assert_eq!(lost(&mut pair, every_fourth), 5);
}

#[test]
fn spare_read_request_saves_a_round_trip() {
    let mut pair = pair_after_first_write_with(Config { fills_path: true, ..selective() }, [0, 0]);
    pair.b().qp.set_grant(0, 64);
    read_all(&mut pair, 1);
    assert_eq!(read_all(&mut pair, 20), 1, "nothing has been lost yet");
    pair.set_filter(|sent| match (sent.from, sent.repetition, sent.psn % 20) {
        (B, 0, 7) => Fate::Lost,
        _ => Fate::Delivered,
    });
    read_all(&mut pair, 20);
    let (before, dropped) = (pair.a().qp.counters(), pair.b().qp.counters().duplicates);
    // The spare leaves before the response arrives, and is unnecessary.
    pair.set_filter(|sent| if sent.from == B { Fate::Delayed(200_000) } else { Fate::Delivered });
    assert_eq!(read_all(&mut pair, 20), 2, "{:?}", pair.log);
    assert_eq!(pair.log.len(), 22, "the responder ignores the spare: {:?}", pair.log);
    assert_eq!(pair.b().qp.counters().duplicates, dropped + 1);
    pair.set_filter(|sent| match (sent.opcode, sent.repetition) {
        (Opcode::ReadRequest, 0) => Fate::Lost,
        _ => Fate::Delivered,
    });
    assert_eq!(read_all(&mut pair, 60), 2, "{:?}", pair.log);
    let after = pair.a().qp.counters();
    assert_eq!((after.repeated, after.lost, after.timeouts), (before.repeated, before.lost, before.timeouts));
}

/// The response to a read shows that the request arrived, but not that its spare arrived. So a packet that was
/// requested again between the two does not count as lost yet.
#[test]
fn response_to_a_read_with_a_spare_marks_no_packet_lost() {
    let mut pair = pair_after_first_write_with(Config { fills_path: true, ..selective() }, [0, 0]);
    pair.b().qp.set_grant(0, 64);
    let late = |lost: fn(&Sent) -> bool| {
        move |sent: &Sent| if lost(sent) { Fate::Lost } else { Fate::Delayed(190_000) }
    };
    pair.set_filter(late(|sent| sent.from == B && sent.repetition == 0 && sent.psn == 7));
    read_all(&mut pair, 20);
    let (first, lost) = (pair.now_ns, pair.a().qp.counters().lost);
    pair.set_filter(late(|sent| sent.from == B && sent.repetition == 0 && sent.psn == 27));
    pair.a().read(0, 0, 20 * 256);
    pair.run_until(first + 390_000);
    pair.a().read(1 << 16, 0, 20 * 256);
    pair.run();
    assert_eq!(pair.a().qp.counters().lost, lost + 1, "{:?}", pair.log);
    assert_eq!(pair.a().qp.counters().stale, 0);
}

#[test]
fn lost_response_to_a_kept_read_is_requested_again_at_once() {
    let mut pair = pair_after_first_write();
    pair.b().qp.set_grant(0, 64);
    read_all(&mut pair, 1);
    pair.set_filter(|sent| match (sent.opcode, sent.repetition, sent.psn) {
        (Opcode::ReadRequest, 0, 2) | (Opcode::ReadResponseOnly, 0, 27) => Fate::Lost,
        _ => Fate::Delivered,
    });
    let begin_ns = pair.now_ns;
    for to in [0, 1 << 16] {
        pair.a().read(to, 0, 20 * 256);
    }
    pair.run();
    // The round trips are: the report of the kept read, the responses to both reads, and the lost response.
    assert_eq!(pair.now_ns - begin_ns, 3 * 2 * ONE_WAY_NS, "{:?}", pair.log);
    assert_eq!(pair.a().qp.counters().lost, 2);
}

#[test]
fn reads_run_four_spans_ahead_of_a_lost_response() {
    let mut pair = pair_after_first_write();
    pair.b().qp.set_grant(0, 64);
    read_all(&mut pair, 1);
    let end_ns = pair.now_ns + 50_000_000;
    pair.set_filter(move |sent| match (sent.opcode, sent.psn) {
        (Opcode::ReadResponseOnly, 2) if sent.at_ns < end_ns => Fate::Lost,
        _ => Fate::Delivered,
    });
    for _ in 0..6 {
        pair.a().read(0, 0, 1024 * 256);
    }
    pair.run();
    let number = |line: &String| line.strip_prefix("b ReadResponseOnly ")?.parse::<u64>().ok();
    let newest = pair
        .log
        .iter()
        .map_while(|line| (line != "b ReadResponseOnly 2").then(|| number(line)))
        .flatten()
        .max();
    // With packets of 256 bytes, a span is 1,024 packets. No read asks for the last few alone.
    let ahead = newest.expect("a response was sent") - 2;
    assert!((4 * 1024 - 16..=4 * 1024).contains(&ahead), "{ahead}");
}

#[test]
fn a_gap_is_reported_at_intervals() {
    let mut pair = pair_after_first_write();
    pair.b().qp.set_grant(0, 64);
    // Packets arrive one by one.
    pair.set_filter(|sent| match (sent.from, sent.psn, sent.repetition) {
        (A, 2, 0) => Fate::Lost,
        (A, ..) => Fate::Delayed(u64::from(sent.psn) * 100),
        _ => Fate::Delivered,
    });
    assert_eq!(write_all(&mut pair, 60), 1);
    let reports = pair.log.iter().filter(|line| line.starts_with("b Missing")).count();
    assert!((2..20).contains(&reports), "{:?}", pair.log);
    assert_eq!(pair.a().qp.counters().timeouts, 0);
}

#[test]
fn a_read_that_arrives_early_is_kept() {
    let mut pair = pair_after_first_write();
    pair.b().qp.set_grant(0, 64);
    read_all(&mut pair, 1);
    pair.set_filter(lose(|psn| psn == 2));
    pair.b().memory.put(0, &pattern(256 * 20, 9));
    pair.a().write(1 << 17, b"lost");
    assert_eq!(read_all(&mut pair, 20), 1, "{:?}", pair.log);
    assert_eq!(pair.b().memory.get(1 << 17, 4), b"lost");
    assert_eq!(pair.a().qp.counters().repeated, 1);
}

#[test]
fn sequence_numbers_wrap_within_the_kept_span() {
    for first in 0xff_ffe0..=0xff_ffff {
        let mut pair = pair_after_first_write_with(selective(), [first, first ^ 0x55]);
        pair.set_filter(lose(|psn| psn % 4 == 2));
        assert_eq!(write_all(&mut pair, 35), 9);
    }
}

#[test]
fn kept_packet_survives_a_lost_rnr_nak() {
    let mut pair = Pair::minimal(selective(), [0, 0]);
    pair.b().qp.set_grant(0, 64);
    pair.a().write(0, b"first");
    pair.run();
    pair.set_filter(|sent| match (sent.from, sent.opcode, sent.psn, sent.repetition) {
        (A, _, 1, 0) => Fate::Lost,
        (B, Opcode::Acknowledge, 2, _) => Fate::Lost,
        _ => Fate::Delivered,
    });
    pair.a().write(0, b"second");
    for round in 0..3u8 {
        pair.a().send(&[round; 10], None);
    }
    pair.run_until(10_000_000);
    assert!(pair.log.contains(&"b Acknowledge 2 rnr lost".to_owned()), "{:?}", pair.log);
    pair.b().qp.add_receives(3);
    pair.run();
    let received: Vec<u8> = pair.b().received().iter().map(|(bytes, _)| bytes[0]).collect();
    assert_eq!(received, [0, 1, 2]);
}

/// Returns a new pair in which B grants a single packet.
fn pair_with_small_grant() -> Pair {
    let mut pair = Pair::with(selective(), [0, 0]);
    pair.b().qp.set_grant(0, 1);
    pair
}

/// The relative number before the first packet, which wraps to the highest one.
const BEFORE_FIRST: &str = "16777215";

#[test]
fn only_an_empty_probe_precedes_the_first_number() {
    let mut pair = pair_with_small_grant();
    let (dest_qp, psn) = (pair.b().qp.qpn(), pair.psn(A, BEFORE_FIRST.parse().unwrap()));
    let reth = |len| RethRepr { address: 0, rkey: KEY, len };
    for (headers, payload) in [
        (Headers::WriteOnly { reth: reth(4), imm: None }, &b"evil"[..]),
        (Headers::WriteOnly { reth: reth(0), imm: Some(1) }, b""),
        (Headers::ReadRequest(reth(4)), b""),
        (Headers::SendOnly { imm: None }, b""),
    ] {
        pair.forge(B, &Packet { dest_qp, psn, ack_request: true, solicited: false, headers, payload });
    }
    pair.run();
    assert_eq!(pair.b().qp.counters().out_of_window, 4);
    assert!(pair.log.is_empty() && pair.b().events.is_empty());
    assert_eq!(pair.b().memory.get(0, 4), [0; 4]);
}

/// Each packet in either direction is lost once, delayed by up to half a window, or duplicated.
#[test]
fn long_accesses_survive_a_fault_of_every_packet() {
    let fates: [fn(&Sent) -> Fate; 3] = [
        |sent| if sent.repetition == 0 { Fate::Lost } else { Fate::Delivered },
        |sent| Fate::Delayed(u64::from(sent.psn) * 7919 % 64 * 1_000),
        |sent| Fate::Duplicated(u64::from(sent.psn) * 7919 % 64 * 10_000),
    ];
    for fate in fates {
        let mut pair = pair_after_first_write();
        for side in [A, B] {
            pair.end(side).qp.set_grant(0, 64);
        }
        pair.set_filter(fate);
        write_all(&mut pair, 300);
        read_all(&mut pair, 300);
    }
}
