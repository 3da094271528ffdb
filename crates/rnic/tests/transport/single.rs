//! Between ends that repeat single packets: each kind of loss costs what was lost, and nothing lands out of order or twice.

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

/// A pair that has measured its round trip, and whose window is open: packet 1 is the next.
fn acquainted_as(config: Config, psns: [u32; 2]) -> Pair {
    let mut pair = Pair::with(config, psns);
    pair.a().write(0, b"first");
    pair.run();
    pair.told.clear();
    pair
}

fn acquainted() -> Pair {
    acquainted_as(selective(), [0, 0])
}

/// Packets that A sends for the first time and whose number is one of these are lost.
fn loses(numbers: impl Fn(u32) -> bool + 'static) -> impl FnMut(&Sent) -> Fate {
    move |sent| {
        if sent.from == A && sent.repetition == 0 && numbers(sent.psn) { Fate::IsLost } else { Fate::Arrives }
    }
}

/// A writes `packets` full packets, which all arrive; returns how many packets left twice.
fn write_all(pair: &mut Pair, packets: u32) -> u64 {
    let before = pair.a().qp.counters().repeated;
    let bytes = pattern(packets as usize * 256, 7);
    let ended = pair.a().ended().len();
    pair.a().write(0, &bytes);
    pair.run();
    assert_eq!(pair.b().memory.get(0, bytes.len()), bytes);
    assert_eq!(pair.a().ended().len(), ended + 1);
    pair.a().qp.counters().repeated - before
}

#[test]
fn one_packet_that_is_lost_is_the_only_one_that_comes_again() {
    let mut pair = acquainted();
    pair.tell(loses(|psn| psn == 3));
    let begin = pair.now_ns;
    assert_eq!(write_all(&mut pair, 8), 1);
    assert_eq!(
        pair.told,
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
    assert_eq!(pair.now_ns - begin, 4 * TRIP_NS, "no timer was waited for");
    assert_eq!((pair.b().qp.counters().kept, pair.b().qp.counters().duplicates), (5, 0));
}

#[test]
fn each_of_several_losses_is_repaired_by_itself_in_one_round() {
    let mut pair = acquainted();
    pair.tell(loses(|psn| psn % 5 == 0));
    assert_eq!(write_all(&mut pair, 40), 8);
    assert_eq!(pair.b().qp.counters().duplicates, 0);
    assert_eq!(pair.a().qp.counters().timeouts, 0);
}

#[test]
fn a_repetition_that_is_lost_is_repeated_when_others_behind_it_have_come() {
    let mut pair = acquainted();
    pair.tell(|sent| {
        if sent.psn == 2 && sent.from == A && sent.repetition < 2 { Fate::IsLost } else { Fate::Arrives }
    });
    pair.a().write(0, &pattern(256 * 8, 7));
    let now = pair.now_ns;
    // More leaves just behind the repetition.
    pair.run_until(now + 2 * TRIP_NS);
    pair.a().write(4096, &pattern(256 * 4, 8));
    pair.run();
    assert_eq!(pair.b().memory.get(0, 256 * 8), pattern(256 * 8, 7));
    assert_eq!(pair.b().memory.get(4096, 1024), pattern(1024, 8));
    assert_eq!((pair.a().qp.counters().repeated, pair.a().qp.counters().timeouts), (2, 0), "{:?}", pair.told);
}

#[test]
fn a_train_that_is_lost_as_a_whole_comes_again_when_its_last_packet_was_asked_about() {
    let mut pair = acquainted();
    pair.tell(loses(|_| true));
    let begin = pair.now_ns;
    // The one that asks, which arrives and shows that seven are missing, is one of eight.
    assert_eq!(write_all(&mut pair, 8), 8);
    assert!(pair.now_ns - begin < 2_000_000, "{}", pair.now_ns - begin);
}

#[test]
fn a_train_in_the_middle_comes_again_without_waiting_and_nothing_else_does() {
    let mut pair = acquainted();
    pair.tell(loses(|psn| (9..25).contains(&psn)));
    assert_eq!(write_all(&mut pair, 48), 16);
    assert_eq!(pair.a().qp.counters().timeouts, 0);
}

#[test]
fn the_last_packet_is_asked_for_after_a_while() {
    let mut pair = acquainted();
    pair.tell(loses(|psn| psn == 8));
    let begin = pair.now_ns;
    assert_eq!(write_all(&mut pair, 8), 1);
    assert!(pair.now_ns - begin < 2_000_000);
}

#[test]
fn the_last_but_one_is_not_waited_for_by_the_timer() {
    let mut pair = acquainted();
    pair.tell(loses(|psn| psn == 7));
    let begin = pair.now_ns;
    assert_eq!(write_all(&mut pair, 8), 1);
    assert_eq!(pair.a().qp.counters().timeouts, 0);
    assert!(pair.now_ns - begin < 200_000, "{}", pair.now_ns - begin);
}

#[test]
fn lost_acknowledgements_cost_one_packet() {
    let mut pair = acquainted();
    pair.tell(|sent| if sent.from == B && sent.repetition == 0 { Fate::IsLost } else { Fate::Arrives });
    assert_eq!(write_all(&mut pair, 8), 1, "{:?}", pair.told);
    assert_eq!(pair.b().qp.counters().duplicates, 1);
}

#[test]
fn what_is_missing_is_told_again_to_who_did_not_hear_it() {
    let mut pair = acquainted();
    pair.tell(|sent| match (sent.from, sent.opcode, sent.psn, sent.repetition) {
        (A, _, 2, 0) | (B, Opcode::Missing, _, 0) => Fate::IsLost,
        _ => Fate::Arrives,
    });
    assert_eq!(
        write_all(&mut pair, 8),
        2,
        "the newest, to ask, and the one that is missing: {:?}",
        pair.told
    );
}

#[test]
fn a_hole_that_is_filled_while_the_acknowledgement_is_lost_does_not_wait_for_ever() {
    let mut pair = acquainted();
    pair.tell(|sent| match (sent.from, sent.opcode, sent.psn, sent.repetition) {
        (A, _, 2, 0) | (B, Opcode::Acknowledge, 8, 0) => Fate::IsLost,
        _ => Fate::Arrives,
    });
    // All but the hole is known to be kept: nothing is lost, and nothing under way.
    assert_eq!(write_all(&mut pair, 8), 2, "{:?}", pair.told);
}

#[test]
fn a_repetition_that_is_lost_while_the_rest_is_known_to_be_kept_is_repeated_within_milliseconds() {
    for times in 1..8 {
        let mut pair = acquainted();
        pair.tell(move |sent| match (sent.from, sent.psn) {
            (A, 2) if sent.repetition < times => Fate::IsLost,
            _ => Fate::Arrives,
        });
        let begin = pair.now_ns;
        write_all(&mut pair, 8);
        // Each time the newest is asked by once, and the answer to that is that nothing has changed.
        let took_ns = pair.now_ns - begin;
        assert!(took_ns < 4_000_000 * times as u64, "{times}: {took_ns}, {:?}", pair.told);
    }
}

#[test]
fn so_it_is_where_packets_come_sooner_than_any_before() {
    let mut pair = Pair::with(selective(), [0, 0]);
    pair.tell(|_| Fate::IsLate(200_000));
    pair.a().write(0, b"first");
    pair.run();
    pair.tell(|sent| match (sent.from, sent.psn) {
        (A, 2) if sent.repetition < 2 => Fate::IsLost,
        (A, _) if sent.repetition == 0 => Fate::IsLate(200_000),
        _ => Fate::Arrives,
    });
    let begin = pair.now_ns;
    write_all(&mut pair, 8);
    assert!(pair.now_ns - begin < 10_000_000, "{}", pair.now_ns - begin);
}

#[test]
fn what_was_kept_is_asked_about_when_nothing_else_is_under_way() {
    let mut pair = acquainted();
    pair.b().memory.put(0, b"bytes");
    pair.tell(|sent| match (sent.opcode, sent.psn, sent.repetition) {
        (Opcode::ReadRequest, 1, 0) | (Opcode::Acknowledge, 4, 0) => Fate::IsLost,
        _ => Fate::Arrives,
    });
    pair.a().read(1 << 16, 0, 5);
    for round in 0..3 {
        pair.a().write(100 + round, b"x");
    }
    let begin = pair.now_ns;
    pair.run();
    // All but the read was said to be kept, and the read is answered: only the last acknowledgement was lost.
    assert!(pair.told.contains(&"b Acknowledge 4 lost".to_owned()), "{:?}", pair.told);
    assert_eq!(pair.a().ended().len(), 5);
    assert!(pair.now_ns - begin < 3_000_000);
}

#[test]
fn a_path_that_is_much_longer_than_the_first_wait_is_known_after_one_packet() {
    let mut pair = Pair::with(selective(), [0, 0]);
    pair.tell(|sent| if sent.from == A { Fate::IsLate(30_000_000) } else { Fate::Arrives });
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
    let mut pair = acquainted();
    pair.tell(|sent| match (sent.from, sent.repetition) {
        (A, 0) => Fate::ArrivesTwice(700_000 + 10_000 * u64::from(sent.psn % 7)),
        _ => Fate::Arrives,
    });
    for round in 0..6u8 {
        pair.a().write(0, &pattern(1024, round));
    }
    pair.a().fetch_add(1 << 16, 1);
    pair.run_until(650_000);
    assert_eq!(pair.b().memory.get(0, 1024), pattern(1024, 5));
    // What others have made of these bytes since stays.
    pair.b().memory.put(0, &[9; 1024]);
    pair.run();
    assert_eq!(pair.b().memory.get(0, 1024), [9; 1024]);
    assert_eq!(pair.b().memory.word(1 << 16), 1);
    assert_eq!(pair.b().qp.counters().duplicates, 25);
}

#[test]
fn a_duplicate_of_what_is_kept_is_one_too() {
    let mut pair = acquainted();
    pair.tell(|sent| match (sent.from, sent.psn, sent.repetition) {
        (A, 1, 0) => Fate::IsLost,
        (A, 2.., 0) => Fate::ArrivesTwice(0),
        _ => Fate::Arrives,
    });
    assert_eq!(write_all(&mut pair, 5), 1);
    assert_eq!((pair.b().qp.counters().kept, pair.b().qp.counters().duplicates), (4, 4));
}

#[test]
fn packets_that_are_overtaken_are_not_sent_again_unless_by_many() {
    let mut pair = acquainted();
    // By two: nothing is lost.
    pair.tell(|sent| if sent.psn == 2 && sent.from == A { Fate::IsLate(20) } else { Fate::Arrives });
    pair.a().write(0, &pattern(256 * 4, 1));
    pair.run();
    assert_eq!(pair.a().qp.counters().repeated, 0, "{:?}", pair.told);
    assert_eq!(pair.b().memory.get(0, 1024), pattern(1024, 1));
    // By many, again and again: after a few that were sent in vain, more is waited for.
    pair.tell(
        |sent| if sent.psn % 20 == 10 && sent.from == A { Fate::IsLate(15_000) } else { Fate::Arrives },
    );
    let mut repeated = Vec::new();
    for _ in 0..12 {
        repeated.push(write_all(&mut pair, 40));
    }
    assert!(repeated[0] > 0 && repeated[8..] == [0; 4], "{repeated:?}");
}

#[test]
fn what_comes_before_its_turn_is_kept_within_the_bound_and_beyond_it_is_dropped() {
    let mut pair = acquainted_as(selective(), [0xff_fff0, 0]);
    let now = pair.now_ns;
    pair.b().qp.set_grant(now, 4);
    // Four times what is granted: 16 behind the expected one, and not 17.
    for (ahead, kept, dropped) in [(16, 1, 0), (17, 1, 1), (1, 2, 1), (1 << 20, 2, 2)] {
        let psn = pair.psn(A, 1 + ahead);
        let headers = Headers::WriteOnly { reth: RethRepr { address: 0, rkey: KEY, len: 4 }, imm: None };
        let (dest_qp, solicited) = (Qpn::new(0xbbb), false);
        pair.forge(B, &Packet { dest_qp, psn, ack_request: false, solicited, headers, payload: b"ahea" });
        let counters = pair.b().qp.counters();
        assert_eq!((counters.kept, counters.ahead), (kept, dropped), "{ahead}");
    }
    assert_eq!(pair.b().memory.get(0, 4), b"firs", "nothing lands before its turn");
}

#[test]
fn what_is_longer_than_any_packet_is_not_kept() {
    let mut pair = acquainted();
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
        let mut pair = acquainted_as(selective(), [first, first ^ 0x55]);
        pair.tell(loses(|psn| psn % 4 == 2));
        assert_eq!(write_all(&mut pair, 35), 9);
    }
}

#[test]
fn a_damaged_packet_is_a_lost_one() {
    let mut pair = acquainted();
    pair.tell(|sent| match (sent.from, sent.psn, sent.repetition) {
        (A, 3, 0) => Fate::IsDamaged(301),
        (B, ..) if sent.opcode == Opcode::Missing && sent.repetition == 0 => Fate::IsDamaged(170),
        _ => Fate::Arrives,
    });
    assert_eq!(write_all(&mut pair, 8), 2);
    assert_eq!((pair.a().damaged, pair.b().damaged), (1, 1));
}

#[test]
fn writes_to_one_place_land_in_their_order_whichever_is_lost() {
    for lost in 1..6 {
        let mut pair = acquainted();
        pair.tell(loses(move |psn| psn == lost));
        for round in 0..5u8 {
            pair.a().post_as(write(0, &[round; 100], Some(u32::from(round))), true);
        }
        pair.run();
        assert_eq!(pair.b().memory.get(0, 100), [4; 100]);
        let told: Vec<_> = pair.b().received().into_iter().map(|(_, imm)| imm).collect();
        assert_eq!(told, (0..5).map(Some).collect::<Vec<_>>());
        let ended: Vec<_> = pair.a().ended().into_iter().map(|(id, _)| id).collect();
        assert_eq!(ended, (0..6).collect::<Vec<u64>>());
    }
}

#[test]
fn answers_that_are_lost_are_asked_for_by_themselves() {
    let mut pair = acquainted();
    pair.b().memory.put(0, &pattern(256 * 20, 4));
    pair.tell(|sent| match (sent.from, sent.psn, sent.repetition) {
        (B, 3 | 9, 0) => Fate::IsLost,
        _ => Fate::Arrives,
    });
    pair.a().read(1 << 16, 0, 256 * 20);
    pair.a().fetch_add(1 << 17, 5);
    pair.a().write(0, b"behind");
    pair.run();
    assert_eq!(pair.a().memory.get((1 << 16) + 256, 256 * 19), pattern(256 * 20, 4)[256..]);
    assert_eq!((pair.a().qp.counters().repeated, pair.a().qp.counters().timeouts), (2, 0), "{:?}", pair.told);
    assert_eq!(pair.a().ended().len(), 4);
}

#[test]
fn an_atomic_whose_answer_is_lost_is_done_once_though_others_behind_it_are_done() {
    let mut pair = acquainted();
    pair.tell(|sent| match (sent.opcode, sent.psn, sent.repetition) {
        (Opcode::AtomicAcknowledge, 1, 0..8) | (Opcode::AtomicAcknowledge, 4, 0) => Fate::IsLost,
        _ => Fate::Arrives,
    });
    for add in 1..=200 {
        pair.a().fetch_add(8, add);
    }
    pair.run();
    let found: Vec<u64> = (1..=200).map(|add| add * (add - 1) / 2).collect();
    assert_eq!(pair.a().found(), found, "each found what those before it left");
    assert_eq!(pair.b().memory.word(8), 201 * 100);
}

#[test]
fn who_has_no_receive_is_tried_again_and_what_was_kept_is_not_sent_again() {
    let mut pair = Pair::strict(selective(), [0, 0]);
    pair.b().qp.set_grant(0, 64);
    pair.a().write(0, b"first");
    pair.run();
    for round in 0..4u8 {
        pair.a().send(&[round; 10], None);
    }
    pair.run_until(600_000);
    pair.b().qp.add_receives(4);
    pair.run();
    let heard: Vec<u8> = pair.b().received().iter().map(|(bytes, _)| bytes[0]).collect();
    assert_eq!(heard, [0, 1, 2, 3]);
    assert!(pair.a().qp.counters().repeated <= 2, "{:?}", pair.told);
}

/// The refusal took the timer back, and what was refused had no room beside the read, whose answer nobody missed: both waited for ever.
#[test]
fn a_read_whose_answer_is_lost_is_asked_for_again_though_what_is_behind_it_finds_no_receive_and_the_grant_shrinks()
 {
    let mut pair = Pair::strict(selective(), [0, 0]);
    pair.b().qp.set_grant(0, 4);
    pair.a().write(0, b"first");
    pair.run();
    let now = pair.now_ns;
    pair.b().qp.set_grant(now, 1);
    pair.tell(|sent| match (sent.from, sent.opcode, sent.psn, sent.repetition) {
        (B, Opcode::ReadResponseOnly, 2, 0) => Fate::IsLost,
        _ => Fate::Arrives,
    });
    pair.a().read(1 << 16, 0, 5);
    pair.a().read(1 << 17, 0, 5);
    pair.a().send(b"behind", None);
    pair.run_until(now + 5_000_000);
    pair.b().qp.add_receives(1);
    pair.run();
    assert_eq!(pair.a().memory.get(1 << 17, 5), b"first", "{:?}", pair.told);
    assert_eq!(pair.b().received(), [(b"behind".to_vec(), None)]);
}

#[test]
fn a_packet_that_was_kept_and_found_no_receive_is_sent_again_though_its_refusal_is_lost() {
    let mut pair = Pair::strict(selective(), [0, 0]);
    pair.b().qp.set_grant(0, 64);
    pair.a().write(0, b"first");
    pair.run();
    pair.tell(|sent| match (sent.from, sent.opcode, sent.psn, sent.repetition) {
        (A, _, 1, 0) => Fate::IsLost,
        (B, Opcode::Acknowledge, 2, _) => Fate::IsLost,
        _ => Fate::Arrives,
    });
    pair.a().write(0, b"second");
    for round in 0..3u8 {
        pair.a().send(&[round; 10], None);
    }
    pair.run_until(10_000_000);
    assert!(pair.told.contains(&"b Acknowledge 2 rnr lost".to_owned()), "{:?}", pair.told);
    pair.b().qp.add_receives(3);
    pair.run();
    let heard: Vec<u8> = pair.b().received().iter().map(|(bytes, _)| bytes[0]).collect();
    assert_eq!(heard, [0, 1, 2]);
}

#[test]
fn a_message_of_several_packets_is_put_together_in_order() {
    let mut pair = acquainted();
    pair.tell(loses(|psn| psn % 3 == 1));
    pair.a().send(&pattern(256 * 9 + 5, 3), Some(7));
    pair.run();
    assert_eq!(pair.b().received(), [(pattern(256 * 9 + 5, 3), Some(7))]);
}

#[test]
fn a_refusal_among_what_was_kept_ends_the_connection_as_any_other() {
    let mut pair = acquainted();
    pair.tell(loses(|psn| psn == 1));
    pair.a().write(0, b"done");
    pair.a().post(Operation::FetchAdd { remote: at(4), add: 1 });
    pair.a().write(0, b"evil");
    pair.run();
    assert_eq!(pair.b().memory.get(0, 4), b"done");
    let (done, refused, flushed) = (Status::Success, Status::RemoteInvalidRequest, Status::Flushed);
    assert_eq!(pair.a().ended()[1..], [(1, done), (2, refused), (3, flushed)]);
}

#[test]
fn a_peer_that_says_nonsense_of_what_it_kept_harms_itself_only() {
    let mut pair = acquainted();
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
fn towards_others_nothing_of_this_is_sent_or_heeded() {
    let config = Config { selective: false, ..selective() };
    let mut pair = acquainted_as(config, [0, 0]);
    pair.tell(loses(|psn| psn == 3));
    assert_eq!(write_all(&mut pair, 8), 6, "all from the lost one on");
    assert!(!pair.told.iter().any(|told| told.contains("Missing")));
    let aeth = AethRepr { syndrome: Syndrome::Ack(Credit::at_most(64)), msn: 0 };
    let psn = pair.psn(A, 8);
    let (dest_qp, headers) = (Qpn::new(0xaaa), Headers::Missing(aeth));
    pair.forge(A, &Packet { dest_qp, psn, ack_request: false, solicited: false, headers, payload: &[] });
    assert_eq!(pair.a().qp.counters().malformed, 1);
}

/// A pair of which one end has room for a single packet, which is not acquainted.
fn scarce() -> Pair {
    let mut pair = Pair::with(selective(), [0, 0]);
    pair.b().qp.set_grant(0, 1);
    pair
}

/// In the pair's stories the packet before all others has the last number of all.
const BEFORE_ALL: &str = "16777215";

#[test]
fn who_has_little_room_and_no_processor_is_asked_briefly_and_gets_nothing_twice() {
    let mut pair = scarce();
    // Nothing reaches it for as long as three questions take.
    pair.take_processor(B, 10_000_000);
    pair.tell(|sent| {
        assert!(sent.from == B || sent.repetition == 0 && sent.psn < 4 || sent.bytes <= 32, "{sent:?}");
        Fate::Arrives
    });
    pair.a().write(0, &pattern(1024, 3));
    pair.run();
    let asked = format!("a WriteOnly {BEFORE_ALL}");
    assert_eq!(pair.told[..4], ["a WriteOnly 0", &asked, &asked, &asked], "{:?}", pair.told);
    assert_eq!(pair.b().memory.get(0, 1024), pattern(1024, 3));
    assert_eq!((pair.a().qp.counters().repeated, pair.a().ended().len()), (0, 1));
}

#[test]
fn what_was_lost_alone_leaves_again_when_the_peer_says_that_it_has_nothing() {
    for lost in [0, 1] {
        let mut pair = scarce();
        pair.tell(loses(move |psn| psn == lost));
        pair.a().write(0, &pattern(512, 3));
        pair.run();
        let before = if lost == 0 { BEFORE_ALL } else { "0" };
        let story = [
            format!("a WriteOnly {lost} lost"),
            format!("a WriteOnly {before}"),
            format!("b Acknowledge {before}"),
            format!("a WriteOnly {lost}"),
            format!("b Acknowledge {lost}"),
        ];
        assert!(pair.told.windows(5).any(|told| told == story), "{:?}", pair.told);
        assert_eq!(pair.b().memory.get(0, 512), pattern(512, 3));
        assert!(pair.now_ns < 4_000_000, "{} ns", pair.now_ns);
    }
}

#[test]
fn an_answer_that_was_lost_is_asked_for_again_after_a_question() {
    let mut pair = scarce();
    pair.b().memory.put(0, b"salt");
    pair.tell(|sent| match (sent.opcode, sent.repetition) {
        (Opcode::ReadResponseOnly, 0) => Fate::IsLost,
        _ => Fate::Arrives,
    });
    pair.a().read(1 << 16, 0, 4);
    pair.run();
    assert_eq!(pair.a().memory.get(1 << 16, 4), b"salt");
    let story =
        [format!("a WriteOnly {BEFORE_ALL}"), "b Acknowledge 0".to_owned(), "a ReadRequest 0".to_owned()];
    assert!(pair.told.windows(3).any(|told| told == story), "{:?}", pair.told);
}

#[test]
fn the_packet_before_all_others_is_a_question_or_nothing() {
    let mut pair = scarce();
    let (dest_qp, psn) = (pair.b().qp.qpn(), pair.psn(A, BEFORE_ALL.parse().unwrap()));
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
    assert!(pair.told.is_empty() && pair.b().events.is_empty());
    assert_eq!(pair.b().memory.get(0, 4), [0; 4]);
}
