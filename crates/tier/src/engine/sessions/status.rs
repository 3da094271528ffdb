//! Asking nodes how they are: the directory's node says who there is, and each is asked by itself.
//!
//! Nobody waits for long for one that is met for the first time and does not answer: it may have lost power since the directory heard it last.
//!
//! Where the directory's node is out of reach, a member says whom it knows ([`Engine::membership_source`](super::super::Engine::membership_source)).  Of those that this node does not know itself that
//! is hearsay, and shown as such: it connects to nobody, and makes nobody known here.

use std::collections::BTreeMap;

use super::{Commands, SessionSide, UserStep, Whom};
use crate::effect::{OpId, Outcome};
use crate::engine::context::{Context, Purpose};
use crate::ids::{Incarnation, NodeId, NodeIncarnation};
use crate::message::{ErrorReply, Member, NodeState, NodeStatus, Reply, Request};

/// So long, in parts of a lease, a dial is waited for by who wants to know how all are: half a second, which is longer than a packet is under way there and back.
const DIAL_PATIENCE_PER_LEASE: u64 = 10;
/// So many times as long where somebody has been heard whose dial is under way: as long as a dial may take.  One that is far away takes several round trips.
const DIAL_PATIENCE_OF_THE_HEARD: u64 = 4;

/// In so many parts: who is heard no more is waited for no longer.
const WAITS_FOR_THE_HEARD: u64 = 40;

/// All answers that are waited for.
#[derive(Debug, Default)]
pub(super) struct Statuses(BTreeMap<OpId, Gathering>);

/// What comes of one command.
#[derive(Debug)]
struct Gathering {
    missing: Vec<NodeId>,
    found: Vec<NodeStatus>,
    /// What is known by the word of another member alone.
    hearsay: Vec<Member>,
    since_ns: u64,
    /// Until when those are waited for that are being met, if only they are missing, and until when at most.
    due_ns: u64,
    most_ns: u64,
}

impl Commands {
    /// Whether somebody has been waited for long enough, unless something was heard of dials.
    pub(in crate::engine) fn has_overdue_statuses(&self, now_ns: u64) -> bool {
        self.statuses.0.values().any(|gathering| gathering.due_ns <= now_ns && now_ns < gathering.most_ns)
    }

    /// Something was heard: those who are being met may be far away.
    pub(in crate::engine) fn wait_on_for_statuses(&mut self, now_ns: u64) {
        for gathering in self.statuses.0.values_mut().filter(|gathering| gathering.due_ns <= now_ns) {
            let pause_ns = (gathering.most_ns - gathering.since_ns) / WAITS_FOR_THE_HEARD;
            gathering.due_ns = gathering.most_ns.min(now_ns.saturating_add(pause_ns));
        }
    }

    /// When somebody has been waited for long enough.
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
    pub(super) fn ask_for_members(&mut self, op: OpId, whom: Whom) {
        self.cx.ask_directory(Request::ListMembers, Purpose::User(op, UserStep::Members(whom)))
    }

    /// Asks living nodes how they are, now that it was told who there is, in part by `hearsay`.  Without that, those that we know ourselves.
    pub(in crate::engine) fn ask_for_statuses(&mut self, op: OpId, whom: Whom, hearsay: Vec<Member>) {
        let is_unconnected = |member: &Member| member.state == NodeState::Unconnected;
        let (unconnected, mut others): (Vec<Member>, Vec<Member>) =
            self.cx.members().described(self.cx.now_ns()).partition(is_unconnected);
        // Nobody of a large cluster is connected for that.
        let mut found: Vec<NodeStatus> =
            unconnected.into_iter().map(|member| self.status_of(self.as_listed(member))).collect();
        let by_word = self.known_by_word_alone(&hearsay);
        let is_met = |member: &&Member| whom == Whom::Everybody && self.is_to_be_met(member);
        let (met, told): (Vec<&Member>, Vec<&Member>) = by_word.iter().partition(is_met);
        found.extend(told.into_iter().map(|member| self.status_of(member.clone())));
        others.retain(|member| whom == Whom::Everybody || self.cx.is_present(member.incarnation));
        let nodes = others.iter().chain(met).map(|member| member.incarnation.node).collect();
        self.ask_for_status(op, nodes, found, by_word);
    }

    /// Whether one that is not known here is looked for where a list says that it is; not if another member misses it.
    fn is_to_be_met(&self, member: &Member) -> bool {
        let is_small = self.cx.config().is_full_mesh(self.cx.membership().count());
        let is_missed = matches!(member.state, NodeState::Unreachable | NodeState::Dead | NodeState::Left);
        is_small && !is_missed && self.cx.membership().where_listed(member.incarnation.node).is_some()
    }

    /// Where the directory is away, a list outside of the cluster says whether one that is not connected is there.
    fn as_listed(&self, member: Member) -> Member {
        let (node, seat) = (member.incarnation.node, self.cx.seat());
        let is_away = seat != self.cx.incarnation().node && self.cx.members().peer_of(seat).is_none();
        let is_gone = is_away && self.cx.membership().listed().lacks(node);
        let state = if is_gone { NodeState::Unreachable } else { member.state };
        Member { state, ..member }
    }

    /// Those that this node does not know: as another member sees them, and else as the list outside of the cluster has them.
    fn known_by_word_alone(&self, hearsay: &[Member]) -> Vec<Member> {
        let is_unknown = |node: NodeId| !self.cx.members().has(node);
        let told = hearsay.iter().filter(|member| is_unknown(member.incarnation.node)).map(|member| {
            // It answers that one, and not this node.
            let state = if member.state.is_there() { NodeState::Unconnected } else { member.state };
            Member { state, ..member.clone() }
        });
        let mut known: BTreeMap<NodeId, Member> =
            told.map(|member| (member.incarnation.node, member)).collect();
        for (node, state) in self.cx.membership().listed().states().filter(|(node, _)| is_unknown(*node)) {
            let incarnation = NodeIncarnation { node, id: Incarnation(0) };
            known.entry(node).or_insert_with(|| Member { state, ..Member::unseen(incarnation) });
        }
        known.into_values().collect()
    }

    /// Asks that node alone.
    pub(super) fn ask_one_for_status(&mut self, op: OpId, node: NodeId) {
        self.ask_for_status(op, vec![node], Vec::new(), Vec::new());
    }

    fn ask_for_status(&mut self, op: OpId, nodes: Vec<NodeId>, found: Vec<NodeStatus>, hearsay: Vec<Member>) {
        let (since_ns, missing) = (self.cx.now_ns(), nodes.clone());
        self.commands
            .statuses
            .0
            .insert(op, Gathering { missing, found, hearsay, since_ns, due_ns: u64::MAX, most_ns: u64::MAX });
        for node in nodes {
            self.cx.ask(node, Request::Status, Purpose::User(op, UserStep::StatusOf(node)));
        }
    }

    /// What is known here of a node that is not asked, or does not answer.
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
            regions: 0,
            mappings: 0,
            loss: member.loss,
        }
    }

    /// The same of one that was asked in vain.
    fn status_of_silent(&self, node: NodeId, hearsay: &[Member]) -> Option<NodeStatus> {
        let known =
            self.cx.members().described(self.cx.now_ns()).find(|member| member.incarnation.node == node);
        let told = || hearsay.iter().find(|member| member.incarnation.node == node).cloned();
        let member = known.or_else(told)?;
        let state = if member.state.is_there() { NodeState::Silent } else { member.state };
        Some(self.status_of(Member { state, ..member }))
    }

    pub(super) fn gather_status(&mut self, op: OpId, node: NodeId, body: Result<Reply, ErrorReply>) {
        let Some(mut gathering) = self.commands.statuses.0.remove(&op) else { return };
        gathering.missing.retain(|missing| *missing != node);
        match body {
            Ok(Reply::Status(status)) => gathering.found.push(*status),
            _ => gathering.found.extend(self.status_of_silent(node, &gathering.hearsay)),
        }
        let is_all_but_met = gathering.missing.iter().all(|node| self.cx.is_awaited(*node));
        if gathering.missing.is_empty() {
            return self.conclude_status(op, gathering);
        }
        if is_all_but_met && gathering.due_ns == u64::MAX {
            let patience_ns = self.cx.lease_ns() / DIAL_PATIENCE_PER_LEASE;
            gathering.due_ns = gathering.since_ns.saturating_add(patience_ns);
            gathering.most_ns = gathering.since_ns.saturating_add(DIAL_PATIENCE_OF_THE_HEARD * patience_ns);
        }
        self.commands.statuses.0.insert(op, gathering);
    }

    /// Those that are still being met have taken too long.
    pub(in crate::engine) fn conclude_overdue_statuses(&mut self) {
        let now_ns = self.cx.now_ns();
        let overdue: Vec<(OpId, Gathering)> =
            self.commands.statuses.0.extract_if(.., |_, gathering| gathering.due_ns <= now_ns).collect();
        for (op, mut gathering) in overdue {
            let missing = std::mem::take(&mut gathering.missing);
            let silent =
                missing.into_iter().filter_map(|node| self.status_of_silent(node, &gathering.hearsay));
            gathering.found.extend(silent);
            self.conclude_status(op, gathering);
        }
    }

    fn conclude_status(&mut self, op: OpId, mut gathering: Gathering) {
        gathering.found.sort_by_key(|status| status.node);
        self.cx.finish(op, Ok(Outcome::Status(gathering.found)));
    }
}
