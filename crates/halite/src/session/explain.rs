//! Explanations: the path to a region's bytes, the connection to another node, and the reasons for both.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use halite_fabric::{Atomics, Capabilities, Path, PeerId};
use halite_tier::access::Place;
use halite_tier::effect::Command;
use halite_tier::engine::KnownPeer;
use halite_tier::ids::{NodeId, NodeIncarnation};
use halite_tier::mapper::Known;
use halite_tier::message::{Loss, LossCause, NodeState, NodeStatus};
use halite_tier::permissions::Permissions;
use serde::Serialize;

use crate::blocking;
use crate::cluster::ways;
use crate::error::{RegionCause, RegionError};
use crate::session::{Commanded, Lh, Session};

/// Maximum wait until a peer's path is known, and the interval between checks.
const PATH_TIMEOUT: Duration = Duration::from_millis(500);
const PATH_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The path by which accesses of this node reach bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessPath {
    /// Loads and stores in this node's own memory.
    Local,
    /// Loads and stores in the memory of a peer.
    Direct,
    /// One-sided operations, posted to a peer.
    Posted,
    /// Accesses wait: the bytes are being moved to another node.
    Frozen,
    /// Accesses fail: the node that held the bytes, or the region's home, is down.
    Down,
}

impl AccessPath {
    fn reason(self) -> &'static str {
        match self {
            AccessPath::Local => "the bytes are in this node's own memory",
            AccessPath::Direct => "the owner is on this host, and its memory is mapped here",
            AccessPath::Posted => "the owner's memory is not mapped here, so each access is posted to it",
            AccessPath::Frozen => {
                "the bytes are being moved to another node; accesses wait until they are there"
            }
            AccessPath::Down => "the owner of the bytes, or the home of the region, is down or was restarted",
        }
    }

    fn words(self) -> &'static str {
        match self {
            AccessPath::Local => "local memory",
            AccessPath::Direct => "direct",
            AccessPath::Posted => "posted",
            AccessPath::Frozen => "frozen",
            AccessPath::Down => "down",
        }
    }
}

/// The operations that carry out a read, a write, an atomic and a copy of these bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Verbs {
    /// For `Session::read`.
    pub read: &'static str,
    /// For `Session::write`.
    pub write: &'static str,
    /// For `Session::fetch_add` and `Session::compare_swap`.
    pub atomic: &'static str,
    /// For `Session::copy` into these bytes, and for `Session::fill`.
    pub copy: &'static str,
}

/// Pieces of a region that one node holds and that are reached in the same way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PieceExplained {
    /// The node that holds the bytes.
    pub node: u32,
    /// Length in bytes, of all pieces together.
    pub bytes: u64,
    /// Number of pieces.
    pub pieces: u64,
    /// Offset of the first piece, in bytes.
    pub offset: u64,
    /// The network to the owner, if it is another node.
    pub provider: Option<&'static str>,
    /// The path by which accesses reach the bytes.
    pub path: AccessPath,
    /// The operations that carry out accesses.
    pub verbs: Verbs,
    /// Reason, as text.
    pub reason: &'static str,
}

/// The paths by which this session reaches a region, and the reasons for them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RegionExplained {
    /// The region's name, if it has one and its home answers.
    pub name: Option<String>,
    /// The region's identity.
    pub region: String,
    /// Length in bytes.
    pub len: u64,
    /// The region's home.
    pub home: u32,
    /// The region's epoch, if its home answers.
    pub epoch: Option<u64>,
    /// Permissions of this handle.
    #[serde(serialize_with = "as_letters")]
    pub permissions: Permissions,
    /// True if the region is immutable.
    pub sealed: bool,
    /// The region's bytes, by owner and path.
    pub pieces: Vec<PieceExplained>,
}

/// Capabilities of the network between two nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct PeerCapabilities {
    /// Name of the provider.
    pub provider: &'static str,
    /// True if loads and stores reach the peer's memory.
    pub direct: bool,
    /// Atomics on the peer's memory. If they are not coherent with the peer's processors, sessions send their atomics
    /// as calls.
    #[serde(serialize_with = "as_text")]
    pub atomics: Atomics,
    /// Number of lanes: messages and calls use one, accesses another if there are two.
    pub lanes: usize,
    /// Maximum length of a message, in bytes.
    pub send_bytes_max: u64,
    /// Maximum length of a write from unregistered memory, in bytes; `None` if there is no limit.
    pub inline_bytes_max: Option<u64>,
}

/// Packets between this node and another, since they connected.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PathExplained {
    /// Maximum payload of a packet, in bytes (path MTU).
    pub mtu_bytes: u32,
    /// Packets sent, including repetitions.
    pub sent: u64,
    /// Packets retransmitted.
    pub repeated: u64,
    /// True if both ends retransmit only the packets that were lost (selective repeat); otherwise they also retransmit
    /// all packets sent after a lost one (go-back-N).
    pub repeats_single: bool,
    /// Packets that arrived ahead of a lost or late one, and were kept.
    pub kept: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Packets received.
    pub arrived: u64,
    /// Received packets that had arrived before.
    pub duplicates: u64,
    /// Packets that may be in flight to the peer now, per lane.
    pub window_packets: Vec<u32>,
    /// Congestion control of this node's packets: `grant`, `delay` or `loss`.
    pub congestion: &'static str,
    /// Local address and port of the packets.
    pub from: SocketAddr,
    /// The peer's address and port.
    pub to: SocketAddr,
    /// Another source address of the peer's packets, if any; such packets are refused.
    pub refused_from: Option<SocketAddr>,
    /// Number of refused packets.
    pub refused: u64,
}

/// The connection between this node and another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PeerExplained {
    /// The other node.
    pub node: u32,
    /// Its incarnation, in hexadecimal: some readers of JSON lose digits of 64-bit numbers.
    pub incarnation: String,
    /// Its process id.
    pub pid: u32,
    /// Its state, as far as this node knows.
    #[serde(serialize_with = "as_word")]
    pub state: NodeState,
    /// True if this node is connected to it.
    pub connected: bool,
    /// Reason for the choice of this network, if there was a choice.
    pub provider_reason: Option<&'static str>,
    /// Capabilities of the network between the two nodes, if they are connected.
    pub capabilities: Option<PeerCapabilities>,
    /// Time since this node last heard from it, in ms, if it is connected.
    pub silent_ms: Option<u64>,
    /// Round trip, in ns, if it is connected over a network that measures it.
    pub round_trip_ns: Option<u64>,
    /// Packets to it and from it, if it is connected over a network that counts them.
    pub path: Option<PathExplained>,
    /// Number of calls and messages to the other node that are not answered yet, including abandoned ones whose answer
    /// may still arrive.
    pub calls_under_way: usize,
    /// Long answers to it that are kept until it has read them.
    pub answers_kept: usize,
    /// Bytes of this node's memory in quarantine because the other node could still reach them.
    pub bytes_quarantined_here: u64,
    /// Bytes of its own memory that it keeps in quarantine, if it answers.
    pub bytes_quarantined_there: Option<u64>,
    /// Nodes with memory that report it as cut off: none of its operations can land in their memory any more
    /// ([`Session::reach`]).
    pub cut_off_at: Vec<u32>,
    /// Reason for its state, as text.
    pub reason: String,
}

/// The current view that this session's node has of another node.
#[derive(Clone, PartialEq, Debug)]
pub struct PeerSeen {
    /// Address at which other hosts dial it, if they can.
    pub address: Option<SocketAddr>,
    /// True if the peer announces this node's cluster directory, and so is a process of this host. False for peers of
    /// other hosts or other directories, and for peers without shared memory, which announce no directory.
    pub is_here: bool,
    /// Time since this node last heard from it, if it is connected.
    pub silent: Option<Duration>,
    /// Round trip, if the network in between measures it.
    pub round_trip: Option<Duration>,
    /// Share of the packets to it that had to be sent again, if the network in between counts them.
    pub repeated: Option<f64>,
}

/// Explanations.
impl Session {
    /// Returns how this node sees `node`, without sending a message. Returns `None` if this node has never heard of
    /// `node`, and in a fork of the process.
    pub fn seen(&self, node: NodeId) -> Option<PeerSeen> {
        let driver = &self.inner.driver;
        if driver.is_forked() {
            return None;
        }
        let now = driver.now_ns();
        let (known, announced) = driver.look(|runner| {
            let engine = runner.engine()?;
            Some((engine.known_peer(now, node)?, engine.address_of(node).map(str::to_owned)))
        })?;
        let fabric = &driver.shared.fabric;
        let heard = known.peer.and_then(|peer| fabric.heard(peer)).unwrap_or(Duration::MAX);
        let path = known.peer.and_then(|peer| fabric.path(peer));
        let hosts = announced.as_deref().map(ways::hosts_of).unwrap_or_default();
        let is_chosen = |host: &&SocketAddr| path.as_ref().is_some_and(|path| path.ends.1.ip() == host.ip());
        Some(PeerSeen {
            is_here: announced.as_deref().is_some_and(|announced| driver.shared.ways.is_here(announced)),
            address: hosts.iter().find(is_chosen).or(hosts.first()).copied(),
            silent: known.silent_ns.map(|ns| Duration::from_nanos(ns).min(heard)),
            round_trip: known.peer.and_then(|peer| fabric.round_trip(peer)),
            repeated: path.map(|path| path.repeated as f64 / path.sent.max(1) as f64),
        })
    }

    /// Explains where the bytes of a region are, how accesses reach them, and why. Also works while the region's home
    /// is down.
    pub async fn explain(&self, lh: Lh) -> Result<RegionExplained, RegionError> {
        self.own("explain", lh)?;
        let driver = &self.inner.driver;
        if driver.is_closed() {
            return Err(self.failed_on("explain", lh, RegionCause::NodeClosed));
        }
        let info = self.stat_handle(lh).await.ok();
        let now = driver.now_ns();
        let (found, me) = driver.look(|runner| {
            let engine = runner.engine();
            (
                engine.and_then(|engine| engine.known_region(self.inner.id, lh.slot)),
                engine.map(|e| e.incarnation()),
            )
        });
        let (Some(known), Some(me)) = (found, me) else {
            return Err(self.failed_on("explain", lh, RegionCause::Stale));
        };
        let capabilities = |node| {
            let known = driver.look(|runner| runner.engine()?.known_peer(now, node));
            Some(driver.shared.fabric.capabilities(known?.peer?))
        };
        let pieces = pieces(&known, me, capabilities);
        Ok(RegionExplained {
            name: info.as_ref().and_then(|info| info.name.clone()),
            region: known.region.to_string(),
            len: known.pieces.iter().map(|(extent, _)| extent.len).sum(),
            home: known.home.node.0,
            epoch: info.map(|info| info.epoch),
            permissions: known.permissions,
            sealed: known.sealed,
            pieces,
        })
    }

    /// Explains the connection between this session's node and another.
    pub async fn explain_peer(&self, node: NodeId) -> Result<PeerExplained, RegionError> {
        let failed = |cause| RegionError { operation: "explain", object: format!("node {node}"), cause };
        // The directory knows nodes to which this one was never connected.
        let asked = Commanded::new(&self.inner, Command::Status).await;
        let statuses = match asked.map_err(|error| failed(error.into()))? {
            halite_tier::effect::Outcome::Status(statuses) => statuses,
            _ => unreachable!("a status was asked for"),
        };
        let mut cut_off_at = Vec::new();
        let owners =
            statuses.iter().filter(|status| status.state == NodeState::Alive && status.bytes_total > 0);
        for owner in owners.map(|status| status.node) {
            if self.reach(node, owner).await.is_ok_and(|reach| reach.is_cut_off) {
                cut_off_at.push(owner.0);
            }
        }
        let driver = &self.inner.driver;
        let now = driver.now_ns();
        let (found, is_self) = driver.look(|runner| {
            let engine = runner.engine();
            let is_self = engine.is_some_and(|engine| engine.incarnation().node == node);
            (engine.and_then(|engine| engine.known_peer(now, node)), is_self)
        });
        let known = found.ok_or_else(|| failed(RegionCause::UnknownNode(node)))?;
        let announced = driver.look(|runner| runner.engine()?.address_of(node).map(str::to_owned));
        let announced = announced.unwrap_or_default();
        let (calls_under_way, answers_kept) = driver.shared.rpc.under_way(node);
        let fabric = &driver.shared.fabric;
        let capabilities = known.peer.map(|peer| fabric.capabilities(peer));
        let round_trip = known.peer.and_then(|peer| fabric.round_trip(peer));
        let path = self.path_to(known.peer).await.map(PathExplained::from);
        let heard_ns = known.peer.and_then(|peer| fabric.heard(peer)).map(|ago| ago.as_nanos() as u64);
        let silent_ns = known.silent_ns.map(|ns| ns.min(heard_ns.unwrap_or(u64::MAX)));
        Ok(PeerExplained {
            node: node.0,
            incarnation: format!("{:x}", known.incarnation.id.0),
            pid: known.pid,
            state: state(&known, &statuses, is_self),
            connected: known.peer.is_some(),
            provider_reason: capabilities
                .and_then(|able| driver.shared.ways.reason(able.provider, &announced)),
            capabilities: capabilities.map(PeerCapabilities::from),
            silent_ms: silent_ns.map(|ns| ns / 1_000_000),
            round_trip_ns: round_trip.map(|time| time.as_nanos() as u64),
            path,
            calls_under_way,
            answers_kept,
            bytes_quarantined_here: known.bytes_quarantined,
            bytes_quarantined_there: answer_of(node, &statuses).map(|status| status.bytes_quarantined),
            cut_off_at,
            reason: peer_reason(&known, is_self),
        })
    }

    /// Returns the state of the path to a peer; waits a little if the path of a new peer is not known yet.
    async fn path_to(&self, peer: Option<PeerId>) -> Option<Path> {
        let driver = &self.inner.driver;
        let polls = PATH_TIMEOUT.as_millis() / PATH_POLL_INTERVAL.as_millis();
        for _ in 0..polls {
            let path = driver.shared.fabric.path(peer?)?;
            if path.is_known {
                return Some(path);
            }
            driver.within(PATH_POLL_INTERVAL, std::future::pending::<()>()).await;
        }
        driver.shared.fabric.path(peer?)
    }
}

/// Explanations.
impl blocking::Session {
    /// See [`crate::Session::seen`].
    pub fn seen(&self, node: NodeId) -> Option<PeerSeen> {
        self.as_async().seen(node)
    }

    /// See [`crate::Session::explain`].
    pub fn explain(&self, lh: Lh) -> Result<RegionExplained, RegionError> {
        self.block_on(self.as_async().explain(lh))
    }

    /// See [`crate::Session::explain_peer`].
    pub fn explain_peer(&self, node: NodeId) -> Result<PeerExplained, RegionError> {
        self.block_on(self.as_async().explain_peer(node))
    }
}

/// Groups the pieces of a region by owner and path, in the order of their first bytes.
fn pieces(
    known: &Known,
    me: NodeIncarnation,
    capabilities: impl Fn(NodeId) -> Option<Capabilities>,
) -> Vec<PieceExplained> {
    let mut pieces: Vec<PieceExplained> = Vec::new();
    let mut offset = 0;
    for (extent, place) in &known.pieces {
        let (node, path) = (extent.owner.node.0, path_to(extent.owner, place, me));
        match pieces.iter_mut().find(|piece| piece.node == node && piece.path == path) {
            Some(piece) => {
                piece.bytes += extent.len;
                piece.pieces += 1;
            }
            None => {
                let able = capabilities(extent.owner.node);
                let provider = able.map(|able| able.provider);
                let coherent = able.is_some_and(|able| able.atomics.are_coherent());
                let (verbs, reason) = (verbs(path, known, coherent), path.reason());
                let bytes = extent.len;
                pieces.push(PieceExplained { node, bytes, pieces: 1, offset, provider, path, verbs, reason });
            }
        }
        offset += extent.len;
    }
    pieces
}

fn path_to(owner: NodeIncarnation, place: &Place, me: NodeIncarnation) -> AccessPath {
    match place {
        Place::Direct(_) if owner == me => AccessPath::Local,
        Place::Direct(_) => AccessPath::Direct,
        Place::Posted { .. } => AccessPath::Posted,
        Place::Frozen => AccessPath::Frozen,
        Place::Down(_) => AccessPath::Down,
    }
}

/// Returns the operations behind accesses, unless this handle does not allow them.
fn verbs(path: AccessPath, known: &Known, coherent: bool) -> Verbs {
    let [read, write, atomic, copy] = match path {
        AccessPath::Local | AccessPath::Direct => {
            ["loads", "stores", "atomic instruction", "copied by the caller's thread"]
        }
        AccessPath::Posted if coherent => {
            ["posted read", "posted write", "posted atomic", "command to the owner"]
        }
        AccessPath::Posted => ["posted read", "posted write", "call to the owner", "command to the owner"],
        AccessPath::Frozen => ["waits"; 4],
        AccessPath::Down => ["fails"; 4],
    };
    let unless_barred = |verb, needed: Permissions| match () {
        () if !known.permissions.contains(needed) => "not permitted",
        () if known.sealed && needed != Permissions::READ => "sealed",
        () => verb,
    };
    Verbs {
        read: unless_barred(read, Permissions::READ),
        write: unless_barred(write, Permissions::WRITE),
        atomic: unless_barred(atomic, Permissions::ATOMIC),
        copy: unless_barred(copy, Permissions::WRITE),
    }
}

fn answer_of(node: NodeId, statuses: &[NodeStatus]) -> Option<&NodeStatus> {
    let answers = |state| matches!(state, NodeState::Alive | NodeState::Draining);
    statuses.iter().find(|status| status.node == node && answers(status.state))
}

/// A node that counts as alive but does not answer is silent.
fn state(known: &KnownPeer, statuses: &[NodeStatus], is_self: bool) -> NodeState {
    match known.state {
        NodeState::Alive if !is_self && answer_of(known.incarnation.node, statuses).is_none() => {
            NodeState::Silent
        }
        state => state,
    }
}

fn peer_reason(known: &KnownPeer, is_self: bool) -> String {
    let reason = match (known.state, known.peer) {
        _ if is_self => "this is the node that was asked".to_owned(),
        (_, Some(_)) => "both handshakes have arrived, and the node is heard".to_owned(),
        (NodeState::Alive | NodeState::Draining | NodeState::Silent, None) => {
            "alive in the directory, but not connected: stopped or joining".to_owned()
        }
        (NodeState::Unconnected, None) => "alive in the directory; the nodes connect on first use".to_owned(),
        (NodeState::Unreachable | NodeState::Dead, None) => reason_of_death(known.loss),
        (NodeState::Left, None) => "it left the cluster".to_owned(),
    };
    match known.is_zombie {
        true => format!("{reason}; it is not cut off yet, so memory that it could reach is kept back"),
        false => reason,
    }
}

fn reason_of_death(loss: Option<Loss>) -> String {
    let Some(Loss { cause, age_ns }) = loss else {
        return "it was killed, crashed, or was silent for longer than its lease".to_owned();
    };
    let age_s = age_ns / 1_000_000_000;
    match cause {
        LossCause::Left => format!("it left the cluster {age_s} s ago"),
        LossCause::Exited => format!("its process exited {age_s} s ago, without leaving the cluster"),
        LossCause::Killed => format!("it was killed {age_s} s ago, silent for longer than its lease"),
        LossCause::Unreachable => {
            format!("it has been unreachable for {age_s} s; its process may still run")
        }
    }
}

fn as_text<S: serde::Serializer>(atomics: &Atomics, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(atomics)
}

fn as_word<S: serde::Serializer>(state: &NodeState, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(state.name())
}

fn as_letters<S: serde::Serializer>(permissions: &Permissions, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(permissions)
}

impl fmt::Display for RegionExplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names come from other users and must not reach the terminal as commands.
        let name = self.name.as_ref().map_or("a region".to_owned(), |name| format!("region {name:?}"));
        writeln!(f, "{name} ({}): {} bytes", self.region, self.len)?;
        let epoch =
            self.epoch.map_or("unknown, since the home does not answer".to_owned(), |n| n.to_string());
        writeln!(f, "home: node {}; epoch: {epoch}", self.home)?;
        let sealed = if self.sealed { "; sealed" } else { "" };
        writeln!(f, "this handle: {}{sealed}", self.permissions)?;
        self.pieces.iter().try_for_each(|piece| write!(f, "{piece}"))
    }
}

impl fmt::Display for PieceExplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pieces = if self.pieces == 1 { "piece" } else { "pieces" };
        write!(
            f,
            "node {}: {} bytes in {} {pieces}, from offset {}",
            self.node, self.bytes, self.pieces, self.offset
        )?;
        if let Some(provider) = self.provider {
            write!(f, ", over {provider}")?;
        }
        writeln!(f, ": {}", self.path.words())?;
        let Verbs { read, write, atomic, copy } = self.verbs;
        writeln!(f, "  read: {read}; write: {write}; atomic: {atomic}; copy: {copy}")?;
        writeln!(f, "  {}", self.reason)
    }
}

impl From<Capabilities> for PeerCapabilities {
    fn from(capabilities: Capabilities) -> PeerCapabilities {
        let Capabilities { provider, direct, atomics, lanes, send_bytes_max, inline_bytes_max } =
            capabilities;
        let inline_bytes_max = (inline_bytes_max < usize::MAX).then_some(inline_bytes_max as u64);
        let send_bytes_max = send_bytes_max as u64;
        PeerCapabilities { provider, direct, atomics, lanes, send_bytes_max, inline_bytes_max }
    }
}

impl From<Path> for PathExplained {
    fn from(path: Path) -> PathExplained {
        let Path {
            mtu_bytes,
            sent,
            repeated,
            repeats_single,
            kept,
            timeouts,
            arrived,
            duplicates,
            window_packets,
            congestion,
            ends: (from, to),
            elsewhere,
            is_known: _,
        } = path;
        let (refused_from, refused) = elsewhere.unzip();
        let refused = refused.unwrap_or(0);
        PathExplained {
            mtu_bytes,
            sent,
            repeated,
            repeats_single,
            kept,
            timeouts,
            arrived,
            duplicates,
            window_packets,
            congestion,
            from,
            to,
            refused_from,
            refused,
        }
    }
}

impl fmt::Display for PathExplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PathExplained { mtu_bytes, sent, repeated, kept, timeouts, .. } = self;
        let PathExplained { arrived, duplicates, window_packets, congestion, .. } = self;
        let repairs = if self.repeats_single {
            "single packets are repeated"
        } else {
            "all packets behind a lost one are repeated"
        };
        let percent = 100.0 * *repeated as f64 / (*sent).max(1) as f64;
        let windows: Vec<String> = window_packets.iter().map(u32::to_string).collect();
        writeln!(f, "packets go from {} to {}", self.from, self.to)?;
        let windows = windows.join(" and ");
        writeln!(
            f,
            "path MTU: {mtu_bytes} bytes; window: {windows} packets (congestion control: {congestion}); {repairs}"
        )?;
        writeln!(
            f,
            "packets: {sent} sent, {repeated} of them again ({percent:.2} %) after {timeouts} timeouts; \
             {arrived} arrived, {duplicates} of them again, {kept} before their turn"
        )?;
        match self.refused_from {
            Some(from) => writeln!(
                f,
                "refused: {} of its packets that came from {from}: its address is translated on the way (NAT), or was changed",
                self.refused
            ),
            None => Ok(()),
        }
    }
}

impl fmt::Display for PeerCapabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reach = if self.direct { "loads and stores reach its memory" } else { "accesses are posted" };
        let atomics = match self.atomics {
            Atomics::None => "no atomics, so sessions' atomics travel as calls",
            Atomics::Processor => "atomics coherent with its processor",
            Atomics::Adapter => "atomics by its adapter alone, so sessions' atomics travel as calls",
        };
        let sends = self.send_bytes_max;
        let lanes = match self.lanes {
            1 => "one lane".to_owned(),
            lanes => format!("{lanes} lanes"),
        };
        write!(f, "provider {}: {reach}; {atomics}; {lanes}; ", self.provider)?;
        write!(f, "sends of up to {sends} bytes; ")?;
        match self.inline_bytes_max {
            Some(bytes) => write!(f, "writes of up to {bytes} bytes inline"),
            None => write!(f, "all writes inline"),
        }
    }
}

impl fmt::Display for PeerExplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connected = if self.connected { "connected" } else { "not connected" };
        writeln!(f, "node {}: {}, {connected}", self.node, self.state.name())?;
        writeln!(f, "  {}", self.reason)?;
        writeln!(f, "process {}, incarnation {}", self.pid, self.incarnation)?;
        if let Some(capabilities) = &self.capabilities {
            writeln!(f, "{capabilities}")?;
        }
        if let Some(reason) = self.provider_reason {
            writeln!(f, "  {reason}")?;
        }
        if let Some(silent_ms) = self.silent_ms {
            writeln!(f, "last heard: {silent_ms} ms ago")?;
        }
        if let Some(ns) = self.round_trip_ns {
            writeln!(f, "round trip: {:.1} us", ns as f64 / 1e3)?;
        }
        if let Some(path) = &self.path {
            write!(f, "{path}")?;
        }
        writeln!(
            f,
            "under way: {} calls to it, {} answers kept for it",
            self.calls_under_way, self.answers_kept
        )?;
        write!(f, "quarantined: {} bytes here because of it", self.bytes_quarantined_here)?;
        match self.bytes_quarantined_there {
            Some(bytes) => writeln!(f, ", {bytes} bytes there because of others")?,
            None => writeln!(f)?,
        }
        match self.cut_off_at.iter().map(u32::to_string).collect::<Vec<_>>() {
            nodes if nodes.is_empty() => Ok(()),
            nodes => writeln!(f, "cut off from the memory of: node {}", nodes.join(", node ")),
        }
    }
}
