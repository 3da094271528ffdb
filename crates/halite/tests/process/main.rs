//! One test, alone in its process: it counts what that allocates.

#[path = "../common/mod.rs"]
mod common;
mod posted;
