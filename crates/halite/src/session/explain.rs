//! Explanations: the path to a region's bytes, the connection to another node, and the reasons for both.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use halite_fabric::{Atomics, Capabilities, Path, PeerId};
use halite_tier::access::Place;
use halite_tier::effect::{Command, Outcome};
use halite_tier::engine::KnownPeer;
use halite_tier::ids::{NodeId, NodeIncarnation};
use halite_tier::mapper::Known;
use halite_tier::message::{Loss, LossCause, NodeState, NodeStatus};
use halite_tier::permissions::Permissions;
use halite_tier::qos::{Policy, Priority};
use serde::{Deserialize, Serialize};

use crate::blocking;
use crate::cluster::ways;
use crate::error::text::{self, Text};
use crate::error::{Gone, RegionCause, RegionError};
use crate::session::attached::wire::Request;
use crate::session::regions::Object;
use crate::session::{CommandFuture, Embedded, Lh, Session, embedded};

/// Maximum wait until the fabric knows a peer's path.
const PATH_TIMEOUT: Duration = Duration::from_millis(500);
const PATH_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The path by which accesses of this node reach the bytes of a region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessPath {
    /// Accesses are loads and stores in this node's own memory.
    Local,
    /// Accesses are loads and stores in the memory of a peer.
    Direct,
    /// Accesses are one-sided operations, posted to a peer.
    Posted,
    /// The bytes are being moved to another node; accesses wait.
    Frozen,
    /// The node that held the bytes, or the region's home, is down; accesses fail.
    Down,
}

impl AccessPath {
    fn reason(self) -> &'static str {
        match self {
            AccessPath::Local => "the bytes are in this node's own memory",
            AccessPath::Direct => "the owner is on this host, and its memory is mapped here",
            AccessPath::Posted => "the owner's memory is not mapped here, so each access is posted to it",
            AccessPath::Frozen => {
                "the bytes are being moved to another node; accesses wait until the move is done"
            }
            AccessPath::Down => "the owner of the bytes, or the home of the region, is down or was restarted",
        }
    }

    fn label(self) -> &'static str {
        match self {
            AccessPath::Local => "local memory",
            AccessPath::Direct => "direct",
            AccessPath::Posted => "posted",
            AccessPath::Frozen => "frozen",
            AccessPath::Down => "down",
        }
    }
}

/// The operations that execute a read, a write, an atomic and a copy of the bytes of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Verbs {
    /// Operation of `Session::read`.
    #[serde(deserialize_with = "text::deserialize")]
    pub read: Text,
    /// Operation of `Session::write`.
    #[serde(deserialize_with = "text::deserialize")]
    pub write: Text,
    /// Operation of `Session::fetch_add` and `Session::compare_swap`.
    #[serde(deserialize_with = "text::deserialize")]
    pub atomic: Text,
    /// Operation of `Session::copy` with these bytes as the target, and of `Session::fill`.
    #[serde(deserialize_with = "text::deserialize")]
    pub copy: Text,
}

/// All pieces of a region that one node holds and that accesses reach in the same way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PieceExplained {
    /// The node that holds the bytes.
    pub node: u32,
    /// Length in bytes, of all pieces together.
    pub bytes: u64,
    /// Number of pieces in this group.
    pub pieces: u64,
    /// Offset of the first piece in the region, in bytes.
    pub offset: u64,
    /// The network between this node and the owner; `None` if this node is the owner.
    #[serde(deserialize_with = "text::deserialize_option")]
    pub provider: Option<Text>,
    /// The path by which accesses reach the bytes.
    pub path: AccessPath,
    /// The operations that execute accesses.
    pub verbs: Verbs,
    /// Reason for the path, as text.
    #[serde(deserialize_with = "text::deserialize")]
    pub reason: Text,
}

/// The paths by which this session reaches a region, and the reasons for them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionExplained {
    /// The region's name; `None` if it has none or its home does not answer.
    pub name: Option<String>,
    /// The region's unique id, as text.
    pub region: String,
    /// Length of the region, in bytes.
    pub len: u64,
    /// Number of the region's home node.
    pub home: u32,
    /// The region's epoch; `None` if its home does not answer.
    pub epoch: Option<u64>,
    /// Permissions of the explained handle.
    #[serde(serialize_with = "serialize_permissions")]
    pub permissions: Permissions,
    /// True if the region is sealed, and therefore immutable.
    pub sealed: bool,
    /// How requests of this session reach the node that executes them, as text; `None` if the session is not attached.
    pub requests_by: Option<String>,
    /// Priority of this session's operations, and the policy that applies to them.
    pub qos: QosExplained,
    /// The region's bytes, grouped by owner and path.
    pub pieces: Vec<PieceExplained>,
}

/// Capabilities of the network between two nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerCapabilities {
    /// Name of the provider, such as `shm`.
    #[serde(deserialize_with = "text::deserialize")]
    pub provider: Text,
    /// True if loads and stores reach the peer's memory.
    pub direct: bool,
    /// Which atomics the network offers on the peer's memory. If they are not coherent with the peer's processors,
    /// sessions send their atomics as calls.
    #[serde(serialize_with = "serialize_atomics", deserialize_with = "deserialize_atomics")]
    pub atomics: Atomics,
    /// Number of lanes: with two, messages and calls use one and accesses the other.
    pub lanes: usize,
    /// Maximum length of a message, in bytes.
    pub send_bytes_max: u64,
    /// Maximum length of a write from unregistered memory, in bytes; `None` if there is no limit.
    pub inline_bytes_max: Option<u64>,
}

/// Counters and settings of the packets between this node and another, since the two connected.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PathExplained {
    /// Maximum payload of a packet, in bytes (path MTU).
    pub mtu_bytes: u32,
    /// Packets sent, including retransmitted ones.
    pub sent: u64,
    /// Packets that this node retransmitted.
    pub repeated: u64,
    /// True if both ends retransmit only the packets that were lost (selective repeat); otherwise they also retransmit
    /// all packets sent after a lost one (go-back-N).
    pub repeats_single: bool,
    /// Packets that arrived ahead of a lost or late packet, and that the receiver kept.
    pub kept: u64,
    /// Number of retransmission timeouts.
    pub timeouts: u64,
    /// Number of packet trains (several packets in one system call) that the operating system refused to send, or that
    /// the path seemed to drop. After each, packets leave one by one for a while.
    pub trains_refused: u64,
    /// Packets received from the peer.
    pub arrived: u64,
    /// Received packets that were duplicates of earlier ones.
    pub duplicates: u64,
    /// Packets that may be in flight to the peer now, per lane.
    pub window_packets: Vec<u32>,
    /// Congestion control of this node's packets: `grant`, `delay` or `loss`.
    #[serde(deserialize_with = "text::deserialize")]
    pub congestion: Text,
    /// The ends that keep state for requests: `stateful` (both) or `stateless` (the requesting one).
    #[serde(deserialize_with = "text::deserialize")]
    pub responder: Text,
    /// The reason for this mode.
    #[serde(deserialize_with = "text::deserialize")]
    pub responder_reason: Text,
    /// Address and port from which this node sends the packets.
    pub from: SocketAddr,
    /// Address and port to which this node sends the packets.
    pub to: SocketAddr,
    /// Other address from which packets of the peer arrive, if any; this node refuses such packets.
    pub refused_from: Option<SocketAddr>,
    /// Number of packets that this node refused because of their source address.
    pub refused: u64,
}

/// The connection between this node and another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerExplained {
    /// Number of the other node.
    pub node: u32,
    /// Random id of the other node's incarnation, in hexadecimal, because some readers of JSON lose digits of 64-bit
    /// numbers.
    pub incarnation: String,
    /// Process id of the other node.
    pub pid: u32,
    /// State of the other node, as far as this node knows.
    #[serde(serialize_with = "serialize_state")]
    pub state: NodeState,
    /// True if this node is connected to the other node.
    pub connected: bool,
    /// Reason for the choice of the network; `None` if there was no choice.
    #[serde(deserialize_with = "text::deserialize_option")]
    pub provider_reason: Option<Text>,
    /// Capabilities of the network between the two nodes; `None` if they are not connected.
    pub capabilities: Option<PeerCapabilities>,
    /// Time since this node last heard from the other node, in ms; `None` if it is not connected.
    pub silent_ms: Option<u64>,
    /// Round trip to the other node, in ns; `None` if it is not connected, or the network does not measure it.
    pub round_trip_ns: Option<u64>,
    /// Packets between the two nodes; `None` if they are not connected, or the network does not count packets.
    pub path: Option<PathExplained>,
    /// Number of unanswered calls and messages to the other node, including abandoned ones whose answer may still
    /// arrive.
    pub calls_under_way: usize,
    /// Number of long answers that this node keeps until the other node has read them.
    pub answers_kept: usize,
    /// Bytes of this node's memory in quarantine because the other node could still reach them.
    pub bytes_quarantined_here: u64,
    /// Bytes of the other node's own memory that it keeps in quarantine; `None` if it does not answer.
    pub bytes_quarantined_there: Option<u64>,
    /// Nodes with memory that report the other node as cut off ([`Session::reach`]): operations of the other node can
    /// no longer reach their memory.
    pub cut_off_at: Vec<u32>,
    /// How requests of this session reach the node that executes them, as text; `None` if the session is not attached.
    pub requests_by: Option<String>,
    /// Priority of this session's operations, and the policy that applies to them.
    pub qos: QosExplained,
    /// Reason for the other node's state, as text.
    pub reason: String,
}

/// The priority of a session's operations, and the policy that applies to them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QosExplained {
    /// Priority of the session's operations.
    pub priority: Priority,
    /// Number of the session's node, whose policy applies.
    pub node: u32,
    /// Policy of that node for operations of different priority.
    pub policy: Policy,
    /// Current limits of the policy on operations of this priority: for bytes that leave the node, and for bytes that
    /// come to it, in bytes per second; `None` if there is no limit.
    pub limits_bytes_per_s: [Option<u64>; 2],
}

/// Current knowledge of a session's node about another node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PeerSeen {
    /// Address at which other hosts dial the other node; `None` if they cannot dial it.
    pub address: Option<SocketAddr>,
    /// True if the other node announces this node's cluster directory, and so runs on this host. False for nodes on
    /// other hosts or in other directories, and for nodes without shared memory, which announce no directory.
    pub is_here: bool,
    /// Time since this node last heard from the other node; `None` if it is not connected.
    pub silent: Option<Duration>,
    /// Round trip to the other node; `None` if the network does not measure it.
    pub round_trip: Option<Duration>,
    /// Share of this node's packets to the other node that were retransmitted, from 0 to 1; `None` if the network does
    /// not count packets.
    pub repeated: Option<f64>,
    /// Why this node is not connected to the other node, as text; `None` if it is connected.
    pub reason: Option<String>,
}

fn failed(node: NodeId, cause: RegionCause) -> RegionError {
    RegionError { operation: "explain", object: format!("node {node}"), cause }
}

/// Explanations of paths and connections.
impl Session {
    /// Returns what this node knows about `node`, without sending a message. Returns `None` if this node has never
    /// heard of `node`, and in a fork of the process.
    pub fn seen(&self, node: NodeId) -> Option<PeerSeen> {
        let session = embedded!(self, client => {
            let failed = |gone: Gone| failed(node, gone.into());
            client.block_on(client.ask(&Request::Seen(node), failed)).unwrap_or(None)
        });
        let driver = &session.inner.driver;
        if driver.is_forked() {
            return None;
        }
        let now = driver.now_ns();
        let (known, is_self, announced, trouble) = driver.look(|runner| {
            let engine = runner.engine()?;
            let announced = engine.address_of(node).map(str::to_owned);
            let is_self = engine.incarnation().node == node;
            Some((engine.known_peer(now, node)?, is_self, announced, runner.trouble_of(node)))
        })?;
        let is_absent = known.peer.is_none() && !is_self;
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
            reason: is_absent.then(|| peer_reason(&known, false, trouble)),
        })
    }

    /// Explains where the bytes of a region are, how accesses reach them, and why. Works even while the region's home
    /// is down.
    pub async fn explain(&self, lh: Lh) -> Result<RegionExplained, RegionError> {
        let session = embedded!(self, client => {
            let failed = |gone: Gone| Object::Slot(lh).failed("explain", gone.into());
            let explained: RegionExplained = client.ask(&Request::Explain(lh), failed).await?;
            Ok(RegionExplained { requests_by: Some(client.way()), ..explained })
        });
        session.check_handle("explain", lh)?;
        let driver = &session.inner.driver;
        if driver.is_closed() {
            return Err(session.failed_on("explain", lh, RegionCause::NodeClosed(session.inner.node)));
        }
        let info = self.stat_handle(lh).await.ok();
        let now = driver.now_ns();
        let (found, me) = driver.look(|runner| {
            let engine = runner.engine();
            (
                engine.and_then(|engine| engine.known_region(session.inner.id, lh.slot)),
                engine.map(|e| e.incarnation()),
            )
        });
        let (Some(known), Some(me)) = (found, me) else {
            return Err(session.failed_on("explain", lh, RegionCause::Stale));
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
            requests_by: None,
            qos: session.explain_qos(),
            pieces,
        })
    }

    /// Explains the connection between this session's node and another.
    pub async fn explain_peer(&self, node: NodeId) -> Result<PeerExplained, RegionError> {
        let failed = |cause| failed(node, cause);
        let session = embedded!(self, client => {
            let lost = |gone: Gone| failed(gone.into());
            let explained: PeerExplained = client.ask(&Request::ExplainPeer(node), lost).await?;
            Ok(PeerExplained { requests_by: Some(client.way()), ..explained })
        });
        // The directory knows nodes to which this one was never connected.
        let asked = CommandFuture::new(&session.inner, Command::Status).await;
        let statuses = match asked.map_err(|error| failed(error.into()))? {
            Outcome::Status(statuses) => statuses,
            _ => unreachable!("the command returns a status"),
        };
        let cut_off_at = self.cut_off_at(node, &statuses).await;
        let driver = &session.inner.driver;
        let now = driver.now_ns();
        let (found, is_self) = driver.look(|runner| {
            let engine = runner.engine();
            let is_self = engine.is_some_and(|engine| engine.incarnation().node == node);
            (engine.and_then(|engine| engine.known_peer(now, node)), is_self)
        });
        let known = found.ok_or_else(|| failed(RegionCause::UnknownNode(node)))?;
        let (announced, trouble) = driver.look(|runner| {
            let announced = runner.engine().and_then(|engine| engine.address_of(node)).map(str::to_owned);
            (announced.unwrap_or_default(), runner.trouble_of(node))
        });
        let (calls_under_way, answers_kept) = driver.shared.rpc.under_way(node);
        let fabric = &driver.shared.fabric;
        let capabilities = known.peer.map(|peer| fabric.capabilities(peer));
        let round_trip = known.peer.and_then(|peer| fabric.round_trip(peer));
        let path = session.path_to(known.peer).await.map(PathExplained::from);
        let heard_ns = known.peer.and_then(|peer| fabric.heard(peer)).map(|ago| ago.as_nanos() as u64);
        let silent_ns = known.silent_ns.map(|ns| ns.min(heard_ns.unwrap_or(u64::MAX)));
        Ok(PeerExplained {
            node: node.0,
            incarnation: format!("{:x}", known.incarnation.id.0),
            pid: known.pid,
            state: state(&known, &statuses, is_self),
            connected: known.peer.is_some(),
            provider_reason: capabilities
                .and_then(|capabilities| driver.shared.ways.reason(capabilities.provider, &announced)),
            capabilities: capabilities.map(PeerCapabilities::from),
            silent_ms: silent_ns.map(|ns| ns / 1_000_000),
            round_trip_ns: round_trip.map(|time| time.as_nanos() as u64),
            path,
            calls_under_way,
            answers_kept,
            bytes_quarantined_here: known.bytes_quarantined,
            bytes_quarantined_there: answering_status(node, &statuses).map(|status| status.bytes_quarantined),
            cut_off_at,
            requests_by: None,
            qos: session.explain_qos(),
            reason: peer_reason(&known, is_self, trouble),
        })
    }

    /// Returns the owners that report a node as cut off.
    async fn cut_off_at(&self, node: NodeId, statuses: &[NodeStatus]) -> Vec<u32> {
        let mut cut_off_at = Vec::new();
        let owners =
            statuses.iter().filter(|status| status.state == NodeState::Alive && status.bytes_total > 0);
        for owner in owners.map(|status| status.node) {
            if self.reach(node, owner).await.is_ok_and(|reach| reach.is_cut_off) {
                cut_off_at.push(owner.0);
            }
        }
        cut_off_at
    }
}

impl Embedded {
    fn explain_qos(&self) -> QosExplained {
        let (priority, shaping) = (self.priority, &self.inner.driver.shared.shaping);
        QosExplained {
            priority,
            node: self.inner.node.0,
            policy: shaping.qos().policy,
            limits_bytes_per_s: shaping.limits(priority),
        }
    }

    /// Returns the state of the path to a peer. Waits for at most `PATH_TIMEOUT` if the path of a new peer is not known
    /// yet.
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

/// Explanations of paths and connections, for threads.
impl blocking::Session {
    /// Returns what this node knows about another node, as [`crate::Session::seen`] does.
    pub fn seen(&self, node: NodeId) -> Option<PeerSeen> {
        self.as_async().seen(node)
    }

    /// Explains the paths to the bytes of a region, as [`crate::Session::explain`] does.
    pub fn explain(&self, lh: Lh) -> Result<RegionExplained, RegionError> {
        self.block_on(self.as_async().explain(lh))
    }

    /// Explains the connection to another node, as [`crate::Session::explain_peer`] does.
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
                let capabilities = capabilities(extent.owner.node);
                let provider = capabilities.map(|capabilities| capabilities.provider);
                let coherent = capabilities.is_some_and(|capabilities| capabilities.atomics.are_coherent());
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

/// Returns the names of the operations that execute accesses. For an access that the handle does not allow, returns a
/// note instead.
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
    let if_permitted = |verb, needed: Permissions| match () {
        () if !known.permissions.contains(needed) => "not permitted",
        () if known.sealed && needed != Permissions::READ => "sealed",
        () => verb,
    };
    Verbs {
        read: if_permitted(read, Permissions::READ),
        write: if_permitted(write, Permissions::WRITE),
        atomic: if_permitted(atomic, Permissions::ATOMIC),
        copy: if_permitted(copy, Permissions::WRITE),
    }
}

fn answering_status(node: NodeId, statuses: &[NodeStatus]) -> Option<&NodeStatus> {
    let answers = |state| matches!(state, NodeState::Alive | NodeState::Draining);
    statuses.iter().find(|status| status.node == node && answers(status.state))
}

/// Returns the state of a node; a node that counts as alive but does not answer is silent.
fn state(known: &KnownPeer, statuses: &[NodeStatus], is_self: bool) -> NodeState {
    match known.state {
        NodeState::Alive if !is_self && answering_status(known.incarnation.node, statuses).is_none() => {
            NodeState::Silent
        }
        state => state,
    }
}

fn peer_reason(known: &KnownPeer, is_self: bool, trouble: Option<String>) -> String {
    let trouble = trouble.filter(|_| known.peer.is_none() && known.state != NodeState::Left);
    let trouble = trouble.map_or(String::new(), |trouble| format!(": {trouble}"));
    let reason = match (known.state, known.peer) {
        _ if is_self => "this is the session's own node".to_owned(),
        (_, Some(_)) => "both handshakes have completed, and the node sends heartbeats".to_owned(),
        (NodeState::Alive | NodeState::Draining | NodeState::Silent, None) => {
            format!("alive in the directory, but not connected (stopped or joining){trouble}")
        }
        (NodeState::Unconnected, None) => {
            format!("alive in the directory; the nodes connect on first use{trouble}")
        }
        (NodeState::Unreachable | NodeState::Dead, None) => loss_reason(known.loss, &trouble),
        (NodeState::Left, None) => "the node left the cluster".to_owned(),
    };
    match known.is_zombie {
        true => format!(
            "{reason}; the node is not cut off yet, so memory that it could reach stays in quarantine"
        ),
        false => reason,
    }
}

/// Returns the reason for the loss of a node. `trouble` is a colon and the problem of this host's connection to the node;
/// empty if no problem is known.
fn loss_reason(loss: Option<Loss>, trouble: &str) -> String {
    let Some(Loss { cause, age_ns }) = loss else {
        return format!("the node was killed, crashed, or was silent for longer than its lease{trouble}");
    };
    let age_s = age_ns / 1_000_000_000;
    let reason = match cause {
        LossCause::Left => format!("the node left the cluster {age_s} s ago"),
        LossCause::Exited => format!("the node's process exited {age_s} s ago, without leaving the cluster"),
        LossCause::Killed => {
            format!("the node was killed {age_s} s ago, after it was silent for longer than its lease")
        }
        LossCause::Unreachable if trouble.is_empty() => {
            format!("the node has been unreachable for {age_s} s, and its process may still run")
        }
        LossCause::Unreachable => format!("the node has been unreachable for {age_s} s"),
    };
    reason + trouble
}

// JSON contains texts; attached sessions receive the serde format of the type itself.

fn serialize_atomics<S: serde::Serializer>(atomics: &Atomics, serializer: S) -> Result<S::Ok, S::Error> {
    match serializer.is_human_readable() {
        true => serializer.collect_str(atomics),
        false => serializer.serialize_u8(*atomics as u8),
    }
}

fn deserialize_atomics<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Atomics, D::Error> {
    let number = u8::deserialize(deserializer)?;
    let known = [Atomics::None, Atomics::Processor, Atomics::Adapter];
    let found = known.into_iter().find(|atomics| *atomics as u8 == number);
    found.ok_or_else(|| serde::de::Error::custom("unknown kind of atomics"))
}

fn serialize_state<S: serde::Serializer>(state: &NodeState, serializer: S) -> Result<S::Ok, S::Error> {
    match serializer.is_human_readable() {
        true => serializer.serialize_str(state.name()),
        false => state.serialize(serializer),
    }
}

fn serialize_permissions<S: serde::Serializer>(
    permissions: &Permissions,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match serializer.is_human_readable() {
        true => serializer.collect_str(permissions),
        false => permissions.serialize(serializer),
    }
}

fn requests_by(f: &mut fmt::Formatter<'_>, way: Option<&str>) -> fmt::Result {
    way.map_or(Ok(()), |way| writeln!(f, "requests of this session: by {way}"))
}

impl fmt::Display for QosExplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "priority: {}, under policy {} of node {}", self.priority, self.policy, self.node)?;
        let text =
            |limit: Option<u64>| limit.map_or("no limit".to_owned(), |limit| format!("{limit} bytes/s"));
        match self.limits_bytes_per_s {
            [None, None] => writeln!(f, ", no limit now"),
            [out, incoming] => writeln!(f, ", now {} out and {} in", text(out), text(incoming)),
        }
    }
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
        writeln!(f, "permissions of this handle: {}{sealed}", self.permissions)?;
        requests_by(f, self.requests_by.as_deref())?;
        write!(f, "{}", self.qos)?;
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
        writeln!(f, ": {}", self.path.label())?;
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
        let (refused_from, refused) = path.elsewhere.unzip();
        PathExplained {
            mtu_bytes: path.mtu_bytes,
            sent: path.sent,
            repeated: path.repeated,
            repeats_single: path.repeats_single,
            kept: path.kept,
            timeouts: path.timeouts,
            trains_refused: path.trains_refused,
            arrived: path.arrived,
            duplicates: path.duplicates,
            window_packets: path.window_packets,
            congestion: path.congestion,
            responder: path.responder,
            responder_reason: path.responder_reason,
            from: path.ends.0,
            to: path.ends.1,
            refused_from,
            refused: refused.unwrap_or(0),
        }
    }
}

impl fmt::Display for PathExplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PathExplained { mtu_bytes, sent, repeated, kept, timeouts, .. } = self;
        let PathExplained { arrived, duplicates, window_packets, congestion, .. } = self;
        let repairs = if self.repeats_single {
            "only lost packets are retransmitted"
        } else {
            "all packets behind a lost one are retransmitted"
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
            "packets: {sent} sent, {repeated} of them retransmitted ({percent:.2} %), {timeouts} timeouts; \
             {arrived} received, {duplicates} of them duplicates, {kept} ahead of a lost or late one"
        )?;
        writeln!(f, "responder: {} ({})", self.responder, self.responder_reason)?;
        if self.trains_refused > 0 {
            writeln!(
                f,
                "trains of packets: refused {} times by this system or on the way; packets then left one by one for a while",
                self.trains_refused
            )?;
        }
        match self.refused_from {
            Some(from) => writeln!(
                f,
                "refused: {} packets of the peer that came from {from}: the peer's address is translated on the way (NAT), or was changed",
                self.refused
            ),
            None => Ok(()),
        }
    }
}

impl fmt::Display for PeerCapabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reach =
            if self.direct { "loads and stores reach the peer's memory" } else { "accesses are posted" };
        let atomics = match self.atomics {
            Atomics::None => "no atomics, so sessions' atomics travel as calls",
            Atomics::Processor => "atomics coherent with the peer's processor",
            Atomics::Adapter => "atomics by the peer's adapter alone, so sessions' atomics travel as calls",
        };
        let sends = self.send_bytes_max;
        let lanes = match self.lanes {
            1 => "one lane".to_owned(),
            lanes => format!("{lanes} lanes"),
        };
        // The path says whether the lanes are queue pairs, or have no state at the responder.
        let shared = if self.provider == "roce" { ", which all sessions share" } else { "" };
        write!(f, "provider {}: {reach}; {atomics}; {lanes}{shared}; ", self.provider)?;
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
            writeln!(f, "last heard from: {silent_ms} ms ago")?;
        }
        if let Some(ns) = self.round_trip_ns {
            writeln!(f, "round trip: {:.1} us", ns as f64 / 1e3)?;
        }
        if let Some(path) = &self.path {
            write!(f, "{path}")?;
        }
        writeln!(
            f,
            "in progress: {} calls to node {}, {} answers kept for it",
            self.calls_under_way, self.node, self.answers_kept
        )?;
        requests_by(f, self.requests_by.as_deref())?;
        write!(f, "{}", self.qos)?;
        write!(f, "quarantined: {} bytes here because of node {}", self.bytes_quarantined_here, self.node)?;
        match self.bytes_quarantined_there {
            Some(bytes) => writeln!(f, ", {bytes} bytes of node {} because of other nodes", self.node)?,
            None => writeln!(f)?,
        }
        match self.cut_off_at.iter().map(u32::to_string).collect::<Vec<_>>() {
            nodes if nodes.is_empty() => Ok(()),
            nodes => writeln!(f, "cut off from the memory of: node {}", nodes.join(", node ")),
        }
    }
}
