//! The known facts about each call: its request, its execution, and the result that its caller got.

use std::collections::BTreeMap;

use halite::{CallCause, CallError};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CallId(pub(super) u64);

/// The handler's treatment of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    /// Answer at once.
    Answer,
    /// Answer later, perhaps too late.
    AnswerLate,
    /// Drop the call without an answer.
    Drop,
    /// Keep the call beyond its deadline, and then drop it.
    Keep,
}

impl Task {
    pub(super) const ALL: [Task; 4] = [Task::Answer, Task::AnswerLate, Task::Drop, Task::Keep];

    fn answers(self) -> bool {
        matches!(self, Task::Answer | Task::AnswerLate)
    }
}

/// The principals that a function serves, and its queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    /// Serves all principals.
    Open,
    /// Serves some principals.
    Closed,
    /// Serves all principals, with a short queue.
    Narrow,
    /// Is not served by any task.
    Absent,
}

/// A request of a caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) from: u32,
    /// Incarnation of that node, and number of its session.
    pub(super) session: (u32, u32),
    pub(super) to: u32,
    pub(super) kind: Kind,
    pub(super) principal: &'static str,
    /// True if the principal may call that function.
    pub(super) is_allowed: bool,
    pub(super) task: Task,
    pub(super) input_bytes: u32,
    pub(super) output_bytes: u32,
    /// Maximum length of an answer, in bytes.
    pub(super) answer_bytes_max: u64,
}

#[derive(Clone, Copy, Debug)]
struct CallState {
    request: Request,
    executions: u32,
    /// True if the caller got an error which promises that the call was not executed.
    is_reported_unexecuted: bool,
    /// Time of the handler's answer.
    replied_ns: Option<u64>,
}

/// The circumstances in which a call failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FailureContext {
    pub(super) now_ns: u64,
    /// Time since the deadline of the call; negative before it.
    pub(super) overdue_ns: i64,
    /// True if there was no fault so far.
    pub(super) is_fault_free: bool,
    /// Time in ns for which a READ may occupy the link.
    pub(super) read_ns_max: u64,
}

/// Maximum time until an answer that fits into a slot arrives, without faults and without READs in front of it.
const SHORT_ANSWER_NS_MAX: u64 = 40_000;
/// Maximum length of an answer that [`SHORT_ANSWER_NS_MAX`] applies to, in bytes.
const SHORT_ANSWER_BYTES_MAX: u32 = 4000;
/// Maximum length of inputs that travel in rings of any size.
const IN_RING_BYTES_MAX: u32 = 512;

impl CallState {
    /// Returns true if the call was answered long enough before its deadline.
    fn has_lost_answer(&self, context: FailureContext) -> bool {
        let due_ns = context.now_ns.saturating_add_signed(-context.overdue_ns);
        let answer_ns_max = SHORT_ANSWER_NS_MAX + context.read_ns_max;
        let in_time = self.replied_ns.is_some_and(|at| at + answer_ns_max < due_ns);
        in_time && self.request.output_bytes <= SHORT_ANSWER_BYTES_MAX
    }
}

/// All calls of a trial.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    calls: Vec<CallState>,
    /// The last call that each function received from each session.
    last: BTreeMap<(u32, (u32, u32), u32, Kind), CallId>,
}

impl Ledger {
    pub(super) fn begin(&mut self, request: Request) -> CallId {
        self.calls.push(CallState {
            request,
            executions: 0,
            is_reported_unexecuted: false,
            replied_ns: None,
        });
        CallId(self.calls.len() as u64 - 1)
    }

    /// Records that a handler at node `at` has received the call; fails if it must not receive it.
    pub(super) fn record_execution(
        &mut self,
        id: CallId,
        at: u32,
        kind: Kind,
        caller: (u32, &str),
    ) -> Result<Request, String> {
        let call = usize::try_from(id.0).ok().and_then(|index| self.calls.get_mut(index));
        let Some(call) = call else { return Err("no session made it".to_owned()) };
        call.executions += 1;
        let request = call.request;
        match () {
            () if call.executions > 1 => Err(format!("the call was executed {} times", call.executions)),
            () if call.is_reported_unexecuted => {
                Err("the caller got an error that says that the call was not executed".to_owned())
            }
            () if request.to != at || request.kind != kind => {
                Err(format!("the call was meant for {request:?}"))
            }
            () if (request.from, request.principal) != caller => {
                Err(format!("the call arrived from another caller: {request:?}"))
            }
            () if !request.is_allowed => Err("the caller may not call that function".to_owned()),
            () => self.check_order(id, request).map(|()| request),
        }
    }

    /// Checks that a session's calls arrive in the order of posting. Calls with long inputs may arrive late, because
    /// their inputs are read first.
    fn check_order(&mut self, id: CallId, request: Request) -> Result<(), String> {
        if request.input_bytes > IN_RING_BYTES_MAX {
            return Ok(());
        }
        let before = self.last.insert((request.from, request.session, request.to, request.kind), id);
        match before.filter(|before| before.0 > id.0) {
            Some(before) => Err(format!("the call arrived after the later call {before:?}")),
            None => Ok(()),
        }
    }

    pub(super) fn record_reply(&mut self, id: CallId, now_ns: u64) {
        self.calls[id.0 as usize].replied_ns = Some(now_ns);
    }

    /// Records that the caller got an answer of `len` bytes; fails if it must not get one.
    pub(super) fn record_answer(&self, id: CallId, len: usize) -> Result<(), String> {
        let CallState { request, executions, .. } = self.calls[id.0 as usize];
        match () {
            () if executions != 1 => Err(format!("the call was answered, but executed {executions} times")),
            () if !request.task.answers() => {
                Err(format!("the call was answered, but its task is {:?}", request.task))
            }
            () if len != request.output_bytes as usize => {
                Err(format!("the answer has {len} bytes: {request:?}"))
            }
            () => Ok(()),
        }
    }

    /// Records that the caller got an error; fails if nothing explains the error.
    pub(super) fn record_failure(
        &mut self,
        id: CallId,
        error: &CallError,
        context: FailureContext,
    ) -> Result<(), String> {
        let call = &mut self.calls[id.0 as usize];
        let CallState { request, executions, .. } = *call;
        let FailureContext { is_fault_free, .. } = context;
        call.is_reported_unexecuted = !error.may_have_run;
        match () {
            () if call.is_reported_unexecuted && executions > 0 => {
                return Err("the call was executed".to_owned());
            }
            () if !call.is_reported_unexecuted && proves_unexecuted(error.cause) => {
                return Err("the call cannot have been executed".to_owned());
            }
            () => {}
        }
        let is_explained = match error.cause {
            CallCause::Timeout => {
                context.overdue_ns >= 0 && !(is_fault_free && call.has_lost_answer(context))
            }
            CallCause::UnknownFunction => request.kind == Kind::Absent || !is_fault_free,
            CallCause::Busy => request.kind == Kind::Narrow,
            CallCause::PermissionDenied => !request.is_allowed,
            CallCause::ReplyTooLong { len, max } => {
                executions == 1
                    && len == u64::from(request.output_bytes)
                    && max == request.answer_bytes_max
                    && len > max
            }
            CallCause::NoReply => executions == 1 && (!request.task.answers() || !is_fault_free),
            CallCause::UnknownNode
            | CallCause::PeerDown
            | CallCause::NotMet
            | CallCause::ServerClosed
            | CallCause::Draining
            | CallCause::NodeClosed(_) => !is_fault_free,
            _ => false,
        };
        if is_explained { Ok(()) } else { Err(format!("without a known cause: {request:?}")) }
    }
}

/// Returns true if an error promises that no handler has run or will run.
fn proves_unexecuted(cause: CallCause) -> bool {
    matches!(
        cause,
        CallCause::UnknownNode
            | CallCause::NotMet
            | CallCause::UnknownFunction
            | CallCause::Busy
            | CallCause::PermissionDenied
            | CallCause::InputTooLong { .. }
            | CallCause::ServerClosed
            | CallCause::Draining
            | CallCause::TooManyCalls
    )
}
