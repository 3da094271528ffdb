//! Peers that a node gives up while their connections stand: stories.
//!
//! The hosts stand still and nobody may end their processes, so that no connection ends by itself.

use std::pin::pin;
use std::time::Duration;

use halite::{CallCause, Function, NodeId, ServeOptions};

use crate::found::{look, on_hardware, session_of};
use crate::harness::Harness;

const FUNCTION: Function = Function(7);
const LONG: Duration = Duration::from_secs(3600);
/// Silence is found out when it is looked for, which is four times in a lease.
const LEASES_MAX: u32 = 2;

async fn be_silent(harness: &Harness, node: u32) {
    harness.world.pause(harness.host(node));
    harness.world.sleep(None, harness.plan.lease() * LEASES_MAX).await;
}

#[test]
fn who_waits_for_an_answer_of_a_silent_node_waits_for_its_lease_and_no_longer() {
    on_hardware("local-torn", 2, |harness| async move {
        let (here, there) = (session_of(&harness, 0), session_of(&harness, 1));
        let _server = there.serve(FUNCTION, ServeOptions::default()).expect("nobody does");
        let mut calling = pin!(here.call(NodeId(1), FUNCTION, b"are you there?", LONG));
        assert!(look(calling.as_mut()).is_pending());
        be_silent(&harness, 1).await;
        let began_ns = harness.world.now_ns();
        let error = calling.await.expect_err("nobody answers");
        assert!(error.cause == CallCause::PeerDown && error.may_have_run, "{error}");
        assert_eq!(harness.world.now_ns(), began_ns, "it was told before");
    });
}

/// It slept, and takes those for alive whom it has not heard; they do not.
#[test]
fn a_node_that_was_given_up_is_served_nothing_when_it_wakes() {
    on_hardware("local-torn", 2, |harness| async move {
        let (here, there) = (session_of(&harness, 0), session_of(&harness, 1));
        let server = here.serve(FUNCTION, ServeOptions::default()).expect("nobody does");
        be_silent(&harness, 1).await;
        assert!(!harness.driven(0).expect("it is up").is_connected_to(NodeId(1)));
        harness.world.resume(harness.host(1));
        let error = there.call(NodeId(0), FUNCTION, b"good morning", LONG).await.expect_err("it is out");
        assert_eq!(error.cause, CallCause::PeerDown);
        assert!(look(pin!(server.recv())).is_pending(), "nobody has called");
    });
}
