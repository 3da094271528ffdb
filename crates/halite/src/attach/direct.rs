//! Calls between sessions that are attached to this node, which pass the queue of the function.
//!
//! ```text
//!   caller ── line ──> node: a receive of this function waits? ── yes ──> reply to the receive ──> server
//!                        └─ no ──> queue of the function (session::calls)
//!   caller <── reply ── node <────────────────────────────────── line ────────────────────────────── server
//! ```
//!
//! Such a call needs no operation, and neither a slot nor a timer of the node. The thread that serves the clients owns
//! this state. It knows the receives that wait, each of which is also a receiver of the function's queue, and the calls
//! that servers have received but not answered. It ends a call that is overdue, cancelled, or whose server is gone.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use halite_tier::ids::NodeId;

use crate::error::{CallCause, CallError, ReplyCause, ReplyError};

/// The state of all direct calls, which the clients of one thread share.
#[derive(Default)]
pub(super) struct Direct {
    /// Receives that wait, by the number of their function.
    waiting: RefCell<BTreeMap<u32, VecDeque<Place>>>,
    calls: RefCell<BTreeMap<u64, DirectCall>>,
    last: Cell<u64>,
    /// Ends of calls that the callers have not received yet.
    ended: RefCell<Vec<(DirectCall, Ended)>>,
    /// No search for overdue calls is necessary before this time.
    next_search_ns: Cell<Option<u64>>,
    last_search_ns: Cell<u64>,
}

/// Minimum interval, in nanoseconds, between searches for overdue calls. A search takes some microseconds per thousand
/// calls, and a client chooses its deadlines.
const SEARCH_NS_MIN: u64 = 1_000_000;

/// A request of a client, by its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) client: u64,
    pub(super) slot: usize,
}

/// A call that its server has not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirectCall {
    pub(super) caller: Place,
    pub(super) node: NodeId,
    pub(super) function: u32,
    /// Maximum length of the answer, in bytes.
    pub(super) output_max: u32,
    /// Deadline on the clock of the thread.
    pub(super) deadline_ns: u64,
}

/// The end of a call other than an answer in shared memory.
pub(super) enum Ended {
    Answered(Vec<u8>),
    Failed(CallCause),
}

impl DirectCall {
    /// Returns the error with which the call fails.
    pub(super) fn error(&self, cause: CallCause) -> CallError {
        let may_have_run = cause.may_have_run_once_posted();
        CallError { node: self.node, function: self.function, cause, may_have_run }
    }

    /// Returns the errors of both ends if the caller does not accept an answer of `len` bytes.
    pub(super) fn check_len(&self, len: usize) -> Result<(), (CallCause, ReplyError)> {
        let max = u64::from(self.output_max);
        match len as u64 > max {
            true => Err((
                CallCause::ReplyTooLong { len: len as u64, max },
                reply_error(self.node, len, ReplyCause::TooLong { max }),
            )),
            false => Ok(()),
        }
    }
}

pub(super) fn reply_error(node: NodeId, len: usize, cause: ReplyCause) -> ReplyError {
    ReplyError { node, len: len as u64, cause }
}

impl Direct {
    /// Adds a receive that waits for calls of `function`.
    pub(super) fn wait(&self, function: u32, place: Place) {
        self.waiting.borrow_mut().entry(function).or_default().push_back(place);
    }

    /// Removes a receive that waits.
    pub(super) fn stop_waiting(&self, function: u32, place: Place) {
        let mut waiting = self.waiting.borrow_mut();
        if let Some(places) = waiting.get_mut(&function) {
            places.retain(|other| *other != place);
            if places.is_empty() {
                waiting.remove(&function);
            }
        }
    }

    /// Returns the receive of `function` that has waited longest.
    pub(super) fn receive_of(&self, function: u32) -> Option<Place> {
        self.waiting.borrow().get(&function)?.front().copied()
    }

    /// Adds a call and returns its key.
    pub(super) fn open(&self, call: DirectCall) -> u64 {
        let key = self.last.get();
        self.last.set(key + 1);
        let due = self.search_time(call.deadline_ns);
        self.next_search_ns.set(Some(self.next_search_ns.get().map_or(due, |next| next.min(due))));
        self.calls.borrow_mut().insert(key, call);
        key
    }

    /// Ends a call; returns `None` if its caller no longer waits.
    pub(super) fn take(&self, key: u64) -> Option<DirectCall> {
        self.calls.borrow_mut().remove(&key)
    }

    pub(super) fn is_open(&self, key: u64) -> bool {
        self.calls.borrow().contains_key(&key)
    }

    /// Ends a call, and lets the thread pass the end to the caller.
    pub(super) fn end(&self, key: u64, end: impl FnOnce(&DirectCall) -> Ended) {
        if let Some(call) = self.take(key) {
            self.ended.borrow_mut().push((call, end(&call)));
        }
    }

    pub(super) fn take_ended(&self) -> Vec<(DirectCall, Ended)> {
        std::mem::take(&mut self.ended.borrow_mut())
    }

    fn search_time(&self, deadline_ns: u64) -> u64 {
        deadline_ns.max(self.last_search_ns.get() + SEARCH_NS_MIN)
    }

    /// Returns the time of the next search for overdue calls.
    pub(super) fn next_search_ns(&self) -> Option<u64> {
        self.next_search_ns.get()
    }

    /// Ends the calls that are overdue. Costs nothing per call, because most calls end long before they are overdue.
    pub(super) fn end_overdue(&self, now_ns: u64) {
        if self.next_search_ns.get().is_none_or(|next| now_ns < next) {
            return;
        }
        self.last_search_ns.set(now_ns);
        let mut calls = self.calls.borrow_mut();
        let overdue: Vec<u64> =
            calls.iter().filter(|(_, call)| call.deadline_ns <= now_ns).map(|(key, _)| *key).collect();
        let timeout = || Ended::Failed(CallCause::Timeout);
        let ended = overdue.iter().filter_map(|key| calls.remove(key)).map(|call| (call, timeout()));
        self.ended.borrow_mut().extend(ended);
        let next = calls.values().map(|call| call.deadline_ns).min();
        self.next_search_ns.set(next.map(|next| self.search_time(next)));
    }
}

/// A direct call among the objects of its server's session. Dropping it fails the call at its caller.
pub(super) struct Received {
    direct: Rc<Direct>,
    key: u64,
    node: NodeId,
}

impl Received {
    pub(super) fn new(direct: Rc<Direct>, key: u64, node: NodeId) -> Received {
        Received { direct, key, node }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.direct.is_open(self.key)
    }

    /// Ends the call at the server's side; fails if the caller no longer waits.
    pub(super) fn take(&self, len: usize) -> Result<DirectCall, ReplyError> {
        self.direct.take(self.key).ok_or_else(|| reply_error(self.node, len, ReplyCause::CallerGone))
    }

    /// Answers the call with an output that may be long.
    pub(super) fn answer(&self, output: &[u8]) -> Result<(), ReplyError> {
        let call = self.take(output.len())?;
        let (ended, answered) = match call.check_len(output.len()) {
            Ok(()) => (Ended::Answered(output.to_vec()), Ok(())),
            Err((cause, error)) => (Ended::Failed(cause), Err(error)),
        };
        self.direct.ended.borrow_mut().push((call, ended));
        answered
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.direct.end(self.key, |_| Ended::Failed(CallCause::NoReply));
    }
}
