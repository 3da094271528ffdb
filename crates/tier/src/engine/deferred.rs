//! What others hear once no access of ours under an old state is under way: first a grace period ends, then the memory operations
//! that were given until then.

use std::collections::BTreeMap;

use super::context::Outbox;
use super::{Engine, Requester};
use crate::effect::{Effect, OpId, Outcome, Quiesce, Token};
use crate::ids::{NodeIncarnation, RegionId};

/// All of it.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    /// Acknowledgements owed when a token is over.
    owed: BTreeMap<Token, Vec<Requester>>,
    /// Unmappings to announce, and to finish, when a token is over.
    unmapping: BTreeMap<Token, Unmapping>,
    /// What is said when the memory operations up to that one are over.
    held: Vec<(OpId, DeferredAck)>,
}

/// A handle that is being given up.
#[derive(Debug)]
pub(super) struct Unmapping {
    /// The region and its home, if this was the last handle of it.
    pub(super) last_of: Option<(RegionId, NodeIncarnation)>,
    /// Who waits for the end.
    pub(super) op: Option<OpId>,
}

impl Unmapping {
    /// All handles of a region are given up, and nobody waits for that.
    pub(super) fn unasked(region: RegionId, home: NodeIncarnation) -> Unmapping {
        Unmapping { last_of: Some((region, home)), op: None }
    }
}

/// What is said.
#[derive(Debug)]
enum DeferredAck {
    Answer(Requester),
    Unmapped(Unmapping),
    /// Not a word: a pairing is over on our side.
    Parted(Token),
}

impl DeferredAck {
    /// Whether it waits for commands, too, whose answers are lost.  To be paired with who carries them out, one needs not: it
    /// waits for them itself.
    fn awaits_the_unheard(&self) -> bool {
        !matches!(self, DeferredAck::Parted(_))
    }
}

impl Deferred {
    /// Asks for a grace period, at whose end `requester` gets its answer.
    pub(super) fn owe(&mut self, out: &mut Outbox, quiesce: Quiesce, requester: Requester) {
        self.owed.entry(quiesce.token).or_default().push(requester);
        out.push(Effect::Quiesce(quiesce));
    }

    /// Asks for a grace period, at whose end a handle is given up.
    pub(super) fn announce(&mut self, out: &mut Outbox, quiesce: Quiesce, unmapping: Unmapping) {
        self.unmapping.insert(quiesce.token, unmapping);
        out.push(Effect::Quiesce(quiesce));
    }
}

impl Engine {
    /// A grace period is over, as the mapper knows.
    pub(super) fn handle_grace_period_over(&mut self, token: Token) {
        if self.membership.pairings().awaits(token) {
            self.say_when_over(DeferredAck::Parted(token));
        }
        for requester in self.deferred.owed.remove(&token).unwrap_or_default() {
            self.say_when_over(DeferredAck::Answer(requester));
        }
        self.session_side().finish_abandoning(token);
        if let Some(unmapping) = self.deferred.unmapping.remove(&token) {
            self.say_when_over(DeferredAck::Unmapped(unmapping));
        }
    }

    /// Says something as soon as no command is under way that has been given already.
    fn say_when_over(&mut self, due: DeferredAck) {
        match self.commands.last_copy(due.awaits_the_unheard()) {
            Some(last) => self.deferred.held.push((last, due)),
            None => self.say_due(due),
        }
    }

    /// Commands are over.
    pub(super) fn say_what_was_held(&mut self) {
        for (upto, due) in std::mem::take(&mut self.deferred.held) {
            match self.commands.has_copies_upto(upto, due.awaits_the_unheard()) {
                true => self.deferred.held.push((upto, due)),
                false => self.say_due(due),
            }
        }
    }

    fn say_due(&mut self, due: DeferredAck) {
        match due {
            DeferredAck::Answer(requester) => self.cx().acknowledge(requester),
            DeferredAck::Unmapped(Unmapping { last_of, op }) => {
                if let Some((region, home)) = last_of {
                    self.session_side().announce_unmapped(region, home);
                }
                if let Some(op) = op {
                    self.cx().finish(op, Ok(Outcome::Done));
                }
            }
            DeferredAck::Parted(token) => self.handle_parted(token),
        }
    }
}
