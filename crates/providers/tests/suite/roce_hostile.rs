//! A roce fabric counts and drops hostile packets and greetings, and its connection continues.

use crate::common;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use common::pair::Pair;
use common::pcap::{Datagram, datagrams};
use common::{Cluster, bytes_of, inline, remote};
use halite_fabric::{Event, Fabric, Key, Operation, Sleeper};
use halite_mem::Window;
use halite_providers::RoceConfig;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// Two ends, memory of the second end, and a capture of the packets of the first end.
struct CapturedPair {
    pair: Pair,
    key: Key,
    memory: Window,
    cluster: Cluster,
}

impl CapturedPair {
    fn new() -> CapturedPair {
        let cluster = Cluster::new();
        let pcap = Some(cluster.0.join("one.pcap"));
        let one = RoceConfig { pcap, ..RoceConfig::new(&cluster.0, "one") };
        let pair = Pair::open(one, RoceConfig::new(&cluster.0, "two"));
        let (key, memory) = pair.ends[1].register(1 << 16);
        CapturedPair { pair, key, memory, cluster }
    }

    fn address(&self, end: usize) -> SocketAddr {
        self.pair.ends[end].fabric.local_address()
    }

    /// Returns the packets that the first end has sent to the second.
    fn sent(&self) -> Vec<Datagram> {
        let (source, target) = (self.address(0), self.address(1));
        let mut sent = datagrams(&self.cluster.0.join("one.pcap"));
        sent.retain(|datagram| (datagram.source, datagram.target) == (source, target));
        sent
    }

    /// Executes a write, a fetch-add and a send, and checks that no other request was executed.
    fn run_round(&mut self, round: u8) {
        let CapturedPair { pair, key, memory, .. } = self;
        pair.run(0, Operation::Write { local: inline(&[round; 16]), remote: remote(*key, 64) });
        let before = pair.run(0, Operation::FetchAdd { remote: remote(*key, 0), add: 1 });
        assert_eq!(before, u64::from(round) - 1, "each addition was executed once");
        pair.run(0, Operation::Send { bytes: &[round], imm: 0 });
        let message = pair.wait_for("a message", |pair| pair.ends[1].take_message());
        assert_eq!(message, (vec![round], 0));
        assert_eq!(bytes_of(memory, 64, 16), [round; 16]);
        pair.settle();
        assert!(pair.ends.iter().all(|end| end.events.is_empty()), "no other event occurred");
    }

    /// Waits until the second end has dropped this many packets.
    fn wait_for_drops(&mut self, count: u64) {
        self.pair.wait_for("dropped packets", |pair| {
            let dropped = pair.ends[1].fabric.dropped();
            (dropped.strangers + dropped.refused + dropped.malformed >= count).then_some(())
        });
    }
}

/// Returns a socket of an unknown sender.
fn unknown_sender() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").unwrap()
}

#[test]
fn garbage_from_unknown_senders_is_counted_and_dropped() {
    let mut captured = CapturedPair::new();
    captured.run_round(1);
    let (sender, target) = (unknown_sender(), captured.address(1));
    let lens = (0..80).chain([511, 4136, 9000, 65_507]);
    for (count, len) in (1..).zip(lens) {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 31 + len) as u8).collect();
        sender.send_to(&bytes, target).unwrap();
        captured.wait_for_drops(count);
    }
    captured.run_round(2);
}

/// A poller polls again while `Fabric::traffic` changes.
#[test]
fn empty_packets_of_a_peer_keep_a_poller_busy_only_while_they_arrive() {
    const COUNT: u64 = 200;
    let mut captured = CapturedPair::new();
    captured.run_round(1);
    let arrived = captured.pair.ends[1].counters().arrived;
    let empty = Operation::Write { local: inline(&[]), remote: remote(captured.key, 0) };
    for _ in 0..COUNT {
        captured.pair.post(0, empty);
    }
    let [sender, poller] = &captured.pair.ends;
    let (mut busy, mut completions) = (0, Vec::new());
    while completions.len() < COUNT as usize {
        sender.fabric.poll(&mut completions);
        let before = poller.fabric.traffic();
        assert_eq!(poller.fabric.poll(&mut Vec::new()), 0);
        busy += u64::from(poller.fabric.traffic() != before);
    }
    captured.pair.settle();
    let end = &captured.pair.ends[1];
    let packets = end.counters().arrived - arrived;
    assert!((1..=packets).contains(&busy), "{busy} busy polls for {packets} packets");
    // Empty datagrams are no packets, so they do not count as traffic.
    let quiet = end.fabric.traffic();
    let (sender, target) = (unknown_sender(), captured.address(1));
    (0..COUNT).for_each(|_| assert_eq!(sender.send_to(&[], target).unwrap(), 0));
    let before = end.fabric.dropped().strangers;
    (0..COUNT).for_each(|_| assert_eq!(end.fabric.poll(&mut Vec::new()), 0));
    assert_eq!(end.fabric.dropped().strangers - before, COUNT);
    assert_eq!(end.fabric.traffic(), quiet);
    assert_eq!(end.fabric.poll_timeout(), None, "no timer is due");
}

#[test]
fn packets_replayed_from_another_address_are_refused() {
    let mut captured = CapturedPair::new();
    captured.run_round(1);
    let (sender, target) = (unknown_sender(), captured.address(1));
    let sent = captured.sent();
    for datagram in &sent {
        sender.send_to(datagram.payload(), target).unwrap();
    }
    captured.wait_for_drops(sent.len() as u64);
    let end = &captured.pair.ends[1];
    assert_eq!(end.fabric.dropped().refused, sent.len() as u64);
    // The fabric reports the replay as a peer whose address NAT has changed, but the connection keeps its address.
    let change = end.fabric.address_change(end.peer).expect("packets came from another address");
    let (agreed, seen) = (captured.address(0), sender.local_addr().unwrap());
    assert_eq!((change.agreed, change.seen, change.packets), (agreed, seen, sent.len() as u64));
    assert_eq!(end.fabric.path(end.peer).unwrap().elsewhere, Some((seen, sent.len() as u64)));
    assert!(change.to_string().contains(&format!("come from {seen} and not from {agreed}")));
    captured.run_round(2);
}

/// Returns a socket connected to the fabric's listener.
fn dial(cluster: &Cluster) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let address = SocketAddrUnix::new(cluster.0.join("two.sock")).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    socket
}

#[test]
fn bad_and_missing_greetings_end_the_connection() {
    let cluster = Cluster::new();
    let config =
        |name| RoceConfig { handshake_timeout: Duration::from_secs(5), ..RoceConfig::new(&cluster.0, name) };
    let mut pair = Pair::open(config("one"), config("two"));
    let greetings: [&[u8]; 6] =
        [b"", b"?", b"roce", &[b'r', b'o', b'c', b'e', 9, 1], &[b'r', b'o', b'c', b'e', 1, 1, 0], &[7; 3000]];
    for greeting in greetings {
        let socket = dial(&cluster);
        if !greeting.is_empty() {
            let _ = rustix::net::send(&socket, greeting, SendFlags::NOSIGNAL);
        }
        let mut file = std::fs::File::from(socket);
        pair.wait_for("a hang-up of the fabric", |_| match file.read(&mut [0; 2000]) {
            Ok(0) => Some(()),
            // The fabric may send the reason first.
            Ok(_) => None,
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(_) => Some(()),
        });
        assert!(file.write(b"late").is_err());
    }
    assert!(pair.ends.iter().all(|end| end.events.is_empty()), "no event occurred");
    pair.run(0, Operation::Send { bytes: b"still here", imm: 0 });
}

/// Regression: a node's progress thread noticed a second late that a connection was ready, because a control message
/// without an event was pending.
#[test]
fn the_poll_before_a_sleep_reads_control_messages() {
    let captured = CapturedPair::new();
    let [leaving, sleeper] = &captured.pair.ends;
    // The fabric has read all control messages now, and the connection is up.
    let mut events = Vec::new();
    sleeper.fabric.poll(&mut events);
    assert!(events.is_empty() && sleeper.fabric.path(sleeper.peer).is_some(), "{events:?}");
    assert!(leaving.fabric.path(leaving.peer).is_some());
    leaving.fabric.disconnect(leaving.peer);
    unknown_sender().send_to(&[7; 64], captured.address(1)).unwrap();
    sleeper.fabric.arm(Some(Sleeper::Progress));
    sleeper.fabric.poll(&mut events);
    assert!(events.iter().any(|event| matches!(event, Event::Disconnected { .. })), "{events:?}");
}

#[test]
fn a_flooded_socket_does_not_hide_a_disconnection() {
    let captured = CapturedPair::new();
    let [leaving, flooded] = &captured.pair.ends;
    leaving.fabric.disconnect(leaving.peer);
    let (sender, target) = (unknown_sender(), captured.address(1));
    let mut events = Vec::new();
    let is_reported = (0..10_000).any(|_| {
        // One poll receives at most eight packets.
        (0..8).for_each(|_| assert_eq!(sender.send_to(&[7; 64], target).unwrap(), 64));
        flooded.fabric.poll(&mut events);
        events.iter().any(|event| matches!(event, Event::Disconnected { .. }))
    });
    assert!(is_reported, "{events:?}");
}
