//! The end of a client's process frees everything that the client has.

use std::process::Command;
use std::time::Duration;

use halite::blocking::Session;
use halite::{
    Amounts, CallCause, Function, NodeId, Permissions, Placement, Port, Quota, SendCause, ServeOptions,
};

use rustix::process::Signal;

use crate::support::{Running, Scratch, eventually};

const LONG: Duration = Duration::from_secs(60);
/// Environment variable with the cluster directory of the client.
const CLUSTER: &str = "HALITE_TEST_CLIENT";

#[test]
fn a_killed_client_frees_everything_that_it_has() {
    let scratch = Scratch::new("everything");
    scratch.ok("up --nodes 1 --arena 64M --detach");
    let pid = scratch.pid(0);
    let session = Session::attach(scratch.cluster()).unwrap();
    session.alloc(Some("board"), 64, Placement::Local, Permissions::READ).unwrap();
    let used = || -> Amounts { session.principals().unwrap()[0].used };
    let state = || {
        let node = &scratch.nodes()[0];
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        (node["regions"].clone(), node["bytes_used"].clone(), node["mappings"].clone(), descriptors)
    };
    // Sessions of commands end a moment after their process.
    eventually(|| used().of(Quota::Sessions) == 1);
    let before = (used(), state());
    for _ in 0..3 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "attach_killed::holds_everything", "--ignored", "--nocapture"]);
        let mut client = Running::of({
            command.env(CLUSTER, scratch.cluster());
            command
        });
        while !client.line().contains("holds everything") {}
        let held = used();
        for (quota, more) in [(Quota::Sessions, 1), (Quota::Services, 2), (Quota::Waits, 1)] {
            assert!(held.of(quota) >= before.0.of(quota) + more, "{quota:?}: {held:?}");
        }
        // While the client is stopped, only those wait that want what it has.
        client.signal(Signal::STOP);
        let other = Session::attach(scratch.cluster()).unwrap();
        let board = other.map("board", Permissions::READ).unwrap();
        other.read(board, 0, &mut [0; 64]).unwrap();
        let rights = Permissions::READ | Permissions::WRITE;
        let own = other.alloc(None, 1 << 20, Placement::Local, rights).unwrap();
        other.write(own, 0, &[7; 1 << 20]).unwrap();
        drop(other.lock("desk").unwrap());
        other.free_lock("desk").unwrap();
        other.free(own).unwrap();
        drop(other);
        std::thread::scope(|scope| {
            let waiters = [0; 2]
                .map(|_| scope.spawn(|| Session::attach(scratch.cluster()).unwrap().lock("till").map(drop)));
            client.kill();
            waiters.into_iter().for_each(|waiter| waiter.join().unwrap().unwrap());
        });
        session.free_lock("till").unwrap();
        eventually(|| {
            let called = session.call(NodeId(0), Function(7), b"", LONG);
            called.is_err_and(|error| *error.cause() == CallCause::UnknownFunction)
        });
        let sent = session.send(NodeId(0), Port(7), b"").unwrap_err();
        assert_eq!(*sent.cause(), SendCause::UnknownPort);
        eventually(|| used() == before.0 && state() == before.1);
    }
    scratch.ok("down");
}

/// The client that the test kills.
#[test]
#[ignore = "the process of a_killed_client_frees_everything_that_it_has"]
fn holds_everything() {
    let Ok(cluster) = std::env::var(CLUSTER) else { return };
    let session = Session::attach(cluster).unwrap();
    let rights = Permissions::READ | Permissions::WRITE;
    let unnamed = session.alloc(None, 1 << 20, Placement::Local, rights).unwrap();
    let board = session.map("board", Permissions::READ).unwrap();
    let _held = (
        session.lock("till").unwrap(),
        session.open_port(Port(7), ServeOptions::default()).unwrap(),
        session.watch(board).unwrap(),
        session.buffer(1 << 16).unwrap(),
    );
    let server = session.serve(Function(7), ServeOptions::default()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| server.recv());
        scope.spawn(|| session.wait_until(unnamed, 0, |word| word != 0));
        let is_waiting = || session.principals().unwrap()[0].used.of(Quota::Waits) > 0;
        eventually(is_waiting);
        println!("holds everything");
    });
}
