//! `rpc_lat` and `rpc_rate`: calls one after the other, or many under way.

use std::collections::VecDeque;
use std::time::Duration;

use halite::{Answer, CallError, Function, NodeId, blocking};

use super::echo::function;
use super::end::End;
use super::job::wrong;
use super::measure::NO_BASELINE;
use super::parcel::{Parcel, STAMP_BYTES, stamp_of};
use super::workload::{Bench, IN_TURN, Measured, PerfArgs, Plan, Planned, Timer, Workload};

/// After so long without an answer the server is taken for dead.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How many calls are under way in each thread unless the user says.
const WINDOW: u32 = 16;

/// Of calls one after the other.
pub fn plan_one_by_one(_: &PerfArgs) -> Planned {
    Ok(Plan { needs_server: true, ..Plan::of::<Caller>(IN_TURN) })
}

/// Of many.
pub fn plan_under_way(args: &PerfArgs) -> Planned {
    let (window, batch) = under_way(args);
    if !window.is_multiple_of(batch) {
        return Err(wrong(&format!(
            "--window must be a multiple of --batch, and {window} is no multiple of {batch}"
        )));
    }
    Ok(Plan { needs_server: true, ..Plan::of::<Callers>("many calls under way in each thread") })
}

/// How many are under way, and how many are posted together.
pub fn under_way(args: &PerfArgs) -> (usize, usize) {
    (args.window.unwrap_or(WINDOW) as usize, args.batch.unwrap_or(1) as usize)
}

impl Workload for Caller {
    fn setup(bench: &mut Bench) -> anyhow::Result<Vec<Caller>> {
        let part = bench.part();
        let callers =
            (0..part.threads).map(|thread| Caller::new(&bench.end, thread, part.size, part.reply_bytes));
        let callers = callers.collect();
        bench.be_followed(part)?;
        Ok(callers)
    }

    fn operation(&mut self, _: &Bench, timer: &Timer) -> anyhow::Result<Measured> {
        self.one_by_one(timer)
    }

    fn verify(self, _: &mut Bench) -> anyhow::Result<u64> {
        Ok(self.errors())
    }
}

/// A thread's, of which each has one call under way.
pub struct Callers(Vec<Caller>);

impl Workload for Callers {
    fn setup(bench: &mut Bench) -> anyhow::Result<Vec<Callers>> {
        let ((window, _), lends) = (under_way(&bench.job.args), bench.job.args.lend);
        let each = |caller: Caller| {
            let number = |number| Caller { lends, first: number << 32, ..caller.clone() };
            Callers((0..window as u64).map(number).collect())
        };
        Ok(Caller::setup(bench)?.into_iter().map(each).collect())
    }

    fn operation(&mut self, bench: &Bench, timer: &Timer) -> anyhow::Result<Measured> {
        self.under_way(under_way(&bench.job.args).1, timer)
    }

    fn verify(self, _: &mut Bench) -> anyhow::Result<u64> {
        Ok(self.0.iter().map(Caller::errors).sum())
    }

    fn figures(bench: &Bench) -> Vec<(&'static str, f64)> {
        let ((window, batch), reply_bytes) = (under_way(&bench.job.args), bench.part().reply_bytes);
        vec![("window", window as f64), ("batch", batch as f64), ("reply_bytes", reply_bytes as f64)]
    }
}

impl Callers {
    fn under_way(&mut self, batch: usize, timer: &Timer) -> anyhow::Result<Measured> {
        let callers = &mut self.0;
        let measured = timer.overlapping(|calls| match batch {
            1 => Ok(keep_under_way(callers, calls)?),
            _ => Ok(keep_batches_in_flight(callers, batch, calls)?),
        })?;
        self.0.iter_mut().try_for_each(Caller::see_whole)?;
        Ok(measured)
    }
}

/// Makes calls, of which each caller has one under way.  One thread serves them, in order: so the oldest ends first.
fn keep_under_way(callers: &mut [Caller], calls: u64) -> Result<(), CallError> {
    let window = callers.len() as u64;
    let mut pending = VecDeque::with_capacity(callers.len());
    for number in 0..calls + window {
        let caller = &mut callers[(number % window) as usize];
        if number >= window
            && let Some(oldest) = pending.pop_front()
        {
            caller.finish(oldest)?;
        }
        if number < calls {
            pending.push_back(caller.post()?);
        }
    }
    Ok(())
}

/// As [`keep_under_way`], with `batch` calls posted together once the oldest as many have ended.
fn keep_batches_in_flight(callers: &mut [Caller], batch: usize, calls: u64) -> Result<(), CallError> {
    let batches = callers.len() / batch;
    let mut pending = VecDeque::with_capacity(batches);
    let mut left = calls as usize;
    for chunk in callers.chunks_mut(batch).take(batches) {
        pending.push_back(post_batch(chunk, &mut left)?);
    }
    for number in 0.. {
        let chunk = &mut callers[number % batches * batch..][..batch];
        let Some(oldest) = pending.pop_front().filter(|calls| !calls.is_empty()) else { break };
        oldest.into_iter().zip(&mut *chunk).try_for_each(|(call, caller)| caller.finish(call))?;
        pending.push_back(post_batch(chunk, &mut left)?);
    }
    Ok(())
}

/// Begins a call for each caller, at most `left`, which are fewer then.
fn post_batch(callers: &mut [Caller], left: &mut usize) -> Result<Vec<blocking::PendingCall>, CallError> {
    let count = callers.len().min(*left);
    *left -= count;
    callers[..count].iter_mut().for_each(Caller::stamp);
    let Some(first) = callers[..count].first() else { return Ok(Vec::new()) };
    let inputs: Vec<_> = callers[..count].iter().map(|caller| caller.request.bytes()).collect();
    let answer_bytes_max = first.reply.len();
    let posted = first.session.post_calls(first.node, first.function, &inputs, answer_bytes_max, TIMEOUT);
    posted.into_iter().collect()
}

/// Calls a function and checks its answers.
#[derive(Clone)]
pub struct Caller {
    session: blocking::Session,
    node: NodeId,
    function: Function,
    request: Parcel,
    expected: Parcel,
    reply: Vec<u8>,
    /// Whether the replies of calls under way are not copied out.
    lends: bool,
    /// What stamps begin with, so that answers to others do not pass for ours.
    first: u64,
    calls: u64,
    errors: u64,
}

impl Caller {
    /// Of the function that a thread of the other end serves.
    pub fn new(end: &End, thread: usize, request_bytes: u64, reply_bytes: u64) -> Caller {
        Caller {
            session: end.session.clone(),
            node: end.peer,
            function: function(thread),
            request: Parcel::new(request_bytes, thread),
            expected: Parcel::new(reply_bytes, thread),
            reply: vec![0; reply_bytes as usize],
            lends: false,
            first: 0,
            calls: 0,
            errors: 0,
        }
    }

    fn one_by_one(&mut self, timer: &Timer) -> anyhow::Result<Measured> {
        timer.operations(|| Ok(self.call()?), NO_BASELINE)
    }

    /// One call on a thread.
    #[inline]
    pub fn call(&mut self) -> Result<(), CallError> {
        self.stamp();
        let input = self.request.bytes();
        let len = self.session.call_into(self.node, self.function, input, &mut self.reply, TIMEOUT)?;
        self.check(len);
        Ok(())
    }

    /// Begins a call.
    fn post(&mut self) -> Result<blocking::PendingCall, CallError> {
        self.stamp();
        let answer_bytes_max = self.reply.len();
        self.session.post_call(self.node, self.function, self.request.bytes(), answer_bytes_max, TIMEOUT)
    }

    /// Ends the call that was begun last.
    fn finish(&mut self, pending: blocking::PendingCall) -> Result<(), CallError> {
        if self.lends {
            self.look_at_ends(&pending.lend_answer()?);
            return Ok(());
        }
        let len = pending.answer_into(&mut self.reply)?;
        self.check(len);
        Ok(())
    }

    /// Sees only what is checked each time.
    fn look_at_ends(&mut self, answer: &Answer) {
        let len = answer.len().min(self.reply.len());
        let ends = STAMP_BYTES.min(len);
        answer.copy_to(0, &mut self.reply[..ends]);
        answer.copy_to(len - ends, &mut self.reply[len - ends..len]);
        self.check(len);
    }

    /// Has one more reply for [`Caller::errors`] to look at, if only the ends of those before were seen.
    fn see_whole(&mut self) -> Result<(), CallError> {
        if self.lends {
            let answer = self.post()?.lend_answer()?;
            let len = answer.copy_to(0, &mut self.reply);
            self.check(len);
        }
        Ok(())
    }

    /// How many answers were wrong; the last one is looked at as a whole.
    pub fn errors(&self) -> u64 {
        let is_wrong = self.calls > 0 && self.reply != self.expected.bytes();
        self.errors + u64::from(is_wrong)
    }

    fn stamp(&mut self) {
        self.calls += 1;
        self.request.stamp(self.first + self.calls);
    }

    fn check(&mut self, len: usize) {
        // Of a short request, the server saw only a part of the stamp.
        self.expected.stamp(stamp_of(self.request.bytes()));
        self.errors += u64::from(!self.expected.resembles(&self.reply[..len]));
    }
}
