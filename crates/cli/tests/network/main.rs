//! Clusters of several hosts, each a namespace of its own, over links that fail.
//!
//! Making hosts takes root and some programs; each test is left out where these are missing, and fails if `HALITE_NETWORK` is set.

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
