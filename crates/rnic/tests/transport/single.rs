//! Selective repeat: each loss costs only the lost packets, and nothing lands out of order or twice.

use halite_rnic::wire::{AethRepr, Credit, Headers, Opcode, Packet, Qpn, RethRepr, Syndrome};
use halite_rnic::{Config, Mtu, Operation, Status};

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

/// A pair with a measured round trip and an open window; packet 1 is next.
fn warmed_up_with(config: Config, psns: [u32; 2]) -> Pair {
    let mut pair = Pair::with(config, psns);
    pair.a().write(0, b"first");
    pair.run();
    pair.log.clear();
    pair
}

fn warmed_up() -> Pair {
    warmed_up_with(selective(), [0, 0])
}

/// Loses A's first transmissions of packets with these numbers.
fn lose(numbers: impl Fn(u32) -> bool + 'static) -> impl FnMut(&Sent) -> Fate {
    move |sent| {
        if sent.from == A && sent.repetition == 0 && numbers(sent.psn) { Fate::Lost } else { Fate::Delivered }
    }
}

/// A writes `packets` full packets, and all arrive; returns the number of repeated packets.
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
fn one_packet_that_is_lost_is_the_only_one_that_comes_again() {
    let mut pair = warmed_up();
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
fn each_of_several_losses_is_repaired_by_itself_in_one_round() {
    let mut pair = warmed_up();
    pair.set_filter(lose(|psn| psn % 5 == 0));
    assert_eq!(write_all(&mut pair, 40), 8);
    assert_eq!(pair.b().qp.counters().duplicates, 0);
    assert_eq!(pair.a().qp.counters().timeouts, 0);
}

#[test]
fn lost_repetition_is_repeated_after_later_packets_arrive() {
    let mut pair = warmed_up();
    pair.set_filter(|sent| {
        if sent.psn == 2 && sent.from == A && sent.repetition < 2 { Fate::Lost } else { Fate::Delivered }
    });
    pair.a().write(0, &pattern(256 * 8, 7));
    let now = pair.now_ns;
    // More packets follow the repetition.
    pair.run_until(now + 2 * ONE_WAY_NS);
    pair.a().write(4096, &pattern(256 * 4, 8));
    pair.run();
    assert_eq!(pair.b().memory.get(0, 256 * 8), pattern(256 * 8, 7));
    assert_eq!(pair.b().memory.get(4096, 1024), pattern(1024, 8));
    assert_eq!((pair.a().qp.counters().repeated, pair.a().qp.counters().timeouts), (2, 0), "{:?}", pair.log);
}

#[test]
fn lost_train_is_repeated_after_a_probe() {
    let mut pair = warmed_up();
    pair.set_filter(lose(|_| true));
    let begin = pair.now_ns;
    // The probe, which reveals the seven missing packets, is one of the eight.
    assert_eq!(write_all(&mut pair, 8), 8);
    assert!(pair.now_ns - begin < 2_000_000, "{}", pair.now_ns - begin);
}

#[test]
fn train_lost_in_the_middle_is_repeated_without_a_timeout() {
    let mut pair = warmed_up();
    pair.set_filter(lose(|psn| (9..25).contains(&psn)));
    assert_eq!(write_all(&mut pair, 48), 16);
    assert_eq!(pair.a().qp.counters().timeouts, 0);
}

#[test]
fn lost_last_packet_is_repeated_after_a_timeout() {
    let mut pair = warmed_up();
    pair.set_filter(lose(|psn| psn == 8));
    let begin = pair.now_ns;
    assert_eq!(write_all(&mut pair, 8), 1);
    assert!(pair.now_ns - begin < 2_000_000);
}

#[test]
fn lost_last_packet_but_one_is_repeated_without_a_timeout() {
    let mut pair = warmed_up();
    pair.set_filter(lose(|psn| psn == 7));
    let begin = pair.now_ns;
    assert_eq!(write_all(&mut pair, 8), 1);
    assert_eq!(pair.a().qp.counters().timeouts, 0);
    assert!(pair.now_ns - begin < 200_000, "{}", pair.now_ns - begin);
}

#[test]
fn lost_acknowledgements_cost_one_packet() {
    let mut pair = warmed_up();
    pair.set_filter(|sent| if sent.from == B && sent.repetition == 0 { Fate::Lost } else { Fate::Delivered });
    assert_eq!(write_all(&mut pair, 8), 1, "{:?}", pair.log);
    assert_eq!(pair.b().qp.counters().duplicates, 1);
}

#[test]
fn lost_gap_report_is_repeated() {
    let mut pair = warmed_up();
    pair.set_filter(|sent| match (sent.from, sent.opcode, sent.psn, sent.repetition) {
        (A, _, 2, 0) | (B, Opcode::Missing, _, 0) => Fate::Lost,
        _ => Fate::Delivered,
    });
    assert_eq!(write_all(&mut pair, 8), 2, "the probe and the missing packet: {:?}", pair.log);
}

#[test]
fn closed_gap_with_a_lost_acknowledgement_completes() {
    let mut pair = warmed_up();
    pair.set_filter(|sent| match (sent.from, sent.opcode, sent.psn, sent.repetition) {
        (A, _, 2, 0) | (B, Opcode::Acknowledge, 8, 0) => Fate::Lost,
        _ => Fate::Delivered,
    });
    // All packets but the missing one are known to be kept: none is lost or in flight.
    assert_eq!(write_all(&mut pair, 8), 2, "{:?}", pair.log);
}

#[test]
fn lost_repetition_is_repeated_within_milliseconds_if_the_rest_is_kept() {
    for times in 1..8 {
        let mut pair = warmed_up();
        pair.set_filter(move |sent| match (sent.from, sent.psn) {
            (A, 2) if sent.repetition < times => Fate::Lost,
            _ => Fate::Delivered,
        });
        let begin = pair.now_ns;
        write_all(&mut pair, 8);
        // Each time one probe shows that nothing has changed.
        let took_ns = pair.now_ns - begin;
        assert!(took_ns < 4_000_000 * times as u64, "{times}: {took_ns}, {:?}", pair.log);
    }
}

#[test]
fn lost_repetition_is_repeated_soon_if_the_round_trip_shrinks() {
    let mut pair = Pair::with(selective(), [0, 0]);
    pair.set_filter(|_| Fate::Delayed(200_000));
    pair.a().write(0, b"first");
    pair.run();
    pair.set_filter(|sent| match (sent.from, sent.psn) {
        (A, 2) if sent.repetition < 2 => Fate::Lost,
        (A, _) if sent.repetition == 0 => Fate::Delayed(200_000),
        _ => Fate::Delivered,
    });
    let begin = pair.now_ns;
    write_all(&mut pair, 8);
    assert!(pair.now_ns - begin < 10_000_000, "{}", pair.now_ns - begin);
}

#[test]
fn kept_packets_are_probed_if_no_other_is_in_flight() {
    let mut pair = warmed_up();
    pair.b().memory.put(0, b"bytes");
    pair.set_filter(|sent| match (sent.opcode, sent.psn, sent.repetition) {
        (Opcode::ReadRequest, 1, 0) | (Opcode::Acknowledge, 4, 0) => Fate::Lost,
        _ => Fate::Delivered,
    });
    pair.a().read(1 << 16, 0, 5);
    for round in 0..3 {
        pair.a().write(100 + round, b"x");
    }
    let begin = pair.now_ns;
    pair.run();
    // All packets but the read are known to be kept, and the read has its response: only the last acknowledgement is lost.
    assert!(pair.log.contains(&"b Acknowledge 4 lost".to_owned()), "{:?}", pair.log);
    assert_eq!(pair.a().completions().len(), 5);
    assert!(pair.now_ns - begin < 3_000_000);
}

#[test]
fn one_packet_measures_a_round_trip_longer_than_the_first_timeout() {
    let mut pair = Pair::with(selective(), [0, 0]);
    pair.set_filter(|sent| if sent.from == A { Fate::Delayed(30_000_000) } else { Fate::Delivered });
    pair.a().write(0, b"first");
    pair.run();
    let before = pair.a().qp.counters().repeated;
    for _ in 0..20 {
        write_all(&mut pair, 1);
    }
    assert_eq!(pair.a().qp.counters().repeated, before);
}

#[test]
fn duplicates_never_land_however_late_they_come() {
    let mut pair = warmed_up();
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
    // Later changes to these bytes stay.
    pair.b().memory.put(0, &[9; 1024]);
    pair.run();
    assert_eq!(pair.b().memory.get(0, 1024), [9; 1024]);
    assert_eq!(pair.b().memory.word(1 << 16), 1);
    assert_eq!(pair.b().qp.counters().duplicates, 25);
}

#[test]
fn duplicate_of_a_kept_packet_is_counted() {
    let mut pair = warmed_up();
    pair.set_filter(|sent| match (sent.from, sent.psn, sent.repetition) {
        (A, 1, 0) => Fate::Lost,
        (A, 2.., 0) => Fate::Duplicated(0),
        _ => Fate::Delivered,
    });
    assert_eq!(write_all(&mut pair, 5), 1);
    assert_eq!((pair.b().qp.counters().kept, pair.b().qp.counters().duplicates), (4, 4));
}

#[test]
fn reordered_packets_are_repeated_only_if_overtaken_by_many() {
    let mut pair = warmed_up();
    // Overtaken by two: not lost.
    pair.set_filter(|sent| if sent.psn == 2 && sent.from == A { Fate::Delayed(20) } else { Fate::Delivered });
    pair.a().write(0, &pattern(256 * 4, 1));
    pair.run();
    assert_eq!(pair.a().qp.counters().repeated, 0, "{:?}", pair.log);
    assert_eq!(pair.b().memory.get(0, 1024), pattern(1024, 1));
    // Overtaken by many, repeatedly: the reordering threshold grows after a few needless repetitions.
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
fn early_packets_are_kept_within_the_span() {
    let mut pair = warmed_up_with(selective(), [0xff_fff0, 0]);
    let now = pair.now_ns;
    pair.b().qp.set_grant(now, 4);
    // Four times the grant: 16 behind the expected packet, and not 17.
    for (ahead, kept, dropped) in [(16, 1, 0), (17, 1, 1), (1, 2, 1), (1 << 20, 2, 2)] {
        let psn = pair.psn(A, 1 + ahead);
        let headers = Headers::WriteOnly { reth: RethRepr { address: 0, rkey: KEY, len: 4 }, imm: None };
        let (dest_qp, solicited) = (Qpn::new(0xbbb), false);
        pair.forge(B, &Packet { dest_qp, psn, ack_request: false, solicited, headers, payload: b"ahea" });
        let counters = pair.b().qp.counters();
        assert_eq!((counters.kept, counters.ahead), (kept, dropped), "{ahead}");
    }
    assert_eq!(pair.b().memory.get(0, 4), b"firs", "early packets have not landed");
}

#[test]
fn oversized_early_packet_is_dropped() {
    let mut pair = warmed_up();
    let (psn, payload) = (pair.psn(A, 3), [1; 300]);
    let headers = Headers::WriteOnly { reth: RethRepr { address: 0, rkey: KEY, len: 300 }, imm: None };
    let dest_qp = Qpn::new(0xbbb);
    pair.forge(B, &Packet { dest_qp, psn, ack_request: false, solicited: false, headers, payload: &payload });
    assert_eq!((pair.b().qp.counters().kept, pair.b().qp.counters().ahead), (0, 1));
    write_all(&mut pair, 8);
}

#[test]
fn numbers_wrap_around_under_what_is_kept_and_missing() {
    for first in 0xff_ffe0..=0xff_ffff {
        let mut pair = warmed_up_with(selective(), [first, first ^ 0x55]);
        pair.set_filter(lose(|psn| psn % 4 == 2));
        assert_eq!(write_all(&mut pair, 35), 9);
    }
}

#[test]
fn damage_counts_as_loss() {
    let mut pair = warmed_up();
    pair.set_filter(|sent| match (sent.from, sent.psn, sent.repetition) {
        (A, 3, 0) => Fate::Damaged(301),
        (B, ..) if sent.opcode == Opcode::Missing && sent.repetition == 0 => Fate::Damaged(170),
        _ => Fate::Delivered,
    });
    assert_eq!(write_all(&mut pair, 8), 2);
    assert_eq!((pair.a().damaged, pair.b().damaged), (1, 1));
}

#[test]
fn writes_to_one_address_land_in_order_despite_losses() {
    for lost in 1..6 {
        let mut pair = warmed_up();
        pair.set_filter(lose(move |psn| psn == lost));
        for round in 0..5u8 {
            pair.a().post_as(write(0, &[round; 100], Some(u32::from(round))), true);
        }
        pair.run();
        assert_eq!(pair.b().memory.get(0, 100), [4; 100]);
        let imms: Vec<_> = pair.b().received().into_iter().map(|(_, imm)| imm).collect();
        assert_eq!(imms, (0..5).map(Some).collect::<Vec<_>>());
        let ended: Vec<_> = pair.a().completions().into_iter().map(|(id, _)| id).collect();
        assert_eq!(ended, (0..6).collect::<Vec<u64>>());
    }
}

#[test]
fn lost_read_responses_are_requested_individually() {
    let mut pair = warmed_up();
    pair.b().memory.put(0, &pattern(256 * 20, 4));
    pair.set_filter(|sent| match (sent.from, sent.psn, sent.repetition) {
        (B, 3 | 9, 0) => Fate::Lost,
        _ => Fate::Delivered,
    });
    pair.a().read(1 << 16, 0, 256 * 20);
    pair.a().fetch_add(1 << 17, 5);
    pair.a().write(0, b"behind");
    pair.run();
    assert_eq!(pair.a().memory.get((1 << 16) + 256, 256 * 19), pattern(256 * 20, 4)[256..]);
    assert_eq!((pair.a().qp.counters().repeated, pair.a().qp.counters().timeouts), (2, 0), "{:?}", pair.log);
    assert_eq!(pair.a().completions().len(), 4);
}

#[test]
fn atomic_with_a_lost_response_is_carried_out_once_amid_others() {
    let mut pair = warmed_up();
    pair.set_filter(|sent| match (sent.opcode, sent.psn, sent.repetition) {
        (Opcode::AtomicAcknowledge, 1, 0..8) | (Opcode::AtomicAcknowledge, 4, 0) => Fate::Lost,
        _ => Fate::Delivered,
    });
    for add in 1..=200 {
        pair.a().fetch_add(8, add);
    }
    pair.run();
    let found: Vec<u64> = (1..=200).map(|add| add * (add - 1) / 2).collect();
    assert_eq!(pair.a().fetched(), found, "each returns the sum of those before it");
    assert_eq!(pair.b().memory.word(8), 201 * 100);
}

#[test]
fn rnr_nak_is_retried_without_repeating_kept_packets() {
    let mut pair = Pair::minimal(selective(), [0, 0]);
    pair.b().qp.set_grant(0, 64);
    pair.a().write(0, b"first");
    pair.run();
    for round in 0..4u8 {
        pair.a().send(&[round; 10], None);
    }
    pair.run_until(600_000);
    pair.b().qp.add_receives(4);
    pair.run();
    let received: Vec<u8> = pair.b().received().iter().map(|(bytes, _)| bytes[0]).collect();
    assert_eq!(received, [0, 1, 2, 3]);
    assert!(pair.a().qp.counters().repeated <= 2, "{:?}", pair.log);
}

/// Regression: the RNR NAK cancelled the timer, and the shrunk grant blocked the refused packet behind the lost response.
#[test]
fn lost_read_response_is_requested_again_despite_an_rnr_nak_and_a_shrunk_grant() {
    let mut pair = Pair::minimal(selective(), [0, 0]);
    pair.b().qp.set_grant(0, 4);
    pair.a().write(0, b"first");
    pair.run();
    let now = pair.now_ns;
    pair.b().qp.set_grant(now, 1);
    pair.set_filter(|sent| match (sent.from, sent.opcode, sent.psn, sent.repetition) {
        (B, Opcode::ReadResponseOnly, 2, 0) => Fate::Lost,
        _ => Fate::Delivered,
    });
    pair.a().read(1 << 16, 0, 5);
    pair.a().read(1 << 17, 0, 5);
    pair.a().send(b"behind", None);
    pair.run_until(now + 5_000_000);
    pair.b().qp.add_receives(1);
    pair.run();
    assert_eq!(pair.a().memory.get(1 << 17, 5), b"first", "{:?}", pair.log);
    assert_eq!(pair.b().received(), [(b"behind".to_vec(), None)]);
}

#[test]
fn kept_packet_without_a_receive_is_repeated_if_its_rnr_nak_is_lost() {
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

#[test]
fn long_message_is_assembled_in_order() {
    let mut pair = warmed_up();
    pair.set_filter(lose(|psn| psn % 3 == 1));
    pair.a().send(&pattern(256 * 9 + 5, 3), Some(7));
    pair.run();
    assert_eq!(pair.b().received(), [(pattern(256 * 9 + 5, 3), Some(7))]);
}

#[test]
fn refusal_of_a_kept_packet_ends_the_connection() {
    let mut pair = warmed_up();
    pair.set_filter(lose(|psn| psn == 1));
    pair.a().write(0, b"done");
    pair.a().post(Operation::FetchAdd { remote: at(4), add: 1 });
    pair.a().write(0, b"evil");
    pair.run();
    assert_eq!(pair.b().memory.get(0, 4), b"done");
    let (done, refused, flushed) = (Status::Success, Status::RemoteInvalidRequest, Status::Flushed);
    assert_eq!(pair.a().completions()[1..], [(1, done), (2, refused), (3, flushed)]);
}

#[test]
fn invalid_reports_of_kept_packets_are_harmless() {
    let mut pair = warmed_up();
    pair.a().write(0, &pattern(256 * 4, 1));
    let now = pair.now_ns;
    pair.run_until(now + 1);
    let aeth = AethRepr { syndrome: Syndrome::Ack(Credit::at_most(64)), msn: 0 };
    for (after, payload) in
        [(1, vec![0xff; 128]), (1, vec![0xff; 132]), (4, vec![0xff; 4]), (5, vec![1; 4]), (0, vec![])]
    {
        let (psn, headers) = (pair.psn(A, after), Headers::Missing(aeth));
        let (dest_qp, solicited) = (Qpn::new(0xaaa), false);
        pair.forge(A, &Packet { dest_qp, psn, ack_request: false, solicited, headers, payload: &payload });
    }
    pair.run();
    assert_eq!(pair.a().qp.counters().malformed, 1);
    write_all(&mut pair, 8);
}

#[test]
fn foreign_peers_do_not_use_selective_repeat() {
    let config = Config { selective: false, ..selective() };
    let mut pair = warmed_up_with(config, [0, 0]);
    pair.set_filter(lose(|psn| psn == 3));
    assert_eq!(write_all(&mut pair, 8), 6, "all packets from the lost one on");
    assert!(!pair.log.iter().any(|line| line.contains("Missing")));
    let aeth = AethRepr { syndrome: Syndrome::Ack(Credit::at_most(64)), msn: 0 };
    let psn = pair.psn(A, 8);
    let (dest_qp, headers) = (Qpn::new(0xaaa), Headers::Missing(aeth));
    pair.forge(A, &Packet { dest_qp, psn, ack_request: false, solicited: false, headers, payload: &[] });
    assert_eq!(pair.a().qp.counters().malformed, 1);
}

/// A new pair in which B grants a single packet.
fn small_grant() -> Pair {
    let mut pair = Pair::with(selective(), [0, 0]);
    pair.b().qp.set_grant(0, 1);
    pair
}

/// The relative number before the first packet, which wraps to the highest one.
const BEFORE_FIRST: &str = "16777215";

#[test]
fn descheduled_peer_with_a_small_grant_gets_empty_probes_and_no_duplicates() {
    let mut pair = small_grant();
    // B is descheduled for as long as three probes take.
    pair.deschedule(B, 10_000_000);
    pair.set_filter(|sent| {
        assert!(sent.from == B || sent.repetition == 0 && sent.psn < 4 || sent.bytes <= 32, "{sent:?}");
        Fate::Delivered
    });
    pair.a().write(0, &pattern(1024, 3));
    pair.run();
    let probe = format!("a WriteOnly {BEFORE_FIRST}");
    assert_eq!(pair.log[..4], ["a WriteOnly 0", &probe, &probe, &probe], "{:?}", pair.log);
    assert_eq!(pair.b().memory.get(0, 1024), pattern(1024, 3));
    assert_eq!((pair.a().qp.counters().repeated, pair.a().completions().len()), (0, 1));
}

#[test]
fn lost_packet_is_repeated_after_an_empty_probe() {
    for lost in [0, 1] {
        let mut pair = small_grant();
        pair.set_filter(lose(move |psn| psn == lost));
        pair.a().write(0, &pattern(512, 3));
        pair.run();
        let before = if lost == 0 { BEFORE_FIRST } else { "0" };
        let expected = [
            format!("a WriteOnly {lost} lost"),
            format!("a WriteOnly {before}"),
            format!("b Acknowledge {before}"),
            format!("a WriteOnly {lost}"),
            format!("b Acknowledge {lost}"),
        ];
        assert!(pair.log.windows(5).any(|lines| lines == expected), "{:?}", pair.log);
        assert_eq!(pair.b().memory.get(0, 512), pattern(512, 3));
        assert!(pair.now_ns < 4_000_000, "{} ns", pair.now_ns);
    }
}

#[test]
fn lost_response_is_requested_again_after_an_empty_probe() {
    let mut pair = small_grant();
    pair.b().memory.put(0, b"salt");
    pair.set_filter(|sent| match (sent.opcode, sent.repetition) {
        (Opcode::ReadResponseOnly, 0) => Fate::Lost,
        _ => Fate::Delivered,
    });
    pair.a().read(1 << 16, 0, 4);
    pair.run();
    assert_eq!(pair.a().memory.get(1 << 16, 4), b"salt");
    let expected =
        [format!("a WriteOnly {BEFORE_FIRST}"), "b Acknowledge 0".to_owned(), "a ReadRequest 0".to_owned()];
    assert!(pair.log.windows(3).any(|lines| lines == expected), "{:?}", pair.log);
}

#[test]
fn only_an_empty_probe_may_have_the_number_before_the_first() {
    let mut pair = small_grant();
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
