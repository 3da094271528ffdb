//! Tests of the `halite` program as its users run it.

mod attach;
mod attach_killed;
mod attach_raw;
#[path = "../support/cgroup.rs"]
mod cgroup;
mod cluster;
mod config;
mod directory;
mod doctor;
mod documents;
mod draining;
mod etcd;
mod figure;
mod hosts;
mod limits;
mod losing;
mod members;
mod memory;
mod metrics;
mod perf;
mod regions;
mod run;
mod run_etcd;
mod sim;
mod supervisor;
#[path = "../support/mod.rs"]
mod support;
mod top;
mod udp;
