//! Cases about one-sided atomics.

use super::node::{Node, Pair, connect, quiet};
use super::{Harness, skip};
use crate::{Atomics, CompletionKind, Operation, Status};

/// Returns true if the provider has atomics; otherwise prints that the case is skipped.
fn has_atomics(pair: &Pair<'_>) -> bool {
    let has_atomics = pair.one.fabric.capabilities(pair.to_two).atomics != Atomics::None;
    if !has_atomics {
        skip("the provider has no atomics");
    }
    has_atomics
}

/// Expects that an atomic returns the previous value of the word, whether or not the atomic changes the word.
pub fn atomics_return_the_previous_value(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    if !has_atomics(&pair) {
        return;
    }
    let remote = pair.at(16);
    let add = |add| Operation::FetchAdd { remote, add };
    let swap = |expected, new| Operation::CompareSwap { remote, expected, new };
    let steps = [
        (add(3), 0),
        (add(4), 3),
        (swap(7, 1), 7),
        (swap(7, 2), 1),
        (add(u64::MAX), 1),
        (add(u64::MAX), 0),
        (add(2), u64::MAX),
    ];
    for (id, (operation, _)) in (1..).zip(steps) {
        pair.one.post(pair.to_two, id, operation);
    }
    for (id, (operation, before)) in (1..).zip(steps) {
        let completion = pair.one.completion();
        let CompletionKind::Atomic { id: completed, old } = completion.kind else { panic!("{completion:?}") };
        assert_eq!((completed.0, completion.status, old), (id, Status::Success, before), "{operation:?}");
    }
    assert_eq!(pair.target.1.load_u64(16), Ok(1));
    assert_eq!(pair.target.1.load_u64(8), Ok(0));
    pair.two.expect_nothing();
}

/// Adds to one word from two peers, and also from the process that owns the word if processors execute the atomics.
/// Expects that no addition is lost.
pub fn no_concurrent_atomic_is_lost(harness: &dyn Harness) {
    const EACH: u64 = 50;
    let mut pair = Pair::new(harness);
    if !has_atomics(&pair) {
        return;
    }
    let mut three = Node::open(harness, "three");
    let (to_two, _) = connect(&mut three, &mut pair.two, "two");
    let with_owner = pair.one.fabric.capabilities(pair.to_two).atomics.are_coherent();
    let remote = pair.at(16);
    for id in 0..EACH {
        pair.one
            .try_post(pair.to_two, &[quiet(id, Operation::FetchAdd { remote, add: 1 })])
            .expect("the request fits the queue");
        three.post(to_two, id, Operation::FetchAdd { remote, add: 1 });
        if with_owner {
            pair.target.1.fetch_add_u64(16, 1).expect("the range lies within the segment");
        }
    }
    pair.one.post(pair.to_two, EACH, Operation::FetchAdd { remote, add: 0 });
    assert_eq!(pair.one.ended(), (EACH, Status::Success));
    for id in 0..EACH {
        assert_eq!(three.ended(), (id, Status::Success));
    }
    let adders = if with_owner { 3 } else { 2 };
    assert_eq!(pair.target.1.load_u64(16), Ok(adders * EACH));
}
