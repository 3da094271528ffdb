//! Who sees to arrivals while threads of a node come and go.

use crate::common;

use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use common::Dir;
use common::threads::{number_of_this_thread, wait_until_asleep};
use halite::{CallError, Config, Function, Node, NodeId, ServeOptions};

/// Long enough for any call that is answered at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// Has a test told by what it waits for.
struct Tell(mpsc::Sender<()>);

impl Wake for Tell {
    fn wake(self: Arc<Self>) {
        // It fails when the test is over.
        let _ = self.0.send(());
    }
}

/// Two nodes, of which nothing is heard for a quarter of an hour unless something arrives.
fn quiet_nodes(dir: &Dir) -> [Node; 2] {
    [0, 1].map(|node| {
        let config = Config { lease: Duration::from_secs(3600), ..dir.config(node) };
        dir.try_join(config).expect("the node joins")
    })
}

/// Answers calls of `function` when it is told to, each time.
fn serve_when_told(node: &Node, function: Function) -> mpsc::Sender<()> {
    let server =
        node.blocking_session().serve(function, ServeOptions::default()).expect("nobody serves it yet");
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        while let (Ok(call), Ok(())) = (server.recv(), told.recv()) {
            call.reply(b"answer").expect("the caller is there");
        }
    });
    tell
}

/// A thread that calls `function`, and sleeps by now.
fn call_asleep<'s>(
    scope: &'s Scope<'s, '_>,
    here: &'s Node,
    function: Function,
) -> ScopedJoinHandle<'s, Result<Vec<u8>, CallError>> {
    let (tell, told) = mpsc::channel();
    let caller = scope.spawn(move || {
        tell.send(number_of_this_thread()).expect("it is waited for");
        here.blocking_session().call(NodeId(1), function, b"", PATIENCE)
    });
    wait_until_asleep(&told.recv().expect("it begins"));
    caller
}

/// The doorbell stayed armed for a caller that did not sleep any more.
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
            tell_soon.send(()).expect("it serves");
            caller.join().expect("it does not panic").expect("it is answered");
        });
        tell_late.send(()).expect("it serves");
        told.recv_timeout(PATIENCE).expect("the answer has come");
        assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    }
}
