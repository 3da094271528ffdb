//! Calls of all lengths, one or several at a time. Handlers answer them in time, answer them late, or drop them;
//! sessions cancel some. [`ledger`] defines the valid outcomes.

mod handler;
mod ledger;
mod payload;

use std::rc::Rc;
use std::time::Duration;

use halite::{CallError, NodeId, PendingCall};
use halite_sim::Random;

use crate::actor::{Actor, pick};
use crate::futures::before;
use crate::harness::{Harness, PRINCIPALS};
use crate::plan::Plan;
pub(crate) use handler::serve;
use handler::{function_of, is_allowed};
use ledger::{CallId, FailureContext, Kind, Ledger, Request, Task};

/// Maximum timeout of a call, in microseconds.
const TIMEOUT_US_MAX: u64 = 150;
/// Maximum time from a deadline to the end of the call: the progress thread of the node wakes, and then the session.
const SLACK_NS: u64 = 20_000;
/// Maximum number of nodes that are called at once, so that calls do not dominate in large clusters.
const CALL_MANY_NODES_MAX: u32 = 8;
/// Limit that exceeds every answer, in bytes.
const UNLIMITED_ANSWER_BYTES: u64 = 1 << 30;

#[derive(Debug, Default)]
pub(crate) struct Calls {
    ledger: Ledger,
}

pub(crate) async fn run_operation(actor: &mut Actor) {
    match pick(&mut actor.random, &[4, 3, 2, 1]) {
        0 => call(actor).await,
        1 => call_into(actor).await,
        2 if uses_batches(&mut actor.random, &actor.harness.plan) => post_batch(actor).await,
        2 => post_calls(actor).await,
        _ => call_many(actor).await,
    }
}

/// Returns true if calls are posted as a batch. Plans without batches draw no random number here.
fn uses_batches(random: &mut Random, plan: &Plan) -> bool {
    let per_mille = plan.work.batches_per_mille;
    per_mille > 0 && random.chance(per_mille.into(), 1000)
}

struct Attempt {
    id: CallId,
    request: Request,
    begin_ns: u64,
    timeout: Duration,
    /// Deadline by the clock of the caller's host.
    deadline_ns: u64,
}

/// The reason why a call has no answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Refused(CallError),
    #[error("the call has not ended long after its deadline")]
    Overdue,
}

impl Attempt {
    fn begin(actor: &mut Actor, request: Request, timeout: Duration) -> Attempt {
        let id = actor.harness.calls.borrow_mut().ledger.begin(request);
        actor.trace(format_args!("concerns call {}", id.0));
        let deadline_ns = actor.clock_ns() + timeout.as_nanos() as u64;
        Attempt { id, request, begin_ns: actor.now_ns(), timeout, deadline_ns }
    }

    fn input(&self) -> Vec<u8> {
        payload::input(self.id, self.request.input_bytes as usize)
    }

    /// Waits for the end of the call. Returns [`Failure::Overdue`] long after its deadline.
    async fn await_end<T>(
        &self,
        actor: &mut Actor,
        operation: &'static str,
        future: impl Future<Output = Result<T, CallError>>,
    ) -> Option<Result<T, Failure>> {
        let end = wait_until_overdue(actor.harness.clone(), actor.node, self.deadline_ns);
        let bounded = async {
            match before(end, future).await {
                Some(result) => result.map_err(Failure::Refused),
                None => Err(Failure::Overdue),
            }
        };
        actor.attempt(operation, bounded).await
    }

    /// Checks the end of the call.
    fn check_end(&self, actor: &Actor, result: Option<Result<Vec<u8>, Failure>>) {
        let verdict = match result {
            None => Ok(()),
            Some(Ok(output)) => self.check_answer(actor, &output),
            Some(Err(Failure::Overdue)) => Err(format!("the call did not end in {:?}", self.timeout)),
            Some(Err(Failure::Refused(error))) => {
                self.check_refusal(actor, &error).map_err(|reason| format!("{error}: {reason}"))
            }
        };
        if let Err(reason) = verdict {
            let (number, node, now) = (actor.number, actor.node, actor.now_ns());
            actor.harness.judge.report_violation(format!(
                "{:?} by session {number} of node {node} to node {}, from {} to {now} ns: {reason}",
                self.id, self.request.to, self.begin_ns
            ));
        }
    }

    fn check_answer(&self, actor: &Actor, output: &[u8]) -> Result<(), String> {
        actor.harness.calls.borrow().ledger.record_answer(self.id, output.len())?;
        if output == payload::output(self.id, output.len()) {
            return Ok(());
        }
        Err("the answer differs from the one that was sent".to_owned())
    }

    fn check_refusal(&self, actor: &Actor, error: &CallError) -> Result<(), String> {
        let overdue_ns = actor.clock_ns() as i64 - self.deadline_ns as i64;
        let context = FailureContext {
            now_ns: actor.now_ns(),
            overdue_ns,
            is_fault_free: actor.harness.is_fault_free(),
            read_ns_max: actor.harness.read_ns_max(),
        };
        actor.harness.calls.borrow_mut().ledger.record_failure(self.id, error, context)
    }
}

/// Waits until a call with the deadline `deadline_ns`, by the clock of the caller's host, must have ended. A stopped
/// host gets more time.
async fn wait_until_overdue(harness: Rc<Harness>, node: u32, deadline_ns: u64) {
    let clock = harness.world.clock(harness.host(node));
    clock.sleep_until(deadline_ns).await;
    loop {
        let woken_ns = clock.now_ns();
        clock.sleep_until(woken_ns + SLACK_NS).await;
        if clock.now_ns() <= woken_ns + 2 * SLACK_NS {
            return;
        }
    }
}

fn random_request(actor: &mut Actor) -> Request {
    let kind = [Kind::Open, Kind::Closed, Kind::Narrow, Kind::Absent];
    let kind = kind[pick(&mut actor.random, &[12, 2, 3, 1])];
    let task = Task::ALL[pick(&mut actor.random, &[20, 4, 1, 1])];
    let output_bytes = random_len(actor);
    Request {
        from: actor.node,
        session: (actor.incarnation, actor.number),
        to: actor.random.below(actor.harness.nodes().into()) as u32,
        kind,
        principal: PRINCIPALS[actor.principal],
        is_allowed: is_allowed(kind, actor.principal),
        task,
        input_bytes: random_len(actor).max(payload::INPUT_BYTES_MIN as u32),
        output_bytes,
        answer_bytes_max: UNLIMITED_ANSWER_BYTES,
    }
}

/// Returns a length that fits into a usual slot, into a quarter of a ring, or into neither.
fn random_len(actor: &mut Actor) -> u32 {
    let max = [0, 64, 1000, 4096, 20_000, 100 << 10][pick(&mut actor.random, &[1, 20, 8, 6, 2, 1])];
    actor.random.between(0, max) as u32
}

fn random_timeout(actor: &mut Actor) -> Duration {
    // Some timeouts are too short for any answer.
    let us_max = if actor.random.chance(1, 8) { 10 } else { TIMEOUT_US_MAX };
    Duration::from_nanos(actor.random.between(1, us_max * 1000))
}

async fn call(actor: &mut Actor) {
    let (request, timeout) = (random_request(actor), random_timeout(actor));
    let attempt = Attempt::begin(actor, request, timeout);
    let (input, session) = (attempt.input(), actor.session.clone());
    let called = session.call(NodeId(request.to), function_of(request.kind), &input, timeout);
    let result = attempt.await_end(actor, "call", called).await;
    attempt.check_end(actor, result);
}

async fn call_into(actor: &mut Actor) {
    let request = random_request(actor);
    let answer_bytes_max = random_answer_bytes_max(actor, request.output_bytes);
    let (request, timeout) = (Request { answer_bytes_max, ..request }, random_timeout(actor));
    let attempt = Attempt::begin(actor, request, timeout);
    let (input, session) = (attempt.input(), actor.session.clone());
    let mut output = vec![0; answer_bytes_max as usize];
    let called =
        session.call_into(NodeId(request.to), function_of(request.kind), &input, &mut output, timeout);
    let result = attempt.await_end(actor, "call into", called).await;
    attempt.check_end(
        actor,
        result.map(|result| {
            result.map(|len| {
                output.truncate(len);
                output
            })
        }),
    );
}

/// Returns a limit for an answer of that length, which is sometimes too small.
fn random_answer_bytes_max(actor: &mut Actor, output_bytes: u32) -> u64 {
    let output_bytes = u64::from(output_bytes);
    if actor.random.chance(1, 8) {
        actor.random.between(0, output_bytes)
    } else {
        output_bytes + actor.random.below(100)
    }
}

async fn post_calls(actor: &mut Actor) {
    let session = actor.session.clone();
    let mut posted: Vec<(Attempt, PendingCall)> = Vec::new();
    let max = actor.harness.plan.work.calls_posted_max;
    for _ in 0..actor.random.between(2, max.into()) {
        let request = random_request(actor);
        let answer_bytes_max = random_answer_bytes_max(actor, request.output_bytes);
        let (request, timeout) = (Request { answer_bytes_max, ..request }, random_timeout(actor));
        let attempt = Attempt::begin(actor, request, timeout);
        let input = attempt.input();
        let (to, function) = (NodeId(request.to), function_of(request.kind));
        let posting = session.post_call(to, function, &input, answer_bytes_max as usize, timeout);
        match attempt.await_end(actor, "post a call", posting).await {
            Some(Ok(pending)) => posted.push((attempt, pending)),
            Some(Err(failure)) => attempt.check_end(actor, Some(Err(failure))),
            None => {}
        }
    }
    await_all(actor, posted).await;
}

/// Posts calls of one function together. They share the node, the limit of answers and the timeout.
async fn post_batch(actor: &mut Actor) {
    let session = actor.session.clone();
    let first = random_request(actor);
    let (answer_bytes_max, timeout) =
        (random_answer_bytes_max(actor, first.output_bytes), random_timeout(actor));
    let max = actor.harness.plan.work.calls_posted_max;
    let attempts: Vec<_> = (0..actor.random.between(2, max.into()))
        .map(|_| {
            let Request { task, input_bytes, output_bytes, .. } = random_request(actor);
            Attempt::begin(
                actor,
                Request { task, input_bytes, output_bytes, answer_bytes_max, ..first },
                timeout,
            )
        })
        .collect();
    let inputs: Vec<_> = attempts.iter().map(Attempt::input).collect();
    let (to, function) = (NodeId(first.to), function_of(first.kind));
    let posting =
        async { Ok(session.post_calls(to, function, &inputs, answer_bytes_max as usize, timeout).await) };
    let posted = match attempts[0].await_end(actor, "post a batch of calls", posting).await {
        Some(Ok(posted)) => posted,
        Some(Err(failure)) => return attempts[0].check_end(actor, Some(Err(failure))),
        None => return,
    };
    let missing = attempts.len() - posted.len();
    actor.harness.judge.expect(missing == 0, || format!("{missing} calls of a batch have no result"));
    let mut pending = Vec::new();
    for (attempt, posted) in attempts.into_iter().zip(posted) {
        match posted {
            Ok(posted) => pending.push((attempt, posted)),
            Err(error) => attempt.check_end(actor, Some(Err(Failure::Refused(error)))),
        }
    }
    await_all(actor, pending).await;
}

/// Awaits calls in any order, and cancels some of them.
async fn await_all(actor: &mut Actor, mut posted: Vec<(Attempt, PendingCall)>) {
    while !posted.is_empty() {
        let (attempt, pending) = posted.swap_remove(actor.random.index(posted.len()));
        if actor.random.chance(1, 8) {
            drop(pending);
        } else {
            let result = attempt.await_end(actor, "await a posted call", pending.answer()).await;
            attempt.check_end(actor, result);
        }
    }
}

/// Calls all nodes with the same input; in a large cluster, some nodes from the caller's own on. The input holds the
/// number of the first call, from which each handler derives the number of its call.
async fn call_many(actor: &mut Actor) {
    let (request, timeout) = (random_request(actor), random_timeout(actor));
    let all = actor.harness.nodes();
    let first = actor.node.min(all.saturating_sub(CALL_MANY_NODES_MAX));
    let nodes: Vec<NodeId> = (first..all).take(CALL_MANY_NODES_MAX as usize).map(NodeId).collect();
    let mut attempts = Vec::new();
    for node in &nodes {
        attempts.push(Attempt::begin(actor, Request { to: node.0, ..request }, timeout));
    }
    let input = payload::input_to_many(attempts[0].id, first, request.input_bytes as usize);
    let session = actor.session.clone();
    let called = async { Ok(session.call_many(&nodes, function_of(request.kind), &input, timeout).await) };
    match attempts[0].await_end(actor, "call many", called).await {
        Some(Ok(results)) => {
            for (attempt, result) in attempts.iter().zip(results) {
                attempt.check_end(actor, Some(result.map_err(Failure::Refused)));
            }
        }
        Some(Err(failure)) => attempts[0].check_end(actor, Some(Err(failure))),
        None => {}
    }
}
