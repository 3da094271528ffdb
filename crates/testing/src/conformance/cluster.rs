//! Small clusters for the conformance cases, and functions that cases share.

use std::path::PathBuf;

use fastrand::Rng;
use halite::{Config, JoinError, Lh, NodeId, NodeState, NodeStatus, Permissions, Placement};

use super::session::Session;
use super::turns::pause_again;

/// Bytes per chunk in all cases: small, so that ordinary lengths cross borders between chunks.
pub const CHUNK: u64 = 64 << 10;

/// Default memory of each node, in bytes.
pub const ARENA: u64 = 16 << 20;

/// An environment that runs the nodes of a case: real or simulated nodes over one kind of fabric.
pub trait Harness {
    /// Creates an empty cluster. Dropping the result makes its nodes leave.
    fn create(&self) -> Box<dyn Place>;

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

    /// Returns the reason why the harness cannot run a case, if any.
    fn cannot(&self, _case: &str) -> Option<&'static str> {
        None
    }
}

/// Starts nodes, and makes them leave or die.
pub trait Nodes {
    /// Starts the node with the number in `config`. It joins the other nodes of this cluster, or is the first one.
    fn start(&self, config: Config) -> Result<(), JoinError>;

    /// Makes a node leave, and returns when it has left.
    fn leave(&self, node: NodeId);

    /// Ends a node without notice to the others.
    fn kill(&self, node: NodeId);

    /// Returns the pid of a node's process, as other nodes see it.
    fn pid(&self, node: NodeId) -> u32;
}

/// Provides sessions.
pub trait Sessions {
    /// Returns a new session of a running node, with the node's principal.
    fn session(&self, node: NodeId) -> halite::Session;
}

/// The nodes of one cluster, and their sessions.
pub trait Place: Nodes + Sessions {}

impl<P: Nodes + Sessions> Place for P {}

/// Nodes 0, 1, 2 and so on of one cluster.
pub struct Cluster {
    place: Box<dyn Place>,
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
        let cluster = Cluster { place: harness.create(), tune, nodes: members.len() };
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
            eventually("all nodes know each other", || {
                let all = session.status().map_err(|error| error.to_string())?;
                let alive = all.iter().filter(|status| status.state == NodeState::Alive).count();
                if alive == self.nodes { Ok(()) } else { Err(format!("node {index} sees {all:?}")) }
            });
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
        self.place.start(config)
    }

    /// Opens a session of node `index`, which must not have left.
    pub fn session(&self, index: usize) -> Session {
        Session::new(&self.futures(index))
    }

    /// Opens an asynchronous session of node `index`: its operations return futures.
    pub fn futures(&self, index: usize) -> halite::Session {
        self.place.session(NodeId(index as u32))
    }

    /// Makes node `index` leave.
    pub fn leave(&mut self, index: usize) {
        self.place.leave(NodeId(index as u32));
    }

    /// Ends node `index` without notice to the others.
    pub fn kill(&mut self, index: usize) {
        self.place.kill(NodeId(index as u32));
    }

    /// Returns the pid of node `index`.
    pub fn pid(&self, index: usize) -> u32 {
        self.place.pid(NodeId(index as u32))
    }

    /// Returns the status of node `index` according to node 0.
    pub fn status(&self, index: usize) -> NodeStatus {
        let all = self.session(0).status().expect("status");
        all.into_iter().find(|status| status.node == NodeId(index as u32)).expect("the node is listed")
    }

    /// Waits until no node holds a byte, a region or a mapping, so that nothing has leaked.
    pub fn expect_empty(&self) {
        eventually("every node is empty", || {
            let all = self.session(0).status().expect("status");
            let held = |status: &NodeStatus| {
                status.bytes_used + status.bytes_quarantined + status.regions + status.mappings
            };
            if all.iter().all(|status| held(status) == 0) { Ok(()) } else { Err(format!("{all:?}")) }
        });
    }
}

/// Repeats `attempt` until it succeeds. Other threads run in between, in pauses that grow. Panics after a maximum
/// number of attempts; there is no time limit.
pub fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
    const ATTEMPTS_MAX: u32 = 20_000;
    let mut last = String::new();
    for attempts in 0..ATTEMPTS_MAX {
        match attempt() {
            Ok(value) => return value,
            Err(why) => last = why,
        }
        pause_again(attempts);
    }
    panic!("gave up waiting until {what}: {last}");
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
