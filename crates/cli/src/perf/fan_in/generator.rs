//! The clients: many requesters on one thread.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use halite_rnic::stateless::{EFFECT_LIFE_NS, Grant, Outcome, Requester, Rights, ServerClock, Work};
use halite_rnic::wire::{Flow, Packet, Psn, Qpn};
use halite_rnic::{Event, Local, Operation, QueuePair, Remote, Request as QpRequest, Source, Status};
use hdrhistogram::Histogram;

use super::transport::{Clock, Own, PACKET_BYTES, at, config, open};
use super::turns::Turns;
use super::{
    ADDRESS_BYTES, Answer, Ended, IN_FLIGHT, Latency, MEMORY_BYTES, Mode, PATIENCE, RKEY, Request, Verb,
    Workload, byte_at, latencies, reply,
};
use crate::perf::measure::thread_cpu;

/// Number of sockets that clients share.
const SOCKETS: u32 = 8;
/// Number of clients that one request to the server process admits.
const ADMITTED_AT_ONCE: u32 = 10_000;
/// Time without the end of an operation after which the server process may have ended.
const SILENCE: Duration = Duration::from_millis(500);
/// Interval between two checks for packets to retransmit.
const LOOK: Duration = Duration::from_millis(1);

pub struct Plan {
    pub mode: Mode,
    pub workload: Workload,
    pub verb: Verb,
    pub clients: u32,
    pub size: u64,
    /// Length of the answers to calls; `None` if it is that of the call.
    pub reply_size: Option<u64>,
    /// Port of the server.
    pub port: u16,
}

/// The clients, and the state that they share.
pub struct Crowd {
    size: u64,
    reply_size: Option<u64>,
    workload: Workload,
    verb: Verb,
    lanes: Vec<Lane>,
    clients: Vec<Client>,
    turns: Turns,
    /// Addresses that were written.
    written: BTreeSet<u64>,
    /// Addresses that are read next.
    to_read: Vec<u64>,
    server: ServerClock,
    clock: Clock,
    memory: Own,
    random: fastrand::Rng,
    packet: [u8; PACKET_BYTES],
}

/// A socket, and the checksums of its packets.
struct Lane {
    socket: UdpSocket,
    outwards: Flow,
    inwards: Flow,
    server: u16,
}

struct Client {
    requester: Kind,
    lane: usize,
    /// Address and start of the operation in progress.
    under_way: Option<(u64, Instant)>,
}

enum Kind {
    Stateless(Box<Requester>),
    Stateful(Box<QueuePair>),
}

/// The result of a run, and the generator's processor time for it.
pub struct Run {
    pub ended: Ended,
    pub cpu_ns: u64,
}

/// Counts of a run so far.
struct Count {
    /// Latencies in ns.
    latency: Histogram<u64>,
    repeated: u64,
    maybe_done: u64,
    errors: u64,
}

impl Crowd {
    /// Creates the clients; `ask` asks the server to admit them.
    pub fn admit(
        plan: &Plan,
        mut ask: impl FnMut(&Request) -> anyhow::Result<Answer>,
    ) -> anyhow::Result<Crowd> {
        let lane = |_| -> io::Result<Lane> {
            let socket = open()?;
            socket.set_nonblocking(true)?;
            let own = socket.local_addr()?;
            let (outwards, inwards) = (Flow::new(own, at(plan.port)), Flow::new(at(plan.port), own));
            Ok(Lane { socket, outwards, inwards, server: plan.port })
        };
        let lanes: Vec<Lane> = (0..SOCKETS.min(plan.clients))
            .map(lane)
            .collect::<Result<_, _>>()
            .context("cannot open sockets")?;
        let mut crowd = Crowd {
            size: plan.size,
            reply_size: plan.reply_size,
            workload: plan.workload,
            verb: plan.verb,
            clients: Vec::new(),
            turns: Turns::new(plan.clients, plan.mode == Mode::Grouped, false),
            written: BTreeSet::new(),
            to_read: Vec::new(),
            server: ServerClock::default(),
            clock: Clock::start(),
            memory: Own::new((0..MEMORY_BYTES).map(|address| !byte_at(address)).collect()),
            random: fastrand::Rng::with_seed(1),
            packet: [0; PACKET_BYTES],
            lanes,
        };
        // The clients of a lane have neighbouring numbers.
        let share = plan.clients.div_ceil(crowd.lanes.len() as u32);
        for lane in 0..crowd.lanes.len() {
            let (begin, end) = (share * lane as u32, (share * (lane as u32 + 1)).min(plan.clients));
            for first in (begin..end).step_by(ADMITTED_AT_ONCE as usize) {
                let count = ADMITTED_AT_ONCE.min(end - first);
                crowd.admit_some(plan.mode, lane, first, count, &mut ask)?;
            }
        }
        Ok(crowd)
    }

    fn admit_some(
        &mut self,
        mode: Mode,
        lane: usize,
        first: u32,
        count: u32,
        ask: &mut impl FnMut(&Request) -> anyhow::Result<Answer>,
    ) -> anyhow::Result<()> {
        let port = self.lanes[lane].socket.local_addr()?.port();
        let Answer::Admitted { keys } = ask(&Request::Admit { port, first, count })? else {
            bail!("the server process does not admit clients");
        };
        for index in 0..count {
            let qpn = Qpn::new(first + index);
            let requester = match mode {
                Mode::Stateless => {
                    let key = *keys.get(index as usize).context("the server process gave too few keys")?;
                    let (rkey, rights, effect_life_ns) = (RKEY, Rights::ReadWrite, EFFECT_LIFE_NS);
                    let grant = Grant { qpn, rkey, rights, effect_life_ns, epoch: 1, key };
                    Kind::Stateless(Box::new(Requester::new(grant, self.clock.now_ns())))
                }
                Mode::Stateful | Mode::Grouped => {
                    let mut qp = QueuePair::new(config(), qpn, Psn::new(0));
                    qp.ready_to_receive(qpn, Psn::new(0));
                    qp.ready_to_send();
                    qp.add_receives(1);
                    Kind::Stateful(Box::new(qp))
                }
            };
            self.clients.push(Client { requester, lane, under_way: None });
        }
        Ok(())
    }

    /// Executes operations of clients, at most one per client at a time. While none ends, `check` reports if the server
    /// process has ended.
    pub fn run(
        &mut self,
        operations: u64,
        mut check: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<Run> {
        let mut run = Count { latency: latencies(), repeated: 0, maybe_done: 0, errors: 0 };
        let (begin, cpu) = (Instant::now(), thread_cpu());
        let (mut begun, mut ended, mut looked) = (0, 0, Instant::now());
        let (mut ended_before, mut progressed) = (0, Instant::now());
        let mut under_way: VecDeque<u32> = VecDeque::new();
        while ended < operations {
            while begun < operations && begun - ended < IN_FLIGHT as u64 {
                let is_busy = |client| self.clients[client as usize].under_way.is_some();
                let Some(client) = self.turns.next((begun - ended) as usize, is_busy) else { break };
                self.begin(client);
                self.transmit(client);
                under_way.push_back(client);
                begun += 1;
            }
            for lane in 0..self.lanes.len() {
                ended += self.receive(lane, &mut run, None)?;
            }
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                if ended > ended_before {
                    (ended_before, progressed) = (ended, looked);
                }
                if progressed.elapsed() > SILENCE {
                    check()?;
                }
                if progressed.elapsed() > PATIENCE {
                    bail!("the server process has answered no operation for {} s", PATIENCE.as_secs());
                }
                under_way.retain(|client| self.clients[*client as usize].under_way.is_some());
                for client in under_way.iter().copied().collect::<Vec<_>>() {
                    run.repeated += self.repeat(client);
                    ended += self.finish(client, &mut run)?;
                }
            }
        }
        let Count { latency, repeated, maybe_done, errors } = run;
        let latency = Latency::of(&latency);
        let ended = Ended { took: begin.elapsed(), latency, repeated, maybe_done, errors, written: [0; 2] };
        Ok(Run { ended, cpu_ns: thread_cpu().saturating_sub(cpu).as_nanos() as u64 })
    }

    /// Serves operations that the server starts.
    pub fn serve(
        &mut self,
        operations: u64,
        mut ask: impl FnMut(&Request) -> anyhow::Result<Answer>,
    ) -> anyhow::Result<Run> {
        let cpu = thread_cpu();
        let Answer::Started =
            ask(&Request::Start { operations, size: self.size, verb: self.verb, workload: self.workload })?
        else {
            bail!("the server process does not start");
        };
        let mut count = Count { latency: latencies(), repeated: 0, maybe_done: 0, errors: 0 };
        let (mut looked, mut active) = (Instant::now(), BTreeSet::new());
        loop {
            for lane in 0..self.lanes.len() {
                self.receive(lane, &mut count, Some(&mut active))?;
            }
            if looked.elapsed() < LOOK {
                continue;
            }
            looked = Instant::now();
            for client in active.iter().copied().collect::<Vec<_>>() {
                count.repeated += self.repeat(client);
                if self.timeout(client).is_none() {
                    active.remove(&client);
                }
            }
            match ask(&Request::Progress)? {
                Answer::Running => {}
                Answer::Ended(mut ended) => {
                    ended.repeated += count.repeated;
                    return Ok(Run { ended, cpu_ns: thread_cpu().saturating_sub(cpu).as_nanos() as u64 });
                }
                other => bail!("unexpected answer of the server process: {other:?}"),
            }
        }
    }

    /// Draws the address of a client's next operation.
    fn place(&mut self, client: u32) -> u64 {
        let places = MEMORY_BYTES / self.size;
        match self.verb {
            Verb::Read => self.to_read.pop().unwrap_or_else(|| self.random.u64(..places) * self.size),
            Verb::Call => {
                let len = self.size.max(self.reply_size.unwrap_or(0));
                self.random.u64(..MEMORY_BYTES / len) * len
            }
            Verb::Write => {
                let address = u64::from(client) % places * self.size;
                self.written.insert(address);
                address
            }
        }
    }

    /// Returns the bytes that the server has at an address: a write stores the complement of the initial bytes.
    fn expected(&self, address: u64) -> Vec<u8> {
        let flip = if self.written.contains(&address) { 0xff } else { 0 };
        (address..address + self.size).map(|address| byte_at(address) ^ flip).collect()
    }

    /// Returns a call: the address of the answer, if it has a length of its own, and further bytes.
    fn call(&self, address: u64) -> Vec<u8> {
        let mut bytes = self.expected(address);
        if self.reply_size.is_some() {
            bytes[..ADDRESS_BYTES as usize].copy_from_slice(&address.to_le_bytes());
        }
        bytes
    }

    /// Returns the answer to a call.
    fn answer(&self, address: u64) -> Vec<u8> {
        match self.reply_size {
            Some(len) => (address..address + len).map(byte_at).collect(),
            None => reply(&self.call(address)),
        }
    }

    fn begin(&mut self, client: u32) {
        let address = self.place(client);
        let size = self.size as usize;
        let bytes = if self.verb == Verb::Call { self.call(address) } else { self.expected(address) };
        // Each client has its own place for the bytes that it reads, as long as there are enough places.
        let local = Local { key: RKEY, address: u64::from(client) * self.size % (MEMORY_BYTES - self.size) };
        let state = &mut self.clients[client as usize];
        state.under_way = Some((address, Instant::now()));
        match &mut state.requester {
            Kind::Stateless(requester) => {
                let work = match self.verb {
                    Verb::Read => Work::Read { address, len: size },
                    Verb::Write => Work::Write { address, bytes },
                    Verb::Call => Work::Call { bytes },
                };
                requester.post(0, work).expect("a client has one operation at a time");
            }
            Kind::Stateful(qp) => {
                let remote = Remote { rkey: RKEY, address };
                let operation = match self.verb {
                    Verb::Read => Operation::Read { local, remote, len: size as u32 },
                    Verb::Write => Operation::Write { source: Source::Inline(bytes), remote, imm: None },
                    Verb::Call => Operation::Send { bytes, imm: None },
                };
                let request = QpRequest { id: local.address, operation, signalled: true, solicited: true };
                qp.post(request).expect("a client has one operation at a time");
            }
        }
    }

    /// Sends the packets of a client.
    fn transmit(&mut self, client: u32) -> u64 {
        let now_ns = self.clock.now_ns();
        let Client { requester, lane, .. } = &mut self.clients[client as usize];
        let mut sent = 0;
        loop {
            let len = match requester {
                Kind::Stateless(requester) => requester.poll_transmit(now_ns, &self.server, &mut self.packet),
                Kind::Stateful(qp) => qp.poll_transmit(now_ns, &self.memory, &mut self.packet),
            };
            let Some(len) = len else { return sent };
            self.lanes[*lane].send(&mut self.packet[..len]);
            sent += 1;
        }
    }

    /// Retransmits packets whose answers are late. Returns their number.
    fn repeat(&mut self, client: u32) -> u64 {
        let now_ns = self.clock.now_ns();
        let due_ns = self.timeout(client);
        if due_ns.is_none_or(|due_ns| due_ns > now_ns) {
            return 0;
        }
        if let Kind::Stateful(qp) = &mut self.clients[client as usize].requester {
            qp.handle_timeout(now_ns);
        }
        self.transmit(client)
    }

    /// Returns the time at which a client may have a packet to send.
    fn timeout(&mut self, client: u32) -> Option<u64> {
        match &mut self.clients[client as usize].requester {
            Kind::Stateless(requester) => requester.poll_timeout(),
            Kind::Stateful(qp) => qp.poll_timeout(),
        }
    }

    /// Handles the packets of a lane. Returns the number of operations that have ended. Adds the clients that still
    /// have packets to send to `active`.
    fn receive(
        &mut self,
        lane: usize,
        run: &mut Count,
        mut active: Option<&mut BTreeSet<u32>>,
    ) -> anyhow::Result<u64> {
        let (mut ended, mut packet) = (0, [0; PACKET_BYTES]);
        loop {
            let len = match self.lanes[lane].socket.recv(&mut packet) {
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(ended),
                Err(error) => return Err(error).context("cannot receive"),
            };
            let Ok(body) = self.lanes[lane].inwards.open(&packet[..len]) else { continue };
            // The number stands at the same place in the packets of both modes.
            let client = u32::from_be_bytes([0, body[5], body[6], body[7]]);
            let Some(state) = self.clients.get_mut(client as usize) else { continue };
            let now_ns = self.clock.now_ns();
            match &mut state.requester {
                Kind::Stateless(requester) => {
                    requester.handle_packet(now_ns, &mut self.server, body, &self.memory);
                }
                Kind::Stateful(qp) => {
                    if let Ok(packet) = Packet::parse(body) {
                        qp.handle_packet(now_ns, &packet, &self.memory);
                    }
                }
            }
            self.transmit(client);
            match &mut active {
                None => ended += self.finish(client, run)?,
                Some(active) if self.timeout(client).is_some() => {
                    active.insert(client);
                }
                Some(_) => {}
            }
        }
    }

    /// Checks and counts the operation of a client if it has ended.
    fn finish(&mut self, client: u32, run: &mut Count) -> anyhow::Result<u64> {
        let size = self.size as usize;
        let state = &mut self.clients[client as usize];
        let bytes = match &mut state.requester {
            Kind::Stateless(requester) => match requester.poll_done().map(|done| done.outcome) {
                None => return Ok(0),
                Some(Outcome::Success(bytes)) => bytes,
                // Repeating an operation of this benchmark is harmless.
                Some(outcome @ (Outcome::MaybeDone | Outcome::Busy)) => {
                    run.maybe_done += u64::from(outcome == Outcome::MaybeDone);
                    self.begin(client);
                    self.transmit(client);
                    return Ok(0);
                }
                Some(outcome) => bail!("an operation failed: {outcome:?}"),
            },
            Kind::Stateful(qp) => loop {
                match qp.poll_event() {
                    None => return Ok(0),
                    // The answer to a call ends it.
                    Some(Event::Completed { status: Status::Success, .. }) if self.verb == Verb::Call => {}
                    Some(Event::Completed { id, status: Status::Success, .. }) => {
                        break self.memory.with(|memory| memory[id as usize..][..size].to_vec());
                    }
                    Some(Event::Received { bytes, .. }) => {
                        qp.add_receives(1);
                        break bytes;
                    }
                    Some(event) => bail!("a connection failed: {event:?}"),
                }
            },
        };
        let Some((address, begun)) = state.under_way.take() else { return Ok(0) };
        run.latency.saturating_record(begun.elapsed().as_nanos() as u64);
        run.errors += u64::from(match self.verb {
            Verb::Read => bytes != self.expected(address),
            Verb::Write => false,
            Verb::Call => bytes != self.answer(address),
        });
        Ok(1)
    }

    /// Reads all places that clients have written, and looks at the clients' memory, of which the server has written
    /// from `min` to `max` places. Returns the number of places with wrong bytes.
    pub fn verify(
        &mut self,
        [min, max]: [u64; 2],
        check: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<u64> {
        self.to_read = self.written.iter().copied().collect();
        if max > 0 {
            return Ok(self.memory.with(|memory| wrong_places(memory, self.size as usize, min..=max)));
        }
        self.verb = Verb::Read;
        let count = self.to_read.len() as u64;
        Ok(self.run(count, check)?.ended.errors)
    }
}

/// Returns the number of places with wrong bytes, which neither the server has written nor the client; or by how many
/// places the server has written more or less than expected.
fn wrong_places(memory: &[u8], size: usize, expected: RangeInclusive<u64>) -> u64 {
    let (mut written, mut wrong) = (0, 0);
    for (place, bytes) in memory.chunks_exact(size).enumerate() {
        let address = (place * size) as u64;
        let initial = (address..).map(|address| !byte_at(address));
        match bytes {
            bytes if initial.clone().zip(bytes).all(|(initial, byte)| initial == *byte) => {}
            bytes if initial.zip(bytes).all(|(initial, byte)| initial == !*byte) => written += 1,
            _ => wrong += 1,
        }
    }
    wrong + expected.start().saturating_sub(written) + written.saturating_sub(*expected.end())
}

impl Lane {
    /// Sends a packet. A packet that the kernel drops is retransmitted later.
    fn send(&self, packet: &mut [u8]) {
        self.outwards.seal(0, packet);
        let _ = self.socket.send_to(packet, at(self.server));
    }
}
