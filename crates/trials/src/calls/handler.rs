//! Handlers: each node serves the same functions, each by a few tasks. The input of a call selects how it is handled.

use std::rc::Rc;
use std::time::Duration;

use halite::{Call, Driven, Function, ReplyCause, ReplyError, ServeOptions, Server};
use halite_sim::{HostId, Random};

use super::ledger::{CallId, Kind, Task, Wish};
use super::{TIMEOUT_US_MAX, in_batches, payload};
use crate::giving_up;
use crate::harness::{Harness, PRINCIPALS};

/// The principal that serves the functions.
const OWNER: usize = 0;
/// The other principal that may call the closed function.
const GUEST: usize = 1;
/// Number of tasks per function.
const TASKS: u32 = 2;
/// Queue limit of the narrow function.
const NARROW: usize = 2;
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
        Kind::Narrow => ServeOptions { requests_max: NARROW, ..options },
        Kind::Open | Kind::Absent => options,
    }
}

/// Serves all functions on a node that has just joined.
pub(super) fn serve(harness: &Rc<Harness>, node: u32, driven: &Driven) {
    let session = driven.session_of(PRINCIPALS[OWNER]).expect("the principal's name is valid");
    for kind in [Kind::Open, Kind::Closed, Kind::Narrow] {
        let server = match session.serve(function_of(kind), options_of(kind)) {
            Ok(server) => server,
            Err(error) => return harness.judge.violated(format!("node {node} cannot serve: {error}")),
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
            harness.world.spawn(Some(handler.host), name, handler.work());
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
    async fn work(mut self) {
        let (world, server) = (self.harness.world.clone(), self.server.clone());
        let per_mille = self.harness.plan.work.given_up_per_mille;
        loop {
            let max = if in_batches(&mut self.random, &self.harness.plan) { BATCH_MAX } else { 1 };
            let receiving = server.recv_many(max);
            let received = giving_up::or_cancel(&world, self.host, &mut self.random, per_mille, receiving);
            match received.await {
                Some(Ok(calls)) => self.handle(calls).await,
                Some(Err(_)) => return,
                // The wait was cancelled; a call that was about to be received stays queued.
                None => {}
            }
        }
    }

    /// Answers, together, calls that were received together.
    async fn handle(&mut self, calls: Vec<Call>) {
        let (mut answers, mut kept, mut is_late) = (Vec::new(), Vec::new(), false);
        for call in calls {
            match self.identify(&call) {
                Ok((_, Wish { task: Task::GiveUp, .. })) => drop(call),
                Ok((_, Wish { task: Task::Keep, .. })) => kept.push(call),
                Ok((id, wish)) => {
                    is_late |= wish.task == Task::AnswerLate;
                    answers.push((call, id, wish));
                }
                Err(why) => {
                    let (kind, node) = (self.kind, self.node);
                    self.harness.judge.violated(format!("{kind:?} at node {node} got a call: {why}"));
                }
            }
        }
        if is_late {
            self.pass(TIMEOUT_US_MAX).await;
        }
        self.answer(answers);
        if !kept.is_empty() {
            self.pass(2 * TIMEOUT_US_MAX).await;
        }
    }

    async fn pass(&mut self, us_max: u64) {
        let long = Duration::from_nanos(self.random.below(us_max * 1000));
        self.harness.world.sleep(Some(self.host), long).await;
    }

    /// Identifies a call and checks its input; returns the reason if the input is damaged.
    fn identify(&self, call: &Call) -> Result<(CallId, Wish), String> {
        let input = call.input();
        let id = payload::id_of(input, self.node)
            .ok_or_else(|| format!("{} bytes are not an input", input.len()))?;
        let from = (call.node().0, call.caller());
        let mut ledger = self.harness.calls.borrow_mut();
        let wish = ledger.ledger.execute(id, self.node, self.kind, from);
        let wish = wish.map_err(|why| format!("{id:?} by {from:?}: {why}"))?;
        if !payload::is_input(input, wish.input_bytes as usize) {
            return Err(format!("{id:?}: its {} bytes differ from those that were sent", input.len()));
        }
        Ok((id, wish))
    }

    fn answer(&self, calls: Vec<(Call, CallId, Wish)>) {
        let wishes: Vec<_> = calls.iter().map(|(_, id, wish)| (*id, *wish)).collect();
        let answers = (calls.into_iter())
            .map(|(call, id, wish)| (call, payload::output(id, wish.output_bytes as usize)));
        let results = match answers.len() {
            1 => answers.map(|(call, output)| call.reply(&output)).collect(),
            _ => self.server.reply_all(answers),
        };
        self.harness.judge.expect(results.len() == wishes.len(), || format!("answers: {results:?}"));
        for ((id, wish), result) in wishes.into_iter().zip(results) {
            self.check_reply(id, wish, result);
        }
    }

    fn check_reply(&self, id: CallId, wish: Wish, result: Result<(), ReplyError>) {
        let Err(error) = result else {
            return self.harness.calls.borrow_mut().ledger.replied(id, self.harness.world.now_ns());
        };
        let is_right = match error.cause {
            ReplyCause::CallerGone => true,
            ReplyCause::TooLong { max } => max == wish.room && u64::from(wish.output_bytes) > max,
            _ => false,
        };
        self.harness.judge.expect(is_right, || format!("{id:?}, {wish:?}: {error}, without a known cause"));
    }
}
