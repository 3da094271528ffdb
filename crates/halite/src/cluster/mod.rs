//! The cluster, as files, addresses and configuration: what a node finds there, and what it leaves behind.
//!
//! Files of the cluster and environment variables are read here and nowhere else.  It calls [`crate::error`] and [`crate::runtime`] alone; its
//! locks are those of files, and those by which its own threads reach etcd, which nest with no other.

pub mod cluster_dir;
pub(crate) mod config;
pub mod etcd;
pub(crate) mod join_queue;
pub(crate) mod networks;
pub(crate) mod ways;
