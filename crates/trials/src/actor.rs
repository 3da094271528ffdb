//! Actors: sessions that execute operations one after the other. Weights of the plan choose the kind of each operation,
//! and `run_operation` of the kind's module executes it.

use std::fmt::Display;
use std::rc::Rc;
use std::time::Duration;

use halite::{Driven, Priority, Session};
use halite_sim::{HostId, Random};

use crate::futures;
use crate::harness::{Harness, PRINCIPALS};
use crate::judge::End;
use crate::{apart, barriers, calls, kv, locks, log, messages, regions, rights, watches, words};

pub(crate) struct Actor {
    pub(crate) harness: Rc<Harness>,
    pub(crate) node: u32,
    pub(crate) host: HostId,
    /// Incarnation of the session's node.
    pub(crate) incarnation: u32,
    /// Number of the session on its node.
    pub(crate) number: u32,
    /// Index of the session's principal in [`PRINCIPALS`].
    pub(crate) principal: usize,
    pub(crate) session: Session,
    pub(crate) random: Random,
    pub(crate) regions: regions::Mappings,
    pub(crate) locks: locks::HeldLocks,
    pub(crate) words: words::Mappings,
    pub(crate) watches: watches::Mappings,
    pub(crate) log: log::OpenLogs,
    pub(crate) kv: kv::OpenStores,
}

/// Starts the sessions of a node that has just joined.
pub(crate) fn start_all(harness: &Rc<Harness>, node: u32, driven: &Driven) {
    calls::serve(harness, node, driven);
    messages::serve(harness, node, driven);
    watches::serve(harness, node, driven);
    kv::serve(harness, node, driven);
    for number in 0..harness.plan.sessions {
        let actor = Actor::new(harness, node, number, driven);
        let name = format!("session {number} of node {node}");
        harness.world.spawn(Some(actor.host), name, actor.run());
    }
}

impl Actor {
    /// Creates a session of a node that has just joined.
    pub(crate) fn new(harness: &Rc<Harness>, node: u32, number: u32, driven: &Driven) -> Actor {
        let principal = principal_of(node, number);
        let mut session = driven.session_of(PRINCIPALS[principal]).expect("the principal's name is valid");
        if harness.plan.qos.is_some() && number % 2 == 1 {
            session = session.with_priority(Priority::Low).expect("no principal is limited");
        }
        let purpose = format!("session {number} of node {node} in life {}", harness.incarnation(node));
        Actor {
            host: harness.host(node),
            random: harness.world.random(&purpose),
            harness: harness.clone(),
            regions: regions::Mappings::default(),
            locks: locks::HeldLocks::default(),
            words: words::Mappings::default(),
            watches: watches::Mappings::default(),
            log: log::OpenLogs::default(),
            kv: kv::OpenStores::default(),
            incarnation: harness.incarnation(node),
            node,
            number,
            principal,
            session,
        }
    }

    async fn run(mut self) {
        let harness = self.harness.clone();
        let _working = harness.count_working();
        let _guard = locks::SessionGuard::of(&self);
        harness.wait_for_start().await;
        while harness.sessions_continue() {
            let work = &harness.plan.work;
            match pick(&mut self.random, &work.weights()) {
                0 => regions::run_operation(&mut self).await,
                1 => words::run_operation(&mut self).await,
                2 => calls::run_operation(&mut self).await,
                3 => messages::run_operation(&mut self).await,
                4 => locks::run_operation(&mut self).await,
                5 => barriers::run_operation(&mut self).await,
                6 => watches::run_operation(&mut self).await,
                7 => rights::run_operation(&mut self).await,
                8 => apart::run_operation(&mut self).await,
                9 => log::run_operation(&mut self).await,
                10 => kv::run_operation(&mut self).await,
                _ => messages::publish(&mut self).await,
            }
            let think = self.random.below(work.think_us_max.max(1) * 1000);
            harness.world.sleep(Some(self.host), Duration::from_nanos(think)).await;
        }
        log::finish(&mut self).await;
        locks::finish(&mut self).await;
        words::finish(&mut self).await;
        regions::finish(&mut self).await;
    }

    /// Returns the judge's time, in ns.
    pub(crate) fn now_ns(&self) -> u64 {
        self.harness.world.now_ns()
    }

    /// Records in the trace which region the next operation accesses. A *life* is one region from its allocation to its
    /// end; `life` is its number.
    pub(crate) fn trace_life(&self, life: usize) {
        self.trace(format_args!("concerns life {life}"));
    }

    /// Records a fact about the next operation in the trace.
    pub(crate) fn trace(&self, what: std::fmt::Arguments<'_>) {
        self.harness.world.note(Some(self.host), format_args!("session {} {what}", self.number));
    }

    /// Reports a violation by this session if `condition` is false. The session's operation began at `begin_ns`.
    pub(crate) fn expect(&self, condition: bool, begin_ns: u64, otherwise: impl Display) {
        self.harness.judge.expect(condition, || {
            let (number, node, now) = (self.number, self.node, self.now_ns());
            format!("session {number} of node {node}, from {begin_ns} to {now} ns: {otherwise}")
        });
    }

    /// Reports a violation by this session if `has_reason` is false, which means that no known fault explains `error`.
    pub(crate) fn expect_reason(&self, has_reason: bool, begin_ns: u64, error: &impl Display) {
        self.expect(has_reason, begin_ns, format_args!("{error}, without a known cause"));
    }

    /// Returns the time of the host's clock, in ns.
    pub(crate) fn clock_ns(&self) -> u64 {
        self.harness.world.clock(self.host).now_ns()
    }

    /// Executes an operation, or cancels it midway with the plan's probability.
    pub(crate) async fn attempt<T, E: Display>(
        &mut self,
        operation: &'static str,
        future: impl Future<Output = Result<T, E>>,
    ) -> Option<Result<T, E>> {
        let (begin_ns, number) = (self.now_ns(), self.number);
        self.trace(format_args!("begins to {operation}"));
        let per_mille = self.harness.plan.work.given_up_per_mille;
        let harness = self.harness.clone();
        let result =
            futures::run_or_cancel(&harness.world, self.host, &mut self.random, per_mille, Box::pin(future))
                .await;
        let end = match &result {
            Some(Ok(_)) => End::Ok,
            Some(Err(_)) => End::Failed,
            None => End::Cancelled,
        };
        match &result {
            Some(Err(error)) => {
                harness.world.note(Some(self.host), format_args!("session {number}: {error}"))
            }
            _ => self.trace(format_args!("ends to {operation}: {end:?}")),
        }
        harness.world.fold(u64::from(number) << 2 | end as u64);
        harness.judge.record_result(operation, end, self.now_ns() - begin_ns);
        result
    }
}

/// Returns the principal of a session, as an index of [`PRINCIPALS`].
pub(crate) fn principal_of(node: u32, session: u32) -> usize {
    (node + session) as usize % PRINCIPALS.len()
}

/// Draws an index by weight.
pub(crate) fn pick(random: &mut Random, weights: &[u32]) -> usize {
    let all: u32 = weights.iter().sum();
    let mut drawn = random.below(all.into()) as u32;
    weights
        .iter()
        .position(|weight| match drawn.checked_sub(*weight) {
            Some(rest) => {
                drawn = rest;
                false
            }
            None => true,
        })
        .expect("the drawn number is below the sum")
}
