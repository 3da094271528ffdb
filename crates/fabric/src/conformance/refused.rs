//! Cases about requests that the target refuses, and about requests that are not even posted.

use super::Harness;
use super::node::{Pair, SEGMENT_BYTES, bytes_of, quiet, request};
use crate::{Atomics, Key, Local, Operation, PostCause, RemoteAddress, Status};

/// Returns operations on an invalid range at `remote`, of 4 bytes and of a word, and operations of several packets that
/// exceed the segment by one byte.
fn invalid_operations(pair: &Pair<'_>, remote: RemoteAddress) -> Vec<Operation<'static>> {
    let mut operations = vec![
        Operation::Write { local: Local::Inline(b"1234"), remote },
        Operation::Write { local: pair.local(0, 4), remote },
        Operation::WriteImm { local: Local::Inline(b"1234"), remote, imm: 1 },
        Operation::WriteImm { local: pair.local(0, 4), remote, imm: 1 },
        Operation::Read { local: pair.local(0, 4), remote },
    ];
    // Only the last byte is outside of the segment.
    let beyond = pair.at(SEGMENT_BYTES - 8999);
    operations.push(Operation::Write { local: pair.local(0, 9000), remote: beyond });
    operations.push(Operation::WriteImm { local: pair.local(0, 9000), remote: beyond, imm: 1 });
    operations.push(Operation::Read { local: pair.local(0, 9000), remote: beyond });
    if pair.one.fabric.capabilities(pair.to_two).atomics != Atomics::None {
        operations.push(Operation::FetchAdd { remote, add: 1 });
        operations.push(Operation::CompareSwap { remote, expected: 0, new: 1 });
    }
    operations
}

/// Expects that a request with a wrong key or range fails and that earlier requests succeed. On networks, the
/// connection then ends; in shared memory, only this request fails.
pub fn a_wrong_key_or_range_is_refused(harness: &dyn Harness) {
    let key = |key| RemoteAddress { key: Key(key), offset: 0 };
    let offset = |offset| RemoteAddress { key: Key(0), offset };
    let places =
        [key(1), key(u32::MAX), offset(SEGMENT_BYTES - 3), offset(u64::MAX - 1), offset(u64::MAX - 7)];
    let mut pairs = (0..).map(|number| {
        let [one, two] = ["one", "two"].map(|name| format!("{name}-{number}"));
        Pair::between(harness, [&one, &two])
    });
    let mut pair = pairs.next().expect("the sequence of pairs is endless");
    assert_eq!(pair.target.0, Key(0));
    let mut operations: Vec<_> =
        places.into_iter().flat_map(|remote| invalid_operations(&pair, remote)).collect();
    if pair.one.fabric.capabilities(pair.to_two).atomics != Atomics::None {
        operations.push(Operation::FetchAdd { remote: offset(4), add: 1 });
    }
    for operation in operations {
        expect_refused(&mut pair, operation);
        if harness.refusal_ends_connection() {
            pair = pairs.next().expect("the sequence of pairs is endless");
        }
    }
}

fn expect_refused(pair: &mut Pair<'_>, operation: Operation<'_>) {
    let (to_two, to_one) = (pair.to_two, pair.to_one);
    let before = request(1, Operation::Write { local: Local::Inline(b"before"), remote: pair.at(0) });
    let behind = request(3, Operation::Write { local: Local::Inline(b"behind"), remote: pair.at(64) });
    pair.one.try_post(to_two, &[before, request(2, operation), behind]).expect("the requests are accepted");
    assert_eq!(pair.one.ended(), (1, Status::Success));
    assert_eq!(pair.one.ended(), (2, Status::RemoteAccess), "{operation:?}");
    let connection_ends = pair.one.harness.refusal_ends_connection();
    if connection_ends {
        assert_eq!(pair.one.ended(), (3, Status::Flushed));
        pair.one.gone(to_two);
        pair.two.gone(to_one);
    } else {
        assert_eq!(pair.one.ended(), (3, Status::Success));
    }
    pair.one.expect_nothing();
    pair.two.expect_nothing();
    let memory = bytes_of(&pair.target.1, 0, SEGMENT_BYTES as usize);
    let mut expected = vec![0; SEGMENT_BYTES as usize];
    expected[..6].copy_from_slice(b"before");
    expected[64..70].copy_from_slice(if connection_ends { &[0; 6] } else { b"behind" });
    assert!(memory == expected, "{operation:?} changed memory");
}

/// Expects that a post that contains a malformed request posts the requests before that request, but none after it, and
/// that the connection stays up.
pub fn malformed_requests_are_refused(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    let capabilities = pair.one.fabric.capabilities(pair.to_two);
    let too_long = vec![0; capabilities.send_bytes_max + 1];
    let too_much = vec![0; capabilities.inline_bytes_max.min(SEGMENT_BYTES as usize) + 1];
    let local = |key, offset, len| Local::Registered { key: Key(key), offset, len };
    let remote = pair.at(0);
    let mut bad = vec![
        Operation::Send { bytes: &too_long, imm: 0 },
        Operation::Read { local: Local::Inline(b"no place to read into"), remote },
        Operation::Read { local: local(0, SEGMENT_BYTES, 1), remote },
        Operation::Write { local: local(0, SEGMENT_BYTES - 6, 7), remote },
        Operation::Write { local: local(0, u64::MAX, 2), remote },
        Operation::WriteImm { local: local(9, 0, 1), remote, imm: 1 },
    ];
    if capabilities.inline_bytes_max < SEGMENT_BYTES as usize {
        bad.push(Operation::Write { local: Local::Inline(&too_much), remote });
        bad.push(Operation::WriteImm { local: Local::Inline(&too_much), remote, imm: 1 });
    }
    for operation in &bad {
        let fine = quiet(1, Operation::Send { bytes: b"fine", imm: 0 });
        let list = [fine, request(2, *operation), fine];
        let error = pair.one.try_post(pair.to_two, &list).expect_err("one of the requests is malformed");
        assert_eq!((error.peer, error.posted, error.cause), (pair.to_two, 1, PostCause::Malformed));
    }
    for _ in &bad {
        assert_eq!(pair.two.received(), (b"fine".to_vec(), 0));
    }
    pair.one.expect_nothing();
    pair.two.expect_nothing();
}
