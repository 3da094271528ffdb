//! `rpc_lat` and `rpc_rate`: calls one after the other, or many under way.

use std::collections::VecDeque;
use std::time::Duration;

use halite::{Answer, CallError, Function, NodeId, blocking};

use super::bench::Bench;
use super::echo::{CallShape, function};
use super::measure::{Measured, NO_BASELINE, Timer};
use super::parcel::{Parcel, STAMP_BYTES, stamp_of};
use super::report::Row;
use super::server::{Reply, Request};

/// After so long without an answer the server is taken for dead.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Calls of one size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Calls {
    /// Calls under way in each thread; none for one after the other, each timed.
    pub window: Option<usize>,
    /// How many are posted together, and answered together.
    pub batch: usize,
    /// Bytes of each reply; none for as many as in the request.
    pub reply_bytes: Option<u64>,
    /// Whether replies are not copied out.
    pub lends: bool,
}

impl Calls {
    /// Of one size.
    pub fn measure(self, bench: &mut Bench<'_>) -> anyhow::Result<Row> {
        let (size, threads, Calls { batch, lends, .. }) = (bench.size, bench.job.threads, self);
        let reply_bytes = self.reply_bytes.unwrap_or(size);
        let shape = CallShape { threads, request_bytes: Some(size), reply_bytes, batch };
        let mut row = answered(bench, shape, |bench| {
            let caller = |thread| Caller { lends, ..Caller::new(bench, thread, size, reply_bytes) };
            bench.measure(bench.threads(), |thread, (), timer| match self.window {
                None => one_by_one(caller(thread), &timer),
                Some(window) => {
                    let callers =
                        (0..window as u64).map(|number| Caller { first: number << 32, ..caller(thread) });
                    under_way(callers.collect(), batch, &timer)
                }
            })
        })?;
        row.payload = size.max(reply_bytes);
        if let Some(window) = self.window {
            row.extra.extend([
                ("window", window as f64),
                ("batch", batch as f64),
                ("reply_bytes", reply_bytes as f64),
            ]);
        }
        Ok(row)
    }
}

/// Measures while the server answers calls.
pub fn answered(
    bench: &mut Bench<'_>,
    shape: CallShape,
    measure: impl FnOnce(&mut Bench<'_>) -> anyhow::Result<Row>,
) -> anyhow::Result<Row> {
    bench.ends.own_server()?.ask(&Request::Serve(shape), Reply::Ready)?;
    let mut row = measure(bench)?;
    let server = bench.ends.own_server()?;
    server.send(&Request::EndServing)?;
    row.errors += server.errors()?;
    Ok(row)
}

fn one_by_one(mut caller: Caller<'_>, timer: &Timer) -> anyhow::Result<Measured> {
    let measured = timer.operations(|| Ok(caller.call()?), NO_BASELINE)?;
    Ok(Measured { errors: caller.errors(), ..measured })
}

fn under_way(mut callers: Vec<Caller<'_>>, batch: usize, timer: &Timer) -> anyhow::Result<Measured> {
    let measured = timer.overlapping(|calls| match batch {
        1 => Ok(keep_under_way(&mut callers, calls)?),
        _ => Ok(keep_batches_in_flight(&mut callers, batch, calls)?),
    })?;
    for caller in &mut callers {
        caller.see_whole()?;
    }
    Ok(Measured { errors: callers.iter().map(Caller::errors).sum(), ..measured })
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
fn keep_batches_in_flight(callers: &mut [Caller<'_>], batch: usize, calls: u64) -> Result<(), CallError> {
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
fn post_batch(callers: &mut [Caller<'_>], left: &mut usize) -> Result<Vec<blocking::PendingCall>, CallError> {
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
    pub fn new(bench: &'a Bench<'_>, thread: usize, request_bytes: u64, reply_bytes: u64) -> Caller<'a> {
        Caller::at(&bench.ends.session, bench.ends.peer, thread, request_bytes, reply_bytes)
    }

    fn at(
        session: &'a blocking::Session,
        node: NodeId,
        thread: usize,
        request_bytes: u64,
        reply_bytes: u64,
    ) -> Caller<'a> {
        Caller {
            session,
            node,
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
            let caller = || Caller { lends, ..Caller::at(&session, NodeId(0), 0, 8, 100) };
            let timer = Timer { participant: gate::participants(1).pop().unwrap(), operations: 10 };
            let measured = match window {
                None => one_by_one(caller(), &timer),
                Some(window) => under_way((0..window).map(|_| caller()).collect(), batch, &timer),
            };
            server.close();
            measured.unwrap().errors
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
