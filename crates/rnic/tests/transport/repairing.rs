//! Go-back-N: lost, duplicated, reordered and damaged packets are repaired, and none is carried out twice.

use halite_rnic::wire::Opcode;
use halite_rnic::{Config, Mtu, Operation, Status};

use crate::pair::*;

/// Loses the first packet of this kind and number.
fn lose(opcode: Opcode, psn: u32) -> impl FnMut(&Sent) -> Fate {
    move |sent| match (sent.opcode, sent.psn, sent.repetition) {
        (of, number, 0) if of == opcode && number == psn => Fate::Lost,
        _ => Fate::Delivered,
    }
}

fn small() -> Config {
    Config { mtu: Mtu::Bytes256, ..Config::default() }
}

#[test]
fn lost_call_arrives_within_two_milliseconds() {
    let mut pair = Pair::new();
    pair.set_filter(lose(Opcode::WriteOnlyImm, 0));
    pair.a().post_as(write(0, b"request", Some(1)), false);
    pair.run_until(2_000_000);
    assert_eq!(pair.b().received(), [(vec![], Some(1))]);
    assert_eq!(pair.log, ["a WriteOnlyImm 0 lost", "a WriteOnlyImm 0", "b Acknowledge 0"]);
    assert_eq!(pair.a().qp.counters().timeouts, 1);
}

#[test]
fn delayed_acknowledgement_does_not_extend_a_later_calls_timeout() {
    let mut pair = Pair::new();
    pair.a().write(0, b"first");
    pair.run();
    let begin = pair.now_ns;
    pair.set_filter(lose(Opcode::WriteOnlyImm, 2));
    for call in [1, 2] {
        pair.a().post_as(write(0, b"request", Some(call)), false);
        let now = pair.now_ns;
        pair.run_until(now + 1_000);
    }
    pair.run_until(begin + 2_000_000);
    assert_eq!(pair.b().received().len(), 2);
}

#[test]
fn lost_acknowledgement_costs_one_repetition() {
    let mut pair = Pair::new();
    pair.set_filter(lose(Opcode::Acknowledge, 0));
    pair.a().send(b"once", Some(1));
    pair.run();
    assert_eq!(pair.b().received(), [(b"once".to_vec(), Some(1))]);
    assert_eq!(pair.a().completions(), [(0, Status::Success)]);
    assert_eq!(pair.b().qp.counters().duplicates, 1);
    assert_eq!(pair.log, ["a SendOnlyImm 0", "b Acknowledge 0 lost", "a SendOnlyImm 0", "b Acknowledge 0"]);
}

#[test]
fn duplicate_write_does_not_overwrite_a_later_one() {
    let mut pair = Pair::new();
    pair.set_filter(|sent| match (sent.opcode, sent.psn, sent.repetition) {
        (Opcode::WriteOnly, 0, 0) => Fate::Duplicated(100_000),
        _ => Fate::Delivered,
    });
    pair.a().write(0, b"old");
    pair.a().write(0, b"new");
    pair.run();
    assert_eq!(pair.b().memory.get(0, 3), b"new");
    assert_eq!(pair.b().qp.counters().duplicates, 1);
}

#[test]
fn atomic_with_a_lost_response_is_carried_out_once() {
    let mut pair = Pair::new();
    pair.b().memory.put(8, &40u64.to_le_bytes());
    pair.set_filter(lose(Opcode::AtomicAcknowledge, 0));
    pair.a().fetch_add(8, 2);
    pair.run();
    assert_eq!((pair.a().fetched(), pair.b().memory.word(8)), (vec![40], 42));
}

#[test]
fn duplicate_atomic_is_carried_out_once() {
    let mut pair = Pair::new();
    pair.set_filter(|sent| match sent.opcode {
        Opcode::FetchAdd | Opcode::CompareSwap => Fate::Duplicated(50_000),
        _ => Fate::Delivered,
    });
    pair.a().fetch_add(8, 1);
    pair.a().post(Operation::CompareSwap { remote: at(8), expected: 1, new: 5 });
    pair.a().fetch_add(8, 1);
    pair.run();
    assert_eq!((pair.a().fetched(), pair.b().memory.word(8)), (vec![0, 1, 5], 6));
    assert_eq!(pair.b().qp.counters().duplicates, 3);
}

#[test]
fn gap_is_reported_at_once_and_all_packets_behind_it_are_repeated() {
    let mut pair = Pair::with(small(), [0, 0]);
    pair.a().write(0, b"first");
    pair.run();
    pair.log.clear();
    let begin = pair.now_ns;
    pair.set_filter(lose(Opcode::WriteMiddle, 2));
    pair.a().write(0, &pattern(256 * 4, 3));
    pair.run();
    assert_eq!(
        pair.log,
        [
            "a WriteFirst 1",
            "a WriteMiddle 2 lost",
            "a WriteMiddle 3",
            "a WriteLast 4",
            "b Acknowledge 2 Sequence",
            "a WriteMiddle 2",
            "a WriteMiddle 3",
            "a WriteLast 4",
            "b Acknowledge 4",
        ]
    );
    assert_eq!(pair.b().memory.get(0, 1024), pattern(1024, 3));
    assert_eq!(pair.a().qp.counters().timeouts, 0);
    assert_eq!(pair.now_ns - begin, 4 * ONE_WAY_NS, "repaired without a timeout");
}

#[test]
fn each_gap_is_reported_once() {
    let mut pair = Pair::with(small(), [0, 0]);
    pair.a().write(0, b"first");
    pair.run();
    pair.log.clear();
    pair.set_filter(|sent| match (sent.opcode, sent.psn, sent.repetition) {
        (Opcode::WriteOnly, 1 | 30, 0) => Fate::Lost,
        _ => Fate::Delivered,
    });
    for round in 0..40 {
        pair.a().write(round, b"x");
        let now = pair.now_ns;
        pair.run_until(now + 1_000);
    }
    pair.run();
    let naks: Vec<_> = pair.log.iter().filter(|line| line.contains("Sequence")).collect();
    assert_eq!(naks, ["b Acknowledge 1 Sequence", "b Acknowledge 30 Sequence"]);
    assert_eq!(pair.a().qp.counters().timeouts, 0);
}

#[test]
fn repeated_packets_are_acknowledged_at_once() {
    let mut pair = Pair::new();
    pair.a().write(0, b"first");
    pair.run();
    let begin = pair.now_ns;
    pair.set_filter(lose(Opcode::WriteOnly, 1));
    for round in 0..3 {
        pair.a().post_as(write(round, b"x", None), false);
    }
    pair.run_until(begin + 4 * ONE_WAY_NS);
    assert!(pair.log.contains(&"b Acknowledge 3".to_string()), "{:?}", pair.log);
}

#[test]
fn loss_is_repaired_once_despite_many_acknowledgements() {
    let mut pair = Pair::new();
    pair.a().write(0, b"first");
    pair.run();
    pair.log.clear();
    pair.set_filter(lose(Opcode::ReadResponseOnly, 1));
    pair.a().read(100, 0, 5);
    for round in 0..12 {
        pair.a().write(200 + round, b"x");
        let now = pair.now_ns;
        pair.run_until(now + 1_000);
    }
    pair.run();
    let requests = pair.log.iter().filter(|line| line.contains("ReadRequest")).count();
    assert_eq!(requests, 2, "{:?}", pair.log);
    assert_eq!(pair.a().memory.get(100, 5), b"first");
}

#[test]
fn timeout_resets_when_the_peer_responds() {
    let mut pair = Pair::new();
    pair.set_filter(|sent| if sent.repetition < 12 { Fate::Lost } else { Fate::Delivered });
    pair.a().write(0, b"long time");
    pair.run();
    let begin = pair.now_ns;
    assert!(begin > 500_000_000);
    pair.set_filter(lose(Opcode::WriteOnly, 1));
    pair.a().write(0, b"no time at all");
    pair.run();
    assert!(pair.now_ns - begin < 2_000_000);
}

#[test]
fn lease_counts_from_the_last_response() {
    let mut pair = Pair::with(lease_ms(2), [0, 0]);
    while pair.now_ns < 10_000_000 {
        pair.a().write(0, b"x");
        let now = pair.now_ns;
        pair.run_until(now + ONE_WAY_NS);
    }
    let lost = pair.log.iter().filter(|line| line.starts_with("a ")).count() as u32;
    pair.set_filter(lose(Opcode::WriteOnly, lost));
    pair.a().write(0, b"y");
    pair.run();
    assert_eq!(pair.a().qp.counters().timeouts, 1);
    assert!(pair.a().completions().iter().all(|(_, status)| *status == Status::Success));
}

#[test]
fn late_packet_is_not_lost() {
    let mut pair = Pair::with(small(), [0, 0]);
    pair.set_filter(|sent| match (sent.opcode, sent.psn, sent.repetition) {
        (Opcode::WriteFirst, 1, 0) => Fate::Delayed(ONE_WAY_NS / 2),
        _ => Fate::Delivered,
    });
    pair.a().write(0, b"first");
    pair.run();
    pair.a().write(0, &pattern(256 * 3, 3));
    pair.run();
    assert_eq!(pair.b().memory.get(0, 768), pattern(768, 3));
    assert_eq!(pair.a().completions().len(), 2);
}

#[test]
fn damage_to_any_bit_counts_as_loss() {
    for bit in 0..72 * 8 {
        let mut pair = Pair::new();
        pair.set_filter(move |sent| match (sent.from, sent.repetition) {
            (A, 0) => Fate::Damaged(bit),
            _ => Fate::Delivered,
        });
        pair.a().write(64, b"untouched by noise: forty bytes of it...");
        pair.run();
        assert_eq!(pair.b().memory.get(64, 9), b"untouched");
        assert_eq!(pair.b().memory.get(0, 64), [0; 64]);
        assert_eq!(pair.a().completions(), [(0, Status::Success)]);
        // Byte 4 holds congestion marks, which the ICRC does not cover.
        assert_eq!(pair.b().damaged, usize::from(bit / 8 != 4), "bit {bit}");
    }
}

#[test]
fn read_resumes_at_a_lost_response_packet() {
    let mut pair = Pair::with(small(), [0, 0]);
    pair.b().memory.put(0, &pattern(256 * 6, 4));
    pair.set_filter(lose(Opcode::ReadResponseMiddle, 3));
    pair.a().read(0, 0, 256 * 6);
    pair.run();
    assert_eq!(pair.a().memory.get(0, 256 * 6), pattern(256 * 6, 4));
    let requests: Vec<_> = pair.log.iter().filter(|line| line.contains("ReadRequest")).collect();
    assert_eq!(requests, ["a ReadRequest 0", "a ReadRequest 3"]);
    assert_eq!(pair.log.iter().filter(|line| line.contains("Response")).count(), 6 + 3);
}

#[test]
fn lost_read_request_is_repeated() {
    let mut pair = Pair::new();
    pair.b().memory.put(0, b"bytes");
    pair.set_filter(lose(Opcode::ReadRequest, 0));
    pair.a().read(0, 0, 5);
    pair.run();
    assert_eq!(pair.a().memory.get(0, 5), b"bytes");
    assert_eq!(pair.a().qp.counters().timeouts, 1);
}

#[test]
fn probe_requests_the_last_packet_and_reveals_the_gap() {
    let mut pair = Pair::with(small(), [0, 0]);
    pair.b().memory.put(0, &pattern(1024, 4));
    pair.set_filter(lose(Opcode::ReadRequest, 0));
    pair.a().read(0, 0, 1024);
    pair.run();
    let first_packets =
        ["a ReadRequest 0 lost", "a ReadRequest 3", "b Acknowledge 0 Sequence", "a ReadRequest 0"];
    assert_eq!(pair.log[..4], first_packets);
    assert_eq!(pair.a().memory.get(0, 1024), pattern(1024, 4));
}

#[test]
fn slow_read_response_does_not_time_out() {
    let mut pair = Pair::with(small(), [0, 0]);
    pair.b().memory.put(0, &pattern(2048, 4));
    pair.set_filter(|sent| match sent.opcode.is_response() {
        true => Fate::Delayed(u64::from(sent.psn) * 1_000_000),
        false => Fate::Delivered,
    });
    pair.a().read(0, 0, 2048);
    pair.run();
    assert_eq!(pair.a().memory.get(0, 2048), pattern(2048, 4));
    assert_eq!(pair.a().qp.counters().timeouts, 0);
}

#[test]
fn acknowledgement_behind_a_lost_response_reveals_the_loss() {
    let mut pair = Pair::new();
    pair.a().write(0, b"first");
    pair.run();
    let begin = pair.now_ns;
    pair.set_filter(lose(Opcode::ReadResponseOnly, 1));
    pair.a().read(100, 0, 5);
    pair.a().write(200, b"behind");
    pair.run();
    assert_eq!(pair.a().memory.get(100, 5), b"first");
    assert_eq!(pair.a().completions().len(), 3);
    assert_eq!((pair.now_ns - begin, pair.a().qp.counters().timeouts), (4 * ONE_WAY_NS, 0));
}

/// A pair with a measured round trip and an open window.
fn warmed_up(config: Config) -> Pair {
    let mut pair = Pair::with(config, [0, 0]);
    pair.a().write(0, b"first");
    pair.run();
    pair.log.clear();
    pair
}

#[test]
fn descheduled_peer_causes_few_repetitions() {
    // Three timeouts, a scheduler's time slice, many of them.
    for away_ns in [3 * 1_250_000, 6_000_000, 60_000_000] {
        let mut pair = warmed_up(small());
        pair.deschedule(B, away_ns);
        for round in 0..10u8 {
            pair.a().write(u64::from(round) * 2000, &pattern(1999, round));
        }
        pair.a().read(1 << 17, 0, 900);
        pair.run();
        assert_eq!(pair.a().completions().len(), 12);
        for round in 0..10u8 {
            assert_eq!(pair.b().memory.get(u64::from(round) * 2000, 1999), pattern(1999, round));
        }
        let counters = pair.a().qp.counters();
        assert!(counters.timeouts > 0, "{away_ns}: no timeout");
        assert_eq!(counters.repeated, counters.timeouts, "{away_ns}: {:?}", pair.log);
        assert!(counters.repeated <= 7, "{away_ns}: {counters:?}");
        assert_eq!(counters.naks, 0);
    }
}

#[test]
fn descheduled_peer_causes_few_repeated_reads() {
    let config = Config { read_packets_max: 1, reads_max: 64, answers_max: 64, ..small() };
    let mut pair = warmed_up(config);
    pair.b().memory.put(0, &pattern(256 * 40, 4));
    pair.deschedule(B, 10_000_000);
    pair.a().read(1 << 16, 0, 256 * 40);
    pair.run();
    assert_eq!(pair.a().memory.get(1 << 16, 256 * 40), pattern(256 * 40, 4));
    assert!(pair.a().qp.counters().repeated <= 4, "{:?}", pair.log);
}

#[test]
fn lost_train_arrives_within_two_milliseconds() {
    let mut pair = warmed_up(small());
    let begin = pair.now_ns;
    pair.set_filter(|sent| match (sent.from, sent.repetition) {
        (A, 0) => Fate::Lost,
        _ => Fate::Delivered,
    });
    pair.a().post_as(write(0, &pattern(256 * 8, 5), Some(1)), false);
    pair.run_until(begin + 2_000_000);
    assert_eq!(pair.b().received().len(), 1);
    assert_eq!(pair.b().memory.get(0, 256 * 8), pattern(256 * 8, 5));
    assert_eq!((pair.a().qp.counters().timeouts, pair.a().qp.counters().repeated), (1, 9));
}

#[test]
fn lost_gap_report_is_repeated() {
    let mut pair = warmed_up(small());
    pair.set_filter(|sent| match (sent.opcode, sent.psn, sent.repetition) {
        (Opcode::WriteFirst | Opcode::Acknowledge, 1, 0) => Fate::Lost,
        _ => Fate::Delivered,
    });
    pair.a().write(0, &pattern(1024, 3));
    pair.run();
    assert_eq!(pair.b().memory.get(0, 1024), pattern(1024, 3));
    assert_eq!(pair.a().qp.counters().timeouts, 1, "{:?}", pair.log);
    assert_eq!(pair.a().completions().len(), 2);
}

#[test]
fn rnr_nak_is_retried_after_its_timer() {
    let mut pair = Pair::minimal(Config::default(), [0, 0]);
    pair.a().send(b"patience", Some(1));
    pair.run_until(ONE_WAY_NS * 2);
    assert_eq!(pair.log, ["a SendOnlyImm 0", "b Acknowledge 0 rnr"]);
    pair.run_until(ONE_WAY_NS * 2 + 639_999);
    assert_eq!(pair.log.len(), 2, "no retry before the RNR timer");
    pair.b().qp.add_receives(1);
    pair.run();
    assert_eq!(pair.b().received(), [(b"patience".to_vec(), Some(1))]);
    assert_eq!(pair.log[2..], ["a SendOnlyImm 0", "b Acknowledge 0"]);
}

#[test]
fn last_bytes_of_a_write_wait_for_a_receive_for_its_immediate() {
    let mut pair = Pair::minimal(small(), [0, 0]);
    pair.b().qp.set_grant(0, 16);
    pair.a().post(write(0, &pattern(600, 1), Some(2)));
    pair.run_until(100_000);
    assert_eq!(pair.b().memory.get(512, 8), [0; 8]);
    pair.b().qp.add_receives(1);
    pair.run();
    assert_eq!(pair.b().memory.get(0, 600), pattern(600, 1));
    assert_eq!(pair.b().received(), [(vec![], Some(2))]);
}

#[test]
fn a_link_that_is_down_for_less_than_the_lease_goes_unnoticed() {
    let mut pair = Pair::with(lease_ms(5000), [0xff_fff0, 0]);
    pair.a().write(0, b"before");
    pair.run();
    let (begin, is_down) = (pair.now_ns, std::rc::Rc::new(std::cell::Cell::new(true)));
    let down = is_down.clone();
    pair.set_filter(move |_| if down.get() { Fate::Lost } else { Fate::Delivered });
    pair.a().write(0, &pattern(20_000, 1));
    pair.a().fetch_add(1 << 16, 1);
    pair.b().send(b"hello", None);
    pair.run_until(begin + 4_700_000_000);
    let lost = pair.log.len();
    assert!(lost < 120, "packet storm while the link is down: {lost}");
    is_down.set(false);
    pair.run_until(begin + 5_000_000_000);
    assert_eq!(pair.b().memory.get(0, 20_000), pattern(20_000, 1));
    assert_eq!(pair.b().memory.word(1 << 16), 1);
    assert_eq!(pair.a().received().len(), 1);
    assert_eq!(pair.a().completions().len(), 3);
}

#[test]
fn heavy_loss_both_ways_carries_out_everything_once() {
    let mut pair = Pair::with(small(), [0xff_ff00, 3]);
    let mut random = Random(7);
    pair.set_filter(move |_| if random.below(10) < 3 { Fate::Lost } else { Fate::Delivered });
    for round in 0..40u8 {
        for side in [A, B] {
            pair.end(side).write(u64::from(round) * 1000, &pattern(999, round));
            pair.end(side).fetch_add(1 << 17, 1);
            pair.end(side).send(&[round; 300], None);
            pair.end(side).read(1 << 16, 0, 700);
        }
    }
    pair.run();
    for side in [A, B] {
        assert_eq!(pair.end(side).memory.word(1 << 17), 40);
        let received: Vec<u8> = pair.end(side).received().iter().map(|(bytes, _)| bytes[0]).collect();
        assert_eq!(received, (0..40).collect::<Vec<u8>>());
        assert_eq!(pair.end(side).memory.get(39_000, 999), pattern(999, 39));
        assert_eq!(pair.end(side).fetched(), (0..40).collect::<Vec<u64>>());
        assert_eq!(pair.end(side).completions().len(), 160);
    }
}

#[test]
fn unrepeatable_response_ends_with_the_lease() {
    let mut pair = Pair::with(lease_ms(50), [0, 0]);
    pair.a().write(0, b"first");
    pair.run();
    let begin = pair.now_ns;
    pair.set_filter(lose(Opcode::ReadResponseOnly, 1));
    pair.a().read(100, 0, 5);
    pair.a().send(b"behind", None);
    pair.run_until(begin + 3 * ONE_WAY_NS / 2);
    pair.b().memory.deregister(KEY);
    pair.run();
    assert_eq!(pair.a().completions()[1..], [(1, Status::RetryExceeded), (2, Status::Aborted)]);
    assert!(pair.now_ns - begin < 100_000_000);
}
