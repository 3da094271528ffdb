//! `rpc_lat` and `rpc_rate`: calls one after the other, or many outstanding.

use std::collections::VecDeque;
use std::time::Duration;

use halite::{Answer, CallError, Function, NodeId, blocking};

use super::echo::function;
use super::end::End;
use super::job::wrong;
use super::measure::NO_BASELINE;
use super::parcel::{Parcel, STAMP_BYTES, stamp_of};
use super::workload::{Bench, IN_TURN, Measured, PerfArgs, Plan, Planned, Timer, Workload};

/// Timeout of a call, after which the measurement assumes that the server is dead.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Default number of outstanding calls per thread.
const WINDOW: u32 = 16;

/// Plans calls one after the other.
pub fn plan_one_by_one(_: &PerfArgs) -> Planned {
    Ok(Plan { needs_server: true, serves_functions: true, ..Plan::of::<Caller>(IN_TURN) })
}

/// Plans many outstanding calls.
pub fn plan_outstanding(args: &PerfArgs) -> Planned {
    let (window, batch) = outstanding(args);
    if !window.is_multiple_of(batch) {
        return Err(wrong(&format!(
            "--window must be a multiple of --batch: {window} is not a multiple of {batch}"
        )));
    }
    let plan = Plan::of::<Callers>("many outstanding calls per thread");
    Ok(Plan { needs_server: true, serves_functions: true, ..plan })
}

/// Returns the number of outstanding calls per thread, and of calls that are posted together.
pub fn outstanding(args: &PerfArgs) -> (usize, usize) {
    (args.window.unwrap_or(WINDOW) as usize, args.batch.unwrap_or(1) as usize)
}

impl Workload for Caller {
    fn setup(bench: &mut Bench) -> anyhow::Result<Vec<Caller>> {
        let task = bench.server_task();
        let callers =
            (0..task.threads).map(|thread| Caller::new(&bench.end, thread, task.size, task.reply_bytes));
        let callers = callers.collect();
        bench.start_server_threads(task)?;
        Ok(callers)
    }

    fn operation(&mut self, _: &Bench, timer: &Timer) -> anyhow::Result<Measured> {
        timer.operations(|| Ok(self.call()?), NO_BASELINE)
    }

    fn verify(self, _: &mut Bench) -> anyhow::Result<u64> {
        Ok(self.errors())
    }
}

/// The callers of a thread. Each has one outstanding call.
pub struct Callers(Vec<Caller>);

impl Workload for Callers {
    fn setup(bench: &mut Bench) -> anyhow::Result<Vec<Callers>> {
        let ((window, _), lends) = (outstanding(&bench.job.args), bench.job.args.lend);
        let each = |caller: Caller| {
            let number = |number| Caller { lends, first: number << 32, ..caller.clone() };
            Callers((0..window as u64).map(number).collect())
        };
        Ok(Caller::setup(bench)?.into_iter().map(each).collect())
    }

    fn operation(&mut self, bench: &Bench, timer: &Timer) -> anyhow::Result<Measured> {
        let (_, batch) = outstanding(&bench.job.args);
        let callers = &mut self.0;
        let measured = timer.overlapping(|calls| match batch {
            1 => Ok(keep_outstanding(callers, calls)?),
            _ => Ok(keep_batches_outstanding(callers, batch, calls)?),
        })?;
        self.0.iter_mut().try_for_each(Caller::read_last_reply)?;
        Ok(measured)
    }

    fn verify(self, _: &mut Bench) -> anyhow::Result<u64> {
        Ok(self.0.iter().map(Caller::errors).sum())
    }

    fn figures(bench: &Bench) -> Vec<(&'static str, f64)> {
        let ((window, batch), reply_bytes) = (outstanding(&bench.job.args), bench.server_task().reply_bytes);
        vec![("window", window as f64), ("batch", batch as f64), ("reply_bytes", reply_bytes as f64)]
    }
}

/// Keeps one call of each caller outstanding. One server thread serves them in order, so the oldest ends first.
fn keep_outstanding(callers: &mut [Caller], calls: u64) -> Result<(), CallError> {
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

/// Keeps calls outstanding in batches: posts `batch` calls once the oldest batch has ended.
fn keep_batches_outstanding(callers: &mut [Caller], batch: usize, calls: u64) -> Result<(), CallError> {
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

/// Posts a call for each caller, at most `left` calls, and subtracts their number from `left`.
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

/// Calls a function and checks its replies.
#[derive(Clone)]
pub struct Caller {
    session: blocking::Session,
    node: NodeId,
    function: Function,
    request: Parcel,
    expected: Parcel,
    reply: Vec<u8>,
    /// True if replies are read in place.
    lends: bool,
    /// First stamp of this caller; the stamps of callers differ, so that a reply to another caller does not match.
    first: u64,
    calls: u64,
    errors: u64,
}

impl Caller {
    /// Creates a caller of the function that the server's `thread` serves.
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

    #[inline]
    pub fn call(&mut self) -> Result<(), CallError> {
        self.stamp();
        let input = self.request.bytes();
        let len = self.session.call_into(self.node, self.function, input, &mut self.reply, TIMEOUT)?;
        self.check(len);
        Ok(())
    }

    fn post(&mut self) -> Result<blocking::PendingCall, CallError> {
        self.stamp();
        let answer_bytes_max = self.reply.len();
        self.session.post_call(self.node, self.function, self.request.bytes(), answer_bytes_max, TIMEOUT)
    }

    /// Waits for the oldest call and checks its reply.
    fn finish(&mut self, pending: blocking::PendingCall) -> Result<(), CallError> {
        if self.lends {
            self.check_ends(&pending.lend_answer()?);
            return Ok(());
        }
        let len = pending.answer_into(&mut self.reply)?;
        self.check(len);
        Ok(())
    }

    /// Checks only the stamps at both ends of a reply; comparing all bytes would distort the timing.
    fn check_ends(&mut self, answer: &Answer) {
        let len = answer.len().min(self.reply.len());
        let ends = STAMP_BYTES.min(len);
        answer.copy_to(0, &mut self.reply[..ends]);
        answer.copy_to(len - ends, &mut self.reply[len - ends..len]);
        self.check(len);
    }

    /// Makes one more call and reads its reply completely, if earlier ones were only checked at the ends.
    fn read_last_reply(&mut self) -> Result<(), CallError> {
        if self.lends {
            let answer = self.post()?.lend_answer()?;
            let len = answer.copy_to(0, &mut self.reply);
            self.check(len);
        }
        Ok(())
    }

    /// Compares the last reply completely, then returns the number of wrong replies.
    pub fn errors(&self) -> u64 {
        let is_wrong = self.calls > 0 && self.reply != self.expected.bytes();
        self.errors + u64::from(is_wrong)
    }

    fn stamp(&mut self) {
        self.calls += 1;
        self.request.stamp(self.first + self.calls);
    }

    fn check(&mut self, len: usize) {
        // A short request contains only a part of the stamp, so the server saw no more.
        self.expected.stamp(stamp_of(self.request.bytes()));
        self.errors += u64::from(!self.expected.is_stamped_like(&self.reply[..len]));
    }
}
