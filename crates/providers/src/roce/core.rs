//! The shared state of one roce fabric, and the functions that move its packets: posts, polls and timers.
//!
//! ```text
//!   poll ── receive ── packets by queue pair ── handled, answered ──┐
//!     ├──── at intervals: handshakes and hang-ups ──────────────────┼──► events
//!     └──── when due: timers of the queue pairs ────────────────────┘
//!   post ── queue of the lane ── packets within the limits are sent
//! ```
//!
//! If the configuration asks for [`receivers`](super::receivers), these threads run the first line of this diagram, and
//! the poller runs the rest.
//!
//! Lock order: the batch, which only the poller locks; the receive lock of a receiver; the control state; the members
//! of a socket; the lanes of one connection, in ascending order; the events; then any one other lock. A thread that
//! holds a lock calls no code outside the fabric.

mod ending;
mod handshakes;
mod stateless;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use halite_fabric::{
    ConnectFailure, ConnectTrouble, Event, Lane as FabricLane, PeerId, PostCause, WorkRequest,
};
use halite_rnic::Cause;
use halite_rnic::wire::bth::Bth;
use halite_rnic::wire::{Headers, Packet};
use quinn_udp::RecvMeta;

use self::ending::end_cause;
use self::stateless::Run;
use super::bell::Bell;
use super::connection::{Connection, Lane, LaneContext, Outcome};
use super::control::Control;
use super::events::Events;
use super::memory::Registered;
use super::paths::Paths;
use super::port::{Batch, HeldAcks, Port, canonical};
use super::ports::Ports;
use super::receivers::Receiver;
use super::sharing::Sharing;
use super::stamps::Clock;
use super::{Dropped, POISONED, RoceConfig, lock, read};

/// Interval at which a busy poller checks for control messages, in ns.
const CONTROL_NS: u64 = 2_000_000;
/// Number of consecutive full batches after which due timers run and control messages are read anyway. Before that,
/// they wait, because the packet that would stop the timer may still be in the socket.
const BATCHES_BEFORE_TIMERS: u32 = 16;
/// Maximum delay of timers, in ns, while packets wait in the sockets of receivers. The receivers may themselves wait
/// for a core.
const TIMERS_LATE_NS: u64 = 2_000_000;
/// Deadline if no timer is set.
const NEVER: u64 = u64::MAX;

/// State of a fabric that all threads share; see the header of this file.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) config: RoceConfig,
    pub(super) ports: Ports,
    pub(super) bell: Bell,
    pub(super) registered: Registered,
    table: RwLock<Table>,
    batch: Mutex<Batch>,
    /// Threads that receive in place of the poller; empty by default.
    pub(super) receivers: Vec<Receiver>,
    pub(super) has_receiver_panicked: AtomicBool,
    pub(super) control: Mutex<Control>,
    /// Time of the last check of the control sockets, in ns; 0 requests a check in the next poll.
    control_checked_ns: AtomicU64,
    /// True if the last check consumed all input, so that new input causes an edge.
    control_is_empty: AtomicBool,
    pub(super) events: Events,
    opened: Instant,
    /// Next deadline of the queue pairs, in ns.
    due_ns: AtomicU64,
    /// Next deadline of a handshake, in ns.
    handshake_due_ns: AtomicU64,
    /// Latest end of the last sleep that a thread has started, in ns.
    sleep_end_ns: AtomicU64,
    /// The count that [`Fabric::traffic`](halite_fabric::Fabric::traffic) returns.
    traffic: AtomicU64,
    dropped: DroppedCounts,
    paths: Mutex<Paths>,
    /// The reasons why the last connections ended, until [`Core::take_end_reason`] removes them.
    end_reasons: Mutex<BTreeMap<PeerId, String>>,
}

/// Result of one receive from a socket.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Received {
    /// True if further packets may wait in the socket.
    pub(super) is_more: bool,
    /// True if the caller must wake sleeping threads.
    pub(super) rings: bool,
    /// True if a packet came from a peer.
    is_from_peer: bool,
}

/// The connections, by queue pair and by peer.
#[derive(Debug, Default)]
struct Table {
    /// The connections by queue pair number, each with the index of the lane to which the queue pair belongs.
    lanes: HashMap<u32, (Arc<Connection>, usize)>,
    /// The connections with stateless lanes, by the address and the queue pair number of the peer's requester.
    requesters: HashMap<(SocketAddr, u32), (Arc<Connection>, usize)>,
    peers: BTreeMap<PeerId, Arc<Connection>>,
    /// The last assigned peer id.
    peer_last: u32,
}

/// Counters of [`Dropped`].
#[derive(Debug, Default)]
struct DroppedCounts {
    strangers: AtomicU64,
    refused: AtomicU64,
    malformed: AtomicU64,
}

impl Core {
    pub(super) fn open(config: RoceConfig) -> io::Result<Core> {
        let ports = Ports::open(&config)?;
        let control = Control::new(&config.dir, &config.name, config.hosts.as_ref())?;
        Ok(Core {
            bell: Bell::new(ports.watched().0, control.epoll().as_fd(), config.receivers > 0)?,
            ports,
            registered: Registered::default(),
            table: RwLock::default(),
            batch: Mutex::new(Batch::new()),
            has_receiver_panicked: AtomicBool::new(false),
            receivers: (0..config.receivers).map(|_| Receiver::default()).collect(),
            control: Mutex::new(control),
            control_checked_ns: AtomicU64::new(0),
            control_is_empty: AtomicBool::new(false),
            events: Events::default(),
            opened: Instant::now(),
            end_reasons: Mutex::default(),
            due_ns: AtomicU64::new(NEVER),
            handshake_due_ns: AtomicU64::new(NEVER),
            sleep_end_ns: AtomicU64::new(0),
            traffic: AtomicU64::new(0),
            dropped: DroppedCounts::default(),
            paths: Mutex::default(),
            config,
        })
    }

    /// Returns the time since the fabric was opened, in ns; never 0.
    pub(super) fn now_ns(&self) -> u64 {
        self.opened.elapsed().as_nanos() as u64 + 1
    }

    fn context(&self, now_ns: u64) -> LaneContext<'_> {
        LaneContext { now_ns, registered: &self.registered }
    }

    pub(super) fn peer(&self, peer: PeerId) -> Option<Arc<Connection>> {
        read(&self.table).peers.get(&peer).cloned()
    }

    fn peers(&self) -> Vec<Arc<Connection>> {
        read(&self.table).peers.values().cloned().collect()
    }

    pub(super) fn has_peers(&self) -> bool {
        !read(&self.table).peers.is_empty()
    }

    /// Returns true if no posted request is outstanding.
    pub(super) fn is_idle(&self) -> bool {
        self.peers().iter().all(|connection| connection.is_idle())
    }

    pub(super) fn traffic(&self) -> u64 {
        self.traffic.load(Relaxed)
    }

    /// Queues an event and wakes sleeping threads.
    pub(super) fn queue_and_wake(&self, event: Event) {
        self.events.lock().push(event);
        self.bell.wake();
    }

    pub(super) fn take_events(&self, events: &mut Vec<Event>) {
        self.events.take(events);
    }

    /// Returns the TCP addresses and ports that other hosts may dial.
    pub(super) fn control_ports(&self) -> Vec<SocketAddr> {
        lock(&self.control).ports()
    }

    pub(super) fn report_connect_failure(&self, address: String, reason: String, trouble: ConnectTrouble) {
        self.queue_and_wake(Event::ConnectFailed(ConnectFailure { address, reason, trouble }));
    }
}

/// Counters.
impl Core {
    pub(super) fn dropped(&self) -> Dropped {
        let DroppedCounts { strangers, refused, malformed } = &self.dropped;
        let [strangers, refused, malformed] =
            [strangers, refused, malformed].map(|count| count.load(Relaxed));
        let (unsent, overflowed) = (self.ports.unsent(), self.ports.overflowed());
        Dropped { strangers, refused, malformed, unsent, overflowed }
    }
}

/// Posting.
impl Core {
    /// Posts requests to one lane of a peer. An error contains the number of requests posted, and the reason why the
    /// lane refuses the next request.
    pub(super) fn post(
        &self,
        peer: PeerId,
        lane: FabricLane,
        requests: &[WorkRequest<'_>],
    ) -> Result<(), (usize, PostCause)> {
        let connection = self.peer(peer).ok_or((0, PostCause::NotConnected))?;
        let flow = lane.flow;
        let mut lane = connection.lane(lane.order_among(connection.lane_count()));
        let refused = requests.iter().enumerate().find_map(|(posted, request)| {
            Some((posted, lane.post(&connection, &self.registered, flow, request).err()?))
        });
        let mut outcome = Outcome::default();
        self.advance_lane(&connection, &mut lane, self.now_ns(), false, &mut outcome);
        drop(lane);
        // This step may also have taken the events of a receiver, and that receiver then wakes no thread.
        if outcome.rings && !self.receivers.is_empty() {
            self.bell.on_received();
        }
        self.end_if_over(&connection, outcome.broken);
        refused.map_or(Ok(()), Err)
    }

    /// Sends the packets that the limits permit, as [`Lane::transmit`] does, and queues the lane's events.
    fn advance_lane(
        &self,
        connection: &Connection,
        lane: &mut Lane,
        now_ns: u64,
        holds_acks: bool,
        outcome: &mut Outcome,
    ) {
        let due = lane.transmit(connection, self.context(now_ns), holds_acks);
        lane.drain(connection, &self.events, outcome);
        if let Some(due) = due {
            self.add_deadline(due);
        }
    }
}

/// One poll.
impl Core {
    /// Receives and handles packets and control messages, and runs timers. Returns at once if another thread polls.
    pub(super) fn poll_once(&self) {
        let Ok(mut batch) = self.batch.try_lock() else { return };
        let now_ns = self.now_ns();
        self.send_held_acks(&mut batch, now_ns);
        let (is_more, runs_timers) = if self.receivers.is_empty() {
            let is_more = self.receive(&mut batch, now_ns);
            batch.on_polled(is_more);
            (is_more, batch.full_in_a_row().is_multiple_of(BATCHES_BEFORE_TIMERS))
        } else {
            // With receivers, waiting packets do not delay this thread's handshakes.
            let full_in_a_row = self.full_in_a_row_of_receivers();
            let is_late = now_ns >= self.due_ns.load(SeqCst).saturating_add(TIMERS_LATE_NS);
            assert!(!self.has_receiver_panicked.load(Relaxed), "{POISONED}");
            (false, full_in_a_row == 0 || full_in_a_row >= BATCHES_BEFORE_TIMERS || is_late)
        };
        let checked_ns = self.control_checked_ns.load(Relaxed);
        // Checks the control sockets at a sleeper's request even if packets wait. Unknown senders may have sent these
        // packets, and the sleeper has already consumed the edge of the control message.
        if checked_ns == 0 || (!is_more || runs_timers) && now_ns >= checked_ns + CONTROL_NS {
            self.control_checked_ns.store(now_ns, Relaxed);
            self.poll_control(&mut batch, now_ns);
            self.close_unused_ports();
        }
        if runs_timers {
            self.run_due_timers(now_ns);
        }
    }

    /// Sends the acknowledgements that the last poll held back, unless other packets have carried them since.
    fn send_held_acks(&self, batch: &mut Batch, now_ns: u64) {
        for (connection, index) in batch.held_acks.drain(..) {
            let mut outcome = Outcome::default();
            let mut lane = connection.lane(index);
            if lane.holds_ack(now_ns) {
                self.advance_lane(&connection, &mut lane, now_ns, false, &mut outcome);
            }
            drop(lane);
            if outcome.rings {
                self.bell.on_arrival();
            }
            self.end_if_over(&connection, outcome.broken);
        }
    }

    /// Requests a check of the control sockets by the last poll before a sleep, if arming consumed an edge of these
    /// sockets, or if they have unread input.
    pub(super) fn on_arm(&self, has_control_edge: bool) {
        if has_control_edge || !self.control_is_empty.load(Relaxed) {
            self.control_checked_ns.store(0, Relaxed);
        }
    }

    /// Receives once from each socket; returns true if more packets may wait.
    fn receive(&self, batch: &mut Batch, now_ns: u64) -> bool {
        let mut is_more = false;
        // A thread that has armed the bell is about to sleep.
        let mut held_acks = (!self.bell.is_armed()).then(|| std::mem::take(&mut batch.held_acks));
        self.ports.for_each_ready(|port| {
            let received = self.receive_from(port, batch, held_acks.as_mut(), now_ns);
            is_more |= received.is_more;
            if received.rings {
                self.bell.on_arrival();
            }
            if received.is_from_peer {
                // The lock of the batch excludes other writers; readers need no ordering.
                self.traffic.store(self.traffic.load(Relaxed).wrapping_add(1), Relaxed);
            }
        });
        if let Some(held_acks) = held_acks {
            batch.held_acks = held_acks;
        }
        is_more
    }

    /// Receives once from a socket. If `held_acks` is given, adds the lanes whose acknowledgements may wait to this
    /// list, instead of sending the acknowledgements.
    pub(super) fn receive_from(
        &self,
        port: &Port,
        batch: &mut Batch,
        mut held_acks: Option<&mut HeldAcks>,
        now_ns: u64,
    ) -> Received {
        let is_more = port.receive(batch);
        let empty = batch.empty();
        if empty > 0 {
            self.dropped.strangers.fetch_add(empty, Relaxed);
        }
        let clock = Clock::read(batch, || self.now_ns());
        let mut packets = batch.packets().peekable();
        let mut received = Received { is_more, ..Received::default() };
        while let Some((meta, packet)) = packets.next() {
            let mut runs = Vec::new();
            if Run::add(&mut runs, (meta, packet)) {
                while packets.next_if(|next| Run::add(&mut runs, *next)).is_some() {}
                self.handle_runs(&runs, now_ns, &clock, &mut received, held_acks.as_deref_mut());
                continue;
            }
            let qpn = dest_qp(packet);
            let Some((connection, index)) = qpn.and_then(|qpn| read(&self.table).lanes.get(&qpn).cloned())
            else {
                self.dropped.strangers.fetch_add(1, Relaxed);
                continue;
            };
            let mut outcome = Outcome::default();
            let was_up = connection.is_up();
            let mut lane = connection.lane(index);
            let mut is_from_peer = self.handle_packet(&connection, &mut lane, now_ns, &clock, (meta, packet));
            while let Some(next) = packets.next_if(|(_, next)| dest_qp(next) == qpn) {
                is_from_peer |= self.handle_packet(&connection, &mut lane, now_ns, &clock, next);
            }
            let mut has_resumed = lane.take_has_begun();
            if has_resumed && !lane.has_heard_requests() {
                // The answer to a probe contains the peer's share; an earlier rebalance saves the peer a round trip.
                drop(lane);
                self.rebalance_if_due(&port.sharing, has_resumed, now_ns);
                has_resumed = false;
                lane = connection.lane(index);
            }
            // With arrival times, the ends measure the network's delay, which needs the exact send time.
            let send_ns = if clock.is_known() { self.now_ns() } else { now_ns };
            self.advance_lane(&connection, &mut lane, send_ns, held_acks.is_some(), &mut outcome);
            let is_answered = lane.qp().is_path_answered();
            if let Some(held_acks) = held_acks.as_deref_mut().filter(|_| lane.holds_ack(send_ns)) {
                held_acks.push((connection.clone(), index));
            }
            drop(lane);
            if is_from_peer {
                received.is_from_peer = true;
                self.rebalance_if_due(&port.sharing, has_resumed, now_ns);
            }
            if !is_from_peer && !connection.is_up() && connection.address_change().is_some() {
                self.shorten_deadline(&connection, now_ns);
            }
            if is_answered && connection.awaits_answer() {
                self.on_probe_answered(&connection);
            }
            received.rings |= outcome.rings || connection.is_up() != was_up;
            self.end_if_over(&connection, outcome.broken);
        }
        received
    }

    /// Handles a packet. Returns true if it came from the peer.
    fn handle_packet(
        &self,
        connection: &Connection,
        lane: &mut Lane,
        now_ns: u64,
        clock: &Clock,
        (meta, bytes): (&RecvMeta, &[u8]),
    ) -> bool {
        let Some(body) = connection.open(canonical(meta.addr), bytes) else {
            self.dropped.refused.fetch_add(1, Relaxed);
            return false;
        };
        let Ok(packet) = Packet::parse(body) else {
            self.dropped.malformed.fetch_add(1, Relaxed);
            return false;
        };
        // The queue pairs of stateless lanes only probe the path: their other packets would carry no tag.
        let is_probe = matches!(packet.headers, Headers::Probe(_) | Headers::ProbeAnswer(_));
        if connection.is_stateless() && !is_probe {
            self.dropped.refused.fetch_add(1, Relaxed);
            return false;
        }
        connection.heard_ns.store(now_ns, Relaxed);
        // A peer that sends requests has received the answer to its probe, although its Ready may arrive later. A peer
        // that sends a probe may still wait for the answer.
        if is_probe {
            if connection.on_probe() {
                self.bring_up(connection);
            }
        } else if !connection.awaits_answer() {
            self.bring_up(connection);
        }
        let arrived_ns = clock.arrived_ns(meta, now_ns);
        lane.handle_packet(connection, self.context(now_ns), arrived_ns, &packet);
        true
    }

    /// Ends the connection if a queue pair has ended, or if the connection is closing and idle.
    fn end_if_over(&self, connection: &Connection, broken: Option<Cause>) {
        if let Some(cause) = broken {
            connection.record_end_reason(end_cause(cause));
        }
        if broken.is_some() || connection.is_closing() && connection.is_idle() {
            self.end(connection);
        }
    }
}

/// Timers.
impl Core {
    /// Adds a deadline, and wakes a thread that would sleep beyond it.
    fn add_deadline(&self, at_ns: u64) {
        if at_ns < self.due_ns.fetch_min(at_ns, SeqCst) {
            self.wake_for(at_ns);
        }
    }

    fn wake_for(&self, at_ns: u64) {
        // Pairs with time_left(): either this load sees the sleeper's deadline, or the sleeper sees the new one.
        if at_ns < self.sleep_end_ns.load(SeqCst) {
            self.sleep_end_ns.fetch_min(at_ns, SeqCst);
            self.bell.wake_at(at_ns, self.now_ns());
        }
    }

    /// Returns the time until the next deadline, for which a thread may sleep; `None` without a deadline.
    pub(super) fn time_left(&self) -> Option<Duration> {
        self.sleep_end_ns.store(NEVER, SeqCst);
        let due = self.due_ns.load(SeqCst).min(self.handshake_due_ns.load(SeqCst));
        self.sleep_end_ns.store(due, SeqCst);
        (due != NEVER).then(|| Duration::from_nanos(due.saturating_sub(self.now_ns())))
    }

    /// Runs the timers that are due.
    fn run_due_timers(&self, now_ns: u64) {
        if now_ns >= self.due_ns.load(SeqCst) {
            self.run_lane_timers();
        }
        if now_ns >= self.handshake_due_ns.load(SeqCst) {
            self.run_handshake_timers(now_ns);
        }
    }

    /// Frees what the responders of stateless lanes have recorded about old requests.
    fn sweep_responders(&self, now_ns: u64) {
        // A request may have waited for up to a lease in a socket, and its age is that of its arrival.
        let lease_ns = self.config.lease.as_nanos() as u64;
        for port in self.ports.all() {
            let mut responder = lock(&port.responder);
            responder.sweep(now_ns.saturating_sub(lease_ns));
            if let Some(sweep_ns) = responder.sweep_ns() {
                self.add_deadline(sweep_ns + lease_ns);
            }
        }
    }

    fn run_lane_timers(&self) {
        let now_ns = self.now_ns();
        // The swap comes first, to keep deadlines that other threads add meanwhile.
        self.due_ns.swap(NEVER, SeqCst);
        self.rebalance_for_waiters(now_ns);
        self.sweep_responders(now_ns);
        for connection in self.peers() {
            let mut broken = None;
            let starts_path_discovery = connection.starts_path_discovery();
            let round_trip_ns = connection.take_round_trip_ns(now_ns);
            for mut lane in connection.lanes() {
                let mut outcome = Outcome::default();
                if let Some(ns) = round_trip_ns {
                    lane.expect_round_trip(&connection, ns);
                }
                if starts_path_discovery {
                    lane.start_path_discovery(now_ns);
                }
                lane.handle_timeout(now_ns);
                self.advance_lane(&connection, &mut lane, now_ns, false, &mut outcome);
                broken = broken.or(outcome.broken);
            }
            self.end_if_over(&connection, broken);
        }
    }
}

/// Shares of the receive buffers.
impl Core {
    fn rebalance(&self, sharing: &Sharing, now_ns: u64) {
        if let Some(due_ns) = sharing.rebalance(now_ns) {
            self.add_deadline(due_ns);
        }
    }

    /// Rebalances the shares of the socket's receive buffer if that is due. `has_resumed` is true if a peer has resumed
    /// sending.
    fn rebalance_if_due(&self, sharing: &Sharing, has_resumed: bool, now_ns: u64) {
        let start_due_ns = has_resumed.then(|| sharing.on_send_start());
        if sharing.is_due(now_ns) || start_due_ns.is_some_and(|due_ns| due_ns <= now_ns) {
            self.rebalance(sharing, now_ns);
        } else if let Some(due_ns) = start_due_ns {
            self.add_deadline(due_ns);
        }
    }

    fn rebalance_for_waiters(&self, now_ns: u64) {
        for port in self.ports.all() {
            if port.sharing.has_waiters(now_ns) {
                self.rebalance(&port.sharing, now_ns);
            }
        }
    }
}

/// Returns the target queue pair number in a packet's header.
fn dest_qp(packet: &[u8]) -> Option<u32> {
    Bth::new_checked(packet).ok().map(|bth| bth.dest_qp().value())
}
