//! Descriptions and lists of regions.

use halite::{NodeId, Permissions, Placement, RegionCause};

use super::cluster::{CHUNK, Cluster, Harness, everyone, shared};
use super::refused;

/// Expects that the list is sorted by name and equal on every node. Regions without a name are not listed.
pub fn the_list_is_ordered_by_name(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    assert!(cluster.session(0).list().unwrap().is_empty());
    for (index, name) in ["pear", "apple", "zebra", "fig", "Plum"].into_iter().enumerate() {
        shared(&cluster.session(index % 3), name, 100 + index as u64);
    }
    cluster.session(0).alloc(None, 100, Placement::Local, everyone()).unwrap();
    for index in 0..3 {
        let list = cluster.session(index).list().unwrap();
        let names: Vec<&str> = list.iter().filter_map(|info| info.name.as_deref()).collect();
        assert_eq!(names, ["Plum", "apple", "fig", "pear", "zebra"], "from node {index}");
        assert_eq!(list.len(), 5);
        assert_eq!(list[0].len, 104);
    }
}

/// Expects that a description, by name or by handle, shows the properties of the allocation, and is equal on every
/// node.
pub fn a_description_matches_the_allocation(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob", "eve"]);
    let bob = cluster.session(1);
    let lh = bob.alloc(Some("told"), 3 * CHUNK, Placement::On(NodeId(2)), Permissions::READ).unwrap();
    let info = bob.stat_handle(lh).unwrap();
    assert_eq!(info.name.as_deref(), Some("told"));
    assert_eq!((info.len, info.chunk_bytes), (3 * CHUNK, CHUNK));
    assert_eq!((info.owner.as_str(), info.everyone, info.sealed), ("bob", Permissions::READ, false));
    assert_eq!(info.nodes, [(NodeId(2), 3 * CHUNK)]);
    for index in 0..3 {
        let other = cluster.session(index).stat("told").unwrap();
        assert_eq!(
            (other.len, other.owner.as_str(), other.home),
            (3 * CHUNK, "bob", info.home),
            "from node {index}"
        );
    }
}

/// Expects that each change increments the epoch.
pub fn the_epoch_counts_changes(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(0);
    let lh = shared(&session, "aging", CHUNK);
    let mut last = session.stat("aging").unwrap().epoch;
    let mut expect_advance = |what: &str| {
        let epoch = session.stat("aging").unwrap().epoch;
        assert!(epoch > last, "{what} left the epoch at {epoch}");
        last = epoch;
    };
    session.grant(lh, halite::Who::Principal("bob".to_owned()), Permissions::READ).unwrap();
    expect_advance("a grant");
    session.move_to(lh, NodeId(1)).unwrap();
    expect_advance("a move");
    session.seal(lh).unwrap();
    expect_advance("a seal");
}

/// Expects that the description of a name or handle without a region fails.
pub fn an_unknown_name_has_no_description(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(1);
    refused!(session.stat("nothing"), RegionCause::NotFound);
    let lh = shared(&session, "soon gone", 10);
    session.free(lh).unwrap();
    refused!(session.stat("soon gone"), RegionCause::NotFound);
    refused!(
        session.stat_handle(lh),
        RegionCause::Stale | RegionCause::UnknownHandle | RegionCause::NotFound
    );
}
