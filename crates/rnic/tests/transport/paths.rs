//! Paths that swallow long packets without a word: what comes through is found, and what does not leaves in parts.

use std::cell::Cell;
use std::rc::Rc;

use halite_rnic::wire::Opcode;
use halite_rnic::{Config, Mtu, Operation, Status};

use crate::pair::*;

/// Most bytes that come through from A to B, and back.
type Holes = Rc<Cell<[usize; 2]>>;

fn longest(mtu: Mtu) -> usize {
    44 + mtu.bytes() as usize
}

/// Two ends with packets of 4096 bytes that find out about their path.
fn pair_over(holes: &Holes) -> Pair {
    let config = Config {
        mtu: Mtu::Bytes4096,
        finds_path: true,
        write_packets_max: 1,
        read_packets_max: 1,
        ..Config::default()
    };
    let mut pair = Pair::with(config, [0x11, 0x22]);
    let holes = holes.clone();
    pair.tell(move |sent| match holes.get()[sent.from as usize] {
        most if sent.bytes > most => Fate::IsLost,
        _ => Fate::Arrives,
    });
    pair
}

fn both(mtu: Mtu) -> Holes {
    Rc::new(Cell::new([longest(mtu); 2]))
}

/// Both look at the path, as when they have met.
fn meet(pair: &mut Pair) {
    let now_ns = pair.now_ns;
    [A, B].into_iter().for_each(|side| pair.end(side).qp.find_path(now_ns));
    run_ms(pair, 400);
}

fn run_ms(pair: &mut Pair, milliseconds: u64) {
    let until_ns = pair.now_ns + milliseconds * 1_000_000;
    pair.run_until(until_ns);
}

fn found(pair: &mut Pair) -> [Mtu; 2] {
    [A, B].map(|side| pair.end(side).qp.path_mtu())
}

fn count(pair: &Pair, what: &str) -> usize {
    pair.told.iter().filter(|line| line.contains(what) && !line.contains("lost")).count()
}

/// Writes, reads and an atomic of each side; all end well, once, with the bytes that were there.
fn all_goes_well(pair: &mut Pair) {
    let text = pattern(50_000, 3);
    for side in [A, B] {
        let (to, from) = (side as u64 * 60_000, 120_000 + side as u64 * 60_000);
        pair.end(side.other()).memory.put(from, &text);
        let before = (pair.end(side.other()).received().len(), pair.end(side).ended().len());
        let word = pair.end(side.other()).memory.word(8 + to + 50_000);
        let end = pair.end(side);
        end.write(to, &text);
        end.read(to, from, 50_000);
        end.fetch_add(8 + to + 50_000, 1);
        end.send(&text[..20_000], Some(7));
        end.post(Operation::Write {
            source: halite_rnic::Source::Inline(vec![1; 5000]),
            remote: at(to),
            imm: Some(8),
        });
        run_ms(pair, 1000);
        let ended = pair.end(side).ended().split_off(before.1);
        assert!(ended.len() == 5 && ended.iter().all(|(_, status)| *status == Status::Success), "{ended:?}");
        assert_eq!(pair.end(side.other()).memory.get(to + 5000, 45_000), text[5000..]);
        assert_eq!(pair.end(side).memory.get(to, 50_000), text);
        assert_eq!(pair.end(side.other()).memory.word(8 + to + 50_000), word + 1, "done once");
        let received = pair.end(side.other()).received().split_off(before.0);
        assert_eq!(received, [(text[..20_000].to_vec(), Some(7)), (vec![], Some(8))]);
    }
}

#[test]
fn who_has_met_says_its_first_words_in_one_flight() {
    for (holes, first) in [(both(Mtu::Bytes4096), 16), (both(Mtu::Bytes1024), 1)] {
        let mut pair = pair_over(&holes);
        assert_eq!(pair.a().qp.window_packets(), 1, "nothing is known yet");
        meet(&mut pair);
        assert_eq!(
            pair.a().qp.window_packets(),
            first,
            "the answer to a probe says so, if the longest come through"
        );
        assert!(pair.b().qp.take_has_begun(), "who answers it expects something");
        for _ in 0..20 {
            pair.a().send(b"word", None);
        }
        run_ms(&mut pair, 400);
        assert_eq!(pair.b().received().len(), 20);
        assert_eq!(pair.a().qp.window_packets(), 64, "as acknowledgements say from then on");
    }
}

#[test]
fn a_path_that_lets_all_through_costs_two_probes_of_each_end_and_nothing_else() {
    let mut pair = pair_over(&both(Mtu::Bytes4096));
    meet(&mut pair);
    assert_eq!(pair.told.len(), 8, "{:?}", pair.told);
    assert_eq!(found(&mut pair), [Mtu::Bytes4096; 2]);
    assert_eq!([A, B].map(|side| pair.end(side).qp.poll_timeout()), [None; 2], "nobody waits for anything");
    all_goes_well(&mut pair);
    assert_eq!(count(&pair, " Part "), 0);
}

#[test]
fn the_largest_packets_that_come_through_are_found_and_longer_ones_leave_in_parts() {
    for mtu in [Mtu::Bytes256, Mtu::Bytes512, Mtu::Bytes1024, Mtu::Bytes2048] {
        let mut pair = pair_over(&both(mtu));
        meet(&mut pair);
        assert_eq!(found(&mut pair), [mtu; 2]);
        let lost = pair.told.iter().filter(|line| line.contains("lost")).count();
        all_goes_well(&mut pair);
        assert_eq!(
            pair.told.iter().filter(|line| line.contains("lost")).count(),
            lost,
            "nothing is too long"
        );
        assert_eq!(pair.a().qp.counters().timeouts, 0, "and nothing is waited for");
    }
}

#[test]
fn what_came_through_before_is_where_the_next_begins_so_that_nothing_is_lost_meanwhile() {
    for (comes_through, expected) in [(Mtu::Bytes1024, Mtu::Bytes1024), (Mtu::Bytes2048, Mtu::Bytes512)] {
        let mut pair = pair_over(&both(comes_through));
        for side in [A, B] {
            let now_ns = pair.now_ns;
            pair.end(side).qp.expect_path(now_ns, expected);
        }
        assert_eq!(found(&mut pair), [expected; 2]);
        let now_ns = pair.now_ns;
        [A, B].into_iter().for_each(|side| pair.end(side).qp.find_path(now_ns));
        // Nobody waits for the end of the search.
        all_goes_well(&mut pair);
        let lost = pair.told.iter().filter(|line| line.contains("lost"));
        assert!(lost.clone().all(|line| line.contains("Probe")), "{:?}", lost.collect::<Vec<_>>());
        assert_eq!([A, B].map(|side| pair.end(side).qp.counters().timeouts), [0; 2]);
        // A path that has become wider since is found by the first search.
        assert_eq!(found(&mut pair), [comes_through; 2]);
    }
}

#[test]
fn what_comes_through_one_way_only_is_kept_to_by_both() {
    for holes in [[longest(Mtu::Bytes1024), 5000], [5000, longest(Mtu::Bytes1024)]] {
        let mut pair = pair_over(&Rc::new(Cell::new(holes)));
        meet(&mut pair);
        assert_eq!(found(&mut pair), [Mtu::Bytes1024; 2]);
        all_goes_well(&mut pair);
    }
}

#[test]
fn a_path_that_shrinks_while_packets_are_under_way_costs_time_and_nothing_else() {
    for holes in
        [[longest(Mtu::Bytes1024); 2], [longest(Mtu::Bytes512), 5000], [5000, longest(Mtu::Bytes512)]]
    {
        let path = both(Mtu::Bytes4096);
        let mut pair = pair_over(&path);
        meet(&mut pair);
        all_goes_well(&mut pair);
        path.set(holes);
        all_goes_well(&mut pair);
        assert!(found(&mut pair).into_iter().max() < Some(Mtu::Bytes2048), "{:?}", found(&mut pair));
    }
}

#[test]
fn a_path_that_shrinks_is_noticed_within_a_hundred_milliseconds() {
    let path = both(Mtu::Bytes4096);
    let mut pair = pair_over(&path);
    meet(&mut pair);
    path.set([longest(Mtu::Bytes1024); 2]);
    pair.a().write(0, &pattern(20_000, 5));
    run_ms(&mut pair, 100);
    assert_eq!(pair.a().ended(), [(0, Status::Success)]);
}

#[test]
fn answers_that_no_longer_come_through_are_noticed_by_who_asks() {
    let path = both(Mtu::Bytes4096);
    let mut pair = pair_over(&path);
    meet(&mut pair);
    path.set([5000, longest(Mtu::Bytes1024)]);
    pair.b().memory.put(0, &pattern(20_000, 5));
    pair.a().read(0, 0, 20_000);
    run_ms(&mut pair, 100);
    assert_eq!(
        (pair.a().ended(), pair.a().memory.get(0, 20_000)),
        (vec![(0, Status::Success)], pattern(20_000, 5))
    );
    assert_eq!(pair.b().qp.path_mtu(), Mtu::Bytes1024, "the other has been told");
}

#[test]
fn a_link_that_is_down_tells_nothing_of_what_comes_through() {
    let path = both(Mtu::Bytes4096);
    let mut pair = pair_over(&path);
    meet(&mut pair);
    path.set([0; 2]);
    pair.told.clear();
    pair.a().write(0, &pattern(20_000, 5));
    run_ms(&mut pair, 3000);
    assert!(pair.told.len() < 100, "no storm: {}", pair.told.len());
    path.set([5000; 2]);
    run_ms(&mut pair, 2000);
    assert_eq!((pair.a().ended(), found(&mut pair)), (vec![(0, Status::Success)], [Mtu::Bytes4096; 2]));
}

#[test]
fn a_path_that_lets_more_through_again_is_used_so_after_a_minute() {
    let path = both(Mtu::Bytes1024);
    let mut pair = pair_over(&path);
    meet(&mut pair);
    path.set([5000; 2]);
    run_ms(&mut pair, 59_000);
    assert_eq!(found(&mut pair), [Mtu::Bytes1024; 2]);
    run_ms(&mut pair, 2000);
    assert_eq!(found(&mut pair), [Mtu::Bytes4096; 2]);
    all_goes_well(&mut pair);
}

#[test]
fn parts_that_are_lost_or_come_twice_or_late_cost_their_packet_and_nothing_is_mixed_up() {
    for seed in 0..50 {
        let path = both(Mtu::Bytes512);
        let mut pair = pair_over(&path);
        meet(&mut pair);
        let mut random = Random(seed);
        pair.tell(move |sent| match (sent.opcode, random.below(40)) {
            (Opcode::Part, 0) => Fate::IsLost,
            (Opcode::Part, 1) => Fate::ArrivesTwice(random.below(300_000)),
            (Opcode::Part, 2) => Fate::IsLate(random.below(300_000)),
            (Opcode::Part, 3) => Fate::IsDamaged(random.below(4000) as usize),
            _ => Fate::Arrives,
        });
        all_goes_well(&mut pair);
    }
}
