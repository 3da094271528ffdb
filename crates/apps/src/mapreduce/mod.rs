//! MapReduce, after LITE-MR: jobs in three phases, whose workers read each other's results by one-sided reads.
//!
//! ```text
//!           master (beside worker 0): answers calls with orders, reads only the sorted runs
//!              |                              |                               |
//!  map         | worker reads files, maps     | combines in its own table       | publishes the table as one region,
//!              | splits of 1 MiB              |                                 | divided into a section per part
//!  reduce      | worker reads its part's      | combines and reduces            | publishes a sorted run
//!              | section of every region      |                                 |
//!  merge       | master reads all runs and merges two at a time
//! ```
//!
//! **Costs.** Mapping takes nearly all time: 4 to 5 ns per byte for words, on each core. Per MiB, an order takes one
//! call of 10 µs. Only the combined table of each worker crosses the network, once: for text, a few bytes per 1,000
//! bytes of input. An idle worker asks for an order every millisecond, so little time is lost at the end of each phase.
//!
//! **Failures.** The master detects a dead worker by the status of the cluster, or by the report of a worker that
//! cannot read the results of the dead one. The master then reassigns the lost splits and parts to the other workers.
//! Results of finished parts stay valid, because each comes from regions that together cover every split once. If the
//! master dies, the run ends. Each worker frees its own regions.

mod clock;
mod desk;
mod error;
mod exchange;
pub mod grep;
pub mod input;
mod job;
mod master;
mod plan;
pub mod table;
pub mod words;
mod worker;

pub use clock::{Clock, HostClock, Pause};
pub use desk::Desk;
pub use error::Error;
pub use job::{Job, Text};
pub use master::{Master, Outcome, Phases, Progress};
pub use worker::Worker;
