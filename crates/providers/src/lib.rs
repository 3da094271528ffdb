//! The fabric providers, and other services of the operating system for nodes.
//!
//! [`shm`] and [`roce`] implement [`halite_fabric::Fabric`]; names, permissions and clusters belong to the tier above.
//! [`private_dir`] opens private directories, [`inherited`] detects closed standard descriptors, [`scheduling`] sets
//! the time slices of threads, [`allocator`] sets what the process keeps of freed memory, and [`threads`] starts threads
//! and names the limits on them. [`secure`] encrypts control messages between hosts, and [`refusals`] limits the log
//! lines about refused connections.

#![allow(unsafe_code)]

pub mod allocator;
pub mod inherited;
pub mod private_dir;
pub mod refusals;
pub mod roce;
pub mod scheduling;
pub mod secure;
pub mod shm;
pub mod threads;
mod unix_sockets;

pub use roce::{Hosts, Mtu, RoceConfig, RoceFabric};
pub use shm::{Fence, OpenError, ShmConfig, ShmFabric, Sleep};
pub use unix_sockets::{Listening, listeners, listening, peer_of, unreceived_bytes};
