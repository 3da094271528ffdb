//! A word as a register that one after the other changes and looks at.

use todc_utils::specifications::Specification;

/// A change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// So much is added, modulo 2^64.
    Add(u64),
    /// `new` takes the place of `expected`, if that is there.
    Swap {
        /// What must be there.
        expected: u64,
        /// What is there afterwards.
        new: u64,
    },
}

impl Change {
    /// What it makes of `value`; `None` if it would leave that.
    pub fn of(self, value: u64) -> Option<u64> {
        match self {
            Change::Add(add) => Some(value.wrapping_add(add)),
            Change::Swap { expected, new } => (expected == value).then_some(new),
        }
    }
}

/// One of what is done to a register, in the words of the checker.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// The register is given its first value.
    Begin(u64),
    /// It is looked at.
    Look {
        /// What it holds.
        found: u64,
    },
    /// It is changed.
    Change {
        /// How.
        change: Change,
        /// What it held before.
        found: u64,
    },
}

/// See the module's documentation.
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
