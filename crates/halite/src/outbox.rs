//! The outbox: messages that wait until the fabric takes them, in order for each peer.

use std::collections::{BTreeMap, VecDeque};

use halite_fabric::{Fabric, Operation, PeerId, PostCause, WorkId, WorkRequest};

/// The number of work requests whose completions say nothing: a peer to which a message could not be sent is
/// disconnected, which the fabric tells by an event.
pub(crate) const SEND_WORK: WorkId = WorkId(0);

/// A peer that takes nothing while this many bytes pile up for it is given up.
pub(crate) const BACKLOG_BYTES_MAX: usize = 64 << 20;

/// Messages by peer.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    backlogs: BTreeMap<PeerId, Backlog>,
}

/// A message that is to be sent.
#[derive(Debug)]
pub(crate) struct OutMessage {
    /// What kind it is.
    pub(crate) imm: u32,
    pub(crate) bytes: Vec<u8>,
    /// See [`WorkRequest::solicited`].
    pub(crate) solicited: bool,
}

#[derive(Debug, Default)]
struct Backlog {
    messages: VecDeque<OutMessage>,
    bytes: usize,
}

impl Outbox {
    /// Puts a message behind those that wait.
    pub(crate) fn push(&mut self, peer: PeerId, message: OutMessage) {
        let backlog = self.backlogs.entry(peer).or_default();
        backlog.bytes += message.bytes.len();
        backlog.messages.push_back(message);
    }

    /// Posts what the fabric takes now.
    pub(crate) fn flush(&mut self, fabric: &dyn Fabric) {
        self.backlogs.retain(|peer, backlog| {
            backlog.flush(fabric, *peer);
            if backlog.bytes > BACKLOG_BYTES_MAX {
                fabric.disconnect(*peer);
                return false;
            }
            !backlog.messages.is_empty()
        });
    }

    /// Forgets what a peer that is gone was to be told.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.backlogs.remove(&peer);
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.backlogs.is_empty()
    }
}

impl Backlog {
    fn flush(&mut self, fabric: &dyn Fabric, peer: PeerId) {
        while let Some(OutMessage { imm, bytes, solicited }) = self.messages.front() {
            let operation = Operation::Send { bytes, imm: *imm };
            let request = WorkRequest { id: SEND_WORK, operation, signalled: false, solicited: *solicited };
            match fabric.post(peer, &[request]) {
                Ok(()) => {
                    self.bytes -= bytes.len();
                    self.messages.pop_front();
                }
                Err(error) if error.cause == PostCause::QueueFull => return,
                // A peer that is gone hears nothing more, and the order to the others is not touched.
                Err(error) => {
                    debug_assert_eq!(error.cause, PostCause::NotConnected, "the engine keeps to the limits");
                    *self = Backlog::default();
                }
            }
        }
    }
}
