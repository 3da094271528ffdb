//! Posted reads and writes: each completes in order, with its bytes or with the cause of its failure.

use halite::{AccessCause, NodeId, Permissions};

use super::cluster::{CHUNK, Cluster, Harness, contents, everyone, in_common, pattern, shared};
use super::refused;
use super::session::Posted;

fn wait_all<B: Unpin>(posted: Vec<Posted<B>>) -> Vec<B> {
    let wait = |posted: Posted<B>| {
        let (buffer, outcome) = posted.wait();
        outcome.unwrap();
        buffer
    };
    posted.into_iter().map(wait).collect()
}

/// Expects that posted accesses complete with their bytes: short ones, and long ones that span chunks.
pub fn posted_accesses_complete_with_their_bytes(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let len = 4 * CHUNK;
    let [(owner, near), (session, far)] = in_common(&cluster, "board", len);
    let bytes = pattern(len, 3);
    for piece_bytes in [40, CHUNK / 2 + 1, len] {
        owner.write(near, 0, &vec![0; len as usize]).unwrap();
        let pieces = bytes.chunks(piece_bytes as usize).zip((0..).step_by(piece_bytes as usize)).take(100);
        let total = pieces.clone().map(|(piece, _)| piece.len()).sum();
        let writes = pieces.clone().map(|(piece, at)| session.post_write(far, at, piece.to_vec()));
        wait_all(writes.collect());
        assert_eq!(contents(&owner, near)[..total], bytes[..total]);
        let reads = pieces.map(|(piece, at)| session.post_read(far, at, vec![0; piece.len()]));
        assert_eq!(wait_all(reads.collect()).concat(), bytes[..total]);
    }
}

/// Expects that the last posted write overwrites the earlier ones, and that a later read returns its bytes.
pub fn posted_writes_land_in_order(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let [_, (session, far)] = in_common(&cluster, "word", 8);
    for round in 0..10u64 {
        let words = (0..50).map(|count| session.post_write(far, 0, (50 * round + count).to_ne_bytes()));
        let words: Vec<_> = words.collect();
        let (read, outcome) = session.post_read(far, 0, [0; 8]).wait();
        outcome.unwrap();
        assert_eq!(u64::from_ne_bytes(read), 50 * round + 49);
        wait_all(words);
    }
}

/// Expects that repeated calls of `is_ended` suffice to complete an access.
pub fn polling_completes_a_posted_access(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let [(owner, near), (session, far)] = in_common(&cluster, "board", 8);
    let mut write = session.post_write(far, 0, *b"finished");
    while !write.is_ended() {
        super::turns::pause_again(0);
    }
    assert!(write.is_ended(), "a completed access stays completed");
    write.wait().1.unwrap();
    assert_eq!(contents(&owner, near), b"finished");
}

/// Expects that a refused access returns the cause and the buffer.
pub fn a_refused_access_returns_its_buffer(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let [_, (session, far)] = in_common(&cluster, "board", 8);
    let (buffer, outcome) = session.post_write(far, 4, *b"too long").wait();
    refused!(outcome, AccessCause::OutOfRange { region_len: 8 });
    assert_eq!(&buffer, b"too long");
    let reader = cluster.session(1);
    let read_only = reader.map("board", Permissions::READ).unwrap();
    refused!(reader.post_write(read_only, 0, *b"unheard!").wait().1, AccessCause::PermissionDenied { .. });
    refused!(session.post_read(read_only, 0, [0; 8]).wait().1, AccessCause::ForeignHandle);
}

/// Expects that thousands of dropped accesses release their memory, and do not delay changes of the region.
pub fn dropped_accesses_leak_nothing(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let owner = cluster.session(0);
    let near = shared(&owner, "board", CHUNK);
    let session = cluster.session(1);
    let far = session.map("board", everyone()).unwrap();
    for round in 0..3000u64 {
        let len = if round % 100 == 0 { CHUNK } else { 8 };
        drop(session.post_write(far, 0, vec![round as u8; len as usize]));
        drop(session.post_read(far, 0, vec![0; len as usize]));
        // The fabric's queue is limited, so this read waits until it is empty.
        if round % 100 == 99 {
            session.read(far, 0, &mut [0; 8]).unwrap();
        }
    }
    owner.move_to(near, NodeId(1)).unwrap();
    session.post_write(far, 0, *b"the last").wait().1.unwrap();
    assert_eq!(contents(&owner, near)[..8], *b"the last");
}
