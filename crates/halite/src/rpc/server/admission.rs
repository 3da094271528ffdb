//! The results of queueing a request, and of taking one from a queue.

use std::task::Waker;

use halite_tier::rpc::Status;

use super::answer::ReplyTo;
use super::incoming::Incoming;

/// The result of queueing a request.
pub(crate) enum Admission {
    /// It is queued; wake `waker`, and answer `accepted`.
    Queued {
        waker: Option<Waker>,
        accepted: Option<ReplyTo>,
    },
    /// Its sender waits for room.
    Parked,
    Refused(ReplyTo, Status),
}

impl Admission {
    /// Returns true if nothing is left to do.
    pub(super) fn is_done(&self) -> bool {
        matches!(self, Admission::Queued { waker: None, accepted: None } | Admission::Parked)
    }
}

/// The result of taking a request from a queue.
pub(crate) struct Taken {
    /// `None` if all requests there were unwanted; dropping them may still have made room.
    pub(crate) incoming: Option<Box<Incoming>>,
    /// The parked senders for which this made room.
    pub(crate) promoted: Vec<Promoted>,
}

/// A promotion of a parked sender.
pub(crate) enum Promoted {
    /// It may send now, with this grant number.
    Granted(ReplyTo, u32),
    /// Its message is in the queue.
    Admitted(Admission),
}

/// The receivers to wake and the callers to answer when a service ends.
pub(crate) struct Ended {
    pub(crate) wakers: Vec<Waker>,
    pub(crate) unanswered: Vec<ReplyTo>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Closed;
