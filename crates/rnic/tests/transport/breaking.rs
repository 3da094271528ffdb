//! The end of a connection: its causes, the status of posted requests, and that nothing lands afterwards.

use std::time::Duration;

use halite_rnic::wire::Nak;
use halite_rnic::{
    Cause, Config, Event, Local, Operation, PostError, Remote, Request, Retry, Source, State, Status,
};

use crate::pair::*;

fn break_cause(pair: &mut Pair, side: Side) -> Option<Cause> {
    match pair.end(side).events.last() {
        Some(Event::Broken { cause }) => Some(*cause),
        _ => None,
    }
}

fn faulty(operation: &str) -> Operation {
    let remote = Remote { rkey: READ_ONLY, address: 0 };
    let beyond = Remote { rkey: KEY, address: MEMORY_BYTES as u64 - 8 };
    let nowhere = Remote { rkey: 99, address: 0 };
    match operation {
        "a write that is not allowed" => {
            Operation::Write { source: Source::Inline(vec![1]), remote, imm: None }
        }
        "a write past the end" => {
            Operation::Write { source: Source::Inline(vec![1; 9]), remote: beyond, imm: Some(1) }
        }
        "a long write past the end" => {
            Operation::Write { source: Source::Inline(vec![1; 5000]), remote: beyond, imm: None }
        }
        "a read past the end" => {
            Operation::Read { local: Local { key: KEY, address: 0 }, remote: beyond, len: 9 }
        }
        "a read of unregistered memory" => {
            Operation::Read { local: Local { key: KEY, address: 0 }, remote: nowhere, len: 1 }
        }
        "an atomic that is not allowed" => Operation::FetchAdd { remote, add: 1 },
        "an atomic nowhere" => Operation::CompareSwap { remote: nowhere, expected: 0, new: 1 },
        _ => unreachable!(),
    }
}

#[test]
fn invalid_key_or_range_breaks_the_connection_and_accesses_nothing() {
    for operation in [
        "a write that is not allowed",
        "a write past the end",
        "a long write past the end",
        "a read past the end",
        "a read of unregistered memory",
        "an atomic that is not allowed",
        "an atomic nowhere",
    ] {
        let mut pair = Pair::new();
        let good = pair.a().write(0, b"good");
        let bad = pair.a().post(faulty(operation));
        let behind = pair.a().write(8, b"behind");
        pair.b().send(b"never received", None);
        pair.run();
        assert_eq!(pair.b().memory.get(0, 4), b"good");
        assert_eq!(pair.b().memory.get(8, 6), [0; 6], "{operation}");
        assert_eq!(pair.b().memory.get(MEMORY_BYTES as u64 - 8, 8), [0; 8], "{operation}");
        let completions = pair.a().completions();
        assert_eq!(completions[..2], [(good, Status::Success), (bad, Status::RemoteAccess)], "{operation}");
        assert_eq!(completions[2], (behind, Status::Flushed), "{operation}");
        assert_eq!(break_cause(&mut pair, A), Some(Cause::Refused(Nak::RemoteAccess)));
        assert_eq!(break_cause(&mut pair, B), Some(Cause::PeerErred(Nak::RemoteAccess)));
        assert_eq!(pair.b().completions().len(), 1, "B's request completes, too");
    }
}

#[test]
fn peer_refuses_an_atomic_on_an_unaligned_word() {
    let mut pair = Pair::new();
    pair.a().post(Operation::FetchAdd { remote: at(4), add: 1 });
    pair.run();
    assert_eq!(pair.a().completions(), [(0, Status::RemoteInvalidRequest)]);
    assert_eq!(pair.b().memory.get(0, 16), [0; 16]);
}

#[test]
fn lost_refusal_is_repeated() {
    let mut pair = Pair::new();
    pair.set_filter(|sent| match (sent.from, sent.repetition) {
        (B, 0 | 1) => Fate::Lost,
        _ => Fate::Delivered,
    });
    pair.a().post(faulty("an atomic nowhere"));
    pair.run();
    assert_eq!(pair.a().completions(), [(0, Status::RemoteAccess)]);
    let refusals = pair.log.iter().filter(|line| line.contains("RemoteAccess")).count();
    assert_eq!(refusals, 3, "{:?}", pair.log);
}

#[test]
fn memory_deregistered_during_a_read_breaks_the_connection() {
    let mut pair = Pair::new();
    pair.a().read(0, 0, 60_000);
    pair.run_until(ONE_WAY_NS + ONE_WAY_NS / 2);
    pair.b().memory.deregister(KEY);
    pair.run();
    assert_eq!(pair.a().completions(), [(0, Status::RemoteAccess)]);
    assert_eq!(break_cause(&mut pair, B), Some(Cause::PeerErred(Nak::RemoteAccess)));
}

#[test]
fn requests_behind_a_read_of_deregistered_memory_are_aborted_not_flushed() {
    let mut pair = Pair::new();
    pair.a().write(0, b"before");
    pair.run();
    pair.b().memory.deregister_after_reads(3);
    pair.a().read(0, 0, 8000);
    pair.a().write(8192, b"behind");
    pair.run();
    assert_eq!(pair.a().completions()[1..], [(1, Status::RemoteOperation), (2, Status::Aborted)]);
    assert_eq!(break_cause(&mut pair, B), Some(Cause::PeerErred(Nak::RemoteOperation)));
}

#[test]
fn missing_local_memory_breaks_the_connection() {
    let mut pair = Pair::new();
    pair.a().write(0, b"good");
    pair.run();
    let local = Local { key: 99, address: 0 };
    pair.a().post(Operation::Write {
        source: Source::Registered { local, len: 5 },
        remote: at(0),
        imm: None,
    });
    pair.a().write(0, b"behind");
    pair.run();
    assert_eq!(pair.a().completions()[1..], [(1, Status::LocalAccess), (2, Status::Flushed)]);
    assert_eq!(break_cause(&mut pair, A), Some(Cause::LocalAccess));
    assert_eq!(pair.b().memory.get(0, 6), b"good\0\0");
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
fn unsent_requests_are_flushed() {
    let mut pair = Pair::minimal(lease_ms(100), [0, 0]);
    pair.set_filter(|_| Fate::Lost);
    for round in 0..3 {
        pair.a().write(round, b"x");
    }
    pair.run();
    let completions = pair.a().completions();
    assert_eq!(completions, [(0, Status::RetryExceeded), (1, Status::Flushed), (2, Status::Flushed)]);
}

#[test]
fn retry_counts_follow_verbs() {
    let retry = Retry::Count { retries: 3, timeout: Duration::from_millis(1), rnr_retries: 2 };
    let mut pair = Pair::minimal(Config { retry, ..Config::default() }, [0, 0]);
    pair.a().send(b"no receive", None);
    pair.run();
    assert_eq!(pair.a().completions(), [(0, Status::RnrRetryExceeded)]);
    assert_eq!(pair.log.iter().filter(|line| line.starts_with('a')).count(), 3);

    let mut pair = Pair::minimal(Config { retry, ..Config::default() }, [0, 0]);
    pair.set_filter(|_| Fate::Lost);
    pair.a().write(0, b"unread");
    pair.run();
    assert_eq!(pair.a().completions(), [(0, Status::RetryExceeded)]);
    assert_eq!((pair.log.len(), pair.now_ns), (4, 4_000_000));
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

#[test]
fn infinite_lease_never_ends() {
    let retry = Retry::Lease(Duration::MAX);
    let mut pair = Pair::minimal(Config { retry, ..Config::default() }, [0, 0]);
    pair.set_filter(|_| Fate::Lost);
    pair.a().write(0, b"unread");
    pair.run_until(60_000_000_000);
    assert_eq!(pair.a().completions(), []);
    pair.set_filter(|_| Fate::Delivered);
    pair.run();
    assert_eq!(pair.a().completions(), [(0, Status::Success)]);
}
