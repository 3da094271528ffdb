//! Tests of emulated networks, and of processes that a benchmark starts.

mod links;
#[path = "../../../cli/tests/support/process.rs"]
mod process;
mod tethered;
