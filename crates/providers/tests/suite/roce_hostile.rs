//! What a roce fabric makes of packets and greetings that nobody meant: they are counted and dropped, and a good connection goes on.

use crate::common;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use common::pair::Pair;
use common::pcap::{Datagram, datagrams};
use common::{Cluster, bytes_of, inline, remote};
use halite_fabric::{Event, Fabric, Key, Operation, Sleeper, Status, WorkId, WorkRequest};
use halite_mem::Window;
use halite_providers::{RoceConfig, RoceFabric};
use halite_rnic::wire::{Flow, Headers, Packet, Psn, Qpn, RethRepr};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, ipproto,
};
use rustix::time::Timespec;

/// Turns a hang into a failure; no story is meant to come anywhere near.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two ends, memory of the second one, and what the first one sends.
struct Watched {
    pair: Pair,
    key: Key,
    memory: Window,
    cluster: Cluster,
}

impl Watched {
    fn new() -> Watched {
        let cluster = Cluster::new();
        let pcap = Some(cluster.0.join("one.pcap"));
        let one = RoceConfig { pcap, ..RoceConfig::new(&cluster.0, "one") };
        let pair = Pair::open(one, RoceConfig::new(&cluster.0, "two"));
        let (key, memory) = pair.ends[1].register(1 << 16);
        Watched { pair, key, memory, cluster }
    }

    fn address(&self, end: usize) -> SocketAddr {
        self.pair.ends[end].fabric.local_address()
    }

    /// What the first end has sent to the second.
    fn sent(&self) -> Vec<Datagram> {
        let (source, target) = (self.address(0), self.address(1));
        let mut sent = datagrams(&self.cluster.0.join("one.pcap"));
        sent.retain(|datagram| (datagram.source, datagram.target) == (source, target));
        sent
    }

    /// Does everything once, and shows that nothing else was done.
    fn use_once(&mut self, round: u8) {
        let Watched { pair, key, memory, .. } = self;
        pair.run(0, Operation::Write { local: inline(&[round; 16]), remote: remote(*key, 64) });
        let before = pair.run(0, Operation::FetchAdd { remote: remote(*key, 0), add: 1 });
        assert_eq!(before, u64::from(round) - 1, "each addition was made once");
        pair.run(0, Operation::Send { bytes: &[round], imm: 0 });
        let told = pair.until("a message", |pair| pair.ends[1].take_message());
        assert_eq!(told, (vec![round], 0));
        assert_eq!(bytes_of(memory, 64, 16), [round; 16]);
        pair.settle();
        assert!(pair.ends.iter().all(|end| end.events.is_empty()), "nothing else has happened");
    }

    /// Waits until the second end has dropped so many.
    fn until_dropped(&mut self, count: u64) {
        self.pair.until("packets that are dropped", |pair| {
            let dropped = pair.ends[1].fabric.dropped();
            (dropped.strangers + dropped.refused + dropped.malformed >= count).then_some(())
        });
    }

    /// The next packet in the sequence of the lane in which all was sent, as if the first end had made it.
    fn forged(&self, rkey: u32, len: u32) -> Vec<u8> {
        let sent = self.sent();
        let flow = Flow::new(self.address(0), self.address(1));
        // Acknowledgements of what the other end sent go to its requester; the last request is what counts.
        let mut requests = sent.iter().filter_map(|datagram| {
            let packet = Packet::parse(flow.open(datagram.payload()).expect("ours")).expect("ours");
            (!packet.headers.opcode().is_response()).then_some((packet.dest_qp, packet.psn))
        });
        let (dest_qp, psn) = requests.next_back().expect("some were sent");
        forge(&flow, dest_qp, Psn::new(psn.value() + 1), rkey, len)
    }

    /// What the second end's memory is called in the first end's packets.
    fn rkey(&self) -> u32 {
        let flow = Flow::new(self.address(0), self.address(1));
        let sent = self.sent();
        let mut keys = sent.iter().filter_map(|datagram| {
            match Packet::parse(flow.open(datagram.payload()).expect("ours")).expect("ours").headers {
                Headers::WriteOnly { reth, .. } => Some(reth.rkey),
                _ => None,
            }
        });
        keys.next().expect("there was a write")
    }
}

fn forge(flow: &Flow, dest_qp: Qpn, psn: Psn, rkey: u32, len: u32) -> Vec<u8> {
    let headers = Headers::WriteOnly { reth: RethRepr { address: 64, rkey, len }, imm: None };
    let payload = vec![0xee; len as usize];
    let packet = Packet { dest_qp, psn, ack_request: true, solicited: false, headers, payload: &payload };
    let mut bytes = vec![0; 256];
    let len = packet.emit(&mut bytes);
    bytes.truncate(len);
    flow.seal(0, &mut bytes);
    bytes
}

fn stranger() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").unwrap()
}

#[test]
fn garbage_of_any_length_from_strangers_is_counted_and_dropped() {
    let mut watched = Watched::new();
    watched.use_once(1);
    let (stranger, target) = (stranger(), watched.address(1));
    let lens = (0..80).chain([511, 4136, 9000, 65_507]);
    for (count, len) in (1..).zip(lens) {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 31 + len) as u8).collect();
        stranger.send_to(&bytes, target).unwrap();
        // Empty ones, too, are taken off the queue; there is nothing to count in them.
        watched.until_dropped(count - 1);
    }
    watched.use_once(2);
}

/// Who polls on after traffic is kept at it by peers alone.
#[test]
fn what_a_peer_writes_is_traffic_though_it_is_no_event_and_what_strangers_send_is_none() {
    let Watched { mut pair, key, .. } = Watched::new();
    pair.settle();
    let target = pair.ends[1].fabric.clone();
    let before = target.traffic();
    stranger().send_to(&[7; 64], target.local_address()).unwrap();
    pair.until("a packet that is dropped", |_| (target.dropped().strangers > 0).then_some(()));
    assert_eq!(target.traffic(), before);
    pair.run(0, Operation::Write { local: inline(&[1; 16]), remote: remote(key, 64) });
    assert!(pair.ends[1].events.is_empty());
    assert_ne!(target.traffic(), before);
}

#[test]
fn packets_that_a_stranger_has_seen_are_refused_from_its_own_address() {
    let mut watched = Watched::new();
    watched.use_once(1);
    let (stranger, target) = (stranger(), watched.address(1));
    let sent = watched.sent();
    for datagram in &sent {
        stranger.send_to(datagram.payload(), target).unwrap();
    }
    watched.until_dropped(sent.len() as u64);
    let end = &watched.pair.ends[1];
    assert_eq!(end.fabric.dropped().refused, sent.len() as u64);
    // It looks like NAT that has bound the peer anew, and is told as that; nothing follows it there.
    let change = end.fabric.address_change(end.peer).expect("they came from elsewhere");
    let (agreed, seen) = (watched.address(0), stranger.local_addr().unwrap());
    assert_eq!((change.agreed, change.seen, change.packets), (agreed, seen, sent.len() as u64));
    assert_eq!(end.fabric.path(end.peer).unwrap().elsewhere, Some((seen, sent.len() as u64)));
    assert!(change.to_string().contains(&format!("come from {seen} and not from {agreed}")));
    watched.use_once(2);
}

#[test]
fn a_packet_that_a_stranger_makes_itself_is_refused_whatever_key_it_names() {
    let mut watched = Watched::new();
    watched.use_once(1);
    let (stranger, target) = (stranger(), watched.address(1));
    let own = Flow::new(stranger.local_addr().unwrap(), target);
    let flow = Flow::new(watched.address(0), target);
    let packet = watched.forged(watched.rkey(), 16);
    let parsed = Packet::parse(flow.open(&packet).unwrap()).unwrap();
    for rkey in [watched.rkey(), 0, 1, u32::MAX] {
        // As good as the peer's own, and yet not from there.
        let forged = forge(&own, parsed.dest_qp, parsed.psn, rkey, 16);
        stranger.send_to(&forged, target).unwrap();
        // For a queue pair that is nobody's.
        let other = Qpn::new(parsed.dest_qp.value() ^ 0x55_5555);
        stranger.send_to(&forge(&own, other, parsed.psn, rkey, 16), target).unwrap();
    }
    watched.until_dropped(8);
    let dropped = watched.pair.ends[1].fabric.dropped();
    assert_eq!((dropped.refused, dropped.strangers), (4, 4));
    let end = &watched.pair.ends[1];
    assert_eq!(end.fabric.address_change(end.peer), None, "the peer has sent none of them");
    watched.use_once(2);
}

/// A socket that sends whole IP packets, from whatever address they say; `None` for who may not.
fn raw_socket() -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let opened = rustix::net::socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::RAW));
    if opened.is_err() {
        println!("not told: only root sends packets from another's address");
    }
    opened.ok()
}

fn send_raw(socket: &OwnedFd, ip: &[u8], target: SocketAddr) {
    let target: SocketAddrAny = target.into();
    rustix::net::sendto(socket, ip, SendFlags::empty(), &target).unwrap();
}

/// In the IP packet of `like`, another payload, whose UDP checksum nobody computes.
fn ip_of(like: &Datagram, payload: &[u8]) -> Vec<u8> {
    let mut ip = like.ip[..28].to_vec();
    ip.extend(payload);
    let total = ip.len() as u16;
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    ip[24..26].copy_from_slice(&(total - 20).to_be_bytes());
    ip[26..28].fill(0);
    ip
}

#[test]
fn packets_of_the_peer_that_come_once_more_do_nothing_twice() {
    let Some(raw) = raw_socket() else { return };
    let mut watched = Watched::new();
    watched.use_once(1);
    let target = watched.address(1);
    let before = watched.pair.ends[1].counters();
    let sent = watched.sent();
    for _ in 0..3 {
        for datagram in &sent {
            send_raw(&raw, &datagram.ip, target);
        }
    }
    let wanted = before.arrived + 3 * sent.len() as u64;
    watched
        .pair
        .until("the replayed packets", |pair| (pair.ends[1].counters().arrived >= wanted).then_some(()));
    assert!(watched.pair.ends[1].counters().duplicates > before.duplicates);
    watched.use_once(2);
}

#[test]
fn a_packet_that_was_damaged_where_udp_sees_nothing_is_never_delivered() {
    let Some(raw) = raw_socket() else { return };
    let mut watched = Watched::new();
    watched.use_once(1);
    let target = watched.address(1);
    let like = watched.sent()[0].clone();
    let good = watched.forged(watched.rkey(), 16);
    for bit in 0..good.len() * 8 {
        // Marks of congestion, and where they stand, may change on the way; they are followed by a place that may not.
        if bit / 8 == 4 {
            continue;
        }
        let mut damaged = good.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        send_raw(&raw, &ip_of(&like, &damaged), target);
        watched.until_dropped(if bit / 8 < 4 { bit as u64 + 1 } else { bit as u64 - 7 });
    }
    watched.use_once(2);
}

#[test]
fn a_wrong_key_in_sequence_from_the_peers_own_address_ends_the_connection() {
    let Some(raw) = raw_socket() else { return };
    let mut watched = Watched::new();
    watched.use_once(1);
    let like = watched.sent()[0].clone();
    let packet = watched.forged(watched.rkey() ^ 1, 16);
    send_raw(&raw, &ip_of(&like, &packet), watched.address(1));
    let pair = &mut watched.pair;
    for end in [1, 0] {
        let peer = pair.ends[end].peer;
        let event = pair.until("the end", |pair| pair.ends[end].events.pop_front());
        assert_eq!(event, Event::Disconnected { peer });
        let event = pair.until("the cut-off", |pair| pair.ends[end].events.pop_front());
        assert_eq!(event, Event::CutOff { peer, exited: false });
    }
    assert_eq!(bytes_of(&watched.memory, 64, 16), [1; 16], "nothing of it was done");
}

#[test]
fn a_peer_that_stands_still_is_given_up_when_its_lease_is_over() {
    let cluster = Cluster::new();
    let config = |name| RoceConfig { lease: Duration::from_secs(5), ..RoceConfig::new(&cluster.0, name) };
    let mut pair = Pair::open(config("one"), config("two"));
    let (key, _) = pair.ends[1].register(4096);
    let peer = pair.ends[0].peer;
    let ids = [0, 1].map(|_| pair.post(0, Operation::Write { local: inline(b"?"), remote: remote(key, 0) }));
    // The other end is not polled any more.
    let one = pair.ends[0].fabric.clone();
    let mut events = Vec::new();
    one.arm(Some(Sleeper::Progress));
    let begin = Instant::now();
    while events.len() < 4 {
        assert!(begin.elapsed() < PATIENCE, "it is not given up: {events:?}");
        let seen = one.doorbell();
        if one.poll(&mut events) == 0 {
            one.wait(Sleeper::Progress, seen, one.poll_timeout());
        }
    }
    let statuses: Vec<_> = events.drain(..2).map(|event| event.into_completion().unwrap()).collect();
    assert_eq!(statuses[0].status, Status::RetryExceeded, "{ids:?}");
    assert!(matches!(statuses[1].status, Status::PeerGone | Status::Flushed));
    assert_eq!(events, [Event::Disconnected { peer }, Event::CutOff { peer, exited: false }]);
}

/// A socket to where the fabric listens.
fn dial(cluster: &Cluster) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let address = SocketAddrUnix::new(cluster.0.join("two.sock")).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    socket
}

#[test]
fn who_greets_with_nonsense_or_not_at_all_is_hung_up_on() {
    let cluster = Cluster::new();
    let brief =
        |name| RoceConfig { handshake_timeout: Duration::from_secs(5), ..RoceConfig::new(&cluster.0, name) };
    let mut pair = Pair::open(brief("one"), brief("two"));
    let greetings: [&[u8]; 6] =
        [b"", b"?", b"roce", &[b'r', b'o', b'c', b'e', 9, 1], &[b'r', b'o', b'c', b'e', 1, 1, 0], &[7; 3000]];
    for greeting in greetings {
        let socket = dial(&cluster);
        if !greeting.is_empty() {
            let _ = rustix::net::send(&socket, greeting, SendFlags::NOSIGNAL);
        }
        let mut file = std::fs::File::from(socket);
        pair.until("the fabric to hang up", |_| match file.read(&mut [0; 2000]) {
            Ok(0) => Some(()),
            // It may say why first.
            Ok(_) => None,
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(_) => Some(()),
        });
        assert!(file.write(b"late").is_err());
    }
    assert!(pair.ends.iter().all(|end| end.events.is_empty()), "nobody hears of it");
    pair.run(0, Operation::Send { bytes: b"still here", imm: 0 });
}

/// The progress thread of a node did not hear for a second that a connection was ready, because a packet without an event was there.
#[test]
fn the_poll_before_a_sleep_hears_what_a_peer_has_said_also_while_packets_wait() {
    let watched = Watched::new();
    let [leaving, sleeper] = &watched.pair.ends;
    // It has heard everything until now, and the connection lives.
    let mut events = Vec::new();
    sleeper.fabric.poll(&mut events);
    assert!(events.is_empty() && sleeper.fabric.path(sleeper.peer).is_some(), "{events:?}");
    assert!(leaving.fabric.path(leaving.peer).is_some());
    leaving.fabric.disconnect(leaving.peer);
    stranger().send_to(&[7; 64], watched.address(1)).unwrap();
    sleeper.fabric.arm(Some(Sleeper::Progress));
    sleeper.fabric.poll(&mut events);
    assert!(events.iter().any(|event| matches!(event, Event::Disconnected { .. })), "{events:?}");
}

#[test]
fn a_sleeper_is_woken_by_what_arrives_and_by_what_is_due() {
    let cluster = Cluster::new();
    let open = |name: &str| RoceFabric::open(RoceConfig::new(&cluster.0, name)).unwrap();
    let (one, two) = (open("one"), open("two"));
    one.connect("two.sock", b"");
    std::thread::scope(|scope| {
        for (fabric, sleeper) in [(&one, Sleeper::Caller), (&two, Sleeper::Progress)] {
            scope.spawn(move || {
                let (mut heard, mut events) = (0, Vec::new());
                while heard < 200 {
                    fabric.arm(Some(sleeper));
                    let seen = fabric.doorbell();
                    if fabric.poll(&mut events) == 0 {
                        let begin = Instant::now();
                        fabric.wait(sleeper, seen, Some(fabric.poll_timeout().unwrap_or(PATIENCE)));
                        assert!(begin.elapsed() < PATIENCE, "a wake-up is lost");
                    }
                    for event in events.drain(..) {
                        let peer = match event {
                            Event::Connected { peer, .. } => peer,
                            event => event.into_completion().unwrap().peer,
                        };
                        heard += 1;
                        let send = Operation::Send { bytes: b"your turn", imm: heard };
                        let request =
                            WorkRequest { id: WorkId(0), operation: send, signalled: false, solicited: true };
                        fabric.post(peer, halite_fabric::Lane::FIRST, &[request]).unwrap();
                    }
                }
            });
        }
    });
}

/// Whether the sleepers that see to timers are woken within `patience`.
fn wakes(fabric: &RoceFabric, patience: Duration) -> bool {
    let patience = Timespec::try_from(patience).expect("a short time");
    let descriptor = fabric.descriptor(Sleeper::Progress).expect("it shows one");
    let woken = rustix::event::poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&patience));
    woken.expect("a descriptor can be waited for") > 0
}

/// Each request that was posted woke the progress thread, so that it would wake for the request's timer: a wake-up for each call.
#[test]
fn a_request_that_is_posted_wakes_nobody_before_it_is_due() {
    let cluster = Cluster::new();
    let config = |name| RoceConfig { lease: Duration::from_secs(60), ..RoceConfig::new(&cluster.0, name) };
    let mut pair = Pair::open(config("one"), config("two"));
    pair.settle();
    let one = pair.ends[0].fabric.clone();
    one.arm(Some(Sleeper::Progress));
    one.wait(Sleeper::Progress, one.doorbell(), Some(Duration::ZERO));
    assert_eq!(one.poll_timeout(), None, "nothing is under way");
    let seen = one.doorbell();
    // The other end does not poll, and so answers nothing.
    pair.post(0, Operation::Send { bytes: b"?", imm: 0 });
    assert_eq!(one.doorbell(), seen, "who sleeps goes on sleeping");
    assert!(wakes(&one, Duration::from_secs(20)), "until the other end is to be asked");
    assert_eq!(one.poll_timeout(), Some(Duration::ZERO), "which is now");
}
