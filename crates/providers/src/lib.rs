//! The fabrics themselves.
//!
//! [`shm`] and [`roce`] implement [`halite_fabric::Fabric`]; nothing here knows names, permissions or clusters.
//! [`private_dir`], [`inherited`] and [`scheduling`] are what nodes need of the system besides,
//! [`secure`] what they need to talk to other hosts; [`refusals`] bounds the lines that refused connections cause in a log.

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
