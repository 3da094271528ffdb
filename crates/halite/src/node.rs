//! Nodes: joining the cluster of a directory, and leaving it.

use std::sync::Arc;
use std::time::Duration;

use halite_fabric::{ConnectFailure, Fabric};
use halite_providers::{ShmConfig, ShmFabric};
use halite_tier::ids::{NodeId, NodeLife};

use crate::blocking;
use crate::cluster_dir::{self, ClusterDir, JoinLock, NodeLock};
use crate::config::{Config, EPHEMERAL_NODE_MIN};
use crate::error::JoinError;
use crate::keeper::Keeper;
use crate::leaving::{self, Leaving};
use crate::member::{self, Checked, Member};
use crate::session::Session;
use crate::surroundings::Around;

/// How long others may take to join: each of their connections has two seconds to come about.
const JOIN_PATIENCE: Duration = Duration::from_secs(10);

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
    member: Member,
    /// Both are there until the node leaves; in this order.
    keeper: Option<Keeper>,
    lock: Option<NodeLock>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("life", &self.member.life).finish_non_exhaustive()
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
        config.check()?;
        let checked = Checked::new(config)?;
        let config = &checked.config;
        let dir = match config.node {
            Some(node) if node.0 >= EPHEMERAL_NODE_MIN => return Err(not_to_be_chosen(node)),
            Some(_) => ClusterDir::found(&config.dir)?,
            // Who comes to join leaves a place where nobody is as it is.
            None => ClusterDir::open(&config.dir)?,
        };
        let around = Around::process();
        let incarnation = member::new_incarnation(&around);
        let _joining = JoinLock::take(&dir, incarnation, JOIN_PATIENCE)?;
        dir.clean_residue()?;
        let lock = NodeLock::take(&dir, config.node, incarnation)?;
        let life = NodeLife { node: lock.node(), incarnation };
        let name = cluster_dir::shm_name(life.node);
        let fabric = open(&Seat { node: life.node, name, hello: checked.hello(life, &around) })?;
        let member = Member::new(&checked, life, around, fabric)?;
        let keeper = Keeper::start(member.core.clone()).map_err(JoinError::io(&config.dir))?;
        let node = Node { member, keeper: Some(keeper), lock: Some(lock) };
        // From here on, dropping the node is leaving.
        let others = dir.listeners_but(life.node)?;
        let is_joined = node.member.core.block_on(node.member.meet_all(&others));
        // A part of the cluster may be out of reach, but not because of what this process lacks: the next one to be
        // asked for memory would be that part.
        if let Some(lack) = node.shortage() {
            return Err(JoinError::Shortage {
                dir: dir.path().to_owned(),
                address: lack.address,
                lack: lack.reason,
            });
        }
        if !is_joined {
            return Err(node.why_alone(&dir));
        }
        node.member.core.block_on(node.member.be_known());
        tracing::info!("node {} has joined the cluster in {}", life.node, config.dir.display());
        Ok(node)
    }

    /// What this process lacked to connect to all.
    fn shortage(&self) -> Option<ConnectFailure> {
        self.member.core.look(|machine| machine.dialling.failed.iter().find(|failed| failed.is_ours).cloned())
    }

    /// A node that cannot be reached now must not keep others from joining, unless it is the first.
    fn why_alone(&self, dir: &ClusterDir) -> JoinError {
        let nodes = match dir.nodes() {
            Ok(nodes) => nodes,
            Err(error) => return error.into(),
        };
        let runs = nodes.iter().any(|presence| presence.node == NodeId::FIRST && presence.alive);
        let failed = self.member.core.look(|machine| {
            // Others may have failed, too, and sooner: the first node is the one that counts.
            let name = cluster_dir::shm_name(NodeId::FIRST);
            let failed = &machine.dialling.failed;
            failed.iter().find(|failed| failed.address.starts_with(&name)).or(failed.first()).cloned()
        });
        let dir = dir.path().to_owned();
        match failed.filter(|_| runs) {
            Some(ConnectFailure { address, reason, .. }) => JoinError::Unreachable { dir, address, reason },
            None => JoinError::NoCluster { dir },
        }
    }
}

fn not_to_be_chosen(node: NodeId) -> JoinError {
    JoinError::BadConfig(format!(
        "as node {node}: numbers from {EPHEMERAL_NODE_MIN} on are given out, each once, to nodes that ask for none"
    ))
}

/// Using.
impl Node {
    /// Which node this is.
    pub fn id(&self) -> NodeId {
        self.member.life.node
    }

    /// A new session, which acts as the node's principal.
    ///
    /// Panics when 65,536 sessions are open.
    pub fn session(&self) -> Session {
        self.member.session(None)
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
        tracing::info!("node {} leaves", self.member.life.node);
        let core = &self.member.core;
        let mut leaving = Leaving::begin(core);
        while !leaving.advance(core) {
            core.drive_for_a_moment();
        }
        self.keeper = None;
        leaving::close(core, leaving.into_stale());
        self.lock = None;
    }
}
