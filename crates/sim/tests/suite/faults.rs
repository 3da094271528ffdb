//! Faults of links, and their effects on connections.

use crate::common;

use common::{LONG_NS, Pair, check_executed_once_in_order, pair, remote, run_for};
use halite_fabric::{ConnectFailure, ConnectTrouble, Event, Fabric, Local, Operation, PostCause, Status};
use halite_sim::{Corruption, Link, Profile};

fn profile() -> Profile {
    Profile { retries_max: 7, retransmit_ns: 100_000, ..Profile::rnic_100g() }
}

#[test]
fn faults_of_links_only_delay_requests() {
    for profile in [profile(), Profile { retransmit_ns: 100_000_000, ..Profile::roce_100g() }] {
        let check = |change: fn(Link) -> Link| check_executed_once_in_order(profile.clone(), change);
        assert!(check(|link| Link { loss_ppm: 100_000, ..link }).lost > 20);
        assert!(check(|link| Link { duplicate_ppm: 300_000, ..link }).duplicated > 50);
        assert!(check(|link| Link { reorder_ppm: 300_000, jitter_ns: 20_000, ..link }).reordered > 50);
        let counters = check(|link| Link { corrupt_ppm: 100_000, ..link });
        assert!(counters.corrupted_caught > 20 && counters.corrupted_uncaught == 0, "{counters:?}");
    }
}

#[test]
fn requests_wait_while_the_peer_is_paused() {
    let Pair { world, one, two } = &pair(1, Profile { retransmit_ns: 100_000_000, ..Profile::roce_100g() });
    world.pause(two.host);
    one.post(1, Operation::Write { local: Local::Inline(b"late"), remote: remote(two.key, 0) });
    run_for(world, 10_000_000);
    assert_eq!((one.completed(), two.bytes(0, 4)), (vec![], vec![0; 4]));
    world.resume(two.host);
    run_for(world, 10_000_000);
    assert_eq!((one.completed(), two.bytes(0, 4)), (vec![(1, Status::Success)], b"late".to_vec()));
    assert!(one.fabric.round_trip(one.peer).is_some());
}

#[test]
fn uncaught_damage_flips_one_bit() {
    let pair = pair(1, profile());
    let corruption = Corruption::Uncaught;
    pair.change_forward_link(|link| Link { corrupt_ppm: 1_000_000, corruption, ..link });
    let local = Local::Inline(&[0; 64]);
    pair.one.post(1, Operation::Write { local, remote: remote(pair.two.key, 0) });
    run_for(&pair.world, LONG_NS);
    assert_eq!(pair.one.completed(), [(1, Status::Success)], "an end noticed the damage");
    let flipped: u32 = pair.two.bytes(0, 64).iter().map(|byte| byte.count_ones()).sum();
    assert_eq!(flipped, 1);
    assert_eq!(pair.world.counters().corrupted_uncaught, 1);
}

#[test]
fn requests_to_an_unreachable_peer_fail() {
    let pair = pair(1, profile());
    let Pair { world, one, two } = &pair;
    pair.change_forward_link(Link::down);
    pair.change_reverse_link(Link::down);
    one.memory.fill(0, 9_000, 7).unwrap();
    one.post(1, Operation::Write { local: one.source(9_000), remote: remote(two.key, 0) });
    one.post(2, Operation::Send { bytes: b"behind it", imm: 0 });
    run_for(world, 8 * 100_000 - 1);
    assert!(one.completed().is_empty(), "the request failed before seven retries");
    run_for(world, 10_000);
    // Both requests have been sent, and their results are unknown.
    assert_eq!(one.completed(), [(1, Status::RetryExceeded), (2, Status::PeerGone)]);
    assert_eq!(
        one.events(),
        [Event::Disconnected { peer: one.peer }, Event::CutOff { peer: one.peer, exited: false }]
    );
    let refused = one.fabric.post(one.peer, halite_fabric::Lane::FIRST, &[]).unwrap_err();
    assert_eq!(refused.cause, PostCause::NotConnected);
    assert_eq!(two.events(), [], "a packet passed a link that is down");
}

#[test]
fn a_one_way_partition_loses_only_acknowledgements() {
    let pair = pair(1, profile());
    let Pair { world, one, two } = &pair;
    pair.change_reverse_link(Link::down);
    one.post(1, Operation::FetchAdd { remote: remote(two.key, 0), add: 1 });
    one.post(2, Operation::Send { bytes: b"received anyway", imm: 0 });
    run_for(world, LONG_NS);
    assert_eq!(one.completed(), [(1, Status::RetryExceeded), (2, Status::PeerGone)]);
    assert_eq!(two.memory.load_u64(0), Ok(1));
    assert_eq!(two.poll().len(), 1);
    // The notice that host 0 has ended the connection arrives.
    assert_eq!(two.events()[0], Event::Disconnected { peer: two.peer });
}

/// Creates a connection that only host 1 knows, because its confirmation is lost. Then calls `end`. Returns the events
/// of both hosts.
fn end_half_open_connection(
    profile: Profile,
    end: impl FnOnce(&halite_sim::World, &common::Side),
) -> [Vec<Event>; 2] {
    let world = halite_sim::World::new(1, profile);
    let (one, mut two) = (common::open(&world, "one"), common::open(&world, "two"));
    let link = world.link(two.host, one.host);
    world.set_link(two.host, one.host, link.down());
    one.fabric.connect("two", b"");
    run_for(&world, 10_000);
    two.peer = two.connected();
    world.set_link(two.host, one.host, link);
    end(&world, &two);
    run_for(&world, 3 * LONG_NS);
    [one.events(), two.events()]
}

#[test]
fn a_half_open_connection_ends_at_both_sides() {
    for profile in [Profile::local(), profile()] {
        let (address, reason) = ("two".to_owned(), "timed out".to_owned());
        let failed =
            vec![Event::ConnectFailed(ConnectFailure { address, reason, trouble: ConnectTrouble::Theirs })];
        let [one, _] = end_half_open_connection(profile.clone(), |world, two| world.crash(two.host));
        assert_eq!(one, failed);
        let [one, two] = end_half_open_connection(profile, |_, two| two.fabric.disconnect(two.peer));
        assert_eq!(one, failed);
        let peer = halite_fabric::PeerId(1);
        assert_eq!(two, [Event::Disconnected { peer }, Event::CutOff { peer, exited: false }]);
    }
}
