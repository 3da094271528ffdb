//! Emulated networks, and processes that a benchmark starts.

mod links;
#[path = "../../../cli/tests/support/process.rs"]
mod process;
mod tethered;
