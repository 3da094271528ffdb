//! Sessions of two priorities share a link of 1 Gbit/s in virtual time.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use halite::{
    AccessCause, BadQos, CallCause, Function, Lh, NodeId, Placement, Policy, Priority, Qos, Session, WriteOp,
};

use crate::harness::Harness;
use crate::regressions::{ALL, poll_once, run_on_plan, session_of};

const BYTES_PER_US: u64 = 125;
/// Length of a write in bytes.
const WRITE_BYTES: usize = 8 << 10;
/// Number of writes that are posted together.
const BATCH_LEN: usize = 32;

/// Runs a scenario on two nodes with a slow link. The session belongs to node 0, and the region is on node 1.
fn run_on_slow_link<F: Future<Output = ()> + 'static>(
    lease_us: u64,
    scenario: impl FnOnce(Rc<Harness>, Session, Lh) -> F + 'static,
) {
    let plan = format!("nodes = 2\nprofile = 'roce-100g'\nlease_us = {lease_us}");
    run_on_plan(&plan, move |harness| async move {
        let (here, there) = (session_of(&harness, 0), session_of(&harness, 1));
        let len = (WRITE_BYTES * BATCH_LEN) as u64;
        there.alloc(Some("bytes"), len, Placement::Local, ALL).await.expect("there is room");
        let lh = here.map("bytes", ALL).await.expect("the region exists");
        for (from, to) in [(0, 1), (1, 0)].map(|(from, to)| (harness.host(from), harness.host(to))) {
            let link = harness.world.link(from, to);
            harness.world.set_link(
                from,
                to,
                halite_sim::Link { bandwidth_bytes_per_us: BYTES_PER_US, ..link },
            );
        }
        scenario(harness, here, lh).await;
    });
}

/// Writes in parallel with each session for `time`. Returns the bytes that each wrote.
async fn write_for(harness: &Rc<Harness>, time: Duration, sessions: &[Session], lh: Lh) -> Vec<usize> {
    let end_ns = harness.world.now_ns() + time.as_nanos() as u64;
    let writers = sessions.iter().map(|session| {
        let (written, has_ended) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let (count, ended) = (written.clone(), has_ended.clone());
        let (session, world) = (session.clone(), harness.world.clone());
        harness.world.spawn(Some(harness.host(0)), "a writer", async move {
            let bytes = vec![7; WRITE_BYTES];
            let op = |index| WriteOp { lh, offset: (index * WRITE_BYTES) as u64, from: &bytes };
            let ops: Vec<_> = (0..BATCH_LEN).map(op).collect();
            while world.now_ns() < end_ns {
                session.write_batch(&ops).await.expect("the region exists");
                count.set(count.get() + WRITE_BYTES * BATCH_LEN);
            }
            ended.set(true);
        });
        (written, has_ended)
    });
    let writers: Vec<_> = writers.collect();
    while writers.iter().any(|(_, has_ended)| !has_ended.get()) {
        harness.world.sleep(None, Duration::from_micros(100)).await;
    }
    writers.iter().map(|(written, _)| written.get()).collect()
}

#[test]
fn low_priority_writes_yield_to_high_priority_writes() {
    run_on_slow_link(1_000_000, |harness, high, lh| async move {
        let low = high.with_priority(Priority::Low).expect("no principal is limited");
        let time = Duration::from_millis(100);
        let equal = write_for(&harness, time, &[high.clone(), low.clone()], lh).await;
        assert!(equal[0] < 2 * equal[1], "without a policy: {equal:?}");

        high.set_qos(Qos { policy: Policy::SwPri, rate: None }).await.expect("the settings are valid");
        let alone = write_for(&harness, time, std::slice::from_ref(&high), lh).await;
        let both = write_for(&harness, time, &[high.clone(), low.clone()], lh).await;
        assert!(both[0] > alone[0] * 85 / 100, "{both:?} beside each other, {alone:?} alone");
        // Windows in which the load of high priority fades.
        harness.world.sleep(None, Duration::from_millis(150)).await;
        let low_alone = write_for(&harness, time, std::slice::from_ref(&low), lh).await;
        assert!(low_alone[0] > alone[0] * 90 / 100, "{low_alone:?} of {alone:?}");

        let rate = Some(BYTES_PER_US * 1_000_000);
        high.set_qos(Qos { policy: Policy::HwSep, rate }).await.expect("the settings are valid");
        let share = write_for(&harness, time, &[low], lh).await;
        let quarter = BYTES_PER_US as usize * 100_000 / 4;
        assert!(share[0] > quarter * 9 / 10 && share[0] < quarter * 12 / 10, "{share:?} of {quarter}");
    });
}

#[test]
fn delayed_operations_end_with_deadline_peer_or_policy() {
    run_on_slow_link(20_000, |harness, session, lh| async move {
        let slow = Qos { policy: Policy::HwSep, rate: Some(1_000_000) };
        assert_eq!(session.set_qos(Qos { rate: None, ..slow }).await, Err(BadQos::RateNeeded.into()));
        assert_eq!(
            session.set_qos(Qos { rate: Some(0), ..slow }).await,
            Err(BadQos::Rate { rate: 0 }.into())
        );
        session.set_qos(slow).await.expect("the settings are valid");
        let low = session.with_priority(Priority::Low).expect("no principal is limited");
        let bytes = vec![7; 64 << 10];
        // A quarter of a second's worth of debt.
        low.write(lh, 0, &bytes).await.expect("the region exists");

        let timeout = Duration::from_millis(5);
        let error = low.call(NodeId(1), Function(7), b"late", timeout).await.expect_err("it must wait");
        assert!(error.cause == CallCause::Timeout && !error.may_have_run, "{error}");

        let mut write = pin!(low.write(lh, 0, &bytes));
        assert!(poll_once(write.as_mut()).is_pending());
        session.set_qos(Qos::default()).await.expect("the settings are valid");
        let begin_ns = harness.world.now_ns();
        write.await.expect("the region exists");
        assert!(harness.world.now_ns() - begin_ns < 20_000_000, "the write follows the new policy");

        session.set_qos(slow).await.expect("the settings are valid");
        low.write(lh, 0, &bytes).await.expect("the region exists");
        let mut write = pin!(low.write(lh, 0, &bytes));
        assert!(poll_once(write.as_mut()).is_pending());
        harness.crash(1);
        let begin_ns = harness.world.now_ns();
        let error = write.await.expect_err("the peer is gone");
        assert_eq!(error.cause, AccessCause::LinkLost(NodeId(1)));
        assert!(harness.world.now_ns() - begin_ns < 60_000_000, "{} ns", harness.world.now_ns() - begin_ns);
    });
}
