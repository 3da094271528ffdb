//! Who meets whom between hosts: those alone who know the secret, whatever strangers do at the port.

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Cluster;
use halite_fabric::{
    Completion, CompletionKind, ConnectFailure, Event, Fabric, Lane, Operation, PeerId, WorkId, WorkRequest,
};
use halite_providers::secure::{Secret, Secrets};
use halite_providers::{Hosts, RoceConfig, RoceFabric};

/// Turns a hang into a failure; no story is meant to come anywhere near.
const PATIENCE: Duration = Duration::from_secs(30);

/// Fabrics that share no directory.
struct World {
    cluster: Cluster,
    fabrics: Vec<Arc<RoceFabric>>,
}

impl World {
    fn new() -> World {
        let cluster = Cluster::new();
        std::fs::create_dir_all(&cluster.0).unwrap();
        World { cluster, fabrics: Vec::new() }
    }

    fn open(&mut self, name: &str, secrets: Secrets, configure: fn(&mut RoceConfig)) -> Arc<RoceFabric> {
        let mut config = RoceConfig::new(self.cluster.0.join(name), name);
        config.hosts = Some(Hosts::listen(SocketAddr::new(config.address, 0), secrets).unwrap());
        configure(&mut config);
        let fabric = RoceFabric::open(config).unwrap();
        self.fabrics.push(fabric.clone());
        fabric
    }

    /// The next event of one, while all go on.
    fn event(&self, of: &Arc<RoceFabric>) -> Event {
        let begin = Instant::now();
        loop {
            let mut found = None;
            for fabric in &self.fabrics {
                let mut events = Vec::new();
                fabric.poll(&mut events);
                if Arc::ptr_eq(fabric, of) {
                    assert!(events.len() <= 1, "{events:?}");
                    found = events.pop();
                }
            }
            if let Some(event) = found {
                return event;
            }
            assert!(begin.elapsed() < PATIENCE, "nothing happens");
        }
    }

    /// What two call each other once both are connected, in whichever order they hear of that.
    fn connected(&self, ends: [&Arc<RoceFabric>; 2]) -> [PeerId; 2] {
        let begin = Instant::now();
        let mut peers = [None; 2];
        while peers.contains(&None) {
            for (end, found) in ends.iter().zip(&mut peers) {
                let mut events = Vec::new();
                end.poll(&mut events);
                match &events[..] {
                    [] => {}
                    [Event::Connected { peer, .. }] => *found = Some(*peer),
                    events => panic!("{events:?}"),
                }
            }
            assert!(begin.elapsed() < PATIENCE, "nothing happens");
        }
        peers.map(|peer| peer.expect("both are there"))
    }

    /// Why `from` does not reach an address.
    fn failure(&self, from: &Arc<RoceFabric>, address: SocketAddr) -> ConnectFailure {
        from.connect(&address.to_string(), b"");
        match self.event(from) {
            Event::ConnectFailed(failure) => failure,
            event => panic!("expected no connection, got {event:?}"),
        }
    }

    /// Has `from` reach `to`.
    fn connect(&self, from: &Arc<RoceFabric>, to: &Arc<RoceFabric>) {
        from.connect(&port_of(to).to_string(), b"hello");
        let event = self.event(from);
        assert!(matches!(event, Event::Connected { dialled: Some(_), .. }), "{event:?}");
    }

    /// What a stranger reads before it is hung up on, while all go on.
    fn read_all(&self, stranger: &mut TcpStream) -> Vec<u8> {
        stranger.set_nonblocking(true).unwrap();
        let (begin, mut read, mut bytes) = (Instant::now(), Vec::new(), [0; 256]);
        loop {
            for fabric in &self.fabrics {
                let mut events = Vec::new();
                fabric.poll(&mut events);
                assert!(events.is_empty(), "{events:?}");
            }
            match stranger.read(&mut bytes) {
                Ok(0) => return read,
                Ok(len) => read.extend(&bytes[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return read,
            }
            assert!(begin.elapsed() < PATIENCE, "it is not hung up on");
        }
    }
}

fn secrets() -> Secrets {
    Secret::new().unwrap().into()
}

fn port_of(fabric: &RoceFabric) -> SocketAddr {
    fabric.control_port().expect("other hosts may dial")
}

fn as_it_is(_: &mut RoceConfig) {}

fn in_a_hurry(config: &mut RoceConfig) {
    config.handshake_timeout = Duration::from_millis(50);
}

#[test]
fn who_knows_another_secret_is_told_so() {
    let mut world = World::new();
    let one = world.open("one", secrets(), as_it_is);
    let two = world.open("two", secrets(), as_it_is);
    let failure = world.failure(&one, port_of(&two));
    assert_eq!(failure.reason, "the secret of its cluster is another one");
    assert!(!failure.is_ours);
}

#[test]
fn another_program_that_listens_is_told_as_that() {
    let mut world = World::new();
    let one = world.open("one", secrets(), as_it_is);
    let other = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = other.local_addr().unwrap();
    let greeter = std::thread::spawn(move || other.accept().unwrap().0.write_all(b"SSH-2.0-whatever\r\n"));
    assert_eq!(world.failure(&one, address).reason, "it does not speak the control protocol");
    greeter.join().unwrap().unwrap();
}

#[test]
fn nobody_who_listens_and_nobody_who_answers_are_told_apart_in_time() {
    let mut world = World::new();
    let one = world.open("one", secrets(), in_a_hurry);
    let silent = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    assert_eq!(world.failure(&one, silent.local_addr().unwrap()).reason, "it does not answer");
    let address = silent.local_addr().unwrap();
    drop(silent);
    let refused = world.failure(&one, address).reason;
    assert!(refused.contains("refused"), "{refused}");
}

#[test]
fn who_has_no_secret_says_what_is_missing() {
    let world = World::new();
    let one = RoceFabric::open(RoceConfig::new(world.cluster.0.join("one"), "one")).unwrap();
    one.connect("127.0.0.1:1", b"");
    let mut events = Vec::new();
    one.poll(&mut events);
    let Some(Event::ConnectFailed(failure)) = events.pop() else { panic!("no answer") };
    assert!(failure.reason.contains("the cluster's secret"), "{}", failure.reason);
}

#[test]
fn strangers_at_the_port_are_hung_up_on_and_stop_nobody() {
    let mut world = World::new();
    let secrets = secrets();
    let one = world.open("one", secrets.clone(), in_a_hurry);
    let two = world.open("two", secrets, in_a_hurry);
    for says in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"HLT\x09", b"HLT\x01\x02\xff\xff", &[0xff; 5000]] {
        let mut stranger = TcpStream::connect(port_of(&two)).unwrap();
        stranger.write_all(says).unwrap();
        let read = world.read_all(&mut stranger);
        assert!(read.len() <= 7, "{read:?}");
    }
    // A hello of somebody who does not know the secret: refused, and told so.
    let mut stranger = TcpStream::connect(port_of(&two)).unwrap();
    stranger.write_all(&[&b"HLT\x01\x01\x30\x00"[..], &[7; 48]].concat()).unwrap();
    assert_eq!(world.read_all(&mut stranger), b"HLT\x01\x03\x00\x00");
    // One who says nothing has its time.
    let mut silent = TcpStream::connect(port_of(&two)).unwrap();
    world.read_all(&mut silent);
    world.connect(&one, &two);
}

#[test]
fn a_crowd_of_strangers_has_few_places_and_gives_them_back() {
    let mut world = World::new();
    let secrets = secrets();
    let one = world.open("one", secrets.clone(), as_it_is);
    let two = world.open("two", secrets, in_a_hurry);
    let mut crowd: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(port_of(&two)).unwrap()).collect();
    for stranger in &mut crowd {
        world.read_all(stranger);
    }
    assert!(two.dropped().strangers >= 100 - 2 * 8, "{:?}", two.dropped());
    world.connect(&one, &two);
}

/// A port where nobody answers, and nobody says so: its queue is full.
struct Silent {
    _listener: rustix::fd::OwnedFd,
    _queued: TcpStream,
    address: SocketAddr,
}

impl Silent {
    fn new() -> Silent {
        use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
        let listener = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&listener, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        listen(&listener, 0).unwrap();
        let address = SocketAddr::try_from(getsockname(&listener).unwrap()).unwrap();
        Silent { _queued: TcpStream::connect(address).unwrap(), _listener: listener, address }
    }
}

#[test]
fn the_next_address_is_tried_where_one_refuses_or_is_silent_and_the_first_that_answers_is_kept() {
    let mut world = World::new();
    let secrets = secrets();
    let from = world.open("from", secrets.clone(), as_it_is);
    let to = world.open("to", secrets, as_it_is);
    let silent = Silent::new();
    let refuses = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let addresses = format!("{refuses},{},{}", silent.address, port_of(&to));
    from.connect(&addresses, b"hello");
    let event = world.event(&from);
    let Event::Connected { dialled: Some(dialled), .. } = event else { panic!("{event:?}") };
    assert_eq!(dialled, addresses, "it is told once, as it was wished");
}

#[test]
fn who_answers_at_no_address_is_told_once() {
    let mut world = World::new();
    let from = world.open("from", secrets(), in_a_hurry);
    let (silent, refuses) = (Silent::new(), SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
    let addresses = format!("{},{refuses}", silent.address);
    from.connect(&addresses, b"hello");
    let event = world.event(&from);
    let Event::ConnectFailed(failure) = event else { panic!("{event:?}") };
    assert_eq!(failure.address, addresses);
    let other = world.failure(&from, refuses);
    assert_eq!(other.address, refuses.to_string(), "nothing else was told before");
}

#[test]
fn packets_go_by_the_address_at_which_two_have_met_also_in_trains_and_back() {
    let of = |text: &str| text.parse::<IpAddr>().unwrap();
    for [first, second] in
        [["127.0.0.1", "127.0.0.2"], ["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "::1"], ["::1", "127.0.0.1"]]
    {
        let mut world = World::new();
        let secrets = secrets();
        let mut open = |name: &str| {
            let mut hosts = Hosts::listen(SocketAddr::new(of(first), 0), secrets.clone()).unwrap();
            hosts.listen_also(SocketAddr::new(of(second), 0)).unwrap();
            let config = RoceConfig {
                address: of(first),
                other_addresses: vec![of(second)],
                hosts: Some(hosts.clone()),
                ..RoceConfig::new(world.cluster.0.join(name), name)
            };
            let fabric = RoceFabric::open(config).unwrap();
            world.fabrics.push(fabric.clone());
            (fabric, hosts.addresses()[1])
        };
        let ((one, _), (two, at_second)) = (open("one"), open("two"));
        one.connect(&at_second.to_string(), b"");
        let [to_two, to_one] = world.connected([&one, &two]);
        let (one, two) = ((one, to_two), (two, to_one));
        assert_eq!(one.0.path(one.1).unwrap().ends.1.ip(), of(second));
        assert_eq!(two.0.path(two.1).unwrap().ends.0.ip(), of(second));
        let text: Vec<u8> = (0..50_000_u32).map(|index| index as u8).collect();
        for [from, to] in [[&one, &two], [&two, &one]] {
            let operation = Operation::Send { bytes: &text, imm: 0 };
            let request = WorkRequest { id: WorkId(1), operation, signalled: false, solicited: true };
            from.0.post(from.1, Lane::FIRST, &[request]).unwrap();
            match world.event(&to.0) {
                Event::Completed(Completion { kind: CompletionKind::Received { bytes, .. }, .. }) => {
                    assert!(bytes == text);
                }
                event => panic!("{event:?}"),
            }
        }
        let dropped = [&one, &two].map(|end| end.0.dropped());
        assert!(dropped.iter().all(|dropped| dropped.refused == 0 && dropped.unsent == 0), "{dropped:?}");
    }
}
