//! The directory of names, from the view of its users: node 0, or etcd.

use halite::{NodeId, RegionCause};

/// Returns true if an operation failed because the directory of names does not answer, which may be temporary. If node
/// 0 holds the names and a home could not reach it, the error names node 0.
pub fn is_without_directory(cause: &RegionCause) -> bool {
    matches!(cause, RegionCause::DirectoryOut | RegionCause::DirectoryDown)
        || *cause == RegionCause::PeerDown(NodeId::FIRST)
        || *cause == RegionCause::NotMet(NodeId::FIRST)
}
