//! Posted accesses that are dropped, refused by a full queue, or fail.

use crate::common;

use std::io::IoSlice;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use common::{Dir, until};
use halite::{AccessCause, NodeId, Permissions, Placement, Session, WriteOp};
use halite_fabric::Status;
use halite_fabric::fault::{Fault, FaultInjector, FaultPlan, Rule};
use halite_fabric::kind::OperationKind;

const ANYBODY: Permissions = Permissions::READ.union(Permissions::WRITE);

/// Polls a future each time it wakes, at most `polls` times, then drops it. Returns its output if it completed.
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

/// Waits until no region remains that `session`'s node has created on node 0.
fn check_nothing_left(session: &Session) {
    let session = session.blocking();
    // Requests between two nodes are executed in order: when this one is done, so are all earlier ones.
    let last = session.alloc(None, 64, Placement::On(NodeId(0)), ANYBODY).unwrap();
    session.free(last).unwrap();
    // Cleaning up takes several messages between the nodes.
    let is_clean = || {
        let nodes = session.status().unwrap();
        let is_empty = nodes.iter().all(|node| (node.bytes_used, node.regions, node.mappings) == (0, 0, 0));
        (is_empty && session.list().unwrap().is_empty()).then_some(())
    };
    until(is_clean);
}

#[test]
fn dropped_posted_reads_write_to_no_caller() {
    let dir = Dir::new();
    let first = dir.join(0);
    // Completions of reads are delayed, so futures are dropped before them.
    let late = Rule::new(OperationKind::Read, Fault::Delay { polls: 3 });
    let second = halite::Node::wrap(dir.config(1), |fabric| {
        Arc::new(FaultInjector::new(fabric, FaultPlan::default().rule(late)))
    });
    let second = second.unwrap();
    let here = first.blocking_session();
    let len = 1 << 20;
    let lh = here.alloc(Some("late"), len as u64, Placement::Local, ANYBODY).unwrap();
    here.write(lh, 0, &vec![3; len]).unwrap();
    let there = second.session();
    let theirs = there.blocking().map("late", ANYBODY).unwrap();
    // Many more requests than there are slots.
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
fn a_full_queue_delays_and_a_failure_is_an_error() {
    let dir = Dir::new();
    let first = dir.join(0);
    let full = Rule::new(OperationKind::Write, Fault::QueueFull).times(3);
    let gone = Rule::new(OperationKind::Read, Fault::Fail { status: Status::RetryExceeded });
    let plan = FaultPlan::default().rule(full).rule(gone.times(1));
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

/// All parts are posted at once, so parts after a failed one may be done.
#[test]
fn parts_done_behind_a_failed_one_are_reported() {
    let dir = Dir::new();
    let first = dir.join(0);
    let here = first.blocking_session();
    let ours = here.alloc(Some("vector"), 4096, Placement::Local, ANYBODY).unwrap();
    for (number, is_batch) in [(1, true), (2, false)] {
        let fault = Fault::Fail { status: Status::Flushed };
        let plan = FaultPlan::default().rule(Rule::new(OperationKind::Write, fault).times(1));
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
