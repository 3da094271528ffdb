//! Simulates whole clusters in one thread and in virtual time.
//!
//! A [`World`] holds hosts, their clocks, the links between them, and the tasks that run on them. Its [`SimFabric`]s
//! are fabric providers: a [`Profile`] of the hardware defines how long operations take, and each [`Link`] defines the
//! faults of the network. This crate knows no socket, thread, wall clock, environment or global variable, so every run
//! follows from its seed. Equal values of [`World::digest`] show that two runs were the same. The crate knows no
//! regions, names or clusters either.
//!
//! ```text
//!   World::run   tasks that are ready, in an order that the seed chooses
//!       │        then the next event: a timer or an event of the network; time advances to it
//!       ▼
//!   net::Net     posts ─ datagrams between queue pairs of `halite_rnic`, or copies ─ completions
//! ```

mod clock;
mod counters;
mod digest;
mod fabric;
mod hardware;
mod link;
mod net;
mod profile;
mod random;
mod shared;
mod tasks;
mod trace;
mod world;

pub use clock::{HostClock, Sleep};
pub use counters::Counters;
pub use fabric::{Rung, SimFabric};
pub use link::{Corruption, Link};
pub use profile::{AcknowledgedBy, Adapter, AtomicsBy, CutOffBy, Fence, Processor, Profile, ProfileError};
pub use random::Random;
pub use tasks::TaskId;
pub use trace::Trace;
pub use world::{HostId, RunEnd, World};
