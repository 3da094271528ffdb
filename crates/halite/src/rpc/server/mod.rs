//! Calls and messages as their server's node handles them: requests are read, queued, and answered.
//!
//! ```text
//!   ring or lines ──> Incoming ──> queue of the function or port ──> handler ──> slot or line of the caller
//! ```
//!
//! Requests are read and queued by the thread that polls, without the runner's lock; no handler runs there.

mod admission;
mod answer;
mod atomics;
mod batch;
mod deliver;
mod hand;
mod heads;
mod incoming;
mod input;
mod known;
mod lines;
mod queue;
mod receivers;
mod reply_rows;
mod ring;
mod service;
mod services;
mod short_answers;

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use halite_fabric::PeerId;
use halite_mem::Pins;

use self::answer::DeferredReply;
use self::reply_rows::ReplyRows;
use crate::runtime::locks::ranked;

pub(crate) use self::admission::{Closed, Ended, Taken};
pub(crate) use self::answer::{Answered, ReplyTo};
pub(crate) use self::hand::Hand;
pub(super) use self::incoming::DecodedRequest;
pub(crate) use self::incoming::{Incoming, ServiceId};
pub(crate) use self::input::{Bytes, Payload};
pub(crate) use self::known::ReceiveBatch;
pub(super) use self::lines::{REQUEST_LINES_BYTES, clear_row};
pub use self::service::ServeOptions;
pub(crate) use self::service::Service;
pub(crate) use self::services::Services;

ranked! {
    Vec<(PeerId, u16)> => HeldBack;
    Vec<DeferredReply> => HeldBack;
    BTreeSet<PeerId> => HeldBack;
}

/// See the header of this file.
pub(crate) struct Server {
    /// Where answers to short requests go.
    pub(super) reply_rows: ReplyRows,
    /// Notices that the fabric did not take yet: peers, and slots of theirs.
    notices: Mutex<Vec<(PeerId, u16)>>,
    deferred: Mutex<Vec<DeferredReply>>,
    /// Peers whose atomics have answers that the fabric did not take yet.
    late_atomics: Mutex<BTreeSet<PeerId>>,
    /// Peers whose head the fabric did not take yet.
    heads: Mutex<BTreeSet<PeerId>>,
    /// The node is about to leave, and takes no call of others any more.  A hint: a call that arrives in this moment may still be taken.
    draining: AtomicBool,
}

impl Server {
    /// Threads pin `pins` when they answer.
    pub(super) fn new(pins: Arc<Pins>) -> Server {
        Server {
            reply_rows: ReplyRows::new(pins),
            notices: Mutex::default(),
            deferred: Mutex::default(),
            late_atomics: Mutex::default(),
            heads: Mutex::default(),
            draining: AtomicBool::new(false),
        }
    }

    /// Refuses calls of others from now on, or no longer.
    pub(crate) fn set_draining(&self, is_on: bool) {
        self.draining.store(is_on, Relaxed);
    }
}
