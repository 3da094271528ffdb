//! Limits of this host: how many nodes and clients fit, and what is nearly full.

use std::path::Path;

use anyhow::bail;
use halite::{NodeState, NodeStatus, cluster_dir};
use rustix::fs::statvfs;
use rustix::process::{Resource, getrlimit};

use crate::bytes::ByteCount;
use crate::output;

/// Maximum number of nodes of one cluster on this host. Tests cover clusters up to this size.
pub const NODES_MAX: i64 = 256;

/// Number of descriptors that a node needs for itself: 17 when idle, one for its memory, three to greet one more peer
/// and read `/proc`, and three that its parent process left open.
const DESCRIPTORS_OWN: u64 = 24;
/// Number of descriptors per peer, node or application: its socket, its pidfd, the ring to it.
const DESCRIPTORS_PER_PEER: u64 = 3;
/// Minimum number of applications for which a node must have descriptors left.
const APPLICATIONS_MIN: u64 = 16;

/// Fails if the nodes of a cluster of `nodes` would run out of descriptors.
pub fn check_descriptors(nodes: u32) -> anyhow::Result<()> {
    // Nodes raise the soft limit themselves.
    let Some(limit) = getrlimit(Resource::Nofile).maximum else { return Ok(()) };
    let nodes_max = max_nodes(limit);
    if u64::from(nodes) > nodes_max {
        bail!(
            "cannot start {nodes} nodes: each would need {} descriptors, and the hard limit here is {limit} \
             (`ulimit -Hn`); {nodes_max} nodes work",
            descriptors_for(nodes.into())
        );
    }
    Ok(())
}

/// Number of descriptors that a server of clients keeps for its own use: epoll, a bell, and accepting beyond the maximum.
const DESCRIPTORS_OF_SERVER: u64 = 16;

/// Returns how many of `wanted` clients this process has descriptors for; says so if that is fewer. Fails if there are
/// none.
pub fn max_clients(wanted: usize) -> anyhow::Result<usize> {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return Ok(wanted) };
    let used = std::fs::read_dir("/proc/self/fd").map_or(0, |open| open.count() as u64);
    let free = limit.saturating_sub(used + DESCRIPTORS_OF_SERVER);
    match usize::try_from(free).unwrap_or(usize::MAX) {
        0 => bail!(
            "cannot serve clients: {used} of {limit} descriptors are in use; raise the limit (`ulimit -n`, \
             LimitNOFILE= of the unit)"
        ),
        // A note is worth reading only if many fewer clients fit than are wanted.
        free if free < wanted / 2 => {
            output::note(&format!(
                "at most {free} clients can connect at a time: the limit on descriptors (`ulimit -n`) is {limit}"
            ));
            Ok(free)
        }
        free => Ok(free.min(wanted)),
    }
}

/// Chunks of regions have at least this many bytes by default.
pub const PIECE_BYTES: u64 = 4 << 20;
/// Free bytes and free files that a cluster directory should have: each process has some short files there.
const DISK_BYTES: u64 = 1 << 20;
const DISK_FILES: u64 = 100;

/// Describes the memory of a node if it has room for a chunk, but only in pieces that are shorter.
pub fn fragmentation(status: &NodeStatus) -> Option<String> {
    let held = status.bytes_used + status.bytes_quarantined + status.bytes_refused;
    let free = status.bytes_total.saturating_sub(held);
    // A node that sent no report has no figures.
    let has_figures = status.state == NodeState::Alive && held + status.bytes_largest > 0;
    (has_figures && free >= PIECE_BYTES && status.bytes_largest < PIECE_BYTES).then(|| {
        let (free, largest) = (ByteCount(free), ByteCount(status.bytes_largest));
        format!("node {} has {free} free, in pieces of at most {largest}", status.node)
    })
}

/// Describes the running nodes of `dir` whose files were removed.
pub fn missing_files(dir: &Path) -> Option<String> {
    let nodes: Vec<String> =
        cluster_dir::nodes_without_files(dir).iter().map(|node| format!("node {node}")).collect();
    (!nodes.is_empty()).then(|| {
        format!(
            "files of {} are missing in {}: another program has removed them",
            nodes.join(", "),
            dir.display()
        )
    })
}

/// The remedy for missing files.
pub fn missing_files_remedy(dir: &Path) -> String {
    format!(
        "stop the nodes (halite down --dir {}) and start them again, in a directory that no cleaner of old files visits, for example in /run",
        dir.display()
    )
}

/// Describes the disk of `dir` if it is full or nearly full.
pub fn full_disk(dir: &Path) -> Option<String> {
    let disk = statvfs(dir).ok()?;
    let (bytes, files) = (disk.f_bavail * disk.f_frsize, disk.f_favail);
    // Some file systems report no files.
    let lacks_files = disk.f_files > 0 && files < DISK_FILES;
    (bytes < DISK_BYTES || lacks_files).then(|| {
        format!("the disk of {} is full: {} and {files} files are free", dir.display(), ByteCount(bytes))
    })
}

fn descriptors_for(nodes: u64) -> u64 {
    DESCRIPTORS_OWN + DESCRIPTORS_PER_PEER * (nodes - 1 + APPLICATIONS_MIN)
}

/// Returns the maximum number of nodes that can run if the hard limit on descriptors is `limit`.
pub fn max_nodes(limit: u64) -> u64 {
    let peers = limit.saturating_sub(DESCRIPTORS_OWN) / DESCRIPTORS_PER_PEER;
    (peers + 1).saturating_sub(APPLICATIONS_MIN)
}
