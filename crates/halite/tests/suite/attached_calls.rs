//! Short calls between attached sessions, which pass the queue of the function.

use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use halite::blocking::{Server, Session};
use halite::{AttachMode, CallCause, Config, Function, Node, NodeId, ReplyCause, ServeCause, ServeOptions};

use crate::common::Dir;

const HERE: NodeId = NodeId(0);
const ECHO: Function = Function(7);
const LONG: Duration = Duration::from_secs(3600);

/// Opens a node, and two sessions that are attached to it: a caller and a server.
fn open(dir: &Dir) -> (Node, Session, Session) {
    let (attach, dir) = (Some(AttachMode::Owner), dir.path());
    let config = Config { dir: dir.to_path_buf(), node: Some(HERE), attach, ..Config::default() };
    let node = Node::embedded(config).unwrap();
    (node, Session::attach(dir).unwrap(), Session::attach(dir).unwrap())
}

/// Serves a function whose answers are its inputs, repeated as often as the first byte says.
fn echo(server: Server) -> JoinHandle<ServeCause> {
    spawn(move || {
        let mut next = server.recv();
        loop {
            let call = match next {
                Ok(call) => call,
                Err(error) => return error.cause,
            };
            assert_eq!(call.node(), HERE);
            let times = call.input().first().copied().map_or(0, usize::from);
            let output = call.input().repeat(times);
            next = server.reply_and_recv(call, &output);
        }
    })
}

/// Returns a call that has passed the queue: while a server holds such a call, the node itself has no call under way.
fn hold(
    node: &Node,
    server: &Server,
    caller: &Session,
    timeout: Duration,
) -> (halite::Call, JoinHandle<CallCause>) {
    let receiving = spawn({
        let server = server.clone();
        move || {
            let first = server.recv().unwrap();
            server.reply_and_recv(first, b"").unwrap()
        }
    });
    // After an answer, the next receive waits.
    caller.call(HERE, ECHO, b"first", LONG).unwrap();
    let caller = caller.clone();
    let calling = spawn(move || *caller.call(HERE, ECHO, b"held", timeout).unwrap_err().cause());
    let call = receiving.join().unwrap();
    let metrics = node.metrics().to_string();
    assert!(metrics.lines().any(|line| line == "halite_calls_under_way 0"), "{metrics}");
    (call, calling)
}

#[test]
fn inputs_and_answers_of_all_lengths_arrive() {
    let dir = Dir::new();
    let (node, caller, server) = open(&dir);
    let server = server.serve(ECHO, ServeOptions::default()).unwrap();
    let serving = echo(server.clone());
    for len in [0, 1, 8, 32, 33, 56, 57, 4096, 4097, 70_000] {
        for times in [0, 1, 3] {
            let mut input = vec![0xA5; len];
            input.first_mut().into_iter().for_each(|first| *first = times);
            let expected = if len == 0 { Vec::new() } else { input.repeat(usize::from(times)) };
            let mut output = vec![0; expected.len()];
            assert_eq!(caller.call_into(HERE, ECHO, &input, &mut output, LONG), Ok(expected.len()));
            assert!(output == expected, "{len} bytes, {times} times");
            assert!(caller.call(HERE, ECHO, &input, LONG).unwrap() == expected);
        }
    }
    // Calls of the node's own sessions reach the same receiver.
    assert_eq!(node.blocking_session().call(HERE, ECHO, b"\x02ab", LONG).unwrap(), b"\x02ab\x02ab");
    let error = caller.call_into(HERE, ECHO, b"\x02ab", &mut [0; 5], LONG).unwrap_err();
    assert_eq!(*error.cause(), CallCause::ReplyTooLong { len: 6, max: 5 });
    server.close();
    assert_eq!(serving.join().unwrap(), ServeCause::Closed);
    assert_eq!(*caller.call(HERE, ECHO, b"", LONG).unwrap_err().cause(), CallCause::UnknownFunction);
}

#[test]
fn a_held_call_ends_with_its_deadline_its_server_or_its_caller() {
    let dir = Dir::new();
    let (node, caller, serving) = open(&dir);
    let server = serving.serve(ECHO, ServeOptions::default()).unwrap();

    // The timeout passes, and the late answer is refused.
    let (call, calling) = hold(&node, &server, &caller, Duration::from_millis(50));
    assert_eq!(calling.join().unwrap(), CallCause::Timeout);
    assert!(!call.is_wanted());
    assert_eq!(*call.reply(b"late").unwrap_err().cause(), ReplyCause::CallerGone);

    // The server drops the call, or ends.
    let (call, calling) = hold(&node, &server, &caller, LONG);
    assert!(call.is_wanted());
    drop(call);
    assert_eq!(calling.join().unwrap(), CallCause::NoReply);
    let (call, calling) = hold(&node, &server, &caller, LONG);
    drop((server, serving));
    let served = Session::attach(dir.path()).unwrap().serve(ECHO, ServeOptions::default());
    assert!(served.is_ok(), "the call's session is still open, but serves nothing: {served:?}");
    drop(call);
    assert_eq!(calling.join().unwrap(), CallCause::NoReply);
    drop(served);

    // The caller ends.
    let serving = Session::attach(dir.path()).unwrap();
    let server = serving.serve(ECHO, ServeOptions::default()).unwrap();
    let (call, calling) = hold(&node, &server, &caller, LONG);
    drop(node);
    assert_eq!(calling.join().unwrap(), CallCause::NodeClosed(HERE));
    drop(call);
}
