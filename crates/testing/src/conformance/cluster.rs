//! Small clusters, and what cases ask them.

use std::path::PathBuf;

use fastrand::Rng;
use halite::{Config, JoinError, Lh, NodeId, NodeState, NodeStatus, Permissions, Placement};

use super::session::Session;
use super::turns::pause_again;

/// Bytes per chunk in all cases: small, so that ordinary lengths cross borders.
pub const CHUNK: u64 = 64 << 10;

/// What each node contributes unless a case says otherwise.
pub const ARENA: u64 = 16 << 20;

/// A way of running nodes.
pub trait Harness {
    /// A place for the nodes of one cluster.  What is given up with it has left.
    fn found(&self) -> Box<dyn Place>;

    /// How much of something a case does that says all with `enough`, and more with `many` where that costs nothing.
    fn count(&self, _enough: usize, many: usize) -> usize {
        many
    }

    /// Whether the others see that a node's process has exited; else it only does not answer any more.
    fn sees_exits(&self) -> bool {
        true
    }

    /// Why a case is not told over these nodes, if it is not.
    fn cannot(&self, _case: &str) -> Option<&'static str> {
        None
    }
}

/// Where nodes come and go.
pub trait Nodes {
    /// Starts the node with the number in `config`, which joins the others of this place, or is its first.
    fn start(&self, config: Config) -> Result<(), JoinError>;

    /// Makes a node leave, and returns when it has left.
    fn leave(&self, node: NodeId);

    /// Ends a node without a word.
    fn kill(&self, node: NodeId);

    /// The process that a node is, as others are told.
    fn pid(&self, node: NodeId) -> u32;
}

/// Where sessions come from.
pub trait Sessions {
    /// A new session of a node that is there, which acts as the node's principal.
    fn session(&self, node: NodeId) -> halite::Session;
}

/// The nodes of one cluster, and their sessions.
pub trait Place: Nodes + Sessions {}

impl<P: Nodes + Sessions> Place for P {}

/// Nodes 0, 1, 2... of one cluster.
pub struct Cluster {
    place: Box<dyn Place>,
    /// What all nodes have in common beside what cases usually want.
    tune: fn(&mut Config),
    /// How many there were at first.
    nodes: usize,
}

impl Cluster {
    /// `nodes` nodes of one principal, each with [`ARENA`] bytes.
    pub fn new(harness: &dyn Harness, nodes: usize) -> Cluster {
        Cluster::with(harness, &vec![("ada", ARENA); nodes])
    }

    /// As [`Cluster::new`], with what `tune` changes.
    pub fn tuned(harness: &dyn Harness, nodes: usize, tune: fn(&mut Config)) -> Cluster {
        Cluster::start_all(harness, &vec![("ada", ARENA); nodes], tune)
    }

    /// One node for each principal, with [`ARENA`] bytes.
    pub fn of_principals(harness: &dyn Harness, principals: &[&str]) -> Cluster {
        let members: Vec<(&str, u64)> = principals.iter().map(|principal| (*principal, ARENA)).collect();
        Cluster::with(harness, &members)
    }

    /// One node for each pair of a principal and how much memory the node contributes.
    pub fn with(harness: &dyn Harness, members: &[(&str, u64)]) -> Cluster {
        Cluster::start_all(harness, members, |_| {})
    }

    fn start_all(harness: &dyn Harness, members: &[(&str, u64)], tune: fn(&mut Config)) -> Cluster {
        let cluster = Cluster { place: harness.found(), tune, nodes: members.len() };
        for (id, (principal, arena_bytes)) in members.iter().enumerate() {
            cluster.start(id as u32, principal, *arena_bytes).expect("the node joins");
        }
        cluster.await_acquaintance();
        cluster
    }

    /// Waits until every node knows every other: joining returns when the new node knows the others.
    fn await_acquaintance(&self) {
        for index in 0..self.nodes {
            let session = self.session(index);
            eventually("all nodes know each other", || {
                let all = session.status().map_err(|error| error.to_string())?;
                let alive = all.iter().filter(|status| status.state == NodeState::Alive).count();
                if alive == self.nodes { Ok(()) } else { Err(format!("node {index} sees {all:?}")) }
            });
        }
    }

    /// Starts one more node.
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

    /// A new session at node `index`, which has not left.
    pub fn session(&self, index: usize) -> Session {
        Session::new(&self.futures(index))
    }

    /// A new session at node `index` whose operations are futures.
    pub fn futures(&self, index: usize) -> halite::Session {
        self.place.session(NodeId(index as u32))
    }

    /// Makes node `index` leave.
    pub fn leave(&mut self, index: usize) {
        self.place.leave(NodeId(index as u32));
    }

    /// Ends node `index` without a word.
    pub fn kill(&mut self, index: usize) {
        self.place.kill(NodeId(index as u32));
    }

    /// The process that node `index` is.
    pub fn pid(&self, index: usize) -> u32 {
        self.place.pid(NodeId(index as u32))
    }

    /// What node 0 says of node `index`.
    pub fn status(&self, index: usize) -> NodeStatus {
        let all = self.session(0).status().expect("status");
        all.into_iter().find(|status| status.node == NodeId(index as u32)).expect("the node is listed")
    }

    /// Waits until no node holds a byte, a region or a mapping: nothing has leaked.
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

/// Repeats `attempt` until it succeeds.  What it waits for comes about by messages of other threads, a few after
/// each attempt at most, so the bound is on attempts and no clock is looked at.
pub fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
    const ATTEMPTS_MAX: u32 = 20_000;
    let mut last = String::new();
    for looks in 0..ATTEMPTS_MAX {
        match attempt() {
            Ok(value) => return value,
            Err(why) => last = why,
        }
        pause_again(looks);
    }
    panic!("waited in vain until {what}: {last}");
}

/// A named region of this node for which everyone has all permissions but that of a master.
pub fn shared(session: &Session, name: &str, len: u64) -> Lh {
    session.alloc(Some(name), len, Placement::Local, everyone()).expect("the region is made")
}

/// Such a region of node 0, which node 1 has mapped, too: the session and the handle of each.
pub fn in_common(cluster: &Cluster, name: &str, len: u64) -> [(Session, Lh); 2] {
    let [owner, remote] = [0, 1].map(|node| cluster.session(node));
    let near = shared(&owner, name, len);
    let far = remote.map(name, everyone()).expect("the region is there");
    [(owner, near), (remote, far)]
}

/// All that non-masters may be given.
pub fn everyone() -> Permissions {
    Permissions::READ | Permissions::WRITE | Permissions::ATOMIC
}

/// Bytes that repeat nowhere near, different for each `seed`.
pub fn pattern(len: u64, seed: u64) -> Vec<u8> {
    let mut random = Rng::with_seed(seed);
    (0..len).map(|_| (random.u64(..) >> 32) as u8).collect()
}

/// The bytes of a region, read in one piece.
pub fn contents(session: &Session, lh: Lh) -> Vec<u8> {
    let mut bytes = vec![0xEE; session.len(lh).expect("the handle is good") as usize];
    session.read(lh, 0, &mut bytes).expect("the region can be read");
    bytes
}
