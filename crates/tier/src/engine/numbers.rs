//! Numbers of nodes that stay: the directory gives them out, each once, and none that anybody had before.

use super::{Engine, Requester};
use crate::effect::Effect;
use crate::ids::NodeId;
use crate::message::{ErrorReply, Reply};

/// Which numbers are taken.  Only the directory's are of use.
#[derive(Debug)]
pub(super) struct Numbers {
    /// All below are.
    next: u32,
}

impl Default for Numbers {
    /// The first node has its own.
    fn default() -> Numbers {
        Numbers { next: NodeId::FIRST.0 + 1 }
    }
}

impl Engine {
    /// A former life of this node, if it was the directory, had all numbers below `next` taken: see
    /// [`Effect::NumbersTaken`].  To be called before anybody is met.
    pub fn restore_numbers(&mut self, next: u32) {
        self.numbers.next = self.numbers.next.max(next);
    }

    pub(super) fn serve_number(&mut self, requester: Requester) {
        let number = NodeId(self.numbers.next);
        if number.is_ephemeral() {
            return self.answer(requester, Err(ErrorReply::NoNumbers));
        }
        self.take_number(number);
        self.answer(requester, Ok(Reply::Number(number)));
    }

    /// A node has chosen its number by itself, or has had it since before we were the directory.
    pub(super) fn note_number_of(&mut self, node: NodeId) {
        if self.directory.seat() == self.config.life.node
            && !node.is_ephemeral()
            && node.0 >= self.numbers.next
        {
            self.take_number(node);
        }
    }

    fn take_number(&mut self, number: NodeId) {
        self.numbers.next = number.0 + 1;
        self.effects.push_back(Effect::NumbersTaken { next: self.numbers.next });
    }
}
