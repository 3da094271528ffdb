//! Handlers: each node serves the same functions, each by a few tasks. The input of a call selects how it is handled.

use std::rc::Rc;
use std::time::Duration;

use halite::{Call, Driven, Function, ReplyCause, ReplyError, ServeOptions, Server};
use halite_sim::{HostId, Random};

use super::ledger::{CallId, Kind, Request, Task};
use super::{TIMEOUT_US_MAX, payload, uses_batches};
use crate::futures;
use crate::harness::{Harness, PRINCIPALS};

/// The principal that serves the functions.
const OWNER: usize = 0;
/// The other principal that may call the function [`Kind::Closed`].
const GUEST: usize = 1;
/// Number of tasks per function.
const TASKS: u32 = 2;
/// Maximum queue length of the function [`Kind::Narrow`].
const NARROW_QUEUE_MAX: usize = 2;
/// Maximum number of calls that are received together.
const BATCH_MAX: usize = 8;

pub(super) fn function_of(kind: Kind) -> Function {
    Function(1 + kind as u32)
}

/// Returns true if a principal, by index, may call a function of that kind.
pub(super) fn is_allowed(kind: Kind, principal: usize) -> bool {
    kind != Kind::Closed || principal == OWNER || principal == GUEST
}

fn options_of(kind: Kind) -> ServeOptions {
    let options = ServeOptions::default();
    match kind {
        Kind::Closed => ServeOptions { callers: Some(vec![PRINCIPALS[GUEST].to_owned()]), ..options },
        Kind::Narrow => ServeOptions { requests_max: NARROW_QUEUE_MAX, ..options },
        Kind::Open | Kind::Absent => options,
    }
}

/// Serves all functions on a node that has just joined.
pub(crate) fn serve(harness: &Rc<Harness>, node: u32, driven: &Driven) {
    let session = driven.session_of(PRINCIPALS[OWNER]).expect("the principal's name is valid");
    for kind in [Kind::Open, Kind::Closed, Kind::Narrow] {
        let server = match session.serve(function_of(kind), options_of(kind)) {
            Ok(server) => server,
            Err(error) => {
                return harness.judge.report_violation(format!("node {node} cannot serve: {error}"));
            }
        };
        for number in 0..TASKS {
            let name = format!("handler {number} of {kind:?} at node {node}");
            let handler = Handler {
                harness: harness.clone(),
                host: harness.host(node),
                node,
                kind,
                random: harness.world.random(&format!("{name} in life {}", harness.incarnation(node))),
                server: server.clone(),
            };
            harness.world.spawn(Some(handler.host), name, handler.run());
        }
    }
}

struct Handler {
    harness: Rc<Harness>,
    host: HostId,
    node: u32,
    kind: Kind,
    random: Random,
    server: Server,
}

impl Handler {
    async fn run(mut self) {
        let (world, server) = (self.harness.world.clone(), self.server.clone());
        let per_mille = self.harness.plan.work.given_up_per_mille;
        loop {
            let max = if uses_batches(&mut self.random, &self.harness.plan) { BATCH_MAX } else { 1 };
            let receiving = server.recv_many(max);
            let received = futures::run_or_cancel(&world, self.host, &mut self.random, per_mille, receiving);
            match received.await {
                Some(Ok(calls)) => self.handle(calls).await,
                Some(Err(_)) => return,
                // The wait was cancelled; a call that was about to be received stays queued.
                None => {}
            }
        }
    }

    /// Handles calls that were received together. Answers those that need an answer together.
    async fn handle(&mut self, calls: Vec<Call>) {
        let (mut answers, mut kept, mut is_late) = (Vec::new(), Vec::new(), false);
        for call in calls {
            match self.identify(&call) {
                Ok((_, Request { task: Task::Drop, .. })) => drop(call),
                Ok((_, Request { task: Task::Keep, .. })) => kept.push(call),
                Ok((id, request)) => {
                    is_late |= request.task == Task::AnswerLate;
                    answers.push((call, id, request));
                }
                Err(reason) => {
                    let (kind, node) = (self.kind, self.node);
                    self.harness
                        .judge
                        .report_violation(format!("{kind:?} at node {node} got a call: {reason}"));
                }
            }
        }
        if is_late {
            self.sleep_up_to(TIMEOUT_US_MAX).await;
        }
        self.answer(answers);
        if !kept.is_empty() {
            self.sleep_up_to(2 * TIMEOUT_US_MAX).await;
        }
    }

    async fn sleep_up_to(&mut self, us_max: u64) {
        let duration = Duration::from_nanos(self.random.below(us_max * 1000));
        self.harness.world.sleep(Some(self.host), duration).await;
    }

    /// Identifies a call and checks its input; returns the reason if the input is damaged.
    fn identify(&self, call: &Call) -> Result<(CallId, Request), String> {
        let input = call.input();
        let id = payload::id_of(input, self.node)
            .ok_or_else(|| format!("{} bytes are not an input", input.len()))?;
        let from = (call.node().0, call.caller());
        let mut ledger = self.harness.calls.borrow_mut();
        let request = ledger.ledger.record_execution(id, self.node, self.kind, from);
        let request = request.map_err(|reason| format!("{id:?} by {from:?}: {reason}"))?;
        if !payload::is_input(input, request.input_bytes as usize) {
            return Err(format!("{id:?}: its {} bytes differ from those that were sent", input.len()));
        }
        Ok((id, request))
    }

    fn answer(&self, calls: Vec<(Call, CallId, Request)>) {
        let requests: Vec<_> = calls.iter().map(|(_, id, request)| (*id, *request)).collect();
        let answers = (calls.into_iter())
            .map(|(call, id, request)| (call, payload::output(id, request.output_bytes as usize)));
        let results = match answers.len() {
            1 => answers.map(|(call, output)| call.reply(&output)).collect(),
            _ => self.server.reply_all(answers),
        };
        self.harness.judge.expect(results.len() == requests.len(), || format!("answers: {results:?}"));
        for ((id, request), result) in requests.into_iter().zip(results) {
            self.check_reply(id, request, result);
        }
    }

    fn check_reply(&self, id: CallId, request: Request, result: Result<(), ReplyError>) {
        let Err(error) = result else {
            return self.harness.calls.borrow_mut().ledger.record_reply(id, self.harness.world.now_ns());
        };
        let is_right = match error.cause {
            ReplyCause::CallerGone => true,
            ReplyCause::TooLong { max } => {
                max == request.answer_bytes_max && u64::from(request.output_bytes) > max
            }
            _ => false,
        };
        self.harness
            .judge
            .expect(is_right, || format!("{id:?}, {request:?}: {error}, without a known cause"));
    }
}
