//! Tests which thread handles arrivals when threads of a node start and stop waiting.

use crate::common;

use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use common::Dir;
use common::threads::{number_of_this_thread, wait_until_asleep};
use halite::{CallError, Config, Env, Function, Node, NodeId, Permissions, Placement, ServeOptions};

/// Timeout of calls, in which every answered call ends.
const PATIENCE: Duration = Duration::from_secs(60);

/// A waker that tells the test when its future is woken.
struct Tell(mpsc::Sender<()>);

impl Wake for Tell {
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
fn serve_when_told(node: &Node, function: Function) -> mpsc::Sender<()> {
    let server =
        node.blocking_session().serve(function, ServeOptions::default()).expect("no session serves it yet");
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        while let (Ok(call), Ok(())) = (server.recv(), told.recv()) {
            call.reply(b"answer").expect("the caller waits");
        }
    });
    tell
}

/// Starts a thread that calls `function`. Returns when this thread sleeps.
fn call_asleep<'s>(
    scope: &'s Scope<'s, '_>,
    here: &'s Node,
    function: Function,
) -> ScopedJoinHandle<'s, Result<Vec<u8>, CallError>> {
    let (tell, told) = mpsc::channel();
    let caller = scope.spawn(move || {
        tell.send(number_of_this_thread()).expect("the test waits");
        here.blocking_session().call(NodeId(1), function, b"", PATIENCE)
    });
    wait_until_asleep(&told.recv().expect("the thread starts"));
    caller
}

/// The doorbell stayed armed for a caller that no longer slept.
#[test]
fn a_task_is_woken_after_a_sleeping_thread_has_gone() {
    let dir = Dir::new();
    let [here, there] = quiet_nodes(&dir);
    let (soon, late) = (Function(1), Function(2));
    let (tell_soon, tell_late) = (serve_when_told(&there, soon), serve_when_told(&there, late));
    for _ in 0..50 {
        let session = here.session();
        let mut task = Box::pin(session.call(NodeId(1), late, b"", PATIENCE));
        let (tell, told) = mpsc::channel();
        let waker = Waker::from(Arc::new(Tell(tell)));
        assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        thread::scope(|scope| {
            let caller = call_asleep(scope, &here, soon);
            tell_soon.send(()).expect("the server runs");
            caller.join().expect("the caller does not panic").expect("the call is answered");
        });
        tell_late.send(()).expect("the server runs");
        told.recv_timeout(PATIENCE).expect("the task is woken");
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
