//! Sessions that attach to the nodes of this process, over their Unix sockets.

use halite::{AttachMode, Config, JoinError, Node, NodeId, Provider};

use super::cluster::{Harness, Nodes, Place, Sessions};
use super::embedded::{Embedded, cannot};

/// Sessions attached to nodes that reach each other's memory by loads and stores.
pub struct Attached;

/// Sessions attached to nodes that communicate over UDP.
pub struct AttachedOverRoce;

impl Harness for Attached {
    fn cannot(&self, case: &str) -> Option<&'static str> {
        attached_cannot(case)
    }

    fn create(&self) -> Box<dyn Place> {
        Box::new(AttachedNodes(Embedded::new(|config| Node::embedded(with_attach(config)))))
    }
}

impl Harness for AttachedOverRoce {
    fn cannot(&self, case: &str) -> Option<&'static str> {
        attached_cannot(case)
    }

    fn create(&self) -> Box<dyn Place> {
        let over = |config| Node::embedded(Config { providers: vec![Provider::Roce], ..with_attach(config) });
        Box::new(AttachedNodes(Embedded::new(over)))
    }
}

fn with_attach(config: Config) -> Config {
    Config { attach: Some(AttachMode::Owner), ..config }
}

/// Cases that attached sessions cannot pass, with the reason.
const CANNOT: &[(&str, &str)] = &[
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

fn attached_cannot(case: &str) -> Option<&'static str> {
    let listed = CANNOT.iter().find(|(name, _)| *name == case).map(|(_, why)| *why);
    listed.or_else(|| cannot(case))
}

/// Nodes of this process whose sessions are attached.
struct AttachedNodes(Embedded);

impl Nodes for AttachedNodes {
    fn start(&self, config: Config) -> Result<(), JoinError> {
        self.0.start(config)
    }

    fn leave(&self, node: NodeId) {
        self.0.leave(node);
    }

    fn kill(&self, node: NodeId) {
        self.0.kill(node);
    }

    fn pid(&self, node: NodeId) -> u32 {
        self.0.pid(node)
    }
}

impl Sessions for AttachedNodes {
    fn session(&self, node: NodeId) -> halite::Session {
        halite::Session::attach_to(self.0.dir(), node).expect("the node accepts sessions")
    }
}
