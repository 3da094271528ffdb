//! The simulated network: all state of the world except its tasks.
//!
//! A connection has two ends (`end`) and lanes between them, which are closed together. `dial` sets it up, and
//! `lifecycle` ends it. A lane executes each request at most once, in order.
//!
//! Between hosts, a lane is two queue pairs of `halite_rnic` (`lane`), driven by adapters or by the processes, or two
//! lanes without connection state at the responder (`transport`). Links lose, duplicate and reorder the datagrams
//! between them (`datagrams`). `flow_queue` limits the bytes that the adapter holds, `view` is the memory that queue
//! pairs access, `adapter` the atomics of an adapter, `stages` its units and caches, and `keys` the announcement of
//! memory keys.
//!
//! In profiles without an adapter, *processors copy*: the requester's processor copies the bytes into the target's
//! memory. Such requests are executed one after the other (`qp`): a request is posted (`post`), copied in pieces
//! (`send`) that land in the memory of the target (`land`), and completes (`ack`). A link fault delays a piece, and
//! repeated faults end the connection. `direct` is access by loads and stores.
//!
//! ```text
//!   post ──> Depart, per piece ──> Land ──> Acknowledge ──> Visible ──> poll
//!               │ lost: retried       │ imm, send: Visible at the target ──> poll
//!               ▼                     └ read: Respond, per piece ──> Land
//!            retries ──> the connection breaks
//! ```

mod ack;
mod adapter;
mod datagrams;
mod dial;
mod direct;
mod end;
mod endpoint;
mod flow_queue;
mod keys;
mod land;
mod lane;
mod lifecycle;
mod packet;
mod post;
mod qp;
mod queue;
mod send;
mod slab;
mod stages;
mod transport;
mod view;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;

use halite_fabric::{Completion, CompletionKind, ConnectFailure, Event as FabricEvent, PeerId};

use self::datagrams::Datagram;
use self::dial::Dial;
use self::end::{EndId, Ends};
use self::endpoint::Endpoint;
use self::lane::Lane;
use self::lifecycle::KernelMessage;
use self::packet::Packets;
use self::qp::Qp;
use self::queue::{Event, EventQueue};
use self::slab::Slab;
use self::stages::Stages;
use crate::counters::Counters;
use crate::digest::Digest;
use crate::hardware::{Hardware, Reach};
use crate::link::{Link, Transit, Wire};
use crate::profile::Profile;
use crate::random::Random;
use crate::shared::TimerKey;
use crate::trace::Log;
use crate::world::{HostId, Step};

/// State of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HostState {
    Running,
    Paused,
    Crashed,
}

/// One process of a host; if hosts have one process each, the whole host.
#[derive(Debug)]
struct Host {
    state: HostState,
    /// The first process of the host.
    machine: HostId,
    /// Events that arrived while the host was paused.
    deferred: Vec<Event>,
    /// Units and caches of its adapter, if the profile has them.
    stages: Option<Box<Stages>>,
}

/// The network; see the header of this file.
pub(crate) struct Net {
    pub(crate) hardware: Hardware,
    pub(crate) counters: Counters,
    pub(crate) digest: Digest,
    pub(crate) log: Log,
    now_ns: u64,
    clock: Arc<AtomicU64>,
    sequence: u64,
    queue: EventQueue,
    timers: BTreeMap<TimerKey, Waker>,
    random: Random,
    hosts: Vec<Host>,
    /// Wires by sending, then by receiving host.
    wires: Vec<Vec<Wire>>,
    endpoints: Vec<Endpoint>,
    addresses: BTreeMap<String, u32>,
    dials: Vec<Dial>,
    ends: Ends,
    qps: Vec<Qp>,
    packets: Packets,
    /// Lanes by queue pair; `None` where processors copy.
    lanes: Vec<Option<Box<Lane>>>,
    /// Datagrams in flight.
    datagrams: Slab<Datagram>,
    /// Buffer for packets to send.
    scratch: Vec<u8>,
    wakers: Vec<Waker>,
    /// True if a doorbell has rung in the current step.
    rang: bool,
    killed: VecDeque<HostId>,
    /// Kernel messages that wait until their link is up.
    delayed_messages: Vec<KernelMessage>,
}

impl Net {
    pub(crate) fn new(seed: u64, hardware: Hardware) -> Net {
        Net {
            hardware,
            counters: Counters::default(),
            digest: Digest::default(),
            log: Log::default(),
            now_ns: 0,
            clock: Arc::default(),
            sequence: 0,
            queue: EventQueue::default(),
            timers: BTreeMap::new(),
            random: Random::new(seed, "wires"),
            hosts: Vec::new(),
            wires: Vec::new(),
            endpoints: Vec::new(),
            addresses: BTreeMap::new(),
            dials: Vec::new(),
            ends: Ends::default(),
            qps: Vec::new(),
            packets: Packets::default(),
            lanes: Vec::new(),
            datagrams: Slab::default(),
            scratch: Vec::new(),
            wakers: Vec::new(),
            rang: false,
            killed: VecDeque::new(),
            delayed_messages: Vec::new(),
        }
    }

    /// Returns the time, for readers without the lock.
    pub(crate) fn clock(&self) -> Arc<AtomicU64> {
        self.clock.clone()
    }

    // Time.

    /// Handles events until one wakes a task, rings a doorbell or kills a host.
    pub(crate) fn step(&mut self, deadline_ns: u64) -> Step {
        let mut events = 0;
        self.rang = false;
        while self.wakers.is_empty() && !self.rang && self.killed.is_empty() && events < STEP_EVENTS_MAX {
            let Some(at_ns) = self.next_ns() else {
                return if events > 0 { Step::Advanced { events } } else { Step::NoEvents };
            };
            if at_ns > deadline_ns {
                self.set_now(deadline_ns);
                return if events > 0 { Step::Advanced { events } } else { Step::DeadlineReached };
            }
            self.set_now(at_ns);
            self.handle_next();
            events += 1;
        }
        self.counters.events += events;
        Step::Advanced { events }
    }

    fn next_ns(&self) -> Option<u64> {
        let timer = self.timers.first_key_value().map(|(key, _)| *key);
        [timer, self.queue.next()].into_iter().flatten().min().map(|(at_ns, _)| at_ns)
    }

    pub(crate) fn set_now(&mut self, now_ns: u64) {
        // Time never moves backwards, although a deadline may already have passed.
        self.now_ns = self.now_ns.max(now_ns);
        self.clock.store(self.now_ns, Relaxed);
    }

    /// Handles the next timer or event. Panics if there is none.
    fn handle_next(&mut self) {
        let timer = self.timers.first_key_value().map(|(key, _)| *key);
        let timer_is_next = match (timer, self.queue.next()) {
            (Some(timer), Some(event)) => timer < event,
            (timer, _) => timer.is_some(),
        };
        if timer_is_next {
            let (key, waker) = self.timers.pop_first().expect("it was found just before");
            self.digest.fold([self.now_ns, 0, key.1, 0]);
            self.wakers.push(waker);
        } else {
            let event = self.queue.pop().expect("it was found just before");
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event) {
        let [kind, object, number] = event.digest_words();
        self.digest.fold([self.now_ns, kind, object, number]);
        match event {
            Event::Depart { qp } => self.handle_depart(qp),
            Event::Land { packet } => self.handle_land(packet),
            Event::ReceiverRetry { qp } => self.handle_receiver_retry(qp),
            Event::Respond { qp, number } => self.handle_respond(qp, number),
            Event::AtomicWritten { endpoint } => self.handle_atomic_written(endpoint),
            Event::Acknowledge { qp, number } => self.handle_acknowledge(qp, number),
            Event::AckTimeout { qp, number } => self.handle_ack_timeout(qp, number),
            Event::Visible { endpoint } => self.ring_if_armed(endpoint),
            Event::PeerLeft { end } => self.handle_peer_left(end),
            Event::PeerCrashed { end } => self.handle_peer_crashed(end),
            Event::PeerDetached { end } => self.handle_peer_detached(end),
            Event::DialArrives { dial } => self.handle_dial_arrives(dial),
            Event::DialAnswered { dial, end } => self.handle_dial_answered(dial, end),
            Event::DialTimeout { dial } => self.handle_dial_timeout(dial),
            Event::Fence { endpoint } => self.handle_fence(endpoint),
            Event::CheckWindows { end } => self.handle_check_windows(end),
            Event::KeysArrive { end, keys, answer } => self.handle_keys_arrive(end, keys, answer),
            Event::KeysRequested { request } => self.handle_keys_requested(request),
            Event::KeyRequestTimeout { qp } => self.handle_key_request_timeout(qp),
            Event::Run { qp } => self.handle_run(qp),
            Event::Datagram { index } => self.handle_datagram(index),
        }
    }

    fn schedule(&mut self, at_ns: u64, event: Event) {
        debug_assert!(at_ns >= self.now_ns, "{event:?} would happen in the past");
        self.sequence += 1;
        self.queue.add(at_ns, self.sequence, event);
    }

    pub(crate) fn set_timer(&mut self, due_ns: u64, waker: Waker) -> TimerKey {
        self.sequence += 1;
        let key = (due_ns.max(self.now_ns), self.sequence);
        self.timers.insert(key, waker);
        key
    }

    pub(crate) fn cancel_timer(&mut self, timer: TimerKey) -> Option<Waker> {
        self.timers.remove(&timer)
    }

    /// Fires all timers now.
    pub(crate) fn wake_sleepers(&mut self) {
        self.wakers.extend(std::mem::take(&mut self.timers).into_values());
    }

    pub(crate) fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wakers)
    }

    pub(crate) fn poll_killed(&mut self) -> Option<HostId> {
        self.killed.pop_front()
    }

    // Trace and digest.

    pub(crate) fn note(&mut self, host: Option<HostId>, line: &str) {
        self.log.add(self.now_ns, host.map(|host| host.0), line);
    }

    pub(crate) fn fold(&mut self, number: u64) {
        self.digest.fold([self.now_ns, FOLD_TAG, number, 0]);
    }

    /// Counts the poll of a task, unless its host is paused.
    pub(crate) fn begin_poll(&mut self, host: Option<HostId>, task: u64) -> HostState {
        let state = host.map_or(HostState::Running, |host| self.state(host));
        if state != HostState::Paused {
            self.counters.polls += 1;
            self.digest.fold([self.now_ns, POLL_TAG, task, 0]);
        }
        state
    }

    /// Adds a trace line, which is formatted only if it is kept.
    #[inline]
    fn trace(&mut self, host: u32, line: impl FnOnce(&Net) -> String) {
        if self.log.is_on() {
            let line = line(self);
            self.log.add(self.now_ns, Some(host), &line);
        }
    }

    // Hosts and wires.

    /// Adds a process, on a new host or on that of `neighbour`.
    pub(crate) fn add_process(&mut self, neighbour: Option<HostId>) -> HostId {
        let added = HostId(self.hosts.len() as u32);
        let machine = neighbour.map_or(added, |other| self.machine_of(other));
        let adapter = self.hardware.profile(Reach::BetweenHosts).adapter;
        let stages = adapter.map(|adapter| Box::new(Stages::new(adapter)));
        self.hosts.push(Host { state: HostState::Running, machine, deferred: Vec::new(), stages });
        let wire = |other| {
            let profile = self.hardware.profile(self.reach(added, HostId(other)));
            Wire::new(Link::new(profile.wire_ns, profile.bandwidth_bytes_per_us))
        };
        let wires: Vec<Wire> = (0..=added.0).map(wire).collect();
        self.wires.iter_mut().zip(&wires).for_each(|(others, wire)| others.push(wire.clone()));
        self.wires.push(wires);
        added
    }

    pub(crate) fn machine_of(&self, host: HostId) -> HostId {
        self.hosts[host.0 as usize].machine
    }

    /// Returns all processes on the host of `host`.
    pub(crate) fn processes_on_machine_of(&self, host: HostId) -> Vec<HostId> {
        let all = (0..self.hosts.len() as u32).map(HostId);
        all.filter(|other| self.machine_of(*other) == self.machine_of(host)).collect()
    }

    pub(crate) fn reach(&self, one: HostId, other: HostId) -> Reach {
        let is_shared = self.machine_of(one) == self.machine_of(other);
        if self.hardware.has_processes() && is_shared { Reach::WithinHost } else { Reach::BetweenHosts }
    }

    /// Returns the hardware between the ends of a connection.
    fn profile(&self, end: EndId) -> &Profile {
        self.hardware.profile(self.ends[end].reach)
    }

    /// Returns the end to which a queue pair belongs.
    fn end_of(&self, qp: u32) -> EndId {
        self.qps[qp as usize].end
    }

    fn endpoint_of(&self, qp: u32) -> &Endpoint {
        &self.endpoints[self.ends[self.end_of(qp)].endpoint as usize]
    }

    fn profile_of(&self, qp: u32) -> &Profile {
        self.profile(self.end_of(qp))
    }

    /// Returns the hosts of a queue pair and of its peer.
    fn hosts_of(&self, qp: u32) -> (u32, u32) {
        let end = &self.ends[self.end_of(qp)];
        (end.from_host, end.to_host)
    }

    /// Returns the hardware between a fabric and its peer.
    pub(crate) fn profile_to(&self, endpoint: u32, peer: PeerId) -> (&Profile, Reach) {
        let end = self.endpoints[endpoint as usize].end(peer);
        let reach = end.map_or(Reach::BetweenHosts, |end| self.ends[end].reach);
        (self.hardware.profile(reach), reach)
    }

    pub(crate) fn state(&self, host: HostId) -> HostState {
        self.hosts[host.0 as usize].state
    }

    pub(crate) fn link(&self, from: HostId, to: HostId) -> Link {
        *self.wires[from.0 as usize][to.0 as usize].link()
    }

    pub(crate) fn set_link(&mut self, from: HostId, to: HostId, link: Link) {
        self.trace(from.0, |_| format!("link to host-{}: {link:?}", to.0));
        self.wires[from.0 as usize][to.0 as usize].set(link);
        if link.up {
            self.send_delayed_messages();
        }
    }

    /// Sends a packet with `len` bytes of payload, not before `ready_ns`.
    #[inline]
    fn transmit(&mut self, from: u32, to: u32, ready_ns: u64, len: u64) -> Transit {
        let header_bytes = self.hardware.profile(self.reach(HostId(from), HostId(to))).header_bytes;
        let wire = &mut self.wires[from as usize][to as usize];
        wire.send_piece(ready_ns, len + header_bytes, &mut self.random, &mut self.counters)
    }

    /// Returns the time at which a kernel message arrives; `None` if the link is down.
    fn kernel_message_ns(&self, from: u32, to: u32) -> Option<u64> {
        let link = self.wires[from as usize][to as usize].link();
        link.up.then(|| self.now_ns + link.latency_ns)
    }

    /// Returns true if the host is running, so that the caller handles `event` now. Defers it if the host is paused.
    fn runs_or_defers(&mut self, host: u32, event: Event) -> bool {
        let host = &mut self.hosts[host as usize];
        if host.state == HostState::Paused {
            host.deferred.push(event);
        }
        host.state == HostState::Running
    }

    /// Returns true if processors copy between the ends instead of adapters.
    fn copies_by_processor(&self, end: EndId) -> bool {
        !self.profile(end).is_adapter()
    }

    /// Returns true if an adapter executes requests. The requester's adapter must know a key before it sends the key; a
    /// process looks keys up when packets arrive.
    fn has_adapter(&self, end: EndId) -> bool {
        let profile = self.profile(end);
        profile.is_adapter() && !profile.is_driven_by_process()
    }

    // Events of fabrics.

    /// Returns the time since the last packet from a peer's process; `None` unless the process acknowledges in
    /// software.
    pub(crate) fn heard_ns(&self, endpoint: u32, peer: PeerId) -> Option<u64> {
        let end = self.open_end(endpoint, peer)?;
        self.profile(end).is_driven_by_process().then(|| self.now_ns - self.ends[end].heard_ns)
    }

    /// Returns the measured time from a request to its acknowledgement; `None` if processors copy.
    pub(crate) fn round_trip_ns(&self, endpoint: u32, peer: PeerId) -> Option<u64> {
        let end = self.open_end(endpoint, peer)?;
        self.lane_round_trip_ns(end)
    }

    fn complete(&mut self, endpoint: u32, completion: Completion) {
        self.deliver(endpoint, completion.peer, FabricEvent::Completed(completion));
    }

    fn deliver(&mut self, endpoint: u32, peer: PeerId, event: FabricEvent) {
        self.deliver_after(0, endpoint, peer, event);
    }

    /// Queues an event that becomes visible after `after_ns`.
    fn deliver_after(&mut self, after_ns: u64, endpoint: u32, peer: PeerId, event: FabricEvent) {
        let (profile, _) = self.profile_to(endpoint, peer);
        let spin_ns = profile.adapter.map_or(0, |adapter| adapter.spin_ns);
        let is_asleep = self.endpoints[endpoint as usize].is_asleep(self.now_ns + after_ns, spin_ns);
        let delay_ns = after_ns + if is_asleep { profile.interrupt_ns } else { profile.poll_ns };
        let at_ns = self.endpoints[endpoint as usize].push(self.now_ns + delay_ns, event);
        if at_ns > self.now_ns {
            self.schedule(at_ns, Event::Visible { endpoint });
        } else {
            self.ring_if_armed(endpoint);
        }
    }

    /// Queues a completion for the next poll.
    fn complete_unsolicited(&mut self, endpoint: u32, completion: Completion) {
        let (profile, _) = self.profile_to(endpoint, completion.peer);
        let at_ns = self.now_ns + profile.poll_ns;
        self.endpoints[endpoint as usize].push(at_ns, FabricEvent::Completed(completion));
    }

    /// Rings the doorbell if it is armed, because an event has become visible.
    fn ring_if_armed(&mut self, endpoint: u32) {
        if self.endpoints[endpoint as usize].is_armed {
            self.wake(endpoint);
        }
    }

    pub(crate) fn wake(&mut self, endpoint: u32) {
        self.rang = true;
        let now_ns = self.now_ns;
        self.endpoints[endpoint as usize].wake(now_ns, &mut self.wakers);
    }

    fn report(&mut self, endpoint: u32, event: FabricEvent) {
        let host = self.endpoints[endpoint as usize].host;
        self.trace(host, |_| describe(&event));
        // Earlier events keep their order, and also become visible now.
        self.endpoints[endpoint as usize].make_all_visible(self.now_ns);
        self.endpoints[endpoint as usize].push(self.now_ns, event);
        self.wake(endpoint);
    }

    pub(crate) fn poll(&mut self, endpoint: u32, events: &mut Vec<FabricEvent>) -> usize {
        let count = self.endpoints[endpoint as usize].poll(self.now_ns, events);
        for event in &events[events.len() - count..] {
            let FabricEvent::Completed(completion) = event else { continue };
            self.counters.completions += 1;
            if let CompletionKind::Received { .. } | CompletionKind::Notified { .. } = completion.kind {
                let end =
                    self.endpoints[endpoint as usize].end(completion.peer).expect("a sender has an end");
                let qp = self.ends[end].unpolled.pop_front().expect("it was recorded on delivery");
                self.add_receive(qp);
            }
        }
        count
    }

    /// Returns `None` once the doorbell has advanced beyond `seen`; otherwise registers `waker`.
    pub(crate) fn listen(&mut self, endpoint: u32, seen: u32, waker: &Waker) -> Option<()> {
        let endpoint = &mut self.endpoints[endpoint as usize];
        if endpoint.doorbell != seen {
            return None;
        }
        endpoint.listen(waker);
        Some(())
    }

    pub(crate) fn doorbell(&self, endpoint: u32) -> u32 {
        self.endpoints[endpoint as usize].doorbell
    }

    pub(crate) fn arm(&mut self, endpoint: u32, is_armed: bool) {
        let now_ns = self.now_ns;
        let endpoint = &mut self.endpoints[endpoint as usize];
        if is_armed && !endpoint.is_armed {
            endpoint.awake_ns = now_ns;
        }
        endpoint.is_armed = is_armed;
    }
}

/// Describes an event for the trace, without the peer's hello.
fn describe(event: &FabricEvent) -> String {
    match event {
        FabricEvent::Connected { peer, dialled, .. } => {
            let dialler = if dialled.is_some() { "this end" } else { "the peer" };
            format!("connected to peer {}, dialled by {dialler}", peer.0)
        }
        FabricEvent::Completed(_) => "a request completed, or a message or immediate arrived".to_owned(),
        FabricEvent::ConnectFailed(ConnectFailure { address, reason, .. }) => {
            format!("not connected to {address}: {reason}")
        }
        FabricEvent::Deregistered { key } => format!("key {} is deregistered", key.0),
        FabricEvent::Room { peer } => format!("room for peer {}", peer.0),
        FabricEvent::Disconnected { peer } => format!("disconnected from peer {}", peer.0),
        FabricEvent::CutOff { peer, .. } => format!("peer {} is cut off", peer.0),
    }
}

/// Maximum number of events per call of [`Net::step`], so that the world checks its limit of steps in between.
const STEP_EVENTS_MAX: u64 = 1024;
/// Tags in the digest of polls, of [`Net::fold`], and of posts. They differ from the tags of events.
const POLL_TAG: u64 = 100;
const FOLD_TAG: u64 = 101;
const POST_TAG: u64 = 101;
