//! The directory of names, from the view of its users: node 0, or etcd.

use halite::{NodeId, RegionCause};

/// Returns whether an operation failed because the directory of names does not answer, which may be temporary. If node
/// 0 has the names and is away, a home that could not reach it names node 0 in the error.
pub fn is_without_directory(cause: &RegionCause) -> bool {
    matches!(cause, RegionCause::DirectoryOut | RegionCause::DirectoryDown)
        || *cause == RegionCause::PeerDown(NodeId::FIRST)
}
