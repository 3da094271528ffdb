//! Simulated fabrics and worlds.

mod acknowledging;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod ends;
mod fabric;
mod faults;
mod processes;
mod profile;
mod random;
mod stages;
mod world;
