//! The conformance suite for shared memory and RoCE, and further tests of both.

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
