//! The cluster's files, addresses and configuration.
//!
//! No other folder reads the cluster's files or environment variables. This folder calls only [`crate::error`] and
//! [`crate::runtime`]. It takes file locks, and the locks of its own threads for etcd, which never nest with other
//! locks.

pub mod cluster_dir;
pub(crate) mod config;
pub mod etcd;
pub(crate) mod join_queue;
pub(crate) mod networks;
pub(crate) mod principals;
pub(crate) mod ways;
