//! Effects and times of requests between two hosts that the profile defines, beyond the conformance suite.

use crate::common;

use common::{LONG_NS, Pair, pair, remote, run_for};
use halite_fabric::{Class, Event, Fabric, Key, Lane, Local, Operation, Status};
use halite_mem::{PagePolicy, Segment, Window};
use halite_sim::{Link, Profile};

/// Lets a processor add to a word while an adapter executes an atomic addition. Returns true if one addition is lost.
fn loses_an_addition(profile: Profile) -> bool {
    let Pair { world, one, two } = pair(1, profile);
    let word = remote(two.key, 16);
    one.post(1, Operation::FetchAdd { remote: word, add: 1 });
    // The time until the atomic arrives, plus half of the time for which the adapter holds the word.
    let Profile { post_ns, doorbell_ns, pcie_ns, wire_ns, atomic_ns, .. } = Profile::rnic_100g();
    run_for(&world, post_ns + doorbell_ns + 2 * pcie_ns + wire_ns + atomic_ns / 2);
    let old = two.memory.fetch_add_u64(16, 1).unwrap();
    run_for(&world, LONG_NS);
    assert_eq!(one.completed(), [(1, Status::Success)]);
    let sum = two.memory.load_u64(16).unwrap();
    assert!(old + 1 == sum || old == 0 && sum == 1, "{old} {sum}");
    sum == 1
}

#[test]
fn an_adapters_atomic_loses_a_processors_addition() {
    assert!(loses_an_addition(Profile::rnic_100g_hca()));
    assert!(!loses_an_addition(Profile::rnic_100g()));
}

/// Registers another segment. When this returns, the announcement of its key is in flight.
fn register_late(side: &common::Side) -> (Key, Window) {
    let segment = Segment::create("late", 4096, PagePolicy::Normal).unwrap();
    let window = segment.window(0, 4096).unwrap();
    (side.fabric.register(segment).unwrap(), window)
}

#[test]
fn a_request_with_an_unknown_key_blocks_its_lane() {
    for is_announcement_lost in [false, true] {
        let pair = pair(1, Profile::rnic_100g());
        if is_announcement_lost {
            pair.change_reverse_link(Link::down);
        }
        let Pair { world, one, two } = &pair;
        let (key, window) = register_late(two);
        pair.change_reverse_link(|link| Link { up: true, ..link });
        one.post(1, Operation::Write { local: Local::Inline(b"salt"), remote: remote(key, 0) });
        one.post(2, Operation::Send { bytes: b"behind", imm: 0 });
        run_for(world, 3_000);
        assert_eq!((one.completed(), two.poll()), (vec![], vec![]), "a request did not wait for its key");
        run_for(world, LONG_NS);
        assert_eq!(one.completed(), [(1, Status::Success), (2, Status::Success)]);
        let mut seen = [0; 4];
        window.read(0, &mut seen).unwrap();
        assert_eq!(&seen, b"salt");
        let took_ns = |operation| {
            let began_ns = world.now_ns();
            one.post(3, operation);
            while one.completed().is_empty() {
                run_for(world, 10);
            }
            world.now_ns() - began_ns
        };
        let to = |key| Operation::Write { local: Local::Inline(b"salt"), remote: remote(key, 0) };
        assert_eq!(
            took_ns(to(key)),
            took_ns(to(two.key)),
            "a key that became known late must cost no extra time"
        );
    }
}

/// The answer to the first lane's request does not answer the other lane, which has requested a newer key.
#[test]
fn each_lane_gets_an_answer_to_its_own_key_request() {
    let pair = pair(1, Profile { interrupt_ns: 50_000, ..Profile::rnic_100g() });
    let Pair { world, one, two } = &pair;
    let unannounced_key = || {
        pair.change_reverse_link(Link::down);
        let (key, _) = register_late(two);
        pair.change_reverse_link(|link| Link { up: true, ..link });
        remote(key, 0)
    };
    let write = |remote| Operation::Write { local: Local::Inline(b"salt"), remote };
    one.post(1, write(unannounced_key()));
    run_for(world, 60_000);
    // The answer is in flight.
    let other = Lane { number: 1, class: Class::Bulk, flow: 0 };
    one.fabric.post(one.peer, other, &[common::request(2, write(unannounced_key()))]).unwrap();
    run_for(world, 30_000);
    assert_eq!(one.completed(), [], "a request was sent before its key was known");
    run_for(world, LONG_NS);
    assert_eq!(one.completed(), [(1, Status::Success), (2, Status::Success)]);
}

/// Writes in flight do not land, and reads in flight fail.
#[test]
fn deregistration_ends_requests_in_flight() {
    let long_operation = |pair: &Pair, is_read| {
        let (local, remote) = (pair.one.source(1 << 20), remote(pair.two.key, 0));
        if is_read { Operation::Read { local, remote } } else { Operation::Write { local, remote } }
    };
    for (profile, is_adapter) in [(Profile::rnic_100g(), true), (Profile::local(), false)] {
        for is_read in [false, true] {
            let pair = pair(1, profile.clone());
            let Pair { world, one, two } = &pair;
            one.memory.fill(0, 1 << 20, 7).unwrap();
            one.post(1, long_operation(&pair, is_read));
            run_for(world, 40_000);
            two.fabric.deregister(two.key);
            let landed = two.bytes(0, 1 << 20);
            assert!(is_read || landed.contains(&7) && landed.contains(&0), "the write was not in progress");
            run_for(world, LONG_NS);
            assert_eq!(one.completed(), [(1, Status::RemoteAccess)], "{is_adapter} {is_read}");
            assert!(two.bytes(0, 1 << 20) == landed, "bytes landed after the deregistration");
            assert!(two.events().contains(&Event::Deregistered { key: two.key }));
            assert_eq!(one.events().is_empty(), !is_adapter, "only an adapter ends the connection");
        }
    }
}
