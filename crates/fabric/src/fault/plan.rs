//! Plans of the faults that a fault injector causes.

use crate::Status;
use crate::kind::OperationKind;

/// The rules of a fault injector, and the number of requests that each rule has affected.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    rules: Vec<(Rule, u64)>,
}

/// The fault that a posted request suffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The injector delivers the completion `polls` polls late. Later events of the same peer wait for this completion.
    Delay {
        /// Number of polls by which the completion is late.
        polls: u64,
    },
    /// The request fails, and the fabric does not execute it.
    Fail {
        /// Status of the completion, other than success.
        status: Status,
    },
    /// The injector refuses the post with [`crate::PostCause::QueueFull`].
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
    /// Adds a rule. If several rules apply to a request, the rule that was added first takes effect.
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
