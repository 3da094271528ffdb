//! Two shm fabrics as one, for which a thread sleeps at once, and fabrics that sleep on a descriptor beside others.
//!
//! Tests that are ignored are roles, which other tests start as processes of their own.

use crate::common;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Cluster, Node, Role, bytes_of, connect, inline, remote, role_dir};
use halite_fabric::{Composite, CompositeError, Event, Fabric, Operation, PeerId, Sleeper, Status};
use halite_providers::{ShmConfig, ShmFabric, Sleep};
use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;

/// Turns a hang into a failure; no test is meant to come anywhere near.
const PATIENCE: Duration = Duration::from_secs(60);

fn sleeping_on(sleep: Sleep, config: ShmConfig) -> Arc<dyn Fabric> {
    ShmFabric::open(ShmConfig { sleep, ..config }).unwrap()
}

/// A node in two clusters, by the name `both`.
fn open_both(left: &Cluster, right: &Cluster) -> Node {
    let open = |cluster: &Cluster| sleeping_on(Sleep::Descriptor, cluster.config("both"));
    Node::of(Arc::new(Composite::new(vec![("left", open(left)), ("right", open(right))]).unwrap()))
}

/// Connects to `both` and then answers every message with the same.
fn echo(sleep: Sleep) {
    let Some(dir) = role_dir() else { return };
    let mut node = Node::of(sleeping_on(sleep, ShmConfig::new(dir, "echo")));
    node.fabric.connect("both.sock", b"echo");
    let both = node.connected();
    loop {
        let (bytes, imm) = node.received();
        node.send(both, &bytes, imm).unwrap();
    }
}

#[test]
#[ignore = "a role"]
fn echo_on_a_futex() {
    echo(Sleep::Futex);
}

#[test]
#[ignore = "a role"]
fn echo_on_a_descriptor() {
    echo(Sleep::Descriptor);
}

fn start(cluster: &Cluster, role: &str, both: &mut Node) -> (Role, PeerId) {
    let role = Role::start(cluster, &format!("shm_composite::{role}"));
    let peer = both.connected();
    (role, peer)
}

#[test]
fn a_thread_sleeps_for_two_fabrics_and_no_process_fails_to_wake_it() {
    const ROUNDS: u32 = 10_000;
    let (left, right) = (Cluster::new(), Cluster::new());
    let mut both = open_both(&left, &right);
    let peers =
        [start(&left, "echo_on_a_futex", &mut both), start(&right, "echo_on_a_descriptor", &mut both)];
    for imm in 0..ROUNDS {
        let peer = peers[(imm % 3 % 2) as usize].1;
        both.send(peer, &imm.to_le_bytes(), imm).unwrap();
        assert_eq!(both.received(), (imm.to_le_bytes().to_vec(), imm));
    }
    // The death of a process wakes as well.
    let [(futex, futex_peer), (descriptor, descriptor_peer)] = peers;
    for (role, peer) in [(descriptor, descriptor_peer), (futex, futex_peer)] {
        drop(role);
        assert_eq!(both.event(), Event::Disconnected { peer });
        assert_eq!(both.event(), Event::CutOff { peer, exited: true });
    }
}

#[test]
fn all_who_sleep_are_woken_by_either_fabric_and_no_ring_is_lost() {
    const ROUNDS: u32 = 10_000;
    let (left, right) = (Cluster::new(), Cluster::new());
    let open = |cluster: &Cluster| sleeping_on(Sleep::Descriptor, cluster.config("both"));
    let parts = [open(&left), open(&right)];
    let both = Composite::new(vec![("left", parts[0].clone()), ("right", parts[1].clone())]).unwrap();
    let (round, done) = (std::sync::Barrier::new(3), std::sync::Barrier::new(3));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let seen = both.doorbell();
                    round.wait();
                    let begin = Instant::now();
                    while both.doorbell() == seen {
                        assert!(begin.elapsed() < PATIENCE, "a ring was lost");
                        both.wait(Sleeper::Progress, seen, Some(PATIENCE));
                    }
                    done.wait();
                }
            });
        }
        for number in 0..ROUNDS as usize {
            round.wait();
            parts[number % 2].wake();
            done.wait();
        }
    });
}

#[test]
fn peers_in_two_directories_reach_the_same_memory_by_the_same_key() {
    let (left, right) = (Cluster::new(), Cluster::new());
    let mut both = open_both(&left, &right);
    let (key, memory) = both.register(4096);
    let (mut one, mut two) = (left.open("one"), right.open("two"));
    let (to_one, from_one) = connect(&mut both, &mut one, "left:one.sock");
    let (to_two, from_two) = connect(&mut both, &mut two, "right:two.sock");
    assert_ne!(to_one, to_two);
    for (node, peer, offset) in [(&mut one, from_one, 0), (&mut two, from_two, 3)] {
        let write = Operation::Write { local: inline(b"abc"), remote: remote(key, offset) };
        assert_eq!(node.run(peer, write).0, Status::Success);
    }
    assert_eq!(bytes_of(&memory, 0, 6), b"abcabc");
    // What is registered later is known to both as well, and theirs is reached by loads and stores.
    let (later, memory) = both.register(4096);
    memory.write(0, b"later").unwrap();
    for (node, peer) in [(&one, from_one), (&two, from_two)] {
        assert_eq!(bytes_of(&node.fabric.direct(peer, later).unwrap(), 0, 5), b"later");
    }
    let (theirs, window) = two.register(4096);
    window.write(0, b"two").unwrap();
    assert_eq!(bytes_of(&both.fabric.direct(to_two, theirs).unwrap(), 0, 3), b"two");
    assert_eq!(both.failure("right:one.sock", b"").address, "right:one.sock");
}

#[test]
fn fabrics_that_sleep_on_futexes_and_on_descriptors_wake_each_other() {
    let cluster = Cluster::new();
    let mut futex = Node::of(sleeping_on(Sleep::Futex, cluster.config("futex")));
    let mut descriptor = Node::of(sleeping_on(Sleep::Descriptor, cluster.config("descriptor")));
    let mut another = Node::of(sleeping_on(Sleep::Descriptor, cluster.config("another")));
    assert!(futex.fabric.descriptor(Sleeper::Progress).is_none());
    let (to_descriptor, _) = connect(&mut futex, &mut descriptor, "descriptor.sock");
    let (to_another, _) = connect(&mut descriptor, &mut another, "another.sock");
    let (to_futex, _) = connect(&mut another, &mut futex, "futex.sock");
    std::thread::scope(|scope| {
        let pass_on = |mut node: Node, peer| {
            scope.spawn(move || {
                for imm in 0..1000 {
                    assert_eq!(node.received().1, imm);
                    node.send(peer, b"", imm).unwrap();
                }
                node
            });
        };
        pass_on(descriptor, to_another);
        pass_on(another, to_futex);
        for imm in 0..1000 {
            futex.send(to_descriptor, b"", imm).unwrap();
            assert_eq!(futex.received().1, imm);
        }
    });
}

#[test]
fn a_descriptor_is_readable_when_something_came_for_who_asked_to_be_rung() {
    let cluster = Cluster::new();
    let mut sleeper = Node::of(sleeping_on(Sleep::Descriptor, cluster.config("sleeper")));
    let mut ringer = cluster.open("ringer");
    let (to_sleeper, _) = connect(&mut ringer, &mut sleeper, "sleeper.sock");
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let flags = rustix::event::epoll::EventFlags::IN | rustix::event::epoll::EventFlags::ET;
    let data = rustix::event::epoll::EventData::new_u64(0);
    rustix::event::epoll::add(&epoll, sleeper.fabric.descriptor(Sleeper::Progress).unwrap(), data, flags)
        .unwrap();
    let edges = || {
        let mut events = Vec::with_capacity(4);
        let now = Timespec::default();
        rustix::event::epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&now)).unwrap()
    };
    // What came while it was connected.
    edges();
    sleeper.fabric.arm(None);
    ringer.send(to_sleeper, b"unasked", 0).unwrap();
    assert_eq!(edges(), 0);
    sleeper.fabric.arm(Some(Sleeper::Progress));
    for imm in 0..3 {
        ringer.send(to_sleeper, b"asked", imm).unwrap();
        assert_eq!((edges(), edges()), (1, 0));
    }
    sleeper.fabric.wake();
    let mut fds = [PollFd::from_borrowed_fd(epoll.as_fd(), PollFlags::IN)];
    let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut fds, Some(&minute)), Ok(1));
}

#[test]
fn one_that_sleeps_on_a_futex_is_no_part_of_several() {
    let (left, right) = (Cluster::new(), Cluster::new());
    let parts = vec![
        ("left", sleeping_on(Sleep::Descriptor, left.config("both"))),
        ("right", sleeping_on(Sleep::Futex, right.config("both"))),
    ];
    let refused = Composite::new(parts).err().expect("nobody could sleep for both");
    assert!(matches!(refused, CompositeError::NoDescriptor { name: "right" }), "{refused}");
}
