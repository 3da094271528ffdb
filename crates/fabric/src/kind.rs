//! The kinds of operations, for those who count or choose among them.

use crate::Operation;

/// What an [`Operation`] does, without its operands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum OperationKind {
    /// [`Operation::Read`].
    Read,
    /// [`Operation::Write`].
    Write,
    /// [`Operation::WriteImm`].
    WriteImm,
    /// [`Operation::Send`].
    Send,
    /// [`Operation::FetchAdd`].
    FetchAdd,
    /// [`Operation::CompareSwap`].
    CompareSwap,
}

impl OperationKind {
    /// Whether it changes a word in one piece.
    pub fn is_atomic(self) -> bool {
        matches!(self, OperationKind::FetchAdd | OperationKind::CompareSwap)
    }

    /// All of them, in the order of their values.
    pub const ALL: [OperationKind; 6] = [
        OperationKind::Read,
        OperationKind::Write,
        OperationKind::WriteImm,
        OperationKind::Send,
        OperationKind::FetchAdd,
        OperationKind::CompareSwap,
    ];

    /// What `operation` is.
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

    /// Lower-case words, as in logs.
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

/// How many bytes `operation` moves; 8 for atomics.
pub fn payload_bytes(operation: &Operation<'_>) -> u64 {
    match operation {
        Operation::Read { local, .. }
        | Operation::Write { local, .. }
        | Operation::WriteImm { local, .. } => local.len_bytes(),
        Operation::Send { bytes, .. } => bytes.len() as u64,
        Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => 8,
    }
}
