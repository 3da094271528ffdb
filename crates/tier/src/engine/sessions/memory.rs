//! Memory operations: fills and copies of memory that loads and stores do not reach. The session's node sends commands
//! instead of data: the node that owns the target executes each part, and reads the source by itself.
//!
//! ```text
//!  node of the session             owner of the target                    owner of the source
//!   CopyBytes(parts) ────────────────►  step after step:  one-sided read ──►  (not asked)
//!   ◄───────────────────────── Done ┘
//! ```
//!
//! Only the owner of memory executes commands that write to it, so the owner knows how long freed memory must not be
//! reused, even after other nodes have died. Until the reply arrives, the session's node keeps its mappings: it does
//! not acknowledge changes or announce that it has unmapped a region.

use std::collections::{BTreeMap, VecDeque};

use super::{Commands, SessionSide};
use crate::access::{Blocked, CopySide, RegionOffset, Step};
use crate::effect::{CommandError, OpId, Outcome};
use crate::engine::context::Purpose;
use crate::ids::{NodeId, NodeIncarnation, SessionId};
use crate::layout::{Extent, Extents};
use crate::message::{CopySegment, ErrorReply, Reply, Request};
use crate::permissions::Permissions;

/// Maximum bytes that one command fills or copies: 16 MiB take about 3 ms, for which a change of the region has to
/// wait.
pub const COMMAND_BYTES_MAX: u64 = 16 << 20;

/// Memory operations of this node's sessions in flight.
#[derive(Debug, Default)]
pub(super) struct IssuedCopies {
    issued: BTreeMap<OpId, IssuedCopy>,
    /// Commands that failed because the executing node was lost. That node may still execute them until this time, in
    /// ns.
    lost: BTreeMap<(OpId, NodeIncarnation), u64>,
}

impl IssuedCopies {
    /// Returns the latest command in flight, or `None`. `with_lost` includes commands whose replies are lost.
    fn last(&self, with_lost: bool) -> Option<OpId> {
        let issued = self.issued.keys().next_back().copied();
        let lost = self.lost.keys().next_back().map(|(op, _)| *op);
        issued.max(lost.filter(|_| with_lost))
    }

    /// Returns true if a command up to `upto` is in flight; `with_lost` includes commands whose replies are lost.
    fn has_any_upto(&self, upto: OpId, with_lost: bool) -> bool {
        let is_issued = self.issued.keys().next().is_some_and(|first| *first <= upto);
        let is_lost = self.lost.keys().next().is_some_and(|(first, _)| *first <= upto);
        is_issued || is_lost && with_lost
    }
}

impl Commands {
    /// See [`IssuedCopies::last`].
    pub(in crate::engine) fn last_copy(&self, with_lost: bool) -> Option<OpId> {
        self.memory.last(with_lost)
    }

    /// See [`IssuedCopies::has_any_upto`].
    pub(in crate::engine) fn has_copies_upto(&self, upto: OpId, with_lost: bool) -> bool {
        self.memory.has_any_upto(upto, with_lost)
    }

    /// Returns true if other nodes are executing commands for sessions of this node.
    pub(in crate::engine) fn has_copies(&self) -> bool {
        !self.memory.issued.is_empty()
    }

    /// Stops counting the lost replies of a node that has finished all earlier commands, or whose incarnation has
    /// ended.
    pub(in crate::engine) fn forget_lost_replies_of(&mut self, incarnation: NodeIncarnation) {
        self.memory.lost.retain(|(_, by), _| *by != incarnation);
    }

    /// Forgets the commands with lost replies whose executing nodes have aborted them by now, because these nodes did
    /// not hear from this node for a lease.
    pub(in crate::engine) fn expire_lost_replies(&mut self, now_ns: u64) {
        self.memory.lost.retain(|_, until_ns| now_ns < *until_ns);
    }
}

/// A memory operation of a session.
#[derive(Debug)]
struct IssuedCopy {
    step: Step,
    /// Requests to send in sequence, each after the reply to its predecessor.
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
        self.issue(op, step, by_owner.into_iter().map(request).collect(), false);
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
        self.issue(op, step, groups.into_iter().map(request).collect(), overlap);
    }

    fn refuse_access(&mut self, op: OpId, side: CopySide, blocked: Blocked) {
        self.cx.finish(op, Err(CommandError::Access { side, blocked }));
    }

    /// Sends a command's requests, either all at once or in sequence.
    fn issue(&mut self, op: OpId, step: Step, requests: VecDeque<(NodeId, Request)>, in_order: bool) {
        let at_once = if in_order { 1 } else { requests.len() };
        self.commands
            .memory
            .issued
            .insert(op, IssuedCopy { step, queue: requests, awaited: 0, failure: None });
        for _ in 0..at_once {
            self.send_next(op);
        }
    }

    fn send_next(&mut self, op: OpId) {
        let issued = self.commands.memory.issued.get_mut(&op).expect("in flight");
        let Some((node, request)) = issued.queue.pop_front() else { return };
        issued.awaited += 1;
        self.cx.ask(node, request, Purpose::Memory(op, node));
    }

    /// Handles a reply of `node`, or the loss of its incarnation `from`. Returns true if this ends the command.
    pub(in crate::engine) fn handle_memory_done(
        &mut self,
        op: OpId,
        node: NodeId,
        from: NodeIncarnation,
        body: Result<Reply, ErrorReply>,
    ) -> bool {
        let Some(issued) = self.commands.memory.issued.get_mut(&op) else { return false };
        issued.awaited -= 1;
        if body == Err(ErrorReply::PeerDown(node)) && from.node == node {
            self.commands.memory.lost.insert((op, from), self.cx.now_ns() + self.cx.lease_ns() / 2 * 3);
        }
        let refusal = match body {
            Ok(Reply::Done) => None,
            Ok(_) => Some(ErrorReply::Malformed),
            Err(refusal) => Some(refusal),
        };
        if let Some(refusal) = refusal {
            // Later parts would be copied over the missing part.
            issued.queue.clear();
            issued.failure.get_or_insert(broken(node, refusal));
        }
        if issued.awaited > 0 {
            return false;
        }
        if !issued.queue.is_empty() {
            self.send_next(op);
            return false;
        }
        let issued = self.commands.memory.issued.remove(&op).expect("looked up just before");
        self.cx.finish(op, issued.failure.map_or(Ok(Outcome::Stepped(issued.step)), Err));
        true
    }
}

/// Attributes a failure reported by `node`, the owner of the target, to the source or the target.
fn broken(node: NodeId, refusal: ErrorReply) -> CommandError {
    let side = match refusal {
        ErrorReply::PeerDown(down) | ErrorReply::NotMet(down) if down != node => CopySide::Source,
        _ => CopySide::Target,
    };
    CommandError::Broken { side, refusal }
}

/// Splits two lists of equal length in bytes into pairs of extents of equal length.
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

/// Groups consecutive segments by the owner of their targets, in order.
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

/// Groups all segments by the owner of their targets.
fn all_by_owner(copy_segments: Vec<CopySegment>) -> Vec<(NodeId, Vec<CopySegment>)> {
    let mut groups: BTreeMap<NodeId, Vec<CopySegment>> = BTreeMap::new();
    for segment in copy_segments {
        groups.entry(segment.to.owner.node).or_default().push(segment);
    }
    groups.into_iter().collect()
}
