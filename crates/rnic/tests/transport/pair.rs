//! Two queue pairs and a link in virtual time: each packet takes 10 us, and a filter decides its fate.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

pub use Side::{A, B};
use halite_rnic::wire::{Flow, Opcode, Packet, Psn, Qpn};
use halite_rnic::{
    Access, Config, Event, Local, Memory, Operation, QueuePair, Refused, Remote, Request, Source, Status,
};

/// One-way delay of the link, in ns.
pub const ONE_WAY_NS: u64 = 10_000;

/// A key with full access to [`MEMORY_BYTES`] bytes, on either side.
pub const KEY: u32 = 7;
/// A key with read access to [`MEMORY_BYTES`] other bytes, on either side.
pub const READ_ONLY: u32 = 8;
pub const MEMORY_BYTES: usize = 1 << 18;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    A,
    B,
}

/// The fate of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Delivered,
    Lost,
    /// The link duplicates the packet. The copy arrives this many ns later.
    Duplicated(u64),
    /// The link flips the bit with this index.
    Damaged(usize),
    /// The packet arrives this many ns late.
    Delayed(u64),
}

/// A sent packet, for the filter.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub from: Side,
    pub opcode: Opcode,
    /// Sequence number, relative to the first number of the sender; for a response, relative to the first number of the
    /// requester.
    pub psn: u32,
    /// Number of earlier packets of this side with the same opcode and number.
    pub repetition: usize,
    /// Length from the transport header on.
    pub bytes: usize,
    pub at_ns: u64,
}

type Filter = Box<dyn FnMut(&Sent) -> Fate>;

/// Registered memory by key.
pub struct TestMemory {
    keys: RefCell<BTreeMap<u32, Vec<u8>>>,
}

impl TestMemory {
    pub fn new() -> TestMemory {
        let keys = [KEY, READ_ONLY].map(|key| (key, vec![0; MEMORY_BYTES]));
        TestMemory { keys: RefCell::new(keys.into()) }
    }

    fn with<R>(
        &self,
        key: u32,
        address: u64,
        len: usize,
        then: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, Refused> {
        let mut keys = self.keys.borrow_mut();
        let bytes = keys.get_mut(&key).ok_or(Refused)?;
        let begin = usize::try_from(address).map_err(|_| Refused)?;
        let end = begin.checked_add(len).ok_or(Refused)?;
        bytes.get_mut(begin..end).map(then).ok_or(Refused)
    }

    pub fn get(&self, address: u64, len: usize) -> Vec<u8> {
        self.with(KEY, address, len, |bytes| bytes.to_vec()).expect("in bounds")
    }

    pub fn put(&self, address: u64, source: &[u8]) {
        self.write(KEY, address, source).expect("in bounds");
    }

    pub fn word(&self, address: u64) -> u64 {
        u64::from_le_bytes(self.get(address, 8).try_into().expect("eight bytes"))
    }
}

impl Memory for TestMemory {
    fn check(&self, key: u32, access: Access, address: u64, len: u64) -> Result<(), Refused> {
        if key == READ_ONLY && access != Access::Read {
            return Err(Refused);
        }
        self.with(key, address, usize::try_from(len).map_err(|_| Refused)?, |_| ())
    }

    fn read(&self, key: u32, address: u64, target: &mut [u8]) -> Result<(), Refused> {
        self.with(key, address, target.len(), |bytes| target.copy_from_slice(bytes))
    }

    fn write(&self, key: u32, address: u64, source: &[u8]) -> Result<(), Refused> {
        self.with(key, address, source.len(), |bytes| bytes.copy_from_slice(source))
    }

    fn fetch_add(&self, key: u32, address: u64, add: u64) -> Result<u64, Refused> {
        self.change(key, address, |old| old.wrapping_add(add))
    }

    fn compare_swap(&self, key: u32, address: u64, expected: u64, new: u64) -> Result<u64, Refused> {
        self.change(key, address, |old| if old == expected { new } else { old })
    }
}

impl TestMemory {
    fn change(&self, key: u32, address: u64, change: impl FnOnce(u64) -> u64) -> Result<u64, Refused> {
        assert_eq!(address % 8, 0, "the transport must refuse unaligned words");
        self.with(key, address, 8, |bytes| {
            let old = u64::from_le_bytes((&*bytes).try_into().expect("eight bytes"));
            bytes.copy_from_slice(&change(old).to_le_bytes());
            old
        })
    }
}

/// One end, with its memory and its events.
pub struct End {
    pub qp: QueuePair,
    pub memory: TestMemory,
    pub events: Vec<Event>,
    outbound_flow: Flow,
    inbound_flow: Flow,
    first_psn: u32,
    next_id: u64,
    /// Number of packets rejected before they reached the queue pair.
    pub damaged: usize,
}

pub struct Pair {
    pub now_ns: u64,
    ends: [End; 2],
    /// The packets on the link, by arrival time and then by send order.
    in_transit: BTreeMap<(u64, u64), (Side, Vec<u8>)>,
    sent: u64,
    steps: u64,
    filter: Filter,
    /// Time until which each end's process is descheduled: it neither receives nor sends.
    descheduled_until_ns: [u64; 2],
    /// Number of sent packets by side, opcode and number.
    sent_counts: BTreeMap<(usize, u8, u32), usize>,
    /// All sent packets, in order: `a WriteOnly 0`.
    pub log: Vec<String>,
}

impl Side {
    pub fn other(self) -> Side {
        match self {
            A => B,
            B => A,
        }
    }
}

impl Pair {
    /// Creates a connected pair with ample grants and receives.
    pub fn new() -> Pair {
        Pair::with(Config::default(), [0x11, 0x22])
    }

    /// Creates a connected pair as [`Pair::new`] does, whose packets are numbered from `psns` on.
    pub fn with(config: Config, psns: [u32; 2]) -> Pair {
        let mut pair = Pair::minimal(config, psns);
        for side in [A, B] {
            let end = pair.end(side);
            end.qp.add_receives(1 << 20);
            end.qp.set_grant(0, 64);
        }
        pair
    }

    /// Creates a connected pair with a grant of one packet and no receives.
    pub fn minimal(config: Config, psns: [u32; 2]) -> Pair {
        let addresses = ["10.0.0.1:4000", "10.0.0.2:5000"].map(|text| text.parse().expect("an address"));
        let qpns = [Qpn::new(0xaaa), Qpn::new(0xbbb)];
        let ends = [0, 1].map(|own| {
            let peer = 1 - own;
            let mut qp = QueuePair::new(config.clone(), qpns[own], Psn::new(psns[own]));
            qp.ready_to_receive(qpns[peer], Psn::new(psns[peer]));
            qp.ready_to_send();
            End {
                qp,
                memory: TestMemory::new(),
                events: Vec::new(),
                outbound_flow: Flow::new(addresses[own], addresses[peer]),
                inbound_flow: Flow::new(addresses[peer], addresses[own]),
                first_psn: psns[own],
                next_id: 0,
                damaged: 0,
            }
        });
        Pair {
            now_ns: 0,
            ends,
            in_transit: BTreeMap::new(),
            sent: 0,
            steps: 0,
            filter: Box::new(|_| Fate::Delivered),
            descheduled_until_ns: [0; 2],
            sent_counts: BTreeMap::new(),
            log: Vec::new(),
        }
    }

    /// Sets the filter for all packets from now on.
    pub fn set_filter(&mut self, filter: impl FnMut(&Sent) -> Fate + 'static) {
        self.filter = Box::new(filter);
    }

    /// Deschedules a side's process; arriving packets wait in its socket.
    pub fn deschedule(&mut self, side: Side, duration_ns: u64) {
        self.descheduled_until_ns[side as usize] = self.now_ns + duration_ns;
    }

    pub fn end(&mut self, side: Side) -> &mut End {
        &mut self.ends[side as usize]
    }

    pub fn a(&mut self) -> &mut End {
        self.end(A)
    }

    pub fn b(&mut self) -> &mut End {
        self.end(B)
    }

    /// Returns the time of the next arrival or timer.
    pub fn next_ns(&self) -> Option<u64> {
        let arrival = self.in_transit.keys().next().map(|(at, _)| *at);
        let runs_from_ns = self.descheduled_until_ns;
        let timeouts = self
            .ends
            .iter()
            .zip(runs_from_ns)
            .filter_map(|(end, from_ns)| Some(end.qp.poll_timeout()?.max(from_ns)));
        timeouts.chain(arrival).min()
    }

    /// Runs until no packet is in transit and no timer is set.
    pub fn run(&mut self) {
        self.run_until(u64::MAX);
    }

    /// Runs until this time, or until no packet or timer is left.
    pub fn run_until(&mut self, until_ns: u64) {
        loop {
            for side in [A, B] {
                self.send_packets(side);
            }
            let Some(next) = self.next_ns().filter(|at| *at <= until_ns) else { break };
            assert!(self.sent < 1_000_000, "packet storm");
            self.steps += 1;
            assert!(self.steps < 1_000_000, "the run makes no progress");
            self.now_ns = self.now_ns.max(next);
            while let Some(entry) = self.in_transit.first_entry() {
                if entry.key().0 > self.now_ns {
                    break;
                }
                let (to, bytes) = entry.remove();
                self.arrive(to, &bytes);
            }
            for (end, until) in self.ends.iter_mut().zip(self.descheduled_until_ns) {
                if self.now_ns >= until {
                    end.qp.handle_timeout(self.now_ns);
                }
            }
        }
        if until_ns != u64::MAX {
            self.now_ns = until_ns;
        }
    }

    /// Sends a side's packets in trains, and collects its events.
    fn send_packets(&mut self, side: Side) {
        let now_ns = self.now_ns;
        if now_ns < self.descheduled_until_ns[side as usize] {
            return;
        }
        let mut place = 0;
        loop {
            let end = &mut self.ends[side as usize];
            let mut buffer = vec![0xee; end.qp.packet_bytes_max()];
            let Some(len) = end.qp.poll_transmit(now_ns, &end.memory, &mut buffer) else { break };
            buffer.truncate(len);
            end.outbound_flow.seal(place, &mut buffer);
            place = (place + 1) % 128;
            self.send(side, buffer);
        }
        let end = &mut self.ends[side as usize];
        end.events.extend(std::iter::from_fn(|| end.qp.poll_event()));
    }

    /// Sends a sealed packet, as the filter decides.
    fn send(&mut self, from: Side, mut bytes: Vec<u8>) {
        let packet = Packet::parse(&bytes[..bytes.len() - 4]).expect("sent packets are well-formed");
        let opcode = packet.headers.opcode();
        let requester = if opcode.is_response() { from.other() } else { from };
        let psn = packet.psn.value().wrapping_sub(self.ends[requester as usize].first_psn) & 0xff_ffff;
        let count = self.sent_counts.entry((from as usize, opcode as u8, psn)).or_default();
        let sent = Sent { from, opcode, psn, repetition: *count, bytes: bytes.len(), at_ns: self.now_ns };
        *count += 1;
        let fate = (self.filter)(&sent);
        let name = if from == A { "a" } else { "b" };
        let lost = if fate == Fate::Lost { " lost" } else { "" };
        let nak = match packet.headers {
            halite_rnic::wire::Headers::Acknowledge(aeth) => match aeth.syndrome {
                halite_rnic::wire::Syndrome::Ack(_) => String::new(),
                halite_rnic::wire::Syndrome::RnrNak(_) => " rnr".into(),
                halite_rnic::wire::Syndrome::Nak(nak) => format!(" {nak:?}"),
            },
            _ => String::new(),
        };
        self.log.push(format!("{name} {opcode:?} {psn}{nak}{lost}"));
        let delays = match fate {
            Fate::Delivered => vec![0],
            Fate::Lost => vec![],
            Fate::Duplicated(later_ns) => vec![0, later_ns],
            Fate::Delayed(later_ns) => vec![later_ns],
            Fate::Damaged(bit) => {
                let bit = bit % (bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
                vec![0]
            }
        };
        for delay_ns in delays {
            self.sent += 1;
            let at_ns =
                (self.now_ns + ONE_WAY_NS + delay_ns).max(self.descheduled_until_ns[from.other() as usize]);
            self.in_transit.insert((at_ns, self.sent), (from.other(), bytes.clone()));
        }
    }

    /// Delivers a packet from the wire.
    pub fn arrive(&mut self, to: Side, bytes: &[u8]) {
        let now_ns = self.now_ns;
        let end = self.end(to);
        match end.inbound_flow.open(bytes).and_then(Packet::parse) {
            Ok(packet) => end.qp.handle_packet(now_ns, &packet, &end.memory),
            Err(_) => end.damaged += 1,
        }
    }

    /// Delivers a forged packet that carries the other side's address.
    pub fn forge(&mut self, to: Side, packet: &Packet<'_>) {
        let mut bytes = vec![0; 8192];
        let len = packet.emit(&mut bytes);
        self.end(to.other()).outbound_flow.seal(0, &mut bytes[..len]);
        self.arrive(to, &bytes[..len]);
    }

    /// Returns the PSN of the packet that a side sends `after` packets after its first packet.
    pub fn psn(&mut self, side: Side, after: u32) -> Psn {
        Psn::new(self.end(side).first_psn.wrapping_add(after))
    }
}

impl End {
    /// Posts a signalled request.
    pub fn post(&mut self, operation: Operation) -> u64 {
        self.post_as(operation, true)
    }

    pub fn post_as(&mut self, operation: Operation, signalled: bool) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.qp.post(Request { id, operation, signalled, solicited: true }).expect("posted");
        id
    }

    pub fn write(&mut self, address: u64, bytes: &[u8]) -> u64 {
        self.post(write(address, bytes, None))
    }

    pub fn read(&mut self, local: u64, remote: u64, len: u32) -> u64 {
        self.post(read(local, remote, len))
    }

    pub fn fetch_add(&mut self, address: u64, add: u64) -> u64 {
        self.post(Operation::FetchAdd { remote: at(address), add })
    }

    pub fn send(&mut self, bytes: &[u8], imm: Option<u32>) -> u64 {
        self.post(Operation::Send { bytes: bytes.to_vec(), imm })
    }

    /// Returns the completions, in order.
    pub fn completions(&self) -> Vec<(u64, Status)> {
        let completed = |event: &Event| match event {
            Event::Completed { id, status, .. } => Some((*id, *status)),
            _ => None,
        };
        self.events.iter().filter_map(completed).collect()
    }

    /// Returns the received messages and immediates, in order.
    pub fn received(&self) -> Vec<(Vec<u8>, Option<u32>)> {
        let received = |event: &Event| match event {
            Event::Received { bytes, imm, .. } => Some((bytes.clone(), *imm)),
            Event::Notified { imm, .. } => Some((Vec::new(), Some(*imm))),
            _ => None,
        };
        self.events.iter().filter_map(received).collect()
    }
}

pub fn at(address: u64) -> Remote {
    Remote { rkey: KEY, address }
}

pub fn write(address: u64, bytes: &[u8], imm: Option<u32>) -> Operation {
    Operation::Write { source: Source::Inline(bytes.to_vec()), remote: at(address), imm }
}

pub fn read(local: u64, remote: u64, len: u32) -> Operation {
    Operation::Read { local: Local { key: KEY, address: local }, remote: at(remote), len }
}

/// Returns bytes that differ from their neighbours.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|index| (index as u32 * 31 + index as u32 / 251) as u8 ^ seed).collect()
}

/// Returns a configuration with a lease of this many milliseconds.
pub fn lease_ms(milliseconds: u64) -> Config {
    Config { retry: halite_rnic::Retry::Lease(Duration::from_millis(milliseconds)), ..Config::default() }
}

/// Pseudo-random numbers from a seed (splitmix64).
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
