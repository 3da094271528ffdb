//! Scenarios of peers that a node declares dead while their connections exist.
//!
//! The scenarios stop hosts and kill no processes, so no connection ends by itself.

use std::pin::pin;
use std::time::Duration;

use halite::{CallCause, Function, NodeId, ServeOptions};

use crate::harness::Harness;
use crate::regressions::{poll_once, run_on_hardware, session_of};

const FUNCTION: Function = Function(7);
const LONG: Duration = Duration::from_secs(3600);
/// Number of leases after which silence is certainly detected: peers check for it four times per lease.
const LEASES_MAX: u32 = 2;

async fn stop_past_lease(harness: &Harness, node: u32) {
    harness.world.pause(harness.host(node));
    harness.world.sleep(None, harness.plan.lease() * LEASES_MAX).await;
}

#[test]
fn calls_to_a_silent_node_end_with_its_lease() {
    run_on_hardware("local-torn", 2, |harness| async move {
        let (here, there) = (session_of(&harness, 0), session_of(&harness, 1));
        let _server = there.serve(FUNCTION, ServeOptions::default()).expect("no other session serves it");
        let mut calling = pin!(here.call(NodeId(1), FUNCTION, b"are you there?", LONG));
        assert!(poll_once(calling.as_mut()).is_pending());
        stop_past_lease(&harness, 1).await;
        let began_ns = harness.world.now_ns();
        let error = calling.await.expect_err("the node is silent");
        assert!(error.cause == CallCause::PeerDown && error.may_have_run, "{error}");
        assert_eq!(harness.world.now_ns(), began_ns, "the end was reported late");
    });
}

/// The stopped node still considers its peers alive, although they have declared it dead.
#[test]
fn a_node_that_was_declared_dead_is_not_served() {
    run_on_hardware("local-torn", 2, |harness| async move {
        let (here, there) = (session_of(&harness, 0), session_of(&harness, 1));
        let server = here.serve(FUNCTION, ServeOptions::default()).expect("no other session serves it");
        stop_past_lease(&harness, 1).await;
        assert!(!harness.driven(0).expect("the node is up").is_connected_to(NodeId(1)));
        harness.world.resume(harness.host(1));
        let error = there
            .call(NodeId(0), FUNCTION, b"good morning", LONG)
            .await
            .expect_err("the node was declared dead");
        assert_eq!(error.cause, CallCause::PeerDown);
        assert!(poll_once(pin!(server.recv())).is_pending(), "no call arrives");
    });
}
