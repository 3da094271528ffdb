//! The server process: one thread that serves packets, and one that answers the generator's requests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, BufRead, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use halite_rnic::stateless::{AnswerError, EFFECT_LIFE_NS, Responder, Rights};
use halite_rnic::wire::{Flow, Packet, Psn, Qpn};
use halite_rnic::{Event, Operation, QueuePair, Request as QpRequest};
use rustix::rand::{GetRandomFlags, getrandom};

use super::initiator::{Job, Range};
use super::transport::{Clock, Own, PACKET_BYTES, at, config, open};
use super::turns::Turns;
use super::{
    Answer, Initiator, MEMORY_BYTES, Mode, RKEY, Request, Use, Workload, address_in, byte_at, reply,
};
use crate::output;
use crate::perf::cores::{Cores, Pinning, pin};
use crate::perf::measure::thread_cpu;
use crate::signals;
use crate::threads;

/// Arguments of `halite perf-fan-in-server`, which `halite perf fan_in` starts.
#[derive(Args, Debug)]
pub struct FanInArgs {
    /// Pid of the parent; this process is killed when the parent ends
    #[arg(long)]
    pub parent: u32,
    /// How the server knows its clients
    #[arg(long, value_enum)]
    pub mode: Mode,
    /// Side that starts the operations
    #[arg(long, value_enum)]
    pub initiator: Initiator,
    /// Length of the answers to calls [default: that of the call]
    #[arg(long)]
    pub reply_size: Option<u64>,
}

/// Interval between two checks for packets to retransmit.
const LOOK: Duration = Duration::from_millis(1);
/// Time after which a request has no effect any more.
const EFFECT_LIFE: Duration = Duration::from_nanos(EFFECT_LIFE_NS);

/// Common state of both threads.
struct Shared {
    mode: Mode,
    peers: Peers,
    /// The admitted clients, for operations of the server.
    clients: Vec<Range>,
    job: Option<Job>,
    /// Number of order packets that were sent before the run.
    orders_before: u64,
    cpu: Duration,
}

pub enum Peers {
    Stateless(Box<Responder>),
    Stateful(BTreeMap<u32, Connection>),
}

pub struct Connection {
    pub qp: QueuePair,
    port: u16,
}

/// Runs the server until its standard input ends.
pub fn serve(args: &FanInArgs) -> anyhow::Result<()> {
    signals::die_with(args.parent)?;
    let cores = Cores::available(Pinning::Apart).context("cannot list the cores")?;
    let socket = open().context("cannot open a UDP socket")?;
    let peers = match args.mode {
        Mode::Stateful | Mode::Grouped => Peers::Stateful(BTreeMap::new()),
        Mode::Stateless => {
            let mut secret = [0; 32];
            getrandom(&mut secret, GetRandomFlags::empty()).context("cannot get random bytes")?;
            Peers::Stateless(Box::new(Responder::new(1, secret)))
        }
    };
    let shared = Arc::new(Mutex::new(Shared {
        mode: args.mode,
        peers,
        clients: Vec::new(),
        job: None,
        orders_before: 0,
        cpu: Duration::ZERO,
    }));
    // Without connection state, only the record of effects needs a look while no packet arrives.
    let look = match (args.mode, args.initiator) {
        (Mode::Stateless, Initiator::Client) => EFFECT_LIFE,
        _ => LOOK,
    };
    socket.set_read_timeout(Some(look)).context("cannot set a timeout")?;
    let port = socket.local_addr()?.port();
    let (state, own, reply_size) = (shared.clone(), socket.try_clone()?, args.reply_size);
    threads::spawn("halite-packets", move || {
        // The measurement goes on without pinning.
        let _ = pin(cores.of_server(0));
        // The thread ends with the process.
        serve_packets(&own, port, reply_size, &state)
    })?;
    output::print_json(&Answer::Listening { port })?;
    for line in io::stdin().lock().lines() {
        let request = serde_json::from_str(&line?).context("cannot read the request")?;
        let answer = handle(request, &mut lock(&shared));
        output::print_json(&answer.unwrap_or_else(|error| Answer::Failed(format!("{error:#}"))))?;
    }
    Ok(())
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn handle(request: Request, shared: &mut Shared) -> anyhow::Result<Answer> {
    match request {
        Request::Admit { port, first, count } => {
            let numbers = first..first + count;
            shared.clients.push(Range { first, count, port });
            let keys = match &mut shared.peers {
                Peers::Stateless(responder) => numbers
                    .map(|number| responder.grant(at(port), Qpn::new(number), RKEY, Rights::ReadWrite).key)
                    .collect(),
                Peers::Stateful(peers) => {
                    peers.extend(numbers.map(|number| (number, Connection { qp: connected(number), port })));
                    Vec::new()
                }
            };
            Ok(Answer::Admitted { keys })
        }
        Request::Start { operations, size, verb, workload } => {
            let clients = shared.clients.iter().map(|range| range.count).sum();
            let turns = Turns::new(clients, shared.mode == Mode::Grouped, workload == Workload::Rounds);
            shared.orders_before = shared.orders_sent();
            shared.job = Some(Job::new(operations, size, verb, turns, shared.job.take()));
            Ok(Answer::Started)
        }
        Request::Progress => {
            let sent = shared.orders_sent() - shared.orders_before;
            shared.job.as_ref().map(|job| job.answer(sent)).context("no run was started")
        }
        Request::Use => {
            let status =
                std::fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
            let rss_kib = status
                .lines()
                .find_map(|line| line.strip_prefix("VmRSS:"))
                .and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
                .context("/proc/self/status has no line VmRSS")?;
            Ok(Answer::Use(Use {
                cpu_ns: shared.cpu.as_nanos() as u64,
                heap_bytes: halite_mem::heap::used_bytes(),
                rss_bytes: 1024 * rss_kib,
            }))
        }
    }
}

/// Creates the server's end of a connection; both ends have the same number and count from 0.
fn connected(number: u32) -> QueuePair {
    let mut qp = QueuePair::new(config(), Qpn::new(number), Psn::new(0));
    qp.ready_to_receive(Qpn::new(number), Psn::new(0));
    qp.ready_to_send();
    qp.add_receives(1);
    qp
}

fn serve_packets(
    socket: &UdpSocket,
    port: u16,
    reply_size: Option<u64>,
    shared: &Mutex<Shared>,
) -> io::Result<()> {
    let clock = Clock::start();
    let memory = Own::new((0..MEMORY_BYTES).map(byte_at).collect());
    let mut flows = Flows { port, known: BTreeMap::new() };
    let (mut packet, mut answer) = ([0; PACKET_BYTES], [0; PACKET_BYTES]);
    let (mut looked, mut answering) = (Instant::now(), BTreeSet::new());
    let mut idle: Option<Duration> = None;
    // Calls in stateless mode: the record may have no room for a long answer.
    let mut unanswered = VecDeque::new();
    loop {
        // No packet is expected before the next time slice.
        let received = match idle.take().map(thread::sleep) {
            Some(()) => Err(ErrorKind::TimedOut.into()),
            None => socket.recv_from(&mut packet),
        };
        let received = match received {
            Ok(received) => Some(received),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
            Err(error) => return Err(error),
        };
        let mut shared = lock(shared);
        shared.cpu = thread_cpu();
        let Shared { peers, clients, job, .. } = &mut *shared;
        let now_ns = clock.now_ns();
        if let Some((len, from)) = received
            && let Ok(body) = flows.of(from)[0].open(&packet[..len])
        {
            match peers {
                Peers::Stateless(responder) => {
                    if let Some(len) = responder.handle_packet(now_ns, from, body, &memory, &mut answer) {
                        flows.of(from)[1].seal(0, &mut answer[..len]);
                        send(socket, &answer[..len], from);
                    }
                    while let Some(message) = responder.poll_message() {
                        unanswered.push_back((message.id, answer_to(&message.bytes, reply_size, &memory)));
                    }
                    while let Some((id, bytes)) = unanswered.front() {
                        let answered = responder.answer(now_ns, *id, bytes, &mut answer);
                        if answered == Err(AnswerError::Busy) {
                            break;
                        }
                        unanswered.pop_front();
                        if let Ok((to, len)) = answered {
                            flows.of(to)[1].seal(0, &mut answer[..len]);
                            send(socket, &answer[..len], to);
                        }
                    }
                }
                Peers::Stateful(peers) => {
                    let Ok(packet) = Packet::parse(body) else { continue };
                    let Some(peer) =
                        peers.get_mut(&packet.dest_qp.value()).filter(|peer| peer.port == from.port())
                    else {
                        continue;
                    };
                    peer.qp.handle_packet(now_ns, &packet, &memory);
                    if job.is_none() {
                        peer.answer_calls(reply_size, &memory);
                    }
                    peer.transmit(now_ns, &memory, &mut answer, &flows.of(from)[1], socket);
                    if job.is_none() && peer.qp.posted() > 0 {
                        answering.insert(packet.dest_qp.value());
                    }
                }
            }
        }
        let is_due = looked.elapsed() >= LOOK;
        if is_due {
            looked = Instant::now();
            if let Peers::Stateless(responder) = peers {
                responder.sweep(now_ns);
            }
        }
        let Some(job) = job else {
            if let Peers::Stateful(peers) = peers
                && is_due
            {
                // Answers to calls may be lost.
                answering.retain(|client| {
                    let Some(peer) = peers.get_mut(client) else { return false };
                    peer.repeat(now_ns, &memory, &mut answer, &mut flows, socket);
                    peer.qp.posted() > 0
                });
            }
            continue;
        };
        let started = job.drive(now_ns, peers, clients, &memory);
        idle = job.idle();
        match peers {
            Peers::Stateless(responder) => {
                while let Some((to, len)) = responder.poll_transmit(now_ns, &mut answer) {
                    flows.of(to)[1].seal(0, &mut answer[..len]);
                    send(socket, &answer[..len], to);
                }
            }
            Peers::Stateful(peers) => {
                let late = if is_due { job.active() } else { Vec::new() };
                for client in started.into_iter().chain(late) {
                    let Some(peer) = peers.get_mut(&client) else { continue };
                    peer.repeat(now_ns, &memory, &mut answer, &mut flows, socket);
                }
            }
        }
    }
}

/// The checksums of packets from and to each port of the generator.
struct Flows {
    port: u16,
    known: BTreeMap<SocketAddr, [Flow; 2]>,
}

impl Flows {
    fn of(&mut self, other: SocketAddr) -> &[Flow; 2] {
        let own = at(self.port);
        self.known.entry(other).or_insert_with(|| [Flow::new(other, own), Flow::new(own, other)])
    }
}

impl Connection {
    /// Posts the answers to calls that have arrived.
    fn answer_calls(&mut self, reply_size: Option<u64>, memory: &Own) {
        while let Some(event) = self.qp.poll_event() {
            let Event::Received { bytes, .. } = event else { continue };
            self.qp.add_receives(1);
            let operation = Operation::Send { bytes: answer_to(&bytes, reply_size, memory), imm: None };
            let request = QpRequest { id: 0, operation, signalled: false, solicited: true };
            self.qp.post(request).expect("a client has one call at a time");
        }
    }

    /// Retransmits packets that are due, and sends new ones.
    fn repeat(
        &mut self,
        now_ns: u64,
        memory: &Own,
        buffer: &mut [u8],
        flows: &mut Flows,
        socket: &UdpSocket,
    ) {
        if self.qp.poll_timeout().is_some_and(|due_ns| due_ns <= now_ns) {
            self.qp.handle_timeout(now_ns);
        }
        self.transmit(now_ns, memory, buffer, &flows.of(at(self.port))[1], socket);
    }

    /// Sends the packets of the queue pair.
    fn transmit(
        &mut self,
        now_ns: u64,
        memory: &Own,
        buffer: &mut [u8],
        outwards: &Flow,
        socket: &UdpSocket,
    ) {
        while let Some(len) = self.qp.poll_transmit(now_ns, memory, buffer) {
            outwards.seal(0, &mut buffer[..len]);
            send(socket, &buffer[..len], at(self.port));
        }
    }
}

impl Shared {
    /// Returns the number of packets that began orders, or asked about them again.
    fn orders_sent(&self) -> u64 {
        match &self.peers {
            Peers::Stateless(responder) => responder.counters().orders_sent,
            Peers::Stateful(_) => 0,
        }
    }
}

/// Returns the answer to a call: `reply_size` bytes of the memory that the call names, if given; otherwise as many bytes as
/// the call has.
fn answer_to(call: &[u8], reply_size: Option<u64>, memory: &Own) -> Vec<u8> {
    let Some(len) = reply_size else { return reply(call) };
    let bytes = |address: u64| {
        let range = address as usize..address.checked_add(len)? as usize;
        memory.with(|memory| memory.get(range).map(<[u8]>::to_vec))
    };
    address_in(call).and_then(bytes).unwrap_or_default()
}

/// Sends a datagram. Clients repeat requests whose datagrams are lost.
fn send(socket: &UdpSocket, packet: &[u8], to: SocketAddr) {
    let _ = socket.send_to(packet, to);
}
