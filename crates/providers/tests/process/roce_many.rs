//! One who has many peers: its sockets, what their receive buffers hold, and what becomes of those who share one.

use crate::common;

use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use crate::alone;
use common::{Cluster, Node, bytes_of, remote, until};
use halite_fabric::{
    Completion, CompletionKind, Event, Fabric, Key, Lane, Local, Operation, PeerId, Status, WorkId,
    WorkRequest,
};
use halite_mem::{PagePolicy, Segment, Window};
use halite_providers::{RoceConfig, RoceFabric};

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
fn sixty_four_writers_overflow_no_stock_buffer() {
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
fn sixty_four_writers_to_one_socket_all_land() {
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
fn packets_to_any_socket_wake_a_sleeper() {
    check_wakes(0);
    check_wakes(2);
}

/// Three peers with a socket each wake one who sleeps, whose packets this many threads receive.
fn check_wakes(receivers: usize) {
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
fn receivers_serve_peers_while_nobody_polls() {
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
fn receivers_without_room_wake_a_sleeper() {
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
