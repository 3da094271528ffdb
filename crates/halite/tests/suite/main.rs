//! The library as applications use it, where the conformance suite (crates/testing) does not show it: nodes of one process.

mod batches;
mod calls;
mod calls_found;
#[path = "../common/mod.rs"]
mod common;
mod forking;
mod joining;
mod leaving;
mod lifetimes;
mod owned;
mod readme;
mod typed;
mod versions;
mod waiting;
