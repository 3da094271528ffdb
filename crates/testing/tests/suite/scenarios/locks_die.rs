//! Holders and homes of locks are killed or stopped.

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use halite::{Fence, LockCause, NodeId, NodeState, Permissions, Placement, RegionCause};

use super::cluster::{Cluster, PATIENCE, await_state, await_status};

const NAME: &str = "ledger";
/// Timeout of attempts that must fail: long enough to get a lock that is free.
const SHORT: Duration = Duration::from_millis(20);
/// Timeout of an attempt that may end earlier, when the loss of the lock is known.
const LONG: Duration = Duration::from_secs(3);

#[test]
fn the_next_waiter_recovers_the_lock_of_a_killed_process() {
    let mut cluster = Cluster::new();
    let node = cluster.join(0);
    let session = node.blocking_session();
    // The other nodes have no memory, so the lock is placed on this node.
    cluster.config.arena_bytes = 0;
    let (mut holder, mut waiter) = (cluster.start(1), cluster.start(2));
    for _ in 0..3 {
        holder.run(&format!("lock {NAME}"));
        waiter.run(&format!("await {NAME}"));
        assert_eq!(session.lock_within(NAME, SHORT).unwrap_err().cause, LockCause::Timeout);
        holder.kill();
        assert_eq!(waiter.event(), format!("{NAME} recovered"));
        waiter.run(&format!("unlock {NAME}"));
        holder = cluster.start(1);
    }
    // Without a waiter, the next session that takes the lock learns of the recovery.
    holder.run(&format!("lock {NAME}"));
    holder.kill();
    // Waits until the dead node is no longer listed. A dead node with memory would stay listed.
    await_status(&session, |nodes| nodes.iter().all(|node| node.node.0 != 1).then_some(()));
    let guard = session.lock_within(NAME, PATIENCE).expect("the holder is dead");
    assert!(guard.recovered());
}

#[test]
fn the_lock_of_a_stopped_process_is_kept() {
    let mut cluster = Cluster::new();
    cluster.config.fence = Fence::Never;
    let node = cluster.join(0);
    let session = node.blocking_session();
    let mut holder = cluster.start(1);
    session.create_lock(NAME, Permissions::ATOMIC).expect("the lock is new");
    holder.run(&format!("lock {NAME}"));
    holder.stop();
    await_state(&session, 1, NodeState::Unreachable);
    let refused = session.lock_within(NAME, LONG).map(|guard| guard.recovered());
    let cause = refused.expect_err("the holder may still write after its lease").cause;
    holder.kill();
    await_state(&session, 1, NodeState::Dead);
    // If the lock was placed on the stopped node, it is lost with that node and created again.
    let was_lost = cause == LockCause::Region(RegionCause::NotMet(NodeId(1)));
    assert!(was_lost || cause == LockCause::Timeout, "{cause:?}");
    let recovered = session.lock_within(NAME, PATIENCE).expect("the holder is dead").recovered();
    assert!(!(recovered && was_lost), "a lock that was created again was never held");
}

#[test]
fn waits_for_a_lock_end_with_its_home() {
    let mut cluster = Cluster::new();
    cluster.config.arena_bytes = 0;
    let node = cluster.join(0);
    let session = node.session();
    let blocking = session.blocking();
    cluster.config.arena_bytes = 64 << 20;
    let mut home = cluster.start(1);
    let guard = blocking.lock(NAME).expect("the lock is free");
    let token = guard.token();
    assert_eq!(blocking.lock(NAME).unwrap_err().cause, LockCause::AlreadyHeld);
    guard.unlock().expect("the lock is held");
    cluster.config.arena_bytes = 0;
    let mut holder = cluster.start(2);
    holder.run(&format!("lock {NAME}"));
    let mut waiting = pin!(session.lock(NAME));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // The home handles requests of a node in order: once it answers this one, the waiter is in the queue.
    blocking.alloc(None, 64, Placement::On(NodeId(1)), Permissions::empty()).expect("there is room");
    home.kill();
    let ended = blocking.block_on(waiting).map(drop);
    assert_eq!(ended.unwrap_err().cause, LockCause::PeerDown(NodeId(1)));
    cluster.config.arena_bytes = 64 << 20;
    let _home = cluster.start(1);
    assert_ne!(holder.ask(&format!("unlock {NAME}")), "ok", "the lock was lost with its home");
    let guard = blocking.lock_within(NAME, PATIENCE).expect("the lock is created again");
    assert!(guard.token() > token);
}
