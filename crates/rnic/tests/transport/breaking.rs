//! Ends of connections: the causes, the status of posted requests, and no access to memory afterwards.

use halite_rnic::{Cause, Event, PostError, Request, State, Status};

use crate::pair::*;

fn break_cause(pair: &mut Pair, side: Side) -> Option<Cause> {
    match pair.end(side).events.last() {
        Some(Event::Broken { cause }) => Some(*cause),
        _ => None,
    }
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
