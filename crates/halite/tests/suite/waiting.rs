//! Who sees to arrivals while threads of a node come and go.

use crate::common;

use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use common::Dir;
use common::threads::{number_of_this_thread, wait_until_asleep};
use halite::{CallError, Config, Function, Node, NodeId, ServeOptions, blocking};

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
fn a_task_is_told_of_its_answer_when_a_thread_that_slept_on_the_fabric_has_gone() {
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

/// Calls when it is woken, in the middle of another thread's wait.
struct CallOnWake(Mutex<mpsc::Sender<Result<Vec<u8>, CallError>>>, blocking::Session);

impl Wake for CallOnWake {
    fn wake(self: Arc<Self>) {
        let answer = self.1.call(NodeId(1), Function(3), b"", PATIENCE);
        let _ = self.0.lock().expect("nobody panics").send(answer);
    }
}

/// The thread that was to be rung was busy with that call.
#[test]
fn a_waker_may_wait_for_the_node_that_calls_it() {
    let dir = Dir::new();
    let [here, there] = quiet_nodes(&dir);
    let (soon, late, nested) = (Function(1), Function(2), Function(3));
    let tells = [soon, late, nested].map(|function| serve_when_told(&there, function));
    let session = here.session();
    let mut task = Box::pin(session.call(NodeId(1), soon, b"", PATIENCE));
    let (tell, told) = mpsc::channel();
    let waker = Waker::from(Arc::new(CallOnWake(Mutex::new(tell), here.blocking_session())));
    assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    thread::scope(|scope| {
        let caller = call_asleep(scope, &here, late);
        tells[2].send(()).expect("it serves");
        tells[0].send(()).expect("it serves");
        let answer = told.recv_timeout(2 * PATIENCE).expect("the waker was called");
        assert_eq!(answer.expect("it is answered"), b"answer");
        tells[1].send(()).expect("it serves");
        caller.join().expect("it does not panic").expect("it is answered");
    });
}
