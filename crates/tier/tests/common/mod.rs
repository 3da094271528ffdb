//! A cluster of engines in one thread, in virtual time. Messages arrive in order, and the test decides when.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod store;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use halite_fabric::{Key, PeerId};
use halite_mem::{GracePeriod, PagePolicy, Segment, Window};
use halite_tier::access::{DataPath, SlotRef};
use halite_tier::directory::{Directory, Transaction};
use halite_tier::effect::{
    Command, CommandError, CopyFailure, Effect, OpId, Outcome, Placement, PostedTo, Token,
};
use halite_tier::engine::{Connection, Engine, EngineConfig};
use halite_tier::ids::{Incarnation, NodeId, NodeIncarnation, Principal, SessionId};
use halite_tier::layout::{self, Extent};
use halite_tier::link;
use halite_tier::mapper::Reach;
use halite_tier::message::{self, Message, RegionCommand, RegionInfo};
use halite_tier::news::News;
use halite_tier::permissions::Permissions;

pub const ARENA_BYTES: u64 = 4 << 20;
pub const CHUNK_BYTES: u64 = 4096;
pub const LEASE_NS: u64 = 1_000_000;

/// Creates the directory of a node.
pub type DirectoryOf = Box<dyn Fn(NodeIncarnation) -> Box<dyn Directory>>;

type Arenas = Arc<Mutex<BTreeMap<(usize, Key), Window>>>;

/// The arenas of all hosts. On every host, a peer's number is the index of its host plus one.
struct ArenaReach {
    arenas: Arenas,
    /// True if nodes reach the memory of peers by posted operations only.
    posted: bool,
}

impl Reach for ArenaReach {
    fn window(&self, peer: PeerId, key: Key) -> Option<Window> {
        let arenas = self.arenas.lock().unwrap();
        arenas.get(&(peer.0 as usize - 1, key)).filter(|_| !self.posted).cloned()
    }
}

/// Work that a driver does outside of its engine.
enum Work {
    Copy {
        from: Window,
        to: Window,
    },
    /// A posted read from the memory of another host.
    Fetch {
        host: usize,
        from: Window,
        to: Window,
    },
    Fill {
        window: Window,
        byte: u8,
    },
}

impl Work {
    fn run(self) {
        match self {
            Work::Copy { from, to } | Work::Fetch { from, to, .. } => {
                to.copy_from(0, &from, 0, to.len()).unwrap()
            }
            Work::Fill { window, byte } => window.fill(0, window.len(), byte).unwrap(),
        }
    }
}

/// A posted write in flight.
struct Posted {
    host: usize,
    peer: PeerId,
    to: Window,
    bytes: Vec<u8>,
}

/// The grace periods that a host waits for: loads and stores, and posted accesses.
struct PendingGrace {
    token: Token,
    grace: GracePeriod,
    posted: Vec<u64>,
}

/// The state of a peer, as reported to the driver, until its cut-off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PeerState {
    Up,
    Down,
}

pub struct Host {
    pub engine: Engine,
    pub path: Arc<DataPath>,
    pub incarnation: NodeIncarnation,
    pub session: SessionId,
    pub running: bool,
    grace_periods: Vec<PendingGrace>,
    finished: BTreeMap<OpId, Result<Outcome, CommandError>>,
    cut_offs: Vec<PeerId>,
    /// The last report about each peer; the engine reports each change once, in this order.
    peers: BTreeMap<PeerId, PeerState>,
    segments: u32,
    /// News that a driver would log.
    pub news: Vec<News>,
}

/// Several nodes and the wires between them.
#[derive(Default)]
pub struct Cluster {
    pub hosts: Vec<Host>,
    pub now_ns: u64,
    pub wires: BTreeMap<(usize, usize), VecDeque<Vec<u8>>>,
    /// Time of day on the nodes' clocks at the start of the test, in ns; 0 for nodes that are not listed.
    pub epochs_ns: BTreeMap<u32, u64>,
    /// Wires that deliver nothing for now.
    pub held: Vec<(usize, usize)>,
    arenas: Arenas,
    posted: bool,
    /// Creates the directory of each node; `None` for embedded directories.
    pub directory_of: Option<DirectoryOf>,
    /// Transactions for the outside store, by host.
    pub store: Vec<(usize, u64, Transaction)>,
    /// True if cut-offs succeed, as after a kill; false if they leave zombies.
    pub kills: bool,
    /// True if adapters connect hosts: they cut off without a kill, and can reconnect.
    pub adapters: bool,
    /// Maximum number of nodes in a cluster whose nodes all connect to each other.
    pub full_mesh_nodes_max: usize,
    /// True if dials are neither answered nor refused.
    pub silent_dials: bool,
    /// True if dials take long; `undialled` holds the dials in flight.
    pub slow_to_dial: bool,
    undialled: Vec<(usize, String)>,
    /// Directions in which messages are lost.
    pub cut: BTreeSet<(usize, usize)>,
    /// A wire whose messages [`Cluster::step_one`] rarely delivers.
    pub slow_wire: Option<(usize, usize)>,
    /// True if drivers copy slowly; `copies` holds the copies in flight.
    pub slow_to_copy: bool,
    copies: Vec<(usize, Token, Work)>,
    writes: BTreeMap<u64, Posted>,
    last_write: u64,
    /// True if drivers clean freed memory slowly; `uncleaned` holds the memory that is not cleaned yet.
    pub slow_to_clean: bool,
    uncleaned: Vec<(usize, Token, Key, u64, u64)>,
    /// The wire whose frames are recorded in `kept`.
    recording: Option<(usize, usize)>,
    kept: Vec<Vec<u8>>,
}

impl Cluster {
    /// Creates `count` nodes with memory, all connected, each with a session of principal `ada`.
    pub fn of(count: usize) -> Cluster {
        Cluster::reaching(count, false)
    }

    /// Creates nodes behind adapters that connect to the first node, and to other nodes on first use.
    pub fn on_demand(count: usize) -> Cluster {
        let mut cluster = Cluster::of(1);
        (cluster.adapters, cluster.full_mesh_nodes_max) = (true, 1);
        for node in 1..count {
            cluster.add(node as u32, ARENA_BYTES);
        }
        cluster
    }

    /// Creates `count` connected nodes as [`Cluster::of`] does; with `posted`, nodes reach each other's memory by
    /// posted operations only.
    pub fn reaching(count: usize, posted: bool) -> Cluster {
        let mut cluster = Cluster { posted, kills: true, full_mesh_nodes_max: 64, ..Cluster::default() };
        for index in 0..count {
            cluster.add(index as u32, ARENA_BYTES);
        }
        cluster
    }

    /// Adds a node, connects it to all running nodes, and runs until idle.
    pub fn add(&mut self, node: u32, bytes_total: u64) -> usize {
        let index = self.add_late(node, bytes_total);
        self.run();
        index
    }

    /// Adds a node and connects it to all running nodes, with messages still in flight.
    pub fn add_late(&mut self, node: u32, bytes_total: u64) -> usize {
        let index = self.add_unmet(node, bytes_total);
        let met = if index < self.full_mesh_nodes_max { index } else { 1 };
        for other in 0..met {
            if self.hosts[other].running {
                self.connect(index, other);
            }
        }
        index
    }

    /// Adds a node without connections.
    pub fn add_unmet(&mut self, node: u32, bytes_total: u64) -> usize {
        let index = self.hosts.len();
        let incarnation = NodeIncarnation { node: NodeId(node), id: Incarnation(100 + index as u64) };
        let config = EngineConfig {
            incarnation,
            pid: index as u32,
            lease_ns: LEASE_NS,
            bytes_total,
            segment_bytes: ARENA_BYTES / 4,
            epoch_ns: self.epochs_ns.get(&node).copied().unwrap_or(0),
            address: index.to_string(),
            provider: "test".to_owned(),
            full_mesh_nodes_max: self.full_mesh_nodes_max,
        };
        let path = Arc::new(DataPath::default());
        let reach = Arc::new(ArenaReach { arenas: self.arenas.clone(), posted: self.posted });
        let mut engine = match &self.directory_of {
            None => Engine::new(config, path.clone(), reach, self.now_ns),
            Some(of) => Engine::with_directory(config, path.clone(), reach, of(incarnation), self.now_ns),
        };
        let session = engine.open_session(Principal("ada".into())).unwrap();
        let (grace_periods, cut_offs, finished) = (Vec::new(), Vec::new(), BTreeMap::new());
        self.hosts.push(Host {
            engine,
            path,
            incarnation,
            session,
            running: true,
            grace_periods,
            finished,
            cut_offs,
            peers: BTreeMap::new(),
            segments: 0,
            news: Vec::new(),
        });
        index
    }

    pub fn connect(&mut self, a: usize, b: usize) {
        let (hello_a, hello_b) = (self.hosts[a].engine.hello(), self.hosts[b].engine.hello());
        self.hosts[a].engine.handle_connected(self.now_ns, connection_to(b, true), &hello_b);
        self.hosts[b].engine.handle_connected(self.now_ns, connection_to(a, false), &hello_a);
    }

    /// Runs until idle.
    pub fn run(&mut self) {
        while self.step() {}
    }

    /// Performs the effects of each node and delivers one message per wire; returns true if anything happened.
    pub fn step(&mut self) -> bool {
        let mut progress = false;
        for index in 0..self.hosts.len() {
            if self.hosts[index].running {
                progress |= self.perform(index);
                progress |= self.poll_graces(index);
            }
        }
        let wires: Vec<(usize, usize)> = self.wires.keys().copied().collect();
        for (from, to) in wires {
            if self.held.contains(&(from, to)) {
                continue;
            }
            let Some(bytes) = self.wires.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { continue };
            if self.recording == Some((from, to)) {
                self.kept.push(bytes.clone());
            }
            if self.hosts[to].running {
                self.hosts[to].engine.handle_message(self.now_ns, PeerId(from as u32 + 1), &bytes);
            }
            progress = true;
        }
        progress
    }

    /// Carries out the effects of an engine.
    pub fn perform(&mut self, index: usize) -> bool {
        let (mut progress, mut dialled) = (false, Vec::new());
        while let Some(effect) = self.hosts[index].engine.poll_effect() {
            progress = true;
            let (now_ns, host) = (self.now_ns, &mut self.hosts[index]);
            match effect {
                Effect::Send { peer, bytes, .. } => {
                    assert_ne!(
                        host.peers.get(&peer),
                        Some(&PeerState::Down),
                        "a message to {peer:?}, which is down"
                    );
                    let way = (index, peer.0 as usize - 1);
                    if !self.cut.contains(&way) {
                        self.wires.entry(way).or_default().push_back(bytes)
                    }
                }
                Effect::CutOff(peer) => host.cut_offs.push(peer),
                Effect::Disconnect(peer) if self.adapters => host.cut_offs.push(peer),
                Effect::Dial { address } => dialled.push(address),
                Effect::PeerUp { peer, .. } => {
                    assert_ne!(
                        host.peers.insert(peer, PeerState::Up),
                        Some(PeerState::Up),
                        "{peer:?} comes up once"
                    );
                }
                Effect::PeerDown(peer) => {
                    let before = host.peers.insert(peer, PeerState::Down);
                    assert_eq!(before, Some(PeerState::Up), "{peer:?} goes down once");
                }
                Effect::PeerCutOff(peer) => {
                    assert_eq!(host.peers.remove(&peer), Some(PeerState::Down), "{peer:?} is cut off once");
                }
                Effect::Disconnect(_)
                | Effect::HandlesChanged(_)
                | Effect::MembersChanged
                | Effect::Warn { .. }
                | Effect::Draining { .. }
                | Effect::Drained { .. }
                | Effect::NumbersTaken { .. }
                | Effect::NamesAt(_)
                | Effect::NamesBack
                | Effect::OpenStore(_) => {}
                Effect::TryStore { requester, .. } => host.engine.handle_tried(now_ns, requester, Ok(())),
                Effect::News(news) => host.news.push(news),
                Effect::End(_) => host.running = false,
                Effect::Store { id, transaction } => self.store.push((index, id, transaction)),
                Effect::Grow { len } => {
                    let key = Key(host.segments);
                    host.segments += 1;
                    let segment = Segment::create("test", len, PagePolicy::Normal).unwrap();
                    let window = segment.window(0, len).unwrap();
                    self.arenas.lock().unwrap().insert((index, key), window.clone());
                    host.engine.handle_grown(now_ns, Some((key, window)));
                }
                Effect::Quiesce(quiesce) => {
                    let is_awaited = |write: &Posted| match &quiesce.posted {
                        PostedTo::All => true,
                        PostedTo::Peers(peers) => peers.contains(&write.peer),
                    };
                    let own = self.writes.iter().filter(|(_, write)| write.host == index);
                    let posted = own.filter(|(_, write)| is_awaited(write)).map(|(id, _)| *id).collect();
                    let grace = host.path.pins().start_grace_period();
                    host.grace_periods.push(PendingGrace { token: quiesce.token, grace, posted });
                }
                Effect::Copy { token, from, to } => {
                    self.copies.push((index, token, Work::Copy { from, to }));
                }
                Effect::Fill { token, window, byte } => {
                    self.copies.push((index, token, Work::Fill { window, byte }));
                }
                Effect::Fetch { token, peer, address, key, offset, len } => {
                    let (source, arenas) = (peer.0 as usize - 1, self.arenas.lock().unwrap());
                    let from = arenas.get(&(source, address.key)).and_then(|w| w.slice(address.offset, len));
                    let to = arenas[&(index, key)].slice(offset, len).expect("a local place");
                    match from {
                        Some(from) => {
                            self.copies.push((index, token, Work::Fetch { host: source, from, to }))
                        }
                        None => host.engine.handle_copy_failed(now_ns, token, CopyFailure::PeerGone),
                    }
                }
                Effect::Populate { token, len, .. } => {
                    host.engine.handle_populated(now_ns, token, len, true);
                }
                Effect::Discard { token, key, offset, len } => {
                    self.uncleaned.push((index, token, key, offset, len));
                }
                Effect::Finish { op, outcome } => {
                    host.finished.insert(op, outcome);
                }
            }
        }
        if !self.slow_to_copy {
            self.finish_copies();
        }
        if !self.slow_to_clean {
            self.clean();
        }
        let cut_offs = std::mem::take(&mut self.hosts[index].cut_offs);
        for address in dialled {
            self.dial(index, &address);
        }
        if self.adapters {
            for peer in cut_offs {
                self.hang_up(index, peer.0 as usize - 1);
            }
        } else if self.kills {
            for peer in cut_offs {
                self.hosts[index].engine.handle_kill(self.now_ns, peer);
                self.kill(peer.0 as usize - 1);
            }
        }
        progress
    }

    /// Breaks the connection between two hosts, so that both handle its end.
    pub fn disconnect(&mut self, one: usize, other: usize) {
        self.wires.remove(&(one, other));
        self.wires.remove(&(other, one));
        self.lose(one, other, false);
        self.lose(other, one, false);
    }

    /// Makes a host handle the end of its connection to another host, and with `exited` of the other host's process.
    pub fn lose(&mut self, host: usize, other: usize, has_exited: bool) {
        let (engine, peer) = (&mut self.hosts[host].engine, PeerId(other as u32 + 1));
        engine.handle_disconnected(self.now_ns, peer, None);
        engine.handle_cut_off(self.now_ns, peer, has_exited);
    }

    /// Ends a connection at one end, and at the other end unless messages between the two hosts are lost.
    fn hang_up(&mut self, from: usize, to: usize) {
        self.wires.remove(&(from, to));
        self.wires.remove(&(to, from));
        let heard =
            [(from, to), (to, from)].into_iter().take(if self.cut.contains(&(from, to)) { 1 } else { 2 });
        for (host, peer) in heard.filter(|(host, _)| self.hosts[*host].running).collect::<Vec<_>>() {
            self.lose(host, peer, false);
        }
    }

    fn dial(&mut self, from: usize, address: &str) {
        let to: usize = address.parse().expect("a host's address");
        if self.silent_dials {
            return;
        }
        if self.slow_to_dial {
            return self.undialled.push((from, address.to_owned()));
        }
        if !self.adapters || !self.hosts[to].running || self.is_cut(from, to) {
            return self.hosts[from].engine.handle_dial_failed(address);
        }
        self.hang_up(to, from);
        self.connect(from, to);
    }

    /// Completes or fails the dials in flight from one host to another.
    pub fn finish_dials(&mut self, from: usize, to: usize, is_answered: bool) {
        let address = to.to_string();
        assert!(self.undialled.contains(&(from, address.clone())), "{from} dials {to}");
        self.undialled.retain(|dial| *dial != (from, address.clone()));
        match is_answered {
            true => self.connect(from, to),
            false => self.hosts[from].engine.handle_dial_failed(&address),
        }
        self.run();
    }

    /// Ends the dials in flight from one host to another as dials that no host answered in time.
    pub fn lose_dials(&mut self, from: usize, to: usize) {
        let address = to.to_string();
        let before = self.undialled.len();
        self.undialled.retain(|dial| *dial != (from, address.clone()));
        assert!(self.undialled.len() < before, "{from} dials {to}");
        self.hosts[from].engine.handle_dial_unanswered(self.now_ns, &address);
        self.run();
    }

    fn is_cut(&self, one: usize, other: usize) -> bool {
        self.cut.contains(&(one, other)) || self.cut.contains(&(other, one))
    }

    /// Partitions `these` from `those` in both directions.
    pub fn part(&mut self, these: &[usize], those: &[usize]) {
        let pairs = these.iter().flat_map(|one| those.iter().map(move |other| (*one, *other)));
        self.cut.extend(pairs.flat_map(|(one, other)| [(one, other), (other, one)]));
    }

    /// Returns the number of copies in flight.
    pub fn copies_under_way(&self) -> usize {
        self.copies.len()
    }

    /// Fails all copies in flight.
    pub fn fail_copies(&mut self) {
        for (index, token, _) in std::mem::take(&mut self.copies) {
            self.hosts[index].engine.handle_copy_failed(self.now_ns, token, CopyFailure::Unmapped);
        }
    }

    /// Completes all copies in flight.
    pub fn finish_copies(&mut self) {
        for (index, token, work) in std::mem::take(&mut self.copies) {
            if !self.hosts[index].running {
                continue;
            }
            match work {
                Work::Fetch { host, .. } if !self.hosts[host].running => {
                    self.hosts[index].engine.handle_copy_failed(self.now_ns, token, CopyFailure::PeerGone)
                }
                work => {
                    work.run();
                    self.hosts[index].engine.handle_copied(self.now_ns, token);
                }
            }
        }
    }

    /// Cleans all freed memory.
    pub fn clean(&mut self) {
        for (index, token, key, offset, len) in std::mem::take(&mut self.uncleaned) {
            let window = self.arenas.lock().unwrap()[&(index, key)].clone();
            window.fill(offset, len, 0).unwrap();
            self.hosts[index].engine.handle_discarded(self.now_ns, token);
        }
    }

    /// Performs one action, chosen by `pick`: the effects of a node, or one message of one wire.
    pub fn step_one(&mut self, pick: u64) -> bool {
        let wires: Vec<(usize, usize)> =
            self.wires.iter().filter(|(_, queue)| !queue.is_empty()).map(|(wire, _)| *wire).collect();
        let faster: Vec<(usize, usize)> =
            wires.iter().filter(|wire| Some(**wire) != self.slow_wire).copied().collect();
        let wires = if faster.is_empty() || pick.is_multiple_of(8) { wires } else { faster };
        let choice = (pick >> 8) as usize % (wires.len() + self.hosts.len());
        if let Some((from, to)) = wires.get(choice) {
            let bytes = self.wires.get_mut(&(*from, *to)).and_then(VecDeque::pop_front).expect("not empty");
            if self.hosts[*to].running {
                self.hosts[*to].engine.handle_message(self.now_ns, PeerId(*from as u32 + 1), &bytes);
            }
            return true;
        }
        let mut progress = !wires.is_empty();
        // The effects of any node may be late, but not forever.
        for index in 0..self.hosts.len() {
            if self.hosts[index].running && (index == choice - wires.len() || wires.is_empty()) {
                progress |= self.perform(index);
                progress |= self.poll_graces(index);
            }
        }
        progress
    }

    fn poll_graces(&mut self, index: usize) -> bool {
        let host = &mut self.hosts[index];
        let before = host.grace_periods.len();
        for waited in std::mem::take(&mut host.grace_periods) {
            let is_in_flight = waited.posted.iter().any(|id| self.writes.contains_key(id));
            match waited.grace.elapsed(host.path.pins()).filter(|_| !is_in_flight) {
                Some(elapsed) => host.engine.handle_quiescent(self.now_ns, waited.token, elapsed),
                None => host.grace_periods.push(waited),
            }
        }
        host.grace_periods.len() < before
    }

    /// Kills a process. All other hosts handle its exit.
    pub fn kill(&mut self, index: usize) {
        self.hosts[index].running = false;
        self.wires.retain(|(from, to), _| *from != index && *to != index);
        for other in 0..self.hosts.len() {
            if other != index && self.hosts[other].running {
                self.lose(other, index, true);
            }
        }
    }

    /// Stops a process without notice.
    pub fn stop(&mut self, index: usize) {
        self.hosts[index].running = false;
    }

    /// Advances time in quarters of the lease, running in between.
    pub fn sleep(&mut self, duration_ns: u64) {
        let end = self.now_ns + duration_ns;
        while self.now_ns < end {
            self.pass(LEASE_NS.min(4 * (end - self.now_ns)) / 4);
            self.run();
        }
    }

    /// Advances time without running.
    pub fn pass(&mut self, duration_ns: u64) {
        self.now_ns += duration_ns;
        for host in self.hosts.iter_mut().filter(|host| host.running) {
            host.engine.handle_timeout(self.now_ns);
        }
    }

    /// Delivers a message to a host as if the other host `from` had sent it, whatever the state of `from`.
    pub fn forge(&mut self, from: usize, to: usize, message: &Message) {
        for frame in link::frames(&message::encode(message), 1 << 20) {
            self.hosts[to].engine.handle_message(self.now_ns, PeerId(from as u32 + 1), &frame);
        }
    }

    /// Records all frames that `from` sends to `to` from now on.
    pub fn record(&mut self, from: usize, to: usize) {
        self.recording = Some((from, to));
    }

    pub fn recorded(self) -> Vec<Vec<u8>> {
        self.kept
    }

    pub fn submit(&mut self, host: usize, command: Command) -> OpId {
        let host = &mut self.hosts[host];
        host.engine.submit(self.now_ns, host.session, command)
    }

    pub fn has_ended(&self, host: usize, op: OpId) -> bool {
        self.hosts[host].finished.contains_key(&op)
    }

    pub fn outcome(&mut self, host: usize, op: OpId) -> Option<Result<Outcome, CommandError>> {
        self.hosts[host].finished.remove(&op)
    }

    pub fn command(&mut self, host: usize, command: Command) -> Result<Outcome, CommandError> {
        let op = self.submit(host, command);
        self.run();
        self.outcome(host, op).expect("with everything delivered, the command has ended")
    }

    pub fn alloc(&mut self, host: usize, name: &str, len: u64, placement: Placement) -> SlotRef {
        slot(self.command(host, allocation(Some(name), len, placement)))
    }

    pub fn map(&mut self, host: usize, name: &str) -> SlotRef {
        self.map_for(host, name, Permissions::READ | Permissions::WRITE)
    }

    /// Maps a region with the permissions `wanted`.
    pub fn map_for(&mut self, host: usize, name: &str, wanted: Permissions) -> SlotRef {
        slot(self.command(host, Command::Map { name: name.into(), wanted }))
    }

    pub fn info(&mut self, host: usize, name: &str) -> RegionInfo {
        match self.command(host, Command::Stat(name.to_owned())) {
            Ok(Outcome::Info(info)) => *info,
            other => panic!("{name}: {other:?}"),
        }
    }

    /// Starts to free a region on node 1 that node 2 maps; node 2 is stopped and cannot be killed.
    pub fn free_region_of_stopped_mapper(&mut self, len: u64) -> OpId {
        self.kills = false;
        let lh = self.alloc(0, "salt", len, Placement::On(NodeId(1)));
        self.map(2, "salt");
        self.stop(2);
        self.submit(0, Command::RegionCommand(lh, RegionCommand::Free))
    }

    pub fn write(&self, host: usize, slot: SlotRef, offset: u64, bytes: &[u8]) {
        let (host, mut done) = (&self.hosts[host], 0);
        while done < bytes.len() {
            let step = host.path.write(host.session, slot, offset + done as u64, &bytes[done..]);
            done += step.expect("the region can be written");
        }
    }

    /// Posts a write, which is in flight until [`Cluster::complete`].
    pub fn post(&mut self, host: usize, slot: SlotRef, offset: u64, bytes: &[u8]) -> u64 {
        let extents = self.extents(host, slot);
        let extent = layout::slice(&extents, offset, offset + bytes.len() as u64)[0];
        let owner = self.hosts.iter().position(|host| host.incarnation == extent.owner).unwrap();
        let arena = &self.arenas.lock().unwrap()[&(owner, extent.key)];
        let to = arena.slice(extent.offset, extent.len).unwrap();
        self.last_write += 1;
        let write = Posted { host, peer: PeerId(owner as u32 + 1), to, bytes: bytes.to_vec() };
        self.writes.insert(self.last_write, write);
        self.last_write
    }

    /// Completes a posted write at its target and at its poster.
    pub fn complete(&mut self, write: u64) {
        let write = self.writes.remove(&write).expect("in flight");
        write.to.write(0, &write.bytes).unwrap();
    }

    pub fn read(&self, host: usize, slot: SlotRef, offset: u64, len: usize) -> Vec<u8> {
        let (host, mut done, mut bytes) = (&self.hosts[host], 0, vec![0; len]);
        while done < len {
            let step = host.path.read(host.session, slot, offset + done as u64, &mut bytes[done..]);
            done += step.expect("the region can be read");
        }
        bytes
    }

    /// Returns the places of a region's bytes, as `host` knows them.
    pub fn extents(&self, host: usize, slot: SlotRef) -> Vec<Extent> {
        let host = &self.hosts[host];
        let known = host.engine.known_region(host.session, slot).expect("the handle is good");
        known.pieces.into_iter().map(|(extent, _)| extent).collect()
    }

    /// Returns the bytes of a region from the arenas of all its owners.
    pub fn peek(&self, host: usize, slot: SlotRef) -> Vec<u8> {
        let mut bytes = Vec::new();
        for extent in self.extents(host, slot) {
            let owner = self.hosts.iter().position(|host| host.incarnation == extent.owner).unwrap();
            let mut part = vec![0; extent.len as usize];
            self.arenas.lock().unwrap()[&(owner, extent.key)].read(extent.offset, &mut part).unwrap();
            bytes.append(&mut part);
        }
        bytes
    }

    /// Returns the number of used bytes and of bytes in quarantine, as the node reports them.
    pub fn memory(&mut self, host: usize) -> (u64, u64) {
        let node = self.hosts[host].incarnation.node;
        match self.command(host, Command::Status) {
            Ok(Outcome::Status(all)) => {
                let own = all.iter().find(|status| status.node == node).expect("a node lists itself");
                (own.bytes_used, own.bytes_quarantined)
            }
            other => panic!("status answers {other:?}"),
        }
    }
}

/// Returns a command that allocates a region which all principals may read and write, and which is not populated.
pub fn allocation(name: Option<&str>, len: u64, placement: Placement) -> Command {
    Command::Alloc {
        name: name.map(str::to_owned),
        len,
        chunk_bytes: CHUNK_BYTES,
        placement,
        everyone: Permissions::READ | Permissions::WRITE,
        populate: false,
    }
}

pub fn slot(outcome: Result<Outcome, CommandError>) -> SlotRef {
    match outcome {
        Ok(Outcome::Mapped { slot, .. }) => slot,
        other => panic!("expected a handle, not {other:?}"),
    }
}

/// Returns a connection to `host` that cuts messages into small pieces.
fn connection_to(host: usize, dialled: bool) -> Connection {
    Connection { peer: PeerId(host as u32 + 1), dialled, send_bytes_max: 256 }
}
