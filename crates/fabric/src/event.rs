//! Events of a fabric.

use crate::{Completion, Key, PeerId};

/// An event. The events of a peer come in this order: `Connected`, completions, `Disconnected`, `CutOff`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A request ended, or a message or write arrived.
    Completed(Completion),
    /// Both ends can post to each other from now on.
    Connected {
        /// The new peer.
        peer: PeerId,
        /// The peer's hello.
        hello: Vec<u8>,
        /// The address that was dialled; `None` if the peer dialled.
        dialled: Option<String>,
    },
    /// A connection attempt of this end failed.
    ConnectFailed(ConnectFailure),
    /// No posted request of a peer reaches the segment of this local key any more.
    Deregistered {
        /// The deregistered key.
        key: Key,
    },
    /// A lane's queue to a peer, which refused a request with [`crate::PostCause::QueueFull`], has room again. The
    /// event does not name the lane: if another lane's queue is still full, the next post is refused, and another event
    /// follows.
    Room {
        /// The peer whose queue has room.
        peer: PeerId,
    },
    /// The peer is gone or has left. All work posted to it has completed, with [`crate::Status::PeerGone`] if that was
    /// the cause.
    Disconnected {
        /// The peer.
        peer: PeerId,
    },
    /// The peer can no longer touch this end's memory. Follows `Disconnected`, at once or later.
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
    /// The failure, as text.
    pub reason: String,
    /// The end that caused the failure.
    pub trouble: ConnectTrouble,
}

/// The end that caused a failed connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectTrouble {
    /// This process lacks a resource, such as address space or file descriptors.
    Ours,
    /// The other end does not exist, or refuses.
    Theirs,
    /// The other end did not answer in time; packets may have been lost.
    Silent,
    /// The other end belongs to another cluster: the secrets differ.
    Stranger,
}

impl Event {
    /// Returns the completion, or the event if it is another.
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
    /// In progress: the peer's process is being killed, and an event follows.
    Started,
    /// Not permitted: memory that the peer could reach must stay in quarantine until the peer ends by itself.
    NotPermitted,
}
