//! Ends of connections: the causes, the status of posted requests, and no access to memory afterwards.

use halite_rnic::wire::Nak;
use halite_rnic::{Cause, Event, Local, Operation, PostError, Remote, Request, Source, State, Status};

use crate::pair::*;

fn break_cause(pair: &mut Pair, side: Side) -> Option<Cause> {
    match pair.end(side).events.last() {
        Some(Event::Broken { cause }) => Some(*cause),
        _ => None,
    }
}

#[test]
fn invalid_key_or_range_ends_the_connection() {
    let read_only = Remote { rkey: READ_ONLY, address: 0 };
    let beyond = Remote { rkey: KEY, address: MEMORY_BYTES as u64 - 8 };
    let nowhere = Remote { rkey: 99, address: 0 };
    let local = Local { key: KEY, address: 0 };
    let write = |remote, len, imm| Operation::Write { source: Source::Inline(vec![1; len]), remote, imm };
    for operation in [
        write(read_only, 1, None),
        write(beyond, 9, Some(1)),
        write(beyond, 5000, None),
        Operation::Read { local, remote: beyond, len: 9 },
        Operation::Read { local, remote: nowhere, len: 1 },
        Operation::FetchAdd { remote: read_only, add: 1 },
        Operation::CompareSwap { remote: nowhere, expected: 0, new: 1 },
    ] {
        let mut pair = Pair::new();
        let good = pair.a().write(0, b"good");
        let bad = pair.a().post(operation.clone());
        let behind = pair.a().write(8, b"behind");
        pair.b().send(b"never received", None);
        pair.run();
        assert_eq!(pair.b().memory.get(0, 4), b"good");
        assert_eq!(pair.b().memory.get(8, 6), [0; 6], "{operation:?}");
        assert_eq!(pair.b().memory.get(MEMORY_BYTES as u64 - 8, 8), [0; 8], "{operation:?}");
        let completions = pair.a().completions();
        assert_eq!(completions[..2], [(good, Status::Success), (bad, Status::RemoteAccess)], "{operation:?}");
        assert_eq!(completions[2], (behind, Status::Flushed), "{operation:?}");
        assert_eq!(break_cause(&mut pair, A), Some(Cause::Refused(Nak::RemoteAccess)));
        assert_eq!(break_cause(&mut pair, B), Some(Cause::PeerErred(Nak::RemoteAccess)));
        assert_eq!(pair.b().completions().len(), 1, "B's request completes, too");
    }
}

#[test]
fn deregistering_read_memory_ends_the_connection() {
    let mut pair = Pair::new();
    pair.a().read(0, 0, 60_000);
    pair.run_until(ONE_WAY_NS + ONE_WAY_NS / 2);
    pair.b().memory.deregister(KEY);
    pair.run();
    assert_eq!(pair.a().completions(), [(0, Status::RemoteAccess)]);
    assert_eq!(break_cause(&mut pair, B), Some(Cause::PeerErred(Nak::RemoteAccess)));
}

#[test]
fn requester_gives_up_when_the_lease_ends() {
    let mut pair = Pair::with(lease_ms(5000), [0, 0]);
    pair.a().write(0, b"before");
    pair.run();
    pair.log.clear();
    let begin = pair.now_ns;
    pair.set_filter(|_| Fate::Lost);
    pair.a().write(8, b"in flight");
    pair.run();
    assert_eq!(pair.now_ns - begin, 5_000_000_000);
    assert_eq!(pair.a().completions()[1..], [(1, Status::RetryExceeded)]);
    assert_eq!(break_cause(&mut pair, A), Some(Cause::RetryExceeded));
    assert!(pair.log.len() < 40, "{} packets", pair.log.len());
    assert_eq!(pair.a().qp.poll_timeout(), None);
}

#[test]
fn nothing_lands_after_a_close() {
    let mut pair = Pair::with(lease_ms(50), [0, 0]);
    pair.a().write(0, b"in time");
    pair.run();
    pair.a().write(0, b"too late");
    pair.a().fetch_add(64, 1);
    pair.run_until(pair.now_ns + ONE_WAY_NS / 2);
    let posted = pair.b().write(0, b"flushed");
    pair.b().qp.close();
    assert_eq!(pair.b().qp.state(), State::Error);
    pair.run();
    assert_eq!(pair.b().memory.get(0, 8), b"in time\0");
    assert_eq!(pair.b().memory.word(64), 0);
    assert_eq!(pair.b().completions(), [(posted, Status::Flushed)]);
    assert_eq!(break_cause(&mut pair, B), Some(Cause::Closed));
    assert_eq!(pair.a().completions()[1..], [(1, Status::RetryExceeded), (2, Status::Aborted)]);
    let late = Request { id: 9, operation: write(0, b"", None), signalled: true, solicited: false };
    assert_eq!(pair.b().qp.post(late), Err(PostError::NotReady));
    pair.b().qp.close();
    assert_eq!(pair.b().qp.poll_event(), None, "the connection breaks once");
}
