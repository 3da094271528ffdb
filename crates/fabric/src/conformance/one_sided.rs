//! Cases about reads and writes, and their completions.

use super::node::{Pair, SEGMENT_BYTES, bytes_of, quiet, request};
use super::{Harness, skip};
use crate::{Key, Local, Operation, PeerId, Status};

const DONE: Status = Status::Success;

/// Expects that short and long writes and reads copy their bytes, with inline and registered sources, in both
/// directions.
pub fn writes_and_reads_reach_the_peers_memory(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    let (_, source) = pair.source.clone();
    let (_, target) = pair.target.clone();
    let inline = Operation::Write { local: Local::Inline(b"inline"), remote: pair.at(100) };
    pair.one.post(pair.to_two, 1, inline);
    assert_eq!(pair.one.ended(), (1, DONE));
    assert_eq!(bytes_of(&target, 99, 8), b"\0inline\0");

    source.fill(0, SEGMENT_BYTES, 9).expect("the range lies within the segment");
    let whole = Operation::Write { local: pair.local(0, SEGMENT_BYTES), remote: pair.at(0) };
    pair.one.post(pair.to_two, 2, whole);
    assert_eq!(pair.one.ended(), (2, DONE));
    assert!(bytes_of(&target, 0, SEGMENT_BYTES as usize).iter().all(|byte| *byte == 9));

    target.write(5000, b"read me").expect("the range lies within the segment");
    pair.one.post(pair.to_two, 3, Operation::Read { local: pair.local(3, 7), remote: pair.at(5000) });
    assert_eq!(pair.one.ended(), (3, DONE));
    assert_eq!(bytes_of(&source, 2, 9), b"\x09read me\x09");

    target.fill(0, SEGMENT_BYTES, 5).expect("the range lies within the segment");
    let whole = Operation::Read { local: pair.local(0, SEGMENT_BYTES), remote: pair.at(0) };
    pair.one.post(pair.to_two, 4, whole);
    assert_eq!(pair.one.ended(), (4, DONE));
    assert!(bytes_of(&source, 0, SEGMENT_BYTES as usize).iter().all(|byte| *byte == 5));
    pair.one.expect_nothing();
    pair.two.expect_nothing();
}

/// Expects that a caller may change an inline source of any permitted length as soon as the post returns.
pub fn inline_sources_are_copied_before_the_post_returns(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    // Without a limit, this length counts as long.
    let longest = pair.one.fabric.capabilities(pair.to_two).inline_bytes_max.min(100_000);
    for (id, len) in (1..).zip([1, 8, longest]) {
        let mut bytes = vec![id as u8; len];
        let write = Operation::Write { local: Local::Inline(&bytes), remote: pair.at(0) };
        pair.one.post(pair.to_two, id, write);
        bytes.fill(77);
        assert_eq!(pair.one.ended(), (id, DONE));
        assert_eq!(bytes_of(&pair.target.1, 0, len), vec![id as u8; len]);
    }
}

/// Expects that an unsignalled request produces no completion if it succeeds.
pub fn only_signalled_requests_complete(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    let write = |id| quiet(id, Operation::Write { local: Local::Inline(b"x"), remote: pair.at(id) });
    let send = |id| quiet(id, Operation::Send { bytes: b"x", imm: id as u32 });
    let last = request(5, Operation::Write { local: Local::Inline(b"x"), remote: pair.at(5) });
    pair.one
        .try_post(pair.to_two, &[write(1), send(2), write(3), send(4), last])
        .expect("the requests fit the queue");
    assert_eq!(pair.one.ended(), (5, DONE));
    pair.one.expect_nothing();
}

/// Expects that loads and stores reach a peer's memory if the capability `direct` is true, and otherwise that the
/// fabric returns no window.
pub fn loads_and_stores_reach_direct_memory(harness: &dyn Harness) {
    let pair = Pair::new(harness);
    let Pair { one, two, to_two, to_one, .. } = &pair;
    let window = one.fabric.direct(*to_two, pair.target.0);
    if !one.fabric.capabilities(*to_two).direct {
        skip("loads and stores do not reach the memory of peers");
        return assert!(window.is_none());
    }
    let theirs = window.expect("the segment is registered");
    let ours = &pair.target.1;
    assert_eq!(theirs.len(), SEGMENT_BYTES);
    theirs.store_u64(8, 5).expect("the range lies within the segment");
    assert_eq!(ours.fetch_add_u64(8, 1), Ok(5));
    assert_eq!(theirs.load_u64(8), Ok(6));
    assert!(two.fabric.direct(*to_one, pair.source.0).is_some());
    assert!(one.fabric.direct(*to_two, Key(1)).is_none(), "there is no such segment");
    assert!(one.fabric.direct(PeerId(99), pair.target.0).is_none(), "there is no such peer");
    one.fabric.disconnect(*to_two);
    assert!(one.fabric.direct(*to_two, pair.target.0).is_none(), "the connection has ended");
}
