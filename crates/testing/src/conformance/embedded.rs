//! Nodes of this process, over shared memory or UDP, with sessions of this process or attached ones.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use halite::{AttachMode, Config, Fence, JoinError, Node, NodeId, Provider, Session};

use super::cluster::{Harness, Nodes};
use posting::Posting;

#[path = "../../../halite/tests/common/posting.rs"]
mod posting;

/// Runs the nodes of a case in this process.
#[derive(Clone, Copy)]
pub struct Embedded {
    start: fn(Config) -> Result<Node, JoinError>,
    /// True if sessions attach to the nodes over their Unix sockets.
    is_attached: bool,
}

/// Nodes that access each other's memory by loads and stores, as embedded nodes do by default.
pub const DIRECT: Embedded = Embedded { start: Node::embedded, is_attached: false };
/// Nodes with middleware that hides direct access, so that nodes post and complete every access as on a network.
pub const POSTED: Embedded = Embedded { start: |config| start_posting(config, true), is_attached: false };
/// Nodes that post every access on a fabric without atomics, so that each atomic is a call to the owner.
pub const BY_CALL: Embedded = Embedded { start: |config| start_posting(config, false), is_attached: false };
/// Nodes that communicate over UDP.
pub const ROCE: Embedded = Embedded { start: start_over_roce, is_attached: false };
/// Sessions that attach to nodes that access each other's memory by loads and stores.
pub const ATTACHED: Embedded = Embedded { is_attached: true, ..DIRECT };

fn start_posting(config: Config, has_atomics: bool) -> Result<Node, JoinError> {
    Node::wrap(config, |inner| Arc::new(Posting { inner, has_atomics }))
}

fn start_over_roce(config: Config) -> Result<Node, JoinError> {
    Node::embedded(Config { providers: vec![Provider::Roce], ..config })
}

/// Reason for skipping cases that kill nodes. The scenarios kill nodes that are processes of their own.
const KILLS_ITSELF: &str = "all nodes are this process, which would kill itself";

/// Cases that attached sessions cannot pass, with the reason. Two things have no case of their own: loads and stores to
/// other nodes' memory, because clients map no arena, and answers in place, because `lend_answer` of a client returns a
/// copy.
const ATTACHED_CANNOT: [(&str, &str); 5] = [
    ("batches_without_a_server_fail", LATE_POST_ERROR),
    (
        "calls_in_flight_are_explained",
        "the node fetches an answer as soon as it arrives, so the server keeps none",
    ),
    ("waiting_senders_are_not_overtaken", NODE_DRIVES_SENDS),
    ("an_abandoned_send_leaves_its_room_to_others", NODE_DRIVES_SENDS),
    ("a_slow_receiver_delays_publishers", NODE_DRIVES_SENDS),
];
const LATE_POST_ERROR: &str = "an attached session learns only from the answer that a call was not posted";
const NODE_DRIVES_SENDS: &str = "the node drives a waiting send even if the client does not poll it";

impl Harness for Embedded {
    fn create(&self) -> Box<dyn Nodes> {
        let private = std::fs::Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().prefix("halite-").permissions(private).tempdir();
        let directory = directory.expect("a temporary directory is created");
        Box::new(EmbeddedNodes { harness: *self, nodes: RefCell::default(), directory })
    }

    fn cannot(&self, area: &str, case: &str) -> Option<&'static str> {
        if area == "killed" {
            return Some(KILLS_ITSELF);
        }
        if self.is_attached { attached_cannot(case) } else { None }
    }
}

/// Returns the reason why attached sessions cannot pass a case, if any.
pub fn attached_cannot(case: &str) -> Option<&'static str> {
    ATTACHED_CANNOT.iter().find(|(name, _)| *name == case).map(|(_, reason)| *reason)
}

/// Nodes of this process, with their own cluster directory. Dropping this value makes the nodes leave, node 0 last.
struct EmbeddedNodes {
    harness: Embedded,
    // Dropped before the directory, so that the nodes have left when it is removed.
    nodes: RefCell<BTreeMap<NodeId, Node>>,
    directory: tempfile::TempDir,
}

impl Nodes for EmbeddedNodes {
    fn start(&self, config: Config) -> Result<(), JoinError> {
        let id = config.node.expect("cases number their nodes");
        let attach = self.harness.is_attached.then_some(AttachMode::Owner);
        // All nodes are this process, which must not kill itself.
        let fence = Fence::Never;
        let config = Config { dir: self.directory.path().to_path_buf(), fence, attach, ..config };
        self.nodes.borrow_mut().insert(id, (self.harness.start)(config)?);
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

    fn session(&self, node: NodeId) -> Session {
        if self.harness.is_attached {
            return Session::attach_to(self.directory.path(), node).expect("the node accepts sessions");
        }
        self.nodes.borrow()[&node].session()
    }
}

impl Drop for EmbeddedNodes {
    fn drop(&mut self) {
        // Node 0 leaves last: it has the directory of names, to which the other nodes report that they leave.
        while let Some((_, node)) = self.nodes.get_mut().pop_last() {
            drop(node);
        }
    }
}
