//! Units and caches of adapters. All other hardware takes almost no time.

use crate::common;

use common::{Pair, Side, pair, remote, run_for};
use halite_fabric::{Class, Fabric, Key, Lane, Local, Operation};
use halite_mem::{PagePolicy, Segment};
use halite_sim::{Adapter, Profile, World};

const ADAPTER: Adapter = Adapter {
    packet_ns: 100,
    gather_ns: 30,
    fetch_ns: 500,
    cached_connections: 4,
    cached_keys: 4,
    cached_pages: 250,
    receive_ns: 20,
    spin_ns: 0,
};
/// Time of a short write whose state is cached: the sending unit, the receiving unit, and 1 ns of the wire each way.
const CACHED_NS: u64 = 2 * ADAPTER.packet_ns + 2;
const SECOND_LANE: Lane = Lane { number: 1, class: Class::Bulk, flow: 0 };

fn adapters() -> Pair {
    let cx3 = Profile::named("cx3-40g").unwrap();
    pair(
        1,
        Profile {
            post_ns: 0,
            doorbell_ns: 0,
            pcie_ns: 0,
            dma_ns_per_kib: 0,
            wire_ns: 0,
            completion_ns: 0,
            poll_ns: 0,
            interrupt_ns: 0,
            header_bytes: 0,
            bandwidth_bytes_per_us: 10_000_000,
            adapter: Some(ADAPTER),
            ..cx3
        },
    )
}

fn short_write(key: Key, offset: u64) -> Operation<'static> {
    Operation::Write { local: Local::Inline(b"12345678"), remote: remote(key, offset) }
}

/// Posts requests to lanes, and returns the times until they have completed.
fn times_ns(world: &World, side: &Side, posts: &[(Lane, Operation<'_>)]) -> Vec<u64> {
    let begin_ns = world.now_ns();
    for (id, (lane, operation)) in (0..).zip(posts) {
        side.fabric.post(side.peer, *lane, &[common::request(id, *operation)]).unwrap();
    }
    let mut times_ns = Vec::new();
    while times_ns.len() < posts.len() {
        run_for(world, 1);
        times_ns.extend(side.completed().iter().map(|_| world.now_ns() - begin_ns));
    }
    times_ns
}

#[test]
fn a_unit_handles_one_packet_at_a_time() {
    let Pair { world, one, two } = &adapters();
    let write = (Lane::FIRST, short_write(two.key, 0));
    times_ns(world, one, &[write]);
    assert_eq!(times_ns(world, one, &[write; 3]), [CACHED_NS, CACHED_NS + 100, CACHED_NS + 200]);
    run_for(world, 5_000);
    assert_eq!(times_ns(world, one, &[write]), [CACHED_NS], "an idle unit begins at once");
}

#[test]
fn a_queue_pair_that_has_just_sent_prefetches_its_payload() {
    let Pair { world, one, two } = &adapters();
    let write = Operation::Write { local: one.source(1024), remote: remote(two.key, 0) };
    let (same, other) = ([(Lane::FIRST, write); 2], [(Lane::FIRST, write), (SECOND_LANE, write)]);
    times_ns(world, one, &other);
    run_for(world, 5_000);
    assert_eq!(times_ns(world, one, &same), [CACHED_NS + 30, CACHED_NS + 130]);
    run_for(world, 5_000);
    // The unit gathers the payload of another queue pair only when the wire is free, 1 ns after the last packet.
    assert_eq!(times_ns(world, one, &other), [CACHED_NS + 30, CACHED_NS + 161]);
}

/// Registers the memory of `side` in pages of 1 KiB, and waits until the peer knows the key.
fn register_in_pages(world: &World, side: &Side) -> Key {
    let segment = Segment::create("pages", common::SEGMENT_BYTES, PagePolicy::Normal).unwrap();
    let key = side.fabric.register_in_pages(segment, 1024).unwrap();
    run_for(world, 5_000);
    key
}

#[test]
fn a_receiving_unit_stalls_for_misses_and_takes_receives() {
    let Pair { world, one, two } = &adapters();
    let key = register_in_pages(world, two);
    let write = (Lane::FIRST, short_write(key, 1020));
    assert_eq!(
        times_ns(world, one, &[write]),
        [CACHED_NS + 5 * 500],
        "the sender misses the queue pair, and the receiver the queue pair, the key and two pages"
    );
    assert_eq!(times_ns(world, one, &[write]), [CACHED_NS]);
    assert_eq!(times_ns(world, one, &[(Lane::FIRST, short_write(two.key, 0))]), [CACHED_NS + 500]);
    let message = (Lane::FIRST, Operation::Send { bytes: b"12345678", imm: 0 });
    assert_eq!(times_ns(world, one, &[message]), [CACHED_NS + 20]);
}

/// With uniformly random accesses, the hit rate of random replacement is the share of entries that fit.
#[test]
fn the_hit_rate_of_a_cache_falls_smoothly() {
    let Pair { world, one, two } = &adapters();
    let key = register_in_pages(world, two);
    let mut random = world.random("pages");
    let mut misses_of_2000 = |pages: u64| {
        let mut is_miss = || {
            let write = short_write(key, random.below(pages) * 1024);
            let begin_ns = world.now_ns();
            one.post(1, write);
            while one.completed().is_empty() {
                run_for(world, 100);
            }
            world.now_ns() - begin_ns > CACHED_NS + 250
        };
        let _warm_up = (0..2_000).filter(|_| is_miss()).count();
        (0..2_000).filter(|_| is_miss()).count()
    };
    assert_eq!(misses_of_2000(250), 0);
    assert!(misses_of_2000(500).abs_diff(1_000) < 100, "half of the entries fit");
    assert!(misses_of_2000(1_000).abs_diff(1_500) < 100, "a quarter of them fits");
}
