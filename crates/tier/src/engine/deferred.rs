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
    requesters: BTreeMap<Token, Vec<Requester>>,
    /// Unmappings to announce and finish after each grace period.
    unmapping: BTreeMap<Token, Unmapping>,
    /// Acknowledgements that wait for all memory operations up to the given one.
    waiting: Vec<(OpId, DeferredAck)>,
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
    PairingEnd(Token),
}

impl DeferredAck {
    /// Returns true if the acknowledgement also waits for memory operations whose replies are lost. The end of a
    /// pairing does not: the node that executes them finishes them before it pairs again.
    fn awaits_lost_replies(&self) -> bool {
        !matches!(self, DeferredAck::PairingEnd(_))
    }
}

impl Deferred {
    /// Acknowledges a change to `requester` after a grace period.
    pub(super) fn acknowledge_later(&mut self, out: &mut Outbox, quiesce: Quiesce, requester: Requester) {
        self.requesters.entry(quiesce.token).or_default().push(requester);
        out.push(Effect::Quiesce(quiesce));
    }

    /// Finishes the unmapping of a handle after a grace period.
    pub(super) fn finish_unmapping_later(
        &mut self,
        out: &mut Outbox,
        quiesce: Quiesce,
        unmapping: Unmapping,
    ) {
        self.unmapping.insert(quiesce.token, unmapping);
        out.push(Effect::Quiesce(quiesce));
    }
}

impl Engine {
    /// Handles the end of a grace period.
    pub(super) fn handle_grace_period_over(&mut self, token: Token) {
        if self.membership.pairings().awaits(token) {
            self.complete_after_copies(DeferredAck::PairingEnd(token));
        }
        for requester in self.deferred.requesters.remove(&token).unwrap_or_default() {
            self.complete_after_copies(DeferredAck::Answer(requester));
        }
        self.session_side().unlock_abandoned(token);
        if let Some(unmapping) = self.deferred.unmapping.remove(&token) {
            self.complete_after_copies(DeferredAck::Unmapped(unmapping));
        }
    }

    /// Completes an acknowledgement once all memory operations issued so far have ended.
    fn complete_after_copies(&mut self, ack: DeferredAck) {
        match self.commands.last_copy(ack.awaits_lost_replies()) {
            Some(last) => self.deferred.waiting.push((last, ack)),
            None => self.complete_ack(ack),
        }
    }

    /// Completes acknowledgements whose memory operations have ended.
    pub(super) fn complete_deferred(&mut self) {
        for (upto, ack) in std::mem::take(&mut self.deferred.waiting) {
            match self.commands.has_copies_upto(upto, ack.awaits_lost_replies()) {
                true => self.deferred.waiting.push((upto, ack)),
                false => self.complete_ack(ack),
            }
        }
    }

    fn complete_ack(&mut self, ack: DeferredAck) {
        match ack {
            DeferredAck::Answer(requester) => self.cx().acknowledge(requester),
            DeferredAck::Unmapped(Unmapping { last_of, op }) => {
                if let Some((region, home)) = last_of {
                    self.session_side().announce_unmapped(region, home);
                }
                if let Some(op) = op {
                    self.cx().finish(op, Ok(Outcome::Done));
                }
            }
            DeferredAck::PairingEnd(token) => self.handle_pairing_quiescent(token),
        }
    }
}
