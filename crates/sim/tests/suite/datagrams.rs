//! Queue pairs over datagrams that get lost, come twice, overtake each other and are damaged for real: none of it shows.

use crate::common;

use common::{LONG_NS, Pair, check_nothing_shows, pair, pass, remote};
use halite_fabric::{Fabric, Local, Operation, Status};
use halite_sim::{Counters, Link, Profile};

/// See [`common::check_nothing_shows`].
#[track_caller]
fn nothing_shows(change: impl Fn(Link) -> Link) -> Counters {
    check_nothing_shows(Profile { retransmit_ns: 100_000_000, ..Profile::roce_100g() }, change)
}

#[test]
fn what_is_lost_is_repeated() {
    let counters = nothing_shows(|link| Link { loss_ppm: 100_000, ..link });
    assert!(counters.lost > 20, "{counters:?}");
}

#[test]
fn what_comes_twice_is_done_once() {
    let counters = nothing_shows(|link| Link { duplicate_ppm: 300_000, ..link });
    assert!(counters.duplicated > 50, "{counters:?}");
}

#[test]
fn what_is_overtaken_is_done_in_its_turn() {
    let counters = nothing_shows(|link| Link { reorder_ppm: 300_000, jitter_ns: 20_000, ..link });
    assert!(counters.reordered > 50, "{counters:?}");
}

#[test]
fn what_is_damaged_is_dropped() {
    let counters = nothing_shows(|link| Link { corrupt_ppm: 100_000, ..link });
    assert!(counters.corrupted_caught > 20 && counters.corrupted_uncaught == 0, "{counters:?}");
}

#[test]
fn a_peer_that_stands_still_does_nothing_until_it_goes_on() {
    let profile = Profile { retransmit_ns: 100_000_000, ..Profile::roce_100g() };
    let Pair { world, one, two } = &pair(1, profile);
    world.pause(two.host);
    one.post(1, Operation::Write { local: Local::Inline(b"late"), remote: remote(two.key, 0) });
    pass(world, 10_000_000);
    assert_eq!((one.ended(), two.bytes(0, 4)), (vec![], vec![0; 4]));
    world.resume(two.host);
    pass(world, 10_000_000);
    assert_eq!((one.ended(), two.bytes(0, 4)), (vec![(1, Status::Success)], b"late".to_vec()));
    assert!(one.fabric.round_trip(one.peer).is_some());
}

#[test]
fn a_peer_that_nobody_reaches_is_given_up() {
    let pair = pair(1, Profile::roce_100g());
    pair.there(Link::down);
    let Pair { world, one, two } = &pair;
    one.post(1, Operation::Write { local: Local::Inline(b"lost"), remote: remote(two.key, 0) });
    pass(world, LONG_NS);
    assert_eq!(one.ended(), [(1, Status::RetryExceeded)]);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let digest = || {
        let pair = pair(7, Profile::roce_100g());
        pair.there(|link| Link { loss_ppm: 50_000, reorder_ppm: 50_000, ..link });
        pair.post_long_write(1, 1 << 20);
        pass(&pair.world, LONG_NS);
        assert_eq!(pair.one.ended(), [(1, Status::Success)]);
        pair.world.digest()
    };
    assert_eq!(digest(), digest());
}
