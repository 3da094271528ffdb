//! A lock that one after the other has, each under a token of its own.

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

/// The token of who has a lock, and the last that was given out, where that counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct LockState {
    holder: Option<u64>,
    last: u64,
}

/// A lock whose tokens rise in the order in which it is taken, if they are `RISING`.  They need not where holders are cut off: who has lost
/// a lock may learn its token after the next holder has learned its own.
#[derive(Debug)]
pub struct Lock<const RISING: bool>;

impl<const RISING: bool> Specification for Lock<RISING> {
    type State = LockState;
    type Operation = Operation;

    fn init() -> LockState {
        LockState::default()
    }

    fn apply(operation: &Operation, before: &LockState) -> (bool, LockState) {
        let LockState { holder, last } = *before;
        match *operation {
            Operation::Begin(holder) => (true, LockState { holder, last: 0 }),
            Operation::Take(token) => {
                let is_next = holder.is_none() && (!RISING || token > last);
                (is_next, LockState { holder: Some(token), last: if RISING { token } else { 0 } })
            }
            Operation::Refused => (holder.is_some(), *before),
            Operation::GiveUp(token) => (holder == Some(token), LockState { holder: None, last }),
        }
    }
}
