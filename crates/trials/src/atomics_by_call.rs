//! Scenarios of atomics that are executed as calls to the owner's node, because an adapter's atomics would not be
//! atomic with respect to processors.

use std::pin::pin;
use std::task::Poll;

use halite::{AccessCause, Atomics, NodeId, Placement};

use crate::regressions::{ALL, TIMEOUT, alloc_local, poll_once, run_on_hardware, session_of};

/// Profile of hosts between which remote atomics are calls.
const ADAPTERS: &str = "rnic-100g-hca";

#[test]
fn an_addition_waits_for_a_stopped_node_and_runs_once() {
    run_on_hardware(ADAPTERS, 2, |harness| async move {
        let (here, there) = (session_of(&harness, 0), session_of(&harness, 1));
        let peer = here.explain_peer(NodeId(1)).await.expect("the peer is known");
        assert_eq!(peer.capabilities.expect("the peer is connected").atomics, Atomics::Adapter);
        let own = alloc_local(&there, "words").await;
        let lh = here.map("words", ALL).await.expect("the region exists");
        harness.world.pause(harness.host(1));
        let mut adding = pin!(here.fetch_add(lh, 8, 5));
        assert!(poll_once(adding.as_mut()).is_pending());
        harness.world.sleep(None, TIMEOUT).await;
        assert!(poll_once(adding.as_mut()).is_pending(), "an adapter alone would have done it");
        assert_eq!(there.fetch_add(own, 8, 1).await, Ok(0));
        harness.world.resume(harness.host(1));
        assert_eq!(adding.await, Ok(1));
        assert_eq!(there.compare_swap(own, 8, 6, 7).await, Ok(6));
    });
}

#[test]
fn an_atomic_with_a_lost_answer_is_not_repeated() {
    run_on_hardware(ADAPTERS, 2, |harness| async move {
        let (here, there) = (session_of(&harness, 0), session_of(&harness, 1));
        let own = alloc_local(&there, "words").await;
        let lh = here.map("words", ALL).await.expect("the region exists");
        // The addition is executed, but its answer is lost.
        let (from, to) = (harness.host(1), harness.host(0));
        harness.world.set_link(from, to, harness.world.link(from, to).down());
        let error = here.fetch_add(lh, 8, 1).await.expect_err("the connection is broken");
        assert!(error.partly, "{error} although it was done");
        assert!(
            matches!(error.cause, AccessCause::Stale | AccessCause::PeerDown(_) | AccessCause::LinkLost(_)),
            "{error}"
        );
        assert_eq!(there.fetch_add(own, 8, 1).await, Ok(1));
    });
}

/// The adapter of the node has received the call, but no answer arrives.
#[test]
fn an_atomic_fails_when_its_node_dies() {
    run_on_hardware(ADAPTERS, 2, |harness| async move {
        let (here, there) = (session_of(&harness, 0), session_of(&harness, 1));
        alloc_local(&there, "words").await;
        let lh = here.map("words", ALL).await.expect("the region exists");
        harness.world.pause(harness.host(1));
        let mut adding = pin!(here.fetch_add(lh, 8, 1));
        assert!(poll_once(adding.as_mut()).is_pending());
        harness.world.sleep(None, TIMEOUT).await;
        harness.crash(1);
        let error = adding.await.expect_err("the node is dead");
        assert!(
            error.partly
                && matches!(
                    error.cause,
                    AccessCause::Stale | AccessCause::PeerDown(_) | AccessCause::LinkLost(_)
                ),
            "{error}"
        );
        here.unmap(lh).await.expect("no operation is in flight any more");
    });
}

#[test]
fn a_region_change_waits_for_its_own_atomics_only() {
    run_on_hardware(ADAPTERS, 3, |harness| async move {
        let session = session_of(&harness, 0);
        let on = |node| session.alloc(None, 64, Placement::On(NodeId(node)), ALL);
        let (silent, elsewhere) = (on(2).await.expect("there is room"), on(1).await.expect("there is room"));
        harness.world.pause(harness.host(2));
        // The dropped operation stays posted.
        assert!(poll_once(pin!(session.fetch_add(silent, 0, 1)).as_mut()).is_pending());
        session.free(elsewhere).await.expect("the session is a master");
        let mut unmapping = pin!(session.unmap(silent));
        assert!(poll_once(unmapping.as_mut()).is_pending());
        harness.world.sleep(None, TIMEOUT).await;
        assert!(poll_once(unmapping.as_mut()).is_pending(), "the addition may still be made");
        harness.world.resume(harness.host(2));
        unmapping.await.expect("no operation is in flight any more");
    });
}

/// More additions than the connection takes at once, and than a thread may post.
#[test]
fn additions_of_many_tasks_complete_with_short_queues() {
    run_on_hardware(ADAPTERS, 2, |harness| async move {
        let (here, there) = (session_of(&harness, 0), session_of(&harness, 1));
        let own = alloc_local(&there, "words").await;
        let lh = here.map("words", ALL).await.expect("the region exists");
        let mut adding: Vec<_> = (0..1000).map(|_| Box::pin(here.fetch_add(lh, 0, 1))).collect();
        let mut found = Vec::new();
        while !adding.is_empty() {
            adding.retain_mut(|adding| match poll_once(adding.as_mut()) {
                Poll::Pending => true,
                Poll::Ready(old) => {
                    found.push(old.expect("no fault is injected"));
                    false
                }
            });
            harness.world.sleep(None, TIMEOUT).await;
        }
        found.sort_unstable();
        assert_eq!(found, (0..1000).collect::<Vec<_>>());
        assert_eq!(there.fetch_add(own, 0, 0).await, Ok(1000));
    });
}
