//! The shared state of one roce fabric, and the work of one poll.
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
mod polling;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::{Duration, Instant};

use halite_fabric::{ConnectFailure, ConnectTrouble, Event, PeerId, PostCause, WorkRequest};
use halite_rnic::{Config, Congestion, Mtu, Retry};

use self::ending::end_reason;
use super::bell::Bell;
use super::connection::{Connection, Lane, LaneContext, Outcome, QUEUE_MAX};
use super::control::{Accepted, Attempt, Control, Handshake};
use super::events::Events;
use super::greeting::{Message, Offer};
use super::line::LineEvent;
use super::memory::Registered;
use super::paths::Paths;
use super::port::Batch;
use super::ports::{PortUse, Ports};
use super::receivers::Receiver;
use super::sharing::Sharing;
use super::{Dropped, LANES, RoceConfig, SEND_BYTES_MAX, lock, read, write};

/// Maximum number of connections that one poll accepts.
const ACCEPTED_MAX: usize = 64;
/// Maximum number of batches received after a peer has gone, to find its last messages.
const LAST_BATCHES_MAX: usize = 64;
/// Maximum number of outstanding reads and atomics of a lane, and of outstanding packets of their responses. A path
/// with a long delay holds about as many.
const READS_MAX: usize = 8192;
/// Maximum time between the closing of a process's sockets and its exit, in ns.
const EXIT_NS: u64 = 200_000_000;
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
    /// Time of the last check of the control sockets, in ns; 0 requests one in the next poll.
    control_seen_ns: AtomicU64,
    /// True if the last check consumed all input, so that new input causes an edge.
    control_is_empty: AtomicBool,
    pub(super) events: Events,
    begin: Instant,
    /// Next deadline of the queue pairs, in ns.
    due_ns: AtomicU64,
    /// Next deadline of a handshake, in ns.
    handshake_due_ns: AtomicU64,
    /// End of the last sleep that a thread began, in ns.
    sleeper_due_ns: AtomicU64,
    /// The count that [`Fabric::traffic`](halite_fabric::Fabric::traffic) returns.
    traffic: AtomicU64,
    dropped: DroppedCounts,
    paths: Mutex<Paths>,
    /// Why the last connections ended, until the poller asks.
    end_reasons: Mutex<BTreeMap<PeerId, String>>,
}

/// The connections, by queue pair and by peer.
#[derive(Debug, Default)]
struct Table {
    /// The connections by queue pair number, each with the index of the lane to which the queue pair belongs.
    lanes: HashMap<u32, (Arc<Connection>, usize)>,
    peers: BTreeMap<PeerId, Arc<Connection>>,
    last: u32,
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
            control_seen_ns: AtomicU64::new(0),
            control_is_empty: AtomicBool::new(false),
            events: Events::default(),
            begin: Instant::now(),
            end_reasons: Mutex::default(),
            due_ns: AtomicU64::new(NEVER),
            handshake_due_ns: AtomicU64::new(NEVER),
            sleeper_due_ns: AtomicU64::new(0),
            traffic: AtomicU64::new(0),
            dropped: DroppedCounts::default(),
            paths: Mutex::default(),
            config,
        })
    }

    /// Returns the time since the fabric was opened, in ns; never 0.
    pub(super) fn now_ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64 + 1
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

    /// Queues events without waking a thread, for the poller.
    fn queue_events(&self, events: Vec<Event>) {
        self.events.lock().extend(events);
    }

    /// Queues an event and wakes sleeping threads.
    pub(super) fn queue_and_wake(&self, event: Event) {
        self.queue_events(vec![event]);
        self.bell.wake();
    }

    pub(super) fn take_events(&self, events: &mut Vec<Event>) {
        self.events.take(events);
    }

    /// Returns the TCP addresses and ports that other hosts may dial.
    pub(super) fn control_ports(&self) -> Vec<SocketAddr> {
        lock(&self.control).ports()
    }

    pub(super) fn fail_to_connect(&self, address: String, reason: String, trouble: ConnectTrouble) {
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
        order: usize,
        requests: &[WorkRequest<'_>],
    ) -> Result<(), (usize, PostCause)> {
        let connection = self.peer(peer).ok_or((0, PostCause::NotConnected))?;
        let mut lane = connection.lane(order);
        let refused = requests.iter().enumerate().find_map(|(posted, request)| {
            Some((posted, lane.post(&connection, &self.registered, request).err()?))
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
        lane.drain(connection.peer, outcome);
        if !outcome.events.is_empty() && !connection.is_up() {
            // Events of a peer must follow its connected event.
            connection.store_early(&mut outcome.events);
        }
        if !outcome.events.is_empty() {
            self.events.lock().append(&mut outcome.events);
        }
        if let Some(due) = due {
            self.add_deadline(due);
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

    /// Updates the next deadline of the handshakes.
    pub(super) fn update_handshake_deadline(&self, control: &Control) {
        let at_ns = control.next_late().unwrap_or(NEVER).min(control.refusals.due_ns());
        if at_ns < self.handshake_due_ns.swap(at_ns, SeqCst) {
            self.wake_for(at_ns);
        }
    }

    fn wake_for(&self, at_ns: u64) {
        // Pairs with time_left(): either this load sees the sleeper's deadline, or the sleeper sees the new one.
        if at_ns < self.sleeper_due_ns.load(SeqCst) {
            self.sleeper_due_ns.fetch_min(at_ns, SeqCst);
            self.bell.wake_at(at_ns, self.now_ns());
        }
    }

    /// Returns the time until the next deadline, for which a thread may sleep; `None` without a deadline.
    pub(super) fn time_left(&self) -> Option<Duration> {
        self.sleeper_due_ns.store(NEVER, SeqCst);
        let due = self.due_ns.load(SeqCst).min(self.handshake_due_ns.load(SeqCst));
        self.sleeper_due_ns.store(due, SeqCst);
        (due != NEVER).then(|| Duration::from_nanos(due.saturating_sub(self.now_ns())))
    }

    /// Runs the timers that are due.
    fn run_due_timers(&self, now_ns: u64) {
        if now_ns >= self.due_ns.load(SeqCst) {
            self.run_lane_timers();
        }
        if now_ns >= self.handshake_due_ns.load(SeqCst) {
            let mut gone = Vec::new();
            {
                let mut control = lock(&self.control);
                for token in control.late(now_ns) {
                    self.handle_deadline(&mut control, token, now_ns, &mut gone);
                }
                self.dial_postponed(&mut control, now_ns);
                control.refusals.tell_left_out(now_ns);
                self.update_handshake_deadline(&control);
                self.end_failed(control);
            }
            gone.iter().for_each(|connection| self.end(connection));
        }
    }

    fn handle_deadline(
        &self,
        control: &mut Control,
        token: u64,
        now_ns: u64,
        gone: &mut Vec<Arc<Connection>>,
    ) {
        let Some(handshake) = control.handshake(token) else { return };
        match handshake {
            _ if handshake.end_ns().is_none_or(|end_ns| now_ns < end_ns) => self.dial_also(control, token),
            Handshake::HungUp { connection, .. } => gone.push(connection.clone()),
            Handshake::Agreed { connection, .. } if connection.is_up() => {
                *handshake = Handshake::Connected(connection.clone());
            }
            Handshake::Agreed { connection, attempt, .. } if connection.address_change().is_some() => {
                let is_dialled = attempt.is_none();
                let reason = connection.address_change().map(|change| change.to_string()).unwrap_or_default();
                if is_dialled {
                    control.send(token, &Message::Refused { reason: reason.clone() });
                }
                self.fail(control, token, &reason);
            }
            Handshake::Agreed { connection, .. } => {
                let (own, address) = (connection.own_address, connection.address);
                let reason = format!(
                    "it answers over TCP, but packets (UDP) between {own} here and {address} there do not get through; check firewalls"
                );
                self.fail(control, token, &reason);
            }
            _ => self.fail_silent(control, token),
        }
    }

    /// Ends the connections whose handshake has failed.
    pub(super) fn end_failed(&self, mut control: MutexGuard<'_, Control>) {
        let failed = control.take_failed();
        drop(control);
        for connection in failed {
            self.end(&connection);
            lock(&self.control).release_qpns(&connection.qpns());
        }
    }

    fn run_lane_timers(&self) {
        let now_ns = self.now_ns();
        // The swap comes first, to keep deadlines that other threads add meanwhile.
        self.due_ns.swap(NEVER, SeqCst);
        self.rebalance_for_waiters(now_ns);
        for connection in self.peers() {
            let mut broken = None;
            let begins_path = connection.begins_path();
            let round_trip_ns = connection.take_round_trip_ns(now_ns);
            for index in 0..LANES {
                let mut outcome = Outcome::default();
                let mut lane = connection.lane(index);
                if let Some(ns) = round_trip_ns {
                    lane.expect_round_trip(ns);
                }
                if begins_path {
                    lane.find_path(now_ns);
                }
                lane.handle_timeout(now_ns);
                self.advance_lane(&connection, &mut lane, now_ns, false, &mut outcome);
                broken = broken.or(outcome.broken);
            }
            self.end_if_over(&connection, broken);
        }
    }
}

/// Connections and handshakes.
impl Core {
    /// Returns the maximum payload of packets to a host: the configured value, or less if the route permits less.
    pub(super) fn mtu_to(&self, host: IpAddr) -> Mtu {
        // For a host without a route, returns the configured value; the dial then reports the error.
        self.ports.mtu_to(host).map_or(self.config.mtu, |mtu| mtu.min(self.config.mtu))
    }

    pub(super) fn handshake_deadline_ns(&self) -> u64 {
        self.now_ns() + self.handshake_timeout_ns()
    }

    pub(super) fn handshake_timeout_ns(&self) -> u64 {
        self.config.handshake_timeout.as_nanos() as u64
    }

    /// Accepts peers, handles their messages and detects their hang-ups.
    fn poll_control(&self, batch: &mut Batch, now_ns: u64) {
        let mut gone = Vec::new();
        {
            let mut control = lock(&self.control);
            let (tokens, is_wanted) = control.ready();
            self.control_is_empty.store(tokens.is_empty() && !is_wanted, Relaxed);
            if is_wanted {
                self.accept(&mut control, now_ns, &mut gone);
            }
            for token in tokens {
                self.handle_messages(&mut control, token, now_ns, &mut gone);
            }
            control.refusals.tell_left_out(now_ns);
            self.update_handshake_deadline(&control);
            self.end_failed(control);
        }
        if !gone.is_empty() {
            // Messages that a peer sent before it closed have arrived; receive them first.
            if self.receivers.is_empty() {
                let _ = (0..LAST_BATCHES_MAX).find(|_| !self.receive(batch, now_ns));
            } else {
                let theirs = gone.iter().map(|connection| connection.port_use.port().receiver).collect();
                self.receive_in_place_of(theirs, batch, LAST_BATCHES_MAX);
            }
            for connection in gone {
                if connection.is_up() {
                    connection.handle_last_packets(self.context(now_ns), |events| self.queue_events(events));
                }
                self.end(&connection);
            }
        }
    }

    fn accept(&self, control: &mut Control, now_ns: u64, gone: &mut Vec<Arc<Connection>>) {
        for _ in 0..ACCEPTED_MAX {
            let mut line = match control.accept() {
                Ok(Some(Accepted::Line(line))) => line,
                Ok(Some(Accepted::Stranger(socket, from))) => {
                    self.make_room_for(control, from, now_ns, gone);
                    let Some(line) = control.answer(socket, from) else { return };
                    line
                }
                Ok(None) | Err(_) => return,
            };
            if control.len() >= self.config.peers_max {
                let reason = format!("it has {} connections, and accepts no more", self.config.peers_max);
                let _ = line.send(&Message::Refused { reason });
                continue;
            }
            let deadline_ns = self.handshake_deadline_ns();
            // If epoll cannot watch the socket, this closes it, and the other end detects that.
            let _ = control.add(line, Handshake::Accepted { deadline_ns });
        }
    }

    /// If unauthenticated connections have reached their limit, closes one to make room for `from`, so that they cannot
    /// block other hosts.
    fn make_room_for(
        &self,
        control: &mut Control,
        from: IpAddr,
        now_ns: u64,
        gone: &mut Vec<Arc<Connection>>,
    ) {
        let Some(token) = control.link_to_evict_for(from) else { return };
        // Its authentication may have arrived by now.
        self.handle_messages(control, token, now_ns, gone);
        if !control.is_stranger(token) {
            return;
        }
        let evicted = control.from(token).unwrap_or(from);
        control.remove(token);
        self.dropped.strangers.fetch_add(1, Relaxed);
        control.refusals.tell(now_ns, || {
            tracing::warn!(
                "closed the unauthenticated connection from {evicted} to make room for one from {from}"
            );
        });
    }

    /// Handles all pending messages of a link, and its hang-up.
    fn handle_messages(
        &self,
        control: &mut Control,
        token: u64,
        now_ns: u64,
        gone: &mut Vec<Arc<Connection>>,
    ) {
        if let Some(Handshake::HungUp { connection, .. }) = control.handshake(token) {
            gone.push(connection.clone());
            return;
        }
        while let Some(event) = control.receive(token) {
            let Some(handshake) = control.handshake(token) else { return };
            if let Handshake::Agreed { connection, .. } = handshake
                && connection.is_up()
            {
                *handshake = Handshake::Connected(connection.clone());
            }
            match (&*handshake, event) {
                (Handshake::Accepted { .. }, LineEvent::Message(Message::Dial { offer, hello })) => {
                    if let Err(reason) = self.answer(control, token, offer, hello, now_ns) {
                        control.send(token, &Message::Refused { reason: reason.clone() });
                        self.refuse(control, token, &reason);
                    }
                }
                (
                    Handshake::Dialled { attempt, offer, port_use, .. },
                    LineEvent::Message(Message::Accept { offer: theirs, hello }),
                ) => {
                    let (attempt, offer, port_use) = (attempt.clone(), *offer, port_use.clone());
                    if !offer.suits(&theirs) {
                        return self.fail(control, token, "its address is of another IP version than ours");
                    }
                    let address = Some(attempt.address.clone());
                    let is_elsewhere = control.own_address(token).is_some();
                    let connection = self.connect(
                        token,
                        (&offer, port_use),
                        &theirs,
                        (hello, address),
                        is_elsewhere,
                        now_ns,
                    );
                    let deadline_ns = self.handshake_deadline_ns();
                    let number = attempt.number;
                    if let Some(handshake) = control.handshake(token) {
                        *handshake = Handshake::Agreed {
                            connection: connection.clone(),
                            attempt: Some(attempt),
                            has_sent_ready: false,
                            deadline_ns,
                        };
                    }
                    if is_elsewhere {
                        self.add_deadline(now_ns);
                        self.send_early_ready(control, token, number);
                    } else {
                        self.make_ready(control, &connection);
                    }
                }
                (Handshake::Agreed { connection, attempt: None, .. }, LineEvent::Message(Message::Ready)) => {
                    let connection = connection.clone();
                    self.handle_ready(control, token, &connection);
                }
                (Handshake::Connected(connection), LineEvent::Message(Message::Ready)) => {
                    let connection = connection.clone();
                    self.bring_up(&connection);
                }
                (Handshake::Connected(connection), LineEvent::Message(Message::Left { packets })) => {
                    connection.note_end("it closed the connection".to_owned());
                    connection.store_last_packets(packets);
                    gone.push(connection.clone());
                    return;
                }
                (Handshake::Connected(connection), event) => {
                    let connection = connection.clone();
                    let is_left_open = matches!(event, LineEvent::HungUp(_)) && connection.is_up();
                    connection.note_end(end_reason(event));
                    if !(is_left_open && control.await_exit(token, now_ns + EXIT_NS)) {
                        gone.push(connection);
                    }
                    return;
                }
                (Handshake::HungUp { .. }, _) => return,
                (Handshake::Agreed { .. }, LineEvent::Message(Message::Left { .. })) => {
                    self.fail(control, token, "it hung up")
                }
                (_, LineEvent::Message(Message::Refused { reason })) => self.fail(control, token, &reason),
                (_, LineEvent::Message(_)) => self.refuse(control, token, "it sent an unexpected message"),
                (_, LineEvent::Malformed(what)) => self.refuse(control, token, &format!("it sent {what}")),
                (_, LineEvent::Bad(bad)) => self.refuse_bad(control, token, bad),
                (_, LineEvent::Unreachable(error)) => self.fail(control, token, &error.to_string()),
                (_, LineEvent::HungUp(_)) => self.fail_hung_up(control, token),
            }
        }
    }

    /// Answers the offer of a dialling peer. An error contains the reason for the refusal.
    fn answer(
        &self,
        control: &mut Control,
        token: u64,
        theirs: Offer,
        hello: Vec<u8>,
        now_ns: u64,
    ) -> Result<(), String> {
        let host = theirs.address.ip();
        if host.is_loopback() && control.from(token).is_some_and(|from| !from.is_loopback()) {
            return Err(format!(
                "it cannot send packets to {host}: a loopback address reaches only processes of the same host"
            ));
        }
        let mtu = self.mtu_to(host);
        let own = match control.own_address(token) {
            Some(own) => self.ports.address_as(Some(own)),
            None => self.ports.address_for(host),
        };
        let port_use = self.port_use();
        let ours = control
            .offer(port_use.port().at(own), mtu, self.config.selective)
            .map_err(|error| error.to_string())?;
        if !ours.suits(&theirs) {
            control.withdraw(&ours);
            return Err(format!("{} cannot be reached from {}", theirs.address, ours.address));
        }
        let connection = self.connect(token, (&ours, port_use), &theirs, (hello, None), false, now_ns);
        // The dialling end may be a replay, so it gets no later deadline than a silent one.
        let deadline_ns = self.handshake_deadline_ns();
        if let Some(handshake) = control.handshake(token) {
            *handshake = Handshake::Agreed { connection, attempt: None, has_sent_ready: false, deadline_ns };
            control.send(token, &Message::Accept { offer: ours, hello: self.config.hello.clone() });
        }
        Ok(())
    }

    /// Creates a connection with the queue pairs of both offers. If `awaits_answer` is true, the connection stays down
    /// until the peer answers a path probe.
    fn connect(
        &self,
        token: u64,
        (ours, port_use): (&Offer, Arc<PortUse>),
        theirs: &Offer,
        (hello, dialled): (Vec<u8>, Option<String>),
        awaits_answer: bool,
        now_ns: u64,
    ) -> Arc<Connection> {
        let mtu = ours.mtu.min(theirs.mtu);
        let selective = ours.selective && theirs.selective;
        let tells_waits = selective && ours.tells_waits && theirs.tells_waits;
        let is_elsewhere = !self.ports.is_of_this_host(theirs.address.ip());
        if tells_waits && is_elsewhere {
            port_use.port().stamp();
        }
        let config = Config {
            mtu,
            send_queue_max: QUEUE_MAX,
            send_bytes_max: SEND_BYTES_MAX,
            // Writes of one packet: all packets of a long write but the last have equal lengths and leave in one train.
            write_packets_max: 1,
            reads_max: READS_MAX,
            answers_max: READS_MAX,
            room_packets: 1,
            fills_path: is_elsewhere,
            retry: Retry::Lease(self.config.lease),
            finds_path: true,
            selective,
            tells_waits,
            // Processes of one host share no network, so credits are enough.
            congestion: if is_elsewhere { self.config.congestion } else { Congestion::Grant },
            ..Config::default()
        };
        let mut table = write(&self.table);
        table.last += 1;
        let peer = PeerId(table.last);
        let connection = Arc::new(Connection::new(peer, token, &config, ours, theirs, port_use, now_ns));
        connection.store_hello(hello, dialled);
        if awaits_answer {
            connection.await_answer();
        }
        let before = lock(&self.paths).to(theirs.address.ip());
        if let Some(before) = before {
            (0..LANES).for_each(|index| connection.lane(index).expect_path(now_ns, before));
        }
        for (index, qpn) in connection.qpns().into_iter().enumerate() {
            table.lanes.insert(qpn.value(), (connection.clone(), index));
        }
        table.peers.insert(peer, connection.clone());
        drop(table);
        let sharing = &connection.port_use.port().sharing;
        sharing.join(&connection);
        self.share(sharing, now_ns);
        connection
    }

    /// Assigns one more peer to a UDP socket.
    pub(super) fn port_use(&self) -> Arc<PortUse> {
        // Sockets of failed attempts have no users; close them first.
        self.close_unused_ports();
        let (port_use, has_changed) = self.ports.port_use();
        if has_changed {
            self.bell.wake();
        }
        port_use
    }

    fn close_unused_ports(&self) {
        if self.ports.close_unused() {
            self.bell.wake();
        }
    }

    fn share(&self, sharing: &Sharing, now_ns: u64) {
        if let Some(due_ns) = sharing.share(now_ns) {
            self.add_deadline(due_ns);
        }
    }

    /// Rebalances the shares of the socket's receive buffer if that is due. `has_begun` is true if a lane began to
    /// send.
    fn rebalance_if_due(&self, sharing: &Sharing, has_begun: bool, now_ns: u64) {
        let start_due_ns = has_begun.then(|| sharing.on_send_start());
        if sharing.is_due(now_ns) || start_due_ns.is_some_and(|due_ns| due_ns <= now_ns) {
            self.share(sharing, now_ns);
        } else if let Some(due_ns) = start_due_ns {
            self.add_deadline(due_ns);
        }
    }

    fn rebalance_for_waiters(&self, now_ns: u64) {
        for port in self.ports.all() {
            if port.sharing.has_waiters(now_ns) {
                self.share(&port.sharing, now_ns);
            }
        }
    }

    /// Handles the first answer to a probe that this end sent as the dialling end.
    fn handle_answered(&self, connection: &Arc<Connection>) {
        let mut control = lock(&self.control);
        self.make_ready(&mut control, connection);
        self.update_handshake_deadline(&control);
        self.end_failed(control);
    }

    /// Shortens the handshake's deadline if the peer's packets come from another address than it offered, so that the
    /// peer learns this reason before its own deadline.
    fn shorten_deadline(&self, connection: &Connection, now_ns: u64) {
        let mut control = lock(&self.control);
        let soon_ns = connection.met_ns + self.handshake_timeout_ns() / 2;
        if let Some(Handshake::Agreed { attempt: None, deadline_ns, .. }) =
            control.handshake(connection.token)
            && *deadline_ns > soon_ns
        {
            *deadline_ns = soon_ns.max(now_ns);
            self.update_handshake_deadline(&control);
        }
    }

    /// Sends Ready to the first address of an attempt that answers, without waiting for the answer to the probe, which
    /// saves a round trip. The other end brings its connection up when it has received both Ready and a packet.
    fn send_early_ready(&self, control: &mut Control, token: u64, number: u64) {
        if control.has_sent_ready(number) {
            return;
        }
        if let Some(Handshake::Agreed { has_sent_ready, .. }) = control.handshake(token) {
            *has_sent_ready = true;
            control.send(token, &Message::Ready);
        }
    }

    /// Handles Ready from the dialling end, which has proven that it knows the secret. If that end is on another host,
    /// the connection comes up only after a packet from it has arrived, too.
    fn handle_ready(&self, control: &mut Control, token: u64, connection: &Arc<Connection>) {
        let is_elsewhere = control.own_address(token).is_some();
        let Some(handshake) = control.handshake(token) else { return };
        if connection.on_ready() || !is_elsewhere {
            *handshake = Handshake::Connected(connection.clone());
            self.bring_up(connection);
        } else if let Handshake::Agreed { deadline_ns, .. } = handshake {
            // The dialling end may take as long as its own timeout.
            *deadline_ns = self.handshake_deadline_ns() + self.handshake_timeout_ns();
        }
    }

    /// Completes the handshake of a dialling end, and sends Ready unless that was sent early.
    fn make_ready(&self, control: &mut Control, connection: &Arc<Connection>) {
        let Some(handshake) = control.handshake(connection.token) else { return };
        let Handshake::Agreed { attempt: Some(Attempt { number, .. }), has_sent_ready, .. } = *handshake
        else {
            return;
        };
        *handshake = Handshake::Connected(connection.clone());
        control.forget_attempt(number);
        if !has_sent_ready {
            control.send(connection.token, &Message::Ready);
        }
        self.bring_up(connection);
    }

    fn bring_up(&self, connection: &Connection) {
        if connection.is_up() {
            return;
        }
        // The lock is held until the connected event is queued, so that the events of other threads follow it.
        let mut events = self.events.lock();
        if let Some((hello, dialled)) = connection.bring_up() {
            let peer = connection.peer;
            events.push(Event::Connected { peer, hello, dialled });
            events.extend(connection.take_early());
            drop(events);
            // The next timer run begins to probe the path on both lanes. It locks no other lane at that time.
            self.add_deadline(self.now_ns());
        }
    }
}
