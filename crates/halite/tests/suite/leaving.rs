//! Sessions of a node that leaves or has left: each operation returns an error that says so, and none hangs.

use crate::common;

use std::fmt::Debug;
use std::io::{IoSlice, IoSliceMut};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::{Dir, Process, until};
use halite::blocking::{self, Mailbox, Server, Watch};
use halite::{
    Driven, Function, Guard, Lh, NodeId, Permissions, Placement, Port, ReadOp, ServeOptions, Step, Who,
    WriteOp,
};

const ALL: Permissions = Permissions::all();
const LONG: Duration = Duration::from_secs(3600);
const HERE: NodeId = NodeId(0);

/// A session, and the objects that it created before its node began to leave.
struct SessionObjects {
    session: blocking::Session,
    lh: Lh,
    other: Lh,
    server: Server,
    mailbox: Mailbox,
    watch: Watch,
    guards: Vec<Guard>,
}

impl SessionObjects {
    fn of(node: &Driven) -> SessionObjects {
        let session = node.session().blocking();
        let lh = session.alloc(Some("salt"), 4096, Placement::Local, ALL).unwrap();
        let other = session.alloc(Some("pepper"), 4096, Placement::Local, ALL).unwrap();
        let server = session.serve(Function(7), ServeOptions::default()).unwrap();
        let mailbox = session.open_port(Port(7), ServeOptions::default()).unwrap();
        let watch = session.watch(lh).unwrap();
        // Known locks and barriers are not looked up again.
        let names = ["till", "kept"];
        let guards = names.map(|name| session.block_on(session.as_async().lock(name)).unwrap());
        assert_eq!(session.barrier("gate", 1, LONG), Ok(1));
        SessionObjects { session, lh, other, server, mailbox, watch, guards: guards.into() }
    }
}

fn result_text<T, E: Debug>(result: Result<T, E>) -> String {
    match result {
        Ok(_) => "done".into(),
        Err(error) => format!("{error:?}"),
    }
}

fn first<T>(results: Vec<T>) -> T {
    results.into_iter().next().expect("one result for each")
}

/// Runs each operation of a session through the blocking interface, and as a future where the two differ.
fn operations(held: &mut SessionObjects) -> Vec<(&'static str, String)> {
    let SessionObjects { session: s, lh, other, watch, guards, .. } = held;
    let (lh, other, mut bytes, mut answer) = (*lh, *other, [0; 8], [0; 8]);
    let (a, everyone) = (s.as_async().clone(), || Who::Everyone);
    vec![
        ("alloc", result_text(s.alloc(None, 64, Placement::Local, ALL))),
        ("alloc with a name", result_text(s.alloc(Some("new"), 64, Placement::Anywhere, ALL))),
        ("map", result_text(s.map("salt", ALL))),
        ("grant", result_text(s.grant(lh, everyone(), ALL))),
        ("revoke", result_text(s.revoke(lh, everyone(), ALL))),
        ("add_master", result_text(s.add_master(lh, "ada"))),
        ("seal", result_text(s.seal(lh))),
        ("move_to", result_text(s.move_to(lh, HERE))),
        ("set_name", result_text(s.set_name(lh, "sugar"))),
        ("free", result_text(s.free(lh))),
        ("unmap", result_text(s.unmap(lh))),
        ("stat", result_text(s.stat("salt"))),
        ("stat_handle", result_text(s.stat_handle(lh))),
        ("list", result_text(s.list())),
        ("list_lost", result_text(s.list_lost())),
        ("forget_name", result_text(s.forget_name("salt"))),
        ("forget_node", result_text(s.forget_node(NodeId(1)))),
        ("status", result_text(s.status())),
        ("explain", result_text(s.explain(lh))),
        ("explain_peer", result_text(s.explain_peer(HERE))),
        ("len", result_text(s.len(lh))),
        ("read", result_text(s.read(lh, 0, &mut bytes))),
        ("read, async", result_text(s.block_on(a.read(lh, 0, &mut bytes)))),
        ("write", result_text(s.write(lh, 0, &bytes))),
        ("write, async", result_text(s.block_on(a.write(lh, 0, &bytes)))),
        ("read_vectored", result_text(s.read_vectored(lh, 0, &mut [IoSliceMut::new(&mut bytes)]))),
        ("write_vectored", result_text(s.write_vectored(lh, 0, &[IoSlice::new(&answer)]))),
        ("read_batch", result_text(s.read_batch(&mut [ReadOp { lh, offset: 0, into: &mut bytes }]))),
        ("write_batch", result_text(s.write_batch(&[WriteOp { lh, offset: 0, from: &answer }]))),
        ("read_owned", result_text(s.read_owned(lh, 0, vec![0; 8]).1)),
        ("write_owned", result_text(s.write_owned(lh, 0, vec![0; 8]).1)),
        ("fill", result_text(s.fill(lh, 0, 8, 1))),
        ("fill, async", result_text(s.block_on(a.fill(lh, 0, 8, 1)))),
        ("copy", result_text(s.copy(lh, 0, other, 0, 8))),
        ("copy, async", result_text(s.block_on(a.copy(lh, 0, other, 0, 8)))),
        ("fetch_add", result_text(s.fetch_add(lh, 0, 1))),
        ("fetch_add, async", result_text(s.block_on(a.fetch_add(lh, 0, 1)))),
        ("compare_swap", result_text(s.compare_swap(lh, 0, 0, 1))),
        ("write_notify", result_text(s.write_notify(lh, 0, &answer, 1))),
        ("watch", result_text(s.watch(other))),
        ("watch.recv", result_text(watch.recv())),
        ("watch.try_recv", result_text(watch.try_recv())),
        ("serve", result_text(s.serve(Function(8), ServeOptions::default()))),
        ("call", result_text(s.call(HERE, Function(7), b"", LONG))),
        ("call, async", result_text(s.block_on(a.call(HERE, Function(7), b"", LONG)))),
        ("call_into", result_text(s.call_into(HERE, Function(7), b"", &mut answer, LONG))),
        ("post_call", result_text(s.post_call(HERE, Function(7), b"", 8, LONG))),
        ("post_calls", result_text(first(s.post_calls(HERE, Function(7), &[b""], 8, LONG)))),
        ("call_many", result_text(first(s.call_many(&[HERE], Function(7), b"", LONG)))),
        ("open_port", result_text(s.open_port(Port(8), ServeOptions::default()))),
        ("send", result_text(s.send(HERE, Port(7), b""))),
        ("try_send", result_text(s.try_send(HERE, Port(7), b""))),
        ("lock", result_text(s.lock("new"))),
        ("lock a held lock", result_text(s.lock("kept"))),
        ("try_lock", result_text(s.try_lock("new"))),
        ("lock_within", result_text(s.lock_within("new", LONG))),
        ("unlock", result_text(s.unlock("kept"))),
        ("guard.unlock", result_text(s.block_on(guards.remove(0).unlock()))),
        ("create_lock", result_text(s.create_lock("new", ALL))),
        ("grant_lock", result_text(s.grant_lock("till", everyone(), ALL))),
        ("revoke_lock", result_text(s.revoke_lock("till", everyone(), ALL))),
        ("free_lock", result_text(s.free_lock("till"))),
        ("barrier", result_text(s.barrier("gate", 2, LONG))),
        ("new barrier", result_text(s.barrier("new", 2, LONG))),
        ("create_barrier", result_text(s.create_barrier("newer", ALL))),
        ("grant_barrier", result_text(s.grant_barrier("gate", everyone(), ALL))),
        ("revoke_barrier", result_text(s.revoke_barrier("gate", everyone(), ALL))),
        ("free_barrier", result_text(s.free_barrier("gate"))),
    ]
}

/// Checks that a waiting receiver gets messages that have arrived, until the node has left.
fn receive_operations(held: &SessionObjects) -> Vec<(&'static str, String)> {
    let SessionObjects { server, mailbox, .. } = held;
    vec![
        ("server.recv", result_text(server.recv())),
        ("server.try_recv", result_text(server.try_recv())),
        ("server.recv_many", result_text(server.recv_many(4))),
        ("mailbox.recv", result_text(mailbox.recv())),
        ("mailbox.try_recv", result_text(mailbox.try_recv())),
    ]
}

fn check(answers: Vec<(&str, String)>, state: &str) {
    let mut wrong = Vec::new();
    for (operation, answer) in answers {
        if !answer.contains("NodeClosed") {
            wrong.push(format!("{operation} at a node that {state}: {answer}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn node(dir: &Dir) -> Driven {
    dir.driven(Process::begin())
}

#[test]
fn operations_fail_while_and_after_leaving() {
    let dir = Dir::new();
    let node = node(&dir);
    let mut held = SessionObjects::of(&node);
    node.begin_to_leave();
    check(operations(&mut held), "leaves");
    until(|| (node.step() == Step::Left).then_some(()));
    check(operations(&mut held), "has left");
    check(receive_operations(&held), "has left");
}

/// The name of an operation that waits at a node, and its future, which the test polls.
struct Waiting<'s>(&'static str, Pin<Box<dyn Future<Output = String> + 's>>);

impl<'s> Waiting<'s> {
    /// Creates the future, and drives the node until it has handled the request.
    fn of<T, E: Debug>(
        node: &Driven,
        operation: &'static str,
        future: impl Future<Output = Result<T, E>> + 's,
    ) -> Waiting<'s> {
        let mut waiting = Waiting(operation, Box::pin(async { result_text(future.await) }));
        for _ in 0..16 {
            assert_eq!(waiting.poll(), Poll::Pending, "{operation}");
            node.step();
        }
        waiting
    }

    fn poll(&mut self) -> Poll<String> {
        self.1.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }
}

#[test]
fn a_wait_fails_when_its_node_leaves() {
    let dir = Dir::new();
    let node = node(&dir);
    let held = SessionObjects::of(&node);
    let (a, other) = (node.session(), node.session());
    let quiet = a.serve(Function(8), ServeOptions::default()).unwrap();
    let waiting = vec![
        Waiting::of(&node, "lock", a.lock("kept")),
        Waiting::of(&node, "lock_within", other.lock_within("kept", LONG)),
        Waiting::of(&node, "barrier", a.barrier("gate", 2, LONG)),
        Waiting::of(&node, "call", a.call(HERE, Function(7), b"", LONG)),
        Waiting::of(&node, "watch.recv", held.watch.as_async().recv()),
        Waiting::of(&node, "server.recv", quiet.recv()),
        Waiting::of(&node, "mailbox.recv", held.mailbox.as_async().recv()),
    ];
    node.begin_to_leave();
    until(|| (node.step() == Step::Left).then_some(()));
    let answers = waiting.into_iter().map(|mut waiting| match waiting.poll() {
        Poll::Ready(answer) => (waiting.0, answer),
        Poll::Pending => (waiting.0, "waits".to_owned()),
    });
    check(answers.collect(), "has left");
}
