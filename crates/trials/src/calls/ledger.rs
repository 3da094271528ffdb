//! What is known of each call from outside: what it asks for, whether it was carried out, and what its caller was told.

use std::collections::BTreeMap;

use halite::{CallCause, CallError};

/// The number of a call, which none other has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CallId(pub(super) u64);

/// What a handler is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    /// Answer at once.
    Answer,
    /// Answer after a while, perhaps too late.
    AnswerLate,
    /// Give the call up without an answer.
    GiveUp,
    /// Keep the call until its time is over, and then give it up.
    Keep,
}

impl Task {
    pub(super) const ALL: [Task; 4] = [Task::Answer, Task::AnswerLate, Task::GiveUp, Task::Keep];

    fn answers(self) -> bool {
        matches!(self, Task::Answer | Task::AnswerLate)
    }
}

/// Whom a function of the trial serves, and how many wait for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    /// Everybody.
    Open,
    /// Not everybody.
    Closed,
    /// Everybody, but few at a time.
    Narrow,
    /// Nobody: it is not served.
    Absent,
}

/// What a caller asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wish {
    pub(super) from: u32,
    /// The incarnation of that node, and the number of the session there.
    pub(super) session: (u32, u32),
    pub(super) to: u32,
    pub(super) kind: Kind,
    pub(super) principal: &'static str,
    /// Whether its principal may call that function.
    pub(super) is_allowed: bool,
    pub(super) task: Task,
    pub(super) input_bytes: u32,
    pub(super) output_bytes: u32,
    /// Most bytes that it takes for an answer.
    pub(super) room: u64,
}

/// What is known of one.
#[derive(Clone, Copy, Debug)]
struct Known {
    wish: Wish,
    times: u32,
    /// Its caller was told that it has not been carried out.
    denied: bool,
    /// When its handler had answered.
    replied_ns: Option<u64>,
}

/// When somebody was told that a call has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NoAnswer {
    pub(super) now_ns: u64,
    /// For how long its time had been over; negative if it was not.
    pub(super) overdue_ns: i64,
    /// Whether nothing has gone wrong so far.
    pub(super) is_calm: bool,
}

/// An answer that fits into a slot comes so soon after it was given, where nothing goes wrong.
const SHORT_ANSWER_NS_MAX: u64 = 60_000;
/// The longest such answer.
const SHORT_ANSWER_BYTES_MAX: u32 = 4000;
/// Inputs up to this length travel in rings of any size.
const IN_RING_BYTES_MAX: u32 = 512;

impl Known {
    /// Whether it was answered long enough before its time was over.
    fn lost_answer(&self, told: NoAnswer) -> bool {
        let due_ns = told.now_ns.saturating_add_signed(-told.overdue_ns);
        let in_time = self.replied_ns.is_some_and(|at| at + SHORT_ANSWER_NS_MAX < due_ns);
        in_time && self.wish.output_bytes <= SHORT_ANSWER_BYTES_MAX
    }
}

/// Everything about the calls of a trial.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    known: Vec<Known>,
    /// The last call of each session that each function has received.
    last: BTreeMap<(u32, (u32, u32), u32, Kind), CallId>,
}

impl Ledger {
    /// Somebody is about to call.
    pub(super) fn begin(&mut self, wish: Wish) -> CallId {
        self.known.push(Known { wish, times: 0, denied: false, replied_ns: None });
        CallId(self.known.len() as u64 - 1)
    }

    /// A handler at node `at` has received it.
    pub(super) fn carry_out(
        &mut self,
        id: CallId,
        at: u32,
        kind: Kind,
        caller: (u32, &str),
    ) -> Result<Wish, String> {
        let known = usize::try_from(id.0).ok().and_then(|index| self.known.get_mut(index));
        let Some(known) = known else { return Err("nobody ever made it".to_owned()) };
        known.times += 1;
        let wish = known.wish;
        match () {
            () if known.times > 1 => Err(format!("it was carried out {} times", known.times)),
            () if known.denied => Err("its caller had been told that it was not carried out".to_owned()),
            () if wish.to != at || wish.kind != kind => Err(format!("it was meant for {wish:?}")),
            () if (wish.from, wish.principal) != caller => Err(format!("it came from {wish:?}")),
            () if !wish.is_allowed => Err("its caller may not call that function".to_owned()),
            () => self.keep_order(id, wish).map(|()| wish),
        }
    }

    /// Those of a session come in the order in which they were posted, but for long ones, which are read first.
    fn keep_order(&mut self, id: CallId, wish: Wish) -> Result<(), String> {
        if wish.input_bytes > IN_RING_BYTES_MAX {
            return Ok(());
        }
        let before = self.last.insert((wish.from, wish.session, wish.to, wish.kind), id);
        match before.filter(|before| before.0 > id.0) {
            Some(before) => Err(format!("it came after {before:?}")),
            None => Ok(()),
        }
    }

    /// Its handler has answered.
    pub(super) fn replied(&mut self, id: CallId, now_ns: u64) {
        self.known[id.0 as usize].replied_ns = Some(now_ns);
    }

    /// Its caller has an answer of so many bytes.
    pub(super) fn answered(&self, id: CallId, len: usize) -> Result<(), String> {
        let Known { wish, times, .. } = self.known[id.0 as usize];
        match () {
            () if times != 1 => Err(format!("it was answered, and carried out {times} times")),
            () if !wish.task.answers() => Err(format!("it was answered, but {:?}", wish.task)),
            () if len != wish.output_bytes as usize => Err(format!("its answer has {len} bytes: {wish:?}")),
            () => Ok(()),
        }
    }

    /// Its caller was told that there is no answer, and why.
    pub(super) fn failed(&mut self, id: CallId, error: &CallError, told: NoAnswer) -> Result<(), String> {
        let known = &mut self.known[id.0 as usize];
        let Known { wish, times, .. } = *known;
        let NoAnswer { is_calm, .. } = told;
        known.denied = !error.may_have_run;
        match () {
            () if known.denied && times > 0 => return Err("it was carried out".to_owned()),
            () if !known.denied && is_not_done(error.cause) => {
                return Err("it cannot have been carried out".to_owned());
            }
            () => {}
        }
        let is_explained = match error.cause {
            CallCause::Timeout => told.overdue_ns >= 0 && !(is_calm && known.lost_answer(told)),
            CallCause::UnknownFunction => wish.kind == Kind::Absent || !is_calm,
            CallCause::Busy => wish.kind == Kind::Narrow,
            CallCause::PermissionDenied => !wish.is_allowed,
            CallCause::ReplyTooLong { len, max } => {
                times == 1 && len == u64::from(wish.output_bytes) && max == wish.room && len > max
            }
            CallCause::NoReply => times == 1 && (!wish.task.answers() || !is_calm),
            CallCause::UnknownNode
            | CallCause::PeerDown
            | CallCause::ServerClosed
            | CallCause::Draining
            | CallCause::NodeClosed => !is_calm,
            _ => false,
        };
        if is_explained { Ok(()) } else { Err(format!("there is no reason: {wish:?}")) }
    }
}

/// Whether an error promises that no handler has run, nor will.
fn is_not_done(cause: CallCause) -> bool {
    matches!(
        cause,
        CallCause::UnknownNode
            | CallCause::UnknownFunction
            | CallCause::Busy
            | CallCause::PermissionDenied
            | CallCause::InputTooLong { .. }
            | CallCause::ServerClosed
            | CallCause::Draining
            | CallCause::TooManyCalls
    )
}
