//! Names and lengths of operations, for traces and counters.

use crate::Operation;

/// Returns the lower-case name of `operation` that traces use.
pub fn name(operation: &Operation<'_>) -> &'static str {
    match operation {
        Operation::Read { .. } => "read",
        Operation::Write { .. } => "write",
        Operation::WriteImm { .. } => "write_imm",
        Operation::Send { .. } => "send",
        Operation::FetchAdd { .. } => "fetch_add",
        Operation::CompareSwap { .. } => "compare_swap",
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
