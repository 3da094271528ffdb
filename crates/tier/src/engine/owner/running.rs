//! Commands on memory of ours: fills and copies that sessions of other nodes, or of this one, have asked for.  Each goes on step
//! after step, so that others have their turn; see [`super::super::sessions`] for the side that asks.

use std::collections::BTreeMap;

use halite_fabric::Key;

use super::{Owner, OwnerSide};
use crate::effect::{CopyFailure, Effect, Token};
use crate::engine::on_demand::DialWaiter;
use crate::ids::{NodeIncarnation, RegionId, Requester};
use crate::layout::{Extent, Extents};
use crate::message::{CopySegment, ErrorReply, Reply};

/// Most bytes of one step, after which others have their turn: about 0.2 ms.
const STEP_BYTES_MAX: u64 = 1 << 20;

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Commands {
    under_way: BTreeMap<u64, Running>,
    steps: BTreeMap<Token, u64>,
}

/// A command on memory of ours.
#[derive(Debug)]
struct Running {
    requester: Requester,
    work: Work,
    copy_segments: Vec<CopySegment>,
    /// The copy segment under way, and how much of it is done.
    at: usize,
    done: u64,
    /// The pairing in which it was asked is over: the step under way is the last.
    is_broken_off: bool,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    Fill(u8),
    /// Each copy segment from its end, if its ends overlap so.
    Copy {
        backward: bool,
    },
}

impl OwnerSide<'_> {
    pub(in crate::engine) fn serve_fill(
        &mut self,
        requester: Requester,
        region: RegionId,
        parts: Extents,
        byte: u8,
    ) {
        let copy_segments = parts.into_iter().map(|to| CopySegment { from: to, to }).collect();
        self.start_running(requester, Work::Fill(byte), region, region, copy_segments);
    }

    pub(in crate::engine) fn serve_copy_bytes(
        &mut self,
        requester: Requester,
        (to, from): (RegionId, RegionId),
        copy_segments: Vec<CopySegment>,
        backward: bool,
    ) {
        self.start_running(requester, Work::Copy { backward }, to, from, copy_segments);
    }

    fn start_running(
        &mut self,
        requester: Requester,
        work: Work,
        to: RegionId,
        from: RegionId,
        copy_segments: Vec<CopySegment>,
    ) {
        let is_sound = |extent: &Extent| extent.len > 0 && extent.is_sound();
        if !copy_segments.iter().all(|segment| {
            segment.from.len == segment.to.len && is_sound(&segment.from) && is_sound(&segment.to)
        }) {
            return self.cx.answer(requester, Err(ErrorReply::Malformed));
        }
        // The requester may have died long ago, and what it speaks of may have been given to others since.
        let me = self.cx.incarnation();
        let targets = copy_segments.iter().map(|segment| segment.to);
        let own_sources =
            copy_segments.iter().map(|segment| segment.from).filter(|extent| extent.owner == me);
        if !self.are_of_region(to, targets) || !self.are_of_region(from, own_sources) {
            return self.cx.answer(requester, Err(ErrorReply::NotFound));
        }
        let id = self.cx.next_number();
        let running = Running { requester, work, copy_segments, at: 0, done: 0, is_broken_off: false };
        self.owner.running.under_way.insert(id, running);
        // Nobody can have broken it off.
        self.next_step(id);
    }

    /// Whether all of these are memory of ours that belongs to `region` now.
    fn are_of_region(&self, region: RegionId, mut extents: impl Iterator<Item = Extent>) -> bool {
        let Some(at_home) = self.homes.extents(&region) else {
            return extents.all(|extent| self.owner.store.is_held_of(region, &extent));
        };
        // Sorted, since there may be thousands on both sides.
        let me = self.cx.incarnation();
        let mut ours: Vec<(Key, u64, u64)> = (at_home.iter().filter(|extent| extent.owner == me))
            .map(|extent| (extent.key, extent.offset, extent.len))
            .collect();
        ours.sort_unstable();
        extents.all(|extent| extent.owner == me && is_inside(&ours, &extent))
    }

    /// Goes on with a command, or ends it: then see [`OwnerSide::handle_copied`].
    pub(in crate::engine) fn next_step(&mut self, id: u64) -> Option<NodeIncarnation> {
        let running = self.owner.running.under_way.get(&id)?;
        let requester = running.requester;
        let Some(step) = running.step() else { return self.end_running(id, Ok(Reply::Done)) };
        if running.is_broken_off {
            return self.end_running(id, Err(ErrorReply::PeerDown(requester.incarnation.node)));
        }
        let work = running.work;
        if matches!(work, Work::Copy { .. }) && self.cx.reach_out(step.from.owner) {
            self.cx.wait_until_connected(step.from.owner, DialWaiter::Step(id));
            return None;
        }
        let token = Token(self.cx.next_number());
        match self.step_effect(token, work, &step) {
            Ok(effect) => {
                self.owner.running.steps.insert(token, id);
                self.cx.push(effect);
                None
            }
            Err(refusal) => self.end_running(id, Err(refusal)),
        }
    }

    fn step_effect(&self, token: Token, work: Work, step: &CopySegment) -> Result<Effect, ErrorReply> {
        let target = self.owner.store.window(&step.to).ok_or(ErrorReply::NotFound)?;
        match work {
            Work::Fill(byte) => Ok(Effect::Fill { token, window: target, byte }),
            Work::Copy { .. } => self.copy_effect(token, &step.from, &step.to, target),
        }
    }

    /// A step of a command has been taken, if that is the token of one.
    pub(super) fn handle_step(
        &mut self,
        token: Token,
        failed: Option<CopyFailure>,
    ) -> Option<NodeIncarnation> {
        let id = self.owner.running.steps.remove(&token)?;
        let running = self.owner.running.under_way.get_mut(&id)?;
        let source = running.copy_segments[running.at].from.owner.node;
        match failed {
            Some(why) => self.end_running(id, Err(self.refusal_of(why, source))),
            None => {
                running.advance();
                self.next_step(id)
            }
        }
    }

    /// Whose it was if that is not paired with us any more: what waits for the end has to be looked at before memory is released.
    pub(in crate::engine) fn end_running(
        &mut self,
        id: u64,
        body: Result<Reply, ErrorReply>,
    ) -> Option<NodeIncarnation> {
        let running = self.owner.running.under_way.remove(&id).expect("it is under way");
        if running.is_broken_off {
            return Some(running.requester.incarnation);
        }
        self.cx.answer(running.requester, body);
        self.release_copied();
        None
    }
}

impl Owner {
    /// Who asked for them is not paired with us any more, and takes them to have failed.
    pub(in crate::engine) fn break_off_for(&mut self, incarnation: NodeIncarnation) {
        let of = self
            .running
            .under_way
            .values_mut()
            .filter(|running| running.requester.incarnation == incarnation);
        of.for_each(|running| running.is_broken_off = true);
    }

    /// Whether a command under way was given by that incarnation.
    pub(in crate::engine) fn is_running_for(&self, incarnation: NodeIncarnation) -> bool {
        self.running.under_way.values().any(|running| running.requester.incarnation == incarnation)
    }
}

impl Commands {
    /// Whether a command under way changes any of these bytes of ours.
    pub(super) fn touches(&self, extent: &Extent) -> bool {
        let mut copy_segments = self.under_way.values().flat_map(|running| &running.copy_segments);
        copy_segments.any(|segment| segment.to.touches(extent))
    }
}

impl Running {
    /// What is to be done next.
    fn step(&self) -> Option<CopySegment> {
        let segment = self.copy_segments.get(self.at)?;
        let missing = segment.to.len - self.done;
        let len = missing.min(STEP_BYTES_MAX);
        let skip = match self.work {
            Work::Copy { backward: true } => missing - len,
            _ => self.done,
        };
        let part = |extent: Extent| Extent { offset: extent.offset + skip, len, ..extent };
        Some(CopySegment { from: part(segment.from), to: part(segment.to) })
    }

    fn advance(&mut self) {
        self.done += self.step().expect("a step has been taken").to.len;
        if self.done == self.copy_segments[self.at].to.len {
            (self.at, self.done) = (self.at + 1, 0);
        }
    }
}

/// Whether one of the stretches `ours`, which are sorted, holds all of `extent`.
fn is_inside(ours: &[(Key, u64, u64)], extent: &Extent) -> bool {
    let next = ours.partition_point(|(key, offset, _)| (*key, *offset) <= (extent.key, extent.offset));
    let Some((key, offset, len)) = next.checked_sub(1).map(|index| ours[index]) else { return false };
    let end = extent.offset.checked_add(extent.len);
    key == extent.key && end.is_some_and(|end| end <= offset + len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Incarnation, NodeId, NodeIncarnation};

    fn extent(node: u32, offset: u64, len: u64) -> Extent {
        let owner = NodeIncarnation { node: NodeId(node), id: Incarnation(1) };
        Extent { owner, key: Key(0), offset, len }
    }

    #[test]
    fn memory_that_is_partly_of_a_region_is_not_of_it() {
        let ours = [(Key(0), 100, 10), (Key(0), 200, 10), (Key(1), 0, 10)];
        assert!(is_inside(&ours, &extent(0, 203, 7)));
        assert!(!is_inside(&ours, &extent(0, 203, 8)));
        assert!(!is_inside(&ours, &extent(0, 99, 2)));
        assert!(!is_inside(&ours, &extent(0, 5, u64::MAX)));
    }
}
