//! What is to go wrong, and when.

use fastrand::Rng;

use crate::kind::OperationKind;
use crate::{PeerId, Status};

/// Rules, and the seed from which chance is drawn.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    rules: Vec<Counted>,
    random: Rng,
}

/// When something may go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// A request of this kind is posted.
    Post(OperationKind),
    /// A request of whatever kind is posted.
    AnyPost,
    /// A message, or the immediate of a write, has arrived.
    Arrival,
}

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The request's completion, or the arrival, is returned that many polls late.  What comes from or was
    /// posted to the same peer later waits behind it.
    Delay {
        /// How many.
        polls: u64,
    },
    /// The request fails.  Posts only.
    Fail {
        /// How.
        status: Status,
        /// Whether it is carried out all the same, as may happen when the acknowledgement is lost.
        done: bool,
    },
    /// The arrival is lost.
    Drop,
    /// The post is refused with [`crate::PostCause::QueueFull`].
    QueueFull,
    /// The connection to the peer ends instead of the post.
    Disconnect,
}

/// One thing that goes wrong.
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
    /// `fault` happens at every `moment`, unless narrowed down by the methods below.
    ///
    /// # Panics
    /// If `fault` cannot happen at that moment: only arrivals are dropped, and they are dropped or delayed only;
    /// or if a failure is to be a success.
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

    /// Only where `peer` is at the other end.
    pub fn peer(self, peer: PeerId) -> Rule {
        Rule { peer: Some(peer), ..self }
    }

    /// Only with a chance of one in `n`, at least 1.
    pub fn one_in(self, n: u64) -> Rule {
        let one_in = n.max(1);
        Rule { one_in, ..self }
    }

    /// Only after the first `n` moments have passed unharmed.
    pub fn after(self, n: u64) -> Rule {
        Rule { skip: n, ..self }
    }

    /// At most `n` times.
    pub fn times(self, n: u64) -> Rule {
        Rule { times_max: n, ..self }
    }

    fn applies(&self, moment: Moment, peer: PeerId) -> bool {
        let any_post = self.moment == Moment::AnyPost && moment != Moment::Arrival;
        (self.moment == moment || any_post) && self.peer.is_none_or(|only| only == peer)
    }
}

/// A rule, and how often it applied and struck.
#[derive(Clone, Debug)]
struct Counted {
    rule: Rule,
    applied: u64,
    struck: u64,
}

impl FaultPlan {
    /// Nothing goes wrong until rules are added.
    pub fn new(seed: u64) -> FaultPlan {
        FaultPlan { rules: Vec::new(), random: Rng::with_seed(seed) }
    }

    /// Adds a rule; where several strike, the first one added does.
    pub fn rule(mut self, rule: Rule) -> FaultPlan {
        self.rules.push(Counted { rule, applied: 0, struck: 0 });
        self
    }

    /// What goes wrong now.
    pub(super) fn draw(&mut self, moment: Moment, peer: PeerId) -> Option<Fault> {
        let mut strikes = None;
        // Every rule counts every moment, so that adding one does not shift the others.
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
