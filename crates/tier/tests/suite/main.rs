//! Engines of whole clusters in virtual time.

mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod dials;
mod directory;
mod draining;
mod etcd;
mod etcd_keys;
mod found;
mod found_by_simulation;
mod growing;
mod handing_over;
mod hearsay;
mod hostile;
mod hostile_calls;
mod joining;
mod listed;
mod locks;
mod losing;
mod memory;
mod numbers;
mod on_demand;
mod over;
mod pairings;
mod populating;
mod posting;
mod watching;
