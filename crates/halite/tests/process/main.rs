//! A test in its own process, because it counts the process's allocations.

#[path = "../common/mod.rs"]
mod common;
mod posted;
