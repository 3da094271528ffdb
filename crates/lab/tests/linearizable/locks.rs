//! Locks that are taken, tried and given up from several nodes.

use fastrand::Rng;
use halite::LockCause;

use lab::conformance::embedded::{Direct, Posted};
use lab::conformance::session::Guard;
use lab::conformance::{Cluster, Harness, Session};
use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::Action::{Call, Response};
use todc_utils::linearizability::history::History;
use todc_utils::specifications::Specification;

use super::recorder::{Recorder, history};

const THREADS: usize = 4;
const NODES: usize = 3;
const ROUNDS: u64 = 60;
const TURNS: usize = 5;

/// Who did what; the answer to taking is a token.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Take { thread: usize, token: u64 },
    Refused,
    GiveUp { thread: usize },
}

/// Who holds the lock, and the last token that was given out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct State {
    holder: Option<usize>,
    token: u64,
}

/// A lock that one thread after the other uses.
struct Lock;

impl Specification for Lock {
    type State = State;
    type Operation = Operation;

    fn init() -> State {
        State::default()
    }

    fn apply(operation: &Operation, before: &State) -> (bool, State) {
        match *operation {
            Operation::Take { thread, token } => {
                let is_right = before.holder.is_none() && token > before.token;
                (is_right, State { holder: Some(thread), token })
            }
            Operation::Refused => (before.holder.is_some(), *before),
            Operation::GiveUp { thread } => {
                (before.holder == Some(thread), State { holder: None, ..*before })
            }
        }
    }
}

fn play(session: &Session, round: u64, recorder: &mut Recorder<'_, Operation>) {
    let mut random = Rng::with_seed(round << 8 | recorder.thread as u64);
    let (name, thread) = (format!("lock {round}"), recorder.thread);
    for _ in 0..TURNS {
        let taken = |guard: &Guard| Operation::Take { thread, token: guard.token() };
        let guard = if random.u64(0..2) == 0 {
            Some(recorder.record(|| session.lock(&name).expect("it can be had"), taken))
        } else {
            let refused_or_taken = |guard: &Option<Guard>| guard.as_ref().map_or(Operation::Refused, taken);
            recorder.record(|| try_lock(session, &name), refused_or_taken)
        };
        if let Some(guard) = guard {
            recorder.record(|| guard.unlock().expect("it is held"), |()| Operation::GiveUp { thread });
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

fn locks_have_an_order(harness: &dyn Harness) {
    let cluster = Cluster::new(harness, NODES);
    let sessions: Vec<Session> = (0..THREADS).map(|thread| cluster.session(thread % NODES)).collect();
    for round in 0..ROUNDS {
        let history = history(THREADS, |recorder| play(&sessions[recorder.thread], round, recorder));
        let text = format!("{history:?}");
        assert!(WGLChecker::<Lock>::is_linearizable(history), "round {round} has no order: {text}");
    }
}

#[test]
fn what_many_nodes_do_with_a_lock_has_an_order() {
    locks_have_an_order(&Direct);
}

#[test]
fn what_many_nodes_do_with_a_lock_by_posting_has_an_order() {
    locks_have_an_order(&Posted);
}

#[test]
fn two_holders_at_a_time_are_refused_and_so_is_a_token_that_does_not_rise() {
    let take = |thread, token| Operation::Take { thread, token };
    let give_up = |thread| Operation::GiveUp { thread };
    let has_order = |operations: &[(usize, Operation)]| {
        let actions =
            operations.iter().flat_map(|&(thread, did)| [(thread, Call(did)), (thread, Response(did))]);
        WGLChecker::<Lock>::is_linearizable(History::from_actions(actions.collect()))
    };
    assert!(has_order(&[(0, take(0, 7)), (0, give_up(0)), (1, take(1, 8))]));
    assert!(!has_order(&[(0, take(0, 7)), (1, take(1, 8)), (0, give_up(0))]));
    assert!(!has_order(&[(0, take(0, 7)), (0, give_up(0)), (1, take(1, 7))]));
    assert!(!has_order(&[(0, Operation::Refused)]), "nobody held it");
}
