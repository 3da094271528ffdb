//! Named scenarios of what once went wrong with calls and messages.

use crate::common;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use common::no_direct::NoDirect;
use common::{Dir, until};
use halite::{CallCause, Config, Function, Node, NodeId, Port, ReplyCause, ServeOptions, blocking};
use halite_fabric::Fabric;
use halite_fabric::fault::{Fault, FaultInjector, FaultPlan, Moment, Rule};

/// Long enough for any call that is answered at all.
const PATIENCE: Duration = Duration::from_secs(60);
const ECHO: Function = Function(7);
const PORT: Port = Port(3);

/// Answers calls with as many bytes as they ask for until the server is closed.
fn serve_lengths(server: &blocking::Server) {
    let mut answer = Vec::new();
    while let Ok(call) = server.recv() {
        let len = u32::from_le_bytes(call.input().try_into().expect("four bytes"));
        answer.resize(len as usize, call.input()[0]);
        // The node may leave before its last callers have their answers.
        let _ = call.reply(&answer);
    }
}

/// A caller that has its answer calls again with the same slot, before the handler's thread has noted that the answer
/// is posted: a peer was disconnected for that, and a node that called itself panicked.
#[test]
fn a_slot_may_be_used_again_as_soon_as_its_answer_is_there() {
    const LEN: u32 = 5000;
    let dir = Dir::new();
    let nodes = [dir.join(0), dir.join(1)];
    let server = nodes[1].blocking_session().serve(ECHO, ServeOptions::default()).unwrap();
    thread::scope(|scope| {
        for _ in 0..3 {
            let server = server.clone();
            scope.spawn(move || serve_lengths(&server));
        }
        let callers: Vec<_> = nodes
            .iter()
            .map(|node| {
                let session = node.blocking_session();
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let answer = session.call(NodeId(1), ECHO, &LEN.to_le_bytes(), PATIENCE).unwrap();
                        assert_eq!(answer.len(), LEN as usize);
                    }
                })
            })
            .collect();
        let ended: Vec<_> = callers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        server.close();
        assert!(ended.iter().all(Result::is_ok));
    });
}

/// A node that ends while a handler works for one of its own sessions: the handler panicked when it answered.
#[test]
fn an_answer_to_a_node_of_ones_own_that_has_left_is_refused() {
    let dir = Dir::new();
    let node = dir.join(0);
    let session = node.blocking_session();
    let server = session.serve(ECHO, ServeOptions::default()).unwrap();
    thread::scope(|scope| {
        let caller = scope.spawn(|| session.call(NodeId(0), ECHO, b"", PATIENCE));
        let call = server.recv().unwrap();
        node.leave();
        let error = caller.join().expect("no panic").unwrap_err();
        assert_eq!(error.cause, CallCause::NodeClosed);
        assert_eq!(call.reply(b"late").unwrap_err().cause, ReplyCause::CallerGone);
    });
}

/// Wakes a thread that is parked.
struct Unpark {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        // Pairs with the Acquire in run_asleep().
        self.woken.store(true, Release);
        self.thread.unpark();
    }
}

/// Runs a future on a thread that does nothing for its node.
fn run_asleep<F: Future>(future: F) -> F::Output {
    let unpark = Arc::new(Unpark { thread: thread::current(), woken: AtomicBool::new(true) });
    let waker = Waker::from(unpark.clone());
    let mut future = pin!(future);
    loop {
        // Pairs with the Release in wake().
        let begin = Instant::now();
        while !unpark.woken.swap(false, Acquire) {
            assert!(begin.elapsed() < PATIENCE, "it is not woken");
            thread::park_timeout(PATIENCE);
        }
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
    }
}

/// The housekeeper slept until its next heartbeat, and so did the callers whose time was over long before.
#[test]
fn a_deadline_wakes_its_caller_while_everybody_sleeps() {
    let dir = Dir::new();
    let config = |node| Config { lease: Duration::from_secs(24 * 60 * 60), ..dir.config(node) };
    let [here, there] = [0, 1].map(|node| dir.try_join(config(node)).unwrap());
    let _server = there.session().serve(ECHO, ServeOptions::default()).unwrap();
    let session = here.session();
    for _ in 0..3 {
        let call = session.call(NodeId(1), ECHO, b"", Duration::from_millis(20));
        assert_eq!(run_asleep(call).unwrap_err().cause, CallCause::Timeout);
        let own = session.blocking().call(NodeId(1), ECHO, b"", Duration::from_millis(20));
        assert_eq!(own.unwrap_err().cause, CallCause::Timeout);
    }
}

/// A node whose fabric does not take every third request at once.
fn join_crowded(dir: &Dir, node: u32, seed: u64) -> Node {
    let full = Rule::new(Moment::AnyPost, Fault::QueueFull).one_in(3);
    let wrap = move |fabric: Arc<dyn Fabric>| -> Arc<dyn Fabric> {
        Arc::new(FaultInjector::new(fabric, FaultPlan::new(seed).rule(full)))
    };
    let config = Config { request_ring_bytes: 4096, ..dir.config(node) };
    Node::wrap(config, wrap).expect("the node joins")
}

/// The head of a ring was told once, and lost if the fabric's queue was full: senders without a deadline waited for ever.
#[test]
fn rings_go_on_where_the_fabric_is_often_full() {
    let dir = Dir::new();
    let nodes = [join_crowded(&dir, 0, 1), join_crowded(&dir, 1, 2)];
    let mailbox = nodes[1].blocking_session().open_port(PORT, ServeOptions::default()).unwrap();
    let server = nodes[1].blocking_session().serve(ECHO, ServeOptions::default()).unwrap();
    let session = nodes[0].blocking_session();
    thread::scope(|scope| {
        scope.spawn(|| serve_lengths(&server));
        scope.spawn(|| {
            for number in 0..3000u32 {
                let mut bytes = vec![7; number as usize % 900];
                bytes.extend(number.to_le_bytes());
                session.send(NodeId(1), PORT, &bytes).unwrap();
            }
        });
        let callers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    for len in (0..10_000u32).step_by(11) {
                        let answer = session.call(NodeId(1), ECHO, &len.to_le_bytes(), PATIENCE).unwrap();
                        assert_eq!(answer.len(), len as usize);
                    }
                })
            })
            .collect();
        for number in 0..3000u32 {
            let message = mailbox.recv().unwrap();
            assert_eq!(message.bytes[number as usize % 900..], number.to_le_bytes());
        }
        callers.into_iter().for_each(|caller| caller.join().expect("no panic"));
        server.close();
    });
}

/// A message to a port of the own node was given up while room was made for it: the node waited for itself.
#[test]
fn messages_to_ones_own_node_may_be_given_up_at_any_moment() {
    let dir = Dir::new();
    let node = dir.join(0);
    let session = node.blocking_session();
    let options = ServeOptions { requests_max: 1, ..ServeOptions::default() };
    let mailbox = session.open_port(PORT, options).unwrap();
    thread::scope(|scope| {
        let senders = [(); 2].map(|()| {
            scope.spawn(|| {
                for _ in 0..5000 {
                    let tasks: Vec<_> = (0..3).map(|_| node.session()).collect();
                    let mut sends: Vec<_> =
                        tasks.iter().map(|task| Box::pin(task.send(NodeId(0), PORT, b"?"))).collect();
                    for send in &mut sends {
                        let _ = send.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    }
                }
            })
        });
        while !senders.iter().any(|sender| sender.is_finished()) {
            mailbox.try_recv().unwrap();
        }
    });
    while mailbox.try_recv().unwrap().is_some() {}
    session.try_send(NodeId(0), PORT, b"last").expect("no room is kept for those that have gone");
}

/// A port was full of a long message whose sender lost interest; senders behind it were never told that there
/// was room again.
#[test]
fn a_cancelled_message_makes_room_for_those_behind_it() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    let (session, there) = (first.session(), second.blocking_session());
    let mailbox = there.open_port(PORT, ServeOptions { requests_max: 1, ..ServeOptions::default() }).unwrap();
    let long = vec![7; 1 << 20];
    let mut context = Context::from_waker(Waker::noop());
    let mut cancelled = Box::pin(session.send(NodeId(1), PORT, &long));
    assert!(cancelled.as_mut().poll(&mut context).is_pending());
    // All of these go the same way, one behind the other.
    let mut behind = pin!(session.send(NodeId(1), PORT, b"short"));
    assert!(behind.as_mut().poll(&mut context).is_pending());
    drop(cancelled);
    // Nobody answers for this port, but the node that refuses has heard of the cancel first.
    session.blocking().try_send(NodeId(1), Port(PORT.0 + 1), b"?").unwrap_err();
    let receiver = thread::spawn(move || mailbox.recv().unwrap().bytes);
    session.blocking().block_on(behind).unwrap();
    assert_eq!(receiver.join().unwrap(), b"short");
}

/// Where loads reach the sender's memory, nothing need be waited for.
#[test]
fn a_long_message_does_not_block_those_who_only_try_to_receive() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    let (session, there) = (first.session(), second.blocking_session());
    let mailbox = there.open_port(PORT, ServeOptions::default()).unwrap();
    let sender = thread::spawn(move || session.blocking().send(NodeId(1), PORT, &vec![7; 1 << 20]).unwrap());
    let message = until(|| mailbox.try_recv().unwrap());
    assert!(message.bytes == vec![7; 1 << 20]);
    sender.join().unwrap();
}

/// The node dropped the waker of a call while it held the lock that the call behind that waker wanted.
#[test]
fn a_waker_that_owns_another_call_may_be_dropped_by_the_node() {
    struct Owner(#[expect(dead_code, reason = "it is owned to be dropped")] Mutex<Option<Inner>>);
    type Inner = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;
    impl Wake for Owner {
        fn wake(self: Arc<Self>) {}
    }
    let dir = Dir::new();
    let first = dir.join(0);
    let session = first.session();
    let _server = session.serve(ECHO, ServeOptions::default()).unwrap();
    let (done, is_done) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let other = session.clone();
        let mut inner: Inner = Box::pin(async move {
            let _ = other.call(NodeId(0), ECHO, b"", PATIENCE).await;
        });
        assert!(inner.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let waker = Waker::from(Arc::new(Owner(Mutex::new(Some(inner)))));
        let mut outer = Box::pin(session.call(NodeId(0), ECHO, b"", PATIENCE));
        assert!(outer.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        drop(outer);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(PATIENCE).expect("the thread waits for a lock that it holds");
}

/// To fetch what cannot be reached, memory for the answer was set up, which then stayed for the incarnation of the node.
#[test]
fn a_long_input_of_a_caller_that_has_died_costs_its_server_no_memory() {
    let dir = Dir::new();
    let first = dir.join(0);
    let mut no_direct = None;
    let wrap = |fabric| -> Arc<dyn Fabric> { no_direct.insert(Arc::new(NoDirect::new(fabric))).clone() };
    let second = Node::wrap(dir.config(1), wrap).unwrap();
    let fabric = no_direct.expect("the fabric was wrapped");
    let (session, there) = (first.blocking_session(), second.blocking_session());
    let server = there.serve(ECHO, ServeOptions::default()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| server.recv().map(drop).expect_err("no input arrives"));
        // Whatever else calls need is there after one.
        let port = there.open_port(PORT, ServeOptions::default()).unwrap();
        session.send(NodeId(1), PORT, b"short").unwrap();
        assert_eq!(port.recv().unwrap().bytes, b"short");
        let before = fabric.registered_bytes();
        fabric.hide_direct();
        let called = session.call(NodeId(1), ECHO, &vec![7; 1 << 20], PATIENCE);
        let after = fabric.registered_bytes();
        server.close();
        assert_eq!(after, before, "registered for nothing");
        assert_eq!(called.unwrap_err().cause, CallCause::NoMemory, "the caller that lives after all is told");
    });
}

/// To count what is under way took two locks at once, in the other order than answers to the own node do.
#[test]
fn a_node_that_calls_itself_may_be_explained_meanwhile() {
    let dir = Dir::new();
    let node = dir.join(0);
    let server = node.blocking_session().serve(ECHO, ServeOptions::default()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| serve_lengths(&server));
        let caller = scope.spawn(|| {
            let session = node.blocking_session();
            for _ in 0..20_000 {
                session.call(NodeId(0), ECHO, &8_u32.to_le_bytes(), PATIENCE).unwrap();
            }
        });
        let session = node.blocking_session();
        while !caller.is_finished() {
            let explained = session.explain_peer(NodeId(0)).unwrap();
            assert!(explained.calls_under_way <= 1, "{explained}");
            // Where all share one core, those who call have it in between.
            thread::yield_now();
        }
        server.close();
    });
}
