//! Shm fabrics in one process: what is theirs beyond the suite of all providers.

mod common;

use common::{Cluster, connect, remote};
use halite_fabric::{CutOff, Event, Operation, PostCause, WorkId, WorkRequest};
use halite_providers::{OpenError, ShmFabric};

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
fn whoever_is_open_is_listed() {
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
