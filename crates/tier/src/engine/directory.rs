//! Our part of the directory: it is told what happens, and says what it has to say; and numbers of nodes that stay, which it gives
//! out, each once, and none that anybody had before.

use super::context::Context;
use super::{Engine, Requester};
use crate::directory::{Directory, DirectoryFigures, Said, StoreFailure, Stored, Word};
use crate::effect::Effect;
use crate::ids::NodeId;
use crate::message::{ErrorReply, Notice, Reply, Request};

/// See the header of this file.
pub(super) struct DirectoryPart {
    directory: Box<dyn Directory>,
    /// All numbers below are taken.  Only the directory's are of use.
    next_number: u32,
}

impl DirectoryPart {
    pub(super) fn new(directory: Box<dyn Directory>) -> DirectoryPart {
        // The first node has its own.
        DirectoryPart { directory, next_number: NodeId::FIRST.0 + 1 }
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
                Said::Store { id, transaction } => cx.push(Effect::Store { id, transaction }),
                Said::News(news) => cx.tell(news),
            }
        }
    }

    /// Who answers for names, for node `me`.
    pub(super) fn names_seat(&self, me: NodeId) -> NodeId {
        if self.is_outside() { me } else { self.seat() }
    }

    pub(super) fn is_outside(&self) -> bool {
        self.directory.is_outside()
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

    fn handle_stored(&mut self, cx: &mut Context<'_>, id: u64, result: Result<Stored, StoreFailure>) {
        self.directory.handle_stored(cx.now_ns(), id, result);
        self.say(cx);
    }

    pub(super) fn serve_number(&mut self, cx: &mut Context<'_>, requester: Requester) {
        if self.is_outside() {
            return self.serve(cx, requester, Request::TakeNumber);
        }
        let number = NodeId(self.next_number);
        if number.is_ephemeral() {
            return cx.answer(requester, Err(ErrorReply::NoNumbers));
        }
        self.take_number(cx, number);
        cx.answer(requester, Ok(Reply::Number(number)));
    }

    /// A node has chosen its number by itself, or has had it since before we were the directory.
    pub(super) fn note_number_of(&mut self, cx: &mut Context<'_>, node: NodeId) {
        if self.seat() == cx.life().node && !node.is_ephemeral() && node.0 >= self.next_number {
            self.take_number(cx, node);
        }
    }

    fn take_number(&mut self, cx: &mut Context<'_>, number: NodeId) {
        self.next_number = number.0 + 1;
        cx.push(Effect::NumbersTaken { next: self.next_number });
    }
}

impl Engine {
    /// A transaction that the directory wanted carried out ([`Effect::Store`]) was, or was not.
    pub fn handle_stored(&mut self, now_ns: u64, id: u64, result: Result<Stored, StoreFailure>) {
        self.out.set_now(now_ns);
        let (directory, mut cx) = self.directory_side();
        directory.handle_stored(&mut cx, id, result);
        self.settle();
    }

    /// A former life of this node, if it was the directory, had all numbers below `next` taken: see
    /// [`Effect::NumbersTaken`].  To be called before anybody is met.
    pub fn restore_numbers(&mut self, next: u32) {
        self.directory.next_number = self.directory.next_number.max(next);
    }
}
