//! What a server's node remembers of the calls of one client node: whether each may still be answered.
//!
//! ```text
//!            open            begin             end(answered)
//!   Idle ──────────> Open ──────────> Busy ─────────────────> Idle
//!                      │ cancel         │ cancel: acknowledged by end()
//!                      └──> Idle        v
//! ```
//!
//! A call is *busy* while its slot is being written, or its input read: only then must a cancel wait.  The caller may
//! see the answer, and use the slot for its next call, before the thread that wrote it comes to `end`; that then ends
//! nothing.

use super::{SlotId, Violation};

/// See the header of this file.  Indexed by the client's slots, 4 bytes each.
#[derive(Debug, Default)]
pub struct Served {
    calls: Vec<State>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Idle,
    Open {
        generation: u16,
    },
    Busy {
        generation: u16,
    },
    /// Busy, and an acknowledgement is owed.
    Cancelled {
        generation: u16,
    },
}

/// What is to be done about a cancel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cancelling {
    /// Acknowledge it now.
    Acknowledge,
    /// [`Served::end`] will say so.
    Later,
}

impl Served {
    /// A request has arrived.
    pub fn open(&mut self, id: SlotId) -> Result<(), Violation> {
        let index = usize::from(id.index);
        if index >= self.calls.len() {
            self.calls.resize(index + 1, State::Idle);
        }
        match self.calls[index] {
            State::Idle => {}
            State::Busy { generation } | State::Cancelled { generation } if generation != id.generation => {}
            _ => return Err(Violation("a slot is used for two requests")),
        }
        self.calls[index] = State::Open { generation: id.generation };
        Ok(())
    }

    /// Whether the call may still be answered.
    pub fn is_open(&self, id: SlotId) -> bool {
        self.state(id) == State::Open { generation: id.generation }
    }

    /// The call's slot is about to be written, or its input to be read.  `false` if nobody waits any more.
    pub fn begin(&mut self, id: SlotId) -> bool {
        let open = self.is_open(id);
        if open {
            self.calls[usize::from(id.index)] = State::Busy { generation: id.generation };
        }
        open
    }

    /// That is over; the call is `answered` or not yet.  Returns whether a cancel is to be acknowledged now.  Nothing is
    /// left to be ended where the slot is in its next use.
    pub fn end(&mut self, id: SlotId, answered: bool) -> bool {
        let generation = id.generation;
        let (next, acknowledge) = match self.state(id) {
            State::Busy { generation: busy } if busy == generation && !answered => {
                (State::Open { generation }, false)
            }
            State::Busy { generation: busy } if busy == generation => (State::Idle, false),
            State::Cancelled { generation: busy } if busy == generation => (State::Idle, true),
            _ => return false,
        };
        self.calls[usize::from(id.index)] = next;
        acknowledge
    }

    /// The caller has lost interest.
    pub fn cancel(&mut self, id: SlotId) -> Cancelling {
        let generation = id.generation;
        let (next, cancelling) = match self.state(id) {
            State::Open { generation: open } if open == generation => (State::Idle, Cancelling::Acknowledge),
            State::Busy { generation: busy } if busy == generation => {
                (State::Cancelled { generation }, Cancelling::Later)
            }
            // It has been answered: the reply is on its way, in front of the acknowledgement.
            _ => return Cancelling::Acknowledge,
        };
        self.calls[usize::from(id.index)] = next;
        cancelling
    }

    fn state(&self, id: SlotId) -> State {
        self.calls.get(usize::from(id.index)).copied().unwrap_or(State::Idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SlotId = SlotId { index: 3, generation: 7 };

    #[test]
    fn a_cancelled_call_is_never_answered() {
        let mut served = Served::default();
        served.open(ID).unwrap();
        assert_eq!(served.cancel(ID), Cancelling::Acknowledge);
        assert!(!served.begin(ID));
        // Its slot may be used for the next at once.
        served.open(SlotId { generation: 8, ..ID }).unwrap();
        assert!(!served.begin(ID));
    }

    #[test]
    fn a_cancel_during_the_answer_waits_for_its_end() {
        let mut served = Served::default();
        served.open(ID).unwrap();
        assert!(served.begin(ID));
        assert_eq!(served.cancel(ID), Cancelling::Later);
        assert!(served.end(ID, true));
    }

    #[test]
    fn reading_the_input_leaves_the_call_open_unless_it_was_cancelled() {
        let mut served = Served::default();
        served.open(ID).unwrap();
        assert!(served.begin(ID));
        assert!(!served.end(ID, false));
        assert!(served.begin(ID));
        assert_eq!(served.cancel(ID), Cancelling::Later);
        assert!(served.end(ID, false));
        assert!(!served.is_open(ID));
    }

    #[test]
    fn a_cancel_that_crosses_the_answer_is_acknowledged() {
        let mut served = Served::default();
        served.open(ID).unwrap();
        assert!(served.begin(ID));
        assert!(!served.end(ID, true));
        assert_eq!(served.cancel(ID), Cancelling::Acknowledge);
    }

    #[test]
    fn a_caller_may_call_again_before_its_answer_is_noted_down() {
        let next = SlotId { generation: 8, ..ID };
        for cancelled in [false, true] {
            let mut served = Served::default();
            served.open(ID).unwrap();
            assert!(served.begin(ID));
            if cancelled {
                assert_eq!(served.cancel(ID), Cancelling::Later);
            }
            assert!(served.open(ID).is_err(), "not in the same use");
            served.open(next).unwrap();
            assert!(!served.end(ID, true), "the answer told the caller all there is to know");
            assert!(served.begin(next));
            assert!(!served.end(next, true));
        }
    }

    #[test]
    fn one_slot_for_two_requests_is_a_violation() {
        let mut served = Served::default();
        served.open(ID).unwrap();
        assert!(served.open(SlotId { generation: 8, ..ID }).is_err());
    }
}
