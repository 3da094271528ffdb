//! Who meets whom between hosts: those alone who know the secret, whatever strangers do at the port.

use crate::common;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::Cluster;
use halite_fabric::{
    Completion, CompletionKind, ConnectFailure, ConnectTrouble, Event, Fabric, Lane, Operation, PeerId,
    WorkId, WorkRequest,
};
use halite_providers::secure::{Secret, Secrets};
use halite_providers::{Hosts, RoceConfig, RoceFabric};

/// Turns a hang into a failure; no story is meant to come anywhere near.
const PATIENCE: Duration = Duration::from_secs(60);

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
        self.event_within(of, &mut || {})
    }

    /// The same, while something else goes on, too.
    fn event_within(&self, of: &Arc<RoceFabric>, meanwhile: &mut dyn FnMut()) -> Event {
        let begin = Instant::now();
        loop {
            meanwhile();
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

    /// All go on, and nobody hears of anything.
    fn turn(&self) {
        for fabric in &self.fabrics {
            let mut events = Vec::new();
            fabric.poll(&mut events);
            assert!(events.is_empty(), "{events:?}");
        }
    }

    /// What a stranger reads before it is hung up on, while all go on.
    fn read_all(&self, stranger: &mut TcpStream) -> Vec<u8> {
        stranger.set_nonblocking(true).unwrap();
        let (begin, mut read, mut bytes) = (Instant::now(), Vec::new(), [0; 256]);
        loop {
            self.turn();
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
    config.handshake_timeout = Duration::from_secs(1);
}

#[test]
fn who_knows_another_secret_is_told_so() {
    let mut world = World::new();
    let one = world.open("one", secrets(), as_it_is);
    let two = world.open("two", secrets(), as_it_is);
    let failure = world.failure(&one, port_of(&two));
    assert_eq!(failure.reason, "the secret of its cluster is another one");
    assert_eq!(failure.trouble, ConnectTrouble::Stranger);
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
    // An address that no other test listens at, so that nobody does once it is closed.
    let silent = std::net::TcpListener::bind((Ipv4Addr::new(127, 0, 0, 77), 0)).unwrap();
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
    let one = world.open("one", secrets.clone(), as_it_is);
    let two = world.open("two", secrets, in_a_hurry);
    for says in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"HLT\x09", b"HLT\x02\x02\xff\xff", &[0xff; 5000]] {
        let mut stranger = TcpStream::connect(port_of(&two)).unwrap();
        stranger.write_all(says).unwrap();
        let read = world.read_all(&mut stranger);
        assert!(read.len() <= 7, "{read:?}");
    }
    // A hello of somebody who does not know the secret: refused, and told so.
    let mut stranger = TcpStream::connect(port_of(&two)).unwrap();
    stranger.write_all(&[&b"HLT\x02\x01\x30\x00"[..], &[7; 48]].concat()).unwrap();
    assert_eq!(world.read_all(&mut stranger), b"HLT\x02\x03\x00\x00");
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

/// What a fabric says first to whom it dials, as somebody on the way sees it.
fn first_words(world: &World, of: &Arc<RoceFabric>) -> Vec<u8> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    of.connect(&listener.local_addr().unwrap().to_string(), b"hello");
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut seen = Vec::new();
    // Who has dialled waits for an answer then, and gives up.
    while !matches!(
        world.event_within(of, &mut || seen.extend(whatever_comes(&mut stream))),
        Event::ConnectFailed(_)
    ) {}
    seen
}

fn whatever_comes(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = [0; 4096];
    let len = stream.read(&mut bytes).unwrap_or(0);
    bytes[..len].to_vec()
}

#[test]
fn who_says_again_what_it_has_seen_of_another_is_a_stranger_and_is_nobodys_peer() {
    let mut world = World::new();
    let secrets = secrets();
    let one = world.open("one", secrets.clone(), as_it_is);
    let two = world.open("two", secrets, in_a_hurry);
    let said = first_words(&world, &one);
    assert!(said.len() > 100, "what it says of itself is among it: {said:?}");
    // It is answered, by what it does not understand, and then hung up on: `read_all` fails where anything is told of it.
    for _ in 0..3 {
        let mut stranger = TcpStream::connect(port_of(&two)).unwrap();
        stranger.write_all(&said).unwrap();
        let answer = world.read_all(&mut stranger);
        assert!(answer.len() > 100 && answer.starts_with(b"HLT\x02\x01"), "{answer:?}");
    }
    // It has no more time than one that comes later and says nothing.
    let mut stranger = TcpStream::connect(port_of(&two)).unwrap();
    stranger.write_all(&said).unwrap();
    stranger.set_nonblocking(true).unwrap();
    let mut answer = Vec::new();
    while answer.is_empty() {
        world.turn();
        answer = whatever_comes(&mut stranger);
    }
    let mut silent = TcpStream::connect(port_of(&two)).unwrap();
    world.read_all(&mut silent);
    stranger.read_to_end(&mut answer).expect("it is hung up on");
    // Neither what it makes up behind that helps, nor what was said to another.
    let mut stranger = TcpStream::connect(port_of(&two)).unwrap();
    stranger.write_all(&[&said[..], b"\x02\x16\x00", &[7; 22]].concat()).unwrap();
    world.read_all(&mut stranger);
    // A crowd of them has the places of strangers, and gives them back.
    let mut crowd: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(port_of(&two)).unwrap()).collect();
    crowd.iter_mut().for_each(|stranger| stranger.write_all(&said).unwrap());
    crowd.iter_mut().for_each(|stranger| drop(world.read_all(stranger)));
    assert!(two.dropped().strangers >= 40 - 8, "{:?}", two.dropped());
    world.connect(&one, &two);
}

/// Strangers who say nothing, and come back at once where they are hung up on: so many from each of these addresses.
struct Crowd {
    to: SocketAddr,
    held: Vec<(Ipv4Addr, TcpStream)>,
    evicted: u64,
}

impl Crowd {
    fn new(to: SocketAddr, addresses: impl Iterator<Item = Ipv4Addr>, of_each: usize) -> Crowd {
        let from = addresses.flat_map(|address| std::iter::repeat_n(address, of_each));
        let held = from.map(|address| (address, connect_from(address, to))).collect();
        Crowd { to, held, evicted: 0 }
    }

    fn come_back(&mut self) {
        for (address, stream) in &mut self.held {
            if let Ok(0) | Err(_) = hears(stream) {
                *stream = connect_from(*address, self.to);
                self.evicted += 1;
            }
        }
    }
}

/// What a stream has to be read without waiting: at least one byte if it is open.
fn hears(stream: &mut TcpStream) -> std::io::Result<usize> {
    match stream.read(&mut [0; 256]) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(1),
        heard => heard,
    }
}

fn connect_from(address: Ipv4Addr, to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from((address, 0))).unwrap();
    connect(&socket, &to).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(true).unwrap();
    stream
}

#[test]
fn who_knows_the_secret_gets_in_while_strangers_at_twenty_addresses_keep_all_places() {
    let mut world = World::new();
    let secrets = secrets();
    let one = world.open("one", secrets.clone(), as_it_is);
    // Its patience with a stranger is longer than the story: nobody makes room by being late.
    let two = world.open("two", secrets, |config| config.handshake_timeout = PATIENCE);
    let addresses = (2..22).map(|last| Ipv4Addr::new(127, 0, 0, last));
    // No more than the kernel queues while nobody polls.
    let mut crowd = Crowd::new(port_of(&two), addresses, 5);
    let poll = |crowd: &mut Crowd| {
        crowd.come_back();
        let mut events = [Vec::new(), Vec::new()];
        one.poll(&mut events[0]);
        two.poll(&mut events[1]);
        events
    };
    // All have come, and have begun to push each other out.
    let begin = Instant::now();
    while crowd.evicted < 200 {
        assert_eq!(poll(&mut crowd), [vec![], vec![]]);
        assert!(begin.elapsed() < PATIENCE, "nobody makes room: {}", crowd.evicted);
    }
    for round in 0..20 {
        one.connect(&port_of(&two).to_string(), b"hello");
        let (mut is_here, mut is_there) = (false, false);
        while !(is_here && is_there) {
            let [here, there] = poll(&mut crowd);
            assert!(!matches!(here[..], [Event::ConnectFailed(_)]), "round {round}: {here:?}");
            is_here |= matches!(here[..], [Event::Connected { .. }]);
            is_there |= matches!(there[..], [Event::Connected { .. }]);
            assert!(begin.elapsed() < PATIENCE, "round {round}: nothing happens");
        }
    }
    // Some are closed and not read yet; none is hung up on that is not counted.
    assert!(two.dropped().strangers >= crowd.evicted, "{:?}, {}", two.dropped(), crowd.evicted);
}

/// A port that hangs up on those who dial it, so often, and then leads to another port.
struct Fickle {
    address: SocketAddr,
    dialled: Arc<AtomicUsize>,
}

impl Fickle {
    fn new(hang_ups: usize, to: SocketAddr) -> Fickle {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (address, dialled) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let count = dialled.clone();
        // It ends with the process, as those do that carry.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if count.fetch_add(1, Relaxed) >= hang_ups {
                    let there = TcpStream::connect(to).unwrap();
                    carry(stream.try_clone().unwrap(), there.try_clone().unwrap());
                    carry(there, stream);
                }
            }
        });
        Fickle { address, dialled }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(std::net::Shutdown::Write);
    });
}

#[test]
fn who_is_hung_up_on_dials_again() {
    let mut world = World::new();
    let secrets = secrets();
    let one = world.open("one", secrets.clone(), as_it_is);
    let two = world.open("two", secrets, as_it_is);
    let fickle = Fickle::new(3, port_of(&two));
    one.connect(&fickle.address.to_string(), b"hello");
    world.connected([&one, &two]);
    assert_eq!(fickle.dialled.load(Relaxed), 4);
}

#[test]
fn who_is_always_hung_up_on_is_told_so_and_has_dialled_a_few_times() {
    let mut world = World::new();
    let one = world.open("one", secrets(), as_it_is);
    let fickle = Fickle::new(usize::MAX, SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
    assert_eq!(world.failure(&one, fickle.address).reason, "it hung up");
    // Pauses of 5, 10, 20, 40, 80 and then 100 ms at least, in two seconds.
    let dialled = fickle.dialled.load(Relaxed);
    assert!(dialled <= 25, "{dialled}");
}

/// Its silence says less than that.
#[test]
fn who_has_hung_up_and_then_says_nothing_has_hung_up() {
    let mut world = World::new();
    let one = world.open("one", secrets(), in_a_hurry);
    let silent = Silent::new();
    let fickle = Fickle::new(1, silent.address);
    assert_eq!(world.failure(&one, fickle.address).reason, "it hung up");
    assert_eq!(fickle.dialled.load(Relaxed), 2);
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

/// One that is dialled at either of two addresses, and where that is.
fn open_at_two(
    world: &mut World,
    name: &str,
    secrets: Secrets,
    at: [IpAddr; 2],
) -> (Arc<RoceFabric>, Vec<SocketAddr>) {
    let mut hosts = Hosts::listen(SocketAddr::new(at[0], 0), secrets).unwrap();
    hosts.listen_also(SocketAddr::new(at[1], 0)).unwrap();
    let config = RoceConfig {
        address: at[0],
        other_addresses: vec![at[1]],
        hosts: Some(hosts.clone()),
        ..RoceConfig::new(world.cluster.0.join(name), name)
    };
    let fabric = RoceFabric::open(config).unwrap();
    world.fabrics.push(fabric.clone());
    (fabric, hosts.addresses())
}

#[test]
fn a_host_that_answers_at_both_of_its_addresses_hears_of_one_connection() {
    let mut world = World::new();
    let at = ["127.0.0.1", "127.0.0.2"].map(|text| text.parse().unwrap());
    let secrets = secrets();
    let (one, _) = open_at_two(&mut world, "one", secrets.clone(), at);
    let (two, addresses) = open_at_two(&mut world, "two", secrets, at);
    one.connect(&format!("{},{}", addresses[0], addresses[1]), b"");
    // It dials the second, since nobody looks at the first: that takes 25 ms.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(60) {
        one.poll(&mut Vec::new());
    }
    let [to_two, _] = world.connected([&one, &two]);
    say(&one, to_two, b"here");
    assert!(matches!(world.event(&two), Event::Completed(_)));
    (0..1000).for_each(|_| world.turn());
}

#[test]
fn packets_go_by_the_address_at_which_two_have_met_also_in_trains_and_back() {
    let of = |text: &str| text.parse::<IpAddr>().unwrap();
    for [first, second] in
        [["127.0.0.1", "127.0.0.2"], ["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "::1"], ["::1", "127.0.0.1"]]
    {
        let mut world = World::new();
        let secrets = secrets();
        let at = [of(first), of(second)];
        let (one, _) = open_at_two(&mut world, "one", secrets.clone(), at);
        let (two, addresses) = open_at_two(&mut world, "two", secrets, at);
        one.connect(&addresses[1].to_string(), b"");
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

/// Two fabrics, and what the first calls the second.
fn two_that_have_met() -> (World, [Arc<RoceFabric>; 2], PeerId) {
    let mut world = World::new();
    let secrets = secrets();
    let ends = ["one", "two"].map(|name| world.open(name, secrets.clone(), as_it_is));
    ends[0].connect(&port_of(&ends[1]).to_string(), b"");
    let [to_two, _] = world.connected([&ends[0], &ends[1]]);
    (world, ends, to_two)
}

/// Sends something, and does not want to know what becomes of it.
fn say(fabric: &RoceFabric, peer: PeerId, bytes: &[u8]) {
    let operation = Operation::Send { bytes, imm: 0 };
    let request = WorkRequest { id: WorkId(1), operation, signalled: false, solicited: true };
    fabric.post(peer, Lane::FIRST, &[request]).unwrap();
}

/// All that one hears until it is cut off, while only it goes on.
fn heard_alone(fabric: &RoceFabric) -> Vec<Event> {
    let (begin, mut events) = (Instant::now(), Vec::new());
    while !events.iter().any(|event| matches!(event, Event::CutOff { .. })) {
        fabric.poll(&mut events);
        assert!(begin.elapsed() < PATIENCE, "nothing happens: {events:?}");
    }
    events
}

fn words(events: &[Event]) -> Vec<Vec<u8>> {
    let received = events.iter().filter_map(|event| match event {
        Event::Completed(Completion { kind: CompletionKind::Received { bytes, .. }, .. }) => {
            Some(bytes.clone())
        }
        _ => None,
    });
    received.collect()
}

#[test]
fn what_is_said_last_goes_with_the_word_that_its_sender_leaves_and_is_heard_once() {
    let (_world, [one, two], to_two) = two_that_have_met();
    // More than may be under way, so that some is never sent as a packet.
    let said: Vec<Vec<u8>> = (0..30_u8).map(|word| vec![word]).collect();
    said.iter().for_each(|bytes| say(&one, to_two, bytes));
    // Its process may end now.
    one.close();
    assert_eq!(one.poll_timeout(), None, "it waits for nobody");
    let heard = heard_alone(&two);
    assert_eq!(words(&heard), said, "each once, in order");
    assert!(
        matches!(heard[said.len()..], [Event::Disconnected { .. }, Event::CutOff { exited: false, .. }]),
        "{heard:?}"
    );
}

#[test]
fn who_has_more_to_say_last_than_goes_with_that_word_waits_until_it_was_heard() {
    let (_world, [one, two], to_two) = two_that_have_met();
    let said = vec![7; 20_000];
    say(&one, to_two, &said);
    one.close();
    assert!(one.poll_timeout().is_some(), "there is something to be done by time");
    let mut heard = Vec::new();
    let begin = Instant::now();
    while !heard.iter().any(|event| matches!(event, Event::CutOff { .. })) {
        one.poll(&mut Vec::new());
        two.poll(&mut heard);
        assert!(begin.elapsed() < PATIENCE, "nothing happens: {heard:?}");
    }
    assert_eq!(words(&heard), [said]);
}
