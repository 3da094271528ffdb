//! Tests of processes that a benchmark starts.

#[path = "../../../cli/tests/support/process.rs"]
mod process;
mod tethered;
