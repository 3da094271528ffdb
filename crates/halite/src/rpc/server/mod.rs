//! The server's side of calls and messages: reads, queues and answers requests.
//!
//! ```text
//!   ring or lines ──> Incoming ──> queue of the function or port ──> handler ──> slot or line of the caller
//! ```
//!
//! The polling thread reads and queues requests, without the runner's lock; it never runs a handler.

mod admission;
mod answer;
mod atomics;
mod batch;
mod deliver;
mod direct;
mod heads;
mod incoming;
mod input;
mod lines;
mod queue;
mod receivers;
mod reply_rows;
mod ring;
mod service;
mod services;
mod short_answers;
mod table_cache;

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use halite_fabric::PeerId;
use halite_mem::Pins;

use self::answer::DeferredReply;
use self::reply_rows::ReplyRows;
use crate::runtime::locks::ranked;

pub(crate) use self::admission::{Closed, EndedService, Taken};
pub(crate) use self::answer::{Answered, ReplyTo};
pub(crate) use self::direct::DirectReceiver;
pub(super) use self::incoming::DecodedRequest;
pub(crate) use self::incoming::{Incoming, ServiceId};
pub(crate) use self::input::{Bytes, Payload};
pub(super) use self::lines::{REQUEST_LINES_BYTES, clear_row};
pub use self::service::ServeOptions;
pub(crate) use self::service::Service;
pub(crate) use self::services::Services;
pub(crate) use self::table_cache::ReceiveBatch;

ranked! {
    Vec<(PeerId, u16)> => Deferred;
    Vec<DeferredReply> => Deferred;
    BTreeSet<PeerId> => Deferred;
}

pub(crate) struct Server {
    /// The rows of reply lines in the memory of peers.
    pub(super) reply_rows: ReplyRows,
    /// Notifications that the fabric has not taken yet, as peers and their slots.
    notifications: Mutex<Vec<(PeerId, u16)>>,
    deferred: Mutex<Vec<DeferredReply>>,
    /// Peers with answers to atomics that the fabric has not taken yet.
    deferred_atomics: Mutex<BTreeSet<PeerId>>,
    /// Peers with a head that the fabric has not taken yet.
    heads: Mutex<BTreeSet<PeerId>>,
    /// True while the node is being drained and refuses calls. Read without a lock, so a call that arrives during the
    /// change may still be served.
    draining: AtomicBool,
}

impl Server {
    /// Creates the server's state. Threads pin `pins` while they answer.
    pub(super) fn new(pins: Arc<Pins>) -> Server {
        Server {
            reply_rows: ReplyRows::new(pins),
            notifications: Mutex::default(),
            deferred: Mutex::default(),
            deferred_atomics: Mutex::default(),
            heads: Mutex::default(),
            draining: AtomicBool::new(false),
        }
    }

    /// Returns true while the node refuses calls.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// Starts to refuse calls if `is_on`; otherwise accepts calls again.
    pub(crate) fn set_draining(&self, is_on: bool) {
        self.draining.store(is_on, Relaxed);
    }
}
