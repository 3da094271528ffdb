//! Helpers for the tests of several applications: nodes in this process, and stores on these nodes.

pub mod redis;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use halite::{Config, Function, Node, NodeId, Permissions, RegionCause, blocking};
use halite_apps::kv::{KvError, Local, Owner, Stopper, Store};
use halite_mem::PagedError;

pub const MIB: u64 = 1 << 20;
/// Function number of the first shard; the next shard has the next number.
pub const FUNCTION: Function = Function(700);

/// Two nodes, both with memory.
pub struct Cluster {
    pub nodes: Vec<Node>,
    arena_bytes: u64,
    // Declared after the nodes, so that they are dropped before the directory is removed.
    dir: tempfile::TempDir,
}

impl Cluster {
    pub fn new(arena_bytes: u64) -> Cluster {
        let mut cluster = Cluster { nodes: Vec::new(), arena_bytes, dir: tempfile::tempdir().unwrap() };
        cluster.nodes.extend((0..2).map(|node| cluster.start(node)).collect::<Vec<_>>());
        cluster
    }

    fn start(&self, node: u32) -> Node {
        let (dir, arena_bytes) = (self.dir.path().join("cluster"), self.arena_bytes);
        Node::embedded(Config { dir, node: Some(NodeId(node)), arena_bytes, ..Config::default() }).unwrap()
    }

    /// Runs `meanwhile` while node 0, which holds the directory of names, is down. Then starts node 0 again, without
    /// regions.
    pub fn without_directory(&mut self, meanwhile: impl FnOnce()) {
        self.nodes.remove(0).leave();
        meanwhile();
        self.nodes.insert(0, self.start(0));
    }

    pub fn session(&self, node: usize) -> blocking::Session {
        self.nodes[node].blocking_session()
    }

    pub fn bytes_used(&self) -> u64 {
        self.session(0).status().unwrap().iter().map(|node| node.bytes_used).sum()
    }
}

/// Returns true if the system reports page faults to this process. Otherwise prints the reason.
pub fn can_share_pages() -> bool {
    match halite_mem::Paged::new(1, |_, _| {}) {
        Err(reason @ (PagedError::Refused | PagedError::Unsupported)) => {
            eprintln!("skipped: {reason}");
            false
        }
        _ => true,
    }
}

/// Waits until a session that maps `name` gets the error that the region is lost. Until then, sessions can still access
/// the memory of a node that leaves.
pub fn wait_until_lost(session: &blocking::Session, name: &str) {
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed().as_secs() < 60, "{name} is not lost");
        match session.map(name, Permissions::READ) {
            Ok(lh) => session.unmap(lh).unwrap(),
            Err(error) if matches!(error.cause(), RegionCause::Lost(_)) => return,
            // The directory has not learned of the loss yet.
            Err(_) => {}
        }
    }
}

/// Sets its flag when dropped, so that threads that check the flag end even if an assertion fails.
pub struct SetAtEnd<'f>(pub &'f AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        // Relaxed: joining the threads orders everything else.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A store with a shard on each node.
pub struct Shards {
    pub cluster: Cluster,
    pub owners: Vec<(Stopper, JoinHandle<Result<(), KvError>>)>,
    /// Sessions that use the shards without calls.
    pub locals: Vec<(usize, Local)>,
    /// Clock of both owners, in ms.
    pub now_ms: Arc<AtomicU64>,
    /// While a test holds this, owners answer no call.
    pub silence: Arc<Mutex<()>>,
}

impl Shards {
    pub fn new(arena_bytes: u64) -> Shards {
        let cluster = Cluster::new(arena_bytes);
        let now_ms = Arc::new(AtomicU64::new(1));
        let silence = Arc::new(Mutex::new(()));
        let (owners, locals) = (Vec::new(), Vec::new());
        let mut shards = Shards { cluster, owners, locals, now_ms, silence };
        (0..2).for_each(|number| shards.serve(number, number));
        let session = shards.cluster.session(0);
        let ids = [NodeId(0), NodeId(1)];
        let creating = Store::create(session.as_async(), "store", &ids, FUNCTION, Permissions::empty());
        drop(session.block_on(creating).unwrap());
        shards
    }

    /// Serves a shard at a node of the cluster.
    fn serve(&mut self, number: usize, node: usize) {
        let session = self.cluster.session(node);
        let function = Function(FUNCTION.0 + number as u32);
        let creating = Owner::create(session.as_async(), "store", number, function, Permissions::empty());
        let owner = session.block_on(creating).unwrap();
        self.locals.push(owner.local());
        let (stopper, now_ms, silence) = (owner.stopper(), self.now_ms.clone(), self.silence.clone());
        let clock = move || {
            let _held = silence.lock().unwrap();
            now_ms.load(Ordering::Relaxed)
        };
        let run = move || session.block_on(owner.run(clock));
        self.owners.push((stopper, std::thread::spawn(run)));
    }

    /// Serves a shard, whose owner has ended, at a new node.
    pub fn replace(&mut self, number: usize, node: u32) {
        let started = self.cluster.start(node);
        self.cluster.nodes.push(started);
        self.serve(number, self.cluster.nodes.len() - 1);
        let session = self.cluster.session(0);
        session.block_on(Store::place(session.as_async(), "store", number, NodeId(node))).unwrap();
    }

    /// Opens the store in a session of a node.
    pub fn open(&self, node: usize) -> (blocking::Session, Store) {
        let session = self.cluster.session(node);
        let store = session.block_on(Store::open(session.as_async(), "store")).unwrap();
        (session, store)
    }
}
