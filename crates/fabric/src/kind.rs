//! Kinds of operations, for counters and for the rules of fault injectors.

use crate::Operation;

/// The kind of an [`Operation`], without operands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum OperationKind {
    /// The kind of [`Operation::Read`].
    Read,
    /// The kind of [`Operation::Write`].
    Write,
    /// The kind of [`Operation::WriteImm`].
    WriteImm,
    /// The kind of [`Operation::Send`].
    Send,
    /// The kind of [`Operation::FetchAdd`].
    FetchAdd,
    /// The kind of [`Operation::CompareSwap`].
    CompareSwap,
}

impl OperationKind {
    /// Returns true for the atomics: fetch-add and compare-swap.
    pub fn is_atomic(self) -> bool {
        matches!(self, OperationKind::FetchAdd | OperationKind::CompareSwap)
    }

    /// All kinds, in the order of their values.
    pub const ALL: [OperationKind; 6] = [
        OperationKind::Read,
        OperationKind::Write,
        OperationKind::WriteImm,
        OperationKind::Send,
        OperationKind::FetchAdd,
        OperationKind::CompareSwap,
    ];

    /// Returns the kind of `operation`.
    pub fn of(operation: &Operation<'_>) -> OperationKind {
        match operation {
            Operation::Read { .. } => OperationKind::Read,
            Operation::Write { .. } => OperationKind::Write,
            Operation::WriteImm { .. } => OperationKind::WriteImm,
            Operation::Send { .. } => OperationKind::Send,
            Operation::FetchAdd { .. } => OperationKind::FetchAdd,
            Operation::CompareSwap { .. } => OperationKind::CompareSwap,
        }
    }

    /// Returns the lower-case name that logs use.
    pub fn name(self) -> &'static str {
        match self {
            OperationKind::Read => "read",
            OperationKind::Write => "write",
            OperationKind::WriteImm => "write_imm",
            OperationKind::Send => "send",
            OperationKind::FetchAdd => "fetch_add",
            OperationKind::CompareSwap => "compare_swap",
        }
    }
}

/// Returns the number of payload bytes that `operation` moves; 8 for an atomic.
pub fn payload_bytes(operation: &Operation<'_>) -> u64 {
    match operation {
        Operation::Read { local, .. }
        | Operation::Write { local, .. }
        | Operation::WriteImm { local, .. } => local.len_bytes(),
        Operation::Send { bytes, .. } => bytes.len() as u64,
        Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => 8,
    }
}
