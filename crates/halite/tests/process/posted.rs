//! Tests how many allocations and posts a posted operation costs.

use crate::common;

use std::alloc::System;

use common::Dir;
use common::no_direct::join;
use halite::{NodeId, Permissions, Placement, ReadOp, WriteOp};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region as Stretch, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const ALL: Permissions = Permissions::all();
const ROUNDS: u64 = 2000;
/// Allowance for heartbeats, which also post and allocate: on a busy machine, the nodes send several during the test.
const OTHERS_MAX: u64 = ROUNDS / 10;

#[test]
fn posted_operations_allocate_nothing() {
    let dir = Dir::new();
    let ((here, fabric), _there) = (join(&dir, 0), join(&dir, 1));
    let session = here.blocking_session();
    let lh = session.alloc(Some("salt"), 4 << 20, Placement::On(NodeId(1)), ALL).expect("there is room");
    let mut word = [0; 8];
    session.write(lh, 0, &word).expect("the region is writable");

    let stretch = Stretch::new(ALLOCATOR);
    for round in 0..ROUNDS {
        session.write(lh, 8, &round.to_le_bytes()).expect("the region is writable");
        session.read(lh, 8, &mut word).expect("the region is readable");
        assert_eq!(u64::from_le_bytes(word), round);
        assert_eq!(session.fetch_add(lh, 0, 1), Ok(round));
    }
    let allocations = stretch.change().allocations as u64;
    assert!(allocations < OTHERS_MAX, "{allocations} allocations in {} operations", 3 * ROUNDS);

    let (posts, requests) = fabric.posted();
    for round in 0..ROUNDS / 10 {
        let bytes = round.to_le_bytes();
        let writes: Vec<WriteOp<'_>> =
            (0..64).map(|place| WriteOp { lh, offset: place * 128, from: &bytes }).collect();
        session.write_batch(&writes).expect("the region is writable");
        let mut read = [[0; 8]; 64];
        let mut reads: Vec<ReadOp<'_>> =
            (0..64).zip(&mut read).map(|(place, into)| ReadOp { lh, offset: place * 128, into }).collect();
        session.read_batch(&mut reads).expect("the region is readable");
        assert_eq!(read, [bytes; 64]);
    }
    let (posts, requests) = (fabric.posted().0 - posts, fabric.posted().1 - requests);
    let batches = 2 * (ROUNDS / 10);
    assert!(requests >= 64 * batches);
    assert!(posts < batches + OTHERS_MAX, "{posts} posts for {batches} batches");
}
