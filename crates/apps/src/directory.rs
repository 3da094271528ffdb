//! The directory of names, as those see it who ask it for a region: etcd, or node 0.

use halite::{NodeId, RegionCause};

/// Whether something failed for want of the directory of names, which may be back soon.  Where node 0 has the names and is away, a home that
/// has asked it in vain says so by its number.
pub fn is_without_directory(cause: &RegionCause) -> bool {
    matches!(cause, RegionCause::DirectoryOut | RegionCause::DirectoryDown)
        || *cause == RegionCause::PeerDown(NodeId::FIRST)
}
