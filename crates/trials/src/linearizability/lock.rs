//! A lock as a sequence of holds. A hold lasts from taking the lock to releasing it, and has its own token.

use todc_utils::specifications::Specification;

/// An operation on a lock, with the token of its hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Sets the initial state: the holder's token, or no holder.
    Begin(Option<u64>),
    /// Takes the lock.
    Take(u64),
    /// Fails to take the lock, because it is held.
    Refused,
    /// Releases the lock.
    GiveUp(u64),
}

/// State of a lock: token of the holder, and, if tokens rise, the last token.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct LockState {
    holder: Option<u64>,
    last: u64,
}

/// The checker's model of a lock. If `RISING`, tokens must rise in the order of the holds. This cannot be required if
/// holders are cut off: a holder that has lost the lock may learn its token later than the next holder learns the next
/// token.
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
