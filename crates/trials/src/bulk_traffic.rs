//! Scenarios with long accesses, over networks that keep order only within a lane. Messages, calls and heartbeats do
//! not queue behind long accesses, and a slow writer is not declared dead.

use std::pin::pin;
use std::time::Duration;

use halite::{Function, NodeId, Placement, Port, ServeOptions};
use halite_sim::Link;

use crate::regressions::{ALL, alloc_local, poll_once, run_on_hardware, session_of};

/// Maximum number of bytes that one post sends.
const LONG: usize = 256 << 10;
const LONG_ENOUGH: Duration = Duration::from_millis(10);

#[test]
fn messages_and_calls_overtake_long_writes() {
    run_on_hardware("rnic-100g", 2, |harness| async move {
        let (here, there) = (session_of(&harness, 0), session_of(&harness, 1));
        let own = there.alloc(Some("long"), LONG as u64, Placement::Local, ALL).await.expect("there is room");
        let lh = here.map("long", ALL).await.expect("the region exists");
        let mailbox = there.open_port(Port(7), ServeOptions::default()).expect("no other session has it");
        let server = there.serve(Function(7), ServeOptions::default()).expect("no other session serves it");
        let explained = here.explain_peer(NodeId(1)).await.expect("the peer is known");
        assert_eq!(explained.capabilities.expect("the peer is connected").lanes, 2);
        let has_landed = async |byte| {
            let mut last = [0; 1];
            there.read(own, LONG as u64 - 1, &mut last).await.expect("the region is mapped");
            last == [byte]
        };

        let bytes = vec![1; LONG];
        let mut writing = pin!(here.write(lh, 0, &bytes));
        assert!(poll_once(writing.as_mut()).is_pending());
        here.send(NodeId(1), Port(7), b"small").await.expect("the port exists");
        assert_eq!(mailbox.recv().await.expect("the port is open").bytes, b"small");
        assert!(!has_landed(1).await, "the message has waited for the write");
        writing.await.expect("no fault is injected");
        assert!(has_landed(1).await);

        let bytes = vec![2; LONG];
        let mut writing = pin!(here.write(lh, 0, &bytes));
        assert!(poll_once(writing.as_mut()).is_pending());
        let mut calling = pin!(here.call(NodeId(1), Function(7), b"small", LONG_ENOUGH));
        assert!(poll_once(calling.as_mut()).is_pending());
        let call = server.recv().await.expect("the function is served");
        assert!(!has_landed(2).await, "the call has waited for the write");
        call.reply(b"answer").expect("its caller waits");
        assert_eq!(calling.await.expect("the call is answered"), b"answer");
        writing.await.expect("no fault is injected");
        assert!(has_landed(2).await);
    });
}

/// The process acknowledges nothing, so only heartbeats show that it is alive.
#[test]
fn heartbeats_overtake_writes_of_many_leases() {
    run_on_hardware("rnic-100g", 2, |harness| async move {
        let (here, there) = (session_of(&harness, 0), session_of(&harness, 1));
        here.alloc(Some("long"), LONG as u64, Placement::Local, ALL).await.expect("there is room");
        let lh = there.map("long", ALL).await.expect("the region exists");
        // Each piece of 4 KiB takes a quarter of a lease.
        let (from, to) = (harness.host(1), harness.host(0));
        let link = harness.world.link(from, to);
        let lease_us = harness.plan.lease().as_micros() as u64;
        harness.world.set_link(from, to, Link { bandwidth_bytes_per_us: 16_384 / lease_us, ..link });
        let bytes = vec![1; 64 << 10];
        let mut writing = pin!(there.write(lh, 0, &bytes));
        assert!(poll_once(writing.as_mut()).is_pending());
        for _ in 0..24 {
            harness.world.sleep(None, harness.plan.lease() / 8).await;
            assert!(
                harness.driven(0).expect("the node is up").is_connected_to(NodeId(1)),
                "no heartbeat was heard"
            );
        }
        assert!(poll_once(writing.as_mut()).is_pending(), "the operation has ended already");
        harness.world.set_link(from, to, link);
        writing.await.expect("the connection stands");
    });
}

/// Regression: the answer shared the heartbeats' lane, and the connection ended although bytes kept arriving.
#[test]
fn heartbeats_overtake_answers_of_many_leases() {
    run_on_hardware("rnic-100g", 2, |harness| async move {
        let (here, there) = (session_of(&harness, 0), session_of(&harness, 1));
        let server = there.serve(Function(7), ServeOptions::default()).expect("no other session serves it");
        let (mut output, answer) = (vec![0; 80 << 10], vec![9; 80 << 10]);
        let lease = harness.plan.lease();
        let mut calling =
            Box::pin(here.call_into(NodeId(1), Function(7), b"all of it", &mut output, 60 * lease));
        assert!(poll_once(calling.as_mut()).is_pending());
        let call = server.recv().await.expect("the function is served");
        // Each piece of 4 KiB takes a quarter of a lease.
        let (from, to) = (harness.host(1), harness.host(0));
        let link = harness.world.link(from, to);
        let lease_us = lease.as_micros() as u64;
        harness.world.set_link(from, to, Link { bandwidth_bytes_per_us: 16_384 / lease_us, ..link });
        call.reply(&answer).expect("its caller waits");
        for _ in 0..24 {
            harness.world.sleep(None, lease / 8).await;
            assert!(poll_once(calling.as_mut()).is_pending(), "the operation has ended already");
            assert!(
                harness.driven(0).expect("the node is up").is_connected_to(NodeId(1)),
                "no heartbeat was heard"
            );
        }
        harness.world.set_link(from, to, link);
        assert_eq!(calling.await.expect("the connection stands"), answer.len());
        assert!(output == answer);
    });
}

/// The sender's heartbeats queue behind a write of two leases in its socket's send buffer, but its process
/// acknowledges.
#[test]
fn acknowledgements_count_as_signs_of_life() {
    run_on_hardware("roce-100g", 2, |harness| async move {
        let (here, there) = (session_of(&harness, 0), session_of(&harness, 1));
        here.alloc(Some("long"), LONG as u64, Placement::Local, ALL).await.expect("there is room");
        let lh = there.map("long", ALL).await.expect("the region exists");
        let explained = here.explain_peer(NodeId(1)).await.expect("the peer is known");
        assert!(explained.round_trip_ns.is_some_and(|ns| ns > 0), "{explained}");
        // Each piece of 4 KiB takes an eighth of a lease; a message waits for the fifteen pieces that left together.
        let (from, to) = (harness.host(1), harness.host(0));
        let link = harness.world.link(from, to);
        let lease_us = harness.plan.lease().as_micros() as u64;
        let slow = Link { bandwidth_bytes_per_us: 32_768 / lease_us, ..link };
        harness.world.set_link(from, to, slow);
        let bytes = vec![1; 64 << 10];
        let mut writing = pin!(there.write(lh, 0, &bytes));
        assert!(poll_once(writing.as_mut()).is_pending());
        harness.world.sleep(None, 3 * harness.plan.lease()).await;
        harness.world.set_link(from, to, link);
        writing.await.expect("the connection stands");
        assert!(harness.driven(0).expect("the node is up").is_connected_to(NodeId(1)));
    });
}

/// A stopped process acknowledges nothing, so writes to it are no sign of life.
#[test]
fn a_stopped_process_is_silent_even_if_written_to() {
    for profile in ["roce-100g", "rnic-100g"] {
        run_on_hardware(profile, 2, move |harness| async move {
            let (here, there) = (session_of(&harness, 0), session_of(&harness, 1));
            alloc_local(&there, "words").await;
            let lh = here.map("words", ALL).await.expect("the region exists");
            harness.world.pause(harness.host(1));
            let mut rounds = 0;
            while harness.driven(0).expect("the node is up").is_connected_to(NodeId(1)) {
                // The dropped write stays posted.
                let _ = poll_once(pin!(here.write(lh, 0, &[1; 8])).as_mut());
                harness.world.sleep(None, harness.plan.lease() / 8).await;
                rounds += 1;
                assert!(rounds < 8 * 4, "the peer was never declared dead over {profile}");
            }
            harness.world.resume(harness.host(1));
        });
    }
}

/// The buffers of a stopped node's answers stay reserved.
#[test]
fn long_reads_of_a_stopped_node_do_not_slow_others() {
    run_on_hardware("rnic-100g", 3, |harness| async move {
        let here = session_of(&harness, 0);
        let mut bytes = vec![0; 1 << 20];
        let mut handles = Vec::new();
        for (node, name) in [(1, "live"), (2, "still")] {
            let there = session_of(&harness, node);
            there.alloc(Some(name), 1 << 20, Placement::Local, ALL).await.expect("there is room");
            handles.push(here.map(name, ALL).await.expect("the region exists"));
        }
        let [live, still] = handles[..] else { unreachable!("there are two regions") };
        let mut read = async || {
            let begin = harness.world.now_ns();
            here.read(live, 0, &mut bytes).await.expect("the region exists");
            harness.world.now_ns() - begin
        };
        read().await;
        let alone = read().await;
        harness.world.pause(harness.host(2));
        let mut targets = vec![vec![0; 1 << 20]; 8];
        let mut pending: Vec<_> =
            targets.iter_mut().map(|target| Box::pin(here.read(still, 0, target))).collect();
        assert!(pending.iter_mut().all(|read| poll_once(read.as_mut()).is_pending()));
        let beside = read().await;
        assert!(beside <= alone * 11 / 10, "{alone} ns without them, {beside} ns beside them");
        harness.world.resume(harness.host(2));
        for read in pending {
            read.await.expect("the node was stopped for less than a lease");
        }
    });
}
