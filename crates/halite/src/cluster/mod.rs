//! The cluster: nodes, how they are set up, how they find and join each other, and what they leave behind.
//!
//! A node is its [`crate::runtime`] with networks, a number and a place in a cluster directory or between hosts.  Files and
//! environment variables are read here and nowhere else.

pub mod cluster_dir;
pub(crate) mod config;
pub(crate) mod driven;
pub(crate) mod inner;
pub(crate) mod join_queue;
pub(crate) mod networks;
pub(crate) mod node;
pub(crate) mod scout;
pub(crate) mod ways;
