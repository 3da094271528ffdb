//! The fabric providers.
//!
//! [`shm`] and [`roce`] implement [`halite_fabric::Fabric`]; names, permissions and clusters belong to the tier above.
//! [`private_dir`], [`inherited`], [`scheduling`] and [`threads`] give nodes further services of the operating system:
//! private directories, the state of inherited descriptors, thread scheduling, and limits on threads. [`secure`] encrypts
//! control messages between hosts, and [`refusals`] limits the log lines about refused connections.

#![allow(unsafe_code)]

pub mod inherited;
mod meeting;
pub mod private_dir;
pub mod refusals;
pub mod roce;
pub mod scheduling;
pub mod secure;
pub mod shm;
pub mod threads;

pub use meeting::{Listening, listeners, listening, peer_of};
pub use roce::{Hosts, Mtu, RoceConfig, RoceFabric};
pub use shm::{Fence, OpenError, ShmConfig, ShmFabric, Sleep};
