//! Regions of many chunks, on one node and spread over several.

use halite::{NodeId, Placement};

use super::cluster::{CHUNK, Cluster, Harness, contents, everyone, in_common, pattern};

/// Expects that accesses of a few bytes across each chunk border reach both chunks.
pub fn every_border_between_chunks_is_seamless(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let [_, (session, lh)] = in_common(&cluster, "seams", 5 * CHUNK + 9);
    let mut model = vec![0; 5 * CHUNK as usize + 9];
    for border in 1..=5 {
        for (before, after) in [(1, 1), (8, 1), (1, 8), (5, 4), (8, 8)] {
            let offset = border * CHUNK - before;
            let bytes = pattern(before + after, border * 100 + before);
            session.write(lh, offset, &bytes).unwrap();
            model[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
            let mut back = vec![0; bytes.len()];
            session.read(lh, offset, &mut back).unwrap();
            assert_eq!(back, bytes, "{before} bytes before border {border} and {after} after it");
        }
    }
    assert_eq!(contents(&session, lh), model);
}

/// Expects that one access covers many whole chunks and parts of two more.
pub fn one_access_covers_many_chunks(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let [(owner, near), (session, lh)] = in_common(&cluster, "long", 8 * CHUNK);
    let bytes = pattern(6 * CHUNK + 2, 1);
    session.write(lh, CHUNK - 1, &bytes).unwrap();
    let all = contents(&owner, near);
    assert_eq!(all[CHUNK as usize - 1..][..bytes.len()], bytes);
    assert!(all[..CHUNK as usize - 1].iter().all(|byte| *byte == 0));
    assert!(all[CHUNK as usize - 1 + bytes.len()..].iter().all(|byte| *byte == 0));
}

/// Expects that a spread region has its chunks on the named nodes in turn, and is one region for every node.
pub fn a_spread_region_is_one_region(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let session = cluster.session(0);
    let nodes = vec![NodeId(0), NodeId(1), NodeId(2)];
    let lh = session.alloc(Some("spread"), 6 * CHUNK, Placement::Spread(nodes), everyone()).unwrap();
    let mut shares = session.stat("spread").unwrap().nodes;
    shares.sort();
    assert_eq!(shares, [(NodeId(0), 2 * CHUNK), (NodeId(1), 2 * CHUNK), (NodeId(2), 2 * CHUNK)]);
    let bytes = pattern(6 * CHUNK, 3);
    session.write(lh, 0, &bytes).unwrap();
    for index in 1..3 {
        let other = cluster.session(index);
        let lh = other.map("spread", everyone()).unwrap();
        assert_eq!(contents(&other, lh), bytes, "as node {index} sees it");
    }
}

/// Expects that the last chunk of a spread region may be short, and is placed on the next node in turn like the others.
pub fn a_spread_region_may_end_within_a_chunk(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(0);
    let nodes = vec![NodeId(0), NodeId(1)];
    let lh = session.alloc(Some("ragged"), 3 * CHUNK + 1, Placement::Spread(nodes), everyone()).unwrap();
    let shares = session.stat("ragged").unwrap().nodes;
    assert_eq!(shares.iter().map(|(_, bytes)| bytes).sum::<u64>(), 3 * CHUNK + 1);
    assert!(shares.contains(&(NodeId(0), 2 * CHUNK)), "{shares:?}");
    session.write(lh, 3 * CHUNK, &[42]).unwrap();
    assert_eq!(contents(&session, lh).last(), Some(&42));
}

/// Expects that freeing a spread region frees its memory on all nodes.
pub fn a_spread_region_is_freed_on_all_nodes(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let session = cluster.session(1);
    let nodes = vec![NodeId(0), NodeId(2)];
    let lh = session.alloc(None, 4 * CHUNK, Placement::Spread(nodes), everyone()).unwrap();
    assert!(cluster.status(0).bytes_used > 0 && cluster.status(2).bytes_used > 0);
    session.free(lh).unwrap();
    cluster.expect_empty();
}

/// Expects that an allocation that one node refuses leaves no memory reserved on the others.
pub fn a_refused_spread_region_leaves_nothing(h: &dyn Harness) {
    let cluster = Cluster::with(h, &[("ada", 64 * CHUNK), ("ada", 4 * CHUNK)]);
    let session = cluster.session(0);
    let nodes = vec![NodeId(0), NodeId(1)];
    let refusal = session.alloc(Some("wide"), 40 * CHUNK, Placement::Spread(nodes), everyone());
    super::refused!(refusal, halite::RegionCause::NoSpace { .. });
    super::refused!(session.stat("wide"), halite::RegionCause::NotFound);
    cluster.expect_empty();
}
