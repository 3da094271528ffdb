//! What requests do between two hosts, beyond the suite of all providers: as the profile has it, and when.

use crate::common;

use common::{LONG_NS, Pair, pair, pass, remote, request};
use halite_fabric::kind::OperationKind;
use halite_fabric::trace::Tracer;
use halite_fabric::{
    Class, CompletionKind, Event, Fabric, Key, Lane, Local, Operation, PostCause, Sleeper, Status,
};
use halite_mem::{PagePolicy, Segment, Window};
use halite_sim::{Link, Profile, World};

/// Runs a story under each profile.
fn each(story: impl Fn(Pair)) {
    story(pair(1, Profile::local()));
    story(pair(1, Profile::rnic_100g()));
    story(pair(1, Profile::rnic_100g_hca()));
}

/// Whether the first of two additions, by an adapter and by a processor while that is about it, is lost.
fn loses_one_of_two_additions(profile: Profile) -> bool {
    let Pair { world, one, two } = pair(1, profile);
    let far = remote(two.key, 16);
    one.post(1, Operation::FetchAdd { remote: far, add: 1 });
    // As long as that takes to land, and half as long as the adapter has the word.
    let Profile { post_ns, doorbell_ns, pcie_ns, wire_ns, atomic_ns, .. } = Profile::rnic_100g();
    pass(&world, post_ns + doorbell_ns + 2 * pcie_ns + wire_ns + atomic_ns / 2);
    let old = two.memory.fetch_add_u64(16, 1).unwrap();
    pass(&world, LONG_NS);
    assert_eq!(one.ended(), [(1, Status::Success)]);
    let sum = two.memory.load_u64(16).unwrap();
    assert!(old + 1 == sum || old == 0 && sum == 1, "{old} {sum}");
    sum == 1
}

#[test]
fn an_adapter_overwrites_what_a_processor_did_to_its_word() {
    assert!(loses_one_of_two_additions(Profile::rnic_100g_hca()));
    assert!(!loses_one_of_two_additions(Profile::rnic_100g()));
}

#[test]
fn atomics_of_an_adapter_are_in_one_piece_among_themselves_and_keep_their_place() {
    let Pair { world, one, two } = pair(1, Profile::rnic_100g_hca());
    let three = common::open(&world, "three");
    three.fabric.connect("two", b"I am three");
    pass(&world, 1_000_000);
    let (far, peer) = (remote(two.key, 16), three.connected());
    for id in 0..20 {
        one.post(id, Operation::FetchAdd { remote: far, add: 1 });
        three
            .fabric
            .post(peer, Lane::FIRST, &[common::request(id, Operation::FetchAdd { remote: far, add: 1 })])
            .unwrap();
    }
    // Behind all of one connection's, whatever the other has under way.
    one.post(20, Operation::Write { local: Local::Inline(&[1]), remote: remote(two.key, 0) });
    one.post(21, Operation::CompareSwap { remote: remote(two.key, 0), expected: 1, new: 2 });
    pass(&world, LONG_NS);
    assert_eq!((two.memory.load_u64(16), two.memory.load_u64(0)), (Ok(40), Ok(2)));
    assert!(one.ended().iter().all(|(_, status)| *status == Status::Success));
}

/// Requests that name memory of two wrongly, from one.
fn wrong(one: &common::Side, key: Key) -> [Operation<'_>; 5] {
    let beyond = remote(key, common::SEGMENT_BYTES - 8999);
    [
        Operation::Write { local: one.source(9000), remote: beyond },
        Operation::WriteImm { local: one.source(9000), remote: beyond, imm: 1 },
        Operation::Read { local: one.source(9000), remote: beyond },
        Operation::FetchAdd { remote: remote(key, 4), add: 1 },
        Operation::FetchAdd { remote: remote(key, u64::MAX - 7), add: 1 },
    ]
}

#[test]
fn what_an_adapter_refuses_ends_the_connection_for_both() {
    for wrongly in 0..6 {
        for is_lost in [false, true] {
            let pair = pair(1, Profile::rnic_100g());
            let Pair { world, one, two } = &pair;
            one.memory.fill(0, 9000, 7).unwrap();
            one.post(1, Operation::Write { local: one.source(9000), remote: remote(two.key, 0) });
            let unknown = Operation::Write { local: one.source(8), remote: remote(Key(99), 0) };
            one.post(2, wrong(one, two.key).into_iter().nth(wrongly).unwrap_or(unknown));
            one.post(3, Operation::Write { local: one.source(8), remote: remote(two.key, 10_000) });
            two.post(1, Operation::Send { bytes: b"unheard", imm: 0 });
            if is_lost {
                pair.back(Link::down);
            }
            pass(world, LONG_NS);
            let peers = [one, two].map(|side| side.peer);
            for (side, peer) in [one, two].into_iter().zip(peers) {
                let ends = [Event::Disconnected { peer }, Event::CutOff { peer, exited: false }];
                assert_eq!(side.events(), ends, "{wrongly}");
                let again = [request(9, Operation::Send { bytes: b"", imm: 0 })];
                let error = side.fabric.post(peer, Lane::FIRST, &again).unwrap_err();
                assert_eq!(error.cause, PostCause::NotConnected);
            }
            assert_eq!(two.bytes(0, 9001), [vec![7; 9000], vec![0]].concat(), "what came before is done");
            assert_eq!(two.bytes(10_000, 8), vec![0; 8], "what came behind is not");
            let ended = one.ended();
            match is_lost {
                false => {
                    use Status::{Flushed, RemoteAccess, Success};
                    assert_eq!(ended, [(1, Success), (2, RemoteAccess), (3, Flushed)], "{wrongly}");
                    assert_eq!(world.counters().refused, 1);
                }
                true => assert!(ended.iter().all(|(_, status)| *status != Status::Success), "{ended:?}"),
            }
        }
    }
}

/// Registers another segment, whose key has not been told to anybody yet when this returns.
fn another_key(side: &common::Side) -> (Key, Window) {
    let segment = Segment::create("late", 4096, PagePolicy::Normal).unwrap();
    let window = segment.window(0, 4096).unwrap();
    (side.fabric.register(segment).unwrap(), window)
}

#[test]
fn what_mentions_a_key_that_is_not_known_yet_waits_for_it_and_all_behind_it() {
    for is_told_in_vain in [false, true] {
        let pair = pair(1, Profile::rnic_100g());
        if is_told_in_vain {
            pair.back(Link::down);
        }
        let Pair { world, one, two } = &pair;
        let (key, window) = another_key(two);
        pair.back(|link| Link { up: true, ..link });
        one.post(1, Operation::Write { local: Local::Inline(b"salt"), remote: remote(key, 0) });
        one.post(2, Operation::Send { bytes: b"behind", imm: 0 });
        pass(world, 3_000);
        assert_eq!((one.ended(), two.poll()), (vec![], vec![]), "a known key would do now");
        pass(world, LONG_NS);
        assert_eq!(one.ended(), [(1, Status::Success), (2, Status::Success)]);
        let mut seen = [0; 4];
        window.read(0, &mut seen).unwrap();
        assert_eq!(&seen, b"salt");
        let took_ns = |operation| {
            let began_ns = world.now_ns();
            one.post(3, operation);
            while one.ended().is_empty() {
                pass(world, 10);
            }
            world.now_ns() - began_ns
        };
        let to = |key| Operation::Write { local: Local::Inline(b"salt"), remote: remote(key, 0) };
        assert_eq!(took_ns(to(key)), took_ns(to(two.key)), "it costs nothing once it is known");
    }
}

#[test]
fn who_waits_for_a_key_holds_up_nobody_in_another_lane() {
    let pair = pair(1, Profile::rnic_100g());
    pair.back(Link::down);
    let Pair { world, one, two } = &pair;
    let (key, _) = another_key(two);
    one.post(1, Operation::Write { local: Local::Inline(b"salt"), remote: remote(key, 0) });
    let other = Lane { number: 1, class: Class::Bulk };
    let send = common::request(2, Operation::Send { bytes: b"beside", imm: 0 });
    one.fabric.post(one.peer, other, &[send]).unwrap();
    pass(world, 10_000);
    assert_eq!(two.poll().len(), 1, "the message is there");
    pair.back(|link| Link { up: true, ..link });
    pass(world, LONG_NS);
    assert_eq!(one.ended(), [(2, Status::Success), (1, Status::Success)]);
}

/// An answer to one lane's question is older than what another lane asks about.
#[test]
fn two_lanes_that_wait_for_keys_each_get_an_answer_of_their_own() {
    let pair = pair(1, Profile { interrupt_ns: 50_000, ..Profile::rnic_100g() });
    let Pair { world, one, two } = &pair;
    let key_told_in_vain = || {
        pair.back(Link::down);
        let (key, _) = another_key(two);
        pair.back(|link| Link { up: true, ..link });
        remote(key, 0)
    };
    let write = |remote| Operation::Write { local: Local::Inline(b"salt"), remote };
    one.post(1, write(key_told_in_vain()));
    pass(world, 60_000);
    // The answer is under way.
    let other = Lane { number: 1, class: Class::Bulk };
    one.fabric.post(one.peer, other, &[common::request(2, write(key_told_in_vain()))]).unwrap();
    pass(world, 30_000);
    assert_eq!(one.ended(), [], "neither has left");
    pass(world, LONG_NS);
    assert_eq!(one.ended(), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn memory_that_is_registered_while_a_connection_comes_about_is_told_as_well() {
    let world = World::new(1, Profile::rnic_100g());
    let (mut one, mut two) = (common::open(&world, "one"), common::open(&world, "two"));
    one.fabric.connect("two", b"I am one");
    let mut keys = vec![another_key(&one)];
    pass(&world, 500);
    two.peer = two.connected();
    keys.push(another_key(&two));
    pass(&world, LONG_NS);
    one.peer = one.connected();
    let packets = world.counters().packets;
    two.post(1, Operation::Write { local: Local::Inline(b"salt"), remote: remote(keys[0].0, 0) });
    one.post(1, Operation::Write { local: Local::Inline(b"salt"), remote: remote(keys[1].0, 0) });
    pass(&world, LONG_NS);
    for (side, (_, window)) in [&one, &two].into_iter().zip(&keys) {
        assert_eq!(side.ended(), [(1, Status::Success)]);
        let mut seen = [0; 4];
        window.read(0, &mut seen).unwrap();
        assert_eq!(&seen, b"salt");
    }
    assert_eq!(world.counters().packets, packets + 4, "each is sent and acknowledged, and nobody asks");
}

#[test]
fn who_waits_for_a_key_of_a_peer_that_does_not_answer_ends_with_the_connection() {
    let pair = pair(1, Profile::rnic_100g());
    let Pair { world, one, two } = &pair;
    pair.back(Link::down);
    let (key, _) = another_key(two);
    pair.back(|link| Link { up: true, ..link });
    pair.there(Link::down);
    one.post(1, Operation::Write { local: Local::Inline(b"salt"), remote: remote(key, 0) });
    pass(world, LONG_NS);
    assert_eq!(one.ended(), [(1, Status::Flushed)], "it never left");
    let peer = one.peer;
    assert_eq!(one.events(), [Event::Disconnected { peer }, Event::CutOff { peer, exited: false }]);
}

#[test]
fn a_full_queue_refuses_until_it_has_made_progress() {
    let Pair { world, one, two } = pair(1, Profile { queue_depth: 3, ..Profile::rnic_100g() });
    let list = [common::request(1, Operation::Send { bytes: b"one of many", imm: 0 }); 5];
    let error = one.fabric.post(one.peer, Lane::FIRST, &list).unwrap_err();
    assert_eq!((error.posted, error.cause), (3, PostCause::QueueFull));
    pass(&world, LONG_NS);
    assert_eq!(two.poll().len(), 3);
    one.fabric.post(one.peer, Lane::FIRST, &list[..3]).unwrap();
}

#[test]
fn a_receiver_that_does_not_poll_pushes_back_and_loses_nothing() {
    let profile = Profile { queue_depth: 8, receive_depth: 2, ..Profile::rnic_100g() };
    let Pair { world, one, two } = pair(1, profile);
    for number in 0..8u32 {
        one.post(1, Operation::Send { bytes: &number.to_le_bytes(), imm: number });
    }
    pass(&world, LONG_NS);
    assert_eq!(one.ended().len(), 2);
    let full = one.fabric.post(
        one.peer,
        Lane::FIRST,
        &[common::request(1, Operation::Send { bytes: b"", imm: 9 }); 3],
    );
    assert_eq!(full.unwrap_err().posted, 2);
    assert!(world.counters().receiver_not_ready > 0);
    let mut heard = Vec::new();
    for _ in 0..5 {
        heard.extend(two.poll().into_iter().map(|completion| completion.kind));
        pass(&world, LONG_NS);
    }
    let expected = (0..8u32).map(|imm| CompletionKind::Received { bytes: imm.to_le_bytes().to_vec(), imm });
    assert_eq!(heard[..8], expected.collect::<Vec<_>>());
    assert_eq!(heard.len(), 10);
}

#[test]
fn a_doorbell_wakes_its_waiter() {
    each(|Pair { world, one, two }| {
        two.fabric.arm(Some(Sleeper::Progress));
        let seen = two.fabric.doorbell();
        let fabric = two.fabric.clone();
        world.spawn(None, "progress", async move {
            fabric.rung(seen).await;
            assert_eq!(fabric.poll(&mut Vec::new()), 1);
        });
        one.post(1, Operation::Send { bytes: b"heard", imm: 0 });
        assert_eq!(world.run(), halite_sim::RunEnd::Finished);
    });
}

#[test]
fn others_that_are_open_are_discovered() {
    let world = World::new(1, Profile::local());
    let (one, two) = (common::open(&world, "one"), common::open(&world, "two"));
    assert_eq!(one.fabric.discover(), ["two"]);
    two.fabric.close();
    assert!(one.fabric.discover().is_empty());
}

#[test]
fn the_tracer_wraps_it_and_tells_virtual_time() {
    let Pair { world, one, two } = pair(1, Profile::rnic_100g());
    let clock = world.clock(one.host);
    let begin_ns = clock.now_ns();
    let ours = clock.clone();
    let tracer = Tracer::new(one.fabric.clone(), 10).with_clock(move || ours.now_ns() - begin_ns);
    let write = Operation::Write { local: Local::Inline(b"traced"), remote: remote(two.key, 0) };
    tracer.post(one.peer, Lane::FIRST, &[common::request(1, write)]).unwrap();
    pass(&world, 50_000);
    assert_eq!(tracer.poll(&mut Vec::new()), 1);
    assert_eq!(tracer.counters().of(OperationKind::Write).bytes, 6);
    let told = tracer.dump();
    assert_eq!(told.lines().count(), 2, "{told}");
    assert_eq!(clock.now_ns() - begin_ns, 50_000);
}

/// What is on the wire to it lands nowhere, and what is read out of it breaks off.
#[test]
fn a_key_that_is_taken_back_ends_what_is_under_way_to_its_memory() {
    let long = |pair: &Pair, is_read| {
        let (local, remote) = (pair.one.source(1 << 20), remote(pair.two.key, 0));
        if is_read { Operation::Read { local, remote } } else { Operation::Write { local, remote } }
    };
    for (profile, is_adapter) in [(Profile::rnic_100g(), true), (Profile::local(), false)] {
        for is_read in [false, true] {
            let pair = pair(1, profile.clone());
            let Pair { world, one, two } = &pair;
            one.memory.fill(0, 1 << 20, 7).unwrap();
            one.post(1, long(&pair, is_read));
            pass(world, 40_000);
            two.fabric.deregister(two.key);
            let half = two.bytes(0, 1 << 20);
            assert!(is_read || half.contains(&7) && half.contains(&0), "it was half way");
            pass(world, LONG_NS);
            assert_eq!(one.ended(), [(1, Status::RemoteAccess)], "{is_adapter} {is_read}");
            assert!(two.bytes(0, 1 << 20) == half, "nothing lands any more");
            assert!(two.events().contains(&Event::Deregistered { key: two.key }));
            assert_eq!(one.events().is_empty(), !is_adapter, "an adapter ends the connection");
        }
    }
}

#[test]
fn an_adapters_atomic_on_a_word_that_is_taken_back_meanwhile_is_not_made() {
    let pair = pair(1, Profile { atomic_ns: 50_000, ..Profile::rnic_100g_hca() });
    let Pair { world, one, two } = &pair;
    one.post(1, Operation::FetchAdd { remote: remote(two.key, 0), add: 1 });
    pass(world, 20_000);
    two.fabric.deregister(two.key);
    pass(world, LONG_NS);
    assert_eq!(one.ended(), [(1, Status::RemoteAccess)]);
    assert_eq!(two.memory.load_u64(0), Ok(0));
}

#[test]
fn what_comes_behind_an_adapters_atomic_waits_for_it_and_is_not_sent_again() {
    let pair = pair(1, Profile { atomic_ns: 50_000, ..Profile::rnic_100g_hca() });
    let Pair { world, one, two } = &pair;
    one.post(1, Operation::FetchAdd { remote: remote(two.key, 0), add: 1 });
    one.post(2, Operation::Write { local: Local::Inline(&7u64.to_le_bytes()), remote: remote(two.key, 0) });
    pass(world, 20_000);
    assert_eq!(two.memory.load_u64(0), Ok(0), "both have arrived");
    pass(world, LONG_NS);
    assert_eq!(one.ended(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!((two.memory.load_u64(0), world.counters().retransmitted), (Ok(7), 0));
}
