//! The cluster's files, addresses and configuration.
//!
//! Only this folder reads files of the cluster and environment variables. It calls [`crate::error`] and
//! [`crate::runtime`] only. Its locks are locks of files, and those of its threads for etcd, which nest with no other.

pub mod cluster_dir;
pub(crate) mod config;
pub mod etcd;
pub(crate) mod join_queue;
pub(crate) mod networks;
pub(crate) mod ways;
