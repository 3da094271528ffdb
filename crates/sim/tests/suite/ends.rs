//! How connections and hosts end, and whose hands are off whose memory from then on.

use crate::common;

use common::{LONG_NS, Pair, pair, pass, remote};
use halite_fabric::{CutOff, Event, Fabric, Lane, Operation, PostCause, Status};
use halite_mem::{PagePolicy, Segment};
use halite_sim::{Fence, Link, Profile};

/// Lets two end a connection, or one crash, while a megabyte is on its way; returns what has landed then and later.
fn landed_at_and_after(pair: &Pair, end: impl FnOnce(&Pair)) -> (usize, usize) {
    pair.post_long_write(7, 1 << 20);
    pass(&pair.world, 40_000);
    end(pair);
    let landed = pair.two.landed(7, 4096);
    assert!((4096..1 << 20).contains(&landed), "{landed}");
    pass(&pair.world, LONG_NS);
    (landed, pair.two.landed(7, 4096))
}

#[test]
fn an_adapter_that_cuts_a_peer_off_drops_what_comes_later() {
    let pair = pair(1, Profile::rnic_100g());
    let (then, later) = landed_at_and_after(&pair, |pair| {
        let two = &pair.two;
        assert_eq!(two.fabric.cut_off(two.peer), CutOff::Done);
        let peer = two.peer;
        assert_eq!(two.events(), [Event::Disconnected { peer }, Event::CutOff { peer, exited: false }]);
        assert_eq!(two.fabric.cut_off(two.peer), CutOff::Done);
    });
    assert_eq!(then, later);
    assert!(pair.world.counters().dropped > 0, "something was on the wire");
    assert_eq!(pair.one.ended(), [(1, Status::PeerGone)]);
}

#[test]
fn who_is_cut_off_without_hearing_of_it_runs_out_of_retries() {
    let pair = pair(1, Profile::rnic_100g());
    pair.back(Link::down);
    let (then, later) = landed_at_and_after(&pair, |pair| {
        assert_eq!(pair.two.fabric.cut_off(pair.two.peer), CutOff::Done);
    });
    assert_eq!(then, later);
    assert_eq!(pair.one.ended(), [(1, Status::RetryExceeded)]);
}

#[test]
fn packets_of_a_host_that_crashes_still_land() {
    let slow = Profile { wire_ns: 20_000, ..Profile::rnic_100g() };
    let pair = pair(1, slow);
    let (then, later) = landed_at_and_after(&pair, |pair| pair.world.crash(pair.one.host));
    // 20 us of 12.5 bytes a nanosecond.
    assert!((200_000..300_000).contains(&(later - then)), "{then} {later}");
    let peer = pair.two.peer;
    assert_eq!(pair.two.events(), [Event::Disconnected { peer }, Event::CutOff { peer, exited: false }]);
}

#[test]
fn requests_to_a_host_that_has_crashed_fail() {
    let story = |reachable: bool| {
        let pair = pair(1, Profile::rnic_100g());
        if !reachable {
            pair.back(Link::down);
        }
        pair.world.crash(pair.two.host);
        pair.one.post(1, Operation::Send { bytes: b"anybody?", imm: 0 });
        pass(&pair.world, LONG_NS);
        let peer = pair.one.peer;
        assert_eq!(pair.one.events(), [Event::Disconnected { peer }, Event::CutOff { peer, exited: false }]);
        pair.one.ended()
    };
    assert_eq!(story(true), [(1, Status::PeerGone)]);
    assert_eq!(story(false), [(1, Status::RetryExceeded)]);
}

/// Otherwise each would keep for ever what the other may still write to.
#[test]
fn processes_that_lost_each_other_are_cut_off_as_soon_as_their_kernels_can_talk() {
    let pair = pair(1, Profile::local());
    pair.there(Link::down);
    pair.back(Link::down);
    for side in [&pair.one, &pair.two] {
        side.post(1, Operation::Send { bytes: b"anybody?", imm: 0 });
    }
    pass(&pair.world, LONG_NS);
    for side in [&pair.one, &pair.two] {
        assert_eq!(side.events(), [Event::Disconnected { peer: side.peer }]);
    }
    pair.there(|link| Link { up: true, ..link });
    pair.back(|link| Link { up: true, ..link });
    pass(&pair.world, LONG_NS);
    for side in [&pair.one, &pair.two] {
        assert_eq!(side.events(), [Event::CutOff { peer: side.peer, exited: false }]);
    }
}

#[test]
fn a_host_that_has_restarted_is_a_new_peer_and_hears_nothing_meant_for_the_old() {
    let pair = pair(1, Profile::rnic_100g());
    let Pair { world, one, two } = &pair;
    pair.back(Link::down);
    world.crash(two.host);
    world.restart(two.host);
    let fabric = world.fabric(two.host, "two again", Vec::new());
    let segment = Segment::create("again", 4096, PagePolicy::Normal).unwrap();
    let memory = segment.window(0, 4096).unwrap();
    let key = fabric.register(segment).unwrap();
    assert_eq!(key, two.key, "keys begin anew, which is what makes this dangerous");
    one.post(1, Operation::FetchAdd { remote: remote(key, 0), add: 1 });
    pass(world, LONG_NS);
    assert_eq!(one.ended(), [(1, Status::RetryExceeded)]);
    assert_eq!(memory.load_u64(0), Ok(0));
    assert_eq!(one.fabric.discover(), ["two again"]);
    pair.back(|link| Link { up: true, ..link });
    one.fabric.connect("two again", b"");
    pass(world, LONG_NS);
    let events = one.events();
    let Some(Event::Connected { peer, .. }) = events.last() else {
        panic!("{events:?}");
    };
    one.fabric
        .post(
            *peer,
            Lane::FIRST,
            &[common::request(2, Operation::FetchAdd { remote: remote(key, 0), add: 1 })],
        )
        .unwrap();
    pass(world, LONG_NS);
    assert_eq!((one.ended(), memory.load_u64(0)), (vec![(2, Status::Success)], Ok(1)));
}

#[test]
fn disconnecting_fails_what_is_outstanding_and_tells_both() {
    for profile in [Profile::rnic_100g(), Profile::local()] {
        let pair = pair(1, profile);
        pair.post_long_write(7, 1 << 20);
        pair.one.post(2, Operation::Send { bytes: b"behind it", imm: 0 });
        pass(&pair.world, 40_000);
        pair.one.fabric.disconnect(pair.one.peer);
        let refused = pair.one.fabric.post(pair.one.peer, Lane::FIRST, &[]).unwrap_err();
        assert_eq!(refused.cause, PostCause::NotConnected);
        pass(&pair.world, LONG_NS);
        assert_eq!(pair.one.ended(), [(1, Status::PeerGone), (2, Status::Flushed)]);
        for side in [&pair.one, &pair.two] {
            let peer = side.peer;
            assert_eq!(side.events(), [Event::Disconnected { peer }, Event::CutOff { peer, exited: false }]);
        }
    }
}

#[test]
fn what_a_peer_said_is_heard_before_its_end() {
    let slow_to_wake = Profile { interrupt_ns: 50_000_000, ..Profile::rnic_100g() };
    let pair = pair(1, slow_to_wake);
    pair.one.post(1, Operation::Send { bytes: b"last words", imm: 0 });
    pass(&pair.world, 10_000);
    pair.world.crash(pair.one.host);
    while pair.two.events().is_empty() {
        assert_eq!(pair.two.poll(), []);
        pass(&pair.world, 1_000);
    }
    assert_eq!(pair.two.poll().len(), 1);
}

#[test]
fn a_goodbye_does_not_overtake_what_is_on_the_wire() {
    let pair = pair(1, Profile { wire_ns: 20_000, ..Profile::rnic_100g() });
    pair.one.post(1, Operation::Send { bytes: &[7; 60_000], imm: 0 });
    pass(&pair.world, 10_000);
    pair.one.fabric.disconnect(pair.one.peer);
    pass(&pair.world, LONG_NS);
    assert_eq!(pair.two.poll().len(), 1);
    assert_eq!(pair.two.events().len(), 2);
}

#[test]
fn a_read_from_a_host_that_crashes_unheard_runs_out_of_retries() {
    let pair = pair(1, Profile { notice_ns: 10 * LONG_NS, ..Profile::rnic_100g() });
    pair.one.post(1, Operation::Read { local: pair.one.source(1 << 20), remote: remote(pair.two.key, 0) });
    pass(&pair.world, 40_000);
    pair.world.crash(pair.two.host);
    pass(&pair.world, LONG_NS);
    assert_eq!(pair.one.ended(), [(1, Status::RetryExceeded)]);
}

// Where processors copy.

fn never() -> Profile {
    Profile { fence: Fence::Never, ..Profile::local() }
}

#[test]
fn who_is_paused_in_the_middle_of_a_copy_goes_on_with_it_after_having_been_declared_dead() {
    let pair = pair(1, never());
    let Pair { world, one, two } = &pair;
    let (then, later) = landed_at_and_after(&pair, |pair| {
        world.pause(one.host);
        // What was stored at last still becomes visible.
        pass(world, 1_000);
        assert_eq!(pair.two.landed(7, 4096), {
            pass(world, LONG_NS);
            pair.two.landed(7, 4096)
        });
        // Two has waited for long enough: it declares one dead, but cannot stop it.
        two.fabric.disconnect(two.peer);
        assert_eq!(two.fabric.cut_off(two.peer), CutOff::NotPermitted);
        assert_eq!(two.events(), [Event::Disconnected { peer: two.peer }]);
    });
    assert_eq!(then, later, "it sleeps");
    assert_eq!(two.events(), [], "and two must not believe that it is cut off");
    world.resume(one.host);
    pass(world, LONG_NS);
    assert_eq!(two.landed(7, 4096), 1 << 20, "it does not know that it is dead");
    // Then it hears so, gives two's memory up, and says that.
    assert_eq!(one.events()[0], Event::Disconnected { peer: one.peer });
    assert_eq!(two.events(), [Event::CutOff { peer: two.peer, exited: false }]);
}

#[test]
fn who_is_killed_in_the_middle_of_a_copy_never_goes_on() {
    let pair = pair(1, Profile::local());
    let Pair { world, one, two } = &pair;
    let (then, later) = landed_at_and_after(&pair, |_| {
        world.pause(one.host);
        pass(world, 1_000);
        two.fabric.disconnect(two.peer);
        assert_eq!(two.fabric.cut_off(two.peer), CutOff::Started);
        assert_eq!(two.events(), [Event::Disconnected { peer: two.peer }]);
    });
    assert_eq!(then, later);
    assert_eq!(two.events(), [Event::CutOff { peer: two.peer, exited: true }]);
    assert_eq!(two.fabric.cut_off(two.peer), CutOff::Done);
    world.resume(one.host);
    assert!(!world.is_running(one.host), "it is down, not paused");
}

#[test]
fn a_kill_meets_only_what_it_was_meant_for() {
    let pair = pair(1, Profile::local());
    let Pair { world, one, two } = &pair;
    assert_eq!(two.fabric.cut_off(two.peer), CutOff::Started);
    world.crash(one.host);
    world.restart(one.host);
    pass(world, LONG_NS);
    assert!(world.is_running(one.host));
    assert_eq!(
        two.events(),
        [Event::Disconnected { peer: two.peer }, Event::CutOff { peer: two.peer, exited: true }]
    );
}

#[test]
fn a_kill_ends_the_tasks_of_its_host() {
    let pair = pair(1, Profile::local());
    let task = pair.world.spawn(Some(pair.one.host), "victim", std::future::pending());
    assert_eq!(pair.two.fabric.cut_off(pair.two.peer), CutOff::Started);
    assert!(pair.world.is_alive(task));
    pass(&pair.world, LONG_NS);
    assert!(!pair.world.is_alive(task));
}

#[test]
fn a_paused_read_goes_on_too() {
    let pair = pair(1, never());
    let Pair { world, one, two } = &pair;
    two.memory.fill(0, 1 << 20, 7).unwrap();
    one.post(1, Operation::Read { local: one.source(1 << 20), remote: remote(two.key, 0) });
    pass(world, 40_000);
    world.pause(one.host);
    pass(world, LONG_NS);
    let landed = one.landed(7, 4096);
    assert!((4096..1 << 20).contains(&landed), "{landed}");
    two.fabric.disconnect(two.peer);
    world.resume(one.host);
    pass(world, LONG_NS);
    assert_eq!(one.landed(7, 4096), 1 << 20);
    assert_eq!(
        two.events(),
        [Event::Disconnected { peer: two.peer }, Event::CutOff { peer: two.peer, exited: false }]
    );
}

#[test]
fn the_adapter_of_a_paused_host_goes_on() {
    let pair = pair(1, Profile::rnic_100g());
    pair.post_long_write(7, 1 << 20);
    pair.world.pause(pair.one.host);
    pair.world.pause(pair.two.host);
    pass(&pair.world, LONG_NS);
    assert_eq!(pair.two.landed(7, 4096), 1 << 20);
}

#[test]
fn memory_that_nobody_can_reach_any_more_is_given_back() {
    for profile in [Profile::rnic_100g(), Profile::local()] {
        let pair = pair(1, profile);
        let segment = Segment::create("temporary", 4096, PagePolicy::Normal).unwrap();
        let watch = std::sync::Arc::downgrade(&segment);
        pair.two.fabric.register(segment).unwrap();
        pair.world.crash(pair.two.host);
        pass(&pair.world, LONG_NS);
        assert!(watch.upgrade().is_none());
    }
}
