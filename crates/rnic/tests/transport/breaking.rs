//! How a connection ends: on whose word, what becomes of what was posted, and that nothing lands afterwards.

use std::time::Duration;

use halite_rnic::wire::Nak;
use halite_rnic::{
    Cause, Config, Event, Local, Operation, PostError, Remote, Request, Retry, Source, State, Status,
};

use crate::pair::*;

fn broken(pair: &mut Pair, side: Side) -> Option<Cause> {
    match pair.end(side).events.last() {
        Some(Event::Broken { cause }) => Some(*cause),
        _ => None,
    }
}

fn wrong(operation: &str) -> Operation {
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
        "a read of nothing registered" => {
            Operation::Read { local: Local { key: KEY, address: 0 }, remote: nowhere, len: 1 }
        }
        "an atomic that is not allowed" => Operation::FetchAdd { remote, add: 1 },
        "an atomic nowhere" => Operation::CompareSwap { remote: nowhere, expected: 0, new: 1 },
        _ => unreachable!(),
    }
}

#[test]
fn a_wrong_key_breaks_the_connection_and_touches_nothing() {
    for operation in [
        "a write that is not allowed",
        "a write past the end",
        "a long write past the end",
        "a read past the end",
        "a read of nothing registered",
        "an atomic that is not allowed",
        "an atomic nowhere",
    ] {
        let mut pair = Pair::new();
        let good = pair.a().write(0, b"good");
        let bad = pair.a().post(wrong(operation));
        let behind = pair.a().write(8, b"behind");
        pair.b().send(b"never heard of", None);
        pair.run();
        assert_eq!(pair.b().memory.get(0, 4), b"good");
        assert_eq!(pair.b().memory.get(8, 6), [0; 6], "{operation}");
        assert_eq!(pair.b().memory.get(MEMORY_BYTES as u64 - 8, 8), [0; 8], "{operation}");
        let ended = pair.a().ended();
        assert_eq!(ended[..2], [(good, Status::Success), (bad, Status::RemoteAccess)], "{operation}");
        assert_eq!(ended[2], (behind, Status::Flushed), "{operation}: nothing of it was done");
        assert_eq!(broken(&mut pair, A), Some(Cause::Refused(Nak::RemoteAccess)));
        assert_eq!(broken(&mut pair, B), Some(Cause::PeerErred(Nak::RemoteAccess)));
        assert_eq!(pair.b().ended().len(), 1, "what B had posted ends, too");
    }
}

#[test]
fn an_atomic_on_a_word_that_is_not_aligned_is_refused_by_the_peer() {
    let mut pair = Pair::new();
    pair.a().post(Operation::FetchAdd { remote: at(4), add: 1 });
    pair.run();
    assert_eq!(pair.a().ended(), [(0, Status::RemoteInvalidRequest)]);
    assert_eq!(pair.b().memory.get(0, 16), [0; 16]);
}

#[test]
fn a_refusal_that_is_lost_is_said_again() {
    let mut pair = Pair::new();
    pair.tell(|sent| match (sent.from, sent.repetition) {
        (B, 0 | 1) => Fate::IsLost,
        _ => Fate::Arrives,
    });
    pair.a().post(wrong("an atomic nowhere"));
    pair.run();
    assert_eq!(pair.a().ended(), [(0, Status::RemoteAccess)]);
    let refusals = pair.told.iter().filter(|line| line.contains("RemoteAccess")).count();
    assert_eq!(refusals, 3, "{:?}", pair.told);
}

#[test]
fn memory_that_goes_between_two_parts_of_a_read_breaks_the_connection() {
    let mut pair = Pair::new();
    pair.a().read(0, 0, 60_000);
    pair.run_until(TRIP_NS + TRIP_NS / 2);
    pair.b().memory.take_away(KEY);
    pair.run();
    assert_eq!(pair.a().ended(), [(0, Status::RemoteAccess)]);
    assert_eq!(broken(&mut pair, B), Some(Cause::PeerErred(Nak::RemoteAccess)));
}

#[test]
fn where_memory_goes_while_an_answer_leaves_nobody_says_that_what_is_behind_was_not_done() {
    let mut pair = Pair::new();
    pair.a().write(0, b"before");
    pair.run();
    pair.b().memory.take_away_after_reads(3);
    pair.a().read(0, 0, 8000);
    pair.a().write(8192, b"behind");
    pair.run();
    assert_eq!(pair.a().ended()[1..], [(1, Status::RemoteOperation), (2, Status::Aborted)]);
    assert_eq!(broken(&mut pair, B), Some(Cause::PeerErred(Nak::RemoteOperation)));
}

#[test]
fn our_own_memory_that_is_not_there_breaks_the_connection() {
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
    assert_eq!(pair.a().ended()[1..], [(1, Status::LocalAccess), (2, Status::Flushed)]);
    assert_eq!(broken(&mut pair, A), Some(Cause::LocalAccess));
    assert_eq!(pair.b().memory.get(0, 6), b"good\0\0");
}

#[test]
fn who_hears_nothing_for_a_lease_gives_up_in_time_and_without_a_storm() {
    let mut pair = Pair::with(lease_ms(5000), [0, 0]);
    pair.a().write(0, b"before");
    pair.run();
    pair.told.clear();
    let begin = pair.now_ns;
    pair.tell(|_| Fate::IsLost);
    pair.a().write(8, b"under way");
    pair.run();
    assert_eq!(pair.now_ns - begin, 5_000_000_000);
    assert_eq!(pair.a().ended()[1..], [(1, Status::RetryExceeded)]);
    assert_eq!(broken(&mut pair, A), Some(Cause::RetryExceeded));
    assert!(pair.told.len() < 40, "{} packets", pair.told.len());
    assert_eq!(pair.a().qp.poll_timeout(), None);
}

#[test]
fn what_was_sent_may_be_done_and_what_was_not_is_not() {
    let mut pair = Pair::strict(lease_ms(100), [0, 0]);
    pair.tell(|_| Fate::IsLost);
    for round in 0..3 {
        pair.a().write(round, b"x");
    }
    pair.run();
    let ended = pair.a().ended();
    assert_eq!(ended, [(0, Status::RetryExceeded), (1, Status::Flushed), (2, Status::Flushed)]);
}

#[test]
fn towards_others_tries_are_counted_as_verbs_have_it() {
    let retry = Retry::Count { retries: 3, timeout: Duration::from_millis(1), rnr_retries: 2 };
    let mut pair = Pair::strict(Config { retry, ..Config::default() }, [0, 0]);
    pair.a().send(b"no receive", None);
    pair.run();
    assert_eq!(pair.a().ended(), [(0, Status::RnrRetryExceeded)]);
    assert_eq!(pair.told.iter().filter(|line| line.starts_with('a')).count(), 3);

    let mut pair = Pair::strict(Config { retry, ..Config::default() }, [0, 0]);
    pair.tell(|_| Fate::IsLost);
    pair.a().write(0, b"nobody");
    pair.run();
    assert_eq!(pair.a().ended(), [(0, Status::RetryExceeded)]);
    assert_eq!((pair.told.len(), pair.now_ns), (4, 4_000_000));
}

#[test]
fn after_a_close_nothing_of_the_peer_lands() {
    let mut pair = Pair::with(lease_ms(50), [0, 0]);
    pair.a().write(0, b"in time");
    pair.run();
    pair.a().write(0, b"too late");
    pair.a().fetch_add(64, 1);
    pair.run_until(pair.now_ns + TRIP_NS / 2);
    let posted = pair.b().write(0, b"flushed");
    pair.b().qp.close();
    assert_eq!(pair.b().qp.state(), State::Error);
    pair.run();
    assert_eq!(pair.b().memory.get(0, 8), b"in time\0");
    assert_eq!(pair.b().memory.word(64), 0);
    assert_eq!(pair.b().ended(), [(posted, Status::Flushed)]);
    assert_eq!(broken(&mut pair, B), Some(Cause::Closed));
    assert_eq!(pair.a().ended()[1..], [(1, Status::RetryExceeded), (2, Status::Aborted)]);
    let late = Request { id: 9, operation: write(0, b"", None), signalled: true, solicited: false };
    assert_eq!(pair.b().qp.post(late), Err(PostError::NotReady));
    pair.b().qp.close();
    assert_eq!(pair.b().qp.poll_event(), None, "it ends once");
}

#[test]
fn a_lease_without_end_never_ends() {
    let retry = Retry::Lease(Duration::MAX);
    let mut pair = Pair::strict(Config { retry, ..Config::default() }, [0, 0]);
    pair.tell(|_| Fate::IsLost);
    pair.a().write(0, b"nobody");
    pair.run_until(60_000_000_000);
    assert_eq!(pair.a().ended(), []);
    pair.tell(|_| Fate::Arrives);
    pair.run();
    assert_eq!(pair.a().ended(), [(0, Status::Success)]);
}
