//! The fabric providers.
//!
//! [`shm`] and [`roce`] implement [`halite_fabric::Fabric`]; neither knows names, permissions or clusters.
//! [`private_dir`], [`inherited`] and [`scheduling`] hold other system services of nodes, and [`secure`] the channel to
//! other hosts. [`refusals`] limits the log lines about refused connections.

#![allow(unsafe_code)]

pub mod inherited;
mod meeting;
pub mod private_dir;
pub mod refusals;
pub mod roce;
pub mod scheduling;
pub mod secure;
pub mod shm;

pub use meeting::{Listening, listeners, listening};
pub use roce::{Hosts, Mtu, RoceConfig, RoceFabric};
pub use shm::{Fence, OpenError, ShmConfig, ShmFabric, Sleep};
