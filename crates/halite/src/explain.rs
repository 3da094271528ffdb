//! Explanations: which path the bytes of a region take, what stands between this node and another, and why.

use std::fmt;

use halite_fabric::{Atomics, Capabilities};
use halite_tier::access::Place;
use halite_tier::effect::Command;
use halite_tier::engine::KnownPeer;
use halite_tier::ids::{NodeId, NodeLife};
use halite_tier::mapper::Known;
use halite_tier::message::{Loss, LossCause, NodeState, NodeStatus};
use halite_tier::permissions::Permissions;
use serde::Serialize;

use crate::blocking;
use crate::error::{RegionCause, RegionError};
use crate::session::{Commanded, Lh, Session};

/// Which way accesses of this node take to some bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessPath {
    /// Loads and stores in this node's own memory.
    Local,
    /// Loads and stores in the memory of a peer.
    Direct,
    /// One-sided operations, posted to a peer.
    Posted,
    /// None for now: the bytes are on their way to another node, and accesses wait.
    Frozen,
    /// None: the node that held the bytes, or ordered their changes, is down.
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

/// What a read, a write, an atomic and a copy to these bytes come down to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Verbs {
    /// Of `Session::read`.
    pub read: &'static str,
    /// Of `Session::write`.
    pub write: &'static str,
    /// Of `Session::fetch_add` and its like.
    pub atomic: &'static str,
    /// Of `Session::copy` into these bytes, and of `Session::fill`.
    pub copy: &'static str,
}

/// Bytes of a region that are reached in the same way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PieceExplained {
    /// The node that holds them.
    pub node: u32,
    /// How many bytes.
    pub bytes: u64,
    /// In how many pieces.
    pub pieces: u64,
    /// Where the first of them starts.
    pub offset: u64,
    /// The fabric in between, if there is one.
    pub provider: Option<&'static str>,
    /// The way to them.
    pub path: AccessPath,
    /// What accesses come down to.
    pub verbs: Verbs,
    /// Why, for people.
    pub reason: &'static str,
}

/// How this session reaches a region, and why so.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RegionExplained {
    /// Its name, if it has one and its home answers.
    pub name: Option<String>,
    /// Its identity.
    pub region: String,
    /// Its length in bytes.
    pub len: u64,
    /// The node that orders its changes.
    pub home: u32,
    /// How often it changed, if its home answers.
    pub epoch: Option<u64>,
    /// What this handle may be used for.
    #[serde(serialize_with = "as_letters")]
    pub permissions: Permissions,
    /// Whether it is immutable.
    pub sealed: bool,
    /// Its bytes, by where they are and how they are reached.
    pub pieces: Vec<PieceExplained>,
}

/// What the fabric between two nodes can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct PeerCapabilities {
    /// Its name.
    pub provider: &'static str,
    /// Whether loads and stores reach the other's memory.
    pub direct: bool,
    /// Which atomics it offers on the other's memory; where they are not coherent with processors, ours travel as calls.
    #[serde(serialize_with = "as_text")]
    pub atomics: Atomics,
    /// Longest message that it takes in one piece, in bytes.
    pub send_bytes_max: u64,
    /// Longest write out of memory that is not registered, in bytes; `None` where any is taken.
    pub inline_bytes_max: Option<u64>,
}

/// What stands between this node and another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PeerExplained {
    /// Which node.
    pub node: u32,
    /// Its life, in hexadecimal: numbers of 64 bits do not survive every reader of JSON.
    pub incarnation: String,
    /// Its process.
    pub pid: u32,
    /// Whether it lives, as far as is known here.
    #[serde(serialize_with = "as_word")]
    pub state: NodeState,
    /// Whether this node is connected to it.
    pub connected: bool,
    /// What the fabric in between can do, if it is connected.
    pub capabilities: Option<PeerCapabilities>,
    /// For how long nothing was heard of it, in ms, if it is connected.
    pub silent_ms: Option<u64>,
    /// Calls and messages to it that have no answer yet, those given up among them for as long as it may still answer.
    pub calls_under_way: usize,
    /// Long answers to it that are kept until it has read them.
    pub answers_kept: usize,
    /// Bytes of this node's memory that are kept back because it could still reach them.
    pub bytes_quarantined_here: u64,
    /// Bytes that it keeps back itself because of others, if it answers.
    pub bytes_quarantined_there: Option<u64>,
    /// Why it is as it is, for people.
    pub reason: String,
}

/// Explanations.
impl Session {
    /// Tells where the bytes of a region are, which way accesses take to them, and why.  Works as well where its home
    /// is down.
    pub async fn explain(&self, lh: Lh) -> Result<RegionExplained, RegionError> {
        self.own("explain", lh)?;
        let core = &self.inner.core;
        if core.is_closed() {
            return Err(self.failed_on("explain", lh, RegionCause::NodeClosed));
        }
        let info = self.stat_handle(lh).await.ok();
        let now = core.now_ns();
        let (found, me) = core.look(|machine| {
            let engine = machine.engine();
            (engine.and_then(|engine| engine.known_region(self.inner.id, lh.slot)), engine.map(|e| e.life()))
        });
        let (Some(known), Some(me)) = (found, me) else {
            return Err(self.failed_on("explain", lh, RegionCause::Stale));
        };
        let capabilities = |node| {
            let known = core.look(|machine| machine.engine()?.known_peer(now, node));
            Some(core.ground.fabric.capabilities(known?.peer?))
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

    /// Tells what stands between this session's node and another, and why.
    pub async fn explain_peer(&self, node: NodeId) -> Result<PeerExplained, RegionError> {
        let failed = |cause| RegionError { operation: "explain", object: format!("node {node}"), cause };
        // The directory knows of nodes that this one has never met.
        let asked = Commanded::new(&self.inner, Command::Status).await;
        let statuses = match asked.map_err(|error| failed(error.into()))? {
            halite_tier::effect::Outcome::Status(statuses) => statuses,
            _ => unreachable!("a status was asked for"),
        };
        let core = &self.inner.core;
        let now = core.now_ns();
        let (found, is_self) = core.look(|machine| {
            let engine = machine.engine();
            let is_self = engine.is_some_and(|engine| engine.life().node == node);
            (engine.and_then(|engine| engine.known_peer(now, node)), is_self)
        });
        let known = found.ok_or_else(|| failed(RegionCause::UnknownNode(node)))?;
        let (calls_under_way, answers_kept) = core.ground.rpc.under_way(node);
        let capabilities = known.peer.map(|peer| core.ground.fabric.capabilities(peer));
        Ok(PeerExplained {
            node: node.0,
            incarnation: format!("{:x}", known.life.incarnation.0),
            pid: known.pid,
            state: state(&known, &statuses, is_self),
            connected: known.peer.is_some(),
            capabilities: capabilities.map(PeerCapabilities::from),
            silent_ms: known.silent_ns.map(|ns| ns / 1_000_000),
            calls_under_way,
            answers_kept,
            bytes_quarantined_here: known.bytes_quarantined,
            bytes_quarantined_there: answer_of(node, &statuses).map(|status| status.bytes_quarantined),
            reason: peer_reason(&known, is_self),
        })
    }
}

/// Explanations.
impl blocking::Session {
    /// See [`crate::Session::explain`].
    pub fn explain(&self, lh: Lh) -> Result<RegionExplained, RegionError> {
        self.block_on(self.as_async().explain(lh))
    }

    /// See [`crate::Session::explain_peer`].
    pub fn explain_peer(&self, node: NodeId) -> Result<PeerExplained, RegionError> {
        self.block_on(self.as_async().explain_peer(node))
    }
}

/// The pieces of a region, those alike taken together, in the order of their first bytes.
fn pieces(
    known: &Known,
    me: NodeLife,
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

fn path_to(owner: NodeLife, place: &Place, me: NodeLife) -> AccessPath {
    match place {
        Place::Direct(_) if owner == me => AccessPath::Local,
        Place::Direct(_) => AccessPath::Direct,
        Place::Posted { .. } => AccessPath::Posted,
        Place::Frozen => AccessPath::Frozen,
        Place::Down(_) => AccessPath::Down,
    }
}

/// What operations come down to, unless this handle may not be used for them.
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
    statuses.iter().find(|status| status.node == node && status.state == NodeState::Alive)
}

/// Who is said to be alive but does not answer is silent.
fn state(known: &KnownPeer, statuses: &[NodeStatus], is_self: bool) -> NodeState {
    match known.state {
        NodeState::Alive if !is_self && answer_of(known.life.node, statuses).is_none() => NodeState::Silent,
        state => state,
    }
}

fn peer_reason(known: &KnownPeer, is_self: bool) -> String {
    let what = match (known.state, known.peer) {
        _ if is_self => "this is the node that was asked".to_owned(),
        (_, Some(_)) => "both have introduced themselves, and it is heard".to_owned(),
        (NodeState::Alive | NodeState::Silent, None) => {
            "the directory thinks that it lives, but there is no connection: it may be stopped, or joining"
                .to_owned()
        }
        (NodeState::Dead, None) => reason_of_death(known.loss),
        (NodeState::Left, None) => "it said goodbye".to_owned(),
    };
    match known.is_zombie {
        true => format!("{what}; it is not cut off yet, so memory that it could reach is kept back"),
        false => what,
    }
}

fn reason_of_death(loss: Option<Loss>) -> String {
    let Some(Loss { cause, age_ns }) = loss else {
        return "it was killed, crashed, or was silent for longer than its lease".to_owned();
    };
    let age_s = age_ns / 1_000_000_000;
    match cause {
        LossCause::Left => format!("it said goodbye {age_s} s ago"),
        LossCause::Exited => format!("its process exited {age_s} s ago, without a goodbye"),
        LossCause::Killed => format!("it was killed {age_s} s ago, silent for longer than its lease"),
        LossCause::Unreachable => {
            format!("it has been unreachable for {age_s} s; that its process has ended is not proven")
        }
    }
}

fn word(state: NodeState) -> &'static str {
    match state {
        NodeState::Alive => "alive",
        NodeState::Silent => "silent",
        NodeState::Dead => "dead",
        NodeState::Left => "left",
    }
}

fn as_text<S: serde::Serializer>(atomics: &Atomics, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(atomics)
}

fn as_word<S: serde::Serializer>(state: &NodeState, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(word(*state))
}

fn as_letters<S: serde::Serializer>(permissions: &Permissions, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(permissions)
}

impl fmt::Display for RegionExplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names come from other users: a terminal must not take them for commands.
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
        let Capabilities { provider, direct, atomics, send_bytes_max, inline_bytes_max } = capabilities;
        let inline_bytes_max = (inline_bytes_max < usize::MAX).then_some(inline_bytes_max as u64);
        let send_bytes_max = send_bytes_max as u64;
        PeerCapabilities { provider, direct, atomics, send_bytes_max, inline_bytes_max }
    }
}

impl fmt::Display for PeerCapabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reach = if self.direct { "loads and stores reach its memory" } else { "accesses are posted" };
        let atomics = match self.atomics {
            Atomics::None => "no atomics, so that ours travel as calls",
            Atomics::Processor => "atomics as by its processor",
            Atomics::Adapter => "atomics by its adapter alone, so that ours travel as calls",
        };
        let sends = self.send_bytes_max;
        write!(f, "provider {}: {reach}; {atomics}; sends of up to {sends} bytes; ", self.provider)?;
        match self.inline_bytes_max {
            Some(bytes) => write!(f, "writes of up to {bytes} bytes inline"),
            None => write!(f, "all writes inline"),
        }
    }
}

impl fmt::Display for PeerExplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connected = if self.connected { "connected" } else { "not connected" };
        writeln!(f, "node {}: {}, {connected}", self.node, word(self.state))?;
        writeln!(f, "  {}", self.reason)?;
        writeln!(f, "process {}, incarnation {}", self.pid, self.incarnation)?;
        if let Some(capabilities) = &self.capabilities {
            writeln!(f, "{capabilities}")?;
        }
        if let Some(silent_ms) = self.silent_ms {
            writeln!(f, "last heard: {silent_ms} ms ago")?;
        }
        writeln!(
            f,
            "under way: {} calls to it, {} answers kept for it",
            self.calls_under_way, self.answers_kept
        )?;
        write!(f, "quarantined: {} bytes here because of it", self.bytes_quarantined_here)?;
        match self.bytes_quarantined_there {
            Some(bytes) => writeln!(f, ", {bytes} bytes there because of others"),
            None => writeln!(f),
        }
    }
}
