//! Plans of faults.

use fastrand::Rng;

use crate::kind::OperationKind;
use crate::{PeerId, Status};

/// Rules, and the seed of their chances.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    rules: Vec<Counted>,
    random: Rng,
}

/// When a fault may happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// When a request of this kind is posted.
    Post(OperationKind),
    /// When any request is posted.
    AnyPost,
    /// When a message, or the immediate of a write, arrives.
    Arrival,
}

/// What happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The request's completion, or the arrival, is delivered this many polls late. Later events of the same peer wait
    /// behind it.
    Delay {
        /// Number of polls.
        polls: u64,
    },
    /// The request fails. For posts only.
    Fail {
        /// Status of the completion.
        status: Status,
        /// Whether the request is carried out nevertheless, as when an acknowledgement is lost.
        done: bool,
    },
    /// The arrival is lost.
    Drop,
    /// The post is refused with [`crate::PostCause::QueueFull`].
    QueueFull,
    /// The connection to the peer ends instead of the post.
    Disconnect,
}

/// A fault, and when it happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    moment: Moment,
    fault: Fault,
    peer: Option<PeerId>,
    one_in: u64,
    skip: u64,
    times_max: u64,
}

impl Rule {
    /// Makes a rule: `fault` happens at every `moment`, unless the methods below restrict it.
    ///
    /// # Panics
    ///
    /// If `fault` cannot happen at that moment (only arrivals can be dropped, and arrivals can only be dropped or
    /// delayed), or if a failure has the status success.
    pub fn new(moment: Moment, fault: Fault) -> Rule {
        let possible = match (moment, fault) {
            (_, Fault::Delay { .. }) => true,
            (Moment::Arrival, fault) => fault == Fault::Drop,
            (_, Fault::Fail { status, .. }) => status != Status::Success,
            (_, fault) => fault != Fault::Drop,
        };
        assert!(possible, "{fault:?} cannot happen at {moment:?}");
        Rule { moment, fault, peer: None, one_in: 1, skip: 0, times_max: u64::MAX }
    }

    /// Restricts the rule to `peer`.
    pub fn peer(self, peer: PeerId) -> Rule {
        Rule { peer: Some(peer), ..self }
    }

    /// Restricts the rule to a chance of one in `n`, at least 1.
    pub fn one_in(self, n: u64) -> Rule {
        let one_in = n.max(1);
        Rule { one_in, ..self }
    }

    /// Skips the first `n` moments.
    pub fn after(self, n: u64) -> Rule {
        Rule { skip: n, ..self }
    }

    /// Limits the rule to `n` faults.
    pub fn times(self, n: u64) -> Rule {
        Rule { times_max: n, ..self }
    }

    fn applies(&self, moment: Moment, peer: PeerId) -> bool {
        let any_post = self.moment == Moment::AnyPost && moment != Moment::Arrival;
        (self.moment == moment || any_post) && self.peer.is_none_or(|only| only == peer)
    }
}

/// A rule, with its counts of moments and faults.
#[derive(Clone, Debug)]
struct Counted {
    rule: Rule,
    applied: u64,
    struck: u64,
}

impl FaultPlan {
    /// Makes a plan without rules.
    pub fn new(seed: u64) -> FaultPlan {
        FaultPlan { rules: Vec::new(), random: Rng::with_seed(seed) }
    }

    /// Adds a rule; if several apply, the first one added does.
    pub fn rule(mut self, rule: Rule) -> FaultPlan {
        self.rules.push(Counted { rule, applied: 0, struck: 0 });
        self
    }

    /// Returns the fault of this moment, if any.
    pub(super) fn draw(&mut self, moment: Moment, peer: PeerId) -> Option<Fault> {
        let mut strikes = None;
        // Every rule counts every moment, so that a new rule does not shift the others.
        for counted in &mut self.rules {
            if !counted.rule.applies(moment, peer) {
                continue;
            }
            counted.applied += 1;
            let lucky = counted.rule.one_in > 1 && self.random.u64(0..counted.rule.one_in) != 0;
            let spared =
                counted.applied <= counted.rule.skip || counted.struck >= counted.rule.times_max || lucky;
            if !spared && strikes.is_none() {
                counted.struck += 1;
                strikes = Some(counted.rule.fault);
            }
        }
        strikes
    }
}
