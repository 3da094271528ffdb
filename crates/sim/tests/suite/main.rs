//! Simulated fabrics and worlds.

#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod costs;
mod datagrams;
mod ends;
mod fabric;
mod faults;
mod processes;
mod replay;
mod world;
