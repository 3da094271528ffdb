//! The public API on each fabric, clusters of processes, and the tree itself.

mod conformance;
mod linearizable;
mod links;
mod planted;
#[path = "../../../node/tests/support/process.rs"]
mod process;
mod scenarios;
mod tethered;
mod tidy;
