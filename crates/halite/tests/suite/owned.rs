//! What a session gives out owns all that it needs: it outlives the variable that it came from, and any thread may have it.

use crate::common;

use std::thread;
use std::time::Duration;

use common::Dir;
use halite::{
    CallCause, Function, NodeId, NodeStatus, Permissions, Placement, ServeOptions, blocking, typed,
};

/// Long enough for any call that is answered at all.
const PATIENCE: Duration = Duration::from_secs(60);
const ECHO: Function = Function(7);
const THERE: NodeId = NodeId(1);

/// Compiles only for what can be stored by those who know no lifetimes, and given away to other threads.
fn is_owned<T: Send + 'static>() {}

#[test]
fn whatever_outlives_an_await_is_owned() {
    is_owned::<halite::PendingCall>();
    is_owned::<halite::Answer>();
    is_owned::<halite::Call>();
    is_owned::<halite::Guard>();
    is_owned::<halite::Mailbox>();
    is_owned::<halite::Message>();
    is_owned::<halite::Notification>();
    is_owned::<halite::Server>();
    is_owned::<halite::Session>();
    is_owned::<halite::Watch>();
    is_owned::<blocking::Guard>();
    is_owned::<blocking::Mailbox>();
    is_owned::<blocking::PendingCall>();
    is_owned::<blocking::Server>();
    is_owned::<blocking::Session>();
    is_owned::<blocking::Watch>();
    is_owned::<typed::Call<String, u32>>();
    is_owned::<typed::Server<String, u32>>();
    is_owned::<typed::blocking::Server<String, u32>>();
    is_owned::<halite::CallError>();
    is_owned::<halite::LockError>();
}

/// A call that no session is left of, but for what the call keeps.
fn post_and_forget_the_session(node: &halite::Node, input: &[u8]) -> blocking::PendingCall {
    let session = node.blocking_session();
    session.post_call(THERE, ECHO, input, 64, PATIENCE).unwrap()
}

#[test]
fn a_pending_call_is_answered_after_the_variable_of_its_session_is_gone() {
    let dir = Dir::new();
    for (first, second) in [(dir.join(0), dir.join(1)), (dir.join_posted(2), dir.join_posted(3))] {
        let server = second.blocking_session().serve(ECHO, ServeOptions::default()).unwrap();
        let post = |input: &[u8]| {
            let session = first.blocking_session();
            session.post_call(second.id(), ECHO, input, 64, PATIENCE).unwrap()
        };
        let (one, two, three) = (post(b"one"), post(b"two"), post(b"three"));
        for _ in 0..3 {
            let call = server.recv().unwrap();
            let output = call.input().to_ascii_uppercase();
            call.reply(&output).unwrap();
        }
        assert_eq!(two.answer().unwrap(), b"TWO");
        let lent = one.lend_answer().unwrap();
        let mut into = [0; 8];
        assert_eq!(three.answer_into(&mut into), Ok(5));
        assert_eq!(&into[..5], b"THREE");
        assert_eq!(lent.to_vec(), b"ONE");
    }
}

#[test]
fn pending_calls_are_answered_to_whichever_thread_has_them() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    let server = second.blocking_session().serve(ECHO, ServeOptions::default()).unwrap();
    let inputs: Vec<_> = (0..40_u8).map(|number| [number; 8]).collect();
    let posted = first.blocking_session().post_calls(THERE, ECHO, &inputs, 64, PATIENCE);
    // Threads that nobody waits for within a scope: what they are given must live by itself.
    let waiting: Vec<_> =
        posted.into_iter().map(|call| thread::spawn(move || call.unwrap().answer().unwrap())).collect();
    for _ in 0..inputs.len() {
        let call = server.recv().unwrap();
        let output = call.input().iter().map(|byte| byte ^ 0xFF).collect::<Vec<u8>>();
        call.reply(&output).unwrap();
    }
    for (number, thread) in waiting.into_iter().enumerate() {
        assert_eq!(thread.join().unwrap(), [number as u8 ^ 0xFF; 8]);
    }
}

#[test]
fn tasks_keep_calls_beyond_their_sessions_too() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    let executor = first.blocking_session();
    let server = second.blocking_session().serve(ECHO, ServeOptions::default()).unwrap();
    let pending = executor.block_on(async {
        let session = first.session();
        session.post_call(THERE, ECHO, b"salt", 64, PATIENCE).await.unwrap()
    });
    // A future that owns its call is as free as that.
    let answer: Box<dyn Future<Output = _> + Send> = Box::new(pending.lend_answer());
    server.recv().unwrap().reply(b"water").unwrap();
    assert_eq!(executor.block_on(Box::into_pin(answer)).unwrap().to_vec(), b"water");
}

#[test]
fn a_pending_call_that_is_dropped_after_its_session_is_cancelled() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    let watcher = first.blocking_session();
    let server = second.blocking_session().serve(ECHO, ServeOptions::default()).unwrap();
    let under_way = || watcher.explain_peer(THERE).unwrap().calls_under_way;
    let pending = post_and_forget_the_session(&first, b"never answered");
    let call = server.recv().unwrap();
    assert_eq!(under_way(), 1);
    drop(pending);
    // The handler is told in a message of the caller's node, and that node of the end of the call in another.
    assert!((0..20_000).any(|_| {
        thread::yield_now();
        !call.is_wanted()
    }));
    assert!((0..20_000).any(|_| {
        thread::yield_now();
        under_way() == 0
    }));
}

#[test]
fn a_session_ends_when_the_last_call_that_it_posted_is_over() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    let watcher = first.blocking_session();
    let server = second.blocking_session().serve(ECHO, ServeOptions::default()).unwrap();
    let regions = || {
        let of_first = |status: &NodeStatus| (status.node == NodeId(0)).then_some(status.regions);
        watcher.status().unwrap().iter().find_map(of_first).unwrap()
    };
    let session = first.blocking_session();
    session.alloc(None, 64, Placement::Local, Permissions::empty()).unwrap();
    let pending = session.post_call(THERE, ECHO, b"salt", 64, PATIENCE).unwrap();
    drop(session);
    server.recv().unwrap().reply(b"water").unwrap();
    assert_eq!(regions(), 1, "a region without a name lives as long as the session that maps it");
    let answer = pending.lend_answer().unwrap();
    assert_eq!(regions(), 1, "an answer that is lent keeps it, too");
    drop(answer);
    assert!((0..1000).any(|_| regions() == 0), "with that it has ended");
}

#[test]
fn a_pending_call_outlives_even_its_node() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    let server = first.blocking_session().serve(ECHO, ServeOptions::default()).unwrap();
    let (waits, lent) = {
        let session = second.blocking_session();
        let post = || session.post_call(NodeId(0), ECHO, b"", 64, PATIENCE).unwrap();
        let (answered, waits) = (post(), post());
        server.recv().unwrap().reply(b"salt").unwrap();
        (waits, answered.lend_answer().unwrap())
    };
    second.leave();
    assert_eq!(waits.answer().unwrap_err().cause, CallCause::NodeClosed);
    assert_eq!(lent.to_vec(), b"salt");
}
