//! The status of all nodes: this node asks the directory's node for the members, then each member for its status.
//!
//! A member that this node connects to for the first time may have lost power, so this node waits only briefly for it,
//! unless the member answers a dial.
//!
//! If the directory's node is unreachable, another member lists the members that it knows
//! ([`Engine::membership_source`](super::super::Engine::membership_source)). The result includes members that this node
//! did not know before, but this node neither connects to them nor records them.

use std::collections::BTreeMap;

use super::{Commands, SessionSide, StatusScope, UserStep};
use crate::effect::{OpId, Outcome};
use crate::engine::context::{Context, Purpose};
use crate::ids::{Incarnation, NodeId, NodeIncarnation};
use crate::message::{ErrorReply, Member, NodeState, NodeStatus, Reply, Request};

/// Wait for a dial without any answer, in tenths of a lease: 1.5 s by default. A lost first packet is repeated after a
/// second, and its answer takes a round trip more.
const DIAL_PATIENCE_TENTHS: u64 = 3;

/// Number of steps in which that wait is extended, up to a lease. Each step requires that a dial was answered. A
/// connection to a distant peer takes several round trips.
const STATUS_WAIT_STEPS: u64 = 100;

/// Status commands in flight.
#[derive(Debug, Default)]
pub(super) struct Statuses(BTreeMap<OpId, Gathering>);

/// The replies to one command.
#[derive(Debug)]
struct Gathering {
    missing: Vec<NodeId>,
    found: Vec<NodeStatus>,
    /// Members that only another member or the outside list names.
    indirect: Vec<Member>,
    since_ns: u64,
    /// Time in ns until which the command waits for members that this node is meeting, once only they are missing.
    due_ns: u64,
    /// Latest time in ns to which `due_ns` may be postponed.
    due_ns_max: u64,
}

impl Commands {
    /// Returns the members whose statuses are missing in overdue commands. Such a command has waited long enough for
    /// members that this node is meeting, but may wait longer if they answer a dial.
    pub(in crate::engine) fn overdue_in_statuses(&self, now_ns: u64) -> Vec<NodeId> {
        let overdue = |gathering: &&Gathering| gathering.due_ns <= now_ns && now_ns < gathering.due_ns_max;
        let missing = self.statuses.0.values().filter(overdue).flat_map(|gathering| &gathering.missing);
        missing.copied().collect()
    }

    /// Extends the waits for members that this node is meeting, because a dial was answered: the members may be
    /// distant.
    pub(in crate::engine) fn extend_status_waits(&mut self, now_ns: u64) {
        for gathering in self.statuses.0.values_mut().filter(|gathering| gathering.due_ns <= now_ns) {
            let pause_ns = (gathering.due_ns_max - gathering.since_ns) / STATUS_WAIT_STEPS;
            gathering.due_ns = gathering.due_ns_max.min(now_ns.saturating_add(pause_ns));
        }
    }

    /// Returns the time in ns at which the first wait for members that this node is meeting ends, or `u64::MAX` without
    /// a wait.
    pub(in crate::engine) fn statuses_due_ns(&self) -> u64 {
        self.statuses.0.values().map(|gathering| gathering.due_ns).min().unwrap_or(u64::MAX)
    }
}

impl Context<'_> {
    /// See [`Engine::membership_source`](super::super::Engine::membership_source).
    pub(in crate::engine) fn membership_source(&self) -> NodeId {
        self.membership().source(self.incarnation().node, self.seat())
    }
}

impl SessionSide<'_> {
    pub(super) fn request_members(&mut self, op: OpId, scope: StatusScope) {
        self.cx.ask_directory(Request::ListMembers, Purpose::User(op, UserStep::Members(scope)))
    }

    /// Asks the members that this node knows for their statuses. If possible, also asks the members that are only in
    /// `indirect`, the list of another member, which may be empty.
    pub(in crate::engine) fn request_statuses(
        &mut self,
        op: OpId,
        scope: StatusScope,
        indirect: Vec<Member>,
    ) {
        let is_unconnected = |member: &Member| member.state == NodeState::Unconnected;
        let (unconnected, mut others): (Vec<Member>, Vec<Member>) =
            self.cx.members().described(self.cx.now_ns()).partition(is_unconnected);
        // A status command in a large cluster does not connect nodes.
        let mut found: Vec<NodeStatus> =
            unconnected.into_iter().map(|member| self.status_of(self.as_listed(member))).collect();
        let indirect_only = self.indirect_members(&indirect);
        let is_dialled = |member: &&Member| scope == StatusScope::AllMembers && self.is_diallable(member);
        let (dialled, undialled): (Vec<&Member>, Vec<&Member>) = indirect_only.iter().partition(is_dialled);
        found.extend(undialled.into_iter().map(|member| self.status_of(member.clone())));
        others.retain(|member| scope == StatusScope::AllMembers || self.cx.is_present(member.incarnation));
        let nodes = others.iter().chain(dialled).map(|member| member.incarnation.node).collect();
        self.request_status(op, nodes, found, indirect_only);
    }

    /// Returns true if this node can dial an unknown member at its listed address, and false if another member has
    /// reported the loss of the member.
    fn is_diallable(&self, member: &Member) -> bool {
        let is_small = self.cx.config().is_full_mesh(self.cx.membership().count());
        let is_missed = matches!(member.state, NodeState::Unreachable | NodeState::Dead | NodeState::Left);
        is_small && !is_missed && self.cx.membership().listed_address(member.incarnation.node).is_some()
    }

    /// Returns `member` with its state by the outside list, which decides whether an unconnected member exists while
    /// the directory's node is unreachable.
    fn as_listed(&self, member: Member) -> Member {
        let (node, seat) = (member.incarnation.node, self.cx.seat());
        let is_away = seat != self.cx.incarnation().node && self.cx.members().peer_of(seat).is_none();
        let is_gone = is_away && self.cx.membership().listed().lacks(node);
        let state = if is_gone { NodeState::Unreachable } else { member.state };
        Member { state, ..member }
    }

    /// Returns the members that this node does not know, in the state that another member reports, or else in the state
    /// that the outside list implies.
    fn indirect_members(&self, indirect: &[Member]) -> Vec<Member> {
        let is_unknown = |node: NodeId| !self.cx.members().has(node);
        let reported = indirect.iter().filter(|member| is_unknown(member.incarnation.node)).map(|member| {
            // It is connected to that member, but not to this node.
            let state = if member.state.is_there() { NodeState::Unconnected } else { member.state };
            Member { state, ..member.clone() }
        });
        let mut known: BTreeMap<NodeId, Member> =
            reported.map(|member| (member.incarnation.node, member)).collect();
        for (node, state) in self.cx.membership().listed().states().filter(|(node, _)| is_unknown(*node)) {
            let incarnation = NodeIncarnation { node, id: Incarnation(0) };
            known.entry(node).or_insert_with(|| Member { state, ..Member::unseen(incarnation) });
        }
        known.into_values().collect()
    }

    /// Asks one node for its status.
    pub(super) fn request_status_of(&mut self, op: OpId, node: NodeId) {
        self.request_status(op, vec![node], Vec::new(), Vec::new());
    }

    fn request_status(
        &mut self,
        op: OpId,
        nodes: Vec<NodeId>,
        found: Vec<NodeStatus>,
        indirect: Vec<Member>,
    ) {
        let (since_ns, missing) = (self.cx.now_ns(), nodes.clone());
        self.commands.statuses.0.insert(
            op,
            Gathering { missing, found, indirect, since_ns, due_ns: u64::MAX, due_ns_max: u64::MAX },
        );
        for node in nodes {
            self.cx.ask(node, Request::Status, Purpose::User(op, UserStep::StatusOf(node)));
        }
    }

    /// Returns the status of a node that was not asked or did not reply, from what this node knows.
    fn status_of(&self, member: Member) -> NodeStatus {
        NodeStatus {
            node: member.incarnation.node,
            pid: member.pid,
            state: member.state,
            incarnation: member.incarnation.id.0,
            provider: self.cx.config().provider.clone(),
            bytes_used: 0,
            bytes_total: member.bytes_total,
            bytes_refused: 0,
            bytes_quarantined: 0,
            bytes_largest: 0,
            regions: 0,
            mappings: 0,
            loss: member.loss,
        }
    }

    /// Returns the status of a node that did not reply, or `None` if the node is unknown.
    fn status_of_silent(&self, node: NodeId, indirect: &[Member]) -> Option<NodeStatus> {
        let known =
            self.cx.members().described(self.cx.now_ns()).find(|member| member.incarnation.node == node);
        let reported = || indirect.iter().find(|member| member.incarnation.node == node).cloned();
        let member = known.or_else(reported)?;
        let state = if member.state.is_there() { NodeState::Silent } else { member.state };
        Some(self.status_of(Member { state, ..member }))
    }

    pub(super) fn gather_status(&mut self, op: OpId, node: NodeId, body: Result<Reply, ErrorReply>) {
        let Some(mut gathering) = self.commands.statuses.0.remove(&op) else { return };
        gathering.missing.retain(|missing| *missing != node);
        match body {
            Ok(Reply::Status(status)) => gathering.found.push(*status),
            _ => gathering.found.extend(self.status_of_silent(node, &gathering.indirect)),
        }
        let are_others_done = gathering.missing.iter().all(|node| self.cx.is_awaited(*node));
        if gathering.missing.is_empty() {
            return self.finish_status(op, gathering);
        }
        if are_others_done && gathering.due_ns == u64::MAX {
            let lease_ns = self.cx.lease_ns();
            gathering.due_ns = gathering.since_ns.saturating_add(lease_ns / 10 * DIAL_PATIENCE_TENTHS);
            gathering.due_ns_max = gathering.since_ns.saturating_add(lease_ns);
        }
        self.commands.statuses.0.insert(op, gathering);
    }

    /// Ends overdue waits for members that this node is meeting.
    pub(in crate::engine) fn finish_overdue_statuses(&mut self) {
        let now_ns = self.cx.now_ns();
        let overdue: Vec<(OpId, Gathering)> =
            self.commands.statuses.0.extract_if(.., |_, gathering| gathering.due_ns <= now_ns).collect();
        for (op, mut gathering) in overdue {
            let missing = std::mem::take(&mut gathering.missing);
            let silent =
                missing.into_iter().filter_map(|node| self.status_of_silent(node, &gathering.indirect));
            gathering.found.extend(silent);
            self.finish_status(op, gathering);
        }
    }

    fn finish_status(&mut self, op: OpId, mut gathering: Gathering) {
        gathering.found.sort_by_key(|status| status.node);
        self.cx.finish(op, Ok(Outcome::Status(gathering.found)));
    }
}
