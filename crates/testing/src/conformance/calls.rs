//! Calls to functions on other nodes and on the caller's own node.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use fastrand::Rng;
use halite::{Call, CallCause, Function, NodeId, ReplyCause, ServeCause, ServeOptions};

use super::cluster::{Cluster, Harness, await_value, pattern};
use super::session::{Server, Session, block_on};
use super::turns::{expect_pending, poll_once, scope};
use super::{eventually_refused, refused};

/// Timeout of calls that are answered: longer than any of them takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Timeout of calls without an answer.
const IMPATIENCE: Duration = Duration::from_millis(2);

const ECHO: Function = Function(7);
const SINK: Function = Function(8);
const THERE: NodeId = NodeId(1);

/// Answers each call with its reversed input, until the server is closed.
pub(super) fn serve_echo(server: &Server) {
    let Ok(mut call) = server.recv() else { return };
    loop {
        let answer = backwards(call.input());
        match server.reply_and_recv(call, &answer) {
            Ok(next) => call = next,
            Err(_) => return,
        }
    }
}

pub(super) fn backwards(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().rev().copied().collect()
}

/// Runs `case` while `receivers` threads of `session` answer calls of [`ECHO`].
pub(super) fn with_echo<T>(session: &Session, receivers: usize, case: impl FnOnce() -> T) -> T {
    let server = session.serve(ECHO, ServeOptions::default()).expect("no other session serves it");
    scope(|scope| {
        let closing = Closing(&server);
        for _ in 0..receivers {
            let server = server.clone();
            scope.spawn(move || serve_echo(&server));
        }
        let result = case();
        drop(closing);
        result
    })
}

/// Closes a server even if the case fails, so that the failure is reported instead of a hang.
pub(super) struct Closing<'s>(pub(super) &'s Server);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Waits until the server learns that the caller no longer waits for the answer.
pub(super) fn await_caller_gone(call: &Call) {
    await_value("the call is no longer wanted", || call.is_wanted(), |is_wanted| !is_wanted);
}

fn check_echo(session: &Session, node: NodeId, len: u64, seed: u64) {
    let input = pattern(len, seed);
    let answer = session.call(node, ECHO, &input, PATIENCE).expect("the function is served");
    assert!(answer == backwards(&input), "{len} bytes to {node}");
}

/// Polls all futures together until all are ready.
pub(super) async fn join_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut waiting: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: BTreeMap<usize, F::Output> = BTreeMap::new();
    std::future::poll_fn(|context: &mut Context<'_>| {
        for (index, future) in waiting.iter_mut().enumerate() {
            if !outputs.contains_key(&index)
                && let Poll::Ready(output) = future.as_mut().poll(context)
            {
                outputs.insert(index, output);
            }
        }
        if outputs.len() == waiting.len() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_values().collect()
}

/// Expects that payloads of all lengths arrive unchanged: from zero bytes up to lengths that the server reads from the
/// caller's memory, and around each limit at which the transfer method changes.
pub fn payloads_of_any_length_arrive_whole(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let (here, there) = (cluster.session(0), cluster.session(1));
    with_echo(&there, 1, || {
        let borders = [0, 128, 512, 4096, 4160, 64 << 10, 256 << 10, 1 << 20];
        for border in borders {
            for len in u64::saturating_sub(border, 33)..=border + 1 {
                if len % 11 == 0 || len + 2 > border {
                    check_echo(&here, THERE, len, len);
                }
            }
        }
        check_echo(&here, THERE, 5_000_001, 5);
        check_echo(&there, THERE, 5_000_001, 6);
    });
}

/// Expects that an answer may fill the buffer exactly, and that a shorter one leaves the rest unchanged.
pub fn an_answer_fills_the_buffer_from_its_start(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let here = cluster.session(0);
    with_echo(&cluster.session(1), 1, || {
        for len in [0, 1, 100, 4152, 4153, 70_000] {
            let input = pattern(len, len);
            let mut exact = vec![0; len as usize];
            assert_eq!(here.call_into(THERE, ECHO, &input, &mut exact, PATIENCE), Ok(len as usize));
            assert!(exact == backwards(&input));
            let mut longer = vec![0xEE; len as usize + 100];
            assert_eq!(here.call_into(THERE, ECHO, &input, &mut longer, PATIENCE), Ok(len as usize));
            assert!(longer[len as usize..].iter().all(|byte| *byte == 0xEE));
        }
    });
}

/// Expects that a caller gets an error with the answer's length if it copies the answer into a buffer that is shorter
/// than the maximum that it announced with the call.
pub fn an_answer_taken_into_a_smaller_buffer_is_lost(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let here = cluster.session(0);
    with_echo(&cluster.session(1), 1, || {
        for (len, max) in [(100, 100), (5000, 5000), (300_000, 300_000), (5000, 65 << 20)] {
            let mut room = vec![0xEE; len as usize - 1];
            let pending = here.post_call(THERE, ECHO, &pattern(len, len), max, PATIENCE).unwrap();
            let error = pending.answer_into(&mut room).unwrap_err();
            assert_eq!(error.cause, CallCause::ReplyTooLong { len, max: len - 1 });
            assert!(error.may_have_run, "{error}");
            assert!(room.iter().all(|byte| *byte == 0xEE));
            check_echo(&here, THERE, len, len + 1);
        }
    });
}

/// Expects that an answer that is longer than the caller's buffer is refused: the caller's error contains the length of
/// the answer, and the handler's error contains the maximum.
pub fn an_answer_longer_than_the_buffer_is_refused(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let (here, there) = (cluster.session(0), cluster.session(1));
    let server = there.serve(ECHO, ServeOptions::default()).unwrap();
    for (len, max) in [(1, 0), (101, 100), (70_000, 4096), (70_000, 69_999)] {
        scope(|scope| {
            scope.spawn(|| {
                let call = server.recv().unwrap();
                refused!(call.reply(&vec![7; len]), ReplyCause::TooLong { .. });
            });
            let mut buffer = vec![0xEE; max];
            let error = here.call_into(THERE, ECHO, b"", &mut buffer, PATIENCE).unwrap_err();
            assert_eq!(error.cause, CallCause::ReplyTooLong { len: len as u64, max: max as u64 });
            assert!(buffer.iter().all(|byte| *byte == 0xEE), "part of a refused answer was written");
        });
    }
}

/// Expects that a call with more than 1 GiB of input is refused before any byte is copied or sent.
pub fn an_input_longer_than_a_gibibyte_is_refused(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let input = vec![0; (1 << 30) + 1];
    let error = cluster.session(0).call(THERE, ECHO, &input, PATIENCE).unwrap_err();
    assert_eq!(error.cause, CallCause::InputTooLong { len: (1 << 30) + 1 });
}

/// Expects that calls to unknown nodes, and calls of functions that are not served or no longer served, fail.
pub fn calls_of_unserved_functions_fail(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let here = cluster.session(0);
    let there = cluster.session(1);
    refused!(here.call(NodeId(9), ECHO, b"", PATIENCE), CallCause::UnknownNode);
    for node in [NodeId(0), THERE] {
        refused!(here.call(node, ECHO, b"", PATIENCE), CallCause::UnknownFunction);
        refused!(here.call(node, ECHO, &vec![1; 1 << 20], PATIENCE), CallCause::UnknownFunction);
    }
    with_echo(&there, 1, || check_echo(&here, THERE, 10, 1));
    let error = here.call(THERE, ECHO, b"", PATIENCE).unwrap_err();
    assert_eq!(error.cause, CallCause::UnknownFunction);
    for part in ["function 7", "node 1"] {
        assert!(error.to_string().contains(part), "{error} does not mention {part}");
    }
}

/// Expects that a second server of a function gets an error, and that the function can be served again once the first
/// server has ended.
pub fn a_function_is_served_once_per_node(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let (here, there) = (cluster.session(0), cluster.session(1));
    let server = there.serve(ECHO, ServeOptions::default()).unwrap();
    let other = cluster.session(1);
    let error = other.serve(ECHO, ServeOptions::default()).unwrap_err();
    assert_eq!(error.cause, ServeCause::Taken { owner: "ada".to_owned() });
    here.serve(ECHO, ServeOptions::default()).expect("other nodes may serve the function");
    let clone = server.clone();
    drop(server);
    refused!(other.serve(ECHO, ServeOptions::default()), ServeCause::Taken { .. });
    drop(clone);
    other.serve(ECHO, ServeOptions::default()).expect("the function is free");
}

/// Expects that a function accepts calls only from listed principals and from the server's own principal.
pub fn only_listed_principals_may_call(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob", "eve"]);
    let options = ServeOptions { callers: Some(vec!["bob".to_owned()]), ..ServeOptions::default() };
    let server = cluster.session(0).serve(ECHO, options).unwrap();
    scope(|scope| {
        scope.spawn(|| {
            for caller in ["ada", "bob"] {
                let call = server.recv().unwrap();
                assert_eq!(call.caller(), caller);
                call.reply(b"").unwrap();
            }
        });
        let call = |node: usize| cluster.session(node).call(NodeId(0), ECHO, b"", PATIENCE);
        refused!(call(2), CallCause::PermissionDenied);
        assert!(call(0).is_ok());
        refused!(call(2), CallCause::PermissionDenied);
        assert!(call(1).is_ok());
    });
    assert!(server.try_recv().unwrap().is_none(), "a refused call reached a handler");
}

/// Expects that a function with a full queue refuses calls at once, and that abandoned calls leave the queue.
pub fn a_full_function_refuses_calls(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let there = cluster.session(1);
    let options = ServeOptions { requests_max: 3, ..ServeOptions::default() };
    let server = there.serve(ECHO, options).unwrap();
    let futures = cluster.futures(0);
    // The same session, because the node does not order the calls of several ones.
    let here = Session::new(&futures);
    let mut calls: Vec<_> = (0..3).map(|_| Box::pin(futures.call(THERE, ECHO, b"waits", PATIENCE))).collect();
    calls.iter_mut().for_each(expect_pending);
    refused!(here.call(THERE, ECHO, b"", PATIENCE), CallCause::Busy);
    calls.pop();
    eventually_refused!(here.call(THERE, ECHO, b"", IMPATIENCE), CallCause::Timeout);
    scope(|scope| {
        scope.spawn(|| serve_echo(&server));
        let _closing = Closing(&server);
        for answer in here.block_on(join_all(calls)) {
            assert_eq!(answer.unwrap(), b"stiaw");
        }
    });
}

/// Expects that the caller of an unanswered call waits for its timeout, that other callers are not delayed, and that a
/// late answer is refused and written nowhere.
pub fn an_unanswered_call_times_out(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let (here, there) = (cluster.session(0), cluster.session(1));
    let server = there.serve(SINK, ServeOptions::default()).unwrap();
    with_echo(&there, 1, || {
        for len in [10, 5000, 100_000] {
            let mut buffer = vec![0xEE; len];
            let held = scope(|scope| {
                let held = scope.spawn(|| server.recv().unwrap());
                // The call may time out before the handler receives it.
                while !held.is_finished() {
                    refused!(here.call_into(THERE, SINK, b"", &mut buffer, IMPATIENCE), CallCause::Timeout);
                }
                held.join()
            });
            await_caller_gone(&held);
            refused!(held.reply(&vec![7; len]), ReplyCause::CallerGone);
            check_echo(&here, THERE, 100, 1);
            assert!(
                buffer.iter().all(|byte| *byte == 0xEE),
                "a late answer was written to its caller's buffer"
            );
        }
    });
}

/// Expects that a caller gets an error at once when the server drops its call.
pub fn a_dropped_call_fails_at_once(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let server = cluster.session(1).serve(ECHO, ServeOptions::default()).unwrap();
    scope(|scope| {
        scope.spawn(|| (0..2).for_each(|_| drop(server.recv().unwrap())));
        for caller in [cluster.session(0), cluster.session(1)] {
            let error = caller.call(THERE, ECHO, b"", PATIENCE).unwrap_err();
            assert!(error.cause == CallCause::NoReply && error.may_have_run, "{error}");
        }
    });
}

/// Expects that waiting and later calls fail when their function ends, and that a call in progress is still answered.
pub fn calls_fail_when_their_function_ends(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let (here, there) = (cluster.session(0), cluster.session(1));
    let server = there.serve(ECHO, ServeOptions::default()).unwrap();
    scope(|scope| {
        let handled = scope.spawn(|| here.call(THERE, ECHO, b"handled", PATIENCE));
        let first = server.recv().unwrap();
        let futures = cluster.futures(0);
        let inputs = [10, 100_000].map(|len| vec![1; len]);
        let call = |input| Box::pin(futures.call(THERE, ECHO, input, PATIENCE));
        let mut waiting: Vec<_> = inputs.iter().map(|input: &Vec<u8>| call(input)).collect();
        waiting.iter_mut().for_each(expect_pending);
        server.close();
        for answer in here.block_on(join_all(waiting)) {
            let cause = answer.unwrap_err().cause;
            // A call may have arrived a moment after the end.
            assert!([CallCause::ServerClosed, CallCause::UnknownFunction].contains(&cause), "{cause}");
        }
        refused!(here.call(THERE, ECHO, b"", PATIENCE), CallCause::UnknownFunction);
        refused!(server.recv(), ServeCause::Closed);
        first.reply(b"done").unwrap();
        assert_eq!(handled.join().unwrap(), b"done");
    });
}

/// Expects that threads and tasks of all nodes can call concurrently, and that each answer reaches its caller.
pub fn threads_and_tasks_of_all_nodes_call_concurrently(h: &dyn Harness) {
    const CALLS: u64 = 200;
    let cluster = Cluster::new(h, 3);
    with_echo(&cluster.session(1), 3, || {
        scope(|scope| {
            for caller in 0..6 {
                let session = cluster.session(caller % 3);
                scope.spawn(move || {
                    let mut random = Rng::with_seed(caller as u64);
                    for _ in 0..CALLS {
                        check_echo(&session, THERE, random.u64(..) % 3000, random.u64(..));
                    }
                });
            }
            let session = cluster.futures(0);
            scope.spawn(move || {
                for round in 0..CALLS / 8 {
                    let inputs: Vec<_> = (0..32).map(|task| pattern(task * 7, round)).collect();
                    let calls =
                        inputs.iter().map(|input| session.call(THERE, ECHO, input, PATIENCE)).collect();
                    let answers = block_on(&session, join_all(calls));
                    for (answer, input) in answers.into_iter().zip(&inputs) {
                        assert!(answer.unwrap() == backwards(input));
                    }
                }
            });
        });
    });
}

/// Expects that each call is handled once, by any receiver.
pub fn receivers_of_one_function_share_its_calls(h: &dyn Harness) {
    const CALLS: u64 = 600;
    let cluster = Cluster::new(h, 2);
    let server = cluster.session(1).serve(ECHO, ServeOptions::default()).unwrap();
    let handled = AtomicU64::new(0);
    scope(|scope| {
        let _closing = Closing(&server);
        for _ in 0..4 {
            let server = server.clone();
            let handled = &handled;
            scope.spawn(move || {
                while let Ok(call) = server.recv() {
                    let number = handled.fetch_add(1, Ordering::Relaxed);
                    call.reply(&number.to_le_bytes()).expect("the caller waits");
                }
            });
        }
        let callers: Vec<_> = (0..3)
            .map(|_| {
                let session = cluster.session(0);
                let call = move || session.call(THERE, ECHO, b"", PATIENCE).expect("the function is served");
                scope.spawn(move || (0..CALLS / 3).map(|_| call()).collect::<Vec<_>>())
            })
            .collect();
        let mut numbers: Vec<u64> = callers
            .into_iter()
            .flat_map(|caller| caller.join())
            .map(|answer| u64::from_le_bytes(answer.try_into().expect("eight bytes")))
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..CALLS).collect::<Vec<_>>());
    });
}

/// Expects that each function has its own queue.
pub fn a_node_serves_thousands_of_functions(h: &dyn Harness) {
    const FUNCTIONS: u32 = 5000;
    let cluster = Cluster::new(h, 2);
    let (here, there) = (cluster.session(0), cluster.session(1));
    let servers: Vec<_> = (0..FUNCTIONS)
        .map(|number| {
            there.serve(Function(number * 3), ServeOptions::default()).expect("the function is free")
        })
        .collect();
    scope(|scope| {
        scope.spawn(|| {
            for number in (0..FUNCTIONS).step_by(50) {
                let call = servers[number as usize].recv().expect("the server is open");
                assert_eq!(call.input(), number.to_le_bytes());
                call.reply(b"yes").expect("the caller waits");
            }
        });
        for number in (0..FUNCTIONS).step_by(50) {
            let answer = here.call(THERE, Function(number * 3), &number.to_le_bytes(), PATIENCE);
            assert_eq!(answer.unwrap(), b"yes");
            refused!(here.call(THERE, Function(number * 3 + 1), b"", PATIENCE), CallCause::UnknownFunction);
        }
    });
}

/// Expects that calls of another function overtake the calls that wait for a function without a receiver.
pub fn an_unserved_function_blocks_only_itself(h: &dyn Harness) {
    let cluster = Cluster::tuned(h, 2, |config| config.request_ring_bytes = 4096);
    let here = cluster.session(0);
    let _unserved = cluster.session(1).serve(SINK, ServeOptions::default()).unwrap();
    let futures = cluster.futures(0);
    let input = vec![1; 900];
    let mut stuck: Vec<_> = (0..200).map(|_| Box::pin(futures.call(THERE, SINK, &input, PATIENCE))).collect();
    with_echo(&cluster.session(1), 1, || {
        for call in &mut stuck {
            expect_pending(call);
            check_echo(&here, THERE, 500, 1);
        }
    });
}

/// Expects that a call to many nodes returns the results in the order of the nodes, and that a failure at one node does
/// not affect the others.
pub fn many_nodes_are_called_with_one_input(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let [one, two] = [0, 1].map(|node| cluster.session(node).serve(ECHO, ServeOptions::default()).unwrap());
    scope(|scope| {
        let (_one, _two) = (Closing(&one), Closing(&two));
        scope.spawn(|| serve_echo(&one));
        scope.spawn(|| serve_echo(&two));
        let nodes = [2, 1, 9, 0, 1].map(NodeId);
        for len in [3, 100_000] {
            let input = pattern(len, 1);
            let answers = cluster.session(0).call_many(&nodes, ECHO, &input, PATIENCE);
            let causes: Vec<_> = answers
                .iter()
                .map(|answer| answer.as_ref().map(|_| ()).map_err(|error| error.cause))
                .collect();
            let (unserved, unknown) = (Err(CallCause::UnknownFunction), Err(CallCause::UnknownNode));
            assert_eq!(causes, [unserved, Ok(()), unknown, Ok(()), Ok(())]);
            assert!(answers.into_iter().flatten().all(|answer| answer == backwards(&input)));
        }
        assert!(cluster.session(0).call_many(&[], ECHO, b"", PATIENCE).is_empty());
    });
}

/// Expects that requests of all lengths arrive through a ring that holds only a few of them, so that requests wrap
/// around its end.
pub fn requests_wrap_around_a_small_ring(h: &dyn Harness) {
    let cluster = Cluster::tuned(h, 2, |config| config.request_ring_bytes = 4096);
    with_echo(&cluster.session(1), 2, || {
        scope(|scope| {
            for caller in 0..3 {
                let session = cluster.session(0);
                scope.spawn(move || {
                    let mut random = Rng::with_seed(caller);
                    for _ in 0..500 {
                        let longest = [20, 1100, 3000][random.u64(0..3) as usize];
                        check_echo(&session, THERE, random.u64(0..longest), random.u64(..));
                    }
                });
            }
        });
    });
}

/// Expects that more calls can wait at once than there are default slots.
pub fn thousands_of_calls_wait_at_once(h: &dyn Harness) {
    let calls = h.count(1100, 3000);
    let cluster = Cluster::new(h, 2);
    let session = cluster.futures(0);
    let server = cluster.session(1).serve(ECHO, ServeOptions::default()).unwrap();
    let inputs: Vec<_> = (0..calls).map(|number| (number as u64).to_le_bytes()).collect();
    let mut calls: Vec<_> =
        inputs.iter().map(|input| Box::pin(session.call(THERE, ECHO, input, PATIENCE))).collect();
    calls.iter_mut().for_each(expect_pending);
    scope(|scope| {
        let _closing = Closing(&server);
        scope.spawn(|| serve_echo(&server));
        let answers = block_on(&session, join_all(calls));
        for (answer, input) in answers.into_iter().zip(&inputs) {
            assert_eq!(answer.unwrap(), backwards(input));
        }
    });
}

/// Expects that calls still work after many more abandoned calls than there are slots. The calls are abandoned before,
/// during and after their handling.
pub fn abandoned_calls_leak_nothing(h: &dyn Harness) {
    const CALLS: usize = 100_000;
    let cluster = Cluster::new(h, 2);
    let (session, here) = (cluster.futures(0), cluster.session(0));
    let _unserved = cluster.session(1).serve(SINK, ServeOptions::default()).unwrap();
    with_echo(&cluster.session(1), 1, || {
        for number in 0..CALLS {
            let function = if number % 2 == 0 { ECHO } else { SINK };
            let mut call = Box::pin(session.call(THERE, function, b"never mind", PATIENCE));
            let polled = poll_once(&mut call);
            if let Poll::Ready(Err(error)) = polled {
                assert!([CallCause::TooManyCalls, CallCause::Busy].contains(&error.cause), "{error}");
            }
            if number % 100 == 0 {
                check_echo(&here, THERE, 100, number as u64);
            }
        }
        for _ in 0..100 {
            refused!(here.call(THERE, SINK, b"", Duration::ZERO), CallCause::Timeout);
        }
        check_echo(&here, THERE, 100_000, 1);
    });
}

/// Expects that calls fail when the server's node leaves, with an error that depends on the progress of each call, and
/// that calls to other nodes continue.
pub fn calls_end_with_the_servers_node(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let here = cluster.session(0);
    let server = cluster.session(2).serve(ECHO, ServeOptions::default()).unwrap();
    let done = AtomicBool::new(false);
    let call = scope(|scope| {
        let caller = scope.spawn(|| {
            let error = here.call(NodeId(2), ECHO, b"", PATIENCE).unwrap_err();
            done.store(true, Ordering::Relaxed);
            error
        });
        let call = server.recv().unwrap();
        cluster.leave(2);
        let error = caller.join();
        assert!(error.cause == CallCause::PeerDown && error.may_have_run, "{error}");
        call
    });
    assert!(done.load(Ordering::Relaxed));
    assert!(call.reply(b"from beyond").is_err());
    refused!(server.recv(), ServeCause::NodeClosed(NodeId(2)));
    let late = here.call(NodeId(2), ECHO, b"", PATIENCE).unwrap_err();
    assert!(matches!(late.cause, CallCause::PeerDown | CallCause::UnknownNode), "{late}");
    assert!(!late.may_have_run, "an unsent call cannot have run: {late}");
    with_echo(&cluster.session(1), 1, || check_echo(&here, THERE, 100, 1));
}

/// Expects that an answer to a caller whose node has left is refused, and that the handler serves the next caller.
pub fn a_handler_survives_its_callers_node(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let server = cluster.session(1).serve(ECHO, ServeOptions::default()).unwrap();
    let leaving = cluster.session(2);
    let call = scope(|scope| {
        let caller = scope.spawn(|| leaving.call(THERE, ECHO, &vec![1; 100_000], PATIENCE));
        let call = server.recv().unwrap();
        cluster.leave(2);
        refused!(caller.join(), CallCause::NodeClosed(NodeId(2)));
        call
    });
    refused!(leaving.call(THERE, ECHO, b"", PATIENCE), CallCause::NodeClosed(NodeId(2)));
    await_caller_gone(&call);
    refused!(call.reply(&vec![1; 100_000]), ReplyCause::CallerGone);
    scope(|scope| {
        let _closing = Closing(&server);
        scope.spawn(|| serve_echo(&server));
        check_echo(&cluster.session(0), THERE, 100_000, 1);
    });
}
