//! The fabrics themselves.
//!
//! Each module but one implements [`halite_fabric::Fabric`] once; nothing here knows names, permissions or clusters.
//! [`private_dir`] is what they and their users share on disk.

pub mod private_dir;
pub mod shm;

pub use shm::{Fence, Listening, OpenError, ShmConfig, ShmFabric, listening};
