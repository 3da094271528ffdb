//! Memory operations: fills and copies that loads and stores do not reach.  The command travels, not the data: each
//! part is carried out by the node whose memory it changes, which reads what it copies by itself.
//!
//! ```text
//!  node of the session             owner of the target                    owner of the source
//!   CopyBytes(parts) ────────────────►  step after step:  one-sided read ──►  (not asked)
//!   ◄───────────────────────── Done ┘
//! ```
//!
//! Nobody but its owner writes to memory by command, so an owner knows by itself how long it must keep memory back
//! that was freed meanwhile, also after deaths.  What the session's node maps stays as it is until the answer has
//! come: until then it acknowledges no change, and announces no unmapping.

use std::collections::{BTreeMap, VecDeque};

use halite_fabric::Key;

use super::user::Unmapping;
use super::{Engine, Purpose, Requester};
use crate::access::{Blocked, RegionOffset, Side, Step};
use crate::effect::{CommandError, CopyFailure, Effect, OpId, Outcome, Token};
use crate::ids::{NodeId, NodeLife, RegionId, SessionId};
use crate::layout::{Extent, Extents};
use crate::message::{CopySegment, ErrorReply, Reply, Request};
use crate::permissions::Permissions;

/// Most bytes of one command: about 3 ms, for which a change of the region has to wait.
pub const COMMAND_BYTES_MAX: u64 = 16 << 20;

/// Most bytes of one step, after which others have their turn: about 0.2 ms.
const STEP_BYTES_MAX: u64 = 1 << 20;

/// Memory operations under way.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Of sessions of ours.
    given: BTreeMap<OpId, IssuedCopy>,
    /// Commands that have failed because we lost sight of who carries them out: until when that node may be at it, in ns.
    unheard: BTreeMap<(OpId, NodeLife), u64>,
    /// What is said when the commands up to that one are over.
    held: Vec<(OpId, DeferredAck)>,
    /// On memory of ours.
    running: BTreeMap<u64, Running>,
    steps: BTreeMap<Token, u64>,
}

/// A command of a session of ours.
#[derive(Debug)]
struct IssuedCopy {
    step: Step,
    /// Requests that are to be sent one after the other, each when the one before is answered.
    queue: VecDeque<(NodeId, Request)>,
    awaited: usize,
    failure: Option<CommandError>,
}

/// What others hear when no access of ours under an old state is under way.
#[derive(Debug)]
pub(super) enum DeferredAck {
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

/// The side of the session that gives the command.
impl Engine {
    pub(super) fn start_fill(&mut self, op: OpId, session: SessionId, at: RegionOffset, len: u64, byte: u8) {
        let step = Step { len: len.min(COMMAND_BYTES_MAX), backward: false };
        let (region, extents) = match self.mapper.resolve(session, at, Permissions::WRITE, step.len) {
            Ok(found) => found,
            Err(blocked) => return self.refuse_access(op, Side::Target, blocked),
        };
        let mut by_owner: BTreeMap<NodeId, Extents> = BTreeMap::new();
        for extent in extents {
            by_owner.entry(extent.owner.node).or_default().push(extent);
        }
        let request = |(node, parts)| (node, Request::FillBytes { region, parts, byte });
        self.give(op, step, by_owner.into_iter().map(request).collect(), false);
    }

    pub(super) fn start_copy(
        &mut self,
        op: OpId,
        session: SessionId,
        to: RegionOffset,
        from: RegionOffset,
        len: u64,
    ) {
        let region_of =
            |spot: RegionOffset| self.mapper.region_of(session, spot.slot).map(|(region, _)| region);
        let same_region = region_of(to) == region_of(from);
        let step = Step::of_copy(same_region, to.offset, from.offset, len, COMMAND_BYTES_MAX);
        let behind = |spot: RegionOffset| RegionOffset { offset: spot.offset + step.skip(len), ..spot };
        let source = match self.mapper.resolve(session, behind(from), Permissions::READ, step.len) {
            Ok(found) => found,
            Err(blocked) => return self.refuse_access(op, Side::Source, blocked),
        };
        let target = match self.mapper.resolve(session, behind(to), Permissions::WRITE, step.len) {
            Ok(found) => found,
            Err(blocked) => return self.refuse_access(op, Side::Target, blocked),
        };
        let overlap = same_region && to.offset.abs_diff(from.offset) < step.len;
        let mut copy_segments = copy_segments(&source.1, &target.1);
        if step.backward {
            copy_segments.reverse();
        }
        let groups = if overlap { runs_by_owner(copy_segments) } else { all_by_owner(copy_segments) };
        let (from, to, backward) = (source.0, target.0, step.backward);
        let request =
            |(node, copy_segments)| (node, Request::CopyBytes { to, from, copy_segments, backward });
        self.give(op, step, groups.into_iter().map(request).collect(), overlap);
    }

    fn refuse_access(&mut self, op: OpId, side: Side, blocked: Blocked) {
        self.finish(op, Err(CommandError::Access { side, blocked }));
    }

    /// Sends a command's requests: all at once, or each when the one before is answered.
    fn give(&mut self, op: OpId, step: Step, requests: VecDeque<(NodeId, Request)>, in_order: bool) {
        let at_once = if in_order { 1 } else { requests.len() };
        self.memory.given.insert(op, IssuedCopy { step, queue: requests, awaited: 0, failure: None });
        for _ in 0..at_once {
            self.ask_next(op);
        }
    }

    fn ask_next(&mut self, op: OpId) {
        let given = self.memory.given.get_mut(&op).expect("it is under way");
        let Some((node, request)) = given.queue.pop_front() else { return };
        given.awaited += 1;
        self.ask(node, request, Purpose::Memory(op, node));
    }

    /// What `node` was asked for is done, or is not; or its life, which is `from`, is not heard any more.
    pub(super) fn handle_memory_done(
        &mut self,
        op: OpId,
        node: NodeId,
        from: NodeLife,
        body: Result<Reply, ErrorReply>,
    ) {
        let Some(given) = self.memory.given.get_mut(&op) else { return };
        given.awaited -= 1;
        if body == Err(ErrorReply::PeerDown(node)) && from.node == node {
            self.memory.unheard.insert((op, from), self.now_ns + self.config.lease_ns / 2 * 3);
        }
        let refusal = match body {
            Ok(Reply::Done) => None,
            Ok(_) => Some(ErrorReply::Malformed),
            Err(refusal) => Some(refusal),
        };
        if let Some(refusal) = refusal {
            // What is left would be copied on top of what is missing.
            given.queue.clear();
            given.failure.get_or_insert(broken(node, refusal));
        }
        if given.awaited > 0 {
            return;
        }
        match given.queue.is_empty() {
            true => self.finish_given(op),
            false => self.ask_next(op),
        }
    }

    fn finish_given(&mut self, op: OpId) {
        let given = self.memory.given.remove(&op).expect("it is under way");
        self.finish(op, given.failure.map_or(Ok(Outcome::Stepped(given.step)), Err));
        self.say_what_was_held();
    }

    /// Says something as soon as no command is under way that has been given already.
    pub(super) fn say_when_over(&mut self, due: DeferredAck) {
        let given = self.memory.given.keys().next_back();
        let unheard = self.memory.unheard.keys().next_back().map(|(op, _)| op);
        match given.max(unheard.filter(|_| due.awaits_the_unheard())) {
            Some(last) => self.memory.held.push((*last, due)),
            None => self.say_due(due),
        }
    }

    fn say_what_was_held(&mut self) {
        for (upto, due) in std::mem::take(&mut self.memory.held) {
            let is_given = self.memory.given.keys().next().is_some_and(|first| *first <= upto);
            let is_unheard = self.memory.unheard.keys().next().is_some_and(|(first, _)| *first <= upto);
            match is_given || is_unheard && due.awaits_the_unheard() {
                true => self.memory.held.push((upto, due)),
                false => self.say_due(due),
            }
        }
    }

    /// A node is paired with us anew, which it is after it has ended what it was asked before, or its life is over.
    pub(super) fn await_no_commands_of(&mut self, life: NodeLife) {
        self.memory.unheard.retain(|(_, by), _| *by != life);
        self.say_what_was_held();
    }

    /// Time has passed: who has not heard us for a lease has broken off what we asked it for.
    pub(super) fn await_no_overdue_commands(&mut self) {
        let now_ns = self.now_ns;
        self.memory.unheard.retain(|_, until_ns| now_ns < *until_ns);
        self.say_what_was_held();
    }

    fn say_due(&mut self, due: DeferredAck) {
        match due {
            DeferredAck::Answer(requester) => self.answer(requester, Ok(Reply::Done)),
            DeferredAck::Unmapped(unmapping) => self.finish_unmap(unmapping),
            DeferredAck::Parted(token) => {
                if self.pairings.note_quiescent(token) {
                    self.pair_all();
                }
            }
        }
    }

    /// Whether other nodes carry out commands of sessions of this one.
    pub fn has_commands_under_way(&self) -> bool {
        !self.memory.given.is_empty()
    }
}

/// The side of the node whose memory is changed.
impl Engine {
    pub(super) fn serve_fill(&mut self, requester: Requester, region: RegionId, parts: Extents, byte: u8) {
        let copy_segments = parts.into_iter().map(|to| CopySegment { from: to, to }).collect();
        self.start_running(requester, Work::Fill(byte), region, region, copy_segments);
    }

    pub(super) fn serve_copy_bytes(
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
            return self.answer(requester, Err(ErrorReply::Malformed));
        }
        // The requester may have died long ago, and what it speaks of may have been given to others since.
        let me = self.config.life;
        let targets = copy_segments.iter().map(|segment| segment.to);
        let own_sources =
            copy_segments.iter().map(|segment| segment.from).filter(|extent| extent.owner == me);
        if !self.are_of_region(to, targets) || !self.are_of_region(from, own_sources) {
            return self.answer(requester, Err(ErrorReply::NotFound));
        }
        self.counter += 1;
        let running = Running { requester, work, copy_segments, at: 0, done: 0, is_broken_off: false };
        self.memory.running.insert(self.counter, running);
        self.next_step(self.counter);
    }

    /// Whether all of these are memory of ours that belongs to `region` now.
    fn are_of_region(&self, region: RegionId, mut extents: impl Iterator<Item = Extent>) -> bool {
        let Some(found) = self.homes.get(&region) else {
            return extents.all(|extent| self.store.is_held_of(region, &extent));
        };
        // Sorted, since there may be thousands on both sides.
        let me = self.config.life;
        let mut ours: Vec<(Key, u64, u64)> = (found.extents.iter().filter(|extent| extent.owner == me))
            .map(|extent| (extent.key, extent.offset, extent.len))
            .collect();
        ours.sort_unstable();
        extents.all(|extent| extent.owner == me && is_inside(&ours, &extent))
    }

    /// Goes on with a command, or ends it.
    fn next_step(&mut self, id: u64) {
        let Some(running) = self.memory.running.get(&id) else { return };
        let requester = running.requester;
        let Some(step) = running.step() else { return self.end_running(id, Ok(Reply::Done)) };
        if running.is_broken_off {
            return self.end_running(id, Err(ErrorReply::PeerDown(requester.life.node)));
        }
        let work = running.work;
        self.counter += 1;
        let token = Token(self.counter);
        match self.step_effect(token, work, &step) {
            Ok(effect) => {
                self.memory.steps.insert(token, id);
                self.effects.push_back(effect);
            }
            Err(refusal) => self.end_running(id, Err(refusal)),
        }
    }

    fn step_effect(&self, token: Token, work: Work, step: &CopySegment) -> Result<Effect, ErrorReply> {
        let target = self.store.window(&step.to).ok_or(ErrorReply::NotFound)?;
        match work {
            Work::Fill(byte) => Ok(Effect::Fill { token, window: target, byte }),
            Work::Copy { .. } => self.copy_effect(token, &step.from, &step.to, target),
        }
    }

    /// A step has been taken.  Returns whether it was one of a command.
    pub(super) fn handle_step(&mut self, token: Token, failed: Option<CopyFailure>) -> bool {
        let Some(id) = self.memory.steps.remove(&token) else { return false };
        let Some(running) = self.memory.running.get_mut(&id) else { return true };
        let source = running.copy_segments[running.at].from.owner.node;
        match failed {
            Some(why) => self.end_running(id, Err(self.refusal_of(why, source))),
            None => {
                running.advance();
                self.next_step(id);
            }
        }
        true
    }

    fn end_running(&mut self, id: u64, body: Result<Reply, ErrorReply>) {
        let running = self.memory.running.remove(&id).expect("it is under way");
        let life = running.requester.life;
        match running.is_broken_off {
            false => self.answer(running.requester, body),
            true => {
                self.handle_reach_changed(life);
                self.pair_all();
            }
        }
        self.release_copied();
    }

    /// Who asked for them is not paired with us any more, and takes them to have failed.
    pub(super) fn break_off_for(&mut self, life: NodeLife) {
        let of = self.memory.running.values_mut().filter(|running| running.requester.life == life);
        of.for_each(|running| running.is_broken_off = true);
    }

    /// Whether a command under way was given by that life.
    pub(super) fn is_running_for(&self, life: NodeLife) -> bool {
        self.memory.running.values().any(|running| running.requester.life == life)
    }

    /// Whether a command under way changes any of these bytes of ours.
    pub(super) fn is_being_changed(&self, extent: &Extent) -> bool {
        let mut copy_segments = self.memory.running.values().flat_map(|running| &running.copy_segments);
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

/// Which side is to blame when `node`, which owns the target, does not do as it was asked.
fn broken(node: NodeId, refusal: ErrorReply) -> CommandError {
    let side = match refusal {
        ErrorReply::PeerDown(down) if down != node => Side::Source,
        _ => Side::Target,
    };
    CommandError::Broken { side, refusal }
}

/// Both lists, of the same length in bytes, cut where either of them is.
fn copy_segments(from: &[Extent], to: &[Extent]) -> Vec<CopySegment> {
    let (mut from, mut to) = (from.iter().copied(), to.iter().copied());
    let (mut source, mut target) = (from.next(), to.next());
    let mut copy_segments = Vec::new();
    while let (Some(mut a), Some(mut b)) = (source, target) {
        let len = a.len.min(b.len);
        copy_segments.push(CopySegment { from: a.cut_front(len), to: b.cut_front(len) });
        source = if a.len > 0 { Some(a) } else { from.next() };
        target = if b.len > 0 { Some(b) } else { to.next() };
    }
    copy_segments
}

/// Legs that follow each other and have one owner of their targets, in order.
fn runs_by_owner(copy_segments: Vec<CopySegment>) -> Vec<(NodeId, Vec<CopySegment>)> {
    let mut runs: Vec<(NodeId, Vec<CopySegment>)> = Vec::new();
    for segment in copy_segments {
        match runs.last_mut() {
            Some((node, run)) if *node == segment.to.owner.node => run.push(segment),
            _ => runs.push((segment.to.owner.node, vec![segment])),
        }
    }
    runs
}

/// All copy segments with one owner of their targets.
fn all_by_owner(copy_segments: Vec<CopySegment>) -> Vec<(NodeId, Vec<CopySegment>)> {
    let mut groups: BTreeMap<NodeId, Vec<CopySegment>> = BTreeMap::new();
    for segment in copy_segments {
        groups.entry(segment.to.owner.node).or_default().push(segment);
    }
    groups.into_iter().collect()
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
    use crate::ids::{Incarnation, NodeLife};

    fn extent(node: u32, offset: u64, len: u64) -> Extent {
        let owner = NodeLife { node: NodeId(node), incarnation: Incarnation(1) };
        Extent { owner, key: Key(0), offset, len }
    }

    #[test]
    fn legs_are_cut_where_either_side_is() {
        let cut = copy_segments(&[extent(0, 0, 3), extent(1, 10, 5)], &[extent(2, 100, 6), extent(0, 50, 2)]);
        let expected = [
            CopySegment { from: extent(0, 0, 3), to: extent(2, 100, 3) },
            CopySegment { from: extent(1, 10, 3), to: extent(2, 103, 3) },
            CopySegment { from: extent(1, 13, 2), to: extent(0, 50, 2) },
        ];
        assert_eq!(cut, expected);
        let runs: Vec<usize> = runs_by_owner(cut).iter().map(|(_, run)| run.len()).collect();
        assert_eq!(runs, [2, 1]);
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
