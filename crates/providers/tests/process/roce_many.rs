//! One who has many peers: its sockets, what their receive buffers hold, and what becomes of those who share one.

use crate::common;

use std::os::fd::AsRawFd;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use crate::alone;
use common::pair::Pair;
use common::{Cluster, Node, Role, bytes_of, inline, remote, role_dir, until};
use halite_fabric::{
    Completion, CompletionKind, Event, Fabric, Key, Lane, Local, Operation, PeerId, Status, WorkId,
    WorkRequest,
};
use halite_mem::{PagePolicy, Segment, Window};
use halite_providers::{RoceConfig, RoceFabric};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Turns a hang into a failure; no story is meant to come anywhere near.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a stock kernel gives at most (`net.core.rmem_max`); it counts twice that.
const STOCK_BYTES: usize = 212_992;
const WRITE_BYTES: u64 = 16 << 10;
/// That each sender makes, all at once.
const WRITES: u64 = 8;
/// Of which one has to have its processor all the time.
const CROWDS_MAX: usize = 20;

/// One who receives, and many who send to it, all polled by turns.
struct Crowd {
    cluster: Cluster,
    receiver: Arc<RoceFabric>,
    key: Key,
    memory: Window,
    senders: Vec<Sender>,
    _alone: MutexGuard<'static, ()>,
}

struct Sender {
    fabric: Arc<RoceFabric>,
    peer: PeerId,
    done: u64,
    is_down: bool,
}

fn register(fabric: &RoceFabric, len: u64) -> (Key, Window) {
    let segment = Segment::create("test", len, PagePolicy::Normal).unwrap();
    let window = segment.window(0, len).unwrap();
    (fabric.register(segment).unwrap(), window)
}

impl Crowd {
    fn new(senders: u64, configure: impl Fn(RoceConfig) -> RoceConfig) -> Crowd {
        let alone = alone();
        let cluster = Cluster::new();
        let receiver = RoceFabric::open(configure(RoceConfig::new(&cluster.0, "receiver"))).unwrap();
        let (key, memory) = register(&receiver, senders * WRITES * WRITE_BYTES);
        let mut crowd = Crowd { cluster, receiver, key, memory, senders: Vec::new(), _alone: alone };
        (0..senders).for_each(|_| crowd.join());
        crowd
    }

    /// One more meets the receiver, and both know what comes through between them.
    fn join(&mut self) {
        let name = format!("sender-{}", self.senders.len());
        let fabric = RoceFabric::open(RoceConfig::new(&self.cluster.0, name)).unwrap();
        fabric.connect("receiver.sock", b"");
        self.senders.push(Sender { fabric, peer: PeerId(0), done: 0, is_down: false });
        self.until("a connection", |crowd| {
            let Sender { fabric, peer, .. } = crowd.senders.last().unwrap();
            fabric.path(*peer).is_some_and(|path| path.is_known)
        });
    }

    fn turn(&mut self) {
        let mut events = Vec::new();
        for sender in &mut self.senders {
            sender.fabric.poll(&mut events);
            for event in events.drain(..) {
                match event {
                    Event::Connected { peer, .. } => sender.peer = peer,
                    Event::Completed(Completion { status: Status::Success, .. }) => sender.done += 1,
                    Event::Disconnected { .. } | Event::CutOff { .. } => sender.is_down = true,
                    event => panic!("{event:?}"),
                }
            }
        }
        self.receiver.poll(&mut events);
    }

    #[track_caller]
    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Crowd) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "waited in vain for {what}");
            self.turn();
        }
    }

    /// All begin to write before the receiver looks, and all that they write lands.
    fn write_at_once(&mut self) {
        for (index, sender) in self.senders.iter().enumerate() {
            let (own, window) = register(&sender.fabric, WRITE_BYTES);
            window.write(0, &vec![index as u8 + 1; WRITE_BYTES as usize]).unwrap();
            for write in 0..WRITES {
                let local = Local::Registered { key: own, offset: 0, len: WRITE_BYTES };
                let to = remote(self.key, (index as u64 * WRITES + write) * WRITE_BYTES);
                let operation = Operation::Write { local, remote: to };
                let request = WorkRequest { id: WorkId(write), operation, signalled: true, solicited: true };
                sender.fabric.post(sender.peer, Lane::FIRST, &[request]).unwrap();
            }
        }
        self.until("all writes", |crowd| crowd.senders.iter().all(|sender| sender.done == WRITES));
        for index in 0..self.senders.len() {
            let bytes = WRITES * WRITE_BYTES;
            let landed = bytes_of(&self.memory, index as u64 * bytes, bytes as usize);
            assert!(landed.iter().all(|byte| *byte == index as u8 + 1), "what sender {index} wrote");
        }
    }

    fn overflowed(&self) -> u64 {
        self.receiver.dropped().overflowed
    }

    /// Ports of the receiver, as its senders know them, and how many send there.
    fn ports(&self) -> Vec<(u16, usize)> {
        let port = |sender: &Sender| sender.fabric.path(sender.peer).unwrap().ends.1.port();
        let mut ports: Vec<u16> = self.senders.iter().map(port).collect();
        ports.sort_unstable();
        ports.chunk_by(|one, other| one == other).map(|same| (same[0], same.len())).collect()
    }
}

fn stock(config: RoceConfig) -> RoceConfig {
    RoceConfig { receive_bytes: STOCK_BYTES, ..config }
}

#[test]
#[ignore = "measures: .ci/deep slow"]
fn what_sixty_four_write_at_once_fits_into_the_buffers_of_a_stock_kernel() {
    for _ in 0..CROWDS_MAX {
        let mut crowd = Crowd::new(64, stock);
        assert_eq!(crowd.ports().iter().map(|(_, count)| *count).collect::<Vec<_>>(), [16; 4]);
        let (before, preempted) = (crowd.overflowed(), times_preempted());
        crowd.write_at_once();
        if crowd.overflowed() == before {
            return;
        }
        // A thread that is kept from its processor repeats for each sender what it has not looked at yet as the receiver.
        assert!(times_preempted() > preempted, "some datagram found a buffer full");
    }
    panic!("some datagram found a buffer full each time");
}

/// How often the system has taken the processor from this thread.
fn times_preempted() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    count.expect("Linux tells it").trim().parse().unwrap()
}

#[test]
fn what_sixty_four_write_at_once_to_one_socket_is_lost_in_part_and_lands_all_the_same() {
    let mut crowd = Crowd::new(64, |config| RoceConfig { sockets_max: 1, ..stock(config) });
    assert_eq!(crowd.ports().len(), 1);
    let before = crowd.overflowed();
    crowd.write_at_once();
    assert!(crowd.overflowed() > before, "64 packets are more than the buffer holds");
}

#[test]
fn sockets_come_with_peers_and_go_with_them() {
    let mut crowd = Crowd::new(33, |config| config);
    let first = crowd.receiver.local_address().port();
    assert_eq!(crowd.receiver.local_addresses().len(), 3);
    assert_eq!(crowd.ports().len(), 3);
    // Those of the second socket leave.
    let leaving = crowd.senders.drain(16..32).collect::<Vec<_>>();
    drop(leaving);
    crowd.until("the end of their socket", |crowd| crowd.receiver.local_addresses().len() == 2);
    crowd.write_at_once();
    crowd.senders.iter_mut().for_each(|sender| sender.done = 0);
    crowd.senders.truncate(16);
    crowd.until("the end of the third socket", |crowd| crowd.receiver.local_addresses().len() == 1);
    assert_eq!(crowd.ports(), [(first, 16)]);
    crowd.join();
    assert_eq!(crowd.receiver.local_addresses().len(), 2, "and there is another one for who comes now");
    crowd.write_at_once();
}

#[test]
fn who_sleeps_is_woken_by_what_comes_to_any_socket() {
    wake_by_three(0);
}

#[test]
fn who_sleeps_is_woken_by_what_threads_of_the_fabric_have_received() {
    wake_by_three(2);
}

fn wake_by_three(receivers: usize) {
    let _alone = alone();
    let cluster = Cluster::new();
    let config =
        |name: &str| RoceConfig { peers_per_socket: 1, receivers, ..RoceConfig::new(&cluster.0, name) };
    let sleeper = RoceFabric::open(config("sleeper")).unwrap();
    std::thread::scope(|scope| {
        let slept = sleeper.clone();
        let asleep = scope.spawn(move || {
            let mut node = Node::of(slept);
            let mut heard = Vec::new();
            while heard.len() < 6 {
                // It looks only when it is woken.
                if let Some(completion) = node.try_completion() {
                    heard.push(completion.peer);
                } else {
                    node.sleep();
                }
            }
            heard
        });
        // Each has a socket of its own there; the first two leave, so that the last one speaks to one that is alone again, or not.
        let mut others: Vec<Node> = Vec::new();
        for name in ["one", "two", "three"] {
            let mut node = Node::of(RoceFabric::open(config(name)).unwrap());
            node.fabric.connect("sleeper.sock", b"");
            let peer = node.connected();
            let (status, _) = node.run(peer, Operation::Send { bytes: b"here", imm: 0 });
            assert_eq!(status, Status::Success);
            others.push(node);
        }
        for node in &mut others {
            let (status, _) = node.run(PeerId(1), Operation::Send { bytes: b"again", imm: 0 });
            assert_eq!(status, Status::Success);
        }
        let heard = asleep.join().unwrap();
        assert_eq!(heard.len(), 6);
    });
    assert!(sleeper.local_addresses().len() <= 3);
}

/// Each has a socket before any has two peers, and peers go where there are fewest.
#[test]
fn peers_are_spread_among_the_threads_that_receive() {
    let mut crowd = Crowd::new(7, |config| RoceConfig { receivers: 3, ..stock(config) });
    let mut peers: Vec<usize> = crowd.ports().into_iter().map(|(_, count)| count).collect();
    peers.sort_unstable();
    assert_eq!(peers, [2, 2, 3]);
    crowd.write_at_once();
}

#[test]
fn what_sixty_four_write_at_once_lands_by_threads_that_receive() {
    let mut crowd = Crowd::new(64, |config| RoceConfig { receivers: 2, ..stock(config) });
    assert_eq!(crowd.ports().iter().map(|(_, count)| *count).collect::<Vec<_>>(), [16; 4]);
    crowd.write_at_once();
}

/// And a peer that has met it.
fn one_who_receives_by_a_thread(cluster: &Cluster) -> (Node, Node, PeerId) {
    // Nobody is to be woken by that.
    let lease = 2 * PATIENCE;
    let config = |name, receivers| RoceConfig { receivers, lease, ..RoceConfig::new(&cluster.0, name) };
    let mut busy = Node::of(RoceFabric::open(config("busy", 1)).unwrap());
    let mut peer = Node::of(RoceFabric::open(config("peer", 0)).unwrap());
    peer.fabric.connect("busy.sock", b"");
    let (mut here, mut there) = (None, None);
    let begin = Instant::now();
    while here.is_none() || there.is_none() {
        assert!(begin.elapsed() < PATIENCE, "they do not meet");
        here = here.or(peer.try_event());
        there = there.or(busy.try_event());
    }
    let Some(Event::Connected { peer: to_busy, .. }) = here else { panic!("{here:?}") };
    (busy, peer, to_busy)
}

/// What peers ask is carried out and answered though no thread of the node's own does anything.
#[test]
fn threads_that_receive_serve_peers_while_nobody_polls() {
    let _alone = alone();
    let cluster = Cluster::new();
    let (busy, mut peer, to_busy) = one_who_receives_by_a_thread(&cluster);
    let (key, memory) = busy.register(4096);
    let (own, window) = peer.register(4096);
    // From here on, nobody polls there.
    for round in 1..100 {
        let operation =
            Operation::Write { local: Local::Inline(&[round; 8]), remote: remote(key, u64::from(round) * 8) };
        assert_eq!(peer.run(to_busy, operation).0, Status::Success);
        assert_eq!(bytes_of(&memory, u64::from(round) * 8, 8), [round; 8]);
        let local = Local::Registered { key: own, offset: 0, len: 8 };
        let operation = Operation::Read { local, remote: remote(key, u64::from(round) * 8) };
        assert_eq!(peer.run(to_busy, operation).0, Status::Success);
        assert_eq!(bytes_of(&window, 0, 8), [round; 8]);
        let (status, kind) = peer.run(to_busy, Operation::FetchAdd { remote: remote(key, 0), add: 1 });
        assert_eq!(status, Status::Success);
        assert!(matches!(kind, CompletionKind::Atomic { old, .. } if old == u64::from(round) - 1));
    }
}

/// Messages that wake nobody, and are so many that nothing more is received, have who sleeps make room.
#[test]
fn who_sleeps_is_woken_when_threads_that_receive_have_no_room() {
    let _alone = alone();
    let cluster = Cluster::new();
    let (mut busy, mut peer, to_busy) = one_who_receives_by_a_thread(&cluster);
    let (say_who, who) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let asleep = scope.spawn(move || {
            say_who.send(rustix::thread::gettid().as_raw_pid()).unwrap();
            let mut heard = 0;
            while heard <= 1100 {
                // It looks only when it is woken.
                match busy.try_completion() {
                    Some(_) => heard += 1,
                    None => busy.sleep(),
                }
            }
        });
        let state = format!("/proc/self/task/{}/stat", who.recv().unwrap());
        until(|| std::fs::read_to_string(&state).unwrap().contains(") S "));
        let quiet = Operation::Send { bytes: b"hello", imm: 0 };
        let request = WorkRequest { id: WorkId(0), operation: quiet, signalled: false, solicited: false };
        for _ in 0..1100 {
            until(|| {
                peer.try_event();
                peer.fabric.post(to_busy, Lane::FIRST, &[request]).is_ok()
            });
        }
        until(|| {
            peer.try_event();
            peer.send(to_busy, b"the last", 0).is_ok()
        });
        until(|| {
            peer.try_event();
            asleep.is_finished()
        });
    });
}

/// Sends until nothing more is taken for a while; how many were.
fn flood(peer: &mut Node, to_busy: PeerId) -> u32 {
    let mut sent = 0;
    let begin = Instant::now();
    let mut refused_since = None;
    // Until nothing more is taken for a while.
    while refused_since.is_none_or(|since: Instant| since.elapsed() < Duration::from_millis(200)) {
        assert!(begin.elapsed() < PATIENCE, "it takes all that is said to it");
        match peer.send(to_busy, b"hello", sent) {
            Ok(()) => (sent, refused_since) = (sent + 1, None),
            Err(_) => refused_since = refused_since.or_else(|| Some(Instant::now())),
        }
        let _ = peer.try_event();
    }
    sent
}

/// Messages that nobody takes wait at their sender, as if they were not received, and all of them come when somebody does.
#[test]
fn threads_that_receive_wait_for_who_polls() {
    let _alone = alone();
    let cluster = Cluster::new();
    let (mut busy, mut peer, to_busy) = one_who_receives_by_a_thread(&cluster);
    let sent = flood(&mut peer, to_busy);
    let heard: Vec<u32> = (0..sent)
        .map(|_| {
            let _ = peer.try_event();
            busy.received().1
        })
        .collect();
    assert!(heard.iter().copied().eq(0..sent), "in order, and each once");
}

#[test]
fn a_fabric_ends_though_its_threads_wait_for_room() {
    let _alone = alone();
    let cluster = Cluster::new();
    let (busy, mut peer, to_busy) = one_who_receives_by_a_thread(&cluster);
    flood(&mut peer, to_busy);
    // Nor is anybody there who would be waited for.
    busy.fabric.disconnect(PeerId(1));
    let (say_done, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(busy);
        say_done.send(()).unwrap();
    });
    done.recv_timeout(PATIENCE).expect("it waits for who polls");
}

/// Of what is left to be said, acknowledgements bring the rest on its way: they are received though nobody has taken what waits.
#[test]
fn what_is_said_last_is_heard_though_threads_that_receive_wait_for_room() {
    const LAST: usize = 64;
    let _alone = alone();
    let cluster = Cluster::new();
    let (busy, mut peer, to_busy) = one_who_receives_by_a_thread(&cluster);
    flood(&mut peer, to_busy);
    let long = vec![7; 60_000];
    for number in 0..LAST {
        busy.send(PeerId(1), &long, number as u32).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(move || drop(busy));
        for number in 0..LAST {
            let (bytes, imm) = peer.received();
            assert_eq!((imm, bytes == long), (number as u32, true));
        }
    });
}

#[test]
fn a_fabric_ends_with_its_threads() {
    let _alone = alone();
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.starts_with("receiver-")).count()
    };
    // A thread has its name, and is gone, a moment later.
    let wait_for = |count| until(|| threads() == count);
    let cluster = Cluster::new();
    let config = |receivers| RoceConfig { receivers, ..RoceConfig::new(&cluster.0, "one") };
    let fabric = RoceFabric::open(config(3)).unwrap();
    wait_for(3);
    drop(fabric);
    wait_for(0);
    // Nor are threads left, or the name taken, where it cannot be opened after all.
    let nowhere = RoceConfig { pcap: Some("/proc/nowhere/packets.pcap".into()), ..config(3) };
    RoceFabric::open(nowhere).unwrap_err();
    wait_for(0);
    drop(RoceFabric::open(config(0)).unwrap());
    let error = RoceFabric::open(config(65)).unwrap_err();
    assert_eq!(error.to_string(), "cannot open a roce fabric with 65 threads that receive: at most 64");
}

#[test]
#[ignore = "a role"]
fn poor() {
    let Some(dir) = role_dir() else { return };
    let fabric =
        RoceFabric::open(RoceConfig { peers_per_socket: 1, ..RoceConfig::new(dir, "poor") }).unwrap();
    let mut node = Node::of(fabric.clone());
    node.fabric.connect("rich.sock", b"poor");
    let rich = node.connected();
    loop {
        let (order, _) = node.received();
        let answer = match &order[..] {
            // One for the Unix socket by which somebody meets us, and none for a socket of its own.
            b"one descriptor" => {
                let free = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
                limit(Some(free + 1))
            }
            b"many descriptors" => limit(getrlimit(Resource::Nofile).maximum),
            b"sockets" => fabric.local_addresses().len().to_string(),
            order => panic!("{order:?} is no order"),
        };
        node.send(rich, answer.as_bytes(), 0).unwrap();
    }
}

fn limit(current: Option<u64>) -> String {
    setrlimit(Resource::Nofile, Rlimit { current, ..getrlimit(Resource::Nofile) }).unwrap();
    "limited".to_owned()
}

#[test]
fn who_has_no_descriptors_for_a_further_socket_lets_peers_share_the_first() {
    let _alone = alone();
    let cluster = Cluster::new();
    let open = |name| Node::of(RoceFabric::open(RoceConfig::new(&cluster.0, name)).unwrap());
    let mut rich = open("rich");
    let _role = Role::start(&cluster, "roce_many::poor");
    let role = rich.connected();
    let mut ask = |order: &str| {
        rich.send(role, order.as_bytes(), 0).unwrap();
        String::from_utf8(rich.received().0).unwrap()
    };
    assert_eq!(ask("one descriptor"), "limited");
    let mut second = open("second");
    second.fabric.connect("poor.sock", b"");
    let there = second.connected();
    assert_eq!(ask("sockets"), "1");
    let (status, _) = second.run(there, Operation::Write { local: inline(b""), remote: remote(Key(7), 0) });
    assert_eq!(status, Status::RemoteAccess, "it is heard: there is no such key");
    assert_eq!(ask("many descriptors"), "limited");
    let mut third = open("third");
    third.fabric.connect("poor.sock", b"");
    third.connected();
    assert_eq!(ask("sockets"), "2", "from now on there is one");
}

/// A read has no bytes on its way there, so a reader was granted one packet for good, and waited for each answer before it asked for the next.
#[test]
fn who_only_reads_has_many_packets_under_way() {
    const READ_BYTES: u64 = 1 << 18;
    let _alone = alone();
    let cluster = Cluster::new();
    let mut pair = Pair::open(RoceConfig::new(&cluster.0, "one"), RoceConfig::new(&cluster.0, "two"));
    let [(own, landed), (key, held)] = [0, 1].map(|end| pair.ends[end].register(READ_BYTES));
    held.write(READ_BYTES - 4, b"salt").unwrap();
    let local = Local::Registered { key: own, offset: 0, len: READ_BYTES };
    // Where packets come late, the window is small for a while.
    until(|| {
        pair.run(0, Operation::Read { local, remote: remote(key, 0) });
        assert_eq!(bytes_of(&landed, READ_BYTES - 4, 4), b"salt");
        let path = pair.ends[0].fabric.path(pair.ends[0].peer).expect("they are connected");
        path.window_packets[0] > 8
    });
}
