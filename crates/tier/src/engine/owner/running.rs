//! Commands on local memory: fills and copies requested by sessions of any node. Each command runs in steps, between
//! which other work runs; see [`super::super::sessions`] for the requesting side.

use std::collections::BTreeMap;

use halite_fabric::Key;

use super::{Owner, OwnerSide};
use crate::effect::{CopyFailure, Effect, Token};
use crate::engine::on_demand::DialWaiter;
use crate::ids::{NodeIncarnation, RegionId, Requester};
use crate::layout::{Extent, Extents};
use crate::message::{CopySegment, ErrorReply, Reply};

/// Maximum bytes of one step: about 0.2 ms, after which other work runs.
const STEP_BYTES_MAX: u64 = 1 << 20;

/// All commands in progress.
#[derive(Debug, Default)]
pub(super) struct Commands {
    in_progress: BTreeMap<u64, Running>,
    steps: BTreeMap<Token, u64>,
}

/// A command on local memory.
#[derive(Debug)]
struct Running {
    requester: Requester,
    work: Work,
    copy_segments: Vec<CopySegment>,
    /// Index of the current copy segment.
    at: usize,
    /// Number of the current copy segment's bytes that are done.
    done: u64,
    /// True if the pairing with the requester has ended; then the current step is the last.
    is_aborted: bool,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    Fill(u8),
    /// Copies each segment from its end if `backward`, as some overlaps require.
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
        // The requester may have been lost long ago, and its extents reused for other regions.
        let me = self.cx.incarnation();
        let targets = copy_segments.iter().map(|segment| segment.to);
        let own_sources =
            copy_segments.iter().map(|segment| segment.from).filter(|extent| extent.owner == me);
        if !self.belong_to_region(to, targets) || !self.belong_to_region(from, own_sources) {
            return self.cx.answer(requester, Err(ErrorReply::NotFound));
        }
        let id = self.cx.next_number();
        let running = Running { requester, work, copy_segments, at: 0, done: 0, is_aborted: false };
        self.owner.running.in_progress.insert(id, running);
        // Returns `None`, since a new command cannot have been broken off yet.
        self.next_step(id);
    }

    /// Returns true if all extents are local memory that currently belongs to `region`.
    fn belong_to_region(&self, region: RegionId, mut extents: impl Iterator<Item = Extent>) -> bool {
        let Some(at_home) = self.homes.extents(&region) else {
            return extents.all(|extent| self.owner.store.is_held_for_region(region, &extent));
        };
        // Sorted, since there may be thousands of extents on both sides.
        let me = self.cx.incarnation();
        let mut local: Vec<(Key, u64, u64)> = (at_home.iter().filter(|extent| extent.owner == me))
            .map(|extent| (extent.key, extent.offset, extent.len))
            .collect();
        local.sort_unstable();
        extents.all(|extent| extent.owner == me && is_inside(&local, &extent))
    }

    /// Continues a command or ends it. If this ends a command whose requester is no longer paired, returns that
    /// requester.
    pub(in crate::engine) fn next_step(&mut self, id: u64) -> Option<NodeIncarnation> {
        let running = self.owner.running.in_progress.get(&id)?;
        let requester = running.requester;
        let Some(step) = running.step() else { return self.end_running(id, Ok(Reply::Done)) };
        if running.is_aborted {
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

    /// Handles the end of the step that `token` belongs to, if any.
    pub(super) fn handle_step(
        &mut self,
        token: Token,
        failed: Option<CopyFailure>,
    ) -> Option<NodeIncarnation> {
        let id = self.owner.running.steps.remove(&token)?;
        let running = self.owner.running.in_progress.get_mut(&id)?;
        let source = running.copy_segments[running.at].from.owner.node;
        match failed {
            Some(why) => self.end_running(id, Err(self.refusal_of(why, source))),
            None => {
                running.advance();
                self.next_step(id)
            }
        }
    }

    /// Ends a command. Returns the requester if it is no longer paired: before the caller releases memory, it resumes
    /// the work that waited for this end.
    pub(in crate::engine) fn end_running(
        &mut self,
        id: u64,
        body: Result<Reply, ErrorReply>,
    ) -> Option<NodeIncarnation> {
        let running = self.owner.running.in_progress.remove(&id).expect("in flight");
        if running.is_aborted {
            return Some(running.requester.incarnation);
        }
        self.cx.answer(running.requester, body);
        self.release_copied();
        None
    }
}

impl Owner {
    /// Stops the commands of a requester whose pairing has ended: to the requester, they have failed.
    pub(in crate::engine) fn abort_commands_of(&mut self, incarnation: NodeIncarnation) {
        let of = self
            .running
            .in_progress
            .values_mut()
            .filter(|running| running.requester.incarnation == incarnation);
        of.for_each(|running| running.is_aborted = true);
    }

    /// Returns true if this node executes a command that `incarnation` has requested.
    pub(in crate::engine) fn is_running_for(&self, incarnation: NodeIncarnation) -> bool {
        self.running.in_progress.values().any(|running| running.requester.incarnation == incarnation)
    }
}

impl Commands {
    /// Returns true if a command in progress changes any byte of `extent`.
    pub(super) fn touches(&self, extent: &Extent) -> bool {
        let mut copy_segments = self.in_progress.values().flat_map(|running| &running.copy_segments);
        copy_segments.any(|segment| segment.to.touches(extent))
    }
}

impl Running {
    /// Returns the next step, or `None` if all steps are done.
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

/// Returns true if one of the sorted ranges `local` contains all of `extent`.
fn is_inside(local: &[(Key, u64, u64)], extent: &Extent) -> bool {
    let next = local.partition_point(|(key, offset, _)| (*key, *offset) <= (extent.key, extent.offset));
    let Some((key, offset, len)) = next.checked_sub(1).map(|index| local[index]) else { return false };
    let end = extent.offset.checked_add(extent.len);
    key == extent.key && end.is_some_and(|end| end <= offset + len)
}
