//! Trials: whole clusters in simulated time, with sessions that use all operations at once, faults, and a judge that
//! checks the results of each session.
//!
//! ```text
//!   Plan + seed ──> World (crate `sim`) ── hosts, links, faults
//!                     │  one Driven node (crate `halite`, unchanged) per host
//!                     │  sessions: actors that read, write, call, lock, ... and are cancelled midway
//!                     ▼
//!                   Judge: models of regions, calls, locks, ... ──> Report, with a digest
//! ```
//!
//! The plan and the seed determine everything: two runs have the same digest, on any machine.

#![forbid(unsafe_code)]

mod actor;
mod apart;
#[cfg(test)]
mod atomics_by_call;
mod barriers;
#[cfg(test)]
mod bulk_traffic;
mod calls;
#[cfg(test)]
mod declared_dead;
#[cfg(test)]
mod dials;
mod faults;
mod futures;
mod golden;
mod harness;
mod hosted;
#[cfg(test)]
mod joining;
mod judge;
mod kv;
mod leak_check;
pub mod linearizability;
mod locks;
mod log;
mod messages;
mod overlaps;
mod panics;
mod peace;
mod plan;
mod plans;
#[cfg(test)]
mod priorities;
mod qos;
mod regions;
#[cfg(test)]
mod regressions;
mod report;
mod rights;
mod trial;
mod watches;
mod words;

pub use golden::golden;
pub use hosted::Birth;
pub use judge::Tally;
pub use plan::{Faults, Plan, PlanError, Work};
pub use qos::{AppsRow, QosRow, qos, qos_apps};
pub use report::Report;
pub use trial::{Keep, run};
