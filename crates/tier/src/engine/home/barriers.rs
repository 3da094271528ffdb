//! The home's side of barriers.
//!
//! The first arrival of a round sets the number of participants. A round ends when all have arrived, or times out for
//! all at the earliest deadline. The home alone decides, so all participants learn the same result.

use std::collections::BTreeMap;

use super::HomeSide;
use crate::ids::{NodeIncarnation, Principal, RegionId, Requester};
use crate::message::{ErrorReply, Reply, Request};
use crate::names::Service;

/// The barriers of this home that have waiting participants.
#[derive(Debug, Default)]
pub(in crate::engine) struct Barriers {
    /// Contains no empty rounds.
    rounds: BTreeMap<RegionId, Round>,
}

#[derive(Debug)]
struct Round {
    participants: u32,
    /// Always fewer than `participants`.
    waiting: Vec<Arrival>,
}

#[derive(Debug)]
struct Arrival {
    requester: Requester,
    principal: Principal,
    deadline_ns: u64,
}

impl Barriers {
    /// Returns the time in ns at which the next round times out, or `u64::MAX` without a round.
    pub(in crate::engine) fn deadline_ns(&self) -> u64 {
        self.rounds.values().map(Round::deadline_ns).min().unwrap_or(u64::MAX)
    }
}

impl Round {
    fn deadline_ns(&self) -> u64 {
        self.waiting.iter().map(|arrival| arrival.deadline_ns).min().unwrap_or(u64::MAX)
    }
}

impl HomeSide<'_> {
    pub(in crate::engine) fn serve_arrival(
        &mut self,
        requester: Requester,
        region: RegionId,
        principal: &Principal,
        participants: u32,
        timeout_ns: u64,
    ) {
        let words = match self.served_region(region, Service::Barrier, Some(principal)) {
            Ok(words) if participants > 0 => words,
            Ok(_) => return self.cx.answer(requester, Err(ErrorReply::Malformed)),
            Err(refusal) => return self.cx.answer(requester, Err(refusal)),
        };
        if !self.cx.is_present(requester.incarnation) {
            return;
        }
        let new = || Round { participants, waiting: Vec::new() };
        let round = self.barriers.rounds.entry(region).or_insert_with(new);
        if round.participants != participants {
            let expected = round.participants;
            return self.cx.answer(requester, Err(ErrorReply::Participants { expected }));
        }
        let deadline_ns = self.cx.now_ns().saturating_add(timeout_ns);
        round.waiting.push(Arrival { requester, principal: principal.clone(), deadline_ns });
        if round.waiting.len() == participants as usize {
            let round = words.next_round();
            self.end_round(region, &Ok(Reply::Passed { round }));
        }
    }

    /// Removes the waiting requests and returns them, to be repeated at the next home.
    pub(super) fn take_arrivals(&mut self, region: RegionId) -> Vec<(Requester, Request)> {
        let Some(Round { participants, waiting }) = self.barriers.rounds.remove(&region) else {
            return Vec::new();
        };
        let now_ns = self.cx.now_ns();
        let again = |Arrival { requester, principal, deadline_ns }| {
            let timeout_ns = deadline_ns.saturating_sub(now_ns);
            (requester, Request::Arrive { region, principal, participants, timeout_ns })
        };
        waiting.into_iter().map(again).collect()
    }

    /// Ends a round with the same reply to all participants.
    pub(super) fn end_round(&mut self, region: RegionId, body: &Result<Reply, ErrorReply>) {
        let Some(round) = self.barriers.rounds.remove(&region) else { return };
        for arrival in round.waiting {
            self.cx.answer(arrival.requester, body.clone());
        }
    }

    /// Ends the rounds whose deadlines have passed.
    pub(in crate::engine) fn break_overdue_rounds(&mut self) {
        let now_ns = self.cx.now_ns();
        let rounds = self.barriers.rounds.iter();
        let overdue: Vec<RegionId> =
            rounds.filter(|(_, round)| round.deadline_ns() <= now_ns).map(|(region, _)| *region).collect();
        for region in overdue {
            self.end_round(region, &Err(ErrorReply::Timeout));
        }
    }

    /// Removes the waiting request of a participant.
    pub(in crate::engine) fn withdraw(&mut self, region: RegionId, requester: Requester) {
        let is_selected = |of, arrival: &Arrival| of == region && arrival.requester == requester;
        if self.unpark(region, requester) || self.remove_arrivals(is_selected) {
            self.cx.out().end_serving(requester);
        }
    }

    pub(super) fn forget_arrivals_of(&mut self, incarnation: NodeIncarnation) {
        self.remove_arrivals(|_, arrival| arrival.requester.incarnation == incarnation);
    }

    /// Removes the selected arrivals. Returns true if it removed any.
    fn remove_arrivals(&mut self, is_selected: impl Fn(RegionId, &Arrival) -> bool) -> bool {
        let mut removed = false;
        self.barriers.rounds.retain(|region, round| {
            let before = round.waiting.len();
            round.waiting.retain(|arrival| !is_selected(*region, arrival));
            removed |= round.waiting.len() < before;
            !round.waiting.is_empty()
        });
        removed
    }
}
