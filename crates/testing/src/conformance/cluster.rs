//! Small clusters for the conformance cases, and functions that cases share.

use std::fmt::Debug;
use std::path::PathBuf;

use fastrand::Rng;
use halite::{Config, JoinError, Lh, NodeId, NodeState, NodeStatus, Permissions, Placement};

use super::session::Session;
use super::turns::{expect_pending, pause_again};

/// Bytes per chunk in all cases: small, so that ordinary lengths cross borders between chunks.
pub const CHUNK: u64 = 64 << 10;

/// Default memory of each node, in bytes.
pub const ARENA: u64 = 16 << 20;

/// An environment that runs the nodes of a case: real or simulated nodes over one kind of fabric.
pub trait Harness {
    /// Creates an empty cluster. Dropping the result makes its nodes leave.
    fn create(&self) -> Box<dyn Nodes>;

    /// Returns the number of repetitions of a case: `many` if repetitions are cheap and may find more faults, otherwise
    /// `enough`.
    fn count(&self, _enough: usize, many: usize) -> usize {
        many
    }

    /// Returns true if nodes learn at once that the process of another node has exited. Otherwise they declare the node
    /// dead when its lease expires.
    fn sees_exits(&self) -> bool {
        true
    }

    /// Returns the reason why the harness cannot run a case, if any. `_area` is the name of the case's module.
    fn cannot(&self, _area: &str, _case: &str) -> Option<&'static str> {
        None
    }
}

/// The nodes of one cluster.
pub trait Nodes {
    /// Starts the node with the number in `config`. It joins the other nodes of this cluster, or is the first one.
    fn start(&self, config: Config) -> Result<(), JoinError>;

    /// Makes a node leave, and returns when it has left.
    fn leave(&self, node: NodeId);

    /// Ends a node without notice to the others.
    fn kill(&self, node: NodeId);

    /// Returns the pid of a node's process, as other nodes see it.
    fn pid(&self, node: NodeId) -> u32;

    /// Returns a new session of a running node, with the node's principal.
    fn session(&self, node: NodeId) -> halite::Session;
}

/// Nodes 0, 1, 2 and so on of one cluster.
pub struct Cluster {
    members: Box<dyn Nodes>,
    /// Changes the default configuration of all nodes.
    tune: fn(&mut Config),
    /// Number of nodes at the start.
    nodes: usize,
}

impl Cluster {
    /// Starts `nodes` nodes of one principal, each with [`ARENA`] bytes.
    pub fn new(harness: &dyn Harness, nodes: usize) -> Cluster {
        Cluster::with(harness, &vec![("ada", ARENA); nodes])
    }

    /// Starts a cluster as [`Cluster::new`] does, after `tune` has changed the configuration of each node.
    pub fn tuned(harness: &dyn Harness, nodes: usize, tune: fn(&mut Config)) -> Cluster {
        Cluster::start_all(harness, &vec![("ada", ARENA); nodes], tune)
    }

    /// Starts one node per principal, with [`ARENA`] bytes each.
    pub fn of_principals(harness: &dyn Harness, principals: &[&str]) -> Cluster {
        let members: Vec<(&str, u64)> = principals.iter().map(|principal| (*principal, ARENA)).collect();
        Cluster::with(harness, &members)
    }

    /// Starts one node for each of `members`: its principal, and the bytes of memory that it gives to the cluster.
    pub fn with(harness: &dyn Harness, members: &[(&str, u64)]) -> Cluster {
        Cluster::start_all(harness, members, |_| {})
    }

    fn start_all(harness: &dyn Harness, members: &[(&str, u64)], tune: fn(&mut Config)) -> Cluster {
        let cluster = Cluster { members: harness.create(), tune, nodes: members.len() };
        for (id, (principal, arena_bytes)) in members.iter().enumerate() {
            cluster.start(id as u32, principal, *arena_bytes).expect("the node joins");
        }
        cluster.await_full_mesh();
        cluster
    }

    /// Waits until every node knows every other. A join may return before the others know the new node.
    fn await_full_mesh(&self) {
        for index in 0..self.nodes {
            let session = self.session(index);
            let is_alive = |status: &&NodeStatus| status.state == NodeState::Alive;
            let sees_all = |all: &Vec<NodeStatus>| all.iter().filter(is_alive).count() == self.nodes;
            await_value(
                &format!("node {index} knows all nodes"),
                || session.status().expect("status"),
                sees_all,
            );
        }
    }

    /// Starts another node, with number `id`.
    pub fn start(&self, id: u32, principal: &str, arena_bytes: u64) -> Result<(), JoinError> {
        let mut config = Config {
            dir: PathBuf::from("simulated"),
            node: Some(NodeId(id)),
            arena_bytes,
            chunk_bytes: CHUNK,
            principal: Some(principal.to_owned()),
            ..Config::default()
        };
        (self.tune)(&mut config);
        self.members.start(config)
    }

    /// Opens a session of node `index`, which must not have left.
    pub fn session(&self, index: usize) -> Session {
        Session::new(&self.futures(index))
    }

    /// Opens an asynchronous session of node `index`: its operations return futures.
    pub fn futures(&self, index: usize) -> halite::Session {
        self.members.session(NodeId(index as u32))
    }

    /// Makes node `index` leave.
    pub fn leave(&mut self, index: usize) {
        self.members.leave(NodeId(index as u32));
    }

    /// Ends node `index` without notice to the others.
    pub fn kill(&mut self, index: usize) {
        self.members.kill(NodeId(index as u32));
    }

    /// Returns the pid of node `index`.
    pub fn pid(&self, index: usize) -> u32 {
        self.members.pid(NodeId(index as u32))
    }

    /// Returns the status of node `index` according to node 0.
    pub fn status(&self, index: usize) -> NodeStatus {
        let all = self.session(0).status().expect("status");
        all.into_iter().find(|status| status.node == NodeId(index as u32)).expect("the node is listed")
    }

    /// Waits until no node holds a byte, a region or a mapping, so that nothing has leaked.
    pub fn expect_empty(&self) {
        let is_empty = |status: &NodeStatus| {
            status.bytes_used + status.bytes_quarantined + status.regions + status.mappings == 0
        };
        let status = || self.session(0).status().expect("status");
        await_value("every node is empty", status, |all| all.iter().all(is_empty));
    }
}

/// Repeats `attempt` until it succeeds. Other threads run in between, in pauses that grow. Panics after a maximum
/// number of attempts; there is no time limit.
pub fn eventually<T, E: ToString>(what: &str, mut attempt: impl FnMut() -> Result<T, E>) -> T {
    const ATTEMPTS_MAX: u32 = 20_000;
    let mut last = String::new();
    for attempts in 0..ATTEMPTS_MAX {
        match attempt() {
            Ok(value) => return value,
            Err(error) => last = error.to_string(),
        }
        pause_again(attempts);
    }
    panic!("gave up waiting until {what}: {last}");
}

/// Repeats `read` until `is_expected` accepts its value, and returns this value. Waits as [`eventually`] does.
pub fn await_value<T: Debug>(what: &str, mut read: impl FnMut() -> T, is_expected: impl Fn(&T) -> bool) -> T {
    eventually(what, || {
        let value = read();
        if is_expected(&value) { Ok(value) } else { Err(format!("{value:?}")) }
    })
}

/// Expects that a future stays pending for `polls` polls. After each poll, a round trip of `session` lets messages
/// arrive.
pub fn expect_long_pending<F: Future + Unpin>(future: &mut F, session: &Session, polls: usize) {
    for _ in 0..polls {
        expect_pending(future);
        session.status().expect("status");
    }
}

/// Allocates a named region on the session's node. Every principal has all permissions on it except that of a master.
pub fn shared(session: &Session, name: &str, len: u64) -> Lh {
    session.alloc(Some(name), len, Placement::Local, everyone()).expect("the region is allocated")
}

/// Allocates a [`shared`] region on node 0 and maps it on node 1. Returns each node's session and handle.
pub fn in_common(cluster: &Cluster, name: &str, len: u64) -> [(Session, Lh); 2] {
    let [owner, remote] = [0, 1].map(|node| cluster.session(node));
    let near = shared(&owner, name, len);
    let far = remote.map(name, everyone()).expect("the region exists");
    [(owner, near), (remote, far)]
}

/// Returns all permissions that principals other than masters may have.
pub fn everyone() -> Permissions {
    Permissions::READ | Permissions::WRITE | Permissions::ATOMIC
}

/// Returns pseudorandom bytes, different for each `seed`.
pub fn pattern(len: u64, seed: u64) -> Vec<u8> {
    let mut random = Rng::with_seed(seed);
    (0..len).map(|_| (random.u64(..) >> 32) as u8).collect()
}

/// Reads the whole region.
pub fn contents(session: &Session, lh: Lh) -> Vec<u8> {
    let mut bytes = vec![0xEE; session.len(lh).expect("the handle is valid") as usize];
    session.read(lh, 0, &mut bytes).expect("the region is readable");
    bytes
}
