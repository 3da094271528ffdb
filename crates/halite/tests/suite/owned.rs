//! Values that a session returns own everything that they need: they outlive the session's variable, and can be sent
//! to other threads.

use crate::common;

use std::thread;
use std::time::Duration;

use common::Dir;
use halite::{CallCause, Function, NodeId, Permissions, Placement, ServeOptions, blocking, typed};

/// Timeout of calls; an answered call takes much less.
const TIMEOUT: Duration = Duration::from_secs(60);
const ECHO: Function = Function(7);
const THERE: NodeId = NodeId(1);

/// Compiles only for types without lifetimes that can be sent to other threads.
fn assert_owned<T: Send + 'static>() {}

#[test]
fn values_that_outlive_an_await_are_owned() {
    assert_owned::<halite::PendingCall>();
    assert_owned::<halite::Answer>();
    assert_owned::<halite::Call>();
    assert_owned::<halite::Guard>();
    assert_owned::<halite::Mailbox>();
    assert_owned::<halite::Message>();
    assert_owned::<halite::Notification>();
    assert_owned::<halite::Server>();
    assert_owned::<halite::Session>();
    assert_owned::<halite::Watch>();
    assert_owned::<blocking::Guard>();
    assert_owned::<blocking::Mailbox>();
    assert_owned::<blocking::PendingCall>();
    assert_owned::<blocking::Server>();
    assert_owned::<blocking::Session>();
    assert_owned::<blocking::Watch>();
    assert_owned::<typed::Call<String, u32>>();
    assert_owned::<typed::Server<String, u32>>();
    assert_owned::<typed::blocking::Server<String, u32>>();
    assert_owned::<halite::CallError>();
    assert_owned::<halite::LockError>();
}

#[test]
fn futures_can_be_moved_between_threads() {
    fn check_send<T: Send>(_: &T) {}
    let dir = Dir::new();
    let node = dir.join(0);
    let session = node.session();
    check_send(&session.alloc(None, 64, Placement::Local, Permissions::READ));
    check_send(&session.list());
    let lh = session.blocking().alloc(None, 64, Placement::Local, Permissions::READ).unwrap();
    check_send(&session.read(lh, 0, &mut [0; 4]));
    check_send(&session.write_batch(&[]));
}

/// Posts a call and drops the session. The pending call keeps the session open.
fn post_then_drop_session(node: &halite::Node, input: &[u8]) -> blocking::PendingCall {
    let session = node.blocking_session();
    session.post_call(THERE, ECHO, input, 64, TIMEOUT).unwrap()
}

#[test]
fn a_dropped_pending_call_is_cancelled() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    let watcher = first.blocking_session();
    let server = second.blocking_session().serve(ECHO, ServeOptions::default()).unwrap();
    let under_way = || watcher.explain_peer(THERE).unwrap().calls_under_way;
    let pending = post_then_drop_session(&first, b"never answered");
    let call = server.recv().unwrap();
    assert_eq!(under_way(), 1);
    drop(pending);
    // The handler learns of the cancellation by a message of the caller's node; that node learns of the end of the
    // call by another.
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
fn a_pending_call_outlives_its_node() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    let server = first.blocking_session().serve(ECHO, ServeOptions::default()).unwrap();
    let (waits, lent) = {
        let session = second.blocking_session();
        let post = || session.post_call(NodeId(0), ECHO, b"", 64, TIMEOUT).unwrap();
        let (answered, waits) = (post(), post());
        server.recv().unwrap().reply(b"salt").unwrap();
        (waits, answered.lend_answer().unwrap())
    };
    second.leave();
    assert_eq!(waits.answer().unwrap_err().cause, CallCause::NodeClosed(NodeId(1)));
    assert_eq!(lent.to_vec(), b"salt");
}
