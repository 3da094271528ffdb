//! Operations that the server starts: reads or writes of memory of clients, one of a client at a time.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use halite_rnic::stateless::{EFFECT_LIFE_NS, Order, OrderKind, OrderOutcome, Rights, Target};
use halite_rnic::wire::Qpn;
use halite_rnic::{Event, Local, Operation, Remote, Request as QpRequest, Source, Status};
use hdrhistogram::Histogram;

use super::server::Peers;
use super::transport::{Own, at};
use super::turns::Turns;
use super::{Answer, Ended, IN_FLIGHT, Latency, MEMORY_BYTES, PATIENCE, RKEY, Verb, byte_at, latencies};

/// Clients with consecutive numbers that share one port.
pub struct Range {
    pub first: u32,
    pub count: u32,
    pub port: u16,
}

/// A run of operations that the server starts.
pub struct Job {
    size: u64,
    verb: Verb,
    operations: u64,
    begun: u64,
    ended: u64,
    begin: Instant,
    progressed: Instant,
    took: Option<Duration>,
    /// Operations in progress, by client.
    under_way: HashMap<u32, UnderWay>,
    /// Clients by the id of their order; used only in stateless mode.
    clients: HashMap<u64, u32>,
    /// Places in the server's memory for the bytes of one operation each.
    places: Vec<u64>,
    /// Places of operations without a certain outcome, with the time of their end. A late packet may still write to them
    /// for [`EFFECT_LIFE_NS`].
    resting: VecDeque<(Instant, u64)>,
    written: Written,
    latency: Histogram<u64>,
    maybe_done: u64,
    errors: u64,
    failure: Option<String>,
    turns: Turns,
    random: fastrand::Rng,
}

/// Places in the clients' memory that the server has written.
#[derive(Clone, Default)]
pub struct Written {
    surely: BTreeSet<u64>,
    /// Places of operations whose outcome is unknown.
    maybe: BTreeSet<u64>,
}

struct UnderWay {
    /// Addresses in the server's memory and in the client's.
    local: u64,
    remote: u64,
    begun: Instant,
}

impl Job {
    /// Creates a run. `before` is the run before it on the same memory.
    pub fn new(operations: u64, size: u64, verb: Verb, turns: Turns, before: Option<Job>) -> Job {
        let now = Instant::now();
        Job {
            size,
            verb,
            operations,
            begun: 0,
            ended: 0,
            begin: now,
            progressed: now,
            took: None,
            under_way: HashMap::new(),
            clients: HashMap::new(),
            places: (0..IN_FLIGHT as u64).map(|place| place * size).collect(),
            resting: VecDeque::new(),
            written: before.map(|job| job.written).unwrap_or_default(),
            latency: latencies(),
            maybe_done: 0,
            errors: 0,
            failure: None,
            turns,
            random: fastrand::Rng::with_seed(2),
        }
    }

    /// Returns the state of the run. `sent` is the number of packets that began orders or asked about them again.
    pub fn answer(&self, sent: u64) -> Answer {
        match (&self.failure, self.took) {
            (Some(why), _) => Answer::Failed(why.clone()),
            (None, None) => Answer::Running,
            (None, Some(took)) => Answer::Ended(Ended {
                took,
                latency: Latency::of(&self.latency),
                repeated: sent.saturating_sub(self.begun),
                maybe_done: self.maybe_done,
                errors: self.errors,
                written: [
                    self.written.surely.len() as u64,
                    self.written.surely.union(&self.written.maybe).count() as u64,
                ],
            }),
        }
    }

    /// Ends operations that have completed, and starts new ones. Returns the clients whose queue pairs may have packets
    /// to send.
    pub fn drive(&mut self, now_ns: u64, peers: &mut Peers, clients: &[Range], memory: &Own) -> Vec<u32> {
        if self.took.is_some() || self.failure.is_some() {
            return Vec::new();
        }
        self.end(peers, memory);
        let started = self.start(now_ns, peers, clients, memory);
        if self.ended == self.operations {
            self.took = Some(self.begin.elapsed());
        } else if self.progressed.elapsed() > PATIENCE {
            self.failure = Some(format!("no client has answered for {} s", PATIENCE.as_secs()));
        }
        started
    }

    /// Returns the time until an operation may begin; `None` if packets of clients are expected earlier.
    pub fn idle(&self) -> Option<Duration> {
        let is_idle = self.took.is_none() && self.failure.is_none() && self.under_way.is_empty();
        if is_idle { self.turns.until_next() } else { None }
    }

    /// Returns the clients with an operation in progress.
    pub fn active(&self) -> Vec<u32> {
        self.under_way.keys().copied().collect()
    }

    fn end(&mut self, peers: &mut Peers, memory: &Own) {
        match peers {
            Peers::Stateless(responder) => {
                while let Some(done) = responder.poll_order() {
                    let Some(client) = self.clients.remove(&done.id) else { continue };
                    self.finish(client, done.outcome, memory);
                }
            }
            Peers::Stateful(peers) => {
                for client in self.active() {
                    let Some(event) = peers.get_mut(&client).and_then(|peer| peer.qp.poll_event()) else {
                        continue;
                    };
                    let outcome = match event {
                        Event::Completed { status: Status::Success, .. } => OrderOutcome::Success,
                        _ => OrderOutcome::Refused,
                    };
                    self.finish(client, outcome, memory);
                }
            }
        }
    }

    fn finish(&mut self, client: u32, outcome: OrderOutcome, memory: &Own) {
        let Some(UnderWay { local, remote, begun }) = self.under_way.remove(&client) else { return };
        self.progressed = Instant::now();
        match outcome {
            OrderOutcome::Success => {
                self.ended += 1;
                self.latency.saturating_record(begun.elapsed().as_nanos() as u64);
                if self.verb == Verb::Write {
                    self.written.surely.insert(remote);
                    return;
                }
                let expected = (remote..remote + self.size).map(|address| !byte_at(address));
                let is_right = memory.with(|memory| {
                    memory[local as usize..][..self.size as usize].iter().copied().eq(expected)
                });
                self.errors += u64::from(!is_right);
                self.places.push(local);
            }
            OrderOutcome::MaybeDone => {
                self.maybe_done += 1;
                self.begun -= 1;
                if self.verb != Verb::Write {
                    self.resting.push_back((self.progressed, local));
                }
                self.written.maybe.insert(remote);
                self.turns.take_back(client);
            }
            OrderOutcome::Refused => self.failure = Some(format!("client {client} refused an operation")),
        }
    }

    fn start(&mut self, now_ns: u64, peers: &mut Peers, clients: &[Range], memory: &Own) -> Vec<u32> {
        let mut started = Vec::new();
        while let Some((ended, local)) = self.resting.front()
            && ended.elapsed() > Duration::from_nanos(2 * EFFECT_LIFE_NS)
        {
            self.places.push(*local);
            self.resting.pop_front();
        }
        let needs_place = self.verb != Verb::Write;
        while self.begun < self.operations && self.under_way.len() < IN_FLIGHT {
            if needs_place && self.places.is_empty() {
                break;
            }
            let is_busy = |client| self.under_way.contains_key(&client);
            let Some(client) = self.turns.next(self.under_way.len(), is_busy) else { break };
            let remote = self.random.u64(..MEMORY_BYTES / self.size) * self.size;
            // All clients share one memory, so each write of a place has the same bytes.
            let local = if needs_place { self.places.pop().expect("there is one") } else { remote };
            if needs_place {
                memory.with(|memory| memory[local as usize..][..self.size as usize].fill(0));
            }
            let len = self.size as u32;
            match peers {
                Peers::Stateless(responder) => {
                    let target = Target {
                        to: at(port_of(client, clients)),
                        qpn: Qpn::new(client),
                        rkey: RKEY,
                        rights: Rights::ReadWrite,
                    };
                    let kind = match self.verb {
                        Verb::Write => OrderKind::Write,
                        Verb::Read | Verb::Call => OrderKind::Read,
                    };
                    let order = Order { kind, local, remote, remote_key: RKEY, len };
                    let id =
                        responder.order(now_ns, target, order, memory).expect("few orders are under way");
                    self.clients.insert(id, client);
                }
                Peers::Stateful(peers) => {
                    let peer = peers.get_mut(&client).expect("the client was admitted");
                    let (local, remote) =
                        (Local { key: RKEY, address: local }, Remote { rkey: RKEY, address: remote });
                    let operation = match self.verb {
                        Verb::Write => {
                            Operation::Write { source: Source::Registered { local, len }, remote, imm: None }
                        }
                        Verb::Read | Verb::Call => Operation::Read { local, remote, len },
                    };
                    let request = QpRequest { id: 0, operation, signalled: true, solicited: true };
                    peer.qp.post(request).expect("a client has one operation at a time");
                }
            }
            self.under_way.insert(client, UnderWay { local, remote, begun: Instant::now() });
            self.begun += 1;
            started.push(client);
        }
        started
    }
}

/// Returns the port of a client.
fn port_of(client: u32, clients: &[Range]) -> u16 {
    let is_in = |range: &&Range| (range.first..range.first + range.count).contains(&client);
    clients.iter().find(is_in).expect("the client was admitted").port
}
