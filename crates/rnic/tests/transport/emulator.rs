//! Networks in virtual time: queue pairs over links with a rate, a queue and a delay, which lose, duplicate, reorder and damage
//! packets.  A host may have sockets with bounded buffers and one processor that drains them; an end's process may suffer scheduling
//! delays.  Equal seeds give equal runs on every machine.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::ops::Range;

use halite_rnic::room::{Room, Share};
use halite_rnic::wire::{Flow, Packet, Psn, Qpn};
use halite_rnic::{Config, Congestion, Event, Local, Mtu, Operation, QueuePair, Request, Source};

use crate::pair::{KEY, Random, TestMemory, at};

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
/// Overhead of a frame: headers of Ethernet, IP and UDP, preamble and inter-frame gap.
const FRAME_BYTES: u64 = 66;

/// One direction of a network path, which several lanes may share.
#[derive(Clone, Debug)]
pub struct Link {
    pub bits_per_second: u64,
    /// Propagation delay.
    pub delay_ns: u64,
    /// Capacity of the queue.
    pub queue_bytes: u64,
    /// Maximum extra delay, without reordering.
    pub jitter_ns: u64,
    /// Packets per million that are lost, duplicated, damaged, or delayed by `overtaken_ns` so that others overtake them.
    pub lost: u64,
    pub duplicated: u64,
    pub damaged: u64,
    pub overtaken: u64,
    pub overtaken_ns: u64,
    /// Packets per million at which a loss of all packets for `train_ns` begins.
    pub train_lost: u64,
    pub train_ns: u64,
    /// The link is down in this time.
    pub down_ns: Range<u64>,
    /// Longer packets are dropped; the length counts from the transport header on.
    pub bytes_max: usize,
}

impl Link {
    /// A link that loses packets only if its queue is full.
    pub fn new(bits_per_second: u64, delay_ns: u64, queue_bytes: u64) -> Link {
        Link {
            bits_per_second,
            delay_ns,
            queue_bytes,
            jitter_ns: 0,
            lost: 0,
            duplicated: 0,
            damaged: 0,
            overtaken: 0,
            overtaken_ns: 0,
            train_lost: 0,
            train_ns: 0,
            down_ns: 0..0,
            bytes_max: usize::MAX,
        }
    }
}

/// The state of a link.
struct ActiveLink {
    link: Link,
    free_ns: u64,
    last_ns: u64,
    train_until_ns: u64,
    random: Random,
}

impl ActiveLink {
    /// Returns the arrival times of a packet's copies; may flip a bit in it.
    fn send(&mut self, now_ns: u64, bytes: &mut [u8]) -> Vec<u64> {
        let link = &self.link;
        let frame_ns = |bytes: u64| bytes * 8 * 1_000_000_000 / link.bits_per_second;
        let waits_ns = self.free_ns.saturating_sub(now_ns);
        if waits_ns > frame_ns(link.queue_bytes) {
            return vec![];
        }
        self.free_ns = self.free_ns.max(now_ns) + frame_ns(bytes.len() as u64 + FRAME_BYTES);
        let mut occurs = |of_million: u64| of_million > 0 && self.random.below(1_000_000) < of_million;
        if occurs(link.train_lost) {
            self.train_until_ns = self.free_ns + link.train_ns;
        }
        let is_in_train = self.free_ns < self.train_until_ns;
        let (is_lost, is_damaged) = (occurs(link.lost), occurs(link.damaged));
        let (is_duplicated, is_overtaken) = (occurs(link.duplicated), occurs(link.overtaken));
        if is_in_train || is_lost || link.down_ns.contains(&now_ns) || bytes.len() > link.bytes_max {
            return vec![];
        }
        if is_damaged {
            let bit = self.random.below(8 * bytes.len() as u64) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let jitter_ns = if link.jitter_ns > 0 { self.random.below(link.jitter_ns) } else { 0 };
        let at_ns = (self.free_ns + link.delay_ns + jitter_ns).max(self.last_ns);
        self.last_ns = at_ns;
        let own_ns = at_ns + if is_overtaken { link.overtaken_ns } else { 0 };
        if is_duplicated { vec![own_ns, own_ns + link.delay_ns] } else { vec![own_ns] }
    }
}

/// The workload of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// No requests.
    Nothing,
    /// Continuous writes of this many bytes.
    Writes(u32),
    /// Continuous reads of this many bytes.
    Reads(u32),
    /// Ping-pong: a write of this many bytes, which the other end returns at once.
    Pings(u32),
    Pongs(u32),
}

/// The receive buffer of a socket, as in Linux.
struct Socket {
    bytes: u64,
    /// Space of the queued datagrams, and of those read but not released.
    used_bytes: u64,
    read_bytes: u64,
    waiting: VecDeque<(usize, Vec<u8>)>,
    lost: u64,
    ends: Vec<usize>,
    /// Time of the next rebalance.
    share_ns: u64,
}

/// Space of a single datagram (`truesize`), as measured on Linux 6.18.
fn truesize(packet: &[u8]) -> u64 {
    const HEADERS_AND_TAIL: usize = 28 + 16 + 336;
    ((packet.len() + HEADERS_AND_TAIL).next_power_of_two() as u64 + 256).max(832)
}

impl Socket {
    fn enqueue(&mut self, end: usize, packet: Vec<u8>) {
        if self.used_bytes + self.read_bytes > self.bytes {
            self.lost += 1;
        } else {
            self.used_bytes += truesize(&packet);
            self.waiting.push_back((end, packet));
        }
    }

    fn dequeue(&mut self) -> Option<(usize, Vec<u8>)> {
        let (end, packet) = self.waiting.pop_front()?;
        self.used_bytes -= truesize(&packet);
        self.read_bytes += truesize(&packet);
        if self.waiting.is_empty() || self.read_bytes >= self.bytes / 4 {
            self.read_bytes = 0;
        }
        Some((end, packet))
    }
}

/// A host with sockets; its processor takes `packet_ns` for each packet.
#[derive(Default)]
struct Host {
    sockets: Vec<Socket>,
    packet_ns: u64,
    /// The socket to drain next.
    next: usize,
    free_ns: u64,
}

impl Host {
    /// When the processor takes the next packet.
    fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let is_waiting = self.sockets.iter().any(|socket| !socket.waiting.is_empty());
        is_waiting.then_some(self.free_ns.max(now_ns))
    }

    fn next_packet(&mut self) -> Option<(usize, Vec<u8>)> {
        let count = self.sockets.len();
        let taken = (0..count).find_map(|after| self.sockets[(self.next + after) % count].dequeue());
        self.next += 1;
        taken
    }
}

/// A process with scheduling delays: below 50 us, but for one wake-up in `late_one_of` up to `late_ns`.
struct Wakeups {
    random: Random,
    late_one_of: u64,
    late_ns: u64,
    /// Time of the pending wake-up.
    at_ns: Option<u64>,
    /// Arrived packets and their arrival times.
    waiting: Vec<(u64, Vec<u8>)>,
}

impl Wakeups {
    fn schedule_wakeup(&mut self, now_ns: u64) {
        let is_late = self.random.below(self.late_one_of) == 0;
        let wait_ns = self.random.below(if is_late { self.late_ns } else { 50 * US });
        self.at_ns.get_or_insert(now_ns + wait_ns);
    }
}

struct End {
    socket: Option<usize>,
    wakeups: Option<Wakeups>,
    qp: QueuePair,
    memory: TestMemory,
    link: usize,
    outwards: Flow,
    inwards: Flow,
    work: Work,
    posted: u64,
    begun_ns: u64,
    /// Bytes of requests that have completed.
    done_bytes: u64,
    trips_ns: Vec<u64>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Arrival {
    at_ns: u64,
    order: u64,
    to: usize,
    bytes: Vec<u8>,
}

pub struct Net {
    pub now_ns: u64,
    links: Vec<ActiveLink>,
    ends: Vec<End>,
    arrivals: BinaryHeap<Reverse<Arrival>>,
    /// Time of the next timeout of each end.
    due_ns: BTreeMap<usize, u64>,
    order: u64,
    host: Host,
}

/// Interval between rebalances of a socket's room.
const SHARE_NS: u64 = 500 * US;

/// The default configuration of these tests.
pub fn ends(congestion: Congestion) -> Config {
    Config {
        mtu: Mtu::Bytes1024,
        selective: true,
        congestion,
        tells_waits: true,
        write_packets_max: 1,
        read_packets_max: 1,
        reads_max: 256,
        answers_max: 256,
        room_packets: 256,
        ..Config::default()
    }
}

impl Net {
    pub fn new(links: &[Link], seed: u64) -> Net {
        let running = |(index, link): (usize, &Link)| ActiveLink {
            link: link.clone(),
            free_ns: 0,
            last_ns: 0,
            train_until_ns: 0,
            random: Random(seed ^ (index as u64) << 32),
        };
        let links = links.iter().enumerate().map(running).collect();
        Net {
            now_ns: 0,
            links,
            ends: Vec::new(),
            arrivals: BinaryHeap::new(),
            due_ns: BTreeMap::new(),
            order: 0,
            host: Host::default(),
        }
    }

    /// Sets the host's processing time per packet.
    pub fn host(&mut self, packet_ns: u64) {
        self.host.packet_ns = packet_ns;
    }

    /// Opens a socket of the host with a receive buffer of `bytes`.
    pub fn open_socket(&mut self, bytes: u64) -> usize {
        let (waiting, ends) = (VecDeque::new(), Vec::new());
        let socket = Socket { bytes, used_bytes: 0, read_bytes: 0, waiting, lost: 0, ends, share_ns: 0 };
        self.host.sockets.push(socket);
        self.host.sockets.len() - 1
    }

    /// Packets dropped at a full receive buffer.
    pub fn lost_at(&self, socket: usize) -> u64 {
        self.host.sockets[socket].lost
    }

    /// Connects a new end to a socket of the host.  Returns the index of the new end.
    pub fn connect_to_socket(
        &mut self,
        config: &Config,
        links: [usize; 2],
        socket: usize,
        work: Work,
    ) -> usize {
        let first = self.connect(config, links, 1, [work, Work::Nothing]);
        self.ends[first + 1].socket = Some(socket);
        self.host.sockets[socket].ends.push(first + 1);
        first
    }

    /// Connects two new ends, each with this grant.  Returns the index of the first.
    pub fn connect(&mut self, config: &Config, links: [usize; 2], grant: u32, works: [Work; 2]) -> usize {
        let first = self.ends.len();
        let flow = |from: usize, to: usize| {
            let address = |end: usize| {
                format!("10.0.{}.{}:4000", end / 200, 1 + end % 200).parse().expect("an address")
            };
            Flow::new(address(from), address(to))
        };
        for side in [0, 1] {
            let (own, peer) = (first + side, first + 1 - side);
            let mut qp = QueuePair::new(config.clone(), Qpn::new(own as u32 + 1), Psn::new(own as u32));
            qp.ready_to_receive(Qpn::new(peer as u32 + 1), Psn::new(peer as u32));
            qp.ready_to_send();
            qp.add_receives(u32::MAX);
            qp.set_grant(0, grant);
            self.ends.push(End {
                socket: None,
                wakeups: None,
                qp,
                memory: TestMemory::new(),
                link: links[side],
                outwards: flow(own, peer),
                inwards: flow(peer, own),
                work: works[side],
                posted: u64::from(matches!(works[side], Work::Pongs(_))),
                begun_ns: self.now_ns,
                done_bytes: 0,
                trips_ns: Vec::new(),
            });
        }
        for side in [0, 1] {
            self.ends[first + side].qp.find_path(self.now_ns);
            self.step(first + side);
        }
        first
    }

    /// Adds scheduling delays to the processes of all ends from now on.
    pub fn delay_wakeups(&mut self, late_one_of: u64, late_ns: u64) {
        for (index, end) in self.ends.iter_mut().enumerate() {
            let (random, at_ns, waiting) = (Random(index as u64), None, Vec::new());
            end.wakeups = Some(Wakeups { random, late_one_of, late_ns, at_ns, waiting });
        }
    }

    pub fn run_for(&mut self, ns: u64) {
        let until_ns = self.now_ns + ns;
        loop {
            let arrival = self.arrivals.peek().map(|Reverse(arrival)| arrival.at_ns);
            let due = self.due_ns.values().min().copied();
            let taken = self.host.due_ns(self.now_ns);
            let woken = self.ends.iter().filter_map(|end| end.wakeups.as_ref()?.at_ns).min();
            let all = arrival.into_iter().chain(due).chain(taken).chain(woken);
            let Some(next) = all.min().filter(|at| *at <= until_ns) else { break };
            self.now_ns = self.now_ns.max(next);
            let mut touched = Vec::new();
            while self.arrivals.peek().is_some_and(|Reverse(arrival)| arrival.at_ns <= self.now_ns) {
                let Some(Reverse(Arrival { to, bytes, .. })) = self.arrivals.pop() else { break };
                if let Some(wakeups) = &mut self.ends[to].wakeups {
                    wakeups.waiting.push((self.now_ns, bytes));
                    wakeups.schedule_wakeup(self.now_ns);
                } else if let Some(socket) = self.ends[to].socket {
                    self.host.sockets[socket].enqueue(to, bytes);
                } else {
                    self.ends[to].handle(self.now_ns, &bytes);
                    touched.push(to);
                }
            }
            if taken.is_some_and(|at_ns| at_ns <= self.now_ns) {
                touched.extend(self.take_packet());
            }
            let due: Vec<usize> =
                self.due_ns.iter().filter(|(_, at)| **at <= self.now_ns).map(|(end, _)| *end).collect();
            for end in due {
                if let Some(wakeups) = &mut self.ends[end].wakeups {
                    self.due_ns.remove(&end);
                    wakeups.schedule_wakeup(self.now_ns);
                } else {
                    self.ends[end].qp.handle_timeout(self.now_ns);
                    touched.push(end);
                }
            }
            touched.extend(self.run_due_wakeups());
            touched.sort_unstable();
            touched.dedup();
            touched.into_iter().for_each(|end| self.step(end));
        }
        self.now_ns = until_ns;
    }

    /// Runs the processes whose wake-up is due.
    fn run_due_wakeups(&mut self) -> Vec<usize> {
        let mut woken = Vec::new();
        for (index, end) in self.ends.iter_mut().enumerate() {
            let Some(wakeups) = end.wakeups.as_mut().filter(|w| w.at_ns.is_some_and(|at| at <= self.now_ns))
            else {
                continue;
            };
            wakeups.at_ns = None;
            for (arrived_ns, bytes) in std::mem::take(&mut wakeups.waiting) {
                end.handle_stamped(self.now_ns, arrived_ns, &bytes);
            }
            end.qp.handle_timeout(self.now_ns);
            woken.push(index);
        }
        woken
    }

    /// The host's processor takes a packet.
    fn take_packet(&mut self) -> Vec<usize> {
        let Some((end, bytes)) = self.host.next_packet() else { return vec![] };
        self.host.free_ns = self.now_ns + self.host.packet_ns;
        self.ends[end].handle(self.now_ns, &bytes);
        let mut touched = vec![end];
        let socket = self.ends[end].socket.map(|socket| &mut self.host.sockets[socket]);
        let Some(socket) = socket.filter(|socket| self.now_ns >= socket.share_ns) else { return touched };
        socket.share_ns = self.now_ns + SHARE_NS;
        let mut shares: Vec<Share> = socket.ends.iter().map(|end| self.ends[*end].qp.share()).collect();
        Room::new(socket.bytes as usize).share(self.now_ns, socket.ends.len(), &mut shares);
        for (end, share) in socket.ends.iter().zip(shares) {
            self.ends[*end].qp.set_share(self.now_ns, share);
        }
        touched.extend(&socket.ends);
        touched
    }

    /// Handles an end's events, posts its next requests, and sends its packets.
    fn step(&mut self, index: usize) {
        let now_ns = self.now_ns;
        let end = &mut self.ends[index];
        while let Some(event) = end.qp.poll_event() {
            match (event, end.work) {
                (Event::Completed { status, .. }, Work::Writes(len) | Work::Reads(len)) => {
                    assert_eq!(status, halite_rnic::Status::Success);
                    end.done_bytes += u64::from(len);
                }
                (Event::Notified { .. }, Work::Pings(_)) => {
                    end.trips_ns.push(now_ns - end.begun_ns);
                    end.posted = 0;
                }
                (Event::Notified { .. }, Work::Pongs(_)) => end.posted = 0,
                (Event::Broken { cause }, _) => panic!("broken: {cause:?}"),
                _ => {}
            }
        }
        end.post_work(now_ns);
        let mut place = 0;
        loop {
            let end = &mut self.ends[index];
            let mut bytes = vec![0; end.qp.packet_bytes_max()];
            let Some(len) = end.qp.poll_transmit(now_ns, &end.memory, &mut bytes) else { break };
            bytes.truncate(len);
            end.outwards.seal(place, &mut bytes);
            place = (place + 1) % 128;
            for at_ns in self.links[end.link].send(now_ns, &mut bytes) {
                self.order += 1;
                let (order, to) = (self.order, index ^ 1);
                self.arrivals.push(Reverse(Arrival { at_ns, order, to, bytes: bytes.clone() }));
            }
        }
        match self.ends[index].qp.poll_timeout() {
            Some(at_ns) => self.due_ns.insert(index, at_ns),
            None => self.due_ns.remove(&index),
        };
    }

    /// Bytes that an end has transferred.
    pub fn done_bytes(&self, end: usize) -> u64 {
        self.ends[end].done_bytes
    }

    /// Goodput of each of these ends in Mb/s, over the next `ns`.
    pub fn goodput(&mut self, ends: &[usize], ns: u64) -> Vec<f64> {
        let before: Vec<u64> = ends.iter().map(|end| self.done_bytes(*end)).collect();
        self.run_for(ns);
        let moved = ends.iter().zip(before).map(|(end, before)| self.done_bytes(*end) - before);
        moved.map(|bytes| bytes as f64 * 8_000.0 / ns as f64).collect()
    }

    /// The 99th percentile of an end's ping round trips since the last call.
    pub fn ping_p99_ns(&mut self, end: usize) -> u64 {
        let mut trips = std::mem::take(&mut self.ends[end].trips_ns);
        assert!(trips.len() >= 100, "{} pings are too few", trips.len());
        trips.sort_unstable();
        trips[trips.len() * 99 / 100]
    }

    pub fn counters(&self, end: usize) -> halite_rnic::Counters {
        self.ends[end].qp.counters()
    }
}

impl End {
    fn handle(&mut self, now_ns: u64, bytes: &[u8]) {
        self.handle_stamped(now_ns, now_ns, bytes);
    }

    fn handle_stamped(&mut self, now_ns: u64, arrived_ns: u64, bytes: &[u8]) {
        if let Ok(packet) = self.inwards.open(bytes).and_then(Packet::parse) {
            self.qp.handle_stamped(now_ns, arrived_ns, &packet, &self.memory);
        }
    }

    fn post_work(&mut self, now_ns: u64) {
        let local = Local { key: KEY, address: 0 };
        let registered = |len| Source::Registered { local, len };
        let (operation, depth) = match self.work {
            Work::Nothing => return,
            Work::Writes(len) => (Operation::Write { source: registered(len), remote: at(0), imm: None }, 64),
            Work::Reads(len) => (Operation::Read { local, remote: at(0), len }, 64),
            Work::Pings(len) | Work::Pongs(len) if self.posted == 0 => {
                self.posted = 1;
                self.begun_ns = now_ns;
                let operation = Operation::Write { source: registered(len), remote: at(0), imm: Some(1) };
                let request = Request { id: 0, operation, signalled: false, solicited: false };
                self.qp.post(request).expect("one at a time");
                return;
            }
            Work::Pings(_) | Work::Pongs(_) => return,
        };
        while self.qp.posted() < depth {
            let request = Request { id: 0, operation: operation.clone(), signalled: true, solicited: false };
            self.qp.post(request).expect("there is room");
        }
    }
}
