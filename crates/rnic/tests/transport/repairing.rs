//! What is lost, repeated, overtaken or damaged on the way is made good, and nothing is done twice.

use halite_rnic::wire::Opcode;
use halite_rnic::{Config, Mtu, Operation, Status};

use crate::pair::*;

/// Loses the first packet of this kind and number that leaves.
fn loses(opcode: Opcode, psn: u32) -> impl FnMut(&Sent) -> Fate {
    move |sent| match (sent.opcode, sent.psn, sent.repetition) {
        (of, number, 0) if of == opcode && number == psn => Fate::IsLost,
        _ => Fate::Arrives,
    }
}

fn small() -> Config {
    Config { mtu: Mtu::Bytes256, ..Config::default() }
}

#[test]
fn a_lost_call_is_there_within_two_milliseconds() {
    let mut pair = Pair::new();
    pair.tell(loses(Opcode::WriteOnlyImm, 0));
    pair.a().post_as(write(0, b"request", Some(1)), false);
    pair.run_until(2_000_000);
    assert_eq!(pair.b().received(), [(vec![], Some(1))]);
    assert_eq!(pair.told, ["a WriteOnlyImm 0 lost", "a WriteOnlyImm 0", "b Acknowledge 0"]);
    assert_eq!(pair.a().qp.counters().timeouts, 1);
}

#[test]
fn a_call_behind_one_that_is_acknowledged_late_is_not_waited_for_any_longer() {
    let mut pair = Pair::new();
    pair.a().write(0, b"first");
    pair.run();
    let begin = pair.now_ns;
    pair.tell(loses(Opcode::WriteOnlyImm, 2));
    for call in [1, 2] {
        pair.a().post_as(write(0, b"request", Some(call)), false);
        let now = pair.now_ns;
        pair.run_until(now + 1_000);
    }
    pair.run_until(begin + 2_000_000);
    assert_eq!(pair.b().received().len(), 2);
}

#[test]
fn a_lost_acknowledgement_costs_a_repetition_and_nothing_is_told_twice() {
    let mut pair = Pair::new();
    pair.tell(loses(Opcode::Acknowledge, 0));
    pair.a().send(b"once", Some(1));
    pair.run();
    assert_eq!(pair.b().received(), [(b"once".to_vec(), Some(1))]);
    assert_eq!(pair.a().ended(), [(0, Status::Success)]);
    assert_eq!(pair.b().qp.counters().duplicates, 1);
    assert_eq!(pair.told, ["a SendOnlyImm 0", "b Acknowledge 0 lost", "a SendOnlyImm 0", "b Acknowledge 0"]);
}

#[test]
fn a_repeated_write_does_not_land_on_what_came_later() {
    let mut pair = Pair::new();
    pair.tell(|sent| match (sent.opcode, sent.psn, sent.repetition) {
        (Opcode::WriteOnly, 0, 0) => Fate::ArrivesTwice(100_000),
        _ => Fate::Arrives,
    });
    pair.a().write(0, b"old");
    pair.a().write(0, b"new");
    pair.run();
    assert_eq!(pair.b().memory.get(0, 3), b"new");
    assert_eq!(pair.b().qp.counters().duplicates, 1);
}

#[test]
fn an_atomic_whose_answer_is_lost_is_done_once_and_answered_again() {
    let mut pair = Pair::new();
    pair.b().memory.put(8, &40u64.to_le_bytes());
    pair.tell(loses(Opcode::AtomicAcknowledge, 0));
    pair.a().fetch_add(8, 2);
    pair.run();
    assert_eq!((pair.a().found(), pair.b().memory.word(8)), (vec![40], 42));
}

#[test]
fn an_atomic_that_arrives_twice_is_done_once() {
    let mut pair = Pair::new();
    pair.tell(|sent| match sent.opcode {
        Opcode::FetchAdd | Opcode::CompareSwap => Fate::ArrivesTwice(50_000),
        _ => Fate::Arrives,
    });
    pair.a().fetch_add(8, 1);
    pair.a().post(Operation::CompareSwap { remote: at(8), expected: 1, new: 5 });
    pair.a().fetch_add(8, 1);
    pair.run();
    assert_eq!((pair.a().found(), pair.b().memory.word(8)), (vec![0, 1, 5], 6));
    assert_eq!(pair.b().qp.counters().duplicates, 3);
}

#[test]
fn who_is_overtaken_is_asked_for_at_once_and_all_behind_it_comes_again() {
    let mut pair = Pair::with(small(), [0, 0]);
    pair.a().write(0, b"first");
    pair.run();
    pair.told.clear();
    let begin = pair.now_ns;
    pair.tell(loses(Opcode::WriteMiddle, 2));
    pair.a().write(0, &pattern(256 * 4, 3));
    pair.run();
    assert_eq!(
        pair.told,
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
    assert_eq!(pair.now_ns - begin, 4 * TRIP_NS, "no timer was waited for");
}

#[test]
fn what_is_missing_is_asked_for_once_and_so_is_what_is_missing_next() {
    let mut pair = Pair::with(small(), [0, 0]);
    pair.a().write(0, b"first");
    pair.run();
    pair.told.clear();
    pair.tell(|sent| match (sent.opcode, sent.psn, sent.repetition) {
        (Opcode::WriteOnly, 1 | 30, 0) => Fate::IsLost,
        _ => Fate::Arrives,
    });
    for round in 0..40 {
        pair.a().write(round, b"x");
        let now = pair.now_ns;
        pair.run_until(now + 1_000);
    }
    pair.run();
    let naks: Vec<_> = pair.told.iter().filter(|line| line.contains("Sequence")).collect();
    assert_eq!(naks, ["b Acknowledge 1 Sequence", "b Acknowledge 30 Sequence"]);
    assert_eq!(pair.a().qp.counters().timeouts, 0);
}

#[test]
fn what_is_sent_again_is_acknowledged_at_once() {
    let mut pair = Pair::new();
    pair.a().write(0, b"first");
    pair.run();
    let begin = pair.now_ns;
    pair.tell(loses(Opcode::WriteOnly, 1));
    for round in 0..3 {
        pair.a().post_as(write(round, b"x", None), false);
    }
    pair.run_until(begin + 4 * TRIP_NS);
    assert!(pair.told.contains(&"b Acknowledge 3".to_string()), "{:?}", pair.told);
}

#[test]
fn one_loss_is_repaired_once_however_many_acknowledgements_tell_of_it() {
    let mut pair = Pair::new();
    pair.a().write(0, b"first");
    pair.run();
    pair.told.clear();
    pair.tell(loses(Opcode::ReadResponseOnly, 1));
    pair.a().read(100, 0, 5);
    for round in 0..12 {
        pair.a().write(200 + round, b"x");
        let now = pair.now_ns;
        pair.run_until(now + 1_000);
    }
    pair.run();
    let asked = pair.told.iter().filter(|line| line.contains("ReadRequest")).count();
    assert_eq!(asked, 2, "{:?}", pair.told);
    assert_eq!(pair.a().memory.get(100, 5), b"first");
}

#[test]
fn who_is_heard_again_is_waited_for_as_briefly_as_before() {
    let mut pair = Pair::new();
    pair.tell(|sent| if sent.repetition < 12 { Fate::IsLost } else { Fate::Arrives });
    pair.a().write(0, b"long time");
    pair.run();
    let begin = pair.now_ns;
    assert!(begin > 500_000_000);
    pair.tell(loses(Opcode::WriteOnly, 1));
    pair.a().write(0, b"no time at all");
    pair.run();
    assert!(pair.now_ns - begin < 2_000_000);
}

#[test]
fn a_lease_runs_from_when_something_was_heard_not_from_when_the_queue_was_last_empty() {
    let mut pair = Pair::with(lease_ms(2), [0, 0]);
    while pair.now_ns < 10_000_000 {
        pair.a().write(0, b"x");
        let now = pair.now_ns;
        pair.run_until(now + TRIP_NS);
    }
    let lost = pair.told.iter().filter(|line| line.starts_with("a ")).count() as u32;
    pair.tell(loses(Opcode::WriteOnly, lost));
    pair.a().write(0, b"y");
    pair.run();
    assert_eq!(pair.a().qp.counters().timeouts, 1);
    assert!(pair.a().ended().iter().all(|(_, status)| *status == Status::Success));
}

#[test]
fn a_packet_that_comes_late_is_not_lost_for_those_behind_it() {
    let mut pair = Pair::with(small(), [0, 0]);
    pair.tell(|sent| match (sent.opcode, sent.psn, sent.repetition) {
        (Opcode::WriteFirst, 1, 0) => Fate::IsLate(TRIP_NS / 2),
        _ => Fate::Arrives,
    });
    pair.a().write(0, b"first");
    pair.run();
    pair.a().write(0, &pattern(256 * 3, 3));
    pair.run();
    assert_eq!(pair.b().memory.get(0, 768), pattern(768, 3));
    assert_eq!(pair.a().ended().len(), 2);
}

#[test]
fn a_damaged_packet_is_a_lost_one_whichever_bit_it_is() {
    for bit in 0..72 * 8 {
        let mut pair = Pair::new();
        pair.tell(move |sent| match (sent.from, sent.repetition) {
            (A, 0) => Fate::IsDamaged(bit),
            _ => Fate::Arrives,
        });
        pair.a().write(64, b"untouched by noise: forty bytes of it...");
        pair.run();
        assert_eq!(pair.b().memory.get(64, 9), b"untouched");
        assert_eq!(pair.b().memory.get(0, 64), [0; 64]);
        assert_eq!(pair.a().ended(), [(0, Status::Success)]);
        // Byte 4 is for marks on the way, and is looked at by nobody.
        assert_eq!(pair.b().damaged, usize::from(bit / 8 != 4), "bit {bit}");
    }
}

#[test]
fn a_read_whose_answer_is_lost_in_the_middle_goes_on_from_there() {
    let mut pair = Pair::with(small(), [0, 0]);
    pair.b().memory.put(0, &pattern(256 * 6, 4));
    pair.tell(loses(Opcode::ReadResponseMiddle, 3));
    pair.a().read(0, 0, 256 * 6);
    pair.run();
    assert_eq!(pair.a().memory.get(0, 256 * 6), pattern(256 * 6, 4));
    let asked: Vec<_> = pair.told.iter().filter(|line| line.contains("ReadRequest")).collect();
    assert_eq!(asked, ["a ReadRequest 0", "a ReadRequest 3"]);
    assert_eq!(pair.told.iter().filter(|line| line.contains("Response")).count(), 6 + 3);
}

#[test]
fn a_read_that_is_lost_is_asked_for_again() {
    let mut pair = Pair::new();
    pair.b().memory.put(0, b"bytes");
    pair.tell(loses(Opcode::ReadRequest, 0));
    pair.a().read(0, 0, 5);
    pair.run();
    assert_eq!(pair.a().memory.get(0, 5), b"bytes");
    assert_eq!(pair.a().qp.counters().timeouts, 1);
}

#[test]
fn who_was_not_heard_asks_for_the_last_packet_and_is_told_what_is_missing() {
    let mut pair = Pair::with(small(), [0, 0]);
    pair.b().memory.put(0, &pattern(1024, 4));
    pair.tell(loses(Opcode::ReadRequest, 0));
    pair.a().read(0, 0, 1024);
    pair.run();
    let asked = ["a ReadRequest 0 lost", "a ReadRequest 3", "b Acknowledge 0 Sequence", "a ReadRequest 0"];
    assert_eq!(pair.told[..4], asked);
    assert_eq!(pair.a().memory.get(0, 1024), pattern(1024, 4));
}

#[test]
fn an_answer_that_trickles_in_is_not_taken_for_lost() {
    let mut pair = Pair::with(small(), [0, 0]);
    pair.b().memory.put(0, &pattern(2048, 4));
    pair.tell(|sent| match sent.opcode.is_response() {
        true => Fate::IsLate(u64::from(sent.psn) * 1_000_000),
        false => Fate::Arrives,
    });
    pair.a().read(0, 0, 2048);
    pair.run();
    assert_eq!(pair.a().memory.get(0, 2048), pattern(2048, 4));
    assert_eq!(pair.a().qp.counters().timeouts, 0);
}

#[test]
fn an_acknowledgement_behind_a_lost_answer_tells_that_it_was_lost() {
    let mut pair = Pair::new();
    pair.a().write(0, b"first");
    pair.run();
    let begin = pair.now_ns;
    pair.tell(loses(Opcode::ReadResponseOnly, 1));
    pair.a().read(100, 0, 5);
    pair.a().write(200, b"behind");
    pair.run();
    assert_eq!(pair.a().memory.get(100, 5), b"first");
    assert_eq!(pair.a().ended().len(), 3);
    assert_eq!((pair.now_ns - begin, pair.a().qp.counters().timeouts), (4 * TRIP_NS, 0));
}

/// A pair that has measured its round trip, and whose window is open.
fn acquainted(config: Config) -> Pair {
    let mut pair = Pair::with(config, [0, 0]);
    pair.a().write(0, b"first");
    pair.run();
    pair.told.clear();
    pair
}

#[test]
fn a_peer_that_waits_for_its_processor_is_not_sent_everything_again() {
    // Three timers, a slice of the scheduler's, many of them.
    for away_ns in [3 * 1_250_000, 6_000_000, 60_000_000] {
        let mut pair = acquainted(small());
        pair.take_processor(B, away_ns);
        for round in 0..10u8 {
            pair.a().write(u64::from(round) * 2000, &pattern(1999, round));
        }
        pair.a().read(1 << 17, 0, 900);
        pair.run();
        assert_eq!(pair.a().ended().len(), 12);
        for round in 0..10u8 {
            assert_eq!(pair.b().memory.get(u64::from(round) * 2000, 1999), pattern(1999, round));
        }
        let counters = pair.a().qp.counters();
        assert!(counters.timeouts > 0, "{away_ns}: nobody waited");
        assert_eq!(counters.repeated, counters.timeouts, "{away_ns}: {:?}", pair.told);
        assert!(counters.repeated <= 7, "{away_ns}: {counters:?}");
        assert_eq!(counters.naks, 0);
    }
}

#[test]
fn reads_of_a_peer_that_waits_for_its_processor_are_not_asked_for_again() {
    let config = Config { read_packets_max: 1, reads_max: 64, answers_max: 64, ..small() };
    let mut pair = acquainted(config);
    pair.b().memory.put(0, &pattern(256 * 40, 4));
    pair.take_processor(B, 10_000_000);
    pair.a().read(1 << 16, 0, 256 * 40);
    pair.run();
    assert_eq!(pair.a().memory.get(1 << 16, 256 * 40), pattern(256 * 40, 4));
    assert!(pair.a().qp.counters().repeated <= 4, "{:?}", pair.told);
}

#[test]
fn a_train_that_is_lost_as_a_whole_is_there_within_two_milliseconds() {
    let mut pair = acquainted(small());
    let begin = pair.now_ns;
    pair.tell(|sent| match (sent.from, sent.repetition) {
        (A, 0) => Fate::IsLost,
        _ => Fate::Arrives,
    });
    pair.a().post_as(write(0, &pattern(256 * 8, 5), Some(1)), false);
    pair.run_until(begin + 2_000_000);
    assert_eq!(pair.b().received().len(), 1);
    assert_eq!(pair.b().memory.get(0, 256 * 8), pattern(256 * 8, 5));
    assert_eq!((pair.a().qp.counters().timeouts, pair.a().qp.counters().repeated), (1, 9));
}

#[test]
fn who_did_not_hear_what_is_missing_is_told_again() {
    let mut pair = acquainted(small());
    pair.tell(|sent| match (sent.opcode, sent.psn, sent.repetition) {
        (Opcode::WriteFirst | Opcode::Acknowledge, 1, 0) => Fate::IsLost,
        _ => Fate::Arrives,
    });
    pair.a().write(0, &pattern(1024, 3));
    pair.run();
    assert_eq!(pair.b().memory.get(0, 1024), pattern(1024, 3));
    assert_eq!(pair.a().qp.counters().timeouts, 1, "{:?}", pair.told);
    assert_eq!(pair.a().ended().len(), 2);
}

#[test]
fn who_has_no_receive_is_tried_again_when_it_says() {
    let mut pair = Pair::strict(Config::default(), [0, 0]);
    pair.a().send(b"patience", Some(1));
    pair.run_until(TRIP_NS * 2);
    assert_eq!(pair.told, ["a SendOnlyImm 0", "b Acknowledge 0 rnr"]);
    pair.run_until(TRIP_NS * 2 + 639_999);
    assert_eq!(pair.told.len(), 2, "it waits as long as it was told");
    pair.b().qp.add_receives(1);
    pair.run();
    assert_eq!(pair.b().received(), [(b"patience".to_vec(), Some(1))]);
    assert_eq!(pair.told[2..], ["a SendOnlyImm 0", "b Acknowledge 0"]);
}

#[test]
fn the_bytes_of_a_write_wait_for_room_for_its_immediate() {
    let mut pair = Pair::strict(small(), [0, 0]);
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
    pair.tell(move |_| if down.get() { Fate::IsLost } else { Fate::Arrives });
    pair.a().write(0, &pattern(20_000, 1));
    pair.a().fetch_add(1 << 16, 1);
    pair.b().send(b"hello", None);
    pair.run_until(begin + 4_700_000_000);
    let lost = pair.told.len();
    assert!(lost < 120, "no storm while nobody answers: {lost}");
    is_down.set(false);
    pair.run_until(begin + 5_000_000_000);
    assert_eq!(pair.b().memory.get(0, 20_000), pattern(20_000, 1));
    assert_eq!(pair.b().memory.word(1 << 16), 1);
    assert_eq!(pair.a().received().len(), 1);
    assert_eq!(pair.a().ended().len(), 3);
}

#[test]
fn a_storm_of_losses_both_ways_ends_with_everything_done_once() {
    let mut pair = Pair::with(small(), [0xff_ff00, 3]);
    let mut random = Random(7);
    pair.tell(move |_| if random.below(10) < 3 { Fate::IsLost } else { Fate::Arrives });
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
        let heard: Vec<u8> = pair.end(side).received().iter().map(|(bytes, _)| bytes[0]).collect();
        assert_eq!(heard, (0..40).collect::<Vec<u8>>());
        assert_eq!(pair.end(side).memory.get(39_000, 999), pattern(999, 39));
        assert_eq!(pair.end(side).found(), (0..40).collect::<Vec<u64>>());
        assert_eq!(pair.end(side).ended().len(), 160);
    }
}

#[test]
fn an_answer_that_can_never_come_again_ends_with_the_lease() {
    let mut pair = Pair::with(lease_ms(50), [0, 0]);
    pair.a().write(0, b"first");
    pair.run();
    let begin = pair.now_ns;
    pair.tell(loses(Opcode::ReadResponseOnly, 1));
    pair.a().read(100, 0, 5);
    pair.a().send(b"behind", None);
    pair.run_until(begin + 3 * TRIP_NS / 2);
    pair.b().memory.take_away(KEY);
    pair.run();
    assert_eq!(pair.a().ended()[1..], [(1, Status::RetryExceeded), (2, Status::Aborted)]);
    assert!(pair.now_ns - begin < 100_000_000);
}
