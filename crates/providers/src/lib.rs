//! The fabrics themselves.
//!
//! [`shm`] and [`roce`] implement [`halite_fabric::Fabric`]; nothing here knows names, permissions or clusters.
//! [`private_dir`] and [`inherited`] are what nodes need of the system besides, and
//! [`secure`] what they need to talk to other hosts.

pub mod inherited;
mod meeting;
pub mod private_dir;
pub mod roce;
pub mod secure;
pub mod shm;

pub use meeting::{Listening, listeners, listening};
pub use roce::{Hosts, Mtu, RoceConfig, RoceFabric};
pub use shm::{Fence, OpenError, ShmConfig, ShmFabric, Sleep};
