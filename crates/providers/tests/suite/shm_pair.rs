//! Tests of shm fabrics in one process that are not in the conformance suite.

use crate::common;

use common::{Cluster, connect, remote, wait_until};
use halite_fabric::{ConnectTrouble, Event, Lane, Operation, PostCause, WorkId, WorkRequest};
use halite_providers::{OpenError, ShmFabric};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

#[test]
fn a_name_belongs_to_one_open_fabric() {
    let cluster = Cluster::new();
    let first = cluster.open("one");
    assert_eq!(cluster.listeners(), ["one.sock"]);
    let second = ShmFabric::open(cluster.config("one")).map(drop);
    assert!(matches!(second, Err(OpenError::NameTaken { .. })));
    first.fabric.close();
    assert!(cluster.listeners().is_empty());
    drop(first);
    assert_eq!(std::fs::read_dir(&cluster.0).unwrap().count(), 0);
    drop(cluster.open("one"));
}

/// EAGAIN from connect() was once reported as a limit on locked memory.
#[test]
fn a_full_backlog_is_not_a_local_shortage() {
    let cluster = Cluster::new();
    let mut one = cluster.open("one");
    let new_socket =
        || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).unwrap();
    let address = SocketAddrUnix::new(cluster.0.join("busy.sock")).unwrap();
    let busy = new_socket();
    bind(&busy, &address).unwrap();
    listen(&busy, 1).unwrap();
    let waiting = || Some(new_socket()).filter(|socket| rustix::net::connect(socket, &address).is_ok());
    let waiting: Vec<_> = std::iter::from_fn(waiting).collect();
    let failure = one.failure("busy.sock", b"");
    assert_eq!(failure.trouble, ConnectTrouble::Theirs, "{} connections wait: {failure:?}", waiting.len());
}

#[test]
fn no_completion_follows_a_disconnection() {
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
        // Waits until the thread posts.
        one.completion();
        two.fabric.disconnect(to_one);
        let mut events = Vec::new();
        wait_until(|| {
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
