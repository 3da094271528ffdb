//! Recognizes operations that failed because the directory of names, which node 0 or etcd holds, did not answer.

use halite::{NodeId, RegionCause};

/// Returns true if an operation failed because the directory of names does not answer, which may be temporary. The
/// cause also names node 0 if the region's home could not reach the directory there.
pub fn is_without_directory(cause: &RegionCause) -> bool {
    matches!(
        cause,
        RegionCause::DirectoryOut { .. }
            | RegionCause::DirectoryDown
            | RegionCause::DirectoryUnreachable { .. }
    ) || *cause == RegionCause::PeerDown(NodeId::FIRST)
        || *cause == RegionCause::NotMet(NodeId::FIRST)
}
