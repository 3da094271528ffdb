//! Tests of the library with nodes of one process, beyond the conformance suite (crates/testing).

mod attached;
mod attached_calls;
mod batches;
mod call_regressions;
mod calls;
#[path = "../common/mod.rs"]
mod common;
mod forking;
mod joining;
mod leaving;
mod owned;
mod quotas;
mod readme;
mod typed;
mod versions;
mod waiting;
