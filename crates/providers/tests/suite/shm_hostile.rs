//! A hostile process that sends invalid messages, or corrupts its ring, loses its own connection and has no other
//! effect.

use crate::common;

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use common::{Cluster, Node, connect};
use halite_fabric::{Event, PeerId};
use halite_mem::{PagePolicy, Segment, ring};
use rustix::event::EventfdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags};

const HELLO: u8 = 1;
const SEGMENT: u8 = 2;
const READY: u8 = 3;
const DETACHED: u8 = 4;
const REFUSED: u8 = 5;
const WITHDRAWN: u8 = 6;
const FORGOTTEN: u8 = 7;

/// A client with an independent implementation of the protocol.
struct Client(OwnedFd);

impl Client {
    fn dial(cluster: &Cluster) -> Client {
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        let address = SocketAddrUnix::new(cluster.0.join("victim.sock")).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        Client(socket)
    }

    /// Sends a packet. Ignores errors, because the victim may have closed the connection already.
    fn send(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let parts = [IoSlice::new(packet)];
        let _ = rustix::net::sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL);
    }

    fn hello(&self, hello: &Hello) {
        let fds = [hello.pidfd.as_fd(), hello.mailbox.fd().unwrap(), hello.ring.fd().unwrap()];
        self.send(&packet(HELLO, b"\0hostile"), &fds);
    }

    /// Sends a hello with these descriptors for the client's progress thread and for its callers.
    fn hello_with(&self, hello: &Hello, [progress, caller]: [BorrowedFd<'_>; 2]) {
        let fds =
            [hello.pidfd.as_fd(), hello.mailbox.fd().unwrap(), hello.ring.fd().unwrap(), progress, caller];
        self.send(&packet(HELLO, b"\x01hostile"), &fds);
    }

    fn segment(&self, key: u32, len: u64, fd: BorrowedFd<'_>) {
        let body = [&key.to_le_bytes()[..], &len.to_le_bytes()].concat();
        self.send(&packet(SEGMENT, &body), &[fd]);
    }

    /// Blocks until the victim closes the connection.
    fn expect_hang_up(&self) {
        while self.receive() != 0 {}
    }

    /// Blocks until the victim reports that it is ready.
    fn expect_ready(&self) {
        while self.receive() != packet(READY, b"").len() {}
    }

    /// Returns the length of the next packet; drops its descriptors.
    fn receive(&self) -> usize {
        let mut bytes = [0; 2048];
        let mut control = RecvAncillaryBuffer::default();
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        let received = rustix::net::recvmsg(&self.0, parts, &mut control, RecvFlags::empty());
        received.map_or(0, |received| received.bytes)
    }
}

struct Hello {
    pidfd: OwnedFd,
    mailbox: Arc<Segment>,
    ring: Arc<Segment>,
}

impl Hello {
    /// Returns a valid hello, which tests make invalid.
    fn good() -> Hello {
        Hello {
            pidfd: pidfd(rustix::process::getpid()),
            mailbox: segment(4096),
            ring: segment(ring::ring_bytes(4096)),
        }
    }
}

fn pidfd(pid: Pid) -> OwnedFd {
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap()
}

fn segment(len: u64) -> Arc<Segment> {
    Segment::create("hostile", len, PagePolicy::Normal).unwrap()
}

fn packet(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![b'H', b'L', b's', b'm', 5, 0, kind, 0];
    packet.extend(body);
    packet
}

/// Runs `attack`, and expects that the victim closes that connection and accepts the next peer.
fn check(attack: impl FnOnce(&Client)) {
    let cluster = Cluster::new();
    let mut victim = cluster.open("victim");
    let client = Client::dial(&cluster);
    attack(&client);
    client.expect_hang_up();
    // The attacker was never a peer, so the first event is the connection of an honest client.
    let mut honest = cluster.open("honest");
    let (_, to_honest) = connect(&mut honest, &mut victim, "victim.sock");
    victim.send(to_honest, b"welcome", 0).unwrap();
    assert_eq!(honest.received().0, b"welcome");
}

/// Runs `attack` against a victim that has accepted the attacker as a peer.
fn check_connected(attack: impl FnOnce(&Client, &Hello)) {
    let cluster = Cluster::new();
    let hello = Hello::good();
    let (mut victim, client, peer) = connect_as_peer(&cluster, &hello);
    attack(&client, &hello);
    assert_eq!(poll_until_event(&mut victim), Event::Disconnected { peer });
    assert_eq!(victim.try_event(), None);
    let mut honest = cluster.open("honest");
    connect(&mut honest, &mut victim, "victim.sock");
}

fn connect_as_peer(cluster: &Cluster, hello: &Hello) -> (Node, Client, PeerId) {
    let mut victim = cluster.open("victim");
    let client = Client::dial(cluster);
    client.hello(hello);
    client.send(&packet(READY, b""), &[]);
    client.expect_ready();
    let peer = victim.connected();
    (victim, client, peer)
}

/// Polls until the victim returns an event. The victim detects corrupt memory when it polls.
fn poll_until_event(victim: &mut Node) -> Event {
    let begin = std::time::Instant::now();
    loop {
        if let Some(event) = victim.try_event() {
            return event;
        }
        assert!(begin.elapsed().as_secs() < 60, "the victim does not detect the corruption");
    }
}

#[test]
fn malformed_first_messages_are_refused() {
    check(|client| client.send(b"GET / HTTP/1.1\r\n\r\n", &[]));
    check(|client| client.send(&[0xff; 2000], &[]));
    check(|client| client.send(&packet(99, b""), &[]));
    check(|client| client.send(&[0], &[]));
}

#[test]
fn messages_out_of_order_are_refused() {
    check(|client| client.send(&packet(READY, b""), &[]));
    check(|client| client.send(&packet(DETACHED, b""), &[]));
    check(|client| client.segment(0, 4096, segment(4096).fd().unwrap()));
    check(|client| {
        client.hello(&Hello::good());
        client.hello(&Hello::good());
    });
}

#[test]
fn a_descriptor_of_another_process_is_refused() {
    let mut hello = Hello::good();
    hello.pidfd = pidfd(Pid::INIT);
    check(|client| client.hello(&hello));
    hello.pidfd = hello.ring.fd().unwrap().try_clone_to_owned().unwrap();
    check(|client| client.hello(&hello));
}

#[test]
fn invalid_rings_and_mailboxes_are_refused() {
    let mut hello = Hello::good();
    hello.ring = segment(5000);
    check(|client| client.hello(&hello));
    hello.ring = segment(ring::ring_bytes(1 << 40));
    check(|client| client.hello(&hello));
    hello = Hello::good();
    hello.mailbox = segment(4);
    check(|client| client.hello(&hello));
    let good = Hello::good();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let fds = [good.pidfd.as_fd(), file.as_fd(), good.ring.fd().unwrap()];
    check(|client| client.send(&packet(HELLO, b"\0"), &fds));
}

fn eventfd(flags: EventfdFlags) -> OwnedFd {
    rustix::event::eventfd(0, flags).unwrap()
}

#[test]
fn a_doorbell_that_could_block_is_refused() {
    let hello = Hello::good();
    let good = eventfd(EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let refused = |bell: BorrowedFd<'_>| {
        for bells in [[bell, good.as_fd()], [good.as_fd(), bell]] {
            check(|client| {
                client.hello_with(&hello, bells);
                let answer = packet(REFUSED, b"the peer's doorbell is not a non-blocking eventfd");
                assert_eq!(client.receive(), answer.len());
            });
        }
    };
    let blocking = eventfd(EventfdFlags::CLOEXEC);
    refused(blocking.as_fd());
    let (_end, pipe) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    refused(pipe.as_fd());
    refused(hello.ring.fd().unwrap());
    // An announced descriptor that is missing, and a descriptor that was not announced.
    check(|client| client.send(&packet(HELLO, b"\x01"), &[hello.pidfd.as_fd()]));
    let fds = [hello.pidfd.as_fd(), hello.mailbox.fd().unwrap(), hello.ring.fd().unwrap(), blocking.as_fd()];
    check(|client| client.send(&packet(HELLO, b"\0"), &fds));
    check(|client| client.send(&packet(HELLO, b"\x02"), &fds));
}

/// Connects a client that sleeps on `bell`, runs `corrupt` on its mailbox, and sends this number of messages to it.
fn check_rung(bell: Option<&OwnedFd>, corrupt: impl FnOnce(&Arc<Segment>), messages: u32) {
    let cluster = Cluster::new();
    let mut victim = cluster.open("victim");
    let (client, hello) = (Client::dial(&cluster), Hello::good());
    match bell {
        Some(bell) => client.hello_with(&hello, [bell.as_fd(); 2]),
        None => client.hello(&hello),
    }
    client.send(&packet(READY, b""), &[]);
    client.expect_ready();
    let peer = victim.connected();
    corrupt(&hello.mailbox);
    for message in 0..messages {
        victim.send(peer, b"wake up", message).unwrap();
    }
}

fn arm(mailbox: &Arc<Segment>, armed: u32) {
    mailbox.window(0, 8).unwrap().write(4, &armed.to_ne_bytes()).unwrap();
}

#[test]
fn a_corrupt_doorbell_does_not_block_the_ringer() {
    let bell = eventfd(EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let count = || {
        let mut count = [0; 8];
        rustix::io::read(&bell, &mut count).map(|_| u64::from_ne_bytes(count))
    };
    check_rung(Some(&bell), |mailbox| arm(mailbox, 2), 3);
    assert_eq!(count(), Ok(3));
    // The eventfd's counter is full.
    rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    check_rung(Some(&bell), |mailbox| arm(mailbox, 2), 1);
    assert_eq!(count(), Ok(1));
    // An undefined value, and a value that requires a descriptor of a client without descriptors.
    check_rung(Some(&bell), |mailbox| arm(mailbox, 77), 1);
    check_rung(None, |mailbox| arm(mailbox, 2), 1);
    assert!(count().is_err());
}

#[test]
fn segments_of_another_length_or_key_are_refused() {
    let memory = segment(4096);
    for (key, len) in [(0, 4097), (0, u64::MAX), (0, 0), (1, 4096), (u32::MAX, 4096)] {
        check(|client| {
            client.hello(&Hello::good());
            client.segment(key, len, memory.fd().unwrap());
        });
    }
    check(|client| {
        client.hello(&Hello::good());
        client.segment(0, 4096, memory.fd().unwrap());
        client.segment(0, 4096, memory.fd().unwrap());
    });
}

#[test]
fn wrong_withdrawals_of_keys_end_the_connection() {
    let memory = segment(4096);
    let withdraw = |client: &Client, key: u32| client.send(&packet(WITHDRAWN, &key.to_le_bytes()), &[]);
    for keys in [&[0, 0][..], &[1], &[u32::MAX]] {
        check(|client| {
            client.send(&packet(WITHDRAWN, &[0; 4]), &[]);
            keys.iter().for_each(|key| withdraw(client, *key));
        });
        check(|client| {
            client.hello(&Hello::good());
            // The client never announced the key.
            keys.iter().for_each(|key| withdraw(client, *key));
        });
        check_connected(|client, _| {
            client.segment(0, 4096, memory.fd().unwrap());
            withdraw(client, 0);
            keys.iter().for_each(|key| withdraw(client, key.saturating_add(1)));
            withdraw(client, 0);
        });
    }
    check_connected(|client, _| client.send(&packet(FORGOTTEN, &[0; 4]), &[]));
    check_connected(|client, _| client.send(&packet(WITHDRAWN, &[0; 3]), &[]));
}

#[test]
fn a_silent_client_is_dropped() {
    let cluster = Cluster::new();
    let mut config = cluster.config("victim");
    config.handshake_timeout = std::time::Duration::from_millis(50);
    let mut victim = Node::open(config);
    let silent = Client::dial(&cluster);
    silent.expect_hang_up();
    assert_eq!(victim.try_event(), None);
}

#[test]
fn connections_beyond_the_maximum_are_refused() {
    let cluster = Cluster::new();
    let mut config = cluster.config("victim");
    config.peers_max = 1;
    let mut victim = Node::open(config);
    let (mut one, mut two) = (cluster.open("one"), cluster.open("two"));
    connect(&mut one, &mut victim, "victim.sock");
    let reason = two.failure("victim.sock", b"").reason;
    assert!(reason.contains("has its maximum number of peers"), "{reason}");
}

#[test]
fn a_corrupt_ring_ends_the_connection() {
    // Record headers with an impossible lap, with too long a payload, and of an unknown kind.
    for header in [u64::MAX, u64::from(u32::MAX) << 6 | 1, 7 << 3 | 1] {
        check_connected(|_, hello| hello.ring.window(128, 8).unwrap().store_u64(0, header).unwrap());
    }
}

#[test]
fn a_small_write_to_an_unknown_key_ends_the_connection() {
    check_connected(|_, hello| {
        let ring = hello.ring.window(0, hello.ring.len()).unwrap();
        let mut ring = ring::Producer::new(ring).unwrap();
        let (write, key_and_offset) = (2, 7u64 << 48 | 100);
        ring.try_push(write, 0, &[&key_and_offset.to_ne_bytes(), b"anywhere"]).unwrap();
    });
}

#[test]
fn an_invalid_message_of_a_peer_ends_the_connection() {
    check_connected(|client, _| client.send(b"garbage", &[]));
    check_connected(|client, _| client.send(&packet(READY, b""), &[]));
    check_connected(|client, hello| client.segment(7, 4096, hello.ring.fd().unwrap()));
}

#[test]
fn a_hang_up_is_not_a_cut_off() {
    let cluster = Cluster::new();
    let (mut victim, client, peer) = connect_as_peer(&cluster, &Hello::good());
    drop(client);
    assert_eq!(victim.event(), Event::Disconnected { peer });
    assert_eq!(victim.try_event(), None);
}
