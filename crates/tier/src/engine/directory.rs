//! Connects the engine to this node's part of the directory: passes events to the directory and sends its answers. Also
//! issues numbers to permanent nodes. No number is issued twice unless all are taken.

use std::collections::BTreeSet;

use super::context::{Context, Purpose};
use super::{Engine, Requester};
use crate::directory::{
    Directory, DirectoryEvent, DirectoryFigures, DirectoryOutput, Embedded, EtcdDirectory, HomeReply,
    MoveJob, Returned, StoreFailure, Stored,
};
use crate::effect::Effect;
use crate::ids::{NodeId, NodeIncarnation, RegionId};
use crate::message::{ErrorReply, NamesAt, NodeState, Notice, Reply, Request};
use crate::news::News;

/// The directory, and the state of a move of its names.
pub(super) struct DirectoryPart {
    directory: Box<dyn Directory>,
    /// The next number to issue; all lower ones are taken. Used by the directory's node only.
    next_number: u32,
    /// The last number reissued, once all unused numbers were taken.
    last_reissued: NodeId,
    /// Location of the outside store of names, for peers; `None` if unknown or not to be sent to them.
    at: Option<NamesAt>,
    moving: Option<Moving>,
    /// What node 0 has read from the store, until it answers requests itself.
    returned: Option<Box<Returned>>,
    /// Prefixes of stores from which the names have moved back to node 0. Other nodes may not know of that yet.
    left: BTreeSet<String>,
}

/// Maximum number of prefixes to remember.
const LEFT_MAX: usize = 64;

/// A move of the names to an outside store, or back.
struct Moving {
    requester: Requester,
    /// `None` for a move back.
    to: Option<NamesAt>,
    /// Nodes that have not yet reported whether they reach the store.
    untried: BTreeSet<NodeId>,
}

impl DirectoryPart {
    pub(super) fn new(directory: Box<dyn Directory>) -> DirectoryPart {
        // The first node has its number without a request.
        let (next_number, last_reissued) = (NodeId::FIRST.0 + 1, NodeId::FIRST);
        DirectoryPart {
            directory,
            next_number,
            last_reissued,
            at: None,
            moving: None,
            returned: None,
            left: BTreeSet::new(),
        }
    }

    /// Returns the node that holds the directory.
    pub(super) fn seat(&self) -> NodeId {
        self.directory.seat()
    }

    pub(super) fn figures(&self) -> Option<DirectoryFigures> {
        self.directory.figures()
    }

    /// Passes an event to the directory, and sends the resulting answers.
    pub(super) fn tell(&mut self, cx: &mut Context<'_>, event: DirectoryEvent) {
        self.directory.handle_event(cx.now_ns(), event);
        self.send_outputs(cx);
    }

    pub(super) fn serve(&mut self, cx: &mut Context<'_>, requester: Requester, question: Request) {
        let is_ours =
            requester.incarnation == cx.incarnation() || matches!(question, Request::ForgetNode { .. });
        let is_elsewhere = match self.is_outside() {
            true => !is_ours,
            // The names moved back to node 0 since this node sent the request to itself.
            false => requester.incarnation == cx.incarnation() && self.seat() != cx.incarnation().node,
        };
        if is_elsewhere {
            // The requester is notified of the new location before this answer arrives.
            return cx.answer(requester, Err(ErrorReply::NamesElsewhere));
        }
        self.directory.handle_request(cx.now_ns(), requester, question);
        self.send_outputs(cx);
    }

    fn send_outputs(&mut self, cx: &mut Context<'_>) {
        while let Some(output) = self.directory.poll() {
            match output {
                DirectoryOutput::Answer { requester, body } => cx.answer(requester, body),
                DirectoryOutput::NameLost { home, name, region } => {
                    cx.notify(home.node, Notice::NameLost { name, region })
                }
                // Another incarnation has no such name to release, and its answer is ignored.
                DirectoryOutput::AskHome { id, home, name, region } => {
                    let question = Request::ReleaseName { name, region };
                    cx.ask(home.node, question, Purpose::AskHome(id, home));
                }
                DirectoryOutput::Store { id, transaction } => cx.push(Effect::Store { id, transaction }),
                DirectoryOutput::Moved { names, lost } => self.finish_move(cx, names, lost),
                DirectoryOutput::NotMoved { reason } => self.refuse_move(cx, reason),
                DirectoryOutput::Returned(returned) => {
                    self.returned = Some(returned);
                    self.leave_store(cx);
                }
                DirectoryOutput::Closed => self.leave_store(cx),
                DirectoryOutput::News(news) => cx.report(news),
            }
        }
    }

    /// Makes this node leave the store, after the present event.
    fn leave_store(&mut self, cx: &mut Context<'_>) {
        if let Some(prefix) = self.directory.prefix() {
            cx.notify(cx.incarnation().node, Notice::NamesBack { prefix: prefix.to_owned() });
        }
    }

    /// Starts to move the names back to this node.
    pub(super) fn serve_return(&mut self, cx: &mut Context<'_>, requester: Requester) {
        let refusal = match self.moving {
            _ if self.seat() != cx.incarnation().node => "this is not node 0",
            Some(_) => "they are being moved already",
            None if !self.is_outside() => {
                return cx.answer(requester, Ok(Reply::NamesMoved { names: 0, lost: 0 }));
            }
            None => {
                self.moving = Some(Moving { requester, to: None, untried: BTreeSet::new() });
                self.directory.begin_return(cx.now_ns());
                return self.send_outputs(cx);
            }
        };
        cx.answer(requester, Err(ErrorReply::NamesNotMoved { reason: refusal.to_owned() }));
    }

    /// Starts a move of the names. First, all permanent nodes check whether they reach the store.
    pub(super) fn serve_move(&mut self, cx: &mut Context<'_>, requester: Requester, to: NamesAt) {
        let refusal = match &self.at {
            _ if !to.is_well_formed() => return cx.answer(requester, Err(ErrorReply::Malformed)),
            // Repeats an earlier move whose reply may have been lost.
            Some(at) if *at == to => {
                return cx.answer(requester, Ok(Reply::NamesMoved { names: 0, lost: 0 }));
            }
            Some(at) => Some(format!("they are at {} already", at.address)),
            None if self.is_outside() => Some("they are in etcd already".to_owned()),
            None if self.moving.is_some() => Some("they are being moved already".to_owned()),
            None if self.seat() != cx.incarnation().node => Some("they are not at this node".to_owned()),
            None => None,
        };
        if let Some(reason) = refusal {
            return cx.answer(requester, Err(ErrorReply::NamesNotMoved { reason }));
        }
        let others = cx.members().peers().map(|(_, peer)| peer.incarnation.node);
        let untried: BTreeSet<NodeId> =
            others.filter(|node| !node.is_ephemeral()).chain([cx.incarnation().node]).collect();
        self.moving = Some(Moving { requester, to: Some(to.clone()), untried: untried.clone() });
        for node in untried {
            cx.ask(node, Request::TryNames { at: to.clone() }, Purpose::TryNames(node));
        }
    }

    /// Handles a node's report on whether it reaches the store.
    pub(super) fn handle_reach_report(
        &mut self,
        cx: &mut Context<'_>,
        node: NodeId,
        body: Result<Reply, ErrorReply>,
    ) {
        let Some(moving) = &mut self.moving else { return };
        if !moving.untried.remove(&node) {
            return;
        }
        match body {
            Err(ErrorReply::NamesNotMoved { reason }) => {
                self.refuse_move(cx, format!("node {node} does not reach the new store: {reason}"))
            }
            Err(error) => self.refuse_move(
                cx,
                format!("node {node} did not report whether it reaches the new store: {error}"),
            ),
            Ok(_) if moving.untried.is_empty() => {
                let Some(at) = moving.to.clone() else { return };
                let me = cx.incarnation();
                let (prefix, next_number) = (at.prefix.clone(), self.next_number);
                cx.push(Effect::OpenStore(at));
                let job = MoveJob { me, prefix, epoch_ns: cx.config().epoch_ns, next_number };
                self.directory.begin_move(cx.now_ns(), job);
                self.send_outputs(cx);
            }
            Ok(_) => {}
        }
    }

    fn refuse_move(&mut self, cx: &mut Context<'_>, reason: String) {
        if let Some(Moving { requester, .. }) = self.moving.take() {
            cx.answer(requester, Err(ErrorReply::NamesNotMoved { reason }));
        }
    }

    /// Notifies all nodes, including this one, that the store now has all names.
    fn finish_move(&mut self, cx: &mut Context<'_>, names: u64, lost: u64) {
        let Some(Moving { requester, to: Some(to), .. }) = self.moving.take() else { return };
        cx.notify(cx.incarnation().node, Notice::NamesAt(to.clone()));
        cx.notify_all(&Notice::NamesAt(to));
        cx.answer(requester, Ok(Reply::NamesMoved { names, lost }));
    }

    /// Returns the location of the names if this node may inform peers of it, else `None`.
    pub(super) fn at(&self) -> Option<&NamesAt> {
        self.at.as_ref()
    }

    /// Returns true if the names have moved back to node 0 from this store.
    pub(super) fn has_left(&self, at: &NamesAt) -> bool {
        self.left.contains(at.prefix.trim_end_matches('/'))
    }

    /// Returns the node that keeps names, as seen from node `me`.
    pub(super) fn names_seat(&self, me: NodeId) -> NodeId {
        if self.is_outside() { me } else { self.seat() }
    }

    pub(super) fn is_outside(&self) -> bool {
        self.directory.is_outside()
    }

    pub(super) fn lacks_store(&self) -> bool {
        self.directory.lacks_store()
    }

    /// Returns the time of the directory's next timeout, in ns.
    pub(super) fn deadline_ns(&self) -> u64 {
        self.directory.poll_timeout()
    }

    pub(super) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        self.directory.handle_timeout(cx.now_ns());
        self.send_outputs(cx);
    }

    /// Makes the directory clean up, because this node leaves.
    pub(super) fn deregister(&mut self, cx: &mut Context<'_>) {
        self.directory.deregister(cx.now_ns());
        self.send_outputs(cx);
    }

    fn handle_stored(&mut self, cx: &mut Context<'_>, id: u64, result: Result<Stored, StoreFailure>) {
        self.directory.handle_stored(cx.now_ns(), id, result);
        self.send_outputs(cx);
    }

    /// Issues a number that no node has had. If no such number is left, issues `reusable`.
    pub(super) fn serve_number(
        &mut self,
        cx: &mut Context<'_>,
        requester: Requester,
        reusable: Option<NodeId>,
    ) {
        if self.is_outside() {
            return self.serve(cx, requester, Request::TakeNumber);
        }
        let number = NodeId(self.next_number);
        let body = match (number.is_ephemeral(), reusable) {
            (false, _) => {
                self.take_number(cx, number);
                Ok(Reply::Number(number))
            }
            (true, Some(number)) => {
                self.last_reissued = number;
                Ok(Reply::Number(number))
            }
            (true, None) => Err(ErrorReply::NoNumbers),
        };
        cx.answer(requester, body);
    }

    /// Returns the last number that was issued again, or `None` while unused numbers are left.
    pub(super) fn last_reissued_number(&self) -> Option<NodeId> {
        NodeId(self.next_number).is_ephemeral().then_some(self.last_reissued)
    }

    /// Marks a number as taken that its node chose itself or received from an earlier directory.
    pub(super) fn mark_number_taken(&mut self, cx: &mut Context<'_>, node: NodeId) {
        if self.seat() == cx.incarnation().node && !node.is_ephemeral() && node.0 >= self.next_number {
            self.take_number(cx, node);
        }
    }

    fn take_number(&mut self, cx: &mut Context<'_>, number: NodeId) {
        self.next_number = number.0 + 1;
        cx.push(Effect::NumbersTaken { next: self.next_number });
    }
}

impl Engine {
    /// Returns the next number after `last`, cyclically, whose node has left or was forgotten. Since the search
    /// continues from `last`, concurrent requesters receive different numbers before they have joined. Numbers of lost
    /// nodes are omitted, so that such a node can restart under its own number.
    pub(super) fn reusable_number(&self, last: NodeId) -> Option<NodeId> {
        let (first, end) = (NodeId::FIRST.0 + 1, NodeId::EPHEMERAL_MIN.0);
        let mut circle = (last.0 + 1..end).chain(first..=last.0).map(NodeId);
        let (members, pairings) = (self.membership.members(), self.membership.pairings());
        let is_reusable = |node: &NodeId| {
            let has_left = members.state_of(*node).is_none_or(|state| state == NodeState::Left);
            has_left && pairings.incarnations_of(*node).is_empty()
        };
        circle.find(is_reusable)
    }

    /// Records that the names have been in the store `at` since this node started. This node will announce this
    /// location to its peers.
    pub fn set_names_at(&mut self, at: NamesAt) {
        self.directory.at = Some(at);
    }

    /// Returns true if a request to the directory asks this node in its role as a home. If names are in an outside
    /// store, other nodes ask this node to release the names of its regions.
    pub(super) fn is_asked_as_home(&self, requester: Requester) -> bool {
        let is_own = requester.incarnation == self.out.incarnation();
        self.directory.is_outside() && (!is_own || self.out.asks_as_home(requester.id))
    }

    /// Serves a requester that found, in the store, a name recorded for a region whose home is this node. Frees the
    /// name if this node has no such region.
    pub(super) fn serve_leftover_name(&mut self, requester: Requester, name: &str, region: RegionId) {
        if self.homes.may_have(region, name) {
            return self.cx().answer(requester, Err(ErrorReply::NameTaken));
        }
        let (directory, mut cx) = self.directory_side();
        directory.directory.free_leftover(cx.now_ns(), requester, name, region);
        directory.send_outputs(&mut cx);
    }

    /// Handles a home's reply about a name.
    pub(super) fn handle_home_reply(
        &mut self,
        id: u64,
        home: NodeIncarnation,
        from: NodeIncarnation,
        body: &Result<Reply, ErrorReply>,
    ) {
        let (directory, mut cx) = self.directory_side();
        let reply = match body {
            Ok(Reply::Done) if from == home => HomeReply::Freed,
            Err(ErrorReply::NameTaken) if from == home => HomeReply::Has,
            // Node 0 knows all members; without it, an unknown number proves nothing.
            Err(ErrorReply::UnknownNode(_)) if cx.is_node_present(NodeId::FIRST) => HomeReply::Unknown,
            _ => HomeReply::Silent,
        };
        directory.directory.handle_home_reply(cx.now_ns(), id, reply);
        directory.send_outputs(&mut cx);
    }

    /// Returns true if this node, which [leaves](Engine::leave), has removed its obsolete entries from the outside
    /// store.
    pub fn is_deregistered(&self) -> bool {
        self.directory.directory.is_deregistered()
    }

    /// Handles the result of [`Effect::TryStore`]: `Ok` if this node reached the store, else the reason for display.
    pub fn handle_tried(&mut self, now_ns: u64, requester: Requester, result: Result<(), String>) {
        self.out.set_now(now_ns);
        let body = result.map(|()| Reply::Done).map_err(|reason| ErrorReply::NamesNotMoved { reason });
        self.cx().answer(requester, body);
        self.run_loopback();
    }

    /// Notifies a newly paired node of the location of the names, since it may have missed their move.
    pub(super) fn announce_names_store(&mut self, newcomer: NodeIncarnation) {
        self.tell_directory(DirectoryEvent::Paired(newcomer));
        for prefix in self.directory.left.clone() {
            self.cx().notify(newcomer.node, Notice::NamesBack { prefix });
        }
        if let Some(at) = self.directory.at().cloned() {
            self.cx().notify(newcomer.node, Notice::NamesAt(at));
        }
    }

    /// Switches this node to the store outside the cluster to which the names have moved.
    pub(super) fn handle_names_at(&mut self, from: NodeIncarnation, at: NamesAt) {
        // The sender does not know yet that the names have moved back, and learns it from node 0.
        if !at.is_well_formed() || self.directory.has_left(&at) {
            return;
        }
        let me = self.out.incarnation();
        if self.directory.is_outside() {
            let is_apart = self.directory.at().is_some_and(|own| own.prefix != at.prefix);
            if is_apart {
                self.out.report(News::NamesApart { node: from.node, address: at.address });
            }
            return;
        }
        let (waiting, events) = self.directory.directory.take_pending();
        self.out.push(Effect::OpenStore(at.clone()));
        self.out.push(Effect::NamesAt(at.clone()));
        self.out.report(News::NamesMoved { address: at.address.clone() });
        let moved = EtcdDirectory::new(me, &at.prefix, self.out.config().epoch_ns);
        self.directory.directory = Box::new(moved);
        self.directory.at = Some(at.clone());
        let (directory, mut cx) = self.directory_side();
        // Another node has moved the names first.
        directory.refuse_move(&mut cx, format!("they are at {} already", at.address));
        let paired: Vec<NodeIncarnation> =
            self.membership.members().peers().map(|(_, peer)| peer.incarnation).collect();
        paired.into_iter().for_each(|newcomer| self.tell_directory(DirectoryEvent::Paired(newcomer)));
        events.into_iter().for_each(|event| self.tell_directory(event));
        self.home_side().report_names();
        for requester in waiting {
            self.cx().answer(requester, Err(ErrorReply::NamesElsewhere));
        }
    }

    /// Handles the news that the names have moved from the store at `prefix` back to node 0.
    pub(super) fn handle_names_back(&mut self, from: NodeIncarnation, prefix: String) {
        if prefix.len() > NamesAt::BYTES_MAX {
            return;
        }
        let is_left = self.directory.directory.prefix() == Some(&prefix);
        let known = &mut self.directory.left;
        known.insert(prefix.clone());
        if known.len() > LEFT_MAX {
            known.pop_first();
        }
        if is_left {
            self.leave_store(prefix);
        } else if from.node == self.directory.seat() && !self.directory.is_outside() {
            // Node 0 may have left the store after this node, and so have missed its names.
            self.home_side().report_names();
        }
    }

    /// Asks node 0 for names from now on. Node 0 itself answers once all connected homes have reported their names.
    fn leave_store(&mut self, prefix: String) {
        let me = self.out.incarnation();
        let (waiting, _) = self.directory.directory.take_pending();
        let returned = *self.directory.returned.take().unwrap_or_default();
        let (names, lost) = returned.count();
        let next = returned.next_number;
        let peers = self.membership.members().peers().map(|(_, peer)| peer.incarnation);
        let last_id = self.directory.directory.last_id();
        let embedded = Embedded::after_return(me.node, returned, peers.chain([me]), last_id);
        self.directory.directory = Box::new(embedded);
        self.directory.at = None;
        self.membership.forget_listed();
        self.out.push(Effect::NamesBack);
        self.out.report(News::NamesBack);
        if self.directory.seat() == me.node {
            self.restore_numbers(next);
            self.out.push(Effect::NumbersTaken { next: self.directory.next_number });
            self.cx().notify_all(&Notice::NamesBack { prefix });
        }
        self.home_side().report_names();
        for requester in waiting {
            self.cx().answer(requester, Err(ErrorReply::NamesElsewhere));
        }
        if let Some(Moving { requester, .. }) = self.directory.moving.take() {
            self.cx().answer(requester, Ok(Reply::NamesMoved { names, lost }));
        }
    }

    /// Handles the result of a transaction ([`Effect::Store`]).
    pub fn handle_stored(&mut self, now_ns: u64, id: u64, result: Result<Stored, StoreFailure>) {
        self.out.set_now(now_ns);
        let (directory, mut cx) = self.directory_side();
        directory.handle_stored(&mut cx, id, result);
        self.run_loopback();
    }

    /// Records that all node numbers below `next` are taken. A former incarnation of this node, which held the
    /// directory, persisted `next` by [`Effect::NumbersTaken`]. Call before any peer connects.
    pub fn restore_numbers(&mut self, next: u32) {
        self.directory.next_number = self.directory.next_number.max(next);
    }
}
