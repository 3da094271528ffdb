//! Our part of the directory: it is told what happens, and says what it has to say; and numbers of nodes that stay, which it gives
//! out, each once, and none that anybody had before.

use super::context::Context;
use super::{Engine, Requester};
use crate::directory::{Directory, DirectoryFigures, Said, Word};
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
                Said::News(news) => cx.tell(news),
            }
        }
    }

    pub(super) fn serve_number(&mut self, cx: &mut Context<'_>, requester: Requester) {
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
    /// A former life of this node, if it was the directory, had all numbers below `next` taken: see
    /// [`Effect::NumbersTaken`].  To be called before anybody is met.
    pub fn restore_numbers(&mut self, next: u32) {
        self.directory.next_number = self.directory.next_number.max(next);
    }
}
