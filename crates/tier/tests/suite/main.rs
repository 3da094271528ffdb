//! Engines of whole clusters in virtual time.

mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod dials;
mod draining;
mod etcd;
mod etcd_keys;
mod found;
mod found_by_simulation;
mod handing_over;
mod hostile;
mod hostile_calls;
mod joining;
mod listed;
mod locks;
mod losing;
mod memory;
mod numbers;
mod on_demand;
mod pairings;
mod posting;
mod qos;
mod quotas;
mod reports;
mod watching;
