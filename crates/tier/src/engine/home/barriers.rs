//! The home's side of barriers.
//!
//! The first arrival of a round sets the number of participants. A round ends when all have arrived, or times out for
//! all at the earliest deadline. The home alone decides, so all participants learn the same result.

use std::collections::{BTreeMap, BTreeSet};

use super::HomeSide;
use crate::ids::{NodeIncarnation, Principal, RegionId, Requester};
use crate::message::{ErrorReply, Reply, Request};
use crate::names::Service;

/// The barriers of this home that have waiting participants.
#[derive(Debug, Default)]
pub(in crate::engine) struct Barriers {
    /// Contains no empty rounds.
    rounds: BTreeMap<RegionId, Round>,
    /// The deadline of each round, earliest first.
    deadlines: BTreeSet<(u64, RegionId)>,
}

#[derive(Debug)]
struct Round {
    participants: u32,
    /// Always fewer than `participants`.
    waiting: Vec<Arrival>,
    /// Earliest deadline of the arrivals.
    deadline_ns: u64,
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
        self.deadlines.first().map_or(u64::MAX, |(deadline_ns, _)| *deadline_ns)
    }

    fn remove(&mut self, region: RegionId) -> Option<Round> {
        let round = self.rounds.remove(&region)?;
        self.deadlines.remove(&(round.deadline_ns, region));
        Some(round)
    }

    /// Removes the selected arrivals at one barrier. Returns true if it removed any.
    fn remove_arrivals(&mut self, region: RegionId, is_selected: impl Fn(&Arrival) -> bool) -> bool {
        let Some(mut round) = self.remove(region) else { return false };
        let before = round.waiting.len();
        round.waiting.retain(|arrival| !is_selected(arrival));
        let removed = round.waiting.len() < before;
        if let Some(deadline_ns) = round.waiting.iter().map(|arrival| arrival.deadline_ns).min() {
            self.deadlines.insert((deadline_ns, region));
            self.rounds.insert(region, Round { deadline_ns, ..round });
        }
        removed
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
        let new = || Round { participants, waiting: Vec::new(), deadline_ns: u64::MAX };
        let round = self.barriers.rounds.entry(region).or_insert_with(new);
        if round.participants != participants {
            let expected = round.participants;
            return self.cx.answer(requester, Err(ErrorReply::Participants { expected }));
        }
        let deadline_ns = self.cx.now_ns().saturating_add(timeout_ns);
        round.waiting.push(Arrival { requester, principal: principal.clone(), deadline_ns });
        if deadline_ns < round.deadline_ns {
            self.barriers.deadlines.remove(&(round.deadline_ns, region));
            self.barriers.deadlines.insert((deadline_ns, region));
            round.deadline_ns = deadline_ns;
        }
        if round.waiting.len() == participants as usize {
            let round = words.next_round();
            self.end_round(region, &Ok(Reply::Passed { round }));
        }
    }

    /// Removes the waiting requests and returns them, to be repeated at the next home.
    pub(super) fn take_arrivals(&mut self, region: RegionId) -> Vec<(Requester, Request)> {
        let Some(Round { participants, waiting, .. }) = self.barriers.remove(region) else {
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
        let Some(round) = self.barriers.remove(region) else { return };
        for arrival in round.waiting {
            self.cx.answer(arrival.requester, body.clone());
        }
    }

    /// Ends the rounds whose deadlines have passed.
    pub(in crate::engine) fn break_overdue_rounds(&mut self) {
        let now_ns = self.cx.now_ns();
        while let Some((deadline_ns, region)) = self.barriers.deadlines.first().copied()
            && deadline_ns <= now_ns
        {
            self.end_round(region, &Err(ErrorReply::Timeout));
        }
    }

    /// Removes the waiting request of a participant.
    pub(in crate::engine) fn withdraw(&mut self, region: RegionId, requester: Requester) {
        let is_selected = |arrival: &Arrival| arrival.requester == requester;
        if self.unpark(region, requester) || self.barriers.remove_arrivals(region, is_selected) {
            self.cx.out().end_serving(requester);
        }
    }

    pub(super) fn forget_arrivals_of(&mut self, incarnation: NodeIncarnation) {
        let regions: Vec<RegionId> = self.barriers.rounds.keys().copied().collect();
        for region in regions {
            self.barriers.remove_arrivals(region, |arrival| arrival.requester.incarnation == incarnation);
        }
    }
}
