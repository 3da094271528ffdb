//! How many nodes a cluster may have on this host.

use anyhow::bail;
use rustix::process::{Resource, getrlimit};

/// Most nodes of one cluster, as tested.
pub const NODES_MAX: i64 = 256;

/// Descriptors that a node needs for itself: 17 when idle, one for its memory, three to greet one more peer and read
/// `/proc`, and three that its parent process left open.
const DESCRIPTORS_OWN: u64 = 24;
/// Descriptors per peer, node or application: its socket, its process, the ring to it.
const DESCRIPTORS_PER_PEER: u64 = 3;
/// Applications for which descriptors remain beside the nodes.
const APPLICATIONS_MIN: u64 = 16;

/// Refuses a cluster of `nodes` whose nodes would run out of descriptors.
pub fn check_descriptors(nodes: u32) -> anyhow::Result<()> {
    // Nodes raise the soft limit themselves.
    let Some(limit) = getrlimit(Resource::Nofile).maximum else { return Ok(()) };
    let works = nodes_within(limit);
    if u64::from(nodes) > works {
        bail!(
            "cannot start {nodes} nodes: each would need {} descriptors, and the hard limit here is {limit} \
             (`ulimit -Hn`); {works} nodes work",
            descriptors_for(nodes.into())
        );
    }
    Ok(())
}

fn descriptors_for(nodes: u64) -> u64 {
    DESCRIPTORS_OWN + DESCRIPTORS_PER_PEER * (nodes - 1 + APPLICATIONS_MIN)
}

/// How many nodes work with that hard limit on descriptors.
pub fn nodes_within(limit: u64) -> u64 {
    let peers = limit.saturating_sub(DESCRIPTORS_OWN) / DESCRIPTORS_PER_PEER;
    (peers + 1).saturating_sub(APPLICATIONS_MIN)
}
