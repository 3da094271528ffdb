//! The runtime: what moves a node forward, whose threads that takes, and how they wait.
//!
//! ```text
//!   sessions' threads ──┬─ poll token ──> driver ──> runner { engine, tickets, outbox } ──> fabric
//!   progress thread   ──┘                   └──> jobs (what takes long, without the runner's lock)
//! ```
//!
//! It calls the engine (`halite-tier`), the fabric, [`crate::posted`] and [`crate::rpc`].  Nothing here knows of sessions; of the
//! cluster, it knows how others are dialled and where numbers are written down.

pub(crate) mod driver;
pub(crate) mod env;
pub(crate) mod headroom;
pub(crate) mod jobs;
pub(crate) mod lanes;
pub(crate) mod leaving;
pub(crate) mod outbox;
pub(crate) mod peers;
pub(crate) mod poll_token;
pub(crate) mod progress;
pub(crate) mod runner;
pub(crate) mod ticket;
pub(crate) mod timers;
pub(crate) mod wait;
