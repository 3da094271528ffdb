//! A forked child that holds its parent's node.

use crate::common;

use std::cell::RefCell;
use std::time::Duration;

use common::Dir;
use halite::{
    AccessCause, CallCause, Config, Function, LockCause, Node, NodeId, NodeState, Permissions, Placement,
    Port, Provider, RegionCause, SendCause, ServeCause, ServeOptions,
};
use halite_mem::fork::run_in_fork;

/// Timeout of calls; an answered call takes much less.
const TIMEOUT: Duration = Duration::from_secs(60);
const ECHO: Function = Function(7);
const INBOX: Port = Port(7);
const RIGHTS: Permissions = Permissions::READ.union(Permissions::WRITE).union(Permissions::ATOMIC);

#[test]
fn forks_cannot_use_or_harm_a_node() {
    for provider in [Provider::Shm, Provider::Roce] {
        let dir = Dir::new();
        let join = |node| {
            let providers = vec![provider];
            dir.try_join(Config { providers, ..dir.config(node) }).expect("the node joins")
        };
        let (first, second) = (RefCell::new(Some(join(0))), join(1));
        let (here, there) = (first.borrow().as_ref().unwrap().blocking_session(), second.blocking_session());
        let region = here.alloc(Some("salt"), 1 << 20, Placement::On(NodeId(1)), RIGHTS).unwrap();
        here.write(region, 0, b"parent's").unwrap();
        let guard = RefCell::new(Some(here.lock("till").unwrap()));
        let server = RefCell::new(Some(there.serve(ECHO, ServeOptions::default()).unwrap()));
        let mailbox = RefCell::new(Some(here.open_port(INBOX, ServeOptions::default()).unwrap()));
        let pending = RefCell::new(Some(here.post_call(NodeId(1), ECHO, b"early", 64, TIMEOUT).unwrap()));
        let posted = RefCell::new(Some(here.as_async().post_write(region, 64, vec![1; 100_000])));

        let ended = run_in_fork(|| {
            let mut wrong = 0;
            let mut check = |number, is_right: bool| {
                if !is_right && wrong == 0 {
                    wrong = number;
                }
            };
            let forked = RegionCause::Forked;
            check(1, here.write(region, 0, b"child's").is_err_and(|e| e.cause == AccessCause::Forked));
            check(2, here.read(region, 0, &mut [0; 8]).is_err_and(|e| e.cause == AccessCause::Forked));
            check(3, here.fetch_add(region, 0, 1).is_err_and(|e| e.cause == AccessCause::Forked));
            check(4, here.fill(region, 0, 8, 1).is_err_and(|e| e.cause == AccessCause::Forked));
            check(5, here.stat("salt").is_err_and(|e| e.cause == forked));
            check(6, here.free(region).is_err_and(|e| e.cause == forked));
            check(7, here.call(NodeId(1), ECHO, b"", TIMEOUT).is_err_and(|e| e.cause == CallCause::Forked));
            check(8, here.send(NodeId(0), INBOX, b"").is_err_and(|e| e.cause == SendCause::Forked));
            check(9, here.lock("other").is_err_and(|e| e.cause == LockCause::Region(RegionCause::Forked)));
            check(
                10,
                here.serve(Function(8), ServeOptions::default())
                    .is_err_and(|e| e.cause == ServeCause::Forked),
            );
            check(
                11,
                mailbox.borrow().as_ref().unwrap().recv().is_err_and(|e| e.cause == ServeCause::Forked),
            );
            check(12, server.borrow().as_ref().unwrap().recv().is_err_and(|e| e.cause == ServeCause::Forked));
            check(13, pending.take().unwrap().answer().is_err_and(|e| e.cause == CallCause::Forked));
            let waited = posted.take().unwrap().wait().1;
            check(14, waited.is_ok() || waited.is_err_and(|e| e.cause == AccessCause::Forked));
            let made = first.borrow().as_ref().unwrap().blocking_session();
            check(15, made.stat("salt").is_err_and(|e| e.cause == forked));
            drop((made, guard.take(), server.take(), mailbox.take(), here.clone(), first.take()));
            wrong
        });
        assert_eq!(
            ended.unwrap(),
            Some(0),
            "the status is the number of the first failed check, over {provider:?}"
        );

        here.write(region, 0, b"parent's").unwrap();
        let mut bytes = [0; 8];
        there.read(there.map("salt", RIGHTS).unwrap(), 0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"parent's", "over {provider:?}");
        posted.take().unwrap().wait().1.unwrap();
        guard.take().unwrap().check().unwrap();
        let call = server.borrow().as_ref().unwrap().recv().unwrap();
        assert_eq!(call.input(), b"early");
        call.reply(b"late").unwrap();
        assert_eq!(pending.take().unwrap().answer().unwrap(), b"late");
        there.send(NodeId(0), INBOX, b"mail").unwrap();
        assert_eq!(mailbox.take().unwrap().recv().unwrap().bytes, b"mail");
        let states = there.status().unwrap();
        assert!(states.iter().all(|status| status.state == NodeState::Alive), "{states:?}");
        drop(server.take());
    }
}

#[test]
fn a_fork_may_join_as_a_node_of_its_own() {
    let dir = Dir::new();
    let first = dir.join(0);
    let here = first.blocking_session();
    let region = here.alloc(Some("salt"), 8, Placement::Local, RIGHTS).unwrap();
    let ended = run_in_fork(|| {
        let Ok(node) = Node::embedded(dir.config(1)) else { return 1 };
        let session = node.blocking_session();
        let Ok(region) = session.map("salt", RIGHTS) else { return 2 };
        session.write(region, 0, b"child's.").map_or(3, |()| 0)
    });
    assert_eq!(ended.unwrap(), Some(0));
    let mut bytes = [0; 8];
    here.read(region, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"child's.");
}
