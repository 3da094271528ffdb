//! Scenarios of past bugs in calls and messages. Each comment describes the bug.

use crate::common;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use common::Dir;
use common::no_direct::NoDirect;
use halite::{CallCause, Config, Function, Node, NodeId, Port, ReplyCause, ServeOptions};
use halite_fabric::Fabric;

/// Timeout of calls; an answered call takes much less.
const TIMEOUT: Duration = Duration::from_secs(60);
const ECHO: Function = Function(7);
const PORT: Port = Port(3);

/// A node ended while a handler processed a request of one of its own sessions: the handler panicked when it answered.
#[test]
fn a_late_answer_to_the_own_node_is_refused() {
    let dir = Dir::new();
    let node = dir.join(0);
    let session = node.blocking_session();
    let server = session.serve(ECHO, ServeOptions::default()).unwrap();
    thread::scope(|scope| {
        let caller = scope.spawn(|| session.call(NodeId(0), ECHO, b"", TIMEOUT));
        let call = server.recv().unwrap();
        node.leave();
        let error = caller.join().expect("no panic").unwrap_err();
        assert_eq!(error.cause, CallCause::NodeClosed(NodeId(0)));
        assert_eq!(call.reply(b"late").unwrap_err().cause, ReplyCause::CallerGone);
    });
}

/// Unparks a thread.
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

/// Polls a future on a parked thread, which does no work for its node.
fn run_asleep<F: Future>(future: F) -> F::Output {
    let unpark = Arc::new(Unpark { thread: thread::current(), woken: AtomicBool::new(true) });
    let waker = Waker::from(unpark.clone());
    let mut future = pin!(future);
    loop {
        // Pairs with the Release in wake().
        let begin = Instant::now();
        while !unpark.woken.swap(false, Acquire) {
            assert!(begin.elapsed() < TIMEOUT, "the thread is not woken");
            thread::park_timeout(TIMEOUT);
        }
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
    }
}

/// The progress thread slept until its next heartbeat, and so did callers whose deadline had passed long before.
#[test]
fn a_deadline_wakes_a_sleeping_caller() {
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

/// A message to a port of the node itself was abandoned while it waited for room: the node waited for itself.
#[test]
fn messages_to_the_own_node_may_be_abandoned() {
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
    session.try_send(NodeId(0), PORT, b"last").expect("abandoned messages take no room");
}

/// The node dropped the waker of a call while it held a lock that the call owned by that waker needed.
#[test]
fn a_waker_may_own_another_call() {
    struct Owner(#[expect(dead_code, reason = "the test needs the drop")] Mutex<Option<Inner>>);
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
            let _ = other.call(NodeId(0), ECHO, b"", TIMEOUT).await;
        });
        assert!(inner.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let waker = Waker::from(Arc::new(Owner(Mutex::new(Some(inner)))));
        let mut outer = Box::pin(session.call(NodeId(0), ECHO, b"", TIMEOUT));
        assert!(outer.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        drop(outer);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(TIMEOUT).expect("the thread waits for a lock that it holds");
}

/// The server allocated memory for an input that it could not reach, and kept this memory until the end of the caller's
/// incarnation.
#[test]
fn an_unreachable_input_takes_no_memory() {
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
        // One call sets up everything else that calls need.
        let port = there.open_port(PORT, ServeOptions::default()).unwrap();
        session.send(NodeId(1), PORT, b"short").unwrap();
        assert_eq!(port.recv().unwrap().bytes, b"short");
        let before = fabric.registered_bytes();
        fabric.hide_direct();
        let called = session.call(NodeId(1), ECHO, &vec![7; 1 << 20], TIMEOUT);
        let after = fabric.registered_bytes();
        server.close();
        assert_eq!(after, before, "the server registered memory for an unreachable input");
        assert_eq!(
            called.unwrap_err().cause,
            CallCause::NoMemory,
            "the caller, which is still alive, gets the error"
        );
    });
}
