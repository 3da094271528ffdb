//! Holders of locks, and their homes, are killed or stopped.

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use halite::{Fence, LockCause, NodeId, NodeState, Permissions, Placement, RegionCause};

use super::cluster::{Cluster, PATIENCE, await_state};

const NAME: &str = "ledger";
/// Long enough for another to have got the lock, if it could.
const SHORT: Duration = Duration::from_millis(20);
/// Long enough to be told of a lock that is lost.
const LONG: Duration = Duration::from_secs(3);

#[test]
fn the_lock_of_a_killed_process_goes_to_who_waits_and_is_recovered() {
    let mut cluster = Cluster::new();
    let node = cluster.join(0);
    let session = node.blocking_session();
    // Without memory, so that the lock does not live there.
    cluster.config.arena_bytes = 0;
    let (mut holder, mut waiter) = (cluster.start(1), cluster.start(2));
    for _ in 0..3 {
        holder.order(&format!("lock {NAME}"));
        waiter.order(&format!("await {NAME}"));
        assert_eq!(session.lock_within(NAME, SHORT).unwrap_err().cause, LockCause::Timeout);
        holder.kill();
        assert_eq!(waiter.news(), format!("{NAME} recovered"));
        waiter.order(&format!("unlock {NAME}"));
        holder = cluster.start(1);
    }
    // Nobody waits: then the next client is told.
    holder.order(&format!("lock {NAME}"));
    holder.kill();
    await_state_gone(&session);
    let guard = session.lock_within(NAME, PATIENCE).expect("its holder is dead");
    assert!(guard.recovered());
}

/// Nodes without memory are forgotten when they are dead.
fn await_state_gone(session: &halite::blocking::Session) {
    super::cluster::await_status(session, |nodes| nodes.iter().all(|node| node.node.0 != 1).then_some(()));
}

#[test]
fn the_lock_of_a_stopped_process_is_kept_until_it_can_do_no_harm() {
    let mut cluster = Cluster::new();
    cluster.config.fence = Fence::Never;
    let node = cluster.join(0);
    let session = node.blocking_session();
    let mut holder = cluster.start(1);
    session.create_lock(NAME, Permissions::ATOMIC).expect("it is new");
    holder.order(&format!("lock {NAME}"));
    holder.stop();
    await_state(&session, 1, NodeState::Unreachable);
    let refused = session.lock_within(NAME, LONG).map(|guard| guard.recovered());
    let cause = refused.expect_err("its lease is over, but it may still write").cause;
    holder.kill();
    await_state(&session, 1, NodeState::Dead);
    // The lock lives on one of the two nodes: on the stopped one it is lost with it, and made anew.
    let was_elsewhere = cause == LockCause::Region(RegionCause::PeerDown(NodeId(1)));
    assert!(was_elsewhere || cause == LockCause::Timeout, "{cause:?}");
    let recovered = session.lock_within(NAME, PATIENCE).expect("its holder is dead").recovered();
    assert!(!(recovered && was_elsewhere), "a lock that is made anew was never held");
}

#[test]
fn a_lock_whose_home_is_killed_ends_the_waiting_and_is_made_anew() {
    let mut cluster = Cluster::new();
    cluster.config.arena_bytes = 0;
    let node = cluster.join(0);
    let session = node.session();
    let blocking = session.blocking();
    cluster.config.arena_bytes = 64 << 20;
    let mut home = cluster.start(1);
    let guard = blocking.lock(NAME).expect("it is free");
    let token = guard.token();
    assert_eq!(blocking.lock(NAME).unwrap_err().cause, LockCause::AlreadyHeld);
    guard.unlock().expect("it is held");
    cluster.config.arena_bytes = 0;
    let mut holder = cluster.start(2);
    holder.order(&format!("lock {NAME}"));
    let mut waiting = pin!(session.lock(NAME));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // The home hears what a node asks in order: once this is answered, the waiter stands in the queue.
    blocking.alloc(None, 64, Placement::On(NodeId(1)), Permissions::empty()).expect("there is room");
    home.kill();
    let ended = blocking.block_on(waiting).map(drop);
    assert_eq!(ended.unwrap_err().cause, LockCause::PeerDown(NodeId(1)));
    cluster.config.arena_bytes = 64 << 20;
    let _home = cluster.start(1);
    assert_ne!(holder.ask(&format!("unlock {NAME}")), "ok", "it was lost with its home");
    let guard = blocking.lock_within(NAME, PATIENCE).expect("it is made anew");
    assert!(guard.token() > token);
}
