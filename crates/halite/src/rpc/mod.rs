//! Calls and messages of a node, between the sessions and the fabric.
//!
//! ```text
//!   caller ── request ──> ring at the server ── imm ──> polling thread ──> queue of the function ──> handler
//!     ^                                                                                                │
//!     └── slot <── imm ── polling thread <──────────────────────── reply into the caller's slot ───────┘
//! ```
//!
//! `client` is the caller's side, `server` is the server's side, and `shared` has what both need: links, memory and
//! posting. Neither side imports the other. The files beside these folders join them: `links` opens and closes links,
//! `arrivals` passes arrivals to each side, `own` handles a node's calls to itself, and `peers` is the table of peers.
//!
//! The polling thread handles immediates without the runner's lock; handlers never run on it. Rare work (control
//! messages, answers that did not fit into a queue, deadlines) waits until the runner settles. Locks are held briefly,
//! and taken in the order of [`crate::runtime::locks`]: a service, a link's outbound side, a link's inbound side, the
//! slots or deferred posts; the fabric's own come last.
//!
//! This folder calls [`crate::posted`], [`crate::metrics`], [`crate::runtime`] and the fabric. Nothing in it waits:
//! callers and servers wait through `driver::requests`, and `session::calls` connects them to sessions.

mod arrivals;
mod client;
mod links;
mod own;
pub(crate) mod peers;
mod server;
mod shared;

use std::sync::{Arc, Mutex};

use halite_fabric::{Fabric, PeerId};
use halite_mem::Pins;
use halite_tier::ids::NodeId;
use halite_tier::rpc::CallControl;

use self::client::Client;
use self::peers::Peers;
use self::server::Server;
use self::shared::Poster;
use crate::metrics::ServiceCounts;
use crate::posted::InFlight;
use crate::runtime::locks::lock;
use crate::runtime::wait::Wakes;

pub(crate) use self::client::{LentReply, NotPosted, Posted, Reply, ReplyBuffer, Request};
pub use self::server::ServeOptions;
pub(crate) use self::server::{
    Answered, Bytes, Closed, DirectReceiver, EndedService, Incoming, Payload, ReceiveBatch, ReplyTo, Service,
    ServiceId, Taken,
};
pub(crate) use self::shared::{BATCH_MAX, CALL_WORK, Link};

pub(crate) struct Rpc {
    pub(crate) poster: Poster,
    pub(crate) client: Client,
    pub(crate) server: Server,
    peers: Arc<Peers>,
    ring_bytes: u64,
    /// Handshakes that the fabric has not taken yet, to be retried.
    handshakes: Mutex<Vec<(PeerId, CallControl)>>,
}

impl Rpc {
    /// Creates the node's state of calls. Returns `None` if the system has no memory for the slots.
    pub(crate) fn new(
        fabric: Arc<dyn Fabric>,
        posted: Arc<InFlight>,
        peers: Arc<Peers>,
        pins: Arc<Pins>,
        ring_bytes: u64,
    ) -> Option<Rpc> {
        let poster = Poster::new(fabric, posted);
        let client = Client::new(&poster)?;
        let server = Server::new(pins);
        Some(Rpc { poster, client, server, peers, ring_bytes, handshakes: Mutex::default() })
    }

    /// Retries the posts that the fabric refused. Called under the runner's lock.
    pub(crate) fn retry(&self) {
        // Cleared first: a post that is refused again sets it again.
        self.poster.clear_deferred();
        self.retry_handshakes();
        self.retry_heads();
        self.retry_deferred();
        self.retry_notifications();
        self.retry_atomics();
    }

    /// Returns the number of slots in use for replies from a node, and the number of answers that the node has not read
    /// yet.
    pub(crate) fn under_way(&self, node: NodeId) -> (usize, usize) {
        let Some(link) = self.peers.link_to(node) else { return (0, 0) };
        let calls = self.client.under_way(&link);
        let answers = lock(&link.inbound).kept.len();
        (calls, answers)
    }

    /// Returns the figures of this node's functions, then those of its ports.
    pub(crate) fn services(&self) -> (ServiceCounts, ServiceCounts) {
        let mut found = (ServiceCounts::default(), ServiceCounts::default());
        for service in self.peers.read().services.all() {
            let figures = match service.id {
                ServiceId::Function(_) => &mut found.0,
                ServiceId::Port(_) => &mut found.1,
            };
            figures.services += 1;
            figures.waiting += service.waiting();
        }
        found
    }

    /// Ends all waits, because the node ends.
    pub(crate) fn close(&self, wakes: &mut Wakes) {
        self.client.close(wakes);
        let (services, links): (Vec<_>, Vec<_>) = {
            let table = self.peers.read();
            let links = table.links_up().map(|(_, link)| link.clone());
            (table.services.all().cloned().collect(), links.collect())
        };
        // Applications that keep calls also keep the links, but no memory of the peers.
        for link in links {
            let lines = lock(&link.outbound).as_mut().and_then(|outbound| outbound.lines.take());
            self.server.reply_rows.close(&link.replies);
            if let Some(lines) = lines {
                self.client.end_lines(lines);
            }
        }
        for service in services {
            if let Some(ended) = service.close() {
                wakes.extend(ended.wakers);
            }
        }
    }
}
