//! A word as a register, which is the checker's model of it.

use todc_utils::specifications::Specification;

/// A change of a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Adds a number, modulo 2^64.
    Add(u64),
    /// Replaces `expected` by `new`, if the word holds it.
    Swap {
        /// Value that the word must have.
        expected: u64,
        /// Value that replaces `expected`.
        new: u64,
    },
}

impl Change {
    /// Returns the value after the change; `None` if the change does not apply.
    pub fn of(self, value: u64) -> Option<u64> {
        match self {
            Change::Add(add) => Some(value.wrapping_add(add)),
            Change::Swap { expected, new } => (expected == value).then_some(new),
        }
    }
}

/// An operation on a register.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// Sets the initial value.
    Begin(u64),
    /// Reads the value.
    Look {
        /// The value that was read.
        found: u64,
    },
    /// Changes the value.
    Change {
        /// The change of the value.
        change: Change,
        /// Value that the change found in the word.
        found: u64,
    },
}

/// The checker's model of a word of 64 bits.
#[derive(Debug)]
pub struct Register;

impl Specification for Register {
    type State = u64;
    type Operation = Operation;

    fn init() -> u64 {
        0
    }

    fn apply(operation: &Operation, value: &u64) -> (bool, u64) {
        match *operation {
            Operation::Begin(first) => (true, first),
            Operation::Look { found } => (found == *value, *value),
            Operation::Change { change, found } => (found == *value, change.of(*value).unwrap_or(*value)),
        }
    }
}
