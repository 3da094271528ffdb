//! Events of a fabric.

use crate::{Completion, Key, PeerId};

/// An event of a fabric. The events of a peer come in this order: `Connected`, completions, `Disconnected`, `CutOff`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A request completed, or a message or a write with immediate arrived.
    Completed(Completion),
    /// A connection is established: both ends can post to each other from now on.
    Connected {
        /// The new peer.
        peer: PeerId,
        /// The hello that the peer sent.
        hello: Vec<u8>,
        /// The address that this end dialled; `None` if the peer dialled.
        dialled: Option<String>,
    },
    /// A connection attempt of this end failed.
    ConnectFailed(ConnectFailure),
    /// The deregistration of a local key has finished: no posted request of a peer reaches the segment of the key any
    /// more.
    Deregistered {
        /// The deregistered key.
        key: Key,
    },
    /// A queue that refused a request with [`crate::PostCause::QueueFull`] has room again. The event names the peer,
    /// but not the lane. If the queue of the caller's lane is still full, the fabric refuses the next post, and another
    /// such event follows.
    Room {
        /// The peer whose queue has room.
        peer: PeerId,
    },
    /// The connection to the peer has ended: the peer left or failed. All requests posted to the peer have completed; a
    /// request that the disconnection interrupted has the status [`crate::Status::PeerGone`].
    Disconnected {
        /// The peer that is disconnected.
        peer: PeerId,
    },
    /// The peer can no longer access this end's memory. Follows `Disconnected`, at once or later.
    CutOff {
        /// The peer that is cut off.
        peer: PeerId,
        /// True if the fabric knows for certain that the peer's process has exited.
        exited: bool,
    },
}

/// A failed connection attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectFailure {
    /// The address that this end dialled.
    pub address: String,
    /// Description of the failure for users.
    pub reason: String,
    /// The side that caused the failure.
    pub trouble: ConnectTrouble,
}

/// The side that caused the failure of a connection attempt: this process, the other end, or the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectTrouble {
    /// This process lacks a resource, such as address space or file descriptors.
    Ours,
    /// The other end does not exist, or refused the connection.
    Theirs,
    /// The other end did not answer in time, or hung up without a reason. The network may have lost packets.
    Silent,
    /// The other end belongs to another cluster: the secrets of the two ends differ.
    Stranger,
}

impl Event {
    /// Returns the completion of an [`Event::Completed`]; returns any other event as the error.
    pub fn into_completion(self) -> Result<Completion, Event> {
        match self {
            Event::Completed(completion) => Ok(completion),
            other => Err(other),
        }
    }
}

/// The result of [`Fabric::cut_off`](crate::Fabric::cut_off).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CutOff {
    /// The peer is already cut off.
    Done,
    /// The cut-off has started: the fabric kills the peer's process, and [`Event::CutOff`] follows.
    Started,
    /// The configuration does not permit the cut-off. The caller must not reuse memory that the peer can reach until
    /// the peer's process exits by itself.
    NotPermitted,
}
