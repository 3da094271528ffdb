//! Calls in batches where queues are full in their middle, and where the caller's own code does as it likes.

use crate::common;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::Dir;
use halite::{Function, Node, NodeId, ServeOptions, blocking};
use halite_fabric::fault::{Fault, FaultInjector, FaultPlan, Moment, Rule};

/// Long enough for any call that is answered at all.
const PATIENCE: Duration = Duration::from_secs(60);
const ECHO: Function = Function(7);
const THERE: NodeId = NodeId(1);
const CALLERS: u64 = 3;
const ROUNDS: u64 = 60;

/// Answers calls with their inputs, in batches, until the server is closed; whether all of their callers waited.
fn serve_batches(server: &blocking::Server, max: usize) -> bool {
    let mut all_waited = true;
    while let Ok(calls) = server.recv_many(max) {
        let answers = calls.into_iter().map(|call| {
            let answer = call.input().to_vec();
            (call, answer)
        });
        all_waited &= server.reply_all(answers).iter().all(Result::is_ok);
    }
    all_waited
}

/// A node whose fabric refuses one post in `one_in`, and whose rings hold only a few calls.
fn join_with_full_queues(dir: &Dir, node: u32, (seed, one_in): (u64, u64)) -> Node {
    let mut config = dir.config(node);
    config.request_ring_bytes = 4096;
    let rule = Rule::new(Moment::AnyPost, Fault::QueueFull).one_in(one_in);
    let plan = FaultPlan::new(seed + u64::from(node)).rule(rule);
    Node::wrap(config, |fabric| Arc::new(FaultInjector::new(fabric, plan))).expect("the node joins")
}

/// More calls of batches are not posted at first than there are slots, or memory for their answers, at all.
#[test]
fn calls_of_a_batch_that_were_not_posted_keep_no_slots() {
    let dir = Dir::new();
    let nodes = [0, 1].map(|node| join_with_full_queues(&dir, node, (1, 3)));
    let server = nodes[1].blocking_session().serve(ECHO, ServeOptions::default()).unwrap();
    let session = nodes[0].blocking_session();
    thread::scope(|scope| {
        let serving = scope.spawn(|| serve_batches(&server, 16));
        let told = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..3000 {
                // Longer than what fits into a default slot.
                for call in session.post_calls(THERE, ECHO, &[b"salt"; 16], 10_000, PATIENCE) {
                    assert_eq!(call.expect("there is a slot for it").answer().unwrap(), b"salt");
                }
            }
        }));
        server.close();
        assert!(serving.join().expect("no panic"), "all callers wait");
        told.expect("the story ends well");
    });
    nodes.into_iter().for_each(Node::leave);
}

/// Several callers post batches of many sizes and check all answers, but for those that they give up, one in `given_up`.
fn check_batches_at_full_queues(faults: (u64, u64), given_up: u64) {
    let dir = Dir::new();
    let nodes = [0, 1].map(|node| join_with_full_queues(&dir, node, faults));
    let server = nodes[1].blocking_session().serve(ECHO, ServeOptions::default()).unwrap();
    thread::scope(|scope| {
        let serving: Vec<_> = [3, 16].map(|max| (server.clone(), max)).into();
        let serving: Vec<_> = (serving.into_iter())
            .map(|(server, max)| scope.spawn(move || serve_batches(&server, max)))
            .collect();
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let session = nodes[0].blocking_session();
                scope.spawn(move || {
                    (0..ROUNDS).for_each(|round| call_batch(&session, caller, round, given_up))
                })
            })
            .collect();
        let ended: Vec<_> = callers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        server.close();
        let all_waited = serving.into_iter().all(|serving| serving.join().expect("no panic"));
        assert!(ended.iter().all(Result::is_ok));
        assert!(all_waited || given_up < u64::MAX);
    });
    nodes.into_iter().for_each(Node::leave);
}

fn call_batch(session: &blocking::Session, caller: u64, round: u64, given_up: u64) {
    let inputs: Vec<_> = (0..(round * 7 + caller) % 40)
        .map(|number| {
            let mut input = (caller << 32 | round << 16 | number).to_le_bytes().to_vec();
            input.resize(10 + (number * 37 + round * 11) as usize % 430, number as u8);
            input
        })
        .collect();
    let posted = session.post_calls(THERE, ECHO, &inputs, 1000, PATIENCE);
    for (number, (call, input)) in (round..).zip(posted.into_iter().zip(&inputs)) {
        let call = call.expect("it is posted");
        if number % given_up != given_up - 1 {
            assert!(call.answer().expect("it is answered") == *input, "{caller} {round} {number}");
        }
    }
}

#[test]
fn nothing_is_lost_or_mixed_up_where_queues_are_full_in_the_middle_of_a_batch() {
    for seed in 0..2 {
        check_batches_at_full_queues((seed, 3), u64::MAX);
        check_batches_at_full_queues((seed, 10), u64::MAX);
    }
}

/// How far requests had been read was told a caller's node twice at once, and the older news landed last: it found its ring
/// full for ever.
#[test]
fn a_caller_that_finds_its_ring_full_hears_of_the_newest_head() {
    for seed in 0..5 {
        check_batches_at_full_queues((seed, 3), 3);
        check_batches_at_full_queues((seed, 10), 3);
    }
}

/// Panics when it is asked for the given time.
struct Panicking<'c>(&'c Cell<u32>, u32);

impl AsRef<[u8]> for Panicking<'_> {
    fn as_ref(&self) -> &[u8] {
        self.0.set(self.0.get() + 1);
        assert!(self.0.get() != self.1, "the caller's own");
        b"input"
    }
}

/// Calls while it is asked for its bytes.
struct Calling<'s>(&'s blocking::Session);

impl AsRef<[u8]> for Calling<'_> {
    fn as_ref(&self) -> &[u8] {
        self.0.call(THERE, ECHO, b"inner", PATIENCE).expect("it is served");
        b"outer"
    }
}

/// It once ran under the node's locks.
#[test]
fn what_an_input_does_when_it_is_asked_for_is_no_matter_of_other_callers() {
    let dir = Dir::new();
    let nodes = [dir.join(0), dir.join(1)];
    let sessions = [(); 2].map(|()| nodes[0].blocking_session());
    let server = nodes[1].blocking_session().serve(ECHO, ServeOptions::default()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| serve_batches(&server, 16));
        let told = catch_unwind(AssertUnwindSafe(|| {
            for time in [1, 3, 20] {
                let count = Cell::new(0);
                let inputs = [(); 20].map(|()| Panicking(&count, time));
                let posting = || sessions[0].post_calls(THERE, ECHO, &inputs, 100, PATIENCE).len();
                assert!(catch_unwind(AssertUnwindSafe(posting)).is_err());
                assert_eq!(sessions[1].call(THERE, ECHO, b"salt", PATIENCE).unwrap(), b"salt");
            }
            let inputs = [(); 4].map(|()| Calling(&sessions[1]));
            for call in sessions[0].post_calls(THERE, ECHO, &inputs, 100, PATIENCE) {
                assert_eq!(call.unwrap().answer().unwrap(), b"outer");
            }
        }));
        server.close();
        told.expect("the story ends well");
    });
}
