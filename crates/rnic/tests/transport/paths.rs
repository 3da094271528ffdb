//! Path MTU discovery: on paths that silently drop long packets, the ends find the MTU and split longer packets into
//! parts.

use std::cell::Cell;
use std::rc::Rc;

use halite_rnic::wire::Opcode;
use halite_rnic::{Config, Congestion, Mtu, Operation, Status};

use crate::pair::*;

/// Length in bytes of the longest packets that pass from A to B, and from B to A.
type Limits = Rc<Cell<[usize; 2]>>;

/// Returns the length in bytes of the longest packet with a payload of this size.
fn longest(mtu: Mtu) -> usize {
    44 + mtu.bytes() as usize
}

/// Returns a configuration with path MTU discovery and a negotiated MTU of 4096 bytes.
fn config() -> Config {
    Config {
        mtu: Mtu::Bytes4096,
        finds_path: true,
        write_packets_max: 1,
        read_packets_max: 1,
        ..Config::default()
    }
}

fn pair_over(limits: &Limits) -> Pair {
    pair_with(config(), limits)
}

fn pair_with(config: Config, limits: &Limits) -> Pair {
    let mut pair = Pair::with(config, [0x11, 0x22]);
    let limits = limits.clone();
    pair.set_filter(move |sent| match limits.get()[sent.from as usize] {
        limit if sent.bytes > limit => Fate::Lost,
        _ => Fate::Delivered,
    });
    pair
}

fn both(mtu: Mtu) -> Limits {
    Rc::new(Cell::new([longest(mtu); 2]))
}

/// Runs path MTU discovery at both ends, as after connecting.
fn discover(pair: &mut Pair) {
    let now_ns = pair.now_ns;
    [A, B].into_iter().for_each(|side| pair.end(side).qp.find_path(now_ns));
    run_ms(pair, 400);
}

fn run_ms(pair: &mut Pair, milliseconds: u64) {
    let until_ns = pair.now_ns + milliseconds * 1_000_000;
    pair.run_until(until_ns);
}

fn path_mtus(pair: &mut Pair) -> [Mtu; 2] {
    [A, B].map(|side| pair.end(side).qp.path_mtu())
}

/// Checks that `count` requests have completed, all of them with success.
fn check_success(completed: &[(u64, Status)], count: usize) {
    assert_eq!(completed.len(), count, "{completed:?}");
    assert!(completed.iter().all(|(_, status)| *status == Status::Success), "{completed:?}");
}

/// Checks writes, reads, sends and an atomic of each side.
fn check_all_operations(pair: &mut Pair) {
    let text = pattern(50_000, 3);
    for side in [A, B] {
        let (to, from) = (side as u64 * 60_000, 120_000 + side as u64 * 60_000);
        pair.end(side.other()).memory.put(from, &text);
        let before = (pair.end(side.other()).received().len(), pair.end(side).completions().len());
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
        let completed = pair.end(side).completions().split_off(before.1);
        check_success(&completed, 5);
        assert_eq!(pair.end(side.other()).memory.get(to + 5000, 45_000), text[5000..]);
        assert_eq!(pair.end(side).memory.get(to, 50_000), text);
        assert_eq!(pair.end(side.other()).memory.word(8 + to + 50_000), word + 1, "executed once");
        let received = pair.end(side.other()).received().split_off(before.0);
        assert_eq!(received, [(text[..20_000].to_vec(), Some(7)), (vec![], Some(8))]);
    }
}

#[test]
fn longer_packets_are_sent_in_parts() {
    for mtu in [Mtu::Bytes256, Mtu::Bytes512, Mtu::Bytes1024, Mtu::Bytes2048] {
        let mut pair = pair_over(&both(mtu));
        discover(&mut pair);
        assert_eq!(path_mtus(&mut pair), [mtu; 2]);
        pair.log.clear();
        check_all_operations(&mut pair);
        let is_lost = |line: &&String| line.contains("lost") && !line.contains("Probe");
        assert_eq!(pair.log.iter().find(is_lost), None, "a packet was too long");
        assert_eq!(pair.a().qp.counters().timeouts, 0);
    }
}

#[test]
fn operations_in_flight_survive_a_shrinking_mtu() {
    for limits in
        [[longest(Mtu::Bytes1024); 2], [longest(Mtu::Bytes512), 5000], [5000, longest(Mtu::Bytes512)]]
    {
        let path = both(Mtu::Bytes4096);
        let mut pair = pair_over(&path);
        discover(&mut pair);
        check_all_operations(&mut pair);
        path.set(limits);
        check_all_operations(&mut pair);
        assert!(path_mtus(&mut pair).into_iter().max() < Some(Mtu::Bytes2048), "{:?}", path_mtus(&mut pair));
    }
}

#[test]
fn larger_path_mtu_is_found_after_the_path_recovers() {
    let path = both(Mtu::Bytes1024);
    let mut pair = pair_over(&path);
    discover(&mut pair);
    run_ms(&mut pair, 10_000);
    path.set([5000; 2]);
    run_ms(&mut pair, 10_000);
    assert_eq!(path_mtus(&mut pair), [Mtu::Bytes4096; 2]);
    check_all_operations(&mut pair);
}

#[test]
fn larger_path_mtu_is_found_over_a_long_path() {
    let path = both(Mtu::Bytes1024);
    let mut pair = pair_over(&path);
    let limits = path.clone();
    pair.set_filter(move |sent| match sent.bytes > limits.get()[sent.from as usize] {
        true => Fate::Lost,
        false => Fate::Delayed(200_000_000),
    });
    // The earlier connection found a smaller MTU.
    pair.a().qp.expect_path(0, Mtu::Bytes512);
    pair.a().qp.find_path(0);
    run_ms(&mut pair, 399);
    assert!(!pair.a().qp.is_path_answered());
    run_ms(&mut pair, 5000);
    assert_eq!(path_mtus(&mut pair), [Mtu::Bytes1024; 2]);
    pair.a().qp.expect_round_trip(400_000_000);
    path.set([5000; 2]);
    run_ms(&mut pair, 60_000);
    assert_eq!(path_mtus(&mut pair), [Mtu::Bytes4096; 2]);
}

#[test]
fn lost_duplicated_or_late_parts_corrupt_nothing() {
    for seed in 0..50 {
        let path = both(Mtu::Bytes512);
        let mut pair = pair_over(&path);
        discover(&mut pair);
        let mut random = Random(seed);
        pair.set_filter(move |sent| match (sent.opcode, random.below(40)) {
            (Opcode::Part, 0) => Fate::Lost,
            (Opcode::Part, 1) => Fate::Duplicated(random.below(300_000)),
            (Opcode::Part, 2) => Fate::Delayed(random.below(300_000)),
            (Opcode::Part, 3) => Fate::Damaged(random.below(4000) as usize),
            _ => Fate::Delivered,
        });
        check_all_operations(&mut pair);
    }
}

#[test]
fn parts_of_many_packets_may_arrive_in_any_order() {
    let config = Config { selective: true, fills_path: true, reads_max: 128, answers_max: 128, ..config() };
    let mut pair = pair_with(config, &both(Mtu::Bytes512));
    discover(&mut pair);
    let text = pattern(100_000, 3);
    pair.b().memory.put(100_000, &text);
    let mut random = Random(1);
    pair.set_filter(move |sent| match sent.bytes {
        bytes if bytes > longest(Mtu::Bytes512) => Fate::Lost,
        bytes => Fate::Delayed(if bytes > 200 { random.below(2_000_000) } else { 0 }),
    });
    // The first requests show how far this path reorders packets.
    for _ in 0..2 {
        pair.a().write(0, &text);
        pair.a().read(0, 100_000, text.len() as u32);
        run_ms(&mut pair, 1000);
    }
    let before = pair.a().qp.counters().repeated;
    for _ in 0..10 {
        pair.a().write(0, &text);
        pair.a().read(0, 100_000, text.len() as u32);
    }
    run_ms(&mut pair, 4000);
    check_success(&pair.a().completions(), 24);
    let repeated = pair.a().qp.counters().repeated - before;
    assert!(repeated <= 10, "{repeated} of 500 packets were retransmitted");
}

#[test]
fn delay_controller_does_not_mistake_reordering_for_a_queue() {
    let config = Config { selective: true, fills_path: true, congestion: Congestion::Delay, ..config() };
    let mut pair = pair_with(config, &both(Mtu::Bytes1024));
    discover(&mut pair);
    let text = pattern(100_000, 3);
    let mut random = Random(1);
    pair.set_filter(move |_| Fate::Delayed(random.below(5_000_000)));
    for _ in 0..20 {
        pair.a().write(0, &text);
    }
    run_ms(&mut pair, 1500);
    let completed = pair.a().completions().len();
    assert!(completed == 20, "{completed} of 20 writes of 100 KB, window {}", pair.a().qp.window_packets());
}

#[test]
fn operations_in_flight_survive_a_shrinking_mtu_of_a_long_path() {
    let config = Config { selective: true, fills_path: true, ..config() };
    let mut pair = Pair::with(config, [0x11, 0x22]);
    let bytes_max = Rc::new(Cell::new(5000));
    let limit = bytes_max.clone();
    pair.set_filter(move |sent| match sent.bytes > limit.get() {
        true => Fate::Lost,
        false => Fate::Delayed(200_000_000 - ONE_WAY_NS),
    });
    [A, B].into_iter().for_each(|side| pair.end(side).qp.find_path(0));
    run_ms(&mut pair, 2000);
    let text = pattern(100_000, 3);
    pair.a().write(0, &text);
    run_ms(&mut pair, 5000);
    assert_eq!(pair.a().completions().len(), 1);
    for _ in 0..10 {
        pair.a().write(0, &text);
    }
    run_ms(&mut pair, 300);
    bytes_max.set(900);
    run_ms(&mut pair, 30_000);
    check_success(&pair.a().completions(), 11);
    assert_eq!(pair.b().memory.get(0, text.len()), text);
}

#[test]
fn operations_survive_an_mtu_that_shrinks_at_any_time() {
    let text = pattern(100_000, 3);
    for after_ms in (0..4_000usize).step_by(200) {
        let config = Config { selective: true, fills_path: true, ..config() };
        let mut pair = Pair::with(config, [0x11, 0x22]);
        let bytes_max = Rc::new(Cell::new(longest(Mtu::Bytes1024)));
        let limit = bytes_max.clone();
        pair.set_filter(move |sent| match sent.bytes > limit.get() {
            true => Fate::Lost,
            false => Fate::Delayed(200_000_000 - ONE_WAY_NS),
        });
        [A, B].into_iter().for_each(|side| pair.end(side).qp.find_path(0));
        run_ms(&mut pair, 2000);
        let before = after_ms / 200;
        for _ in 0..before {
            pair.a().write(0, &text);
            run_ms(&mut pair, 200);
        }
        for _ in 0..10 {
            pair.a().write(0, &text);
        }
        run_ms(&mut pair, 100);
        bytes_max.set(longest(Mtu::Bytes256));
        run_ms(&mut pair, 30_000);
        println!("the MTU shrinks after {after_ms} ms");
        check_success(&pair.a().completions(), before + 10);
    }
}

#[test]
fn packets_in_many_parts_pass_a_lossy_path() {
    for (seed, is_read) in (0..4).flat_map(|seed| [(seed, false), (seed, true)]) {
        let config = Config {
            mtu: Mtu::Bytes1408,
            selective: true,
            tells_waits: true,
            fills_path: true,
            reads_max: 128,
            answers_max: 128,
            ..config()
        };
        let mut pair = pair_over_lossy(config, seed);
        let text = pattern(60_000, 3);
        pair.b().memory.put(100_000, &text);
        for _ in 0..50 {
            match is_read {
                false => pair.a().write(0, &text),
                true => pair.a().read(0, 100_000, text.len() as u32),
            };
        }
        run_ms(&mut pair, 30_000);
        println!("seed {seed}, read {is_read}: {:?}", pair.a().qp.counters());
        check_success(&pair.a().completions(), 50);
    }
}

/// Returns a pair that has found a path MTU of 256 bytes, over which each fifth packet is lost from now on.
fn pair_over_lossy(config: Config, seed: u64) -> Pair {
    let mut pair = pair_with(config, &both(Mtu::Bytes256));
    discover(&mut pair);
    let mut random = Random(seed);
    pair.set_filter(move |sent| match sent.bytes > longest(Mtu::Bytes256) || random.below(5) == 0 {
        true => Fate::Lost,
        false => Fate::Delayed(100_000),
    });
    pair
}
