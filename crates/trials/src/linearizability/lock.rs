//! A lock as a sequence of holds. A hold lasts from taking the lock to releasing it, and has its own token.

use todc_utils::specifications::Specification;

/// An operation on a lock, with the token of its hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Sets the initial state: the holder's token, or no holder.
    Begin(Option<u64>),
    /// Takes the lock.
    Take(u64),
    /// Releases the lock.
    GiveUp(u64),
}

/// The checker's model of a lock; its state is the holder's token. Tokens need not rise in the order of the holds: a
/// holder that was cut off may learn its token later than the next holder learns the next token.
#[derive(Debug)]
pub struct Lock;

impl Specification for Lock {
    type State = Option<u64>;
    type Operation = Operation;

    fn init() -> Option<u64> {
        None
    }

    fn apply(operation: &Operation, holder: &Option<u64>) -> (bool, Option<u64>) {
        match *operation {
            Operation::Begin(holder) => (true, holder),
            Operation::Take(token) => (holder.is_none(), Some(token)),
            Operation::GiveUp(token) => (*holder == Some(token), None),
        }
    }
}
