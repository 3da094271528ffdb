//! Quotas of attached sessions. The sessions are those of another user, as which a thread of this process attaches.

use std::fmt::Debug;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use halite::blocking::Session;
use halite::{
    AccessCause, Amounts, AttachError, AttachMode, CallCause, Config, Function, Node, NodeId, Permissions,
    Placement, Quota, QuotaExceeded, RegionCause, ServeCause, ServeOptions,
};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

use crate::common::{Dir, until};

const LONG: Duration = Duration::from_secs(3600);
const HERE: NodeId = NodeId(0);
/// A function that is served, but not answered.
const SLOW: Function = Function(9);

fn quotas() -> Amounts {
    let counts = [
        (Quota::Sessions, 2),
        (Quota::Memory, 1 << 20),
        (Quota::Operations, 40),
        (Quota::Waits, 2),
        (Quota::Objects, 5),
        (Quota::Services, 1),
        (Quota::Regions, 2),
        (Quota::RegionBytes, 1 << 20),
    ];
    counts.into_iter().fold(Amounts::default(), |amounts, (quota, count)| amounts.with(quota, count))
}

/// Attaches as another user of this host: the kernel reports the user of the thread that connects.
fn attach_as_other(dir: &Path) -> Result<Session, AttachError> {
    let attach = || {
        let (root, other) = (Uid::ROOT, Uid::from_raw(65_534));
        set_thread_res_uid(root, other, root).expect("root may act as another user");
        Session::attach(dir)
    };
    std::thread::scope(|scope| scope.spawn(attach).join()).expect("the thread does not panic")
}

fn exceeded(quota: Quota, asked: u64) -> QuotaExceeded {
    QuotaExceeded { quota, asked, max: quotas().of(quota) }
}

/// Polls each of the futures, none of which ends.
fn poll<F: Future<Output: Debug>>(futures: &mut [Pin<Box<F>>]) {
    for future in futures {
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Pending), "{polled:?}");
    }
}

/// Returns a node that accepts sessions of other users; `None` if this process cannot act as another user.
fn open(dir: &Dir, quotas: Amounts) -> Option<Node> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can act as two users");
        return None;
    }
    let above = dir.path().parent().expect("a cluster lies in a folder");
    std::fs::set_permissions(above, std::fs::Permissions::from_mode(0o711)).unwrap();
    Some(Node::embedded(Config { attach: Some(AttachMode::Everyone), quotas, ..dir.config(0) }).unwrap())
}

#[test]
fn the_sessions_of_a_user_share_quotas() {
    let dir = Dir::new();
    let Some(node) = open(&dir, quotas()) else { return };
    let used = |quota: Quota| {
        let principals = node.blocking_session().principals().unwrap();
        principals.iter().find(|of| of.principal == "nobody").map_or(0, |of| of.used.of(quota))
    };
    let own = node.blocking_session();
    let _slow = own.serve(SLOW, ServeOptions::default()).unwrap();
    let word = own.alloc(Some("word"), 8, Placement::Local, Permissions::READ).unwrap();

    let session = attach_as_other(dir.path()).unwrap();
    let other = attach_as_other(dir.path()).unwrap();
    let refused = attach_as_other(dir.path()).unwrap_err();
    assert!(matches!(refused, AttachError::TooManySessions { max: 2, of_user_only: true, .. }), "{refused}");

    // Regions count for as long as they exist, also after their session has ended.
    let alloc =
        |name, len| session.alloc(name, len, Placement::Local, Permissions::empty()).map_err(|e| e.cause);
    let salt = alloc(Some("salt"), 512 << 10).unwrap();
    let too_long = RegionCause::Quota(exceeded(Quota::RegionBytes, 768 << 10));
    assert_eq!(alloc(None, 768 << 10), Err(too_long));
    let unnamed = alloc(None, 8).unwrap();
    assert_eq!(alloc(None, 8), Err(RegionCause::Quota(exceeded(Quota::Regions, 1))));
    session.free(unnamed).unwrap();
    alloc(None, 8).unwrap();

    // Handles and objects of both sessions.
    let mapped = other.map("word", Permissions::READ).unwrap();
    let watch = other.watch(mapped).unwrap();
    // A watch reserves room for its unread notifications.
    let has_watch = || used(Quota::Memory) >= 256 * 256;
    assert!(has_watch());
    let server = session.serve(Function(7), ServeOptions::default()).unwrap();
    let refused = session.map("word", Permissions::READ).unwrap_err().cause;
    assert_eq!(refused, RegionCause::Quota(exceeded(Quota::Objects, 1)));
    drop(watch);
    until(|| (!has_watch()).then_some(()));
    let refused = other.serve(Function(8), ServeOptions::default()).unwrap_err().cause;
    assert_eq!(refused, ServeCause::Quota(exceeded(Quota::Services, 1)));

    // Operations under way: waits for a word, calls, and the memory of their inputs.
    let wait = || Box::pin(other.as_async().wait_until(mapped, 0, |word| word != 0));
    let mut waits = [wait(), wait()];
    until(|| {
        poll(&mut waits);
        (used(Quota::Waits) == 2).then_some(())
    });
    let third = other.wait_until(mapped, 0, |word| word != 0).unwrap_err().cause;
    assert_eq!(third, AccessCause::Quota(exceeded(Quota::Waits, 1)));
    let input = vec![0; 270 << 10];
    let call = |input: &[u8]| session.post_call(HERE, SLOW, input, 8, LONG).unwrap();
    let long: Vec<_> = (0..3).map(|_| call(&input)).collect();
    let fourth = session.call(HERE, SLOW, &input, LONG).unwrap_err();
    assert!(matches!(fourth.cause, CallCause::Quota(QuotaExceeded { quota: Quota::Memory, .. })), "{fourth}");
    assert!(!fourth.may_have_run);
    let short: Vec<_> = (0..35).map(|_| call(b"")).collect();
    let last = session.call(HERE, SLOW, b"", LONG).unwrap_err().cause;
    assert_eq!(last, CallCause::Quota(exceeded(Quota::Operations, 1)));
    // Each operation takes memory of the node, also without an input.
    let (inputs, operations) = (3 * input.len() as u64, 40 * 4608);
    assert!(used(Quota::Memory) >= inputs + operations, "{}", used(Quota::Memory));
    // A session may always do a few operations, and free what it holds.
    assert_eq!(other.len(mapped).unwrap(), 8);
    session.unmap(salt).unwrap();

    // The user of the node has no quotas, and the other user is as before once its clients have ended.
    let sessions: Vec<Session> = (0..4).map(|_| Session::attach(dir.path()).unwrap()).collect();
    assert_eq!(sessions[3].map("word", Permissions::READ).map(|_| own.len(word).unwrap()), Ok(8));
    // Shared memory takes more than the quota of the other user.
    let reason = "2097152 bytes, and the principal's quota `memory` of 1048576 bytes has too little room";
    for (session, way) in [(&sessions[3], "memory shared with node 0"), (&other, reason)] {
        let explained = session.explain_peer(HERE).unwrap();
        assert!(explained.requests_by.as_ref().is_some_and(|by| by.contains(way)), "{explained}");
        let of_region = session.explain(session.map("word", Permissions::READ).unwrap()).unwrap();
        assert_eq!(of_region.requests_by, explained.requests_by);
    }
    for of in own.sessions().unwrap() {
        let is_refused = of.socket_reason.as_ref().is_some_and(|told| told.contains(reason));
        assert_eq!(is_refused, of.principal == "nobody", "{of:?}");
    }
    drop((waits, long, short, server));
    drop((session, other));
    until(|| {
        let busy = [Quota::Sessions, Quota::Memory, Quota::Operations, Quota::Waits, Quota::Objects];
        busy.into_iter().all(|quota| used(quota) == 0).then_some(())
    });
    until(|| (used(Quota::Regions) == 1).then_some(()));
    attach_as_other(dir.path()).unwrap();
}

#[test]
fn quotas_hold_for_requests_through_shared_memory() {
    let dir = Dir::new();
    let ring = 2 << 20;
    let quotas = Amounts::UNLIMITED.with(Quota::Memory, ring + (320 << 10)).with(Quota::Operations, 17);
    let Some(node) = open(&dir, quotas) else { return };
    let own = node.blocking_session();
    let _slow = own.serve(SLOW, ServeOptions::default()).unwrap();
    let session = attach_as_other(dir.path()).unwrap();
    let by = session.explain_peer(HERE).unwrap().requests_by;
    assert_eq!(by.as_deref(), Some("memory shared with node 0"));
    assert_eq!(own.sessions().unwrap()[0].socket_reason, None);

    let input = vec![7; 60 << 10];
    let call = |input: &[u8]| session.post_call(HERE, SLOW, input, 8, LONG).unwrap();
    let refused = |input: &[u8]| session.call(HERE, SLOW, input, Duration::from_secs(10)).unwrap_err().cause;
    let long: Vec<_> = (0..4).map(|_| call(&input)).collect();
    let fifth = refused(&input);
    assert!(matches!(fifth, CallCause::Quota(QuotaExceeded { quota: Quota::Memory, .. })), "{fifth:?}");
    let short: Vec<_> = (0..13).map(|_| call(b"")).collect();
    let max = QuotaExceeded { quota: Quota::Operations, asked: 1, max: 17 };
    assert_eq!(refused(b""), CallCause::Quota(max));
    drop((long, short));
}

#[test]
fn rights_hold_for_calls_between_attached_sessions() {
    let dir = Dir::new();
    let Some(_node) = open(&dir, Amounts::UNLIMITED) else { return };
    let [caller, serving] = [0, 1].map(|_| Session::attach(dir.path()).unwrap());
    let stranger = attach_as_other(dir.path()).unwrap();
    let options = ServeOptions { callers: Some(vec!["pepper".to_owned()]), ..ServeOptions::default() };
    let server = serving.serve(SLOW, options).unwrap();
    std::thread::scope(|scope| {
        let handler = scope.spawn(|| {
            let mut call = server.recv();
            while let Ok(held) = call {
                call = server.reply_and_recv(held, b"salt");
            }
        });
        // After an answer, the next receive waits.
        let call = |from: &Session| from.call(HERE, SLOW, b"", LONG).map_err(|error| error.cause);
        let answers = [0; 3].map(|_| (call(&caller), call(&stranger)));
        server.close();
        handler.join().unwrap();
        for answer in answers {
            assert_eq!(answer, (Ok(b"salt".to_vec()), Err(CallCause::PermissionDenied)));
        }
    });
}

#[test]
fn buffers_count_in_the_quota_of_memory() {
    let dir = Dir::new();
    let ring = 2 << 20;
    let Some(node) = open(&dir, Amounts::UNLIMITED.with(Quota::Memory, ring + (512 << 10))) else { return };
    let own = node.blocking_session();
    let used = || {
        let principals = own.principals().unwrap();
        principals.iter().find(|of| of.principal == "nobody").map_or(0, |of| of.used.of(Quota::Memory))
    };
    let session = attach_as_other(dir.path()).unwrap();
    let buffer = session.buffer(300 << 10).unwrap();
    let refused = session.buffer(300 << 10).unwrap_err();
    let QuotaExceeded { quota, asked, .. } = match refused.cause {
        RegionCause::Quota(exceeded) => exceeded,
        other => panic!("{other}"),
    };
    assert_eq!(quota, Quota::Memory);
    assert!((300 << 10..=310 << 10).contains(&asked), "{asked}");
    assert!(session.buffer(usize::MAX).is_err());
    drop(buffer);
    let small: Vec<_> = (0..16).map(|_| session.buffer(100).unwrap()).collect();
    let refused = session.buffer(100).unwrap_err().to_string();
    assert!(refused.contains("already has 16 buffers"), "{refused}");
    drop(small);
    session.buffer(300 << 10).unwrap();

    // The future of a request may be dropped; the buffer is then returned.
    for _ in 0..20 {
        let mut asked = Box::pin(session.as_async().buffer(300 << 10));
        let _ = asked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    let kept = until(|| session.buffer(300 << 10).ok());
    // A buffer keeps its session.
    drop(session);
    assert!(used() > ring + (300 << 10));
    drop(kept);
    until(|| (used() == 0).then_some(()));
}
