//! Connections between hosts: only peers that know the secret can connect, even while unauthenticated senders use the
//! port.

use crate::common;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::Cluster;
use halite_fabric::{ConnectTrouble, Event, Fabric};
use halite_providers::secure::{Secret, Secrets};
use halite_providers::{Hosts, RoceConfig, RoceFabric};

/// Time limit that turns a hang into a failure; no test should come near it.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Fabrics that share no directory, as if on different hosts.
struct RemoteHosts {
    cluster: Cluster,
    fabrics: Vec<Arc<RoceFabric>>,
}

impl RemoteHosts {
    fn new() -> RemoteHosts {
        let cluster = Cluster::new();
        std::fs::create_dir_all(&cluster.0).unwrap();
        RemoteHosts { cluster, fabrics: Vec::new() }
    }

    fn open(&mut self, name: &str, secrets: Secrets, configure: fn(&mut RoceConfig)) -> Arc<RoceFabric> {
        let mut config = RoceConfig::new(self.cluster.0.join(name), name);
        config.hosts = Some(Hosts::listen(SocketAddr::new(config.address, 0), secrets).unwrap());
        configure(&mut config);
        let fabric = RoceFabric::open(config).unwrap();
        self.fabrics.push(fabric.clone());
        fabric
    }

    /// Waits until both ends have reported the connection.
    fn wait_until_connected(&self, ends: [&Arc<RoceFabric>; 2]) {
        let (begin, mut are_connected) = (Instant::now(), [false; 2]);
        while are_connected.contains(&false) {
            for (end, is_connected) in ends.iter().zip(&mut are_connected) {
                let mut events = Vec::new();
                end.poll(&mut events);
                match &events[..] {
                    [] => {}
                    [Event::Connected { .. }] => *is_connected = true,
                    events => panic!("{events:?}"),
                }
            }
            assert!(begin.elapsed() < TIMEOUT, "timed out");
        }
    }

    /// Connects `from` to `to`.
    fn connect(&self, from: &Arc<RoceFabric>, to: &Arc<RoceFabric>) {
        from.connect(&port_of(to).to_string(), b"hello");
        self.wait_until_connected([from, to]);
    }

    /// Polls all fabrics, and checks that there is no event.
    fn poll_all(&self) {
        for fabric in &self.fabrics {
            let mut events = Vec::new();
            fabric.poll(&mut events);
            assert!(events.is_empty(), "{events:?}");
        }
    }

    /// Polls all fabrics until they close the client's connection; returns the bytes that the client read.
    fn read_all(&self, client: &mut TcpStream) -> Vec<u8> {
        client.set_nonblocking(true).unwrap();
        let (begin, mut read, mut bytes) = (Instant::now(), Vec::new(), [0; 256]);
        loop {
            self.poll_all();
            match client.read(&mut bytes) {
                Ok(0) => return read,
                Ok(len) => read.extend(&bytes[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return read,
            }
            assert!(begin.elapsed() < TIMEOUT, "the fabric keeps the connection open");
        }
    }
}

fn secrets() -> Secrets {
    Secret::new().unwrap().into()
}

fn port_of(fabric: &RoceFabric) -> SocketAddr {
    fabric.control_port().expect("other hosts may dial")
}

fn unchanged(_: &mut RoceConfig) {}

fn with_short_timeouts(config: &mut RoceConfig) {
    config.handshake_timeout = Duration::from_secs(3);
}

#[test]
fn dialling_without_a_secret_fails_with_a_reason() {
    let hosts = RemoteHosts::new();
    let one = RoceFabric::open(RoceConfig::new(hosts.cluster.0.join("one"), "one")).unwrap();
    one.connect("127.0.0.1:1", b"");
    let mut events = Vec::new();
    one.poll(&mut events);
    let Some(Event::ConnectFailed(failure)) = events.pop() else { panic!("no answer") };
    assert!(failure.reason.contains("the cluster's secret"), "{}", failure.reason);
}

#[test]
fn connections_without_the_secret_are_closed() {
    let mut hosts = RemoteHosts::new();
    let secrets = secrets();
    let one = hosts.open("one", secrets.clone(), unchanged);
    let two = hosts.open("two", secrets, with_short_timeouts);
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"HLT\x09", b"HLT\x02\x02\xff\xff", &[0xff; 5000]] {
        let mut client = TcpStream::connect(port_of(&two)).unwrap();
        client.write_all(bytes).unwrap();
        let read = hosts.read_all(&mut client);
        assert!(read.len() <= 7, "{read:?}");
    }
    // A hello from a client that does not know the secret is refused with a reason.
    let mut client = TcpStream::connect(port_of(&two)).unwrap();
    client.write_all(&[&b"HLT\x02\x01\x30\x00"[..], &[7; 48]].concat()).unwrap();
    assert_eq!(hosts.read_all(&mut client), b"HLT\x02\x03\x00\x00");
    // A client that sends nothing is dropped after a timeout.
    let mut silent = TcpStream::connect(port_of(&two)).unwrap();
    hosts.read_all(&mut silent);
    hosts.connect(&one, &two);
}

#[test]
fn unauthenticated_connections_cannot_block_a_peer() {
    let mut hosts = RemoteHosts::new();
    let secrets = secrets();
    let one = hosts.open("one", secrets.clone(), unchanged);
    let two = hosts.open("two", secrets, with_short_timeouts);
    let mut clients: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(port_of(&two)).unwrap()).collect();
    for client in &mut clients {
        hosts.read_all(client);
    }
    assert!(two.dropped().strangers >= 100 - 2 * 8, "{:?}", two.dropped());
    hosts.connect(&one, &two);
}

/// A port that closes the first connections, and forwards later connections to the port of a fabric.
struct FlakyPort {
    address: SocketAddr,
    dialled: Arc<AtomicUsize>,
}

impl FlakyPort {
    fn new(hang_ups: usize, to: SocketAddr) -> FlakyPort {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (address, dialled) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let count = dialled.clone();
        // The thread ends with the process, as do the forwarding threads.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if count.fetch_add(1, Relaxed) >= hang_ups {
                    let there = TcpStream::connect(to).unwrap();
                    forward(stream.try_clone().unwrap(), there.try_clone().unwrap());
                    forward(there, stream);
                }
            }
        });
        FlakyPort { address, dialled }
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(std::net::Shutdown::Write);
    });
}

#[test]
fn a_host_is_dialled_again_after_a_hang_up() {
    let mut hosts = RemoteHosts::new();
    let secrets = secrets();
    let one = hosts.open("one", secrets.clone(), unchanged);
    let two = hosts.open("two", secrets, unchanged);
    let flaky = FlakyPort::new(3, port_of(&two));
    one.connect(&flaky.address.to_string(), b"hello");
    hosts.wait_until_connected([&one, &two]);
    assert_eq!(flaky.dialled.load(Relaxed), 4);
}

/// The other end may hang up because packets of the handshake were lost, so the caller must be able to dial again.
#[test]
fn a_hang_up_without_a_reason_permits_another_dial() {
    let mut hosts = RemoteHosts::new();
    let one = hosts.open("one", secrets(), |config| config.handshake_timeout = Duration::from_millis(200));
    let flaky = FlakyPort::new(usize::MAX, port_of(&one));
    one.connect(&flaky.address.to_string(), b"hello");
    let (begin, mut events) = (Instant::now(), Vec::new());
    while events.is_empty() {
        one.poll(&mut events);
        assert!(begin.elapsed() < TIMEOUT, "timed out");
    }
    let [Event::ConnectFailed(failure)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(failure.trouble, ConnectTrouble::Silent, "{failure:?}");
}
