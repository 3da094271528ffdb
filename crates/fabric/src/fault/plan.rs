//! Plans of faults.

use crate::Status;
use crate::kind::OperationKind;

/// The rules of a fault injector, each with the number of requests that it has affected.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    rules: Vec<(Rule, u64)>,
}

/// What happens to a posted request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The completion is delivered `polls` polls late. Later events of the same peer wait until then.
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

/// A fault, and the kind of requests to which it applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    kind: OperationKind,
    fault: Fault,
    times_max: u64,
}

impl Rule {
    /// Creates a rule that applies `fault` to every request of this kind.
    pub fn new(kind: OperationKind, fault: Fault) -> Rule {
        Rule { kind, fault, times_max: u64::MAX }
    }

    /// Limits the rule to the first `n` requests of its kind.
    pub fn times(self, n: u64) -> Rule {
        Rule { times_max: n, ..self }
    }
}

impl FaultPlan {
    /// Adds a rule. If several rules apply to a request, the one added first takes effect.
    pub fn rule(mut self, rule: Rule) -> FaultPlan {
        self.rules.push((rule, 0));
        self
    }

    /// Returns the fault for a request of this kind that is being posted, if any, and counts the request.
    pub(super) fn draw(&mut self, kind: OperationKind) -> Option<Fault> {
        let mut rules = self.rules.iter_mut();
        let (rule, struck) = rules.find(|(rule, struck)| rule.kind == kind && *struck < rule.times_max)?;
        *struck += 1;
        Some(rule.fault)
    }
}
