//! Events: what polling returns.

use crate::{Completion, Key, PeerId};

/// What has happened.  The events of a peer come in this order: `Connected`, completions, `Disconnected`, `CutOff`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A request of ours has ended, or something has arrived.
    Completed(Completion),
    /// Both ends can post to each other from now on.
    Connected {
        /// The new peer.
        peer: PeerId,
        /// What it said about itself.
        hello: Vec<u8>,
        /// Where we dialled it; `None` if it dialled us.
        dialled: Option<String>,
    },
    /// A connection that we started did not come about.
    ConnectFailed(ConnectFailure),
    /// No posted request of a peer reaches the segment of this key of ours any more.
    Deregistered {
        /// Which was taken back.
        key: Key,
    },
    /// The queue of a lane to a peer, which refused a request as [`crate::PostCause::QueueFull`], has room again.  The event does not
    /// name the lane: a poster tries again, and a queue that is still full refuses and tells again.
    Room {
        /// For whom.
        peer: PeerId,
    },
    /// The peer is gone or has left.  Work posted to it has completed, with [`crate::Status::PeerGone`] where that is why.
    Disconnected {
        /// Who.
        peer: PeerId,
    },
    /// From now on the peer can no longer touch our memory.  Follows `Disconnected`, at once or later.
    CutOff {
        /// Who.
        peer: PeerId,
        /// Whether that is so because its process has exited, as the fabric knows for certain.
        exited: bool,
    },
}

/// Why a connection did not come about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectFailure {
    /// Where it was tried.
    pub address: String,
    /// What went wrong, for a person to read.
    pub reason: String,
    /// At which end.
    pub trouble: ConnectTrouble,
}

/// At which end it is that a connection does not come about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectTrouble {
    /// This process lacks what a connection takes, such as addresses or descriptors.
    Ours,
    /// The other end is not there, does not answer, or refuses.
    Theirs,
    /// The other end is of another cluster: it does not know our secret, or we do not know its.
    Stranger,
}

impl Event {
    /// The completion that it is, or itself.
    pub fn into_completion(self) -> Result<Completion, Event> {
        match self {
            Event::Completed(completion) => Ok(completion),
            other => Err(other),
        }
    }
}

/// What became of the wish to cut a peer off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CutOff {
    /// It is cut off already.
    Done,
    /// Under way: its process is being killed, and an event will tell.
    Started,
    /// It may not be done here: what the peer could reach must stay quarantined until it ends by itself.
    NotPermitted,
}
