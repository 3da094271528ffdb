//! The state under a service's lock: the queue, the parked senders, and the room granted to senders.

use std::collections::{BTreeMap, VecDeque};

use halite_tier::rpc::Target;

use super::admission::Promoted;
use super::answer::ReplyTo;
use super::incoming::Incoming;
use super::receivers::Receivers;
use crate::rpc::shared::DropCount;
use crate::runtime::locks::ranked;

ranked! {
    QueueState => Service;
}

#[derive(Debug, Default)]
pub(super) struct QueueState {
    pub(super) queue: VecDeque<Box<Incoming>>,
    pub(super) bytes: usize,
    pub(super) receivers: Receivers,
    /// Senders that wait for room, in order.
    pub(super) parked: VecDeque<Parked>,
    /// Number and bytes of parked messages, by sending node.
    pub(super) published: BTreeMap<Target, Published>,
    /// Room granted to senders, by grant number.
    pub(super) grants: BTreeMap<u32, Grant>,
    pub(super) granted_bytes: usize,
    last_grant: u32,
    pub(super) servers: usize,
    /// Value of [`DropCount::count`] when the queue was last searched for unwanted requests.
    drops_seen: u64,
    pub(super) closed: bool,
}

/// A sender that waits until the queue has room for `bytes` bytes. `message` is its message if it was published;
/// otherwise the sender still holds the message.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) reply: ReplyTo,
    pub(super) bytes: usize,
    pub(super) message: Option<Box<Incoming>>,
}

impl Parked {
    /// Returns true if the sender still waits. A published message stays wanted even if its sender is gone.
    fn is_wanted(&self) -> bool {
        self.message.is_some() || self.reply.is_wanted()
    }
}

/// Number of parked messages, and of their bytes.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Published {
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

/// Maximum per sending node and port. A single message may be longer.
pub(super) const PUBLISHED_MAX: Published = Published { messages: 4096, bytes: 4 << 20 };

/// Room that is reserved for a sender.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) target: Target,
    pub(super) bytes: usize,
}

impl QueueState {
    /// Returns an empty queue with one server.
    pub(super) fn with_server() -> QueueState {
        QueueState { servers: 1, ..QueueState::default() }
    }

    pub(super) fn pop_open(&mut self) -> Option<Box<Incoming>> {
        while let Some(incoming) = self.queue.pop_front() {
            self.bytes -= incoming.input.local_bytes();
            if incoming.is_wanted() {
                return Some(incoming);
            }
        }
        None
    }

    /// Returns true if requests may have become unwanted since the last call. This check avoids a search for each
    /// request that a full queue refuses; the searches would delay requests of other functions.
    #[inline]
    pub(super) fn may_be_unwanted(&mut self, drops: &DropCount) -> bool {
        let count = drops.count();
        std::mem::replace(&mut self.drops_seen, count) != count
    }

    pub(super) fn drop_unwanted(&mut self) {
        self.queue.retain(|incoming| incoming.is_wanted());
        self.bytes = self.queue.iter().map(|incoming| incoming.input.local_bytes()).sum();
        self.parked.retain(|parked| parked.is_wanted());
    }

    /// Returns true if the node `of` may park another message of `bytes` bytes.
    pub(super) fn may_park(&self, of: Target, bytes: usize) -> bool {
        let kept = self.published.get(&of).copied().unwrap_or_default();
        let has_bytes = kept.messages == 0 || kept.bytes + bytes <= PUBLISHED_MAX.bytes;
        kept.messages < PUBLISHED_MAX.messages && has_bytes
    }

    pub(super) fn park(&mut self, parked: Parked) {
        if parked.message.is_some() {
            let kept = self.published.entry(parked.reply.target()).or_default();
            (kept.messages, kept.bytes) = (kept.messages + 1, kept.bytes + parked.bytes);
        }
        self.parked.push_back(parked);
    }

    /// Removes the parked sender that has waited longest.
    pub(super) fn unpark(&mut self) -> Option<Parked> {
        let parked = self.parked.pop_front()?;
        let of = parked.reply.target();
        if parked.message.is_some()
            && let Some(kept) = self.published.get_mut(&of)
        {
            (kept.messages, kept.bytes) = (kept.messages - 1, kept.bytes - parked.bytes);
            if kept.messages == 0 {
                self.published.remove(&of);
            }
        }
        Some(parked)
    }

    pub(super) fn use_grant(&mut self, grant: u32, target: Target) -> bool {
        let is_theirs = self.grants.get(&grant).is_some_and(|kept| kept.target == target);
        if is_theirs && let Some(kept) = self.grants.remove(&grant) {
            self.granted_bytes -= kept.bytes;
        }
        is_theirs
    }

    /// Reserves room of `bytes` bytes for a sender. Returns `None` if the sender no longer waits.
    pub(super) fn grant(&mut self, reply: ReplyTo, bytes: usize) -> Option<Promoted> {
        if !reply.is_wanted() {
            return None;
        }
        self.last_grant = self.last_grant.wrapping_add(1);
        self.grants.insert(self.last_grant, Grant { target: reply.target(), bytes });
        self.granted_bytes += bytes;
        Some(Promoted::Granted(reply, self.last_grant))
    }
}
