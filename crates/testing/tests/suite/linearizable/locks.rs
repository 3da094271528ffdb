//! Locks that several nodes lock, try to lock and unlock.

use fastrand::Rng;
use halite::LockCause;

use halite_testing::conformance::embedded::{Direct, Posted};
use halite_testing::conformance::session::Guard;
use halite_testing::conformance::{Cluster, Harness, Session};
use halite_trials::linearizability::lock::{Lock, Operation};
use halite_trials::linearizability::{Span, is_linearizable};

use super::recorder::{Recorder, history};

const THREADS: usize = 4;
const NODES: usize = 3;
const ROUNDS: u64 = 60;
const TURNS: usize = 5;

fn play(session: &Session, round: u64, recorder: &mut Recorder<'_, Operation>) {
    let mut random = Rng::with_seed(round << 8 | recorder.thread as u64);
    let name = format!("lock {round}");
    for _ in 0..TURNS {
        let taken = |guard: &Guard| Operation::Take(guard.token());
        let guard = if random.u64(0..2) == 0 {
            Some(recorder.record(|| session.lock(&name).expect("the lock is free in the end"), taken))
        } else {
            let refused_or_taken = |guard: &Option<Guard>| guard.as_ref().map_or(Operation::Refused, taken);
            recorder.record(|| try_lock(session, &name), refused_or_taken)
        };
        if let Some(guard) = guard {
            let token = guard.token();
            recorder.record(|| guard.unlock().expect("the lock is held"), |()| Operation::GiveUp(token));
        }
    }
}

fn try_lock(session: &Session, name: &str) -> Option<Guard> {
    match session.try_lock(name) {
        Ok(guard) => Some(guard),
        Err(error) => {
            assert_eq!(error.cause, LockCause::Held);
            None
        }
    }
}

fn check_locks(harness: &dyn Harness) {
    let cluster = Cluster::new(harness, NODES);
    let sessions: Vec<Session> = (0..THREADS).map(|thread| cluster.session(thread % NODES)).collect();
    for round in 0..ROUNDS {
        let history = history(THREADS, |recorder| play(&sessions[recorder.thread], round, recorder));
        assert!(has_order(&history), "round {round} has no order: {history:?}");
    }
}

#[test]
fn locks_are_linearizable() {
    check_locks(&Direct);
}

#[test]
fn posted_locks_are_linearizable() {
    check_locks(&Posted);
}

fn has_order(history: &[(Span, Operation)]) -> bool {
    is_linearizable::<Lock<true>>(Operation::Begin(None), history)
}
