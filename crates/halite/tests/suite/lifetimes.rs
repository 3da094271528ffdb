//! What the driver promises whatever its callers do: drop futures, forget sessions, mix handles up, leave early.

use crate::common;

use std::io::IoSlice;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use common::{Dir, until};
use halite::{
    AccessCause, LossCause, Lost, NodeId, Permissions, Placement, RegionCause, Session, Who, WriteOp,
};
use halite_fabric::Status;
use halite_fabric::fault::{Fault, FaultInjector, FaultPlan, Moment, Rule};
use halite_fabric::kind::OperationKind;

const ANYBODY: Permissions = Permissions::READ.union(Permissions::WRITE);
/// Turns a hang into a failure; no test is meant to come anywhere near.
const PATIENCE: Duration = Duration::from_secs(60);

/// Polls a future up to `polls` times, as often as it asks for it, and drops it.  Its output, if it came to that.
fn poll_then_drop<F: Future>(session: &Session, polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    let some_polls = std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    });
    session.blocking().block_on(some_polls)
}

/// Waits until nothing is left of any region that `session`'s node has made on node 0.
fn check_nothing_left(session: &Session) {
    let session = session.blocking();
    // What one node asks of another is done in order: when this is done, so is all that was asked before.
    let last = session.alloc(None, 64, Placement::On(NodeId(0)), ANYBODY).unwrap();
    session.free(last).unwrap();
    // Undoing takes some messages between the nodes.
    let is_clean = || {
        let nodes = session.status().unwrap();
        let is_empty = nodes.iter().all(|node| (node.bytes_used, node.regions, node.mappings) == (0, 0, 0));
        (is_empty && session.list().unwrap().is_empty()).then_some(())
    };
    until(is_clean);
}

#[test]
fn an_alloc_or_map_that_is_dropped_at_any_point_leaves_nothing_behind() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    let (here, there) = (first.session(), second.session());
    // The memory is on the other node, and so is the directory: neither can be done at the first poll.
    let on = Placement::On(NodeId(0));
    let mut ended = 0;
    for (round, polls) in [0, 1, 2, 3, 100].into_iter().cycle().take(50).enumerate() {
        let name = format!("dropped {round}");
        let alloc = there.alloc(Some(&name), 4096, on.clone(), ANYBODY);
        if let Some(taken) = poll_then_drop(&there, polls, alloc) {
            there.blocking().free(taken.unwrap()).unwrap();
            ended += 1;
        }
        let name = format!("kept {round}");
        let kept = here.blocking().alloc(Some(&name), 4096, on.clone(), ANYBODY).unwrap();
        if let Some(taken) = poll_then_drop(&there, polls, there.map(&name, ANYBODY)) {
            there.blocking().unmap(taken.unwrap()).unwrap();
        }
        here.blocking().free(kept).unwrap();
    }
    check_nothing_left(&there);
    assert!((10..50).contains(&ended), "some ended, and some were dropped under way: {ended}");
}

#[test]
fn a_session_that_goes_while_its_alloc_is_under_way_leaves_nothing_behind() {
    let dir = Dir::new();
    let (_first, second) = (dir.join(0), dir.join(1));
    for round in 0..20 {
        let there = second.session();
        let name = format!("orphan {round}");
        let alloc = there.alloc(Some(&name), 4096, Placement::On(NodeId(0)), ANYBODY);
        if let Some(taken) = poll_then_drop(&there, 1, alloc) {
            // The answer was quicker than the poll.
            there.blocking().free(taken.unwrap()).unwrap();
        }
    }
    check_nothing_left(&second.session());
}

#[test]
fn accesses_that_are_dropped_while_posted_neither_write_to_their_callers_nor_use_up_the_staging_memory() {
    let dir = Dir::new();
    let first = dir.join(0);
    // Completions of reads come late, so that futures are dropped before.
    let late = Rule::new(Moment::Post(OperationKind::Read), Fault::Delay { polls: 3 });
    let second = halite::Node::wrap(dir.config(1), |fabric| {
        Arc::new(FaultInjector::new(fabric, FaultPlan::new(1).rule(late)))
    });
    let second = second.unwrap();
    let here = first.blocking_session();
    let len = 1 << 20;
    let lh = here.alloc(Some("late"), len as u64, Placement::Local, ANYBODY).unwrap();
    here.write(lh, 0, &vec![3; len]).unwrap();
    let there = second.session();
    let theirs = there.blocking().map("late", ANYBODY).unwrap();
    // Many more than there are slots.
    for round in 0..500 {
        let mut bytes = vec![0; 16 << 10];
        let ended = poll_then_drop(&there, 1, there.read(theirs, 0, &mut bytes));
        assert!(ended.is_some() || bytes.iter().all(|byte| *byte == 0), "round {round}");
    }
    let mut bytes = vec![0; len];
    there.blocking().read(theirs, 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 3));
    drop(there);
    here.free(lh).unwrap();
    check_nothing_left(&second.session());
}

#[test]
fn a_full_queue_delays_and_a_failed_request_is_an_error() {
    let dir = Dir::new();
    let first = dir.join(0);
    let full = Rule::new(Moment::Post(OperationKind::Write), Fault::QueueFull).times(3);
    let gone = Rule::new(
        Moment::Post(OperationKind::Read),
        Fault::Fail { status: Status::RetryExceeded, done: false },
    );
    let plan = FaultPlan::new(1).rule(full).rule(gone.times(1));
    let second = halite::Node::wrap(dir.config(1), |fabric| Arc::new(FaultInjector::new(fabric, plan)));
    let second = second.unwrap();
    let here = first.blocking_session();
    let lh = here.alloc(Some("full"), 4096, Placement::Local, ANYBODY).unwrap();
    let there = second.blocking_session();
    let theirs = there.map("full", ANYBODY).unwrap();
    there.write(theirs, 8, b"patience").unwrap();
    let mut bytes = [0; 8];
    here.read(lh, 8, &mut bytes).unwrap();
    assert_eq!(&bytes, b"patience");
    let failed = there.read(theirs, 8, &mut bytes).unwrap_err();
    assert_eq!(failed.cause, AccessCause::PeerDown(NodeId(0)));
    there.read(theirs, 8, &mut bytes).unwrap();
}

/// What is posted is under way together: the failure of one part says nothing about those behind it.
#[test]
fn of_a_vector_or_batch_whose_first_part_failed_a_later_one_is_said_to_be_done() {
    let dir = Dir::new();
    let first = dir.join(0);
    let here = first.blocking_session();
    let ours = here.alloc(Some("vector"), 4096, Placement::Local, ANYBODY).unwrap();
    for (number, is_batch) in [(1, true), (2, false)] {
        let fault = Fault::Fail { status: Status::Flushed, done: false };
        let plan = FaultPlan::new(1).rule(Rule::new(Moment::Post(OperationKind::Write), fault).times(1));
        let failing =
            halite::Node::wrap(dir.config(number), |fabric| Arc::new(FaultInjector::new(fabric, plan)));
        let failing = failing.unwrap();
        let there = failing.blocking_session();
        let lh = there.map("vector", ANYBODY).unwrap();
        if is_batch {
            let batch = [(0, b"one"), (3, b"two")].map(|(offset, from)| WriteOp { lh, offset, from });
            let error = there.write_batch(&batch).unwrap_err();
            assert_eq!((error.index, error.source.partly, error.later), (0, false, true));
        } else {
            let error =
                there.write_vectored(lh, 0, &[IoSlice::new(b"one"), IoSlice::new(b"two")]).unwrap_err();
            assert!(error.partly, "{error}");
        }
        let mut bytes = [0; 6];
        here.read(ours, 0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0\0\0two");
        here.write(ours, 0, &[0; 6]).unwrap();
    }
}

#[test]
fn messages_that_the_fabric_does_not_take_at_once_arrive_later_and_in_order() {
    let dir = Dir::new();
    let first = dir.join(0);
    let full = Rule::new(Moment::Post(OperationKind::Send), Fault::QueueFull).one_in(2);
    let plan = FaultPlan::new(7).rule(full);
    let second = halite::Node::wrap(dir.config(1), |fabric| Arc::new(FaultInjector::new(fabric, plan)));
    let second = second.unwrap();
    let there = second.blocking_session();
    for round in 0..50 {
        let name = format!("region {round}");
        there.alloc(Some(&name), 4096, Placement::On(NodeId(0)), ANYBODY).unwrap();
    }
    assert_eq!(first.blocking_session().list().unwrap().len(), 50);
}

#[test]
fn an_access_that_waits_for_ever_ends_when_its_node_leaves() {
    let dir = Dir::new();
    let first = dir.join(0);
    let never = Rule::new(Moment::Post(OperationKind::Read), Fault::Delay { polls: u64::MAX / 2 });
    let plan = FaultPlan::new(1).rule(never);
    let second = halite::Node::wrap(dir.config(1), |fabric| Arc::new(FaultInjector::new(fabric, plan)));
    let second = second.unwrap();
    first.blocking_session().alloc(Some("far"), 4096, Placement::Local, ANYBODY).unwrap();
    let there = second.session();
    let theirs = there.blocking().map("far", ANYBODY).unwrap();
    let mut bytes = [0; 8];
    let mut read = pin!(there.read(theirs, 0, &mut bytes));
    let begun = std::future::poll_fn(|context| Poll::Ready(read.as_mut().poll(context).is_pending()));
    assert!(there.blocking().block_on(begun), "the read is under way");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| there.blocking().block_on(read));
        second.leave();
        assert_eq!(waiting.join().unwrap().unwrap_err().cause, AccessCause::NodeClosed);
    });
}

#[test]
fn a_session_ends_with_its_last_clone_and_takes_its_handles_along() {
    let dir = Dir::new();
    let node = dir.join(0);
    let watching = node.blocking_session();
    let session = node.blocking_session();
    let lh = session.alloc(Some("stays"), 64, Placement::Local, ANYBODY).unwrap();
    let clone = session.clone();
    drop(session);
    clone.write(lh, 0, b"still there").unwrap();
    assert_eq!(watching.status().unwrap()[0].mappings, 1);
    drop(clone);
    assert_eq!(watching.status().unwrap()[0].mappings, 0);
    assert_eq!(watching.stat("stays").unwrap().len, 64, "regions with a name outlive sessions");
}

#[test]
fn a_handle_is_worth_nothing_in_another_session() {
    let dir = Dir::new();
    let node = dir.join(0);
    let (owner, stranger) = (node.blocking_session(), node.blocking_session());
    let lh = owner.alloc(Some("mine"), 64, Placement::Local, ANYBODY).unwrap();
    let mut bytes = [0; 4];
    assert_eq!(stranger.read(lh, 0, &mut bytes).unwrap_err().cause, AccessCause::ForeignHandle);
    assert_eq!(stranger.write(lh, 0, b"hole").unwrap_err().cause, AccessCause::ForeignHandle);
    assert_eq!(stranger.len(lh).unwrap_err().cause, AccessCause::ForeignHandle);
    assert_eq!(stranger.unmap(lh).unwrap_err().cause, RegionCause::ForeignHandle);
    assert_eq!(stranger.free(lh).unwrap_err().cause, RegionCause::ForeignHandle);
    assert_eq!(stranger.stat_handle(lh).unwrap_err().cause, RegionCause::ForeignHandle);
    owner.read(lh, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4]);
}

#[test]
fn a_handle_that_was_given_up_stays_stale() {
    let dir = Dir::new();
    let node = dir.join(0);
    let session = node.blocking_session();
    let lh = session.alloc(Some("region"), 64, Placement::Local, ANYBODY).unwrap();
    session.unmap(lh).unwrap();
    // The place in the table is used again, by a handle of the same session.
    let again = session.map("region", ANYBODY).unwrap();
    assert_eq!(session.write(lh, 0, b"x").unwrap_err().cause, AccessCause::Stale);
    assert_eq!(session.unmap(lh).unwrap_err().cause, RegionCause::Stale);
    session.write(again, 0, b"x").unwrap();
}

#[test]
fn mistakes_are_found_before_anything_is_asked_of_the_cluster() {
    let dir = Dir::new();
    let node = dir.join(0);
    let session = node.blocking_session();
    let alloc = |name, len| session.alloc(name, len, Placement::Local, ANYBODY).unwrap_err().cause;
    let long = "n".repeat(256);
    assert_eq!(alloc(Some(""), 1), RegionCause::NameEmpty);
    assert_eq!(alloc(Some(&long), 1), RegionCause::NameTooLong { len: 256 });
    assert_eq!(alloc(Some("zero"), 0), RegionCause::ZeroLength);
    assert_eq!(alloc(Some("huge"), u64::MAX), RegionCause::TooLarge { len: u64::MAX });
    assert_eq!(session.map("", ANYBODY).unwrap_err().cause, RegionCause::NameEmpty);
    assert_eq!(session.stat(&long).unwrap_err().cause, RegionCause::NameTooLong { len: 256 });
    let lh = session.alloc(Some("n"), 1, Placement::Local, ANYBODY).unwrap();
    let nobody = Who::Principal(String::new());
    let refused = session.grant(lh, nobody, ANYBODY).unwrap_err();
    assert_eq!(refused.cause, RegionCause::BadPrincipal { len: 0 });
    assert_eq!(session.list().unwrap().len(), 1);
}

#[test]
fn what_waits_or_comes_later_learns_that_the_node_has_left() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    let here = first.blocking_session();
    let lh = here.alloc(Some("left"), 64, Placement::Local, ANYBODY).unwrap();
    let there = second.blocking_session();
    let theirs = there.map("left", ANYBODY).unwrap();
    second.leave();
    let mut bytes = [0; 4];
    assert_eq!(there.read(theirs, 0, &mut bytes).unwrap_err().cause, AccessCause::NodeClosed);
    assert_eq!(there.map("left", ANYBODY).unwrap_err().cause, RegionCause::NodeClosed);
    here.write(lh, 0, b"here").unwrap();
    here.free(lh).unwrap();
}

#[test]
fn who_holds_regions_of_a_node_that_left_gets_an_error_and_not_a_hang() {
    let dir = Dir::new();
    let (first, second) = (dir.join(0), dir.join(1));
    let theirs = second.blocking_session();
    theirs.alloc(Some("lost"), 64, Placement::Local, ANYBODY).unwrap();
    let here = first.blocking_session();
    let lh = here.map("lost", ANYBODY).unwrap();
    second.leave();
    // The news takes a moment; until then the bytes are still there.
    let mut bytes = [0; 4];
    let lost = until(|| here.read(lh, 0, &mut bytes).err());
    assert_eq!(lost.cause, AccessCause::PeerDown(NodeId(1)));
    // The same number, another incarnation: the handle is stale now.
    let _second = dir.join(1);
    assert_eq!(here.read(lh, 0, &mut bytes).unwrap_err().cause, AccessCause::Stale);
    let refused = here.map("lost", ANYBODY).unwrap_err();
    let is_told = |lost: &Lost| (lost.node, lost.cause) == (NodeId(1), LossCause::Left);
    assert!(matches!(&refused.cause, RegionCause::Lost(lost) if is_told(lost)), "{refused}");
}

#[test]
fn futures_can_be_moved_between_threads() {
    fn check_send<T: Send>(_: &T) {}
    let dir = Dir::new();
    let node = dir.join(0);
    let session = node.session();
    check_send(&session.alloc(None, 64, Placement::Local, ANYBODY));
    check_send(&session.list());
    let lh = session.blocking().alloc(None, 64, Placement::Local, ANYBODY).unwrap();
    check_send(&session.read(lh, 0, &mut [0; 4]));
    check_send(&session.write_batch(&[]));
}

/// A task on no executor at all: nobody polls for it but the node's own progress thread.
#[test]
fn a_task_is_woken_though_every_thread_of_the_application_sleeps() {
    struct Flag(AtomicBool, std::thread::Thread);
    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, SeqCst);
            self.1.unpark();
        }
    }
    let dir = Dir::new();
    let (_first, second) = (dir.join(0), dir.join(1));
    let session = second.session();
    let flag = Arc::new(Flag(AtomicBool::new(false), std::thread::current()));
    let waker = Waker::from(flag.clone());
    let mut context = Context::from_waker(&waker);
    for round in 0..100 {
        let name = format!("region {round}");
        let mut alloc = pin!(session.alloc(Some(&name), 4096, Placement::On(NodeId(0)), ANYBODY));
        let lh = loop {
            if let Poll::Ready(done) = alloc.as_mut().poll(&mut context) {
                break done.unwrap();
            }
            let begin = Instant::now();
            while !flag.0.swap(false, SeqCst) {
                assert!(begin.elapsed() < PATIENCE, "it is not woken");
                std::thread::park_timeout(PATIENCE);
            }
        };
        session.blocking().free(lh).unwrap();
    }
}
