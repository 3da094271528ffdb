//! Connection events.

use crate::PeerId;

/// What happened to a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Both ends can post to each other from now on.
    Connected {
        /// The new peer.
        peer: PeerId,
        /// What it said about itself.
        hello: Vec<u8>,
        /// Whether we called `connect` (else they did).
        initiator: bool,
    },
    /// A connection that we started did not come about.
    ConnectFailed {
        /// Where we tried.
        address: String,
        /// What went wrong, for a person to read.
        reason: String,
        /// Whether it is this process that lacks what a connection takes, such as addresses or descriptors.
        is_ours: bool,
    },
    /// The peer is gone or has left.  Work posted to it completes with [`crate::Status::PeerGone`].
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
