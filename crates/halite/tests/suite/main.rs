//! The library as applications use it: nodes of one process, and processes that are killed.

mod batches;
mod calls;
mod calls_found;
#[path = "../common/mod.rs"]
mod common;
mod composite;
mod dials;
mod joining;
mod killed;
mod leaving;
mod lifetimes;
mod owned;
#[path = "../../../cli/tests/support/process.rs"]
mod process;
mod provider_time;
mod readme;
mod sharing;
mod typed;
mod waiting;
mod windows;
