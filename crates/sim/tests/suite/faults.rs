//! What links do to packets, and what connections make of it.

use crate::common;

use common::{LONG_NS, Pair, pair, pass, remote};
use halite_fabric::{
    CompletionKind, ConnectFailure, ConnectTrouble, Event, Fabric, Local, Operation, PostCause, Status,
};
use halite_sim::{Corruption, Counters, Link, Profile, Trace};

fn profile() -> Profile {
    Profile { retries_max: 7, retransmit_ns: 100_000, ..Profile::rnic_100g() }
}

/// See [`common::check_nothing_shows`].
#[track_caller]
fn check_nothing_shows(change: impl Fn(Link) -> Link) -> Counters {
    common::check_nothing_shows(profile(), change)
}

#[test]
fn loss_costs_time_only() {
    let counters = check_nothing_shows(|link| Link { loss_ppm: 100_000, ..link });
    assert!(counters.lost > 20 && counters.retransmitted >= counters.lost / 2, "{counters:?}");
}

#[test]
fn duplicates_are_discarded() {
    let counters = check_nothing_shows(|link| Link { duplicate_ppm: 300_000, ..link });
    assert!(counters.duplicated > 50, "{counters:?}");
}

#[test]
fn duplicates_take_their_turn_on_the_wire() {
    let landed_after = |duplicate_ppm| {
        let pair = pair(1, profile());
        pair.there(|link| Link { duplicate_ppm, ..link });
        pair.post_long_write(7, 1 << 20);
        pass(&pair.world, 50_000);
        pair.two.landed(7, 4096)
    };
    let (once, twice) = (landed_after(0), landed_after(1_000_000));
    assert!((once * 2 / 5..once * 3 / 5).contains(&twice), "{once} {twice}");
}

#[test]
fn reordering_and_jitter_change_no_order() {
    let link = |link| Link { reorder_ppm: 300_000, jitter_ns: 20_000, ..link };
    let counters = check_nothing_shows(link);
    assert!(counters.reordered > 50, "{counters:?}");
}

#[test]
fn damage_that_is_caught_is_a_loss() {
    let counters = check_nothing_shows(|link| Link { corrupt_ppm: 100_000, ..link });
    assert!(counters.corrupted_caught > 20 && counters.corrupted_uncaught == 0, "{counters:?}");
}

#[test]
fn damage_that_is_not_caught_flips_one_bit_of_what_lands() {
    let pair = pair(1, profile());
    let corruption = Corruption::Uncaught;
    pair.there(|link| Link { corrupt_ppm: 1_000_000, corruption, ..link });
    let local = Local::Inline(&[0; 64]);
    pair.one.post(1, Operation::Write { local, remote: remote(pair.two.key, 0) });
    pass(&pair.world, LONG_NS);
    assert_eq!(pair.one.ended(), [(1, Status::Success)], "nobody knows");
    let flipped: u32 = pair.two.bytes(0, 64).iter().map(|byte| byte.count_ones()).sum();
    assert_eq!(flipped, 1);
    assert_eq!(pair.world.counters().corrupted_uncaught, 1);
}

#[test]
fn what_follows_a_lost_packet_waits_for_it() {
    let pair = pair(1, profile());
    let Pair { world, one, two } = &pair;
    pair.there(Link::down);
    one.post(1, Operation::Send { bytes: b"lost at first", imm: 1 });
    pass(world, 10_000);
    pair.there(|link| Link { up: true, ..link });
    one.post(2, Operation::Send { bytes: b"behind it", imm: 2 });
    // It tells that the first one is missing, and both come once more.
    pass(world, 50_000);
    let heard = two.poll().into_iter().map(|completion| match completion.kind {
        CompletionKind::Received { imm, .. } => imm,
        other => panic!("{other:?}"),
    });
    assert_eq!(heard.collect::<Vec<_>>(), [1, 2], "the second must not arrive first");
    assert_eq!(world.counters().retransmitted, 2);
}

#[test]
fn requests_to_a_peer_that_cannot_be_reached_fail() {
    let pair = pair(1, profile());
    let Pair { world, one, two } = &pair;
    pair.there(Link::down);
    pair.back(Link::down);
    one.memory.fill(0, 9_000, 7).unwrap();
    one.post(1, Operation::Write { local: one.source(9_000), remote: remote(two.key, 0) });
    one.post(2, Operation::Send { bytes: b"behind it", imm: 0 });
    pass(world, 8 * 100_000 - 1);
    assert!(one.ended().is_empty(), "it is tried eight times");
    pass(world, 10_000);
    // Both have left, and nobody knows what became of them.
    assert_eq!(one.ended(), [(1, Status::RetryExceeded), (2, Status::PeerGone)]);
    assert_eq!(
        one.events(),
        [Event::Disconnected { peer: one.peer }, Event::CutOff { peer: one.peer, exited: false }]
    );
    let refused = one.fabric.post(one.peer, halite_fabric::Lane::FIRST, &[]).unwrap_err();
    assert_eq!(refused.cause, PostCause::NotConnected);
    assert_eq!(two.events(), [], "no word gets through");
}

#[test]
fn a_link_that_fails_in_the_middle_leaves_a_part() {
    let pair = pair(1, profile());
    pair.post_long_write(7, 1 << 20);
    pass(&pair.world, 40_000);
    pair.there(Link::down);
    pass(&pair.world, LONG_NS);
    let landed = pair.two.landed(7, 4096);
    assert!((4096..1 << 20).contains(&landed), "{landed}");
    assert_eq!(pair.one.ended(), [(1, Status::RetryExceeded)]);
}

#[test]
fn in_a_one_way_partition_a_request_is_done_although_its_issuer_is_told_otherwise() {
    let pair = pair(1, profile());
    let Pair { world, one, two } = &pair;
    pair.back(Link::down);
    one.post(1, Operation::FetchAdd { remote: remote(two.key, 0), add: 1 });
    one.post(2, Operation::Send { bytes: b"heard all the same", imm: 0 });
    pass(world, LONG_NS);
    assert_eq!(one.ended(), [(1, Status::RetryExceeded), (2, Status::PeerGone)]);
    assert_eq!(two.memory.load_u64(0), Ok(1));
    assert_eq!(two.poll().len(), 1);
    // The word that one gave up gets through.
    assert_eq!(two.events()[0], Event::Disconnected { peer: two.peer });
}

#[test]
fn a_read_whose_answers_are_lost_is_given_up() {
    let pair = pair(1, profile());
    let Pair { world, one, two } = &pair;
    two.memory.fill(0, 1 << 20, 7).unwrap();
    one.post(1, Operation::Read { local: one.source(1 << 20), remote: remote(two.key, 0) });
    pass(world, 40_000);
    pair.back(Link::down);
    pass(world, LONG_NS);
    assert_eq!(one.ended(), [(1, Status::RetryExceeded)]);
    assert!((4096..1 << 20).contains(&one.landed(7, 4096)));
}

#[test]
fn a_partition_that_heals_in_time_costs_time_only() {
    let pair = pair(1, profile());
    let Pair { world, one, two } = &pair;
    pair.back(Link::down);
    let add = Operation::FetchAdd { remote: remote(two.key, 0), add: 1 };
    one.post(1, add);
    one.post(2, Operation::Send { bytes: b"once", imm: 0 });
    pass(world, 350_000);
    assert!(one.ended().is_empty());
    pair.back(|link| Link { up: true, ..link });
    pass(world, LONG_NS);
    assert_eq!(one.ended(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(two.memory.load_u64(0), Ok(1), "an atomic is done once however often it is sent");
    assert_eq!(two.poll().len(), 1);
}

#[test]
fn connecting_fails_when_nobody_answers() {
    let world = halite_sim::World::new(1, profile());
    let (one, two) = (common::open(&world, "one"), common::open(&world, "two"));
    let link = world.link(one.host, two.host);
    let failed = |reason: &str| {
        let address = "two".to_owned();
        vec![Event::ConnectFailed(ConnectFailure {
            address,
            reason: reason.to_owned(),
            trouble: ConnectTrouble::Theirs,
        })]
    };
    // The word back is lost: two has heard of a connection that never comes about.
    world.set_link(two.host, one.host, link.down());
    one.fabric.connect("two", b"");
    pass(&world, 3 * LONG_NS);
    assert_eq!(one.events(), failed("timed out"));
    let peer = two.connected();
    assert_eq!(two.events()[0], Event::Disconnected { peer });
    world.set_link(two.host, one.host, link);
    world.set_link(one.host, two.host, link.down());
    one.fabric.connect("two", b"");
    pass(&world, 3 * LONG_NS);
    assert_eq!(one.events(), failed("timed out"));
    world.set_link(one.host, two.host, link);
    two.fabric.close();
    one.fabric.connect("two", b"");
    pass(&world, LONG_NS);
    assert_eq!(one.events(), failed("connection refused"));
}

/// Two hears of a connection, but its word that it does is lost; then `end` happens, and its news get through.
fn half_connected(profile: Profile, end: impl FnOnce(&halite_sim::World, &common::Side)) -> [Vec<Event>; 2] {
    let world = halite_sim::World::new(1, profile);
    let (one, mut two) = (common::open(&world, "one"), common::open(&world, "two"));
    let link = world.link(two.host, one.host);
    world.set_link(two.host, one.host, link.down());
    one.fabric.connect("two", b"");
    pass(&world, 10_000);
    two.peer = two.connected();
    world.set_link(two.host, one.host, link);
    end(&world, &two);
    pass(&world, 3 * LONG_NS);
    [one.events(), two.events()]
}

#[test]
fn a_connection_that_ends_before_both_know_of_it_ends_for_both() {
    for profile in [Profile::local(), profile()] {
        let (address, reason) = ("two".to_owned(), "timed out".to_owned());
        let failed =
            vec![Event::ConnectFailed(ConnectFailure { address, reason, trouble: ConnectTrouble::Theirs })];
        let [one, _] = half_connected(profile.clone(), |world, two| world.crash(two.host));
        assert_eq!(one, failed);
        let [one, two] = half_connected(profile, |_, two| two.fabric.disconnect(two.peer));
        assert_eq!(one, failed);
        let peer = halite_fabric::PeerId(1);
        assert_eq!(two, [Event::Disconnected { peer }, Event::CutOff { peer, exited: false }]);
    }
}

#[test]
fn who_is_spoken_to_is_connected_even_if_that_word_is_late() {
    let world = halite_sim::World::new(1, profile());
    let (one, mut two) = (common::open(&world, "one"), common::open(&world, "two"));
    let link = world.link(two.host, one.host);
    world.set_link(two.host, one.host, Link { latency_ns: 1_000_000, ..link });
    one.fabric.connect("two", b"");
    pass(&world, 10_000);
    two.peer = two.connected();
    world.set_link(two.host, one.host, link);
    two.post(1, Operation::Send { bytes: b"welcome", imm: 0 });
    pass(&world, 10_000);
    let peer = one.connected();
    assert_eq!(one.poll()[0].peer, peer);
    pass(&world, LONG_NS);
    assert_eq!(one.events(), [], "nobody connects twice");
}

#[test]
fn a_trace_tells_what_happened_line_by_line() {
    let pair = pair(1, profile());
    pair.world.set_trace(Trace::All);
    pair.there(Link::down);
    pair.one.post(1, Operation::Send { bytes: b"hello", imm: 0 });
    pass(&pair.world, LONG_NS);
    let told = pair.world.trace().join("\n");
    for what in ["up: false", "post send of 5 B to host-1", "RetryExceeded", "disconnected from peer 1"] {
        assert!(told.contains(what), "{what:?} is missing from\n{told}");
    }
}
