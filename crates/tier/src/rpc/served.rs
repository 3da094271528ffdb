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

/// See the header of this file.  Indexed by the client's slots.
#[derive(Debug, Default)]
pub struct Served {
    calls: Vec<Entry>,
    /// Requests that have arrived.
    count: u64,
}

/// One request.  Its slot and generation come back when the client has used the slot often enough; its number never.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServedId {
    /// Where the client waits.
    pub slot: SlotId,
    number: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: ServedId,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Idle,
    Open,
    Busy,
    /// Busy, and an acknowledgement is owed.
    Cancelled,
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
    #[inline]
    pub fn open(&mut self, slot: SlotId) -> Result<ServedId, Violation> {
        self.count += 1;
        let id = ServedId { slot, number: self.count };
        let index = usize::from(slot.index);
        if index >= self.calls.len() {
            self.calls.resize(index + 1, Entry { id, state: State::Idle });
        }
        let entry = &mut self.calls[index];
        match entry.state {
            State::Idle => {}
            State::Busy | State::Cancelled if entry.id.slot.generation != slot.generation => {}
            _ => return Err(Violation("a slot is used for two requests")),
        }
        *entry = Entry { id, state: State::Open };
        Ok(id)
    }

    /// Whether the call may still be answered.
    #[inline]
    pub fn is_open(&self, id: ServedId) -> bool {
        let entry = self.calls.get(usize::from(id.slot.index));
        entry.is_some_and(|entry| entry.id == id && entry.state == State::Open)
    }

    /// The call's slot is about to be written, or its input to be read.  `false` if nobody waits any more.
    #[inline]
    pub fn begin(&mut self, id: ServedId) -> bool {
        let open = self.is_open(id);
        if open {
            self.calls[usize::from(id.slot.index)].state = State::Busy;
        }
        open
    }

    /// That is over; the call is `answered` or not yet.  Returns whether a cancel is to be acknowledged now.  Nothing is
    /// left to be ended where the slot is in its next use.
    #[inline]
    pub fn end(&mut self, id: ServedId, answered: bool) -> bool {
        let entry = &mut self.calls[usize::from(id.slot.index)];
        if entry.id != id || matches!(entry.state, State::Idle | State::Open) {
            return false;
        }
        let acknowledge = entry.state == State::Cancelled;
        entry.state = if acknowledge || answered { State::Idle } else { State::Open };
        acknowledge
    }

    /// The caller has lost interest.
    pub fn cancel(&mut self, slot: SlotId) -> Cancelling {
        let entry = self.calls.get_mut(usize::from(slot.index));
        let entry = entry.filter(|entry| entry.id.slot == slot);
        match entry {
            Some(entry @ Entry { state: State::Open, .. }) => {
                entry.state = State::Idle;
                Cancelling::Acknowledge
            }
            Some(entry @ Entry { state: State::Busy, .. }) => {
                entry.state = State::Cancelled;
                Cancelling::Later
            }
            // It has been answered: the reply is on its way, in front of the acknowledgement.
            _ => Cancelling::Acknowledge,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SlotId = SlotId { index: 3, generation: 7 };

    #[test]
    fn a_cancelled_call_is_never_answered() {
        let mut served = Served::default();
        let call = served.open(ID).unwrap();
        assert_eq!(served.cancel(ID), Cancelling::Acknowledge);
        assert!(!served.begin(call));
        // Its slot may be used for the next at once.
        served.open(SlotId { generation: 8, ..ID }).unwrap();
        assert!(!served.begin(call));
    }

    #[test]
    fn a_cancelled_call_is_not_answered_when_its_generation_comes_round_again() {
        let mut served = Served::default();
        let old = served.open(ID).unwrap();
        served.cancel(ID);
        let new = served.open(ID).unwrap();
        assert!(!served.begin(old));
        assert!(served.begin(new));
    }

    #[test]
    fn a_cancel_during_the_answer_waits_for_its_end() {
        let mut served = Served::default();
        let call = served.open(ID).unwrap();
        assert!(served.begin(call));
        assert_eq!(served.cancel(ID), Cancelling::Later);
        assert!(served.end(call, true));
    }

    #[test]
    fn reading_the_input_leaves_the_call_open_unless_it_was_cancelled() {
        let mut served = Served::default();
        let call = served.open(ID).unwrap();
        assert!(served.begin(call));
        assert!(!served.end(call, false));
        assert!(served.begin(call));
        assert_eq!(served.cancel(ID), Cancelling::Later);
        assert!(served.end(call, false));
        assert!(!served.is_open(call));
    }

    #[test]
    fn a_cancel_that_crosses_the_answer_is_acknowledged() {
        let mut served = Served::default();
        let call = served.open(ID).unwrap();
        assert!(served.begin(call));
        assert!(!served.end(call, true));
        assert_eq!(served.cancel(ID), Cancelling::Acknowledge);
    }

    #[test]
    fn a_caller_may_call_again_before_its_answer_is_noted_down() {
        let next = SlotId { generation: 8, ..ID };
        for cancelled in [false, true] {
            let mut served = Served::default();
            let call = served.open(ID).unwrap();
            assert!(served.begin(call));
            if cancelled {
                assert_eq!(served.cancel(ID), Cancelling::Later);
            }
            assert!(served.open(ID).is_err(), "not in the same use");
            let second = served.open(next).unwrap();
            assert!(!served.end(call, true), "the answer told the caller all there is to know");
            assert!(served.begin(second));
            assert!(!served.end(second, true));
        }
    }

    #[test]
    fn one_slot_for_two_requests_is_a_violation() {
        let mut served = Served::default();
        served.open(ID).unwrap();
        assert!(served.open(SlotId { generation: 8, ..ID }).is_err());
    }
}
