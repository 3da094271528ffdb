//! Small clusters inside of one process, and what cases ask them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;

use halite::{
    Config, Fence, JoinError, Lh, Node, NodeId, NodeState, NodeStatus, Permissions, Placement, Session,
    blocking,
};

/// Bytes per chunk in all cases: small, so that ordinary lengths cross borders.
pub const CHUNK: u64 = 64 << 10;

/// What each node contributes unless a case says otherwise.
pub const ARENA: u64 = 16 << 20;

/// A way of running nodes.
pub trait Harness: Sync {
    /// Starts a node that joins the cluster of `config.dir`, or founds it.
    fn start(&self, config: Config) -> Result<Node, JoinError>;
}

/// Nodes 0, 1, 2... of one cluster, with a directory of their own.  Dropping it makes them leave, the first one last.
pub struct Cluster<'h> {
    harness: &'h dyn Harness,
    /// What all nodes have in common beside what cases usually want.
    tune: fn(&mut Config),
    // Above the directory, so that the nodes are gone when it is removed.
    nodes: Vec<Option<Node>>,
    directory: tempfile::TempDir,
}

impl<'h> Cluster<'h> {
    /// `nodes` nodes of one principal, each with [`ARENA`] bytes.
    pub fn new(harness: &'h dyn Harness, nodes: usize) -> Cluster<'h> {
        Cluster::with(harness, &vec![("ada", ARENA); nodes])
    }

    /// As [`Cluster::new`], with what `tune` changes.
    pub fn tuned(harness: &'h dyn Harness, nodes: usize, tune: fn(&mut Config)) -> Cluster<'h> {
        Cluster::start_all(harness, &vec![("ada", ARENA); nodes], tune)
    }

    /// One node for each principal, with [`ARENA`] bytes.
    pub fn of_principals(harness: &'h dyn Harness, principals: &[&str]) -> Cluster<'h> {
        let members: Vec<(&str, u64)> = principals.iter().map(|principal| (*principal, ARENA)).collect();
        Cluster::with(harness, &members)
    }

    /// One node for each pair of a principal and how much memory the node contributes.
    pub fn with(harness: &'h dyn Harness, members: &[(&str, u64)]) -> Cluster<'h> {
        Cluster::start_all(harness, members, |_| {})
    }

    fn start_all(harness: &'h dyn Harness, members: &[(&str, u64)], tune: fn(&mut Config)) -> Cluster<'h> {
        let private = std::fs::Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().prefix("halite-").permissions(private).tempdir();
        let directory = directory.expect("a temporary directory");
        let mut cluster = Cluster { harness, tune, nodes: Vec::new(), directory };
        for (principal, arena_bytes) in members {
            let id = cluster.nodes.len() as u32;
            let node = cluster.start(id, principal, *arena_bytes).expect("the node joins");
            cluster.nodes.push(Some(node));
        }
        cluster.await_acquaintance();
        cluster
    }

    /// Waits until every node knows every other: joining returns when the new node knows the others.
    fn await_acquaintance(&self) {
        for index in 0..self.nodes.len() {
            let session = self.session(index);
            eventually("all nodes know each other", || {
                let all = session.status().map_err(|error| error.to_string())?;
                let alive = all.iter().filter(|status| status.state == NodeState::Alive).count();
                if alive == self.nodes.len() { Ok(()) } else { Err(format!("node {index} sees {all:?}")) }
            });
        }
    }

    /// Starts one more node, which the caller keeps.
    pub fn start(&self, id: u32, principal: &str, arena_bytes: u64) -> Result<Node, JoinError> {
        let mut config = Config {
            dir: self.path().to_path_buf(),
            node: Some(NodeId(id)),
            arena_bytes,
            chunk_bytes: CHUNK,
            // All nodes are this very process.
            fence: Fence::Never,
            principal: Some(principal.to_owned()),
            ..Config::default()
        };
        (self.tune)(&mut config);
        self.harness.start(config)
    }

    /// The cluster's directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Node `index`, which has not left.
    pub fn node(&self, index: usize) -> &Node {
        self.nodes[index].as_ref().expect("the node has not left")
    }

    /// A new session at node `index`.
    pub fn session(&self, index: usize) -> blocking::Session {
        self.node(index).blocking_session()
    }

    /// A new session at node `index` whose operations are futures.
    pub fn futures(&self, index: usize) -> Session {
        self.node(index).session()
    }

    /// Makes node `index` leave.
    pub fn leave(&mut self, index: usize) {
        self.nodes[index].take().expect("the node has not left").leave();
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

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        // The first node keeps the directory of names, so the others can say goodbye to it.
        while let Some(node) = self.nodes.pop() {
            drop(node);
        }
    }
}

/// Repeats `attempt` until it succeeds.  What it waits for comes about by messages of other threads, a few after
/// each attempt at most, so the bound is on attempts and no clock is looked at.
pub fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
    const ATTEMPTS_MAX: u32 = 20_000;
    let mut last = String::new();
    for _ in 0..ATTEMPTS_MAX {
        match attempt() {
            Ok(value) => return value,
            Err(why) => last = why,
        }
        thread::yield_now();
    }
    panic!("waited in vain until {what}: {last}");
}

/// A named region of this node for which everyone has all permissions but that of a master.
pub fn shared(session: &blocking::Session, name: &str, len: u64) -> Lh {
    session.alloc(Some(name), len, Placement::Local, everyone()).expect("the region is made")
}

/// All that non-masters may be given.
pub fn everyone() -> Permissions {
    Permissions::READ | Permissions::WRITE | Permissions::ATOMIC
}

/// Bytes that repeat nowhere near, different for each `seed`.
pub fn pattern(len: u64, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len).map(|_| (random.next() >> 32) as u8).collect()
}

/// The bytes of a region, read in one piece.
pub fn contents(session: &blocking::Session, lh: Lh) -> Vec<u8> {
    let mut bytes = vec![0xEE; session.len(lh).expect("the handle is good") as usize];
    session.read(lh, 0, &mut bytes).expect("the region can be read");
    bytes
}

/// A small deterministic generator (splitmix64): a failing case fails again.
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "an endless sequence is no iterator here")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
