//! The narrow path: nodes of one process share regions, directly and by posting.

use crate::common;

use common::Dir;
use halite::{AccessCause, NodeId, Permissions, Placement, RegionCause};

const ANYBODY: Permissions = Permissions::READ.union(Permissions::WRITE);

#[test]
fn what_one_node_writes_the_other_reads() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    check_sharing(&first.blocking_session(), &second.blocking_session());
}

#[test]
fn nodes_that_must_post_share_the_same_way() {
    let dir = Dir::new();
    let (first, second) = (dir.join_posted(0), dir.join_posted(1));
    check_sharing(&first.blocking_session(), &second.blocking_session());
}

fn check_sharing(here: &halite::blocking::Session, there: &halite::blocking::Session) {
    // Larger than a chunk, a slice and a pin's worth of copying, and not a multiple of any.
    let len = (9 << 20) + 77;
    let lh = here.alloc(Some("shared"), len, Placement::Local, ANYBODY).unwrap();
    let theirs = there.map("shared", ANYBODY).unwrap();
    let mut all = vec![1; len as usize];
    there.read(theirs, 0, &mut all).unwrap();
    assert!(all.iter().all(|byte| *byte == 0), "a fresh region reads as zero");

    let pattern: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    there.write(theirs, 0, &pattern).unwrap();
    here.read(lh, 0, &mut all).unwrap();
    assert!(all == pattern);

    here.write(lh, len - 5, b"salty").unwrap();
    let mut end = [0; 5];
    there.read(theirs, len - 5, &mut end).unwrap();
    assert_eq!(&end, b"salty");

    let beyond = there.write(theirs, len - 4, b"salty").unwrap_err();
    assert_eq!(beyond.cause, AccessCause::OutOfRange { region_len: len });
    assert_eq!(there.read(theirs, u64::MAX, &mut end).unwrap_err().cause, AccessCause::Overflow);

    here.free(lh).unwrap();
    assert_eq!(there.read(theirs, 0, &mut end).unwrap_err().cause, AccessCause::Stale);
    assert_eq!(there.map("shared", ANYBODY).unwrap_err().cause, RegionCause::NotFound);
}

#[test]
fn a_region_moves_under_the_hands_of_those_who_use_it() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    check_move(&first.blocking_session(), &second.blocking_session());
}

#[test]
fn a_region_moves_where_bytes_must_be_posted() {
    let dir = Dir::new();
    let (first, second) = (dir.join_posted(0), dir.join_posted(1));
    check_move(&first.blocking_session(), &second.blocking_session());
}

fn check_move(here: &halite::blocking::Session, there: &halite::blocking::Session) {
    let len = 10 << 20;
    let lh = here.alloc(Some("moving"), len, Placement::Local, ANYBODY).unwrap();
    let theirs = there.map("moving", ANYBODY).unwrap();
    let pattern: Vec<u8> = (0..len).map(|at| (at % 249) as u8).collect();
    here.write(lh, 0, &pattern).unwrap();

    here.move_to(lh, NodeId(1)).unwrap();
    let info = there.stat("moving").unwrap();
    assert_eq!((info.home, info.nodes), (NodeId(1), vec![(NodeId(1), len)]));
    let mut all = vec![0; len as usize];
    for (session, handle) in [(here, lh), (there, theirs)] {
        all.fill(0);
        session.read(handle, 0, &mut all).unwrap();
        assert!(all == pattern);
    }
    here.free(lh).unwrap();
}

#[test]
fn all_that_was_taken_is_given_back() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    let (here, there) = (first.blocking_session(), second.blocking_session());
    let spread = Placement::Spread(vec![NodeId(0), NodeId(1)]);
    let lh = here.alloc(Some("spread"), 20 << 20, spread, ANYBODY).unwrap();
    let theirs = there.map("spread", ANYBODY).unwrap();
    there.write(theirs, 0, &vec![5; 20 << 20]).unwrap();
    let used: Vec<u64> = here.status().unwrap().iter().map(|node| node.bytes_used).collect();
    assert_eq!(used, [12 << 20, 8 << 20]);
    here.free(lh).unwrap();
    let status = here.status().unwrap();
    assert!(
        status.iter().all(|node| (node.bytes_used, node.regions, node.mappings) == (0, 0, 0)),
        "{status:?}"
    );
}

#[test]
fn many_threads_use_one_session() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join_posted(1));
    let lh = first.blocking_session();
    let region = lh.alloc(Some("threads"), 8 * 4096, Placement::Local, ANYBODY).unwrap();
    let there = second.blocking_session();
    let theirs = there.map("threads", ANYBODY).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let there = &there;
            scope.spawn(move || {
                for round in 0..200u64 {
                    let value = (thread << 32 | round).to_le_bytes();
                    let mut seen = [0; 8];
                    there.write(theirs, thread * 4096, &value).unwrap();
                    there.read(theirs, thread * 4096, &mut seen).unwrap();
                    assert_eq!(seen, value);
                }
            });
        }
    });
    lh.free(region).unwrap();
}
