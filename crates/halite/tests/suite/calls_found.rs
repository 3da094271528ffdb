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

use common::Dir;
use common::no_direct::NoDirect;
use halite::{CallCause, Config, Function, Node, NodeId, Port, ReplyCause, ServeOptions};
use halite_fabric::Fabric;

/// Long enough for any call that is answered at all.
const PATIENCE: Duration = Duration::from_secs(60);
const ECHO: Function = Function(7);
const PORT: Port = Port(3);

/// A node that ends while a handler works for one of its own sessions: the handler panicked when it answered.
#[test]
fn a_late_answer_to_the_own_node_is_refused() {
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

/// A message to a port of the own node was given up while room was made for it: the node waited for itself.
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
    session.try_send(NodeId(0), PORT, b"last").expect("no room is kept for those that have gone");
}

/// The node dropped the waker of a call while it held the lock that the call behind that waker wanted.
#[test]
fn a_waker_may_own_another_call() {
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
fn a_dead_callers_input_costs_its_server_no_memory() {
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
