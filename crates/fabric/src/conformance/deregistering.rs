//! Cases about the deregistration of keys.

use std::sync::Arc;

use halite_mem::{PagePolicy, Segment};

use super::node::{Node, Pair, bytes_of, connect, request};
use super::{Harness, skip};
use crate::{Atomics, CompletionKind, Event, Key, Local, Operation, PostCause, RemoteAddress, Status};

/// Deregisters `key`, and waits for its [`Event::Deregistered`] while the other end polls.
fn expect_deregistered(node: &mut Node<'_>, other: &mut Node<'_>, key: Key) {
    node.fabric.deregister(key);
    let event = node.until(|node| {
        assert_eq!(other.try_event(), None, "the peer receives no event");
        node.try_event()
    });
    assert_eq!(event, Event::Deregistered { key });
}

/// Expects that a request with a deregistered key fails like a request with a wrong key, and has no effect.
pub fn requests_with_a_deregistered_key_are_refused(harness: &dyn Harness) {
    type Post = fn(&Pair<'_>) -> Operation<'static>;
    let operations: [(&str, Post); 6] = [
        ("write", |pair| Operation::Write { local: Local::Inline(b"late"), remote: pair.at(8) }),
        ("write from memory", |pair| Operation::Write { local: pair.local(0, 4096), remote: pair.at(8) }),
        ("read", |pair| Operation::Read { local: pair.local(0, 8), remote: pair.at(8) }),
        ("fetch add", |pair| Operation::FetchAdd { remote: pair.at(8), add: 1 }),
        ("compare swap", |pair| Operation::CompareSwap { remote: pair.at(8), expected: 7, new: 1 }),
        ("nothing", |pair| Operation::Write { local: Local::Inline(b""), remote: pair.at(0) }),
    ];
    for (round, (what, operation)) in operations.into_iter().enumerate() {
        let names = [format!("one-{round}"), format!("two-{round}")];
        let mut pair = Pair::between(harness, [&names[0], &names[1]]);
        let operation = operation(&pair);
        let is_atomic = matches!(operation, Operation::FetchAdd { .. } | Operation::CompareSwap { .. });
        if is_atomic && pair.one.fabric.capabilities(pair.to_two).atomics == Atomics::None {
            skip("the provider has no atomics");
            continue;
        }
        pair.target.1.store_u64(8, 7).expect("the word is aligned and within the segment");
        let key = pair.target.0;
        expect_deregistered(&mut pair.two, &mut pair.one, key);
        assert!(pair.one.fabric.direct(pair.to_two, key).is_none());
        pair.one.post(pair.to_two, 1, operation);
        assert_eq!(pair.one.ended(), (1, Status::RemoteAccess), "{what}");
        assert_eq!(pair.target.1.load_u64(8), Ok(7), "{what}");
        match harness.refusal_ends_connection() {
            true => {
                pair.one.gone(pair.to_two);
                pair.two.gone(pair.to_one);
            }
            false => {
                pair.one.send(pair.to_two, b"still here", 0);
                assert_eq!(pair.two.received().0, b"still here");
            }
        }
    }
}

/// Expects that a peer that connects later cannot use a deregistered key, and that a new registration gets the next
/// key, not the deregistered key.
pub fn keys_are_never_reused(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    let later = pair.two.register(4096);
    let (deregistered, kept) = (pair.target.0, later.0);
    expect_deregistered(&mut pair.two, &mut pair.one, deregistered);
    let last = pair.two.register(4096);
    assert_eq!(last.0, Key(2));
    let mut three = Node::open(harness, "three");
    let (to_two, to_three) = connect(&mut three, &mut pair.two, "two");
    for (node, peer) in [(&mut pair.one, pair.to_two), (&mut three, to_two)] {
        for (key, window) in [(kept, &later.1), (last.0, &last.1)] {
            window.fill(0, 8, 0).expect("the range lies within the segment");
            let remote = RemoteAddress { key, offset: 0 };
            node.post(peer, 1, Operation::Write { local: Local::Inline(b"salt"), remote });
            assert_eq!(node.ended(), (1, Status::Success));
            harness.settle();
            assert_eq!(bytes_of(window, 0, 4), b"salt");
        }
    }
    let remote = RemoteAddress { key: deregistered, offset: 0 };
    three.post(to_two, 2, Operation::Write { local: Local::Inline(b"salt"), remote });
    assert_eq!(three.ended(), (2, Status::RemoteAccess));
    if harness.refusal_ends_connection() {
        three.gone(to_two);
        pair.two.gone(to_three);
    }
    pair.one.expect_nothing();
}

/// Expects that the fabric releases a deregistered segment as soon as no peer holds a window of the segment.
pub fn deregistered_memory_is_released(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    let segment = Segment::create("case", 4096, PagePolicy::Normal).expect("a segment is created");
    let key = pair.two.fabric.register(segment.clone()).expect("the segment is registered");
    let remote = RemoteAddress { key, offset: 0 };
    pair.one.post(pair.to_two, 1, Operation::Write { local: Local::Inline(b"salt"), remote });
    assert_eq!(pair.one.ended(), (1, Status::Success));
    assert!(Arc::strong_count(&segment) > 1, "the fabric holds a registered segment");
    expect_deregistered(&mut pair.two, &mut pair.one, key);
    harness.settle();
    assert_eq!(Arc::strong_count(&segment), 1);
}

/// Expects that requests posted before their local key is deregistered are executed, and that later posts are refused.
pub fn posted_work_completes_before_its_memory_is_released(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    let segment = Segment::create("case", 100_000, PagePolicy::Normal).expect("a segment is created");
    let window = segment.window(0, 100_000).expect("the window is the whole segment");
    window.fill(0, 50_000, 7).expect("the range lies within the segment");
    pair.target.1.fill(500_000, 50_000, 9).expect("the range lies within the segment");
    let key = pair.one.fabric.register(segment).expect("the segment is registered");
    let local = |offset| Local::Registered { key, offset, len: 50_000 };
    pair.one.post(pair.to_two, 1, Operation::Write { local: local(0), remote: pair.at(0) });
    pair.one.post(pair.to_two, 2, Operation::Read { local: local(50_000), remote: pair.at(500_000) });
    pair.one.fabric.deregister(key);
    let write = Operation::Write { local: local(0), remote: pair.at(0) };
    let refused = pair.one.try_post(pair.to_two, &[request(3, write)]).expect_err("the key is deregistered");
    assert_eq!((refused.posted, refused.cause), (0, PostCause::Malformed));
    let mut ended = Vec::new();
    let mut confirmed = 0;
    while ended.len() < 2 || confirmed == 0 {
        match pair.one.event() {
            Event::Deregistered { key: deregistered } if deregistered == key => confirmed += 1,
            Event::Completed(completion) => {
                let CompletionKind::Done { id } = completion.kind else { panic!("{completion:?}") };
                ended.push((id.0, completion.status));
            }
            event => panic!("unexpected {event:?}"),
        }
    }
    assert_eq!((ended, confirmed), (vec![(1, Status::Success), (2, Status::Success)], 1));
    assert_eq!(bytes_of(&pair.target.1, 0, 50_000), vec![7; 50_000]);
    assert_eq!(bytes_of(&window, 50_000, 50_000), vec![9; 50_000]);
    pair.one.expect_nothing();
}
