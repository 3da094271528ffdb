//! Tests of the public API over each fabric, of applications, of clusters of processes, and of the source tree.

mod applications;
mod conformance;
#[path = "../../../cli/tests/support/process.rs"]
mod process;
mod scenarios;
mod tidy;
