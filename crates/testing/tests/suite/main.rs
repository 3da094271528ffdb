//! Tests of the public API on each fabric, of clusters of processes, and of the tree itself.

mod applications;
mod conformance;
#[path = "../../../cli/tests/support/process.rs"]
mod process;
mod scenarios;
mod tidy;
