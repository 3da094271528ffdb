//! `rpc_lat` and `rpc_rate`: calls one after the other, or many under way.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::Context;
use halite::{Answer, CallError, Function, NodeId, blocking};

use super::crew;
use super::echo::{Speech, function};
use super::ends::{Ends, Server};
use super::gate::Seat;
use super::job::{Job, Kind};
use super::measure::{Schedule, Series, estimate_ns};
use super::parcel::{Parcel, STAMP_BYTES, stamp_of};
use super::report::Row;
use super::server::{Reply, Request};

/// After so long without an answer the server is taken for dead.
const TIMEOUT: Duration = Duration::from_secs(10);

/// All sizes.
pub fn run(
    job: &Job,
    ends: &mut Ends,
    window: Option<usize>,
    report: &mut dyn FnMut(Row) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for size in &job.sizes {
        report(measure(job, ends, window, *size)?)?;
    }
    Ok(())
}

fn measure(job: &Job, ends: &mut Ends, window: Option<usize>, size: u64) -> anyhow::Result<Row> {
    let (reply_bytes, batch, lends) = match job.kind {
        Kind::Calls { reply_bytes, batch, lends, .. } => (reply_bytes.unwrap_or(size), batch, lends),
        _ => (size, 1, false),
    };
    let iterations = job.iterations(size);
    serve(ends, job.threads, Speech { request_bytes: Some(size), reply_bytes, batch })?;
    let (session, peer, cores) = (&ends.session, ends.peer, &ends.cores);
    let caller = |thread| Caller { lends, ..Caller::new(session, peer, thread, size, reply_bytes) };
    let measured = crew::run(
        job.threads,
        |thread| cores.of_client(thread),
        |thread, seat| match window {
            None => one_by_one(caller(thread), iterations, &seat),
            Some(window) => {
                let first = |number| (number as u64) << 32;
                let callers =
                    (0..window).map(|number| Caller { first: first(number), ..caller(thread) }).collect();
                under_way(callers, batch, iterations, &seat)
            }
        },
    )?;
    let mut row = Row { payload: size.max(reply_bytes), ..Row::new(size, iterations) };
    for (batch, series, errors) in measured {
        row.batch = batch;
        row.ours.merge(&series);
        row.errors += errors;
    }
    row.errors += end_serving(ends)?;
    if let Some(window) = window {
        row.extra.extend([
            ("window", window as f64),
            ("batch", batch as f64),
            ("reply_bytes", reply_bytes as f64),
        ]);
    }
    Ok(row)
}

/// Has the server answer calls.
pub fn serve(ends: &mut Ends, threads: usize, speech: Speech) -> anyhow::Result<()> {
    let Speech { request_bytes, reply_bytes, batch } = speech;
    the_server(ends)?.ask(&Request::Serve { threads, request_bytes, reply_bytes, batch }, Reply::Ready)
}

/// Has it stop; returns how often it got something else than expected.
pub fn end_serving(ends: &mut Ends) -> anyhow::Result<u64> {
    let server = the_server(ends)?;
    server.send(&Request::EndServing)?;
    server.errors()
}

fn the_server(ends: &mut Ends) -> anyhow::Result<&mut Server> {
    ends.server().context("calls need a server of our own")
}

type Measured = anyhow::Result<(u64, Series, u64)>;

fn one_by_one(mut caller: Caller<'_>, iterations: u64, seat: &Seat) -> Measured {
    let schedule = Schedule::new(iterations, estimate_ns(iterations, || caller.call())?);
    let mut series = Series::default();
    seat.wait();
    for operations in schedule.rounds() {
        series.round(operations, schedule.batch, || caller.call())?;
    }
    Ok((schedule.batch, series, caller.errors()))
}

/// Each round is a batch: a window that runs empty in between would not be one.
fn under_way(mut callers: Vec<Caller<'_>>, batch: usize, iterations: u64, seat: &Seat) -> Measured {
    let mut timed = |calls| {
        let begin = Instant::now();
        match batch {
            1 => keep_under_way(&mut callers, calls)?,
            _ => keep_rows_under_way(&mut callers, batch, calls)?,
        }
        Ok::<Duration, CallError>(begin.elapsed())
    };
    timed((iterations / 10).clamp(1, 1000))?;
    let schedule = Schedule::new(iterations, f64::MAX);
    let mut series = Series::default();
    let mut per_clock = 1;
    seat.wait();
    for operations in schedule.rounds() {
        per_clock = operations;
        series.round_of_batches(operations, operations, &mut timed)?;
    }
    for caller in &mut callers {
        caller.see_whole()?;
    }
    Ok((per_clock, series, callers.iter().map(Caller::errors).sum()))
}

/// Makes calls, of which each caller has one under way.  One thread serves them, in order: so the oldest ends first.
fn keep_under_way(callers: &mut [Caller<'_>], calls: u64) -> Result<(), CallError> {
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
fn keep_rows_under_way(callers: &mut [Caller<'_>], batch: usize, calls: u64) -> Result<(), CallError> {
    let rows = callers.len() / batch;
    let mut pending = VecDeque::with_capacity(rows);
    let mut left = calls as usize;
    for row in callers.chunks_mut(batch).take(rows) {
        pending.push_back(post_row(row, &mut left)?);
    }
    for number in 0.. {
        let row = &mut callers[number % rows * batch..][..batch];
        let Some(oldest) = pending.pop_front().filter(|calls| !calls.is_empty()) else { break };
        oldest.into_iter().zip(&mut *row).try_for_each(|(call, caller)| caller.finish(call))?;
        pending.push_back(post_row(row, &mut left)?);
    }
    Ok(())
}

/// Begins a call for each caller, at most `left`, which are fewer then.
fn post_row(callers: &mut [Caller<'_>], left: &mut usize) -> Result<Vec<blocking::PendingCall>, CallError> {
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
pub struct Caller<'a> {
    session: &'a blocking::Session,
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

impl<'a> Caller<'a> {
    /// Of the server's function for `thread`.
    pub fn new(
        session: &'a blocking::Session,
        node: NodeId,
        thread: usize,
        request_bytes: u64,
        reply_bytes: u64,
    ) -> Caller<'a> {
        let reply = vec![0; reply_bytes as usize];
        let (request, expected) = (Parcel::new(request_bytes, thread), Parcel::new(reply_bytes, thread));
        Caller {
            session,
            node,
            function: function(thread),
            request,
            expected,
            reply,
            lends: false,
            first: 0,
            calls: 0,
            errors: 0,
        }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    use halite::{Config, Node, ServeOptions};

    use super::super::gate;
    use super::*;

    /// Counts the errors of 10 calls, at a server that answers by what `spoil` makes of the right answer.
    fn errors((window, batch, lends): (Option<usize>, usize, bool), spoil: fn(&mut Vec<u8>)) -> u64 {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only the numbers must differ.
        let name = format!("halite-calls-{}-{}", std::process::id(), RUNS.fetch_add(1, Relaxed));
        let dir = std::env::temp_dir().join(name);
        let config = Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() };
        let node = Node::embedded(config).unwrap();
        let session = node.blocking_session();
        let server = session.serve(function(0), ServeOptions::default()).unwrap();
        let errors = std::thread::scope(|scope| {
            let serving = server.clone();
            scope.spawn(move || {
                while let Ok(call) = serving.recv() {
                    let mut reply = Parcel::new(100, 0);
                    reply.stamp(stamp_of(call.input()));
                    let mut bytes = reply.bytes().to_vec();
                    spoil(&mut bytes);
                    call.reply(&bytes).unwrap();
                }
            });
            let caller = || Caller { lends, ..Caller::new(&session, NodeId(0), 0, 8, 100) };
            let seat = gate::seats(1).pop().unwrap();
            let measured = match window {
                None => one_by_one(caller(), 10, &seat),
                Some(window) => under_way((0..window).map(|_| caller()).collect(), batch, 10, &seat),
            };
            server.close();
            measured.unwrap().2
        });
        node.leave();
        std::fs::remove_dir_all(dir).unwrap();
        errors
    }

    #[test]
    fn an_echo_that_is_broken_is_noticed() {
        for window in [(None, 1, false), (Some(4), 1, false), (Some(4), 2, false), (Some(4), 1, true)] {
            assert_eq!(errors(window, |_| ()), 0, "{window:?}");
            assert!(errors(window, |bytes| bytes[0] ^= 1) >= 10, "{window:?}");
            assert!(errors(window, |bytes| bytes[99] ^= 1) >= 10, "{window:?}");
            assert!(errors(window, |bytes| bytes.truncate(99)) >= 10, "{window:?}");
            // In the middle of the last answers, which are looked at as a whole.
            assert!(errors(window, |bytes| bytes[50] ^= 1) >= 1, "{window:?}");
        }
    }
}
