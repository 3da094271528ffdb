//! Two shm fabrics in one process: what posting, polling and mapping do.

mod common;

use common::{Cluster, bytes_of, connect, inline, remote};
use halite_fabric::{
    CompletionKind, CutOff, Event, Key, Local, Operation, PeerId, PostCause, Status, WorkId, WorkRequest,
};
use halite_providers::{OpenError, ShmFabric};

const DONE: (Status, CompletionKind) = (Status::Success, CompletionKind::Done { id: WorkId(7) });
const REFUSED: (Status, CompletionKind) = (Status::RemoteAccess, CompletionKind::Done { id: WorkId(7) });

#[test]
fn both_ends_hear_who_the_other_is() {
    let cluster = Cluster::new();
    let mut config = cluster.config("two");
    config.hello = b"I am two".to_vec();
    let mut two = common::Node::open(config);
    let mut one = cluster.open("one");
    assert_eq!(cluster.listeners(), ["one.sock", "two.sock"]);
    one.fabric.connect("two.sock", b"I am one");
    assert!(matches!(
        one.event(),
        Event::Connected { hello, initiator: true, .. } if hello == b"I am two"
    ));
    assert!(matches!(
        two.event(),
        Event::Connected { hello, initiator: false, .. } if hello == b"I am one"
    ));
}

#[test]
fn writes_and_reads_reach_the_other_ends_memory() {
    let cluster = Cluster::new();
    let (mut one, mut two) = (cluster.open("one"), cluster.open("two"));
    let (source_key, source) = one.register(1 << 20);
    let (target_key, target) = two.register(1 << 20);
    let (to_two, _) = connect(&mut one, &mut two, "two.sock");

    let write = Operation::Write { local: inline(b"inline"), remote: remote(target_key, 100) };
    assert_eq!(one.run(to_two, write), DONE);
    assert_eq!(bytes_of(&target, 100, 6), b"inline");

    source.fill(0, 1 << 20, 9).unwrap();
    let whole = Local::Registered { key: source_key, offset: 0, len: 1 << 20 };
    let write = Operation::Write { local: whole, remote: remote(target_key, 0) };
    assert_eq!(one.run(to_two, write), DONE);
    assert!(bytes_of(&target, 0, 1 << 20).iter().all(|byte| *byte == 9));

    target.write(5000, b"read me").unwrap();
    let read = Operation::Read {
        local: Local::Registered { key: source_key, offset: 3, len: 7 },
        remote: remote(target_key, 5000),
    };
    assert_eq!(one.run(to_two, read), DONE);
    assert_eq!(bytes_of(&source, 2, 9), b"\x09read me\x09");
}

#[test]
fn direct_windows_are_the_other_ends_memory() {
    let cluster = Cluster::new();
    let (mut one, mut two) = (cluster.open("one"), cluster.open("two"));
    let (key, ours) = two.register(4096);
    let (to_two, to_one) = connect(&mut one, &mut two, "two.sock");
    let theirs = one.fabric.direct(to_two, key).unwrap();
    theirs.store_u64(8, 5).unwrap();
    assert_eq!(ours.fetch_add_u64(8, 1), Ok(5));
    assert_eq!(theirs.load_u64(8), Ok(6));
    assert!(one.fabric.direct(to_two, Key(1)).is_none());
    assert!(one.fabric.direct(PeerId(99), key).is_none());
    assert!(two.fabric.direct(to_one, Key(0)).is_none());
}

#[test]
fn atomics_return_what_the_word_held_before() {
    let cluster = Cluster::new();
    let (mut one, mut two) = (cluster.open("one"), cluster.open("two"));
    let (key, word) = two.register(4096);
    let (to_two, _) = connect(&mut one, &mut two, "two.sock");
    let old = |old| {
        let id = WorkId(7);
        (Status::Success, CompletionKind::Atomic { id, old })
    };
    let target = remote(key, 16);
    let add = Operation::FetchAdd { remote: target, add: 3 };
    assert_eq!(one.run(to_two, add), old(0));
    assert_eq!(one.run(to_two, add), old(3));
    let swap = Operation::CompareSwap { remote: target, expected: 6, new: 1 };
    assert_eq!(one.run(to_two, swap), old(6));
    assert_eq!(one.run(to_two, swap), old(1));
    assert_eq!(word.load_u64(16), Ok(1));
}

#[test]
fn a_write_with_immediate_has_landed_when_it_is_announced() {
    let cluster = Cluster::new();
    let (mut one, mut two) = (cluster.open("one"), cluster.open("two"));
    let (key, target) = two.register(4096);
    let (to_two, to_one) = connect(&mut one, &mut two, "two.sock");
    let write = Operation::WriteImm { local: inline(b"landed"), remote: remote(key, 0), imm: 42 };
    assert_eq!(one.run(to_two, write), DONE);
    let arrived = two.completion();
    assert_eq!(arrived.peer, to_one);
    assert_eq!(arrived.kind, CompletionKind::Notified { imm: 42 });
    assert_eq!(bytes_of(&target, 0, 6), b"landed");
}

#[test]
fn writes_with_immediate_of_all_lengths_arrive_in_the_order_of_their_list() {
    let cluster = Cluster::new();
    let (mut one, mut two) = (cluster.open("one"), cluster.open("two"));
    let (key, target) = two.register(4096);
    let (to_two, _) = connect(&mut one, &mut two, "two.sock");
    let bytes = [7; 1000];
    // From what travels inside of the ring to what is copied when it is posted.
    let lens = [0, 1, 48, 49, 496, 497, 1000, 8];
    let request = |(imm, len): (u32, usize)| WorkRequest {
        id: WorkId(7),
        operation: Operation::WriteImm { local: inline(&bytes[..len]), remote: remote(key, 2000), imm },
        signalled: false,
        solicited: true,
    };
    let requests: Vec<_> = (0..).zip(lens).map(request).collect();
    one.fabric.post(to_two, &requests).unwrap();
    for expected in 0..lens.len() as u32 {
        assert_eq!(two.completion().kind, CompletionKind::Notified { imm: expected });
    }
    assert_eq!(bytes_of(&target, 2000, 1001), [&bytes[..], &[0]].concat());
}

#[test]
fn small_writes_of_a_peer_that_closes_have_landed_when_it_is_gone() {
    let cluster = Cluster::new();
    let (mut one, mut two) = (cluster.open("one"), cluster.open("two"));
    let (key, target) = two.register(4096);
    let (to_two, to_one) = connect(&mut one, &mut two, "two.sock");
    let write = Operation::WriteImm { local: inline(b"last"), remote: remote(key, 0), imm: 1 };
    one.post(to_two, write).unwrap();
    one.fabric.close();
    assert_eq!(two.event(), Event::Disconnected { peer: to_one });
    assert_eq!(bytes_of(&target, 0, 4), b"last");
    assert_eq!(two.completion().kind, CompletionKind::Notified { imm: 1 });
}

#[test]
fn messages_arrive_in_order_through_many_wraps() {
    const MESSAGES: u32 = 100_000;
    let cluster = Cluster::new();
    let mut config = cluster.config("one");
    config.ring_bytes = 4096;
    let mut one = common::Node::open(config);
    let mut two = cluster.open("two");
    let (to_two, _) = connect(&mut one, &mut two, "two.sock");
    let payload: Vec<u8> = (0..200).collect();
    let sender = std::thread::spawn(move || {
        for imm in 0..MESSAGES {
            let bytes = &payload[..imm as usize % 200];
            while let Err(error) = one.send(to_two, bytes, imm) {
                assert_eq!(error.cause, PostCause::QueueFull);
                std::thread::yield_now();
            }
        }
        one
    });
    for expected in 0..MESSAGES {
        let (bytes, imm) = two.received();
        assert_eq!(imm, expected);
        assert_eq!(bytes.len(), expected as usize % 200);
        assert!(bytes.iter().zip(0..).all(|(byte, at)| *byte == at));
    }
    sender.join().unwrap();
}

#[test]
fn a_full_queue_takes_more_once_the_peer_has_polled() {
    let cluster = Cluster::new();
    let mut config = cluster.config("one");
    config.ring_bytes = 4096;
    let mut one = common::Node::open(config);
    let mut two = cluster.open("two");
    let (to_two, _) = connect(&mut one, &mut two, "two.sock");
    let bytes = [1; 500];
    let send = |id| WorkRequest {
        id: WorkId(id),
        operation: Operation::Send { bytes: &bytes, imm: id as u32 },
        signalled: false,
        solicited: true,
    };
    let requests: Vec<_> = (0..20).map(send).collect();
    let error = one.fabric.post(to_two, &requests).unwrap_err();
    assert_eq!(error.cause, PostCause::QueueFull);
    assert!(error.posted > 0 && error.posted < 20);
    for expected in 0..error.posted as u32 {
        assert_eq!(two.received().1, expected);
    }
    assert_eq!(two.try_completion(), None);
    one.fabric.post(to_two, &requests[error.posted..][..1]).unwrap();
    assert_eq!(two.received().1, error.posted as u32);
}

#[test]
fn an_unsolicited_message_wakes_nobody_and_is_found_by_the_next_who_polls() {
    let cluster = Cluster::new();
    let (mut one, mut two) = (cluster.open("one"), cluster.open("two"));
    let (to_two, _) = connect(&mut one, &mut two, "two.sock");
    let send = |imm, solicited| WorkRequest {
        id: WorkId(7),
        operation: Operation::Send { bytes: b"", imm },
        signalled: false,
        solicited,
    };
    two.fabric.arm(true);
    let seen = two.fabric.doorbell();
    one.fabric.post(to_two, &[send(1, false), send(2, false)]).unwrap();
    assert_eq!(two.fabric.doorbell(), seen);
    one.fabric.post(to_two, &[send(3, false), send(4, true), send(5, false)]).unwrap();
    assert_ne!(two.fabric.doorbell(), seen);
    let arrived: Vec<u32> = (0..5).map(|_| two.received().1).collect();
    assert_eq!(arrived, [1, 2, 3, 4, 5]);
}

#[test]
fn completions_that_nobody_polls_push_back() {
    let cluster = Cluster::new();
    let mut config = cluster.config("one");
    config.completions_max = 3;
    let mut one = common::Node::open(config);
    let mut two = cluster.open("two");
    let (key, _) = two.register(4096);
    let (to_two, _) = connect(&mut one, &mut two, "two.sock");
    let add = Operation::FetchAdd { remote: remote(key, 0), add: 1 };
    for _ in 0..3 {
        one.post(to_two, add).unwrap();
    }
    let refused = one.post(to_two, add).unwrap_err();
    assert_eq!((refused.posted, refused.cause), (0, PostCause::QueueFull));
    one.completion();
    one.post(to_two, add).unwrap();
}

#[test]
fn a_key_mentioned_in_a_message_can_be_used_at_once() {
    let cluster = Cluster::new();
    let (mut one, mut two) = (cluster.open("one"), cluster.open("two"));
    let (to_two, to_one) = connect(&mut one, &mut two, "two.sock");
    for round in 0..200u32 {
        let (key, window) = two.register(4096);
        window.store_u64(0, round.into()).unwrap();
        two.send(to_one, &key.0.to_le_bytes(), 0).unwrap();
        let (bytes, _) = one.received();
        let key = Key(u32::from_le_bytes(bytes.try_into().unwrap()));
        let mapped = one.fabric.direct(to_two, key).expect("a mentioned key");
        assert_eq!(mapped.load_u64(0), Ok(round.into()));
    }
}

#[test]
fn hundreds_of_segments_fit_through_a_greeting() {
    let cluster = Cluster::new();
    let (mut one, mut two) = (cluster.open("one"), cluster.open("two"));
    // More than either socket buffers at once.
    for _ in 0..400 {
        one.register(4096);
        two.register(4096);
    }
    let (to_two, to_one) = connect(&mut one, &mut two, "two.sock");
    assert!(one.fabric.direct(to_two, Key(399)).is_some());
    assert!(two.fabric.direct(to_one, Key(399)).is_some());
    assert!(two.fabric.direct(to_one, Key(400)).is_none());
}

#[test]
fn wrong_keys_and_ranges_are_refused_and_touch_nothing() {
    let cluster = Cluster::new();
    let (mut one, mut two) = (cluster.open("one"), cluster.open("two"));
    let (key, target) = two.register(4096);
    let (to_two, _) = connect(&mut one, &mut two, "two.sock");
    for address in [remote(Key(1), 0), remote(Key(u32::MAX), 0), remote(key, 4093), remote(key, u64::MAX)] {
        let local = inline(b"1234");
        let remote = address;
        assert_eq!(one.run(to_two, Operation::Write { local, remote }), REFUSED);
        let write = Operation::WriteImm { local, remote, imm: 1 };
        assert_eq!(one.run(to_two, write), REFUSED);
        let add = Operation::FetchAdd { remote, add: 1 };
        assert_eq!(one.run(to_two, add), REFUSED);
    }
    let misaligned = Operation::FetchAdd { remote: remote(key, 4), add: 1 };
    assert_eq!(one.run(to_two, misaligned), REFUSED);
    // The peer is not told of writes that it refused.
    assert_eq!(two.try_completion(), None);
    assert!(bytes_of(&target, 0, 4096).iter().all(|byte| *byte == 0));
}

#[test]
fn requests_that_can_never_be_posted_are_malformed() {
    let cluster = Cluster::new();
    let (mut one, mut two) = (cluster.open("one"), cluster.open("two"));
    let (key, _) = two.register(4096);
    let (own_key, _) = one.register(4096);
    let (to_two, _) = connect(&mut one, &mut two, "two.sock");
    let remote = remote(key, 0);
    let too_long = vec![0; one.fabric.capabilities(to_two).send_bytes_max + 1];
    let beyond = |offset, len| Local::Registered { key: own_key, offset, len };
    for operation in [
        Operation::Send { bytes: &too_long, imm: 0 },
        Operation::Read { local: inline(b"not a place to read into"), remote },
        Operation::Write { local: beyond(4090, 7), remote },
        Operation::Write { local: beyond(u64::MAX, 2), remote },
    ] {
        let error = one.post(to_two, operation).unwrap_err();
        assert_eq!(error.cause, PostCause::Malformed);
    }
    let longest = &too_long[1..];
    one.send(to_two, longest, 1).unwrap();
    assert_eq!(two.received(), (longest.to_vec(), 1));
}

#[test]
fn unsignalled_requests_complete_only_when_they_fail() {
    let cluster = Cluster::new();
    let (mut one, mut two) = (cluster.open("one"), cluster.open("two"));
    let (key, _) = two.register(4096);
    let (to_two, _) = connect(&mut one, &mut two, "two.sock");
    let request = |id, offset| WorkRequest {
        id: WorkId(id),
        operation: Operation::Write { local: inline(b"x"), remote: remote(key, offset) },
        signalled: false,
        solicited: true,
    };
    let requests = [request(1, 0), request(2, 4096), request(3, 1)];
    one.fabric.post(to_two, &requests).unwrap();
    let failed = one.completion();
    assert_eq!(failed.status, Status::RemoteAccess);
    assert_eq!(failed.kind, CompletionKind::Done { id: WorkId(2) });
    assert_eq!(one.try_completion(), None);
}

#[test]
fn closing_delivers_the_last_words_then_cuts_both_ends_off() {
    let cluster = Cluster::new();
    let (mut one, mut two) = (cluster.open("one"), cluster.open("two"));
    let (key, _) = two.register(4096);
    let (to_two, to_one) = connect(&mut one, &mut two, "two.sock");
    one.send(to_two, b"farewell", 1).unwrap();
    one.fabric.close();

    assert_eq!(two.event(), Event::Disconnected { peer: to_one });
    assert_eq!(two.received(), (b"farewell".to_vec(), 1));
    assert_eq!(two.event(), Event::CutOff { peer: to_one, exited: false });
    assert_eq!(two.fabric.cut_off(to_one), CutOff::Done);
    let error = two.send(to_one, b"too late", 1).unwrap_err();
    assert_eq!(error.cause, PostCause::NotConnected);

    assert_eq!(one.event(), Event::Disconnected { peer: to_two });
    assert_eq!(one.event(), Event::CutOff { peer: to_two, exited: false });
    assert!(one.fabric.direct(to_two, key).is_none());
    assert_eq!(one.failure("two.sock", b"").reason, "this fabric is closed");
    assert_eq!(cluster.listeners(), ["two.sock"]);
}

#[test]
fn a_peer_that_still_holds_a_window_is_not_cut_off_yet() {
    let cluster = Cluster::new();
    let (mut one, mut two) = (cluster.open("one"), cluster.open("two"));
    let (key, ours) = two.register(4096);
    let (to_two, to_one) = connect(&mut one, &mut two, "two.sock");
    let held = one.fabric.direct(to_two, key).unwrap();

    two.fabric.disconnect(to_one);
    assert_eq!(two.event(), Event::Disconnected { peer: to_one });
    assert_eq!(one.event(), Event::Disconnected { peer: to_two });
    assert_eq!(one.event(), Event::CutOff { peer: to_two, exited: false });
    // One holds a window of two's memory, so two has no proof and must not reuse it.
    held.store_u64(0, 1).unwrap();
    assert_eq!(ours.load_u64(0), Ok(1));
    assert_eq!(two.try_event(), None);
    assert_eq!(two.fabric.cut_off(to_one), CutOff::NotPermitted);

    drop(held);
    assert_eq!(two.event(), Event::CutOff { peer: to_one, exited: false });
}

#[test]
fn dropped_peers_can_connect_again_as_somebody_new() {
    let cluster = Cluster::new();
    let (mut one, mut two) = (cluster.open("one"), cluster.open("two"));
    let (to_two, to_one) = connect(&mut one, &mut two, "two.sock");
    one.fabric.disconnect(to_two);
    for (node, peer) in [(&mut one, to_two), (&mut two, to_one)] {
        assert_eq!(node.event(), Event::Disconnected { peer });
        assert_eq!(node.event(), Event::CutOff { peer, exited: false });
    }
    let (again, _) = connect(&mut one, &mut two, "two.sock");
    assert_ne!(again, to_two);
    one.send(again, b"hello again", 0).unwrap();
    assert_eq!(two.received().0, b"hello again");
}

#[test]
fn a_name_belongs_to_one_living_fabric() {
    let cluster = Cluster::new();
    let first = cluster.open("one");
    let second = ShmFabric::open(cluster.config("one")).map(drop);
    assert!(matches!(second, Err(OpenError::NameTaken { .. })));
    drop(first);
    assert_eq!(std::fs::read_dir(&cluster.0).unwrap().count(), 0);
    drop(cluster.open("one"));
}

#[test]
fn misshapen_configurations_are_refused() {
    let cluster = Cluster::new();
    let open = |change: fn(&mut halite_providers::ShmConfig)| {
        let mut config = cluster.config("one");
        change(&mut config);
        ShmFabric::open(config).map(drop).unwrap_err()
    };
    assert!(matches!(open(|config| config.ring_bytes = 5000), OpenError::RingBytes { ring_bytes: 5000 }));
    assert!(matches!(open(|config| config.name = "../one".to_owned()), OpenError::Name { .. }));
    assert!(matches!(open(|config| config.hello = vec![0; 1025]), OpenError::HelloTooLong { len: 1025 }));
    let mut one = cluster.open("one");
    let nobody = one.failure("nobody.sock", b"");
    assert_eq!((&*nobody.address, nobody.is_ours), ("nobody.sock", false));
    let long = one.failure("one.sock", &[0; 1025]);
    assert_eq!(long.reason, "hello of 1025 bytes is longer than 1024");
}

#[test]
fn many_threads_may_post_to_one_peer() {
    const THREADS: u32 = 4;
    const EACH: u32 = 2000;
    let cluster = Cluster::new();
    let (mut one, mut two) = (cluster.open("one"), cluster.open("two"));
    let (key, word) = two.register(4096);
    let (to_two, _) = connect(&mut one, &mut two, "two.sock");
    std::thread::scope(|scope| {
        let one = &one;
        for thread in 0..THREADS {
            scope.spawn(move || {
                for count in 0..EACH {
                    let bytes = count.to_le_bytes();
                    while one.send(to_two, &bytes, thread).is_err() {
                        std::thread::yield_now();
                    }
                    let add = WorkRequest {
                        id: WorkId(0),
                        operation: Operation::FetchAdd { remote: remote(key, 0), add: 1 },
                        signalled: false,
                        solicited: true,
                    };
                    one.fabric.post(to_two, &[add]).unwrap();
                }
            });
        }
        let mut expected = [0; THREADS as usize];
        for _ in 0..THREADS * EACH {
            let (bytes, thread) = two.received();
            let next = &mut expected[thread as usize];
            assert_eq!(bytes, u32::to_le_bytes(*next), "each thread's order holds");
            *next += 1;
        }
    });
    assert_eq!(word.load_u64(0), Ok((THREADS * EACH).into()));
}
