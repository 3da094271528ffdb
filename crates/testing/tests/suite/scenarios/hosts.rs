//! A harness of the API's conformance suite that runs each node in a process of its own. Each process acts as a host: it
//! has its own cluster directory, and talks to the others over UDP on the loopback interface. All sessions attach from the
//! test's process.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use halite::{Config, JoinError, NodeId, Session};
use halite_testing::conformance::cluster::Nodes;
use halite_testing::conformance::{Harness, embedded};

use super::cluster::Process;

/// Answer of a process to the command `host` if another one, on any host, runs as this node already.
pub const TAKEN: &str = "taken";
/// Prefix of the answer that has the address of a node.
pub const READY: &str = "ready ";

/// Runs each node of a case in a process of its own.
pub struct Hosts;

impl Harness for Hosts {
    fn create(&self) -> Box<dyn Nodes> {
        let directory = tempfile::Builder::new().prefix("halite-").tempdir().expect("a directory is created");
        let secret =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(directory.path().join("secret"));
        writeln!(secret.expect("the file is new"), "{}", "5a".repeat(32)).expect("the secret is written");
        Box::new(Processes { nodes: RefCell::default(), directory })
    }

    /// Another host learns of an exit only when the lease expires.
    fn sees_exits(&self) -> bool {
        false
    }

    fn cannot(&self, _: &str, case: &str) -> Option<&'static str> {
        embedded::attached_cannot(case)
    }
}

/// Running nodes, with the address at which others dial each of them.
struct Processes {
    nodes: RefCell<BTreeMap<NodeId, (Process, String)>>,
    directory: tempfile::TempDir,
}

impl Processes {
    fn host_dir(&self, node: NodeId) -> PathBuf {
        self.directory.path().join(format!("host-{node}"))
    }
}

impl Nodes for Processes {
    fn start(&self, config: Config) -> Result<(), JoinError> {
        let node = config.node.expect("cases number their nodes");
        let dir = self.host_dir(node);
        DirBuilder::new().mode(0o700).recursive(true).create(&dir).expect("the directory is created");
        let others = self.nodes.borrow();
        let join = others.values().next().map_or("-", |(_, address)| address);
        let Config { arena_bytes, segment_bytes, chunk_bytes, request_ring_bytes, .. } = config;
        let principal = config.principal.expect("cases name their principals");
        let secret = self.directory.path().join("secret");
        let mut process = Process::start(&format!("node {node}"));
        let answer = process.ask(&format!(
            "host {node} {arena_bytes} {segment_bytes} {chunk_bytes} {request_ring_bytes} {} {principal} {join} {} {}",
            config.lease.as_millis(),
            secret.display(),
            dir.display(),
        ));
        drop(others);
        let Some(address) = answer.strip_prefix(READY) else {
            return Err(match answer.as_str() {
                TAKEN => JoinError::AlreadyRunning { node, pid: 0, dir },
                _ => JoinError::Resource(io::Error::other(answer)),
            });
        };
        self.nodes.borrow_mut().insert(node, (process, address.to_owned()));
        Ok(())
    }

    fn leave(&self, node: NodeId) {
        let (process, _) = self.nodes.borrow_mut().remove(&node).expect("the node has not left");
        process.leave();
    }

    fn kill(&self, node: NodeId) {
        let (mut process, _) = self.nodes.borrow_mut().remove(&node).expect("the node has not left");
        process.kill();
    }

    fn pid(&self, node: NodeId) -> u32 {
        self.nodes.borrow()[&node].0.pid()
    }

    fn session(&self, node: NodeId) -> Session {
        Session::attach_to(self.host_dir(node), node).expect("the node accepts sessions")
    }
}
