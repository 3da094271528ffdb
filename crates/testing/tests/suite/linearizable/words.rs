//! Words that several nodes add to, swap and read.

use fastrand::Rng;
use halite::Lh;

use halite_testing::conformance::cluster::{everyone, shared};
use halite_testing::conformance::embedded::{Direct, Posted};
use halite_testing::conformance::{Cluster, Harness, Session};
use halite_trials::linearizability::register::{self, Change, Register};
use halite_trials::linearizability::{Span, is_linearizable};

use super::recorder::{Recorder, history};

const THREADS: usize = 4;
const NODES: usize = 3;
const ROUNDS: u64 = 100;
/// Enough that short operations of different threads overlap.
const OPERATIONS: usize = 48;
/// Few, so that threads compete for them.
const WORDS: u64 = 2;
const WORD_BYTES: u64 = 8;

/// An operation on a word, and its result.
type Operation = (u64, register::Operation);

fn add(word: u64, add: u64, found: u64) -> Operation {
    (word, register::Operation::Change { change: Change::Add(add), found })
}

fn swap(word: u64, expected: u64, new: u64, found: u64) -> Operation {
    (word, register::Operation::Change { change: Change::Swap { expected, new }, found })
}

fn look(word: u64, found: u64) -> Operation {
    (word, register::Operation::Look { found })
}

/// Returns true if the history is linearizable, which holds if that of each word is (Herlihy and Wing, 1990).
fn has_order(history: &[(Span, Operation)]) -> bool {
    let of_word = |word| {
        let of_word = history.iter().filter(|(_, operation)| operation.0 == word);
        of_word.map(|(span, operation)| (*span, operation.1)).collect::<Vec<_>>()
    };
    (0..WORDS).all(|word| is_linearizable::<Register>(register::Operation::Begin(0), &of_word(word)))
}

/// A session with its handle. Each round uses other words, which are zero at first.
struct Player {
    session: Session,
    lh: Lh,
}

impl Player {
    fn join(cluster: &Cluster, node: usize) -> Player {
        let session = cluster.session(node);
        let lh = session.map("words", everyone()).expect("the object exists");
        Player { session, lh }
    }

    fn read(&self, offset: u64) -> u64 {
        let mut bytes = [0; WORD_BYTES as usize];
        self.session.read(self.lh, offset, &mut bytes).expect("the region is readable");
        u64::from_ne_bytes(bytes)
    }

    fn add(&self, offset: u64, add: u64) -> u64 {
        self.session.fetch_add(self.lh, offset, add).expect("the region is changeable")
    }

    fn swap(&self, offset: u64, expected: u64, new: u64) -> u64 {
        self.session.compare_swap(self.lh, offset, expected, new).expect("the region is changeable")
    }

    /// Executes random operations, and records them.
    fn play(&self, round: u64, recorder: &mut Recorder<'_, Operation>) {
        let mut random = Rng::with_seed(round << 8 | recorder.thread as u64);
        let mut last = 0;
        for _ in 0..OPERATIONS {
            let word = random.u64(0..WORDS);
            let (offset, value) = ((round * WORDS + word) * WORD_BYTES, 1 + random.u64(0..3));
            last = match random.u64(0..3) {
                0 => recorder.record(|| self.add(offset, value), |old| add(word, value, *old)),
                // The word may or may not still have the last value seen.
                1 => recorder.record(|| self.swap(offset, last, value), |old| swap(word, last, value, *old)),
                _ => recorder.record(|| self.read(offset), |found| look(word, *found)),
            };
        }
    }
}

fn players(cluster: &Cluster) -> Vec<Player> {
    shared(&cluster.session(0), "words", ROUNDS * WORDS * WORD_BYTES);
    (0..THREADS).map(|thread| Player::join(cluster, thread % NODES)).collect()
}

fn check_words(harness: &dyn Harness) {
    let cluster = Cluster::new(harness, NODES);
    let players = players(&cluster);
    for round in 0..ROUNDS {
        let history = history(THREADS, |recorder| players[recorder.thread].play(round, recorder));
        assert!(has_order(&history), "round {round} has no order: {history:?}");
    }
}

#[test]
fn words_are_linearizable() {
    check_words(&Direct);
}

#[test]
fn posted_accesses_to_words_are_linearizable() {
    check_words(&Posted);
}
