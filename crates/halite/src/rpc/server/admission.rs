//! Results of queueing a request, and of taking a request from a queue.

use std::task::Waker;

use halite_tier::rpc::Status;

use super::answer::ReplyTo;
use super::incoming::Incoming;

/// Result of queueing a request.
pub(crate) enum Admission {
    /// The request is queued. The caller wakes `waker`, and sends an empty answer to `accepted`.
    Queued {
        waker: Option<Waker>,
        accepted: Option<ReplyTo>,
    },
    /// The request's sender waits for room.
    Parked,
    Refused(ReplyTo, Status),
}

impl Admission {
    /// Returns true if the caller has nothing more to do.
    pub(super) fn is_done(&self) -> bool {
        matches!(self, Admission::Queued { waker: None, accepted: None } | Admission::Parked)
    }
}

/// Result of taking a request from a queue.
pub(crate) struct Taken {
    /// The request; `None` if no sender still waited for an answer. Even then, dropped requests may have made room.
    pub(crate) incoming: Option<Box<Incoming>>,
    /// The parked senders that get the room which this call made.
    pub(crate) promoted: Vec<Promoted>,
}

/// Promotion of a parked sender that gets room.
pub(crate) enum Promoted {
    /// The sender may send its message now, with this grant number.
    Granted(ReplyTo, u32),
    /// The sender's message is in the queue.
    Admitted(Admission),
}

/// The receivers to wake and the callers to answer after a service has ended.
pub(crate) struct EndedService {
    pub(crate) wakers: Vec<Waker>,
    pub(crate) unanswered: Vec<ReplyTo>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Closed;
