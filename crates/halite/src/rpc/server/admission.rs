//! What became of a request that was to be queued, or taken from a queue.

use std::task::Waker;

use halite_tier::rpc::Status;

use super::answer::ReplyTo;
use super::incoming::Incoming;

/// What became of a request that was to be queued.
pub(crate) enum Admission {
    /// It is queued: `waker` has to be woken, and `accepted` to be answered.
    Queued { waker: Option<Waker>, accepted: Option<ReplyTo> },
    /// Its sender waits for room.
    Parked,
    /// It is refused.
    Refused(ReplyTo, Status),
}

impl Admission {
    /// Returns true if nothing is left to be done.
    pub(super) fn is_all(&self) -> bool {
        matches!(self, Admission::Queued { waker: None, accepted: None } | Admission::Parked)
    }
}

/// What a receiver takes out of a queue.
pub(crate) struct Taken {
    /// `None` if no request there was wanted any more; dropping them has made room all the same.
    pub(crate) incoming: Option<Box<Incoming>>,
    /// The senders that have waited for the room that this has made.
    pub(crate) promoted: Vec<Promoted>,
}

/// What a sender that has waited for room gets.
pub(crate) enum Promoted {
    /// It may send now, under this number.
    Granted(ReplyTo, u32),
    /// Its message is in the queue.
    Admitted(Admission),
}

/// The receivers to wake and the callers to answer when a service ends.
pub(crate) struct Ended {
    pub(crate) wakers: Vec<Waker>,
    pub(crate) unanswered: Vec<ReplyTo>,
}

/// The service has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Closed;
