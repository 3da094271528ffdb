//! One who has many peers: its sockets, what their receive buffers hold, and what becomes of those who share one.

mod common;

use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::{Cluster, Node, Role, bytes_of, inline, remote, role_dir};
use halite_fabric::{
    Completion, Event, Fabric, Key, Lane, Local, Operation, PeerId, Status, WorkId, WorkRequest,
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

/// One story at a time: a crowd of 64 has some 900 of the 1024 descriptors that a process may usually have.
static DESCRIPTORS: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner)
}

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
fn what_sixty_four_write_at_once_fits_into_the_buffers_of_a_stock_kernel() {
    let mut crowd = Crowd::new(64, stock);
    assert_eq!(crowd.ports().iter().map(|(_, count)| *count).collect::<Vec<_>>(), [16; 4]);
    let before = crowd.overflowed();
    crowd.write_at_once();
    assert_eq!(crowd.overflowed() - before, 0, "no datagram found a buffer full");
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
    let _alone = alone();
    let cluster = Cluster::new();
    let config = |name: &str| RoceConfig { peers_per_socket: 1, ..RoceConfig::new(&cluster.0, name) };
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
    let _role = Role::start(&cluster, "poor");
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
