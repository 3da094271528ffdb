//! Clusters of several hosts, each a separate network namespace, over links that fail.
//!
//! Creating hosts requires root and some programs; where these are missing, each test is skipped, or fails if
//! `HALITE_NETWORK` is set.

mod addresses;
mod application;
mod blocked;
mod clocks;
mod cluster;
mod commands;
mod etcd;
mod faults;
mod jobs;
mod paths;
mod readme;
mod siblings;
mod soak;
#[path = "../support/mod.rs"]
mod support;
mod world;
