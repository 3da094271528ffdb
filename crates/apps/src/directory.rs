//! Recognizes operations that failed because the directory of names, which node 0 or etcd holds, did not answer.

use halite::{NodeId, RegionCause};

/// Returns true if an operation failed because the directory of names does not answer, which may be temporary. Such an
/// operation also fails with a cause that names node 0, if the region's home could not reach the directory on node 0.
pub fn is_without_directory(cause: &RegionCause) -> bool {
    matches!(cause, RegionCause::DirectoryOut { .. } | RegionCause::DirectoryDown)
        || *cause == RegionCause::PeerDown(NodeId::FIRST)
        || *cause == RegionCause::NotMet(NodeId::FIRST)
}
