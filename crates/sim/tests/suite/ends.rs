//! Closed connections, crashed hosts, and cut-offs.

use crate::common;

use common::{LONG_NS, Pair, pair, remote, run_for};
use halite_fabric::{CutOff, Event, Fabric, Lane, Operation, Status};
use halite_mem::{PagePolicy, Segment};
use halite_sim::{Fence, Link, Profile};

/// Calls `end`, which ends a connection or stops a host, while 1 MiB is in flight. Returns the numbers of bytes that
/// have landed at that time, and much later.
fn landed_at_end_and_later(pair: &Pair, end: impl FnOnce(&Pair)) -> (usize, usize) {
    pair.post_long_write(7, 1 << 20);
    run_for(&pair.world, 40_000);
    end(pair);
    let landed = pair.two.landed(7, 4096);
    assert!((4096..1 << 20).contains(&landed), "{landed}");
    run_for(&pair.world, LONG_NS);
    (landed, pair.two.landed(7, 4096))
}

#[test]
fn an_adapter_drops_packets_after_a_cut_off() {
    let pair = pair(1, Profile::rnic_100g());
    let (at_end, later) = landed_at_end_and_later(&pair, |pair| {
        let two = &pair.two;
        assert_eq!(two.fabric.cut_off(two.peer), CutOff::Done);
        let peer = two.peer;
        assert_eq!(two.events(), [Event::Disconnected { peer }, Event::CutOff { peer, exited: false }]);
        assert_eq!(two.fabric.cut_off(two.peer), CutOff::Done);
    });
    assert_eq!(at_end, later);
    assert!(pair.world.counters().dropped > 0, "no packet was on the wire");
    assert_eq!(pair.one.completed(), [(1, Status::PeerGone)]);
}

/// Without the cut-off, each process would keep all memory that the other can write to in quarantine for ever.
#[test]
fn processes_are_cut_off_once_their_link_is_up() {
    let pair = pair(1, Profile::local());
    pair.change_forward_link(Link::down);
    pair.change_reverse_link(Link::down);
    for side in [&pair.one, &pair.two] {
        side.post(1, Operation::Send { bytes: b"still there?", imm: 0 });
    }
    run_for(&pair.world, LONG_NS);
    for side in [&pair.one, &pair.two] {
        assert_eq!(side.events(), [Event::Disconnected { peer: side.peer }]);
    }
    pair.change_forward_link(|link| Link { up: true, ..link });
    pair.change_reverse_link(|link| Link { up: true, ..link });
    run_for(&pair.world, LONG_NS);
    for side in [&pair.one, &pair.two] {
        assert_eq!(side.events(), [Event::CutOff { peer: side.peer, exited: false }]);
    }
}

#[test]
fn a_restarted_host_is_a_new_peer() {
    let pair = pair(1, Profile::rnic_100g());
    let Pair { world, one, two } = &pair;
    pair.change_reverse_link(Link::down);
    world.crash(two.host);
    world.restart(two.host);
    let fabric = world.fabric(two.host, "two again", Vec::new());
    let segment = Segment::create("again", 4096, PagePolicy::Normal).unwrap();
    let memory = segment.window(0, 4096).unwrap();
    let key = fabric.register(segment).unwrap();
    assert_eq!(key, two.key, "keys start again at the same number, so old requests would hit new memory");
    one.post(1, Operation::FetchAdd { remote: remote(key, 0), add: 1 });
    run_for(world, LONG_NS);
    assert_eq!(one.completed(), [(1, Status::RetryExceeded)]);
    assert_eq!(memory.load_u64(0), Ok(0));
    assert_eq!(one.fabric.discover(), ["two again"]);
    pair.change_reverse_link(|link| Link { up: true, ..link });
    one.fabric.connect("two again", b"");
    run_for(world, LONG_NS);
    let events = one.events();
    let Some(Event::Connected { peer, .. }) = events.last() else { panic!("{events:?}") };
    let addition = Operation::FetchAdd { remote: remote(key, 0), add: 1 };
    one.fabric.post(*peer, Lane::FIRST, &[common::request(2, addition)]).unwrap();
    run_for(world, LONG_NS);
    assert_eq!((one.completed(), memory.load_u64(0)), (vec![(2, Status::Success)], Ok(1)));
}

// Hosts without adapters, where processors copy.

fn without_kill() -> Profile {
    Profile { fence: Fence::Never, ..Profile::local() }
}

#[test]
fn a_paused_copy_continues_after_a_refused_cut_off() {
    let pair = pair(1, without_kill());
    let Pair { world, one, two } = &pair;
    let (at_end, later) = landed_at_end_and_later(&pair, |_| {
        world.pause(one.host);
        // The last stores still become visible.
        run_for(world, 1_000);
        let landed = two.landed(7, 4096);
        run_for(world, LONG_NS);
        assert_eq!(landed, two.landed(7, 4096));
        // Host 1 declares the process of host 0 dead, but may not kill it.
        two.fabric.disconnect(two.peer);
        assert_eq!(two.fabric.cut_off(two.peer), CutOff::NotPermitted);
        assert_eq!(two.events(), [Event::Disconnected { peer: two.peer }]);
    });
    assert_eq!(at_end, later, "the process is stopped");
    assert_eq!(two.events(), [], "a stopped process was reported as cut off");
    world.resume(one.host);
    run_for(world, LONG_NS);
    assert_eq!(
        two.landed(7, 4096),
        1 << 20,
        "the resumed process, which does not know that it was declared dead, finishes its copy"
    );
    // Host 0 then learns this, unmaps the memory of host 1, and reports it.
    assert_eq!(one.events()[0], Event::Disconnected { peer: one.peer });
    assert_eq!(two.events(), [Event::CutOff { peer: two.peer, exited: false }]);
}

#[test]
fn a_killed_process_never_finishes_its_copy() {
    let pair = pair(1, Profile::local());
    let Pair { world, one, two } = &pair;
    let (at_end, later) = landed_at_end_and_later(&pair, |_| {
        world.pause(one.host);
        run_for(world, 1_000);
        two.fabric.disconnect(two.peer);
        assert_eq!(two.fabric.cut_off(two.peer), CutOff::Started);
        assert_eq!(two.events(), [Event::Disconnected { peer: two.peer }]);
    });
    assert_eq!(at_end, later);
    assert_eq!(two.events(), [Event::CutOff { peer: two.peer, exited: true }]);
    assert_eq!(two.fabric.cut_off(two.peer), CutOff::Done);
    world.resume(one.host);
    assert!(!world.is_running(one.host), "the host is down, not paused");
}
