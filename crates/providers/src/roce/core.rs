//! What the threads of one roce fabric share, and what one of them does when it polls.
//!
//! ```text
//!   poll ── receive ── packets by queue pair ── handled, answered ──┐
//!     ├──── now and then: greetings and hang-ups ───────────────────┼──► events
//!     └──── when it is time: what queue pairs do by time ───────────┘
//!   post ── onto the lane, and what may leave, leaves
//! ```
//!
//! Locks are taken in this order: the batch, which only who polls has; the control; the members of a socket; the lanes of one connection, in their order;
//! then any one of the others.  Nothing calls out of the fabric while holding one.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::{Duration, Instant};

use halite_fabric::{ConnectFailure, Event, PeerId, PostCause, WorkRequest};
use halite_rnic::room::GRANT_MAX;
use halite_rnic::wire::bth::Bth;
use halite_rnic::wire::{Headers, Packet};
use halite_rnic::{Config, Congestion, Mtu, Retry};

use super::bell::Bell;
use super::connection::{Connection, Lane, LaneContext, Outcome, QUEUE_MAX};
use super::control::{Attempt, Control, Handshake};
use super::greeting::{Message, Offer};
use super::line::Heard;
use super::memory::Registered;
use super::paths::Paths;
use super::port::{Batch, Port};
use super::ports::{PortUse, Ports};
use super::sharing::Sharing;
use super::{Dropped, LANES, RoceConfig, SEND_BYTES_MAX, lock, read, write};

/// How often who polls looks for greetings, while it does not sleep in between.
const CONTROL_NS: u64 = 500_000;
/// How many connections are let in at a time.
const ACCEPTED_MAX: usize = 64;
/// Consecutive full batches after which timers are looked at.  Before, not: what waits in the socket may be what they wait for.
const BATCHES_BEFORE_TIME: u32 = 16;
/// Batches that are received before somebody is taken to be gone, in case its last words are among them.
const LAST_BATCHES_MAX: usize = 64;
/// Reads and atomics of a lane that may be under way: as many as packets, since each asks for one.
const READS_MAX: usize = GRANT_MAX as usize;
/// How long a process may take from the end of its sockets to its own end.
const EXIT_NS: u64 = 200_000_000;
/// A time that never comes.
const NEVER: u64 = u64::MAX;

/// See the header of this file.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) config: RoceConfig,
    pub(super) ports: Ports,
    pub(super) bell: Bell,
    pub(super) registered: Registered,
    table: RwLock<Table>,
    batch: Mutex<Batch>,
    pub(super) control: Mutex<Control>,
    /// When it was last looked at; 0 if that is to be done in the next poll.
    control_seen_ns: AtomicU64,
    events: Mutex<Vec<Event>>,
    begin: Instant,
    /// Nothing is to be done for queue pairs by time before this.
    due_ns: AtomicU64,
    /// When the next greeting is late.
    greeting_due_ns: AtomicU64,
    /// What a sleeper was last told of that.
    told_due_ns: AtomicU64,
    dropped: DroppedCounts,
    paths: Mutex<Paths>,
}

/// Who is connected.
#[derive(Debug, Default)]
struct Table {
    /// By the number of a queue pair, and which of the two it is.
    lanes: HashMap<u32, (Arc<Connection>, usize)>,
    peers: BTreeMap<PeerId, Arc<Connection>>,
    last: u32,
}

/// See [`Dropped`].
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
            bell: Bell::new(ports.watched().0, control.epoll().as_fd())?,
            ports,
            registered: Registered::default(),
            table: RwLock::default(),
            batch: Mutex::new(Batch::new()),
            control: Mutex::new(control),
            control_seen_ns: AtomicU64::new(0),
            events: Mutex::default(),
            begin: Instant::now(),
            due_ns: AtomicU64::new(NEVER),
            greeting_due_ns: AtomicU64::new(NEVER),
            told_due_ns: AtomicU64::new(0),
            dropped: DroppedCounts::default(),
            paths: Mutex::default(),
            config,
        })
    }

    /// Nanoseconds since the fabric was opened, and never 0.
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

    /// Whether nothing that was posted is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.peers().iter().all(|connection| connection.is_idle())
    }

    /// Queues events without waking anybody: who polls, or is about to, takes them.
    fn tell(&self, events: Vec<Event>) {
        lock(&self.events).extend(events);
    }

    /// Queues an event for those who sleep.
    pub(super) fn tell_and_wake(&self, event: Event) {
        self.tell(vec![event]);
        self.bell.wake();
    }

    pub(super) fn take_events(&self, events: &mut Vec<Event>) {
        events.append(&mut lock(&self.events));
    }

    /// Where other hosts may dial.
    pub(super) fn control_ports(&self) -> Vec<SocketAddr> {
        lock(&self.control).ports()
    }

    pub(super) fn fail_to_connect(&self, address: String, reason: String, is_ours: bool) {
        self.tell_and_wake(Event::ConnectFailed(ConnectFailure { address, reason, is_ours }));
    }
}

/// Counting.
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
    /// Posts requests; returns how many, and why not the next one.
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
        self.move_on(&connection, &mut lane, self.now_ns(), &mut Outcome::default());
        refused.map_or(Ok(()), Err)
    }

    /// Sends what may leave in a lane, and tells what has happened.
    fn move_on(&self, connection: &Connection, lane: &mut Lane, now_ns: u64, outcome: &mut Outcome) {
        let due = lane.transmit(connection, self.context(now_ns));
        lane.drain(connection.peer, outcome);
        if !outcome.events.is_empty() {
            lock(&self.events).append(&mut outcome.events);
        }
        if let Some(due) = due {
            self.note_due(due);
        }
    }
}

/// Time.
impl Core {
    /// Something is to be done then; who sleeps for longer is woken.
    fn note_due(&self, at_ns: u64) {
        if at_ns < self.due_ns.fetch_min(at_ns, SeqCst) {
            self.wake_for(at_ns);
        }
    }

    /// Greetings have begun or ended.
    pub(super) fn note_greetings(&self, control: &Control) {
        let at_ns = control.next_late().unwrap_or(NEVER);
        if at_ns < self.greeting_due_ns.swap(at_ns, SeqCst) {
            self.wake_for(at_ns);
        }
    }

    fn wake_for(&self, at_ns: u64) {
        // Pairs with time_left(): either this sees what the sleeper was told, or the sleeper sees what is due.
        if at_ns < self.told_due_ns.load(SeqCst) {
            self.told_due_ns.fetch_min(at_ns, SeqCst);
            self.bell.wake();
        }
    }

    /// For who is about to sleep: how long until something is to be done.
    pub(super) fn time_left(&self) -> Option<Duration> {
        self.told_due_ns.store(NEVER, SeqCst);
        let due = self.due_ns.load(SeqCst).min(self.greeting_due_ns.load(SeqCst));
        self.told_due_ns.store(due, SeqCst);
        (due != NEVER).then(|| Duration::from_nanos(due.saturating_sub(self.now_ns())))
    }

    /// Does what is to be done by now.
    fn see_to_time(&self, now_ns: u64) {
        if now_ns >= self.due_ns.load(SeqCst) {
            self.see_to_lanes(now_ns);
        }
        if now_ns >= self.greeting_due_ns.load(SeqCst) {
            let mut gone = Vec::new();
            {
                let mut control = lock(&self.control);
                for token in control.late(now_ns) {
                    self.see_to_late(&mut control, token, now_ns, &mut gone);
                }
                self.note_greetings(&control);
                self.end_given_up(control);
            }
            gone.iter().for_each(|connection| self.end(connection));
        }
    }

    fn see_to_late(&self, control: &mut Control, token: u64, now_ns: u64, gone: &mut Vec<Arc<Connection>>) {
        let Some(handshake) = control.handshake(token) else { return };
        match handshake {
            _ if handshake.over_ns().is_none_or(|over_ns| now_ns < over_ns) => self.dial_also(control, token),
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
                    "it answers over TCP, but packets (UDP) between {own} here and {address} there do not get through"
                );
                self.fail(control, token, &reason);
            }
            _ => self.fail(control, token, "it does not answer"),
        }
    }

    /// Ends what was agreed on and has come to nothing.
    pub(super) fn end_given_up(&self, mut control: MutexGuard<'_, Control>) {
        let given_up = control.take_given_up();
        drop(control);
        for connection in given_up {
            self.end(&connection);
            lock(&self.control).give_back(&connection.qpns());
        }
    }

    fn see_to_lanes(&self, now_ns: u64) {
        // What others add meanwhile stays.
        self.due_ns.swap(NEVER, SeqCst);
        self.share_where_due(now_ns);
        for connection in self.peers() {
            let mut is_broken = false;
            let begins_path = connection.begins_path();
            for index in 0..LANES {
                let mut outcome = Outcome::default();
                let mut lane = connection.lane(index);
                if begins_path {
                    lane.find_path(now_ns);
                }
                lane.handle_timeout(now_ns);
                if connection.awaits_answer() && lane.qp().knows_path() {
                    // Nothing was answered: it goes on for as long as a greeting may take.
                    lane.find_path(now_ns);
                }
                self.move_on(&connection, &mut lane, now_ns, &mut outcome);
                is_broken |= outcome.is_broken;
            }
            self.end_if_over(&connection, is_broken);
        }
    }
}

/// Polling.
impl Core {
    /// Takes in what has come, unless another thread does.
    pub(super) fn turn(&self) {
        let Ok(mut batch) = self.batch.try_lock() else { return };
        let now_ns = self.now_ns();
        let is_more = self.receive(&mut batch, now_ns);
        batch.note_polled(is_more);
        let seen_ns = self.control_seen_ns.load(Relaxed);
        // Before a sleep also while packets wait: they may be nobody's business, and the edge of what a peer has said is taken already.
        if seen_ns == 0 || !is_more && now_ns >= seen_ns + CONTROL_NS {
            self.control_seen_ns.store(now_ns, Relaxed);
            self.look_at_control(&mut batch, now_ns);
            self.close_unused_ports();
        }
        if batch.full_in_a_row().is_multiple_of(BATCHES_BEFORE_TIME) {
            self.see_to_time(now_ns);
        }
    }

    /// Who arms is about to sleep: what it polls before that sees everything.
    pub(super) fn look_at_control_soon(&self) {
        self.control_seen_ns.store(0, Relaxed);
    }

    /// Receives once from each socket; says whether more may wait.
    fn receive(&self, batch: &mut Batch, now_ns: u64) -> bool {
        let mut is_more = false;
        self.ports.for_each_ready(|port| is_more |= self.receive_from(port, batch, now_ns));
        is_more
    }

    fn receive_from(&self, port: &Port, batch: &mut Batch, now_ns: u64) -> bool {
        let is_more = port.receive(batch);
        let empty = batch.empty();
        if empty > 0 {
            self.dropped.strangers.fetch_add(empty, Relaxed);
        }
        let mut packets = batch.packets().peekable();
        let mut rings = false;
        while let Some((from, packet)) = packets.next() {
            let qpn = dest_qp(packet);
            let Some((connection, index)) = qpn.and_then(|qpn| read(&self.table).lanes.get(&qpn).cloned())
            else {
                self.dropped.strangers.fetch_add(1, Relaxed);
                continue;
            };
            let mut outcome = Outcome::default();
            let (is_answered, has_begun, mut has_come);
            {
                let mut lane = connection.lane(index);
                has_come = self.handle(&connection, &mut lane, now_ns, from, packet);
                while let Some((from, packet)) = packets.next_if(|(_, next)| dest_qp(next) == qpn) {
                    has_come |= self.handle(&connection, &mut lane, now_ns, from, packet);
                }
                self.move_on(&connection, &mut lane, now_ns, &mut outcome);
                is_answered = lane.qp().is_path_answered();
                has_begun = lane.take_has_begun();
            }
            if has_come {
                self.see_to_shares(&port.sharing, has_begun, now_ns);
            }
            if !has_come && !connection.is_up() && connection.address_change().is_some() {
                self.hurry(&connection, now_ns);
            }
            if is_answered && connection.awaits_answer() {
                self.handle_answered(&connection);
            }
            rings |= outcome.rings;
            self.end_if_over(&connection, outcome.is_broken);
        }
        if rings {
            self.bell.note_arrival();
        }
        is_more
    }

    /// Says whether it was a packet of the peer.
    fn handle(
        &self,
        connection: &Connection,
        lane: &mut Lane,
        now_ns: u64,
        from: SocketAddr,
        bytes: &[u8],
    ) -> bool {
        let Some(body) = connection.open(from, bytes) else {
            self.dropped.refused.fetch_add(1, Relaxed);
            return false;
        };
        let Ok(packet) = Packet::parse(body) else {
            self.dropped.malformed.fetch_add(1, Relaxed);
            return false;
        };
        connection.heard_ns.store(now_ns, Relaxed);
        // Who sends has heard us: its "ready" may come later than this.  A probe asks for that yet.
        let is_probe = matches!(packet.headers, Headers::Probe(_) | Headers::ProbeAnswer(_));
        if !is_probe && !connection.awaits_answer() {
            self.come_up(connection);
        }
        lane.handle_packet(connection, self.context(now_ns), &packet);
        true
    }

    fn end_if_over(&self, connection: &Connection, is_broken: bool) {
        if is_broken || connection.is_leaving() && connection.is_idle() {
            self.end(connection);
        }
    }
}

/// Connections.
impl Core {
    /// The most payload of packets to a host.
    pub(super) fn mtu_to(&self, host: IpAddr) -> Mtu {
        // Where there is no way to it, that shows when it is dialled.
        self.ports.mtu_to(host).map_or(self.config.mtu, |mtu| mtu.min(self.config.mtu))
    }

    pub(super) fn greeting_deadline_ns(&self) -> u64 {
        self.now_ns() + self.config.handshake_timeout.as_nanos() as u64
    }

    /// Lets peers in, hears what they say, and whether they are gone.
    fn look_at_control(&self, batch: &mut Batch, now_ns: u64) {
        let mut gone = Vec::new();
        {
            let mut control = lock(&self.control);
            let (tokens, is_wanted) = control.ready();
            if is_wanted {
                self.accept(&mut control);
            }
            for token in tokens {
                self.hear(&mut control, token, now_ns, &mut gone);
            }
            self.note_greetings(&control);
            self.end_given_up(control);
        }
        if !gone.is_empty() {
            // What they said before they went has arrived.
            let _ = (0..LAST_BATCHES_MAX).find(|_| !self.receive(batch, now_ns));
            gone.iter().for_each(|connection| self.end(connection));
        }
    }

    fn accept(&self, control: &mut Control) {
        for _ in 0..ACCEPTED_MAX {
            let Ok(Some(mut line)) = control.accept() else { return };
            if control.len() >= self.config.peers_max {
                let reason = format!("it has {} connections, and takes no more", self.config.peers_max);
                let _ = line.send(&Message::Refused { reason });
                continue;
            }
            if !control.has_room_for(&line) {
                self.dropped.strangers.fetch_add(1, Relaxed);
                continue;
            }
            let deadline_ns = self.greeting_deadline_ns();
            // Where a socket cannot be watched, its other end sees that it is closed.
            let _ = control.add(line, Handshake::Accepted { deadline_ns });
        }
    }

    /// Hears all that was said over a link.
    fn hear(&self, control: &mut Control, token: u64, now_ns: u64, gone: &mut Vec<Arc<Connection>>) {
        if let Some(Handshake::HungUp { connection, .. }) = control.handshake(token) {
            gone.push(connection.clone());
            return;
        }
        while let Some(heard) = control.receive(token) {
            let Some(handshake) = control.handshake(token) else { return };
            if let Handshake::Agreed { connection, .. } = handshake
                && connection.is_up()
            {
                *handshake = Handshake::Connected(connection.clone());
            }
            match (&*handshake, heard) {
                (Handshake::Accepted { .. }, Heard::Message(Message::Dial { offer, hello })) => {
                    if let Err(reason) = self.answer(control, token, offer, hello, now_ns) {
                        control.send(token, &Message::Refused { reason: reason.clone() });
                        self.fail(control, token, &reason);
                    }
                }
                (
                    Handshake::Dialled { attempt, offer, port_use, .. },
                    Heard::Message(Message::Accept { offer: theirs, hello }),
                ) => {
                    let (attempt, offer, port_use) = (attempt.clone(), *offer, port_use.clone());
                    if !offer.suits(&theirs) {
                        return self.fail(control, token, "it is reached by another kind of address");
                    }
                    let address = Some(attempt.address.clone());
                    let connection = self.connect(token, (&offer, port_use), &theirs, hello, address, now_ns);
                    let deadline_ns = self.greeting_deadline_ns();
                    *handshake = Handshake::Agreed {
                        connection: connection.clone(),
                        attempt: Some(attempt),
                        deadline_ns,
                    };
                    if control.own_address(token).is_some() {
                        connection.await_answer();
                        self.note_due(now_ns);
                    } else {
                        self.make_ready(control, &connection);
                    }
                }
                (
                    Handshake::Agreed { connection, attempt: None, .. } | Handshake::Connected(connection),
                    Heard::Message(Message::Ready),
                ) => {
                    let connection = connection.clone();
                    *handshake = Handshake::Connected(connection.clone());
                    self.come_up(&connection);
                }
                (Handshake::Connected(connection), heard) => {
                    let connection = connection.clone();
                    let is_left_open = matches!(heard, Heard::HungUp) && connection.is_up();
                    if !(is_left_open && control.await_exit(token, now_ns + EXIT_NS)) {
                        gone.push(connection);
                    }
                    return;
                }
                (Handshake::HungUp { .. }, _) => return,
                (Handshake::Agreed { .. }, Heard::Message(Message::Left)) => {
                    self.fail(control, token, "it hung up")
                }
                (_, Heard::Message(Message::Refused { reason })) => self.fail(control, token, &reason),
                (_, Heard::Message(_)) => self.fail(control, token, "it says what does not belong there"),
                (_, Heard::Nonsense(what)) => self.fail(control, token, &format!("it sent {what}")),
                (_, Heard::Bad(bad)) => self.fail(control, token, &bad.to_string()),
                (_, Heard::Unreachable(error)) => self.fail(control, token, &error.to_string()),
                (_, Heard::HungUp) => self.fail(control, token, "it hung up"),
            }
        }
    }

    /// Answers who dialled us.
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
                "it cannot send packets to {host}: that is each host's own, and no other reaches it"
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
        let connection = self.connect(token, (&ours, port_use), &theirs, hello, None, now_ns);
        // The end that dials may try for as long as it waited for us.
        let deadline_ns = self.greeting_deadline_ns() + self.config.handshake_timeout.as_nanos() as u64;
        if let Some(handshake) = control.handshake(token) {
            *handshake = Handshake::Agreed { connection, attempt: None, deadline_ns };
            control.send(token, &Message::Accept { offer: ours, hello: self.config.hello.clone() });
        }
        Ok(())
    }

    /// Makes the queue pairs that both ends have agreed on.
    fn connect(
        &self,
        token: u64,
        (ours, port_use): (&Offer, Arc<PortUse>),
        theirs: &Offer,
        hello: Vec<u8>,
        dialled: Option<String>,
        now_ns: u64,
    ) -> Arc<Connection> {
        let mtu = ours.mtu.min(theirs.mtu);
        let config = Config {
            mtu,
            send_queue_max: QUEUE_MAX,
            send_bytes_max: SEND_BYTES_MAX,
            // All packets but the last of a long write, or of the answers to a long read, are of one length, and leave in one train.
            write_packets_max: 1,
            read_packets_max: 1,
            reads_max: READS_MAX,
            answers_max: READS_MAX,
            room_packets: 1,
            retry: Retry::Lease(self.config.lease),
            finds_path: true,
            selective: ours.selective && theirs.selective,
            // Between processes of one host there is no network that anybody shares.
            congestion: match self.ports.is_of_this_host(theirs.address.ip()) {
                true => Congestion::Grant,
                false => self.config.congestion,
            },
            ..Config::default()
        };
        let mut table = write(&self.table);
        table.last += 1;
        let peer = PeerId(table.last);
        let connection = Arc::new(Connection::new(peer, token, &config, ours, theirs, port_use, now_ns));
        connection.greet(hello, dialled);
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

    /// A place at a socket for one more peer.
    pub(super) fn port_use(&self) -> Arc<PortUse> {
        // Those of attempts that came to nothing are left.
        self.close_unused_ports();
        let (port_use, is_watched_anew) = self.ports.port_use();
        if is_watched_anew {
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
            self.note_due(due_ns);
        }
    }

    /// Something has come, perhaps from somebody who had been silent.
    fn see_to_shares(&self, sharing: &Sharing, has_begun: bool, now_ns: u64) {
        let begun_due_ns = has_begun.then(|| sharing.note_begun());
        if sharing.is_due(now_ns) || begun_due_ns.is_some_and(|due_ns| due_ns <= now_ns) {
            self.share(sharing, now_ns);
        } else if let Some(due_ns) = begun_due_ns {
            self.note_due(due_ns);
        }
    }

    fn share_where_due(&self, now_ns: u64) {
        for port in self.ports.all() {
            if port.sharing.is_waited_for(now_ns) {
                self.share(&port.sharing, now_ns);
            }
        }
    }

    /// A probe of ours has been answered.
    fn handle_answered(&self, connection: &Arc<Connection>) {
        let mut control = lock(&self.control);
        self.make_ready(&mut control, connection);
        self.note_greetings(&control);
        self.end_given_up(control);
    }

    /// Packets of who dials us come from another address than it offered: if none comes from there soon, it is told so before it gives up.
    fn hurry(&self, connection: &Connection, now_ns: u64) {
        let mut control = lock(&self.control);
        let soon_ns = connection.met_ns + self.config.handshake_timeout.as_nanos() as u64 / 2;
        if let Some(Handshake::Agreed { attempt: None, deadline_ns, .. }) =
            control.handshake(connection.token)
            && *deadline_ns > soon_ns
        {
            *deadline_ns = soon_ns.max(now_ns);
            self.note_greetings(&control);
        }
    }

    /// What we have dialled is up for us, and for the other end as soon as that hears so.
    fn make_ready(&self, control: &mut Control, connection: &Arc<Connection>) {
        let Some(handshake) = control.handshake(connection.token) else { return };
        let Handshake::Agreed { attempt: Some(Attempt { number, .. }), .. } = *handshake else { return };
        *handshake = Handshake::Connected(connection.clone());
        control.forget_attempt(number);
        control.send(connection.token, &Message::Ready);
        self.come_up(connection);
    }

    fn come_up(&self, connection: &Connection) {
        if let Some((hello, dialled)) = connection.come_up() {
            let peer = connection.peer;
            self.tell(vec![Event::Connected { peer, hello, dialled }]);
            // Both look at the path, as soon as no lane is locked.
            self.note_due(self.now_ns());
        }
    }

    /// Ends a connection: at once on this side, and on the other as soon as it sees that.
    pub(super) fn end(&self, connection: &Connection) {
        let exited = {
            let mut control = lock(&self.control);
            control.send(connection.token, &Message::Left);
            control.has_exited(connection.token)
        };
        if !connection.end(exited, |events| self.tell(events)) {
            return;
        }
        if let Some(change) = connection.address_change().filter(|_| connection.is_up()) {
            tracing::warn!("the connection to peer {} has ended; {change}", connection.peer.0);
        }
        self.note_path(connection);
        {
            let mut table = write(&self.table);
            table.peers.remove(&connection.peer);
            for qpn in connection.qpns() {
                table.lanes.remove(&qpn.value());
            }
        }
        lock(&self.control).remove(connection.token);
        let sharing = &connection.port_use.port().sharing;
        if sharing.leave(connection.peer) {
            self.share(sharing, self.now_ns());
        }
        self.bell.wake();
    }

    /// The next connection to that host begins with what was found over this one.
    fn note_path(&self, connection: &Connection) {
        if let Some(found) = connection.found_path() {
            lock(&self.paths).note(connection.address.ip(), found, connection.mtu);
        }
    }

    pub(super) fn close(&self) {
        let dialled = {
            let mut control = lock(&self.control);
            let dialled = control.close();
            self.note_greetings(&control);
            dialled
        };
        self.end_given_up(lock(&self.control));
        for Attempt { address, .. } in dialled {
            self.fail_to_connect(address, "this fabric is closed".to_owned(), false);
        }
        for connection in self.peers() {
            connection.leave();
            self.end_if_over(&connection, false);
        }
    }
}

/// For which queue pair a packet is, as it says itself.
fn dest_qp(packet: &[u8]) -> Option<u32> {
    Bth::new_checked(packet).ok().map(|bth| bth.dest_qp().value())
}
