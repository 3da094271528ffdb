//! Go-back-N: lost packets are retransmitted with all packets behind them, and no packet is executed twice.

use halite_rnic::wire::Opcode;
use halite_rnic::{Config, Mtu};

use crate::pair::*;

/// Loses the first packet of this kind and number.
fn lose(opcode: Opcode, psn: u32) -> impl FnMut(&Sent) -> Fate {
    move |sent| match (sent.opcode, sent.psn, sent.repetition) {
        (sent_opcode, sent_psn, 0) if sent_opcode == opcode && sent_psn == psn => Fate::Lost,
        _ => Fate::Delivered,
    }
}

fn small() -> Config {
    Config { mtu: Mtu::Bytes256, ..Config::default() }
}

#[test]
fn lost_request_arrives_within_two_milliseconds() {
    let mut pair = Pair::new();
    pair.set_filter(lose(Opcode::WriteOnlyImm, 0));
    pair.a().post_as(write(0, b"request", Some(1)), false);
    pair.run_until(2_000_000);
    assert_eq!(pair.b().received(), [(vec![], Some(1))]);
    assert_eq!(pair.log, ["a WriteOnlyImm 0 lost", "a WriteOnlyImm 0", "b Acknowledge 0"]);
    assert_eq!(pair.a().qp.counters().timeouts, 1);
}

#[test]
fn all_packets_behind_a_gap_are_retransmitted() {
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

/// Returns a pair with a measured round trip and an open window.
fn pair_after_first_write(config: Config) -> Pair {
    let mut pair = Pair::with(config, [0, 0]);
    pair.a().write(0, b"first");
    pair.run();
    pair.log.clear();
    pair
}

#[test]
fn a_descheduled_peer_causes_few_retransmissions() {
    // These are three timeouts, one time slice of the scheduler, and many time slices.
    for descheduled_ns in [3 * 1_250_000, 6_000_000, 60_000_000] {
        let mut pair = pair_after_first_write(small());
        pair.deschedule(B, descheduled_ns);
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
        assert!(counters.timeouts > 0, "{descheduled_ns}: no timeout");
        assert_eq!(counters.repeated, counters.timeouts, "{descheduled_ns}: {:?}", pair.log);
        assert!(counters.repeated <= 7, "{descheduled_ns}: {counters:?}");
        assert_eq!(counters.naks, 0);
    }
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
fn a_link_outage_shorter_than_the_lease_is_not_reported() {
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
    let sent = pair.log.len();
    assert!(sent < 120, "packet storm while the link is down: {sent} packets");
    is_down.set(false);
    pair.run_until(begin + 5_000_000_000);
    assert_eq!(pair.b().memory.get(0, 20_000), pattern(20_000, 1));
    assert_eq!(pair.b().memory.word(1 << 16), 1);
    assert_eq!(pair.a().received().len(), 1);
    assert_eq!(pair.a().completions().len(), 3);
}
