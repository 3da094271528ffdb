//! Nodes of this process, over shared memory or UDP.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use halite::{Config, Fence, JoinError, Node, NodeId, Provider};

use super::cluster::{Harness, Nodes, Place, Sessions};
use posting::Posting;

#[path = "../../../halite/tests/common/posting.rs"]
mod posting;

/// Nodes that reach each other's memory by loads and stores, as embedded nodes do by default.
pub struct Direct;

impl Harness for Direct {
    fn cannot(&self, case: &str) -> Option<&'static str> {
        cannot(case)
    }

    fn create(&self) -> Box<dyn Place> {
        Box::new(Embedded::new(Node::embedded))
    }
}

/// Nodes with middleware that hides direct access, so that nodes post and complete every access as on a network.
pub struct Posted;

impl Harness for Posted {
    fn cannot(&self, case: &str) -> Option<&'static str> {
        cannot(case)
    }

    fn create(&self) -> Box<dyn Place> {
        Box::new(Embedded::new(|config| {
            Node::wrap(config, |inner| Arc::new(Posting { inner, has_atomics: true }))
        }))
    }
}

/// Nodes that post every access, as [`Posted`] does, on a fabric without atomics: each atomic is a call to the owner.
pub struct ByCall;

impl Harness for ByCall {
    fn cannot(&self, case: &str) -> Option<&'static str> {
        cannot(case)
    }

    fn create(&self) -> Box<dyn Place> {
        Box::new(Embedded::new(|config| {
            Node::wrap(config, |inner| Arc::new(Posting { inner, has_atomics: false }))
        }))
    }
}

/// Nodes that communicate over UDP.
pub struct Roce;

impl Harness for Roce {
    fn cannot(&self, case: &str) -> Option<&'static str> {
        cannot(case)
    }

    fn create(&self) -> Box<dyn Place> {
        let over = |config| Node::embedded(Config { providers: vec![Provider::Roce], ..config });
        Box::new(Embedded::new(over))
    }
}

/// Reason for skipping cases that kill nodes. The scenarios kill nodes that are processes of their own.
const KILLS_ITSELF: &str = "all nodes are this process, which would kill itself";

pub(super) fn cannot(case: &str) -> Option<&'static str> {
    super::killed::CASES.contains(&case).then_some(KILLS_ITSELF)
}

/// Nodes of this process, with their own cluster directory. Dropping this value makes the nodes leave, node 0 last.
pub(super) struct Embedded {
    start: fn(Config) -> Result<Node, JoinError>,
    // Dropped before the directory, so that the nodes have left when it is removed.
    nodes: RefCell<BTreeMap<NodeId, Node>>,
    directory: tempfile::TempDir,
}

impl Embedded {
    pub(super) fn new(start: fn(Config) -> Result<Node, JoinError>) -> Embedded {
        let private = std::fs::Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().prefix("halite-").permissions(private).tempdir();
        Embedded {
            start,
            nodes: RefCell::default(),
            directory: directory.expect("a temporary directory is created"),
        }
    }

    pub(super) fn dir(&self) -> &Path {
        self.directory.path()
    }
}

impl Nodes for Embedded {
    fn start(&self, config: Config) -> Result<(), JoinError> {
        let id = config.node.expect("cases number their nodes");
        // All nodes are this process, which must not kill itself.
        let fence = Fence::Never;
        let node = (self.start)(Config { dir: self.directory.path().to_path_buf(), fence, ..config })?;
        self.nodes.borrow_mut().insert(id, node);
        Ok(())
    }

    fn leave(&self, node: NodeId) {
        let node = self.nodes.borrow_mut().remove(&node);
        node.expect("the node has not left").leave();
    }

    fn kill(&self, _: NodeId) {
        unreachable!("cases that kill nodes are skipped: {KILLS_ITSELF}");
    }

    fn pid(&self, _: NodeId) -> u32 {
        std::process::id()
    }
}

impl Sessions for Embedded {
    fn session(&self, node: NodeId) -> halite::Session {
        self.nodes.borrow()[&node].session()
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        // Node 0 leaves last: it has the directory of names, to which the other nodes report that they leave.
        while let Some((_, node)) = self.nodes.get_mut().pop_last() {
            drop(node);
        }
    }
}
