//! The outbox: messages that wait until the fabric takes them, in order for each peer.

use std::collections::{BTreeMap, VecDeque};

use halite_fabric::{Fabric, Operation, PeerId, PostCause, PostError, WorkId, WorkRequest};

use crate::runtime::lanes::CALLS;

/// Number of the work requests that send messages. Their completions carry no information: if a message cannot be sent,
/// the fabric disconnects the peer, which is an event.
pub(crate) const SEND_WORK: WorkId = WorkId(0);

/// Maximum length of a peer's backlog, in bytes; a peer with more is disconnected.
pub(crate) const BACKLOG_BYTES_MAX: usize = 64 << 20;

/// The waiting messages, by peer.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    backlogs: BTreeMap<PeerId, Backlog>,
}

#[derive(Debug)]
pub(crate) struct OutMessage {
    /// Immediate that gives the message's kind.
    pub(crate) imm: u32,
    pub(crate) bytes: Vec<u8>,
    /// True if the message must wake a sleeping peer; see [`WorkRequest::solicited`].
    pub(crate) solicited: bool,
    /// True if short requests that are posted later must not overtake the message.
    pub(crate) counts: bool,
}

#[derive(Debug, Default)]
struct Backlog {
    messages: VecDeque<OutMessage>,
    bytes: usize,
}

impl Outbox {
    pub(crate) fn push(&mut self, peer: PeerId, message: OutMessage) {
        let backlog = self.backlogs.entry(peer).or_default();
        backlog.bytes += message.bytes.len();
        backlog.messages.push_back(message);
    }

    /// Posts the messages that the fabric accepts now. Posts each message that short requests must not overtake through
    /// `counted`.
    pub(crate) fn flush(&mut self, fabric: &dyn Fabric, counted: impl Fn(PeerId, &mut dyn FnMut() -> bool)) {
        self.backlogs.retain(|peer, backlog| {
            backlog.flush(fabric, *peer, &counted);
            if backlog.bytes > BACKLOG_BYTES_MAX {
                fabric.disconnect(*peer);
            }
            !backlog.messages.is_empty()
        });
    }

    /// Returns the number of waiting messages, and of their bytes.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let backlogs = self.backlogs.values();
        backlogs
            .fold((0, 0), |(count, bytes), backlog| (count + backlog.messages.len(), bytes + backlog.bytes))
    }

    /// Drops the messages for a peer that is down.
    pub(crate) fn handle_down(&mut self, peer: PeerId) {
        self.backlogs.remove(&peer);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.backlogs.is_empty()
    }
}

impl Backlog {
    fn flush(
        &mut self,
        fabric: &dyn Fabric,
        peer: PeerId,
        counted: &impl Fn(PeerId, &mut dyn FnMut() -> bool),
    ) {
        while let Some(OutMessage { imm, bytes, solicited, counts }) = self.messages.front() {
            let operation = Operation::Send { bytes, imm: *imm };
            let request = WorkRequest { id: SEND_WORK, operation, signalled: false, solicited: *solicited };
            let mut posted = Ok(());
            let mut post = || {
                posted = fabric.post(peer, CALLS, &[request]);
                posted.is_ok()
            };
            if *counts {
                counted(peer, &mut post);
            } else {
                post();
            }
            match posted {
                Ok(()) => {
                    self.bytes -= bytes.len();
                    self.messages.pop_front();
                }
                // The rest has no receiver. This includes a connection that ended before it was accepted.
                Err(PostError { cause: PostCause::NotConnected, .. }) => {
                    self.messages.clear();
                    self.bytes = 0;
                }
                // The queue is full for now.
                Err(error) => {
                    debug_assert_ne!(error.cause, PostCause::Malformed, "the engine keeps to the limits");
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    use halite_fabric::{Lane, Middleware};
    use halite_providers::{ShmConfig, ShmFabric};

    use super::*;

    /// A fabric that has room for nothing until [`FullFabric::make_room`] is called.
    pub(crate) struct FullFabric {
        inner: Arc<ShmFabric>,
        disconnected: Mutex<Vec<PeerId>>,
        has_room: AtomicBool,
    }

    impl FullFabric {
        pub(crate) fn open() -> FullFabric {
            // No peer connects through it, so its directory may be removed.
            let dir = crate::runtime::scratch();
            let inner = ShmFabric::open(ShmConfig::new(dir.path(), "one")).unwrap();
            FullFabric { inner, disconnected: Mutex::default(), has_room: AtomicBool::new(false) }
        }

        pub(crate) fn make_room(&self) {
            self.has_room.store(true, Ordering::Relaxed);
        }

        /// Returns the peers disconnected since the last call.
        pub(crate) fn disconnected(&self) -> Vec<PeerId> {
            std::mem::take(&mut *self.disconnected.lock().unwrap())
        }
    }

    impl Middleware for FullFabric {
        fn inner(&self) -> &dyn Fabric {
            &*self.inner
        }

        fn post(&self, peer: PeerId, lane: Lane, requests: &[WorkRequest<'_>]) -> Result<(), PostError> {
            if self.has_room.load(Ordering::Relaxed) {
                return self.inner.post(peer, lane, requests);
            }
            Err(PostError { peer, posted: 0, cause: PostCause::QueueFull })
        }

        fn disconnect(&self, peer: PeerId) {
            self.disconnected.lock().unwrap().push(peer);
        }
    }

    #[test]
    fn a_peer_with_a_full_backlog_is_disconnected() {
        let fabric = FullFabric::open();
        let mut outbox = Outbox::default();
        for peer in [PeerId(7), PeerId(8)] {
            let bytes = vec![0; BACKLOG_BYTES_MAX / 4];
            (0..4).for_each(|_| {
                outbox
                    .push(peer, OutMessage { imm: 1, bytes: bytes.clone(), solicited: true, counts: false });
            });
        }
        outbox.flush(&fabric, |_, _| unreachable!("no message counts"));
        assert_eq!(fabric.disconnected(), [], "a backlog of the maximum length is kept");
        outbox.push(PeerId(8), OutMessage { imm: 1, bytes: vec![0], solicited: true, counts: false });
        outbox.flush(&fabric, |_, _| unreachable!("no message counts"));
        assert_eq!(fabric.disconnected(), [PeerId(8)]);
        outbox.handle_down(PeerId(8));
        assert_eq!(outbox.waiting(), (4, BACKLOG_BYTES_MAX), "the backlog of the other peer is complete");
    }
}
