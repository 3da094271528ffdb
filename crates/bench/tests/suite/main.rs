//! Tests of the processes that a benchmark starts.

#[path = "../../../cli/tests/support/process.rs"]
mod process;
mod tethered;
