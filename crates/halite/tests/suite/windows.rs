//! How many posts accesses take that are longer than a window, or go to several peers.

use crate::common;

use common::Dir;
use common::no_direct::{NoDirect, join};
use halite::{Lh, NodeId, Permissions, Placement, WriteOp};

const ALL: Permissions = Permissions::all();

/// Posts, and requests in them, while something is done; at least three times, since heartbeats are posts as well.
fn posted_by(fabric: &NoDirect, mut work: impl FnMut()) -> (u64, u64) {
    let once = |_| {
        let (posts, requests) = fabric.posted();
        work();
        (fabric.posted().0 - posts, fabric.posted().1 - requests)
    };
    (0..3).map(once).min().expect("there are three")
}

#[test]
fn batches_longer_than_a_window_or_to_several_peers_are_posted_by_the_window_and_the_peer() {
    let dir = Dir::new();
    let ((here, fabric), _one, _two) = (join(&dir, 0), join(&dir, 1), join(&dir, 2));
    let session = here.blocking_session();
    let on = |node| session.alloc(None, 8 << 20, Placement::On(NodeId(node)), ALL).expect("there is room");
    let [one, two] = [on(1), on(2)];
    let write = |count: u64, regions: &[Lh]| {
        let writes: Vec<WriteOp<'_>> = (0..count)
            .map(|at| WriteOp { lh: regions[at as usize % regions.len()], offset: at * 64, from: &[7; 64] })
            .collect();
        session.write_batch(&writes).expect("all may be written");
    };
    write(2, &[one, two]);
    assert_eq!(posted_by(&fabric, || write(64, &[one])), (1, 64));
    assert_eq!(posted_by(&fabric, || write(65, &[one])), (2, 65), "a window, and what was left");
    assert_eq!(
        posted_by(&fabric, || write(128, &[one])),
        (5, 128),
        "a window, and four times what a quarter of it freed"
    );
    assert_eq!(posted_by(&fabric, || write(64, &[one, two])), (2, 64), "one for each peer");

    let bytes: Vec<u8> = (0..4 << 20).map(|at: u32| (at >> 8) as u8).collect();
    let (posts, requests) = posted_by(&fabric, || session.write(one, 0, &bytes).expect("it may be written"));
    assert_eq!((posts, requests), (35, 35), "each slice of 120 KiB leaves as soon as it is copied");
    let mut read = vec![0; bytes.len()];
    let (posts, requests) = posted_by(&fabric, || session.read(one, 0, &mut read).expect("it may be read"));
    assert_eq!((posts, requests), (35, 35));
    assert!(read == bytes, "what was written is read");

    let (posts, requests) = fabric.posted();
    session.move_to(one, NodeId(0)).expect("there is room here");
    let (posts, requests) = (fabric.posted().0 - posts, fabric.posted().1 - requests);
    assert!(requests >= 256, "{requests} requests for 8 MiB");
    assert!(posts < 64, "{posts} posts for {requests} requests");
    read.fill(0);
    session.read(one, 0, &mut read).expect("it is here");
    assert!(read == bytes, "it has moved as it was");
}
