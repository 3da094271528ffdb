//! The fabrics themselves.
//!
//! Each module implements [`halite_fabric::Fabric`] once; nothing here knows names, permissions or clusters.

pub mod shm;

pub use shm::{Fence, OpenError, ShmConfig, ShmFabric};
