//! Accesses with vectored, batched and owned buffers.

use std::io::{IoSlice, IoSliceMut};

use halite::{AccessCause, NodeId, Permissions, Placement, ReadOp, WriteOp};

use super::cluster::{CHUNK, Cluster, Harness, contents, everyone, in_common, pattern, shared};
use super::refused;

/// Expects that a vectored write stores its pieces one after the other, even across chunk borders.
pub fn a_vectored_write_joins_its_pieces(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let [_, (session, lh)] = in_common(&cluster, "pieces", 2 * CHUNK);
    let (one, two, three) = (pattern(10, 1), pattern(CHUNK, 2), pattern(1, 3));
    let pieces = [&one[..], &[], &two, &three].map(IoSlice::new);
    session.write_vectored(lh, 100, &pieces).unwrap();
    let expected = [&[0; 100][..], &one, &two, &three].concat();
    assert_eq!(contents(&session, lh)[..expected.len()], expected);
}

/// Expects that a vectored read fills its pieces one after the other.
pub fn a_vectored_read_fills_its_pieces_in_order(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let owner = cluster.session(0);
    let bytes = pattern(2 * CHUNK, 5);
    let near = shared(&owner, "pieces", 2 * CHUNK);
    owner.write(near, 0, &bytes).unwrap();
    let session = cluster.session(1);
    let lh = session.map("pieces", everyone()).unwrap();
    let (mut one, mut two, mut three) = (vec![0; 7], vec![0; CHUNK as usize], vec![0; 20]);
    let mut pieces = [
        IoSliceMut::new(&mut one),
        IoSliceMut::new(&mut []),
        IoSliceMut::new(&mut two),
        IoSliceMut::new(&mut three),
    ];
    session.read_vectored(lh, 3, &mut pieces).unwrap();
    assert_eq!([one, two, three].concat(), bytes[3..3 + 27 + CHUNK as usize]);
}

/// Expects that a vectored operation whose end is out of range has no effect.
pub fn a_vectored_operation_is_refused_whole(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    let lh = shared(&session, "whole", 100);
    let pieces = [&[1; 60][..], &[2; 60]].map(IoSlice::new);
    refused!(session.write_vectored(lh, 0, &pieces), AccessCause::OutOfRange { region_len: 100, .. });
    assert_eq!(contents(&session, lh), [0; 100]);
    let (mut one, mut two) = ([7; 60], [7; 60]);
    let mut pieces = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
    refused!(session.read_vectored(lh, 0, &mut pieces), AccessCause::OutOfRange { region_len: 100, .. });
    assert_eq!((one, two), ([7; 60], [7; 60]));
}

/// Expects that vectored operations without pieces, and batches without operations, succeed.
pub fn empty_lists_do_nothing(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    let lh = shared(&session, "idle", 100);
    session.write_vectored(lh, 0, &[]).unwrap();
    session.read_vectored(lh, 100, &mut []).unwrap();
    session.write_batch(&[]).unwrap();
    session.read_batch(&mut []).unwrap();
}

/// Expects that a batch accesses several regions on several nodes, in order.
pub fn a_batch_reaches_many_regions_in_order(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(0);
    let near = shared(&session, "near", 100);
    let far = session.alloc(Some("far"), 100, Placement::On(halite::NodeId(1)), everyone()).unwrap();
    let writes = [
        WriteOp { lh: near, offset: 0, from: b"first" },
        WriteOp { lh: far, offset: 50, from: b"second" },
        WriteOp { lh: near, offset: 2, from: b"over" },
    ];
    session.write_batch(&writes).unwrap();
    let (mut one, mut two) = ([0; 6], [0; 6]);
    let mut reads =
        [ReadOp { lh: near, offset: 0, into: &mut one }, ReadOp { lh: far, offset: 50, into: &mut two }];
    session.read_batch(&mut reads).unwrap();
    assert_eq!((&one, &two), (b"fiover", b"second"));
}

/// Expects that a batch executes the operations before the failed one and none after it, and that the error contains
/// the index of the failed operation.
pub fn a_batch_stops_at_its_first_error(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    let lh = shared(&session, "list", 100);
    let writes = [
        WriteOp { lh, offset: 0, from: b"a" },
        WriteOp { lh, offset: 1, from: b"b" },
        WriteOp { lh, offset: 100, from: b"c" },
        WriteOp { lh, offset: 3, from: b"d" },
    ];
    let error = session.write_batch(&writes).unwrap_err();
    assert_eq!(error.index, 2, "{error}");
    assert!(matches!(error.cause(), AccessCause::OutOfRange { .. }), "{error}");
    assert_eq!(contents(&session, lh)[..4], *b"ab\0\0");

    let (mut one, mut two, mut three) = ([7], [7], [7]);
    let mut reads = [
        ReadOp { lh, offset: 0, into: &mut one },
        ReadOp { lh, offset: u64::MAX, into: &mut two },
        ReadOp { lh, offset: 1, into: &mut three },
    ];
    assert_eq!(session.read_batch(&mut reads).unwrap_err().index, 1);
    assert_eq!((one, two, three), ([b'a'], [7], [7]));
}

/// Expects that an operation with an owned buffer returns that buffer after success and after failure.
pub fn an_owned_buffer_is_always_returned(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    let lh = shared(&session, "owned", 100);
    let bytes = pattern(100, 1);
    let address = bytes.as_ptr();
    let (bytes, result) = session.write_owned(lh, 0, bytes);
    result.unwrap();
    let (bytes, result) = session.write_owned(lh, 1, bytes);
    refused!(result, AccessCause::OutOfRange { .. });
    assert_eq!((bytes.as_ptr(), &bytes), (address, &pattern(100, 1)));
    let (bytes, result) = session.read_owned(lh, 0, vec![0; 100]);
    result.unwrap();
    assert_eq!(bytes, pattern(100, 1));
    let (bytes, result) = session.read_owned(lh, 1, bytes);
    refused!(result, AccessCause::OutOfRange { .. });
    assert_eq!(bytes, pattern(100, 1));
}

/// Expects that accesses with a session's own buffers have the results of accesses with other memory.
pub fn a_buffer_works_like_other_memory(h: &dyn Harness) {
    const LEN: usize = 300_000;
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(0);
    let bytes = pattern(LEN as u64, 1);
    for home in [NodeId(0), NodeId(1)] {
        let lh = session.alloc(None, LEN as u64, Placement::On(home), Permissions::all()).unwrap();
        let mut buffer = session.buffer(LEN + 10).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 0));
        buffer[10..].copy_from_slice(&bytes);
        session.write(lh, 0, &buffer[10..]).unwrap();
        assert!(contents(&session, lh) == bytes);

        // A part of the region into a part of the buffer.
        session.read(lh, 1000, &mut buffer[..200_000]).unwrap();
        assert!(buffer[..200_000] == bytes[1000..201_000] && buffer[200_000..] == bytes[199_990..]);
        for part in [1..1, 2..3, 4..12, 100..157, 1000..70_000] {
            session.write(lh, 5, &buffer[part.clone()]).unwrap();
            let mut read = vec![0; part.len()];
            session.read(lh, 5, &mut read).unwrap();
            assert_eq!(read, buffer[part]);
        }

        // A refused access changes nothing.
        buffer.fill(7);
        let before = contents(&session, lh);
        refused!(session.write(lh, 100_000, &buffer[..LEN]), AccessCause::OutOfRange { .. });
        refused!(session.read(lh, u64::MAX - 10, &mut buffer[..100]), AccessCause::Overflow);
        assert!(contents(&session, lh) == before && buffer.iter().all(|byte| *byte == 7));
        session.free(lh).unwrap();
        refused!(session.read(lh, 0, &mut buffer[..100]), AccessCause::Stale);

        // A posted access owns the buffer.
        let lh = session.alloc(None, LEN as u64, Placement::On(home), Permissions::all()).unwrap();
        let (buffer, written) = session.post_write(lh, 0, buffer).wait();
        refused!(written, AccessCause::OutOfRange { .. });
        session.write(lh, 1, &buffer[..200]).unwrap();
        let (read, done) = session.post_read(lh, 0, session.buffer(100).unwrap()).wait();
        done.unwrap();
        assert_eq!(read[..2], [0, 7]);
        drop(buffer);
        session.free(lh).unwrap();
    }
    assert!(session.buffer(0).unwrap().is_empty());
}
