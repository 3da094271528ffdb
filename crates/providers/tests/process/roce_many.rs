//! A node with many peers: its sockets, the capacity of their receive buffers, and its receiver threads.

use crate::common;

use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use crate::serialize;
use common::{Cluster, Node, bytes_of, remote, wait_until};
use halite_fabric::{
    Completion, CompletionKind, Event, Fabric, Key, Lane, Local, Operation, PeerId, Status, WorkId,
    WorkRequest,
};
use halite_mem::{PagePolicy, Segment, Window};
use halite_providers::{RoceConfig, RoceFabric};

/// Time limit that turns a hang into a failure; no test should come near it.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Largest receive buffer in bytes that a kernel with default settings grants (`net.core.rmem_max`). The kernel
/// reserves twice this size.
const DEFAULT_RECEIVE_BYTES: usize = 212_992;
const WRITE_BYTES: u64 = 16 << 10;
/// Number of writes that each sender posts at once.
const WRITES: u64 = 8;
/// Maximum number of attempts. The kernel must not preempt the thread during one of them.
const ATTEMPTS_MAX: usize = 20;

/// One receiver and many senders, all polled in turn.
struct Crowd {
    cluster: Cluster,
    receiver: Arc<RoceFabric>,
    key: Key,
    memory: Window,
    senders: Vec<Sender>,
    _serial: MutexGuard<'static, ()>,
}

struct Sender {
    fabric: Arc<RoceFabric>,
    peer: PeerId,
    /// Number of completed writes.
    completed: u64,
    is_disconnected: bool,
}

fn register(fabric: &RoceFabric, len: u64) -> (Key, Window) {
    let segment = Segment::create("test", len, PagePolicy::Normal).unwrap();
    let window = segment.window(0, len).unwrap();
    (fabric.register(segment).unwrap(), window)
}

impl Crowd {
    fn new(senders: u64, configure: impl Fn(RoceConfig) -> RoceConfig) -> Crowd {
        let serial = serialize();
        let cluster = Cluster::new();
        let receiver = RoceFabric::open(configure(RoceConfig::new(&cluster.0, "receiver"))).unwrap();
        let (key, memory) = register(&receiver, senders * WRITES * WRITE_BYTES);
        let mut crowd = Crowd { cluster, receiver, key, memory, senders: Vec::new(), _serial: serial };
        (0..senders).for_each(|_| crowd.join());
        crowd
    }

    /// Connects one more sender to the receiver, and waits until both have measured the path MTU.
    fn join(&mut self) {
        let name = format!("sender-{}", self.senders.len());
        let fabric = RoceFabric::open(RoceConfig::new(&self.cluster.0, name)).unwrap();
        fabric.connect("receiver.sock", b"");
        self.senders.push(Sender { fabric, peer: PeerId(0), completed: 0, is_disconnected: false });
        self.wait_for("a connection", |crowd| {
            let Sender { fabric, peer, .. } = crowd.senders.last().unwrap();
            fabric.path(*peer).is_some_and(|path| path.is_known)
        });
    }

    fn poll_all(&mut self) {
        let mut events = Vec::new();
        for sender in &mut self.senders {
            sender.fabric.poll(&mut events);
            for event in events.drain(..) {
                match event {
                    Event::Connected { peer, .. } => sender.peer = peer,
                    Event::Completed(Completion { status: Status::Success, .. }) => sender.completed += 1,
                    Event::Disconnected { .. } | Event::CutOff { .. } => sender.is_disconnected = true,
                    event => panic!("{event:?}"),
                }
            }
        }
        self.receiver.poll(&mut events);
    }

    #[track_caller]
    fn wait_for(&mut self, what: &str, mut condition: impl FnMut(&mut Crowd) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !condition(self) {
            assert!(Instant::now() < deadline, "timed out waiting for {what}");
            self.poll_all();
        }
    }

    /// Makes all senders write before the receiver polls, and checks that all writes are executed.
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
        self.wait_for("all writes", |crowd| crowd.senders.iter().all(|sender| sender.completed == WRITES));
        for index in 0..self.senders.len() {
            let bytes = WRITES * WRITE_BYTES;
            let written = bytes_of(&self.memory, index as u64 * bytes, bytes as usize);
            assert!(written.iter().all(|byte| *byte == index as u8 + 1), "sender {index} wrote other bytes");
        }
    }

    fn overflowed(&self) -> u64 {
        self.receiver.dropped().overflowed
    }

    /// Returns the ports of the receiver, as its senders know them, and the number of senders that use each.
    fn ports(&self) -> Vec<(u16, usize)> {
        let port = |sender: &Sender| sender.fabric.path(sender.peer).unwrap().ends.1.port();
        let mut ports: Vec<u16> = self.senders.iter().map(port).collect();
        ports.sort_unstable();
        ports.chunk_by(|one, other| one == other).map(|same| (same[0], same.len())).collect()
    }
}

fn with_default_buffer(config: RoceConfig) -> RoceConfig {
    RoceConfig { receive_bytes: DEFAULT_RECEIVE_BYTES, ..config }
}

#[test]
#[ignore = "measures: .ci/deep slow"]
fn default_buffers_hold_packets_of_64_writers() {
    for _ in 0..ATTEMPTS_MAX {
        let mut crowd = Crowd::new(64, with_default_buffer);
        assert_eq!(crowd.ports().iter().map(|(_, count)| *count).collect::<Vec<_>>(), [16; 4]);
        let (before, preempted) = (crowd.overflowed(), times_preempted());
        crowd.write_at_once();
        if crowd.overflowed() == before {
            return;
        }
        // After a preemption, this thread retransmits packets of each sender before it polls the receiver, which has
        // received them already.
        assert!(times_preempted() > preempted, "a receive buffer overflowed without a preemption");
    }
    panic!("a receive buffer overflowed in each attempt");
}

/// Returns how often the kernel has preempted this thread.
fn times_preempted() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    count.expect("Linux reports it").trim().parse().unwrap()
}

#[test]
fn writes_of_64_peers_to_one_socket_complete() {
    let mut crowd = Crowd::new(64, |config| RoceConfig { sockets_max: 1, ..with_default_buffer(config) });
    assert_eq!(crowd.ports().len(), 1);
    let before = crowd.overflowed();
    crowd.write_at_once();
    assert!(crowd.overflowed() > before, "the buffer holds fewer than 64 packets");
}

#[test]
fn sockets_are_opened_and_closed_as_peers_come_and_go() {
    let mut crowd = Crowd::new(33, |config| config);
    let first = crowd.receiver.local_address().port();
    assert_eq!(crowd.receiver.local_addresses().len(), 3);
    assert_eq!(crowd.ports().len(), 3);
    // Closes the connections of the second socket.
    let leaving = crowd.senders.drain(16..32).collect::<Vec<_>>();
    drop(leaving);
    crowd.wait_for("the end of their socket", |crowd| crowd.receiver.local_addresses().len() == 2);
    crowd.write_at_once();
    crowd.senders.iter_mut().for_each(|sender| sender.completed = 0);
    crowd.senders.truncate(16);
    crowd.wait_for("the end of the third socket", |crowd| crowd.receiver.local_addresses().len() == 1);
    assert_eq!(crowd.ports(), [(first, 16)]);
    crowd.join();
    assert_eq!(crowd.receiver.local_addresses().len(), 2, "a new peer gets another socket");
    crowd.write_at_once();
}

#[test]
fn packets_to_any_socket_wake_a_sleeper() {
    check_wakes(0);
    check_wakes(2);
}

/// Checks that three peers with a socket each wake a sleeper whose fabric has this number of receiver threads.
fn check_wakes(receivers: usize) {
    let _serial = serialize();
    let cluster = Cluster::new();
    let config =
        |name: &str| RoceConfig { peers_per_socket: 1, receivers, ..RoceConfig::new(&cluster.0, name) };
    let sleeper = RoceFabric::open(config("sleeper")).unwrap();
    std::thread::scope(|scope| {
        let fabric = sleeper.clone();
        let asleep = scope.spawn(move || {
            let mut node = Node::of(fabric);
            let mut received = Vec::new();
            while received.len() < 6 {
                // The sleeper polls only when it is woken.
                if let Some(completion) = node.try_completion() {
                    received.push(completion.peer);
                } else {
                    node.sleep();
                }
            }
            received
        });
        // Each peer has its own socket at the sleeper. It sends one message when it has connected, and another when all
        // peers have connected.
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
        let received = asleep.join().unwrap();
        assert_eq!(received.len(), 6);
    });
    assert!(sleeper.local_addresses().len() <= 3);
}

/// Opens a node whose fabric has a receiver thread, and a peer that is connected to this node.
fn open_with_receiver_thread(cluster: &Cluster) -> (Node, Node, PeerId) {
    // The lease does not end during the test, so its timer wakes no sleeper.
    let lease = 2 * TIMEOUT;
    let config = |name, receivers| RoceConfig { receivers, lease, ..RoceConfig::new(&cluster.0, name) };
    let mut busy = Node::of(RoceFabric::open(config("busy", 1)).unwrap());
    let mut peer = Node::of(RoceFabric::open(config("peer", 0)).unwrap());
    peer.fabric.connect("busy.sock", b"");
    let (mut peer_event, mut busy_event) = (None, None);
    let begin = Instant::now();
    while peer_event.is_none() || busy_event.is_none() {
        assert!(begin.elapsed() < TIMEOUT, "the fabrics do not connect");
        peer_event = peer_event.or(peer.try_event());
        busy_event = busy_event.or(busy.try_event());
    }
    let Some(Event::Connected { peer: to_busy, .. }) = peer_event else { panic!("{peer_event:?}") };
    (busy, peer, to_busy)
}

/// Requests of peers are executed and answered although no thread of the application polls.
#[test]
fn receivers_serve_peers_while_no_thread_polls() {
    let _serial = serialize();
    let cluster = Cluster::new();
    let (busy, mut peer, to_busy) = open_with_receiver_thread(&cluster);
    let (key, memory) = busy.register(4096);
    let (own, window) = peer.register(4096);
    // From here on, no thread polls the node.
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

/// Unsolicited messages wake no sleeper. When they have filled the queue, the fabric wakes the sleeper, which makes
/// room.
#[test]
fn receivers_whose_queue_is_full_wake_a_sleeper() {
    let _serial = serialize();
    let cluster = Cluster::new();
    let (mut busy, mut peer, to_busy) = open_with_receiver_thread(&cluster);
    let (send_tid, tid) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let asleep = scope.spawn(move || {
            send_tid.send(rustix::thread::gettid().as_raw_pid()).unwrap();
            let mut received = 0;
            while received <= 1100 {
                // The sleeper polls only when it is woken.
                match busy.try_completion() {
                    Some(_) => received += 1,
                    None => busy.sleep(),
                }
            }
        });
        let state = format!("/proc/self/task/{}/stat", tid.recv().unwrap());
        wait_until(|| std::fs::read_to_string(&state).unwrap().contains(") S "));
        let quiet = Operation::Send { bytes: b"hello", imm: 0 };
        let request = WorkRequest { id: WorkId(0), operation: quiet, signalled: false, solicited: false };
        for _ in 0..1100 {
            wait_until(|| {
                peer.try_event();
                peer.fabric.post(to_busy, Lane::FIRST, &[request]).is_ok()
            });
        }
        wait_until(|| {
            peer.try_event();
            peer.send(to_busy, b"the last", 0).is_ok()
        });
        wait_until(|| {
            peer.try_event();
            asleep.is_finished()
        });
    });
}

/// Sends messages until the node accepts no message for 200 ms; returns the number of messages.
fn flood(peer: &mut Node, to_busy: PeerId) -> u32 {
    let mut sent = 0;
    let begin = Instant::now();
    let mut refused_since = None;
    while refused_since.is_none_or(|since: Instant| since.elapsed() < Duration::from_millis(200)) {
        assert!(begin.elapsed() < TIMEOUT, "the node accepts all messages");
        match peer.send(to_busy, b"hello", sent) {
            Ok(()) => (sent, refused_since) = (sent + 1, None),
            Err(_) => refused_since = refused_since.or_else(|| Some(Instant::now())),
        }
        let _ = peer.try_event();
    }
    sent
}

#[test]
fn a_fabric_closes_while_its_receivers_wait_for_room() {
    let _serial = serialize();
    let cluster = Cluster::new();
    let (busy, mut peer, to_busy) = open_with_receiver_thread(&cluster);
    flood(&mut peer, to_busy);
    // No thread polls the event of the disconnection either.
    busy.fabric.disconnect(PeerId(1));
    let (send_done, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(busy);
        send_done.send(()).unwrap();
    });
    done.recv_timeout(TIMEOUT).expect("the fabric closes although no thread polls");
}
