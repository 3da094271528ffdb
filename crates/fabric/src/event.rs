//! Events of a fabric.

use crate::{Completion, Key, PeerId};

/// An event. The events of a peer come in this order: `Connected`, completions, `Disconnected`, `CutOff`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A request completed, or a message or a write with immediate arrived.
    Completed(Completion),
    /// A connection is established: both ends can post to each other from now on.
    Connected {
        /// The new peer.
        peer: PeerId,
        /// The peer's hello.
        hello: Vec<u8>,
        /// The address that this end dialled; `None` if the peer dialled.
        dialled: Option<String>,
    },
    /// A connection attempt of this end failed.
    ConnectFailed(ConnectFailure),
    /// Deregistration of a local key has finished: no posted request of a peer reaches its segment any more.
    Deregistered {
        /// The deregistered key.
        key: Key,
    },
    /// A queue that refused a request with [`crate::PostCause::QueueFull`] has room again. The event names the peer,
    /// but not the lane: if the queue of the caller's lane is still full, the next post is refused, and another event
    /// follows.
    Room {
        /// The peer whose queue has room.
        peer: PeerId,
    },
    /// The connection to the peer has ended: the peer left or failed. All requests posted to it have completed, those
    /// that its end interrupted with [`crate::Status::PeerGone`].
    Disconnected {
        /// The peer.
        peer: PeerId,
    },
    /// The peer can no longer access this end's memory. Follows `Disconnected`, at once or later.
    CutOff {
        /// The peer.
        peer: PeerId,
        /// True if the fabric knows for certain that the peer's process has exited.
        exited: bool,
    },
}

/// A failed connection attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectFailure {
    /// The address that was dialled.
    pub address: String,
    /// Description of the failure.
    pub reason: String,
    /// Category of the failure.
    pub trouble: ConnectTrouble,
}

/// Category of a failed connection attempt: which end caused it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectTrouble {
    /// This process lacks a resource, such as address space or file descriptors.
    Ours,
    /// The other end does not exist, or refused the connection.
    Theirs,
    /// The other end did not answer in time; packets may have been lost.
    Silent,
    /// The other end belongs to another cluster: the secrets differ.
    Stranger,
}

impl Event {
    /// Returns the completion, or the event as the error if it is of another kind.
    pub fn into_completion(self) -> Result<Completion, Event> {
        match self {
            Event::Completed(completion) => Ok(completion),
            other => Err(other),
        }
    }
}

/// The result of a request to cut a peer off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CutOff {
    /// The peer is cut off already.
    Done,
    /// In progress: the peer's process is being killed, and [`Event::CutOff`] follows.
    Started,
    /// Not permitted: memory that the peer can reach must stay in quarantine until the peer's process exits by itself.
    NotPermitted,
}
