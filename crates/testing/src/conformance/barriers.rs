//! Barriers: all participants pass together, or none.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use halite::{BarrierCause, Permissions, RegionCause, Who};

use super::calls::join_all;
use super::cluster::{Cluster, Harness, eventually, expect_long_pending};
use super::refused;
use super::session::{Session, block_on};
use super::turns::{expect_pending, poll_once, scope};

/// Longer than any operation here takes.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(2);

/// Expects that two of three participants wait at the barrier until the third one arrives.
pub fn no_participant_passes_before_all_have_arrived(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let sessions = [0, 1, 2].map(|index| cluster.futures(index));
    let enter = |node: usize| Box::pin(sessions[node].barrier("gate", 3, LONG));
    let mut waiting = vec![enter(0), enter(1)];
    for _ in 0..100 {
        waiting.iter_mut().for_each(expect_pending);
        cluster.session(0).status().unwrap();
    }
    // All three are polled, because the requests of the first two may still be in flight.
    waiting.push(enter(2));
    assert_eq!(block_on(&sessions[0], join_all(waiting)), [Ok(1), Ok(1), Ok(1)]);
}

/// Expects that a barrier can be passed again, that no participant is a round ahead, and that all participants count
/// the same rounds.
pub fn a_barrier_is_reusable(h: &dyn Harness) {
    const ROUNDS: u64 = 100;
    const THREADS: u64 = 6;
    let cluster = Cluster::new(h, 3);
    let arrived = AtomicU64::new(0);
    scope(|scope| {
        for index in 0..THREADS {
            let session = cluster.session(index as usize % 3);
            let arrived = &arrived;
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    // Pairs with the Acquire below, together with the barrier.
                    arrived.fetch_add(1, Ordering::Release);
                    assert_eq!(session.barrier("lap", THREADS as u32, LONG), Ok(round));
                    let seen = arrived.load(Ordering::Acquire);
                    assert!((round * THREADS..(round + 1) * THREADS).contains(&seen), "{round}: {seen}");
                }
            });
        }
    });
}

/// Expects that the first timeout ends the wait of all participants, even of participants with a longer timeout, and
/// that the next round starts from zero.
pub fn a_missing_participant_is_a_timeout_for_all(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let (patient, hasty) = (cluster.futures(0), cluster.session(1));
    let mut waiting = pin!(patient.barrier("bus", 3, LONG));
    expect_long_pending(&mut waiting, &hasty, 100);
    refused!(hasty.barrier("bus", 3, SHORT), BarrierCause::Timeout);
    assert_eq!(block_on(&patient, waiting).unwrap_err().cause, BarrierCause::Timeout);
    refused!(hasty.barrier("bus", 2, Duration::ZERO), BarrierCause::Timeout);
    assert_eq!(hasty.barrier("bus", 1, LONG), Ok(1));
}

/// Expects that a participant that requests another number of participants gets an error with the expected number, and
/// that the waiting participants continue to wait.
pub fn another_number_of_participants_is_refused(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let (first, other) = (cluster.futures(0), cluster.session(1));
    let mut waiting = Box::pin(first.barrier("table", 2, LONG));
    eventually("the first has arrived", || {
        for _ in 0..20 {
            // A participant that arrives second with another number is refused, and tries again.
            if poll_once(&mut waiting).is_ready() {
                waiting = Box::pin(first.barrier("table", 2, LONG));
            }
            other.status().unwrap();
        }
        match other.barrier("table", 3, SHORT) {
            Err(error) if *error.cause() == (BarrierCause::Size { expected: 2 }) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    refused!(other.barrier("table", 0, LONG), BarrierCause::NoParticipants);
    assert_eq!(other.barrier("table", 2, LONG), Ok(1));
    assert_eq!(block_on(&first, waiting), Ok(1));
}

/// Expects that a dropped future withdraws its arrival, after any number of polls.
pub fn an_abandoned_arrival_is_not_counted(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let (quitter, other) = (cluster.futures(1), cluster.session(0));
    for polls in 0..40 {
        let mut waiting = Box::pin(quitter.barrier("doubt", 2, LONG));
        expect_long_pending(&mut waiting, &other, polls);
        drop(waiting);
        // Arrives after the withdrawal, because one node sends both.
        refused!(Session::new(&quitter).barrier("doubt", 2, SHORT), BarrierCause::Timeout);
    }
    Session::new(&quitter).free_barrier("doubt").unwrap();
    cluster.expect_empty();
}

/// Expects that a barrier does not count a participant after its node has left.
pub fn a_participant_that_left_is_not_counted(h: &dyn Harness) {
    // The third node has no memory, so no barrier is placed there.
    let mut cluster = Cluster::with(h, &[("ada", 1 << 20), ("ada", 1 << 20), ("ada", 0)]);
    let leaving = cluster.futures(2);
    let mut waiting = Box::pin(leaving.barrier("pier", 2, LONG));
    let other = cluster.session(0);
    expect_long_pending(&mut waiting, &other, 100);
    cluster.leave(2);
    assert!(block_on(&leaving, waiting).is_err(), "the node has left");
    refused!(other.barrier("pier", 2, SHORT), BarrierCause::Timeout);
}

/// Expects that a principal can enter the barrier only between the grant and the revoke, and that a refused participant
/// does not count.
pub fn a_barrier_may_be_restricted_to_principals(h: &dyn Harness) {
    let cluster = Cluster::of_principals(h, &["ada", "bob"]);
    let (ada, bob) = (cluster.session(0), cluster.session(1));
    ada.create_barrier("door", Permissions::empty()).unwrap();
    refused!(ada.create_barrier("door", Permissions::ATOMIC), BarrierCause::Region(RegionCause::NameTaken));
    let bob_is_denied = || {
        let cause = bob.barrier("door", 1, LONG).unwrap_err().cause;
        assert_eq!(
            cause,
            BarrierCause::Region(RegionCause::PermissionDenied { missing: Permissions::ATOMIC })
        );
    };
    bob_is_denied();
    refused!(bob.grant_barrier("door", Who::Everyone, Permissions::ATOMIC), BarrierCause::Region(_));
    refused!(ada.barrier("door", 2, SHORT), BarrierCause::Timeout);
    let to_bob = || Who::Principal("bob".into());
    ada.grant_barrier("door", to_bob(), Permissions::ATOMIC).unwrap();
    assert_eq!(bob.barrier("door", 1, LONG), Ok(1));
    ada.revoke_barrier("door", to_bob(), Permissions::ATOMIC).unwrap();
    bob_is_denied();
    refused!(bob.free_barrier("door"), BarrierCause::Region(_));
    assert_eq!(ada.barrier("door", 1, LONG), Ok(2));
}
