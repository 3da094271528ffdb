//! A lock that one after the other has, each under a higher token.

use todc_utils::specifications::Specification;

/// What was done to a lock; each hold of it has a token of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Who has the lock in the beginning, by the token.
    Begin(Option<u64>),
    /// It is taken.
    Take(u64),
    /// It is not, because it is held.
    Refused,
    /// It is given up.
    GiveUp(u64),
}

/// The token of who has a lock, and the last that was given out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct State {
    holder: Option<u64>,
    last: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Lock;

impl Specification for Lock {
    type State = State;
    type Operation = Operation;

    fn init() -> State {
        State::default()
    }

    fn apply(operation: &Operation, before: &State) -> (bool, State) {
        let State { holder, last } = *before;
        match *operation {
            Operation::Begin(holder) => (true, State { holder, last: holder.unwrap_or(0) }),
            Operation::Take(token) => {
                (holder.is_none() && token > last, State { holder: Some(token), last: token })
            }
            Operation::Refused => (holder.is_some(), *before),
            Operation::GiveUp(token) => (holder == Some(token), State { holder: None, last }),
        }
    }
}
