//! Shm fabrics in one process: what is theirs beyond the suite of all providers.

use crate::common;

use common::{Cluster, connect, remote, until};
use halite_fabric::{
    ConnectTrouble, CutOff, Event, Lane, Operation, PostCause, Sleeper, WorkId, WorkRequest,
};
use halite_providers::{OpenError, ShmFabric};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

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
            until(|| match one.send(to_two, bytes, imm) {
                Ok(()) => true,
                Err(error) => {
                    assert_eq!(error.cause, PostCause::QueueFull);
                    false
                }
            });
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
fn an_open_node_is_listed() {
    let cluster = Cluster::new();
    let (one, _two) = (cluster.open("one"), cluster.open("two"));
    assert_eq!(cluster.listeners(), ["one.sock", "two.sock"]);
    one.fabric.close();
    assert_eq!(cluster.listeners(), ["two.sock"]);
}

#[test]
fn a_fabric_of_the_same_process_is_not_killed() {
    let cluster = Cluster::new();
    let (mut one, mut two) = (cluster.open("one"), cluster.open("two"));
    let (key, _) = two.register(4096);
    let (to_two, to_one) = connect(&mut one, &mut two, "two.sock");
    let held = one.fabric.direct(to_two, key).unwrap();
    two.fabric.disconnect(to_one);
    assert_eq!(two.event(), Event::Disconnected { peer: to_one });
    assert_eq!(two.fabric.cut_off(to_one), CutOff::NotPermitted);
    drop(held);
    assert_eq!(two.event(), Event::CutOff { peer: to_one, exited: false });
    assert_eq!(two.fabric.cut_off(to_one), CutOff::Done);
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
                    until(|| one.send(to_two, &bytes, thread).is_ok());
                    let add = WorkRequest {
                        id: WorkId(0),
                        operation: Operation::FetchAdd { remote: remote(key, 0), add: 1 },
                        signalled: false,
                        solicited: true,
                    };
                    one.fabric.post(to_two, Lane::FIRST, &[add]).unwrap();
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

#[test]
fn a_peer_that_sleeps_over_a_full_queue_is_woken_to_make_room() {
    let cluster = Cluster::new();
    let (mut one, mut two) = (cluster.open("one"), cluster.open("two"));
    let (to_two, _) = connect(&mut one, &mut two, "two.sock");
    let mut events = Vec::new();
    while two.fabric.poll(&mut events) > 0 {}
    two.fabric.arm(Some(Sleeper::Progress));
    let asleep = two.fabric.doorbell();
    let operation = Operation::Send { bytes: &[7; 100], imm: 1 };
    let request = WorkRequest { id: WorkId(1), operation, signalled: false, solicited: false };
    while one.fabric.post(to_two, Lane::FIRST, &[request]).is_ok() {}
    assert_eq!(two.fabric.doorbell(), asleep, "nobody is woken for what nobody hurries with");
    one.fabric.poll(&mut events);
    let woken = two.fabric.doorbell();
    assert_ne!(woken, asleep, "somebody waits for room");
    // It may stand still: each ring of it costs us a system call, and those who reach others pay for that.
    for _ in 0..100 {
        one.fabric.poll(&mut events);
    }
    assert_eq!(two.fabric.doorbell(), woken, "it knows");
}

/// That it accepts nobody was told as a lack of memory that this process may lock.
#[test]
fn a_listener_that_accepts_nobody_is_no_lack_of_ours() {
    let cluster = Cluster::new();
    let mut one = cluster.open("one");
    let new =
        || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).unwrap();
    let address = SocketAddrUnix::new(cluster.0.join("deaf.sock")).unwrap();
    let deaf = new();
    bind(&deaf, &address).unwrap();
    listen(&deaf, 1).unwrap();
    let waiting = || Some(new()).filter(|socket| rustix::net::connect(socket, &address).is_ok());
    let waiting: Vec<_> = std::iter::from_fn(waiting).collect();
    let failure = one.failure("deaf.sock", b"");
    assert_eq!(failure.trouble, ConnectTrouble::Theirs, "after {} that wait: {failure:?}", waiting.len());
    assert!(failure.reason.contains("it accepts nobody"), "{failure:?}");
}

#[test]
fn at_the_end_of_a_peer_what_was_not_posted_was_not_done_and_nothing_completes_behind_it() {
    let cluster = Cluster::new();
    for round in 0..300 {
        let (mut one, mut two) = (cluster.open("one"), cluster.open("two"));
        let (key, words) = two.register(4096);
        let (to_two, to_one) = connect(&mut one, &mut two, "two.sock");
        let fabric = one.fabric.clone();
        let poster = std::thread::spawn(move || {
            let operation = Operation::FetchAdd { remote: remote(key, 0), add: 1 };
            let request = WorkRequest { id: WorkId(0), operation, signalled: true, solicited: false };
            let mut posted = 0;
            loop {
                match fabric.post(to_two, Lane::FIRST, &[request]) {
                    Ok(()) => posted += 1,
                    Err(error) if error.cause == PostCause::QueueFull => std::thread::yield_now(),
                    Err(error) => return (error.cause, posted),
                }
            }
        });
        // It is under way.
        one.completion();
        two.fabric.disconnect(to_one);
        let mut events = Vec::new();
        until(|| {
            one.fabric.poll(&mut events);
            poster.is_finished() && events.contains(&Event::Disconnected { peer: to_two })
        });
        one.fabric.poll(&mut events);
        let (cause, posted) = poster.join().unwrap();
        assert_eq!(cause, PostCause::NotConnected);
        assert_eq!(words.fetch_add_u64(0, 0).unwrap(), posted, "round {round}");
        let end = events.iter().position(|event| matches!(event, Event::Disconnected { .. })).unwrap();
        let late = events[end..].iter().find(|event| matches!(event, Event::Completed(_)));
        assert_eq!(late, None, "round {round}");
    }
}
