//! Plans of faults.

use crate::Status;
use crate::kind::OperationKind;

/// Rules, and the number of requests that each has struck.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    rules: Vec<(Rule, u64)>,
}

/// The fate of a posted request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Its completion is delivered this many polls late. Later events of the same peer wait behind it.
    Delay {
        /// Number of polls.
        polls: u64,
    },
    /// The request fails without being executed.
    Fail {
        /// Status of the completion; not success.
        status: Status,
    },
    /// The post is refused with [`crate::PostCause::QueueFull`].
    QueueFull,
}

/// A fault, and the kind of requests that it strikes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    kind: OperationKind,
    fault: Fault,
    times_max: u64,
}

impl Rule {
    /// Makes a rule: `fault` strikes every request of this kind.
    pub fn new(kind: OperationKind, fault: Fault) -> Rule {
        Rule { kind, fault, times_max: u64::MAX }
    }

    /// Limits the rule to the first `n` requests.
    pub fn times(self, n: u64) -> Rule {
        Rule { times_max: n, ..self }
    }
}

impl FaultPlan {
    /// Adds a rule; if several apply, the first one added does.
    pub fn rule(mut self, rule: Rule) -> FaultPlan {
        self.rules.push((rule, 0));
        self
    }

    /// Returns the fault of a request that is posted now, if any.
    pub(super) fn draw(&mut self, kind: OperationKind) -> Option<Fault> {
        let mut rules = self.rules.iter_mut();
        let (rule, struck) = rules.find(|(rule, struck)| rule.kind == kind && *struck < rule.times_max)?;
        *struck += 1;
        Some(rule.fault)
    }
}
