//! Batches of calls: posted, received or answered together. Each call is otherwise independent.

use std::time::Duration;

use fastrand::Rng;
use halite::{Call, CallCause, Function, NodeId, ReplyCause, ServeCause, ServeOptions};

use super::calls::{Closing, PATIENCE, await_caller_gone, backwards, serve_echo, with_echo};
use super::cluster::{Cluster, Harness, pattern};
use super::dropped::at_every_wait;
use super::refused;
use super::session::{PendingCall, Server, Session, block_on};
use super::turns::{poll_at_most, scope};

const ECHO: Function = Function(7);
const THERE: NodeId = NodeId(1);
/// Longer than most answers here, and short enough for a default slot.
const ANSWER_BYTES_MAX: usize = 4000;

/// Answers calls with their reversed inputs, in batches, until the server is closed. Returns true if all callers waited
/// for the answer.
fn serve_batches(server: &Server, max: usize) -> bool {
    let mut all_waited = true;
    while let Ok(calls) = server.recv_many(max) {
        assert!((1..=max.max(1)).contains(&calls.len()), "{} of {max}", calls.len());
        let answers = calls.into_iter().map(|call| {
            let answer = backwards(call.input());
            (call, answer)
        });
        all_waited &= server.reply_all(answers).iter().all(Result::is_ok);
    }
    all_waited
}

/// Runs `case` while a thread of `session` answers calls of [`ECHO`] in batches of at most `max`.
fn with_batches<T>(session: &Session, max: usize, case: impl FnOnce() -> T) -> T {
    let server = session.serve(ECHO, ServeOptions::default()).expect("no other session serves it");
    scope(|scope| {
        let closing = Closing(&server);
        let serving = scope.spawn(|| serve_batches(&server, max));
        let result = case();
        drop(closing);
        assert!(serving.join(), "a caller did not wait for its answer");
        result
    })
}

/// Posts a call per input, and checks all answers.
fn check_batch(session: &Session, node: NodeId, inputs: &[Vec<u8>], answer_bytes_max: usize) {
    let posted = session.post_calls(node, ECHO, inputs, answer_bytes_max, PATIENCE);
    assert_eq!(posted.len(), inputs.len());
    for (index, (call, input)) in posted.into_iter().zip(inputs).enumerate() {
        let answer = call.and_then(PendingCall::answer).expect("the function is served");
        assert!(answer == backwards(input), "call {index}, of {} bytes", input.len());
    }
}

/// Receives `count` calls.
fn receive_calls(server: &Server, count: usize) -> Vec<Call> {
    let mut calls = Vec::new();
    while calls.len() < count {
        calls.extend(server.recv_many(count - calls.len()).expect("the server is open"));
    }
    calls
}

/// Expects that every caller gets its own answer, for any batch size.
pub fn calls_in_a_batch_get_their_answers(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let (here, there) = (cluster.session(0), cluster.session(1));
    for max in [0, 1, 5, 1000] {
        with_batches(&there, max, || {
            for count in [0, 1, 2, 16, 17, 100] {
                let inputs: Vec<_> = (0..count).map(|number| pattern(number % 60, number)).collect();
                check_batch(&here, THERE, &inputs, ANSWER_BYTES_MAX);
                check_batch(&there, THERE, &inputs, ANSWER_BYTES_MAX);
            }
        });
    }
}

/// Expects that a batch may contain calls with long inputs and answers, which are transferred separately.
pub fn a_batch_may_have_calls_of_all_lengths(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let here = cluster.session(0);
    with_batches(&cluster.session(1), 16, || {
        let lens = [3, 500, 0, 70_000, 8, 450, 460, 470, 480, 490, 300_000, 1, 4000, 4160, 2];
        let inputs: Vec<_> = lens.iter().map(|len| pattern(*len, *len)).collect();
        check_batch(&here, THERE, &inputs, 300_000);
        let short: Vec<_> = (0..50).map(|number| pattern(number * 10, number)).collect();
        // Answers fit into default slots, into larger ones, or must be fetched.
        for answer_bytes_max in [490, 4152, 4153, 1 << 20, 65 << 20] {
            check_batch(&here, THERE, &short, answer_bytes_max);
        }
    });
}

/// Expects that single calls and batches can be combined: at the caller, in tasks, and at the server.
pub fn batches_and_single_calls_mix(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let inputs: Vec<_> = (0..40).map(|number| pattern(number, number)).collect();
    with_echo(&cluster.session(1), 2, || {
        check_batch(&cluster.session(0), THERE, &inputs, ANSWER_BYTES_MAX);
        let tasks = cluster.futures(0);
        let posted = tasks.post_calls(THERE, ECHO, &inputs, ANSWER_BYTES_MAX, PATIENCE);
        for (call, input) in block_on(&tasks, posted).into_iter().zip(&inputs) {
            let answer = block_on(&tasks, call.expect("the call is posted").answer());
            assert_eq!(answer.expect("the function is served"), backwards(input));
        }
    });
    with_batches(&cluster.session(1), 16, || {
        for input in &inputs {
            let answer = cluster.session(0).call(THERE, ECHO, input, PATIENCE);
            assert_eq!(answer.expect("the function is served"), backwards(input));
        }
    });
}

/// Expects that a batch completes even if the ring has room for only a few of its calls at a time.
pub fn batches_wait_for_room_in_a_small_ring(h: &dyn Harness) {
    let cluster = Cluster::tuned(h, 2, |config| config.request_ring_bytes = 4096);
    with_batches(&cluster.session(1), 16, || {
        scope(|scope| {
            for caller in 0..3 {
                let session = cluster.session(0);
                scope.spawn(move || {
                    let mut random = Rng::with_seed(caller);
                    for _ in 0..30 {
                        let lens = (0..random.u64(0..40)).map(|_| [20, 400, 3000][random.u64(0..3) as usize]);
                        let lens: Vec<_> = lens.collect();
                        let inputs: Vec<_> =
                            lens.iter().map(|len| pattern(random.u64(0..*len), *len)).collect();
                        check_batch(&session, THERE, &inputs, ANSWER_BYTES_MAX);
                    }
                });
            }
        });
    });
}

/// Expects that a receiver gets waiting calls in order, at most the requested number. Calls after a call with a long
/// input wait until the input has been read.
pub fn a_receiver_gets_at_most_the_requested_calls(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let (here, server) =
        (cluster.session(0), cluster.session(1).serve(ECHO, ServeOptions::default()).unwrap());
    let inputs: Vec<_> = [3, 4, 5, 300_000, 6, 7].map(|len| pattern(len, len)).into();
    let posted = here.post_calls(THERE, ECHO, &inputs, ANSWER_BYTES_MAX, PATIENCE);
    let mut lens = Vec::new();
    while lens.len() < inputs.len() {
        let calls = server.recv_many(2).unwrap();
        assert!(calls.len() <= 2);
        lens.extend(calls.iter().map(|call| call.input().len()));
        assert!(server.reply_all(calls.into_iter().map(|call| (call, b"yes"))).iter().all(Result::is_ok));
    }
    assert_eq!(lens, [3, 4, 5, 300_000, 6, 7]);
    for call in posted {
        assert_eq!(call.unwrap().answer().unwrap(), b"yes");
    }
}

/// Expects that the failure of a call does not affect the other calls of its batch.
pub fn each_call_of_a_batch_fails_alone(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let options = ServeOptions { requests_max: 5, ..ServeOptions::default() };
    let (here, server) = (cluster.session(0), cluster.session(1).serve(ECHO, options).unwrap());
    let posted = here.post_calls(THERE, ECHO, &[b"input"; 7], 100, PATIENCE);
    let mut posted: Vec<_> = posted.into_iter().map(|call| call.expect("the call is posted")).collect();
    for _ in 0..2 {
        refused!(posted.pop().expect("there are seven").answer(), CallCause::Busy);
    }
    let mut calls = receive_calls(&server, 5);
    // The first and the last call get answers, the answer to the second is too long, the server drops the third, and
    // the caller abandons the fourth.
    drop(posted.remove(3));
    await_caller_gone(&calls[3]);
    drop(calls.remove(2));
    let answers = [vec![1; 100], vec![2; 101], vec![4; 4], vec![5; 5]];
    let answered = server.reply_all(calls.into_iter().zip(answers));
    let causes: Vec<_> = answered.iter().map(|result| result.as_ref().map_err(|error| error.cause)).collect();
    let too_long = ReplyCause::TooLong { max: 100 };
    assert_eq!(causes, [Ok(&()), Err(too_long), Err(ReplyCause::CallerGone), Ok(&())]);
    let mut answers = posted.into_iter().map(PendingCall::answer);
    assert_eq!(answers.next().unwrap().unwrap(), [1; 100]);
    refused!(answers.next().unwrap(), CallCause::ReplyTooLong { len: 101, max: 100 });
    refused!(answers.next().unwrap(), CallCause::NoReply);
    assert_eq!(answers.next().unwrap().unwrap(), [5; 5]);
}

/// Expects that each call of a batch fails within its timeout if the node is unknown, the function is not served, or
/// its server does not answer.
pub fn batches_without_a_server_fail(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let here = cluster.session(0);
    let inputs: [&[u8]; 3] = [b"a", b"", &[3; 5000]];
    for call in here.post_calls(NodeId(9), ECHO, &inputs, 100, PATIENCE) {
        refused!(call, CallCause::UnknownNode);
    }
    for call in here.post_calls(THERE, ECHO, &inputs, 100, PATIENCE) {
        refused!(call.expect("the call is posted").answer(), CallCause::UnknownFunction);
    }
    let _unserved = cluster.session(1).serve(ECHO, ServeOptions::default()).unwrap();
    for call in here.post_calls(THERE, ECHO, &inputs, 100, Duration::from_millis(2)) {
        refused!(call.and_then(PendingCall::answer), CallCause::Timeout);
    }
    // The first calls are sent although the timeout is zero, like a single call. The others are not sent.
    let posted = here.post_calls(THERE, ECHO, &[b"input"; 1000], 100, Duration::ZERO);
    assert!(posted.iter().filter(|call| call.is_ok()).count() <= 16);
    assert_eq!(posted.len(), 1000);
    for call in posted {
        let was_posted = call.is_ok();
        let error = call.and_then(PendingCall::answer).unwrap_err();
        assert_eq!((error.cause, error.may_have_run), (CallCause::Timeout, was_posted));
    }
}

/// Expects that callers and servers of a batch get an error when the other node has left.
pub fn batches_end_with_either_node(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let (here, leaving) = (cluster.session(0), cluster.session(2));
    let server = leaving.serve(ECHO, ServeOptions::default()).unwrap();
    let posted = here.post_calls(NodeId(2), ECHO, &[b"input"; 20], 100, PATIENCE);
    let calls_from_here = receive_calls(&server, 20);
    let other = cluster.session(1).serve(ECHO, ServeOptions::default()).unwrap();
    let calls_by_leaving = leaving.post_calls(THERE, ECHO, &[b"input"; 20], 100, PATIENCE);
    let mut calls_from_leaving = receive_calls(&other, 20);
    cluster.leave(2);
    for call in posted {
        refused!(call.expect("the call is posted").answer(), CallCause::PeerDown);
    }
    for call in calls_by_leaving {
        refused!(call.expect("the call is posted").answer(), CallCause::NodeClosed(NodeId(2)));
    }
    refused!(server.recv_many(16), ServeCause::NodeClosed(NodeId(2)));
    for answered in server.reply_all(calls_from_here.into_iter().map(|call| (call, b"from beyond"))) {
        assert!(answered.is_err());
    }
    await_caller_gone(&calls_from_leaving[0]);
    // One call in the batch has a caller that is still alive.
    let pending = here.post_call(THERE, ECHO, b"input", 100, PATIENCE).unwrap();
    calls_from_leaving.insert(7, other.recv().unwrap());
    let answered = other.reply_all(calls_from_leaving.into_iter().map(|call| (call, b"yes")));
    let taken: Vec<_> = (0..answered.len()).filter(|index| answered[*index].is_ok()).collect();
    assert_eq!(taken, [7]);
    assert_eq!(pending.answer().unwrap(), b"yes");
    refused!(
        leaving.post_calls(THERE, ECHO, &[b"input"], 100, PATIENCE).remove(0),
        CallCause::NodeClosed(NodeId(2))
    );
}

/// Expects that a batch that is abandoned at any moment leaves neither calls nor slots behind, nor affects later calls.
pub fn an_abandoned_batch_leaks_nothing(h: &dyn Harness) {
    let cluster = Cluster::tuned(h, 2, |config| config.request_ring_bytes = 4096);
    let session = cluster.futures(0);
    let long = vec![1; 900];
    let server = cluster.session(1).serve(ECHO, ServeOptions::default()).unwrap();
    scope(|scope| {
        let _closing = Closing(&server);
        scope.spawn(|| serve_echo(&server));
        scope.spawn(|| serve_batches(&server, 8));
        for _ in 0..10 {
            at_every_wait(|polls| {
                let inputs = [b"short", long.as_slice(), b"short", &long, &long, &long, &long, b"short"];
                let posted = session.post_calls(THERE, ECHO, &inputs, 1000, PATIENCE);
                let is_done = poll_at_most(polls, posted).is_ready();
                check_batch(&Session::new(&session), THERE, &[vec![7; 7], vec![8; 8]], 100);
                is_done
            });
        }
    });
}
