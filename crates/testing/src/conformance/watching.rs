//! Watches: a write with a notification notifies all watchers of the region, after its bytes have landed.

use std::pin::pin;

use halite::{
    AccessCause, NOTIFICATIONS_MAX, NodeId, Notification, NotifyCause, Permissions, Port, RegionCause,
    SendCause, ServeCause, ServeOptions, Who,
};

use super::cluster::{Cluster, Harness, everyone, expect_long_pending, shared};
use super::refused;
use super::session::{Session, Watch};
use super::turns::{expect_pending, pause, poll_once, scope};

const READ_WRITE: Permissions = Permissions::READ.union(Permissions::WRITE);

fn notification(offset: u64, len: u64, value: u64, node: u32) -> Notification {
    Notification { offset, len, value, from: "ada".to_owned(), node: NodeId(node) }
}

/// Receives `count` notifications, with values from `first` on.
fn expect_values(watch: &Watch, first: u64, count: u64) {
    for value in first..first + count {
        assert_eq!(watch.recv().expect("the region is watched").value, value);
    }
}

/// Expects that each word is readable when its notification arrives.
pub fn notifications_arrive_in_order_after_their_bytes(h: &dyn Harness) {
    const WORDS: u64 = 1000;
    let cluster = Cluster::new(h, 3);
    shared(&cluster.session(0), "board", 8 * WORDS);
    let (reader, writer) = (cluster.session(1), cluster.session(2));
    let board = reader.map("board", READ_WRITE).unwrap();
    let watch = reader.watch(board).unwrap();
    scope(|scope| {
        scope.spawn(|| {
            let board = writer.map("board", READ_WRITE).unwrap();
            for value in 0..WORDS {
                let word = (value + 1).to_le_bytes();
                writer.write_notify(board, 8 * value, &word, value).unwrap();
            }
        });
        for value in 0..WORDS {
            assert_eq!(watch.recv(), Ok(notification(8 * value, 8, value, 2)));
            let mut word = [0; 8];
            reader.read(board, 8 * value, &mut word).unwrap();
            assert_eq!(u64::from_le_bytes(word), value + 1);
        }
    });
    assert_eq!(watch.try_recv(), Ok(None));
}

/// Expects that each write causes one notification per watch, also for a watch of the writer and for two watches of one
/// session, and that a write to a region without a watch causes none.
pub fn every_watcher_is_notified_once(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let sessions = [0, 1, 2, 1].map(|index| cluster.session(index));
    let board = shared(&sessions[0], "board", 64);
    let other = shared(&sessions[0], "other", 64);
    sessions[0].write_notify(board, 0, b"unseen", 1).unwrap();
    let mut watches = vec![sessions[0].watch(board).unwrap()];
    for session in &sessions {
        let board = session.map("board", READ_WRITE).unwrap();
        watches.push(session.watch(board).unwrap());
    }
    sessions[0].write_notify(other, 0, b"elsewhere", 2).unwrap();
    for (index, session) in sessions.iter().enumerate() {
        let board = session.map("board", Permissions::WRITE).unwrap();
        session.write_notify(board, 1, &[], 10 + index as u64).unwrap();
    }
    for watch in watches {
        for (index, node) in [0, 1, 2, 1].into_iter().enumerate() {
            assert_eq!(watch.recv(), Ok(notification(1, 0, 10 + index as u64, node)));
        }
        assert_eq!(watch.try_recv(), Ok(None));
    }
}

/// Expects that a slow watcher delays the writer but no other watcher, and that no notification is lost.
pub fn a_slow_watcher_delays_only_the_writer(h: &dyn Harness) {
    const FULL: u64 = NOTIFICATIONS_MAX as u64;
    let cluster = Cluster::new(h, 3);
    let (slow, quick, writer) = (cluster.session(0), cluster.session(1), cluster.futures(2));
    let board = shared(&slow, "board", 8);
    let slow_watch = slow.watch(board).unwrap();
    let quick_watch = quick.watch(quick.map("board", Permissions::READ).unwrap()).unwrap();
    let blocking = Session::new(&writer);
    let board = blocking.map("board", READ_WRITE).unwrap();
    for value in 0..FULL {
        blocking.write_notify(board, 0, &[1], value).unwrap();
        assert_eq!(quick_watch.recv().unwrap().value, value);
    }
    let mut blocked = pin!(writer.write_notify(board, 0, &[2], FULL));
    while quick_watch.try_recv().unwrap().is_none() {
        expect_pending(&mut blocked);
        quick.status().unwrap();
    }
    expect_long_pending(&mut blocked, &quick, 100);
    expect_values(&slow_watch, 0, 1);
    assert_eq!(blocking.block_on(blocked), Ok(()));
    expect_values(&slow_watch, 1, FULL);
    assert_eq!(slow_watch.try_recv(), Ok(None));
}

/// Expects that a dropped watch blocks neither a writer that waits for the watch nor a later writer.
pub fn a_dropped_watch_delays_no_writer(h: &dyn Harness) {
    const FULL: u64 = NOTIFICATIONS_MAX as u64;
    let cluster = Cluster::new(h, 2);
    let (reader, writer) = (cluster.session(0), cluster.futures(1));
    let board = shared(&reader, "board", 8);
    let watch = reader.watch(board).unwrap();
    let blocking = Session::new(&writer);
    let board = blocking.map("board", READ_WRITE).unwrap();
    for value in 0..FULL {
        blocking.write_notify(board, 0, &[1], value).unwrap();
    }
    let mut blocked = pin!(writer.write_notify(board, 0, &[2], FULL));
    expect_long_pending(&mut blocked, &reader, 100);
    drop(watch);
    assert_eq!(blocking.block_on(blocked), Ok(()));
    for value in 0..2 * FULL {
        blocking.write_notify(board, 0, &[3], value).unwrap();
    }
}

/// Expects that a future of `watch` that is dropped, after any number of polls, leaves no queue that delays writers.
pub fn an_abandoned_watch_leaks_nothing(h: &dyn Harness) {
    const FULL: u64 = NOTIFICATIONS_MAX as u64;
    let cluster = Cluster::new(h, 2);
    let (reader, writer) = (cluster.futures(0), cluster.session(1));
    let board = shared(&writer, "board", 8);
    let seen = Session::new(&reader).map("board", Permissions::READ).unwrap();
    for polls in 1..20 {
        let mut watching = pin!(reader.watch(seen));
        for _ in 0..polls {
            if poll_once(&mut watching).is_ready() {
                break;
            }
            pause();
        }
    }
    for value in 0..2 * FULL {
        writer.write_notify(board, 0, &[1], value).unwrap();
    }
}

/// Expects that both the principal and the handle need the read permission to watch, and the write permission to
/// notify.
pub fn watches_and_notifications_need_permissions(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob"]);
    let (ada, bob) = (cluster.session(0), cluster.session(1));
    let board = shared(&ada, "board", 8);
    let writable = bob.map("board", Permissions::WRITE).unwrap();
    refused!(bob.watch(writable), RegionCause::PermissionDenied { missing: Permissions::READ });
    let readable = bob.map("board", Permissions::READ).unwrap();
    let result = bob.write_notify(readable, 0, &[1], 0);
    assert!(!result.as_ref().unwrap_err().is_written());
    let missing = Permissions::WRITE;
    let cause = AccessCause::PermissionDenied { missing };
    assert_eq!(result.unwrap_err().cause, NotifyCause::Write { cause, partly: false });
    let watch = ada.watch(board).unwrap();
    bob.write_notify(writable, 0, &[1], 9).unwrap();
    assert_eq!(watch.recv().unwrap().from, "bob");
    refused!(ada.watch(writable), RegionCause::ForeignHandle);
    refused!(
        ada.write_notify(board, 8, &[1], 0),
        NotifyCause::Write { cause: AccessCause::OutOfRange { .. }, .. }
    );
    assert_eq!(watch.try_recv(), Ok(None), "a failed write notified a watcher");
}

/// Expects that a watch continues while the region moves to a third node, and to the watcher's own node.
pub fn a_watch_survives_moves_of_its_region(h: &dyn Harness) {
    const ROUNDS: u64 = 60;
    let cluster = Cluster::new(h, 3);
    let (mover, reader, writer) = (cluster.session(0), cluster.session(1), cluster.session(2));
    let board = shared(&mover, "board", 300 << 10);
    let watch = reader.watch(reader.map("board", Permissions::READ).unwrap()).unwrap();
    scope(|scope| {
        scope.spawn(|| {
            for round in 0..12 {
                mover.move_to(board, NodeId(round % 3)).unwrap();
            }
        });
        scope.spawn(|| {
            let board = writer.map("board", READ_WRITE).unwrap();
            for value in 0..ROUNDS {
                writer.write_notify(board, 4096 * value, &[1; 100], value).unwrap();
            }
        });
        expect_values(&watch, 0, ROUNDS);
    });
    assert_eq!(watch.try_recv(), Ok(None));
}

/// Expects that a watch ends when its handle is unmapped or its region is freed. The watcher first receives all queued
/// notifications, and then an error, even if it is waiting.
pub fn a_watch_ends_with_its_handle(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let (owner, reader) = (cluster.session(0), cluster.session(1));
    let board = shared(&owner, "board", 8);
    let handles = [(); 2].map(|()| reader.map("board", Permissions::READ).unwrap());
    let [unmapped, freed] = handles.map(|lh| reader.watch(lh).unwrap());
    owner.write_notify(board, 0, &[1], 5).unwrap();
    reader.unmap(handles[0]).unwrap();
    expect_values(&unmapped, 5, 1);
    refused!(unmapped.recv(), RegionCause::Stale);
    expect_values(&freed, 5, 1);
    scope(|scope| {
        let waiting = scope.spawn(|| freed.recv());
        owner.free(board).unwrap();
        refused!(waiting.join(), RegionCause::Stale);
    });
    refused!(freed.try_recv(), RegionCause::Stale);
    refused!(reader.watch(handles[1]), RegionCause::Stale);
    drop((unmapped, freed));
    cluster.expect_empty();
}

/// Expects that a watch ends when the read permission is revoked, and that a new watch succeeds when the permission is
/// granted again.
pub fn a_watch_ends_with_the_read_permission(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob"]);
    let (ada, bob) = (cluster.session(0), cluster.session(1));
    let board = shared(&ada, "board", 8);
    let watch = bob.watch(bob.map("board", Permissions::READ).unwrap()).unwrap();
    scope(|scope| {
        let waiting = scope.spawn(|| watch.recv());
        ada.revoke(board, Who::Everyone, Permissions::READ).unwrap();
        refused!(waiting.join(), RegionCause::PermissionDenied { .. });
    });
    ada.write_notify(board, 0, &[1], 1).unwrap();
    refused!(watch.recv(), RegionCause::PermissionDenied { .. });
    ada.grant(board, Who::Everyone, everyone()).unwrap();
    let again = bob.watch(bob.map("board", Permissions::READ).unwrap()).unwrap();
    ada.write_notify(board, 0, &[1], 2).unwrap();
    expect_values(&again, 2, 1);
}

/// Expects that a writer does not wait for a watcher whose node has left.
pub fn a_watcher_that_left_delays_no_writer(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let (owner, stays) = (cluster.session(0), cluster.session(1));
    let board = shared(&owner, "board", 8);
    let watch = stays.watch(stays.map("board", Permissions::READ).unwrap()).unwrap();
    let leaves = cluster.session(2);
    let lost = leaves.watch(leaves.map("board", Permissions::READ).unwrap()).unwrap();
    owner.write_notify(board, 0, &[1], 0).unwrap();
    cluster.leave(2);
    for value in 1..=2 * NOTIFICATIONS_MAX as u64 {
        owner.write_notify(board, 0, &[1], value).unwrap();
        expect_values(&watch, value - 1, 1);
    }
    refused!(lost.recv(), RegionCause::NodeClosed(NodeId(2)));
}

/// Expects that a writer whose node leaves during a notification gets an error that says that the slow watcher may not
/// have been notified.
pub fn a_writer_whose_node_leaves_may_have_notified(h: &dyn Harness) {
    const FULL: u64 = NOTIFICATIONS_MAX as u64;
    let mut cluster = Cluster::new(h, 3);
    let (slow, quick, writer) = (cluster.session(0), cluster.session(1), cluster.futures(2));
    let board = shared(&slow, "board", 8);
    let _slow_watch = slow.watch(board).unwrap();
    let quick_watch = quick.watch(quick.map("board", Permissions::READ).unwrap()).unwrap();
    let blocking = Session::new(&writer);
    let board = blocking.map("board", READ_WRITE).unwrap();
    for value in 0..FULL {
        blocking.write_notify(board, 0, &[1], value).unwrap();
        assert_eq!(quick_watch.recv().unwrap().value, value);
    }
    let mut blocked = pin!(writer.write_notify(board, 0, &[2], FULL));
    while quick_watch.try_recv().unwrap().is_none() {
        expect_pending(&mut blocked);
        quick.status().unwrap();
    }
    cluster.leave(2);
    let error = blocking.block_on(blocked).unwrap_err();
    let (node, cause) = (NodeId(0), SendCause::NodeClosed(NodeId(2)));
    assert_eq!(error.cause, NotifyCause::Telling { node, cause, may_have_arrived: true });
    assert!(error.is_written() && error.to_string().contains("may not have been notified"), "{error}");
}

/// Expects that a watch ends when the home of its region leaves, because the bytes are lost.
pub fn a_watch_ends_with_its_home(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 2);
    let reader = cluster.session(0);
    shared(&cluster.session(1), "board", 8);
    let watch = reader.watch(reader.map("board", Permissions::READ).unwrap()).unwrap();
    scope(|scope| {
        let waiting = scope.spawn(|| watch.recv());
        cluster.leave(1);
        refused!(waiting.join(), RegionCause::PeerDown(NodeId(1)));
    });
}

/// Expects that sessions can neither open the ports of watches nor send to them.
pub fn ports_of_watches_are_reserved(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    refused!(session.open_port(Port::RESERVED_MIN, ServeOptions::default()), ServeCause::Reserved);
    refused!(session.send(NodeId(0), Port(u32::MAX), b"?"), SendCause::Reserved);
    refused!(session.try_send(NodeId(0), Port::RESERVED_MIN, b"?"), SendCause::Reserved);
    let last = Port(Port::RESERVED_MIN.0 - 1);
    session.open_port(last, ServeOptions::default()).unwrap();
}
