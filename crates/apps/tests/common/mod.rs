//! What the stories of several applications need: nodes of this process, and stores over them.

pub mod redis;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use halite::{Config, Function, Node, NodeId, Permissions, RegionCause, blocking};
use halite_apps::kv::{KvError, Local, Owner, Stopper, Store};

pub const MIB: u64 = 1 << 20;
/// By which the first shard is called; the second by the next.
pub const FUNCTION: Function = Function(700);

/// Two nodes, of which both have memory.
pub struct Cluster {
    pub nodes: Vec<Node>,
    arena_bytes: u64,
    // Below the nodes, which are gone when it is removed.
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

    /// Node 0 leaves, and with it the directory of names, during `meanwhile`; then it is there again, with nothing.
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

/// Until a session that maps `name` is told that it is lost: what a node that leaves has held is within reach until then.
pub fn wait_until_lost(session: &blocking::Session, name: &str) {
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed().as_secs() < 60, "{name} is not lost");
        match session.map(name, Permissions::READ) {
            Ok(lh) => session.unmap(lh).unwrap(),
            Err(error) if matches!(error.cause(), RegionCause::Lost(_)) => return,
            // The directory does not know yet.
            Err(_) => {}
        }
    }
}

/// Sets its flag when it goes, so that threads which look at that end also where an assertion fails.
pub struct SetAtEnd<'f>(pub &'f AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        // The end of the threads orders the rest.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A store of which each node owns a shard.
pub struct Shards {
    pub cluster: Cluster,
    pub owners: Vec<(Stopper, JoinHandle<Result<(), KvError>>)>,
    /// What uses them without a call.
    pub locals: Vec<(usize, Local)>,
    /// The time of both owners, in ms.
    pub now_ms: Arc<AtomicU64>,
    /// Owners answer no call as long as somebody holds this.
    pub silence: Arc<Mutex<()>>,
}

impl Shards {
    pub fn new(arena_bytes: u64) -> Shards {
        let cluster = Cluster::new(arena_bytes);
        let now_ms = Arc::new(AtomicU64::new(1));
        let silence = Arc::new(Mutex::new(()));
        let (mut owners, mut locals) = (Vec::new(), Vec::new());
        for number in 0..2 {
            let session = cluster.session(number);
            let function = Function(FUNCTION.0 + number as u32);
            let creating = Owner::create(session.as_async(), "store", number, function, Permissions::empty());
            let owner = session.block_on(creating).unwrap();
            locals.push(owner.local());
            let (stopper, now_ms, silence) = (owner.stopper(), now_ms.clone(), silence.clone());
            let clock = move || {
                let _held = silence.lock().unwrap();
                now_ms.load(Ordering::Relaxed)
            };
            let run = move || session.block_on(owner.run(clock));
            owners.push((stopper, std::thread::spawn(run)));
        }
        let session = cluster.session(0);
        let ids = [NodeId(0), NodeId(1)];
        let creating = Store::create(session.as_async(), "store", &ids, FUNCTION, Permissions::empty());
        drop(session.block_on(creating).unwrap());
        Shards { cluster, owners, locals, now_ms, silence }
    }

    /// The store, as a session of a node has it.
    pub fn open(&self, node: usize) -> (blocking::Session, Store) {
        let session = self.cluster.session(node);
        let store = session.block_on(Store::open(session.as_async(), "store")).unwrap();
        (session, store)
    }
}
