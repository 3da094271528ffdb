//! Moves of regions: no byte and no handle is lost.

use std::sync::atomic::{AtomicBool, Ordering};

use halite::{NodeId, Placement, RegionCause};

use super::cluster::{ARENA, CHUNK, Cluster, Harness, await_value, contents, everyone, pattern, shared};
use super::refused;
use super::turns::scope;

/// Expects that a move brings all bytes and the home of a region to the new node, and frees the old memory.
pub fn a_moved_region_keeps_its_bytes(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let session = cluster.session(0);
    let lh = shared(&session, "cart", 5 * CHUNK + 3);
    let bytes = pattern(5 * CHUNK + 3, 1);
    session.write(lh, 0, &bytes).unwrap();
    session.move_to(lh, NodeId(2)).unwrap();
    let info = session.stat("cart").unwrap();
    assert_eq!((info.home, info.nodes), (NodeId(2), vec![(NodeId(2), 5 * CHUNK + 3)]));
    assert_eq!(contents(&session, lh), bytes);
    await_value("the old memory is free", || cluster.status(0).bytes_used, |bytes| *bytes == 0);
}

/// Expects that handles of all nodes stay valid during and after a move, for reading and writing.
pub fn handles_survive_a_move(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let sessions = [0, 1, 2].map(|index| cluster.session(index));
    shared(&sessions[0], "cart", 2 * CHUNK);
    let handles = sessions.each_ref().map(|session| session.map("cart", halite::Permissions::all()).unwrap());
    for (turn, to) in [1, 2, 0, 2].into_iter().enumerate() {
        sessions[turn % 3].move_to(handles[turn % 3], NodeId(to)).unwrap();
        for writer in 0..3 {
            let bytes = pattern(20, turn as u64 * 10 + writer as u64);
            sessions[writer].write(handles[writer], CHUNK - 10, &bytes).unwrap();
            for reader in 0..3 {
                let mut back = [0; 20];
                sessions[reader].read(handles[reader], CHUNK - 10, &mut back).unwrap();
                assert_eq!(back[..], bytes, "turn {turn}: node {writer} wrote and node {reader} read");
            }
        }
    }
}

/// Expects that no write during a move is lost.
pub fn writes_during_a_move_are_kept(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let owner = cluster.session(0);
    let near = shared(&owner, "train", 16 * CHUNK);
    let session = cluster.session(2);
    let lh = session.map("train", everyone()).unwrap();
    let is_done = AtomicBool::new(false);
    let written = scope(|scope| {
        let writer = scope.spawn(|| {
            let mut count = 0u64;
            // Pairs with the Release below: another round follows the last move.
            while !is_done.load(Ordering::Acquire) || count < 64 {
                count += 1;
                let offset = (count % 64) * (CHUNK / 4);
                session.write(lh, offset, &count.to_le_bytes()).unwrap();
                let mut back = [0; 8];
                session.read(lh, offset, &mut back).unwrap();
                assert_eq!(u64::from_le_bytes(back), count, "a completed write was lost");
            }
            count
        });
        for to in [1, 0, 2, 0, 1] {
            owner.move_to(near, NodeId(to)).unwrap();
        }
        is_done.store(true, Ordering::Release);
        writer.join()
    });
    let bytes = contents(&owner, near);
    for count in written - 63..=written {
        let at = ((count % 64) * (CHUNK / 4)) as usize;
        let kept = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(kept, count, "the last write to offset {at}");
    }
}

/// Expects that a move to the node that holds the region already has no effect.
pub fn a_move_to_the_same_node_has_no_effect(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    let lh = shared(&session, "still", CHUNK + 1);
    session.write(lh, 0, b"here").unwrap();
    session.move_to(lh, NodeId(0)).unwrap();
    assert_eq!(&contents(&session, lh)[..4], b"here");
    session.free(lh).unwrap();
    cluster.expect_empty();
}

/// Expects that a move to an unknown node is refused without any effect.
pub fn a_move_to_an_unknown_node_is_refused(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(0);
    let lh = shared(&session, "stay", 100);
    refused!(session.move_to(lh, NodeId(9)), RegionCause::UnknownNode(NodeId(9)));
    session.write(lh, 0, b"works").unwrap();
    assert_eq!(session.stat("stay").unwrap().home, NodeId(0));
}

/// Expects that a move to a node with too little memory is refused, loses no byte, and leaves nothing at the target.
pub fn a_move_that_does_not_fit_changes_nothing(h: &dyn Harness) {
    let cluster = Cluster::with(h, &[("ada", ARENA), ("ada", 4 * CHUNK)]);
    let session = cluster.session(0);
    let lh = shared(&session, "wide", 8 * CHUNK);
    let bytes = pattern(8 * CHUNK, 7);
    session.write(lh, 0, &bytes).unwrap();
    refused!(session.move_to(lh, NodeId(1)), RegionCause::NoSpace { .. });
    assert_eq!(contents(&session, lh), bytes);
    session.write(lh, 0, b"still writable").unwrap();
    assert_eq!(session.stat("wide").unwrap().nodes, [(NodeId(0), 8 * CHUNK)]);
    await_value("nothing is left at the target", || cluster.status(1).bytes_used, |bytes| *bytes == 0);
}

/// Expects that a move brings all chunks of a spread region to one node.
pub fn a_move_gathers_a_spread_region(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let session = cluster.session(0);
    let nodes = vec![NodeId(0), NodeId(1), NodeId(2)];
    let lh = session.alloc(Some("flock"), 7 * CHUNK, Placement::Spread(nodes), everyone()).unwrap();
    let bytes = pattern(7 * CHUNK, 9);
    session.write(lh, 0, &bytes).unwrap();
    session.move_to(lh, NodeId(1)).unwrap();
    assert_eq!(session.stat("flock").unwrap().nodes, [(NodeId(1), 7 * CHUNK)]);
    assert_eq!(contents(&session, lh), bytes);
    session.free(lh).unwrap();
    cluster.expect_empty();
}

/// Expects that a moved region is found by its name, even by nodes that join later.
pub fn a_moved_region_is_found_by_its_name(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let session = cluster.session(1);
    let lh = shared(&session, "nomad", 100);
    session.write(lh, 0, b"tent").unwrap();
    session.move_to(lh, NodeId(2)).unwrap();
    for index in 0..3 {
        let other = cluster.session(index);
        let lh = other.map("nomad", everyone()).unwrap();
        assert_eq!(&contents(&other, lh)[..4], b"tent", "found from node {index}");
    }
}
