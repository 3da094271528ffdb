//! Tests which thread handles arrivals when threads of a node start and stop waiting.

use crate::common;

use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use common::Dir;
use common::threads::{number_of_this_thread, wait_until_asleep};
use halite::{CallError, Config, Function, Node, NodeId, ServeOptions};

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
