//! Tests which thread handles arrivals when threads of a node start and stop waiting.

use crate::common;

use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use common::Dir;
use common::threads::{this_thread_id, wait_until_asleep};
use halite::{CallError, Config, Env, Function, Node, NodeId, Permissions, Placement, ServeOptions};

/// Timeout of calls; an answered call takes much less.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A waker that tells the test when its future is woken.
struct NotifyTest(mpsc::Sender<()>);

impl Wake for NotifyTest {
    fn wake(self: Arc<Self>) {
        // The send fails when the test is over.
        let _ = self.0.send(());
    }
}

/// Joins two nodes that send no heartbeat for a quarter of an hour.
fn quiet_nodes(dir: &Dir) -> [Node; 2] {
    [0, 1].map(|node| {
        let config = Config { lease: Duration::from_secs(3600), ..dir.config(node) };
        dir.try_join(config).expect("the node joins")
    })
}

/// Answers one call of `function` for each message that the test sends.
fn serve_on_signal(node: &Node, function: Function) -> mpsc::Sender<()> {
    let server =
        node.blocking_session().serve(function, ServeOptions::default()).expect("no session serves it yet");
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        while let (Ok(call), Ok(())) = (server.recv(), receiver.recv()) {
            call.reply(b"answer").expect("the caller waits");
        }
    });
    sender
}

/// Starts a thread that calls `function`. Returns when this thread sleeps.
fn start_sleeping_caller<'s>(
    scope: &'s Scope<'s, '_>,
    here: &'s Node,
    function: Function,
) -> ScopedJoinHandle<'s, Result<Vec<u8>, CallError>> {
    let (sender, receiver) = mpsc::channel();
    let caller = scope.spawn(move || {
        sender.send(this_thread_id()).expect("the test waits");
        here.blocking_session().call(NodeId(1), function, b"", TIMEOUT)
    });
    wait_until_asleep(&receiver.recv().expect("the thread starts"));
    caller
}

/// The doorbell stayed armed for a caller that no longer slept.
#[test]
fn a_task_is_woken_after_the_leader_has_gone() {
    let dir = Dir::new();
    let [here, there] = quiet_nodes(&dir);
    let (soon, late) = (Function(1), Function(2));
    let (answer_soon, answer_late) = (serve_on_signal(&there, soon), serve_on_signal(&there, late));
    for _ in 0..50 {
        let session = here.session();
        let mut task = Box::pin(session.call(NodeId(1), late, b"", TIMEOUT));
        let (sender, receiver) = mpsc::channel();
        let waker = Waker::from(Arc::new(NotifyTest(sender)));
        assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        thread::scope(|scope| {
            let caller = start_sleeping_caller(scope, &here, soon);
            answer_soon.send(()).expect("the server runs");
            caller.join().expect("the caller does not panic").expect("the call is answered");
        });
        answer_late.send(()).expect("the server runs");
        receiver.recv_timeout(TIMEOUT).expect("the task is woken");
        assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    }
}

/// A clock that stands still, so no interval passes.
struct Frozen;

impl Env for Frozen {
    fn now_ns(&self) -> u64 {
        1
    }

    fn since_1970_ns(&self) -> u64 {
        1
    }

    fn random(&self) -> u64 {
        1
    }

    fn pid(&self) -> u32 {
        std::process::id()
    }
}

#[test]
fn a_notification_ends_the_pause_of_a_wait() {
    let dir = Dir::new();
    let node = dir.driven(Arc::new(Frozen));
    let (reader, writer) = (node.session(), node.session());
    let blocking = reader.clone().blocking();
    let board = blocking.alloc(Some("board"), 64, Placement::Local, Permissions::all()).unwrap();
    let theirs = blocking.block_on(writer.map("board", Permissions::all())).unwrap();
    let context = &mut Context::from_waker(Waker::noop());
    let mut waiting = pin!(reader.wait_until(board, 0, |word| word == 7));
    for _ in 0..16 {
        assert!(waiting.as_mut().poll(context).is_pending());
        node.step();
    }
    blocking.block_on(writer.write(theirs, 0, &7u64.to_ne_bytes())).unwrap();
    node.step();
    assert!(waiting.as_mut().poll(context).is_pending(), "a write ends no pause");
    blocking.block_on(writer.write_notify(theirs, 8, &[], 1)).unwrap();
    node.step();
    assert_eq!(waiting.as_mut().poll(context), Poll::Ready(Ok(7)));
}
