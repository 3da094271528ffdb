//! Nodes: joining the cluster of a directory, and leaving it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use halite_fabric::{Fabric, Key, PeerId};
use halite_mem::Window;
use halite_providers::{ShmConfig, ShmFabric};
use halite_tier::access::DataPath;
use halite_tier::engine::{Engine, EngineConfig};
use halite_tier::ids::{Incarnation, NodeId, NodeLife, Principal};
use halite_tier::mapper::Reach;
use halite_tier::message::{self, Hello, PROTOCOL_VERSION};
use halite_tier::rpc::ring::is_ring_size;
use halite_tier::rpc::{RING_BYTES_MAX, RING_BYTES_MIN};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::blocking;
use crate::cluster_dir::{self, JoinLock, NodeLock};
use crate::config::Config;
use crate::driver::Core;
use crate::error::JoinError;
use crate::keeper::Keeper;
use crate::machine::{Ground, Machine};
use crate::posted::Posted;
use crate::rpc::Rpc;
use crate::session::Session;
use crate::wait::Event;

/// How long others may take to join: each of their connections has two seconds to come about.
const JOIN_PATIENCE: Duration = Duration::from_secs(10);
/// How long leaving may take when peers do not read what they are told.
const LEAVE_PATIENCE: Duration = Duration::from_secs(1);

/// What a fabric must know of the node that it is opened for.
#[derive(Clone, Debug)]
pub struct Seat {
    /// Which node.
    pub node: NodeId,
    /// A name that no other node's fabric has in the cluster directory.
    pub name: String,
    /// What peers who connect are to be shown.
    pub hello: Vec<u8>,
}

/// One node of the cluster, in this process.  Leaves when dropped.
///
/// A process that embeds a node is trusted by all nodes of its cluster directory.
pub struct Node {
    core: Arc<Core>,
    life: NodeLife,
    principal: Principal,
    chunk_bytes: u64,
    /// Both are there until the node leaves; in this order.
    keeper: Option<Keeper>,
    lock: Option<NodeLock>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("life", &self.life).finish_non_exhaustive()
    }
}

/// Joining.
impl Node {
    /// Joins the cluster of `config.dir`, over shared memory.
    pub fn embedded(config: Config) -> Result<Node, JoinError> {
        Node::wrap(config, |fabric| fabric)
    }

    /// As [`Node::embedded`], with middleware around the fabric.
    pub fn wrap(
        config: Config,
        wrap: impl FnOnce(Arc<dyn Fabric>) -> Arc<dyn Fabric>,
    ) -> Result<Node, JoinError> {
        let shm = |seat: &Seat| ShmConfig {
            hello: seat.hello.clone(),
            ring_bytes: config.ring_bytes as u64,
            fence: config.fence,
            ..ShmConfig::new(&config.dir, &seat.name)
        };
        let open = |seat: &Seat| -> Result<Arc<dyn Fabric>, JoinError> {
            let fabric = ShmFabric::open(shm(seat)).map_err(|error| JoinError::Fabric(Box::new(error)))?;
            Ok(wrap(fabric))
        };
        Node::with_fabric(config.clone(), open)
    }

    /// As [`Node::embedded`], over the fabric that `open` opens.
    pub fn with_fabric(
        config: Config,
        open: impl FnOnce(&Seat) -> Result<Arc<dyn Fabric>, JoinError>,
    ) -> Result<Node, JoinError> {
        let principal = checked_principal(&config)?;
        check_request_ring(&config)?;
        cluster_dir::prepare(&config.dir)?;
        let _joining = JoinLock::take(&config.dir, JOIN_PATIENCE)?;
        cluster_dir::clean_residue(&config.dir).map_err(JoinError::io(&config.dir))?;
        let incarnation = Incarnation(random().max(1));
        let lock = NodeLock::take(&config.dir, config.node, incarnation)?;
        let life = NodeLife { node: lock.node(), incarnation };
        let fabric = open(&seat(&config, life))?;
        let core = new_core(&config, life, fabric)?;
        let keeper = Keeper::start(core.clone()).map_err(JoinError::io(&config.dir))?;
        let chunk_bytes = config.chunk_bytes;
        let node = Node { core, life, principal, chunk_bytes, keeper: Some(keeper), lock: Some(lock) };
        // From here on, dropping the node is leaving.
        node.connect_to_all(&config)?;
        Ok(node)
    }

    fn connect_to_all(&self, config: &Config) -> Result<(), JoinError> {
        let fabric = &self.core.ground.fabric;
        let unreachable = |address: String, reason: String| JoinError::Unreachable {
            dir: config.dir.clone(),
            address,
            reason,
        };
        let addresses = fabric.discover();
        let addresses =
            addresses.map_err(|error| unreachable("the other nodes".into(), error.to_string()))?;
        let hello = self.core.look(|machine| machine.hello());
        for address in addresses {
            // Counted before the answer can arrive.
            self.core.with(|machine, _| machine.dialling.under_way += 1);
            if let Err(error) = fabric.connect(&address, &hello) {
                self.core.with(|machine, _| machine.dialling_failed(address, error.to_string()));
            }
        }
        self.core.block_on(self.all_dialled());
        self.check_cluster(config, unreachable)?;
        // Whoever answers this has taken us in: from now on any of them may be asked for our memory.  A node that
        // dies meanwhile is no reason not to join.
        let _ = self.blocking_session().status();
        Ok(())
    }

    async fn all_dialled(&self) {
        let changes = &self.core.ground.changes;
        loop {
            let seen = changes.count();
            if self.core.is_closed() || self.core.look(|machine| machine.dialling.under_way == 0) {
                return;
            }
            changes.after(seen).await;
        }
    }

    /// A node that cannot be reached now must not keep others from joining, unless it is the first.
    fn check_cluster(
        &self,
        config: &Config,
        unreachable: impl Fn(String, String) -> JoinError,
    ) -> Result<(), JoinError> {
        let is_joined = |machine: &Machine| machine.is_connected_to(NodeId::FIRST);
        if self.life.node == NodeId::FIRST || self.core.look(is_joined) {
            return Ok(());
        }
        let nodes = cluster_dir::nodes(&config.dir).map_err(JoinError::io(&config.dir))?;
        let runs = nodes.iter().any(|presence| presence.node == NodeId::FIRST && presence.alive);
        let failed = self.core.look(|machine| machine.dialling.failed.first().cloned());
        match failed.filter(|_| runs) {
            Some((address, reason)) => Err(unreachable(address, reason)),
            None => Err(JoinError::NoCluster { dir: config.dir.clone() }),
        }
    }
}

/// Using.
impl Node {
    /// Which node this is.
    pub fn id(&self) -> NodeId {
        self.life.node
    }

    /// A new session, which acts as the node's principal.
    ///
    /// Panics when 65,536 sessions are open.
    pub fn session(&self) -> Session {
        let principal = self.principal.clone();
        let id = self.core.with(|machine, _| machine.open_session(principal.clone()));
        let id = id.expect("a node has at most 65,536 sessions at a time");
        Session::new(self.core.clone(), self.life, id, principal, random(), self.chunk_bytes)
    }

    /// A new session for threads.
    pub fn blocking_session(&self) -> blocking::Session {
        self.session().blocking()
    }

    /// Leaves the cluster.  Its sessions' operations then end with `NodeClosed`, and the regions whose bytes are
    /// on this node are lost.
    pub fn leave(self) {
        drop(self);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let core = &self.core;
        core.set_closed();
        // Peers take "I leave" to mean that nothing of theirs is touched any more.
        retire_handles(core);
        let mark = core.ground.posted.mark();
        let is_over = |machine: &Machine| {
            let commands = machine.engine().is_some_and(|engine| engine.has_commands_under_way());
            core.ground.posted.is_over(mark) && !commands
        };
        core.drive_until(LEAVE_PATIENCE, is_over);
        // Where that is not so, the fabric tells them when it is.
        if core.look(is_over) {
            core.with(|machine, now| machine.leave(now));
        }
        core.drive_until(LEAVE_PATIENCE, |machine| machine.is_quiet());
        core.with(|machine, _| machine.close());
        self.keeper = None;
        // Handles that came about in between; the fabric waits for the windows behind them.
        retire_handles(core);
        core.ground.fabric.close();
        self.lock = None;
    }
}

/// Makes all handles stale, and waits until no access is under way.
fn retire_handles(core: &Core) {
    let path = &core.ground.path;
    let mut handles = Vec::new();
    path.slots().iter_with(|index, _, _| handles.push(index));
    // The engine may have retired one meanwhile, and reclaims it then.
    handles.retain(|index| path.slots().retire(*index).is_ok());
    let grace = path.pins().start_grace();
    let elapsed = loop {
        match grace.elapsed(path.pins()) {
            Some(elapsed) => break elapsed,
            // A pin is held for the time of a copy of 256 KiB, so this ends.
            None => std::thread::yield_now(),
        }
    };
    for index in handles {
        // Fails only where the engine, to which the region was dropped meanwhile, has reclaimed it.
        let _ = path.slots().reclaim(index, elapsed);
    }
}

fn check_request_ring(config: &Config) -> Result<(), JoinError> {
    let bytes = config.request_ring_bytes;
    if is_ring_size(bytes) {
        return Ok(());
    }
    Err(JoinError::BadConfig(format!(
        "request rings of {bytes} bytes: a power of two from {RING_BYTES_MIN} to {RING_BYTES_MAX} is needed"
    )))
}

fn checked_principal(config: &Config) -> Result<Principal, JoinError> {
    let principal = config.principal();
    match principal.len() {
        0 => Err(JoinError::BadConfig("the name of the principal is empty".to_owned())),
        len if len > Principal::BYTES_MAX => {
            let most = Principal::BYTES_MAX;
            Err(JoinError::BadConfig(format!(
                "the name of the principal has {len} bytes, and {most} are the most"
            )))
        }
        _ => Ok(Principal(principal.into())),
    }
}

fn seat(config: &Config, life: NodeLife) -> Seat {
    let hello =
        Hello { version: PROTOCOL_VERSION, life, pid: std::process::id(), bytes_total: config.arena_bytes };
    Seat { node: life.node, name: cluster_dir::shm_name(life.node), hello: message::encode_hello(&hello) }
}

fn new_core(config: &Config, life: NodeLife, fabric: Arc<dyn Fabric>) -> Result<Arc<Core>, JoinError> {
    let begin = Instant::now();
    let capabilities = fabric.capabilities();
    let engine_config = EngineConfig {
        life,
        pid: std::process::id(),
        lease_ns: config.lease.as_nanos() as u64,
        bytes_total: config.arena_bytes,
        segment_bytes: config.segment_bytes.min(config.arena_bytes),
        provider: capabilities.provider,
        send_bytes_max: capabilities.send_bytes_max,
    };
    let path = Arc::new(DataPath::default());
    let reach = Arc::new(FabricReach(fabric.clone()));
    let engine = Engine::new(engine_config, path.clone(), reach, 0);
    let posted = Arc::new(Posted::default());
    let rpc = Rpc::new(fabric.clone(), posted.clone(), life.node, config.request_ring_bytes);
    let rpc = rpc.ok_or(JoinError::NoMemory)?;
    let ground = Ground { fabric, path, posted, rpc, changes: Event::default() };
    Ok(Core::new(Arc::new(ground), begin, engine))
}

/// Peers' memory, as the fabric reaches it.
struct FabricReach(Arc<dyn Fabric>);

impl Reach for FabricReach {
    fn window(&self, peer: PeerId, key: Key) -> Option<Window> {
        self.0.direct(peer, key)
    }
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty());
    assert_eq!(filled, Ok(bytes.len()), "the system gives short random numbers without fail");
    u64::from_ne_bytes(bytes)
}
