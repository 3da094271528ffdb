//! Our part of the directory: it is told what happens, and says what it has to say; and numbers of nodes that stay, which it gives
//! out, each once, and none that anybody had before.

use std::collections::BTreeSet;

use super::context::{Context, Purpose};
use super::{Engine, Requester};
use crate::directory::{
    Directory, DirectoryFigures, EtcdDirectory, HomeSays, MoveJob, Said, StoreFailure, Stored, Word,
};
use crate::effect::Effect;
use crate::ids::{NodeId, NodeIncarnation, RegionId};
use crate::message::{ErrorReply, NamesAt, NodeState, Notice, Reply, Request};
use crate::news::News;

/// See the header of this file.
pub(super) struct DirectoryPart {
    directory: Box<dyn Directory>,
    /// All numbers below are taken.  Only the directory's are of use.
    next_number: u32,
    /// The last that was given out again, once none was left that no node had had.
    given_again: NodeId,
    /// Where the names are, or would be, if others may be told.
    at: Option<NamesAt>,
    moving: Option<Moving>,
}

/// Somebody wants the names brought elsewhere.
struct Moving {
    requester: Requester,
    to: NamesAt,
    /// Nodes that have yet to say whether they would reach them there.
    untried: BTreeSet<NodeId>,
}

impl DirectoryPart {
    pub(super) fn new(directory: Box<dyn Directory>) -> DirectoryPart {
        // The first node has its own.
        let (next_number, given_again) = (NodeId::FIRST.0 + 1, NodeId::FIRST);
        DirectoryPart { directory, next_number, given_again, at: None, moving: None }
    }

    /// The node that answers.
    pub(super) fn seat(&self) -> NodeId {
        self.directory.seat()
    }

    pub(super) fn figures(&self) -> Option<DirectoryFigures> {
        self.directory.figures()
    }

    /// Tells it what has happened, and says what it has to say.
    pub(super) fn tell(&mut self, cx: &mut Context<'_>, word: Word) {
        self.directory.tell(cx.now_ns(), word);
        self.say(cx);
    }

    pub(super) fn serve(&mut self, cx: &mut Context<'_>, requester: Requester, question: Request) {
        let is_ours =
            requester.incarnation == cx.incarnation() || matches!(question, Request::ForgetNode { .. });
        if self.is_outside() && !is_ours {
            // It has been told where, before this answer.
            return cx.answer(requester, Err(ErrorReply::NamesElsewhere));
        }
        self.directory.ask(cx.now_ns(), requester, question);
        self.say(cx);
    }

    fn say(&mut self, cx: &mut Context<'_>) {
        while let Some(said) = self.directory.poll() {
            match said {
                Said::Answer { requester, body } => cx.answer(requester, body),
                Said::NameLost { home, name, region } => {
                    cx.notify(home.node, Notice::NameLost { name, region })
                }
                // Another incarnation than is meant has no such name to give up, and is not believed.
                Said::AskHome { id, home, name, region } => {
                    let question = Request::ReleaseName { name, region };
                    cx.ask(home.node, question, Purpose::AskHome(id, home));
                }
                Said::Store { id, transaction } => cx.push(Effect::Store { id, transaction }),
                Said::Moved { names, lost } => self.finish_move(cx, names, lost),
                Said::NotMoved { reason } => self.refuse_move(cx, reason),
                Said::News(news) => cx.tell(news),
            }
        }
    }

    /// The names are to be brought elsewhere: first, all nodes that stay say whether they would reach them there.
    pub(super) fn serve_move(&mut self, cx: &mut Context<'_>, requester: Requester, to: NamesAt) {
        let refusal = match &self.at {
            _ if !to.is_well_formed() => return cx.answer(requester, Err(ErrorReply::Malformed)),
            // It was done before, perhaps for one that did not hear so.
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
        self.moving = Some(Moving { requester, to: to.clone(), untried: untried.clone() });
        for node in untried {
            cx.ask(node, Request::TryNames { at: to.clone() }, Purpose::TryNames(node));
        }
    }

    /// A node has said whether it would reach the names where they are to be.
    pub(super) fn note_tried(&mut self, cx: &mut Context<'_>, node: NodeId, body: Result<Reply, ErrorReply>) {
        let Some(moving) = &mut self.moving else { return };
        if !moving.untried.remove(&node) {
            return;
        }
        match body {
            Err(ErrorReply::NamesNotMoved { reason }) => {
                self.refuse_move(cx, format!("node {node} would not reach them: {reason}"))
            }
            Err(error) => {
                self.refuse_move(cx, format!("node {node} does not say whether it would reach them: {error}"))
            }
            Ok(_) if moving.untried.is_empty() => {
                let (at, me) = (moving.to.clone(), cx.incarnation());
                let (prefix, next_number) = (at.prefix.clone(), self.next_number);
                cx.push(Effect::OpenStore(at));
                let job = MoveJob { me, prefix, epoch_ns: cx.config().epoch_ns, next_number };
                self.directory.begin_move(cx.now_ns(), job);
                self.say(cx);
            }
            Ok(_) => {}
        }
    }

    fn refuse_move(&mut self, cx: &mut Context<'_>, reason: String) {
        if let Some(Moving { requester, .. }) = self.moving.take() {
            cx.answer(requester, Err(ErrorReply::NamesNotMoved { reason }));
        }
    }

    /// All names are written there.  Everybody is told, this node as well.
    fn finish_move(&mut self, cx: &mut Context<'_>, names: u64, lost: u64) {
        let Some(Moving { requester, to, .. }) = self.moving.take() else { return };
        cx.notify(cx.incarnation().node, Notice::NamesAt(to.clone()));
        cx.notify_all(&Notice::NamesAt(to));
        cx.answer(requester, Ok(Reply::NamesMoved { names, lost }));
    }

    /// Where the names are, if others may be told.
    pub(super) fn at(&self) -> Option<&NamesAt> {
        self.at.as_ref()
    }

    /// Who answers for names, for node `me`.
    pub(super) fn names_seat(&self, me: NodeId) -> NodeId {
        if self.is_outside() { me } else { self.seat() }
    }

    pub(super) fn is_outside(&self) -> bool {
        self.directory.is_outside()
    }

    pub(super) fn lacks_store(&self) -> bool {
        self.directory.lacks_store()
    }

    /// When it wants to hear of the time, in ns.
    pub(super) fn deadline_ns(&self) -> u64 {
        self.directory.poll_timeout()
    }

    /// Time has passed.
    pub(super) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        self.directory.handle_timeout(cx.now_ns());
        self.say(cx);
    }

    /// This node leaves.
    pub(super) fn sign_off(&mut self, cx: &mut Context<'_>) {
        self.directory.sign_off(cx.now_ns());
        self.say(cx);
    }

    fn handle_stored(&mut self, cx: &mut Context<'_>, id: u64, result: Result<Stored, StoreFailure>) {
        self.directory.handle_stored(cx.now_ns(), id, result);
        self.say(cx);
    }

    /// Gives out a number that no node has had; once there is none, the one that was `given_up`.
    pub(super) fn serve_number(
        &mut self,
        cx: &mut Context<'_>,
        requester: Requester,
        given_up: Option<NodeId>,
    ) {
        if self.is_outside() {
            return self.serve(cx, requester, Request::TakeNumber);
        }
        let number = NodeId(self.next_number);
        let body = match (number.is_ephemeral(), given_up) {
            (false, _) => {
                self.take_number(cx, number);
                Ok(Reply::Number(number))
            }
            (true, Some(number)) => {
                self.given_again = number;
                Ok(Reply::Number(number))
            }
            (true, None) => Err(ErrorReply::NoNumbers),
        };
        cx.answer(requester, body);
    }

    /// The number that was last given out again, if none is left that no node has had.
    pub(super) fn last_given_again(&self) -> Option<NodeId> {
        NodeId(self.next_number).is_ephemeral().then_some(self.given_again)
    }

    /// A node has chosen its number by itself, or has had it since before we were the directory.
    pub(super) fn note_number_of(&mut self, cx: &mut Context<'_>, node: NodeId) {
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
    /// The next number behind `last`, in a circle, whose node has left, or was forgotten, as far as is known here.  Of several who ask each is so given another
    /// one, though it takes them a moment to join; and a dead node may be started anew with its own.
    pub(super) fn number_given_up(&self, last: NodeId) -> Option<NodeId> {
        let (first, end) = (NodeId::FIRST.0 + 1, NodeId::EPHEMERAL_MIN.0);
        let mut circle = (last.0 + 1..end).chain(first..=last.0).map(NodeId);
        let (members, pairings) = (self.membership.members(), self.membership.pairings());
        let is_given_up = |node: &NodeId| {
            let has_left = members.state_of(*node).is_none_or(|state| state == NodeState::Left);
            has_left && pairings.incarnations_of(*node).is_empty()
        };
        circle.find(is_given_up)
    }

    /// The names are kept there from the first: others who do not know are told.
    pub fn set_names_at(&mut self, at: NamesAt) {
        self.directory.at = Some(at);
    }

    /// Whether a question is for a home of ours: what is outside of the cluster gives this node's own names up.
    pub(super) fn is_asked_as_home(&self, requester: Requester) -> bool {
        let is_own = requester.incarnation == self.out.incarnation();
        self.directory.is_outside() && (!is_own || self.out.asks_as_home(requester.id))
    }

    /// A name leads to a region of this node, somebody says.  If there is no such region, the name is freed.
    pub(super) fn serve_left_over(&mut self, requester: Requester, name: &str, region: RegionId) {
        if self.homes.may_have(region, name) {
            return self.cx().answer(requester, Err(ErrorReply::NameTaken));
        }
        let (directory, mut cx) = self.directory_side();
        directory.directory.free_left_over(cx.now_ns(), requester, name, region);
        directory.say(&mut cx);
    }

    /// What a home has said of a name, if it was that home.
    pub(super) fn handle_home_says(
        &mut self,
        id: u64,
        home: NodeIncarnation,
        from: NodeIncarnation,
        body: &Result<Reply, ErrorReply>,
    ) {
        let (directory, mut cx) = self.directory_side();
        let says = match body {
            Ok(Reply::Done) if from == home => HomeSays::Freed,
            Err(ErrorReply::NameTaken) if from == home => HomeSays::Has,
            // Node 0 knows all members: who does not hear it cannot say that there is none of a number.
            Err(ErrorReply::UnknownNode(_)) if cx.hears(NodeId::FIRST) => HomeSays::Unknown,
            _ => HomeSays::Silent,
        };
        directory.directory.handle_home_says(cx.now_ns(), id, says);
        directory.say(&mut cx);
    }

    /// Whether all is seen to outside that a node which [leaves](Engine::leave) has there.
    pub fn is_signed_off(&self) -> bool {
        self.directory.directory.is_signed_off()
    }

    /// Whether the store would be reached that [`Effect::TryStore`] asks for; why not, if not.
    pub fn handle_tried(&mut self, now_ns: u64, requester: Requester, result: Result<(), String>) {
        self.out.set_now(now_ns);
        let body = result.map(|()| Reply::Done).map_err(|reason| ErrorReply::NamesNotMoved { reason });
        self.cx().answer(requester, body);
        self.settle();
    }

    /// Somebody is paired with this node, as its part of the directory is told, who may not have been there when the names were moved.
    pub(super) fn tell_where_names_are(&mut self, who: NodeIncarnation) {
        self.tell_directory(Word::Paired(who));
        if let Some(at) = self.directory.at().cloned() {
            self.cx().notify(who.node, Notice::NamesAt(at));
        }
    }

    /// The names are outside of the cluster: from now on this node asks for them there.
    pub(super) fn handle_names_at(&mut self, from: NodeIncarnation, at: NamesAt) {
        if !at.is_well_formed() {
            return;
        }
        let me = self.out.incarnation();
        if self.directory.is_outside() {
            let is_apart = self.directory.at().is_some_and(|own| own.prefix != at.prefix);
            if is_apart {
                self.out.tell(News::NamesApart { node: from.node, address: at.address });
            }
            return;
        }
        let (waiting, words) = self.directory.directory.take_rest();
        self.out.push(Effect::OpenStore(at.clone()));
        self.out.push(Effect::NamesAt(at.clone()));
        self.out.tell(News::NamesMoved { address: at.address.clone() });
        let moved = EtcdDirectory::new(me, &at.prefix, self.out.config().epoch_ns);
        self.directory.directory = Box::new(moved);
        self.directory.at = Some(at.clone());
        let (directory, mut cx) = self.directory_side();
        // Somebody else was quicker.
        directory.refuse_move(&mut cx, format!("they are at {} already", at.address));
        let paired: Vec<NodeIncarnation> =
            self.membership.members().peers().map(|(_, peer)| peer.incarnation).collect();
        paired.into_iter().for_each(|who| self.tell_directory(Word::Paired(who)));
        words.into_iter().for_each(|word| self.tell_directory(word));
        self.home_side().tell_names();
        for requester in waiting {
            self.cx().answer(requester, Err(ErrorReply::NamesElsewhere));
        }
    }

    /// A transaction that the directory wanted carried out ([`Effect::Store`]) was, or was not.
    pub fn handle_stored(&mut self, now_ns: u64, id: u64, result: Result<Stored, StoreFailure>) {
        self.out.set_now(now_ns);
        let (directory, mut cx) = self.directory_side();
        directory.handle_stored(&mut cx, id, result);
        self.settle();
    }

    /// A former incarnation of this node, if it was the directory, had all numbers below `next` taken: see
    /// [`Effect::NumbersTaken`].  To be called before anybody is met.
    pub fn restore_numbers(&mut self, next: u32) {
        self.directory.next_number = self.directory.next_number.max(next);
    }
}
