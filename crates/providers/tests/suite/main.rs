//! Shared memory and RoCE beyond the conformance suite.

#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod roce_capture;
mod roce_hostile;
mod roce_hosts;
mod shm_hostile;
mod shm_pair;
mod shm_processes;
mod shm_shortage;
