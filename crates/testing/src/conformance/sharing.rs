//! One region used by several nodes, sessions and threads.

use std::sync::atomic::{AtomicBool, Ordering};

use halite::{NodeId, Permissions, Placement, RegionCause};

use super::cluster::{CHUNK, Cluster, Harness, await_value, contents, everyone, in_common, pattern, shared};
use super::refused;
use super::turns::scope;

/// Expects that nodes see each other's writes.
pub fn nodes_read_each_others_writes(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let owner = cluster.session(0);
    let lh = shared(&owner, "wall", 2 * CHUNK);
    let others = [cluster.session(1), cluster.session(2)];
    let handles = others.each_ref().map(|session| session.map("wall", everyone()).unwrap());
    owner.write(lh, 10, b"from 0").unwrap();
    others[0].write(handles[0], CHUNK - 3, b"from 1").unwrap();
    for (session, lh) in [(&owner, lh), (&others[0], handles[0]), (&others[1], handles[1])] {
        let bytes = contents(session, lh);
        assert_eq!(&bytes[10..16], b"from 0");
        assert_eq!(&bytes[CHUNK as usize - 3..][..6], b"from 1");
    }
}

/// Expects that mapping an unknown name fails.
pub fn an_unknown_name_cannot_be_mapped(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    for index in [0, 1] {
        refused!(cluster.session(index).map("nothing", Permissions::READ), RegionCause::NotFound);
    }
    cluster.expect_empty();
}

/// Expects that two handles of one region are independent.
pub fn each_mapping_has_its_own_handle(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let lh = shared(&cluster.session(0), "twice", 100);
    let session = cluster.session(1);
    let first = session.map("twice", everyone()).unwrap();
    let second = session.map("twice", Permissions::READ).unwrap();
    assert!(first != second && first != lh);
    session.write(first, 0, b"x").unwrap();
    session.unmap(first).unwrap();
    let mut byte = [0];
    session.read(second, 0, &mut byte).unwrap();
    assert_eq!(&byte, b"x");
}

/// Expects that the description of a region lists the nodes that map it.
pub fn a_region_lists_its_mappers(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let owner = cluster.session(0);
    shared(&owner, "seen", 100);
    let session = cluster.session(2);
    let lh = session.map("seen", Permissions::READ).unwrap();
    let mappers = || owner.stat("seen").unwrap().mappers;
    assert!(mappers().contains(&NodeId(2)));
    session.unmap(lh).unwrap();
    await_value("node 2 no longer maps the region", mappers, |mappers| !mappers.contains(&NodeId(2)));
}

/// Expects that threads may use one session concurrently.
pub fn threads_share_a_session(h: &dyn Harness) {
    const THREADS: u64 = 4;
    let cluster = Cluster::new(h, 2);
    let [_, (session, lh)] = in_common(&cluster, "rows", THREADS * 5000);
    scope(|scope| {
        for row in 0..THREADS {
            let session = session.clone();
            scope.spawn(move || {
                for round in 0..50 {
                    let bytes = pattern(5000, row * 1000 + round);
                    session.write(lh, row * 5000, &bytes).unwrap();
                    let mut back = vec![0; 5000];
                    session.read(lh, row * 5000, &mut back).unwrap();
                    assert_eq!(back, bytes, "row {row}, round {round}");
                }
            });
        }
    });
}

/// Expects that a read of an aligned 8-byte word never returns parts of two writes.
pub fn an_aligned_word_never_tears(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let writer = cluster.session(0);
    let lh = shared(&writer, "word", 64);
    let reader = cluster.session(1);
    let far = reader.map("word", Permissions::READ).unwrap();
    let is_done = AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(|| {
            for value in 1..=20_000u64 {
                writer.write(lh, 8, &(value * 0x0001_0001_0001_0001).to_le_bytes()).unwrap();
            }
            // Pairs with the Acquire below: the reader reads once more after the last write.
            is_done.store(true, Ordering::Release);
        });
        let mut last = 0;
        loop {
            let was_done = is_done.load(Ordering::Acquire);
            let mut bytes = [0; 8];
            reader.read(far, 8, &mut bytes).unwrap();
            let word = u64::from_le_bytes(bytes);
            let value = word / 0x0001_0001_0001_0001;
            assert_eq!(word % 0x0001_0001_0001_0001, 0, "{word:#018x} was never written");
            assert!(value >= last, "read {value} after {last}, which was written later");
            last = value;
            if was_done {
                assert_eq!(last, 20_000);
                return;
            }
        }
    });
}

/// Expects that many regions on several nodes keep their own contents.
pub fn many_regions_keep_their_contents(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(0);
    let place = |index: u64| Placement::On(NodeId((index % 2) as u32));
    for index in 0..300 {
        let lh = session.alloc(Some(&format!("many-{index:03}")), 500, place(index), everyone()).unwrap();
        session.write(lh, 0, &pattern(500, index)).unwrap();
    }
    let other = cluster.session(1);
    for index in (0..300).rev() {
        let lh = other.map(&format!("many-{index:03}"), Permissions::READ).unwrap();
        assert_eq!(contents(&other, lh), pattern(500, index), "region {index}");
    }
    assert_eq!(other.list().unwrap().len(), 300);
}
