//! Deferred acknowledgements of changes: each waits until no local access that uses the old state is in flight. An
//! acknowledgement first waits for a grace period, then for the memory operations issued before the end of that period.

use std::collections::BTreeMap;

use super::context::Outbox;
use super::{Engine, Requester};
use crate::effect::{Effect, OpId, Outcome, Quiesce, Token};
use crate::ids::{NodeIncarnation, RegionId};

/// All deferred acknowledgements.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    /// Requesters to acknowledge after each grace period.
    owed: BTreeMap<Token, Vec<Requester>>,
    /// Unmappings to announce and finish after each grace period.
    unmapping: BTreeMap<Token, Unmapping>,
    /// Acknowledgements that wait for all memory operations up to the given one.
    held: Vec<(OpId, DeferredAck)>,
}

/// A handle that is being unmapped.
#[derive(Debug)]
pub(super) struct Unmapping {
    /// The region and its home, if this was the last handle to the region.
    pub(super) last_of: Option<(RegionId, NodeIncarnation)>,
    /// The command to finish, if any.
    pub(super) op: Option<OpId>,
}

impl Unmapping {
    /// Describes the unmapping of all handles to a region that no command requested.
    pub(super) fn without_command(region: RegionId, home: NodeIncarnation) -> Unmapping {
        Unmapping { last_of: Some((region, home)), op: None }
    }
}

/// A deferred acknowledgement.
#[derive(Debug)]
enum DeferredAck {
    Answer(Requester),
    Unmapped(Unmapping),
    /// The end of a pairing on this side, which sends no message.
    Parted(Token),
}

impl DeferredAck {
    /// Returns true if the acknowledgement also waits for memory operations whose replies are lost. The end of a
    /// pairing does not: the node that executes them finishes them before it pairs again.
    fn awaits_lost_replies(&self) -> bool {
        !matches!(self, DeferredAck::Parted(_))
    }
}

impl Deferred {
    /// Acknowledges a change to `requester` after a grace period.
    pub(super) fn owe(&mut self, out: &mut Outbox, quiesce: Quiesce, requester: Requester) {
        self.owed.entry(quiesce.token).or_default().push(requester);
        out.push(Effect::Quiesce(quiesce));
    }

    /// Finishes the unmapping of a handle after a grace period.
    pub(super) fn announce(&mut self, out: &mut Outbox, quiesce: Quiesce, unmapping: Unmapping) {
        self.unmapping.insert(quiesce.token, unmapping);
        out.push(Effect::Quiesce(quiesce));
    }
}

impl Engine {
    /// Handles the end of a grace period.
    pub(super) fn handle_grace_period_over(&mut self, token: Token) {
        if self.membership.pairings().awaits(token) {
            self.complete_after_copies(DeferredAck::Parted(token));
        }
        for requester in self.deferred.owed.remove(&token).unwrap_or_default() {
            self.complete_after_copies(DeferredAck::Answer(requester));
        }
        self.session_side().unlock_abandoned(token);
        if let Some(unmapping) = self.deferred.unmapping.remove(&token) {
            self.complete_after_copies(DeferredAck::Unmapped(unmapping));
        }
    }

    /// Completes an acknowledgement once all memory operations issued so far have ended.
    fn complete_after_copies(&mut self, due: DeferredAck) {
        match self.commands.last_copy(due.awaits_lost_replies()) {
            Some(last) => self.deferred.held.push((last, due)),
            None => self.complete_ack(due),
        }
    }

    /// Completes acknowledgements whose memory operations have ended.
    pub(super) fn complete_deferred(&mut self) {
        for (upto, due) in std::mem::take(&mut self.deferred.held) {
            match self.commands.has_copies_upto(upto, due.awaits_lost_replies()) {
                true => self.deferred.held.push((upto, due)),
                false => self.complete_ack(due),
            }
        }
    }

    fn complete_ack(&mut self, due: DeferredAck) {
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
