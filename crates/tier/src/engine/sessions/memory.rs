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

use super::{Commands, SessionSide};
use crate::access::{Blocked, CopySide, RegionOffset, Step};
use crate::effect::{CommandError, OpId, Outcome};
use crate::engine::context::Purpose;
use crate::ids::{NodeId, NodeIncarnation, SessionId};
use crate::layout::{Extent, Extents};
use crate::message::{CopySegment, ErrorReply, Reply, Request};
use crate::permissions::Permissions;

/// Most bytes of one command: about 3 ms, for which a change of the region has to wait.
pub const COMMAND_BYTES_MAX: u64 = 16 << 20;

/// Memory operations under way of sessions of ours.
#[derive(Debug, Default)]
pub(super) struct IssuedCopies {
    given: BTreeMap<OpId, IssuedCopy>,
    /// Commands that have failed because we lost sight of who carries them out: until when that node may be at it, in ns.
    unheard: BTreeMap<(OpId, NodeIncarnation), u64>,
}

impl IssuedCopies {
    /// The last command that is under way, or, with the `unheard`, may be.
    fn last(&self, with_unheard: bool) -> Option<OpId> {
        let given = self.given.keys().next_back().copied();
        let unheard = self.unheard.keys().next_back().map(|(op, _)| *op);
        given.max(unheard.filter(|_| with_unheard))
    }

    /// Whether a command up to that one is under way, or, with the `unheard`, may be.
    fn has_any_upto(&self, upto: OpId, with_unheard: bool) -> bool {
        let is_given = self.given.keys().next().is_some_and(|first| *first <= upto);
        let is_unheard = self.unheard.keys().next().is_some_and(|(first, _)| *first <= upto);
        is_given || is_unheard && with_unheard
    }
}

impl Commands {
    /// See [`IssuedCopies::last`].
    pub(in crate::engine) fn last_copy(&self, with_unheard: bool) -> Option<OpId> {
        self.memory.last(with_unheard)
    }

    /// See [`IssuedCopies::has_any_upto`].
    pub(in crate::engine) fn has_copies_upto(&self, upto: OpId, with_unheard: bool) -> bool {
        self.memory.has_any_upto(upto, with_unheard)
    }

    /// Whether other nodes carry out commands of sessions of ours.
    pub(in crate::engine) fn has_copies(&self) -> bool {
        !self.memory.given.is_empty()
    }

    /// A node has ended what it was asked before, or its incarnation is over.
    pub(in crate::engine) fn await_none_of(&mut self, incarnation: NodeIncarnation) {
        self.memory.unheard.retain(|(_, by), _| *by != incarnation);
    }

    /// Who has not heard us for a lease has broken off what we asked it for.
    pub(in crate::engine) fn await_no_overdue(&mut self, now_ns: u64) {
        self.memory.unheard.retain(|_, until_ns| now_ns < *until_ns);
    }
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

impl SessionSide<'_> {
    pub(super) fn start_fill(&mut self, op: OpId, session: SessionId, at: RegionOffset, len: u64, byte: u8) {
        let step = Step { len: len.min(COMMAND_BYTES_MAX), backward: false };
        let (region, extents) = match self.mapper.resolve(session, at, Permissions::WRITE, step.len) {
            Ok(found) => found,
            Err(blocked) => return self.refuse_access(op, CopySide::Target, blocked),
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
        let region_of = |at: RegionOffset| self.mapper.region_of(session, at.slot).map(|(region, _)| region);
        let same_region = region_of(to) == region_of(from);
        let step = Step::of_copy(same_region, to.offset, from.offset, len, COMMAND_BYTES_MAX);
        let behind = |at: RegionOffset| RegionOffset { offset: at.offset + step.skip(len), ..at };
        let source = match self.mapper.resolve(session, behind(from), Permissions::READ, step.len) {
            Ok(found) => found,
            Err(blocked) => return self.refuse_access(op, CopySide::Source, blocked),
        };
        let target = match self.mapper.resolve(session, behind(to), Permissions::WRITE, step.len) {
            Ok(found) => found,
            Err(blocked) => return self.refuse_access(op, CopySide::Target, blocked),
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

    fn refuse_access(&mut self, op: OpId, side: CopySide, blocked: Blocked) {
        self.cx.finish(op, Err(CommandError::Access { side, blocked }));
    }

    /// Sends a command's requests: all at once, or each when the one before is answered.
    fn give(&mut self, op: OpId, step: Step, requests: VecDeque<(NodeId, Request)>, in_order: bool) {
        let at_once = if in_order { 1 } else { requests.len() };
        self.commands
            .memory
            .given
            .insert(op, IssuedCopy { step, queue: requests, awaited: 0, failure: None });
        for _ in 0..at_once {
            self.ask_next(op);
        }
    }

    fn ask_next(&mut self, op: OpId) {
        let given = self.commands.memory.given.get_mut(&op).expect("it is under way");
        let Some((node, request)) = given.queue.pop_front() else { return };
        given.awaited += 1;
        self.cx.ask(node, request, Purpose::Memory(op, node));
    }

    /// What `node` was asked for is done, or is not; or its incarnation, which is `from`, is not heard any more.  Returns whether the
    /// command is over by that.
    pub(in crate::engine) fn handle_memory_done(
        &mut self,
        op: OpId,
        node: NodeId,
        from: NodeIncarnation,
        body: Result<Reply, ErrorReply>,
    ) -> bool {
        let Some(given) = self.commands.memory.given.get_mut(&op) else { return false };
        given.awaited -= 1;
        if body == Err(ErrorReply::PeerDown(node)) && from.node == node {
            self.commands.memory.unheard.insert((op, from), self.cx.now_ns() + self.cx.lease_ns() / 2 * 3);
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
            return false;
        }
        if !given.queue.is_empty() {
            self.ask_next(op);
            return false;
        }
        let given = self.commands.memory.given.remove(&op).expect("looked up just before");
        self.cx.finish(op, given.failure.map_or(Ok(Outcome::Stepped(given.step)), Err));
        true
    }
}

/// Which side is to blame when `node`, which owns the target, does not do as it was asked.
fn broken(node: NodeId, refusal: ErrorReply) -> CommandError {
    let side = match refusal {
        ErrorReply::PeerDown(down) if down != node => CopySide::Source,
        _ => CopySide::Target,
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

/// Segments that follow each other and have one owner of their targets, in order.
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

#[cfg(test)]
mod tests {
    use halite_fabric::Key;

    use super::*;
    use crate::ids::{Incarnation, NodeIncarnation};

    fn extent(node: u32, offset: u64, len: u64) -> Extent {
        let owner = NodeIncarnation { node: NodeId(node), id: Incarnation(1) };
        Extent { owner, key: Key(0), offset, len }
    }

    #[test]
    fn segments_are_cut_where_either_side_is() {
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
}
