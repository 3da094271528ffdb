//! The fabrics themselves.
//!
//! [`shm`] implements [`halite_fabric::Fabric`]; nothing here knows names, permissions or clusters.
//! [`private_dir`] and [`inherited`] are what nodes need of the system besides.

pub mod inherited;
pub mod private_dir;
pub mod shm;

pub use shm::{Fence, Listening, OpenError, ShmConfig, ShmFabric, Sleep, listeners, listening};
