//! A request on its way to a handler.

use std::cell::RefCell;
use std::sync::Arc;

use halite_fabric::RemoteAddress;
use halite_tier::rpc::{Kind, ServedId};

use super::answer::ReplyTo;
use super::input::{Bytes, Payload};
use crate::rpc::shared::Caller;

/// A request on its way to a handler. It stays in its box, because it is too large to move at each step.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) to: ReplyTo,
    /// True if the sender has its answer; a message is answered as soon as it is queued.
    pub(crate) answered: bool,
    pub(crate) input: Payload,
}

/// Destination of the answer to a request in a line.
pub(super) struct LineReply {
    pub(super) cancels: u32,
    pub(super) id: ServedId,
    pub(super) at: RemoteAddress,
    pub(super) room: u32,
    pub(super) bytes_max: u32,
}

/// Maximum number of finished requests that a thread keeps for reuse.
const SPARES_MAX: usize = 16;

thread_local! {
    /// Finished requests, kept for reuse. Each may refer to a node that has ended, but holds none of the node's memory.
    #[expect(clippy::vec_box, reason = "requests are too large to move")]
    static SPARES: RefCell<Vec<Box<Incoming>>> = const { RefCell::new(Vec::new()) };
}

impl Incoming {
    /// Creates a request whose sender has no answer yet.
    #[inline]
    pub(crate) fn new(to: ReplyTo, input: Payload) -> Box<Incoming> {
        Box::new(Incoming { to, answered: false, input })
    }

    /// Creates a short request from `caller`, and reuses a finished request if this thread has one. If the finished
    /// request had the same caller, as it mostly does, no reference count changes.
    #[inline]
    pub(super) fn of(caller: &Arc<Caller>, reply: LineReply, input: Payload) -> Box<Incoming> {
        let LineReply { cancels, id, at, room, bytes_max } = reply;
        let spare = SPARES.try_with(|spares| spares.borrow_mut().pop()).ok().flatten();
        let Some(mut spare) = spare else {
            let to = ReplyTo { caller: caller.clone(), cancels, id, at, room, bytes_max, by_line: true };
            return Incoming::new(to, input);
        };
        let to = &mut spare.to;
        if !Arc::ptr_eq(&to.caller, caller) {
            to.caller = caller.clone();
        }
        (to.cancels, to.id, to.at, to.room) = (cancels, id, at, room);
        (to.bytes_max, to.by_line) = (bytes_max, true);
        spare.answered = false;
        spare.input = input;
        spare
    }

    /// Drops a finished request. This thread keeps a short one for reuse.
    #[inline]
    pub(crate) fn recycle(self: Box<Incoming>) {
        if let Payload::Local(Bytes::Short(..)) = self.input {
            // A thread that is ending has no thread-local storage.
            let _ = SPARES.try_with(|spares| {
                let spares = &mut *spares.borrow_mut();
                if spares.len() < SPARES_MAX {
                    spares.push(self);
                }
            });
        }
    }

    pub(super) fn is_local(&self) -> bool {
        matches!(self.input, Payload::Local(_))
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.answered || self.to.is_wanted()
    }

    /// Returns the destination of the answer to a message that is being queued; `None` for a call, and for a message
    /// whose bytes must still be read.
    #[inline]
    pub(super) fn accept(&mut self, kind: Kind) -> Option<ReplyTo> {
        match (kind, &self.input) {
            (Kind::Call, _) | (_, Payload::Remote { .. }) => None,
            (_, Payload::Local(_)) => {
                self.answered = true;
                Some(self.to.clone())
            }
        }
    }
}

/// A request that was read from its ring or line.
#[derive(Debug)]
pub(crate) struct DecodedRequest {
    pub(in crate::rpc) kind: Kind,
    pub(in crate::rpc) number: u32,
    pub(in crate::rpc) incoming: Box<Incoming>,
}

impl DecodedRequest {
    pub(super) fn service(&self) -> ServiceId {
        ServiceId::of(self.kind, self.number)
    }
}

/// A function or a port, by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum ServiceId {
    Function(u32),
    Port(u32),
}

impl ServiceId {
    pub(crate) fn of(kind: Kind, number: u32) -> ServiceId {
        match kind {
            Kind::Call => ServiceId::Function(number),
            Kind::Send | Kind::TrySend | Kind::GrantedSend(_) | Kind::Publish => ServiceId::Port(number),
        }
    }
}
