//! Clusters of several nodes in this process, each cluster in a new directory.

#![allow(dead_code, reason = "each test uses a part of it")]

pub mod no_direct;
pub mod posting;
pub mod threads;

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use halite::{Config, Driven, Env, JoinError, Node, NodeId, NodeIdentity};
use halite_fabric::Fabric;
use halite_providers::{ShmConfig, ShmFabric};
use tempfile::TempDir;

/// A cluster directory that does not exist yet, and is removed with the test.
pub struct Dir {
    path: PathBuf,
    _scratch: TempDir,
}

impl Dir {
    pub fn new() -> Dir {
        let scratch = TempDir::new().expect("a temporary directory can be created");
        Dir { path: scratch.path().join("cluster"), _scratch: scratch }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn config(&self, node: u32) -> Config {
        let node = Some(NodeId(node));
        let dir = self.path.clone();
        Config { dir, node, arena_bytes: 256 << 20, segment_bytes: 64 << 20, ..Config::default() }
    }

    pub fn join(&self, node: u32) -> Node {
        self.try_join(self.config(node)).expect("the node joins")
    }

    pub fn try_join(&self, config: Config) -> Result<Node, JoinError> {
        Node::embedded(config)
    }

    /// Creates a driven node, the only one of its cluster.
    pub fn driven(&self, env: Arc<dyn Env>) -> Driven {
        std::fs::DirBuilder::new().mode(0o700).create(&self.path).unwrap();
        let open = |identity: &NodeIdentity| -> Result<Arc<dyn Fabric>, JoinError> {
            let config =
                ShmConfig { hello: identity.hello.clone(), ..ShmConfig::new(&self.path, &identity.name) };
            Ok(ShmFabric::open(config).map_err(|error| JoinError::Fabric(Box::new(error)))?)
        };
        Driven::new(self.config(0), env, open).unwrap()
    }

    /// Joins a node that reaches the memory of others only by posting.
    pub fn join_posted(&self, node: u32) -> Node {
        let wrapped =
            Node::wrap(self.config(node), |inner| Arc::new(posting::Posting { inner, has_atomics: true }));
        wrapped.expect("the node joins")
    }
}

/// Time limit that turns a hang into a failure; a test normally takes much less.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Calls `find` until it returns a value, and returns that value.
#[track_caller]
pub fn until<T>(mut find: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(begin.elapsed() < TIMEOUT, "timed out");
        std::thread::yield_now();
    }
}

/// The environment of a driven node that runs in this process.
pub struct Process(Instant);

impl Process {
    pub fn begin() -> Arc<Process> {
        Arc::new(Process(Instant::now()))
    }
}

impl Env for Process {
    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    fn since_1970_ns(&self) -> u64 {
        1
    }

    fn random(&self) -> u64 {
        self.now_ns() | 1
    }

    fn pid(&self) -> u32 {
        std::process::id()
    }
}
