//! The public API on each fabric, clusters of processes, and the tree itself.

mod conformance;
mod linearizable;
#[path = "../../../cli/tests/support/process.rs"]
mod process;
mod scenarios;
mod tidy;
