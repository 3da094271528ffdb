//! Words that are added to, swapped and read from several nodes.

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
/// So many that those of different threads overlap, short as they are.
const OPERATIONS: usize = 48;
/// So few that they are fought for.
const WORDS: u64 = 2;
const WORD_BYTES: u64 = 8;

/// What was done to which word, and what came back.
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

/// Whether there is an order; that is so if there is one for each word (Herlihy and Wing, 1990).
fn has_order(history: &[(Span, Operation)]) -> bool {
    let of_word = |word| {
        let of_word = history.iter().filter(|(_, operation)| operation.0 == word);
        of_word.map(|(span, operation)| (*span, operation.1)).collect::<Vec<_>>()
    };
    (0..WORDS).all(|word| is_linearizable::<Register>(register::Operation::Begin(0), &of_word(word)))
}

/// A session, and its handle of the words; each round has words of its own, which are zero in the beginning.
struct Player {
    session: Session,
    lh: Lh,
}

impl Player {
    fn join(cluster: &Cluster, node: usize) -> Player {
        let session = cluster.session(node);
        let lh = session.map("words", everyone()).expect("it is there");
        Player { session, lh }
    }

    fn read(&self, offset: u64) -> u64 {
        let mut bytes = [0; WORD_BYTES as usize];
        self.session.read(self.lh, offset, &mut bytes).expect("it can be read");
        u64::from_ne_bytes(bytes)
    }

    fn add(&self, offset: u64, add: u64) -> u64 {
        self.session.fetch_add(self.lh, offset, add).expect("it can be changed")
    }

    /// As an addition, but not in one piece.
    fn add_in_two_steps(&self, offset: u64, add: u64) -> u64 {
        let old = self.read(offset);
        // So that others come in between also on one processor.
        std::thread::yield_now();
        let new = old.wrapping_add(add).to_ne_bytes();
        self.session.write(self.lh, offset, &new).expect("it can be written");
        old
    }

    fn swap(&self, offset: u64, expected: u64, new: u64) -> u64 {
        self.session.compare_swap(self.lh, offset, expected, new).expect("it can be changed")
    }

    /// Draws operations and notes them.
    fn play(&self, round: u64, recorder: &mut Recorder<'_, Operation>) {
        let mut random = Rng::with_seed(round << 8 | recorder.thread as u64);
        let mut last = 0;
        for _ in 0..OPERATIONS {
            let word = random.u64(0..WORDS);
            let (offset, value) = ((round * WORDS + word) * WORD_BYTES, 1 + random.u64(0..3));
            last = match random.u64(0..3) {
                0 => recorder.record(|| self.add(offset, value), |old| add(word, value, *old)),
                // What was seen last is likely to be there still, or not.
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

fn words_have_an_order(harness: &dyn Harness) {
    let cluster = Cluster::new(harness, NODES);
    let players = players(&cluster);
    for round in 0..ROUNDS {
        let history = history(THREADS, |recorder| players[recorder.thread].play(round, recorder));
        assert!(has_order(&history), "round {round} has no order: {history:?}");
    }
}

#[test]
fn what_many_nodes_do_to_words_has_an_order() {
    words_have_an_order(&Direct);
}

#[test]
fn what_many_nodes_do_to_words_by_posting_has_an_order() {
    words_have_an_order(&Posted);
}

/// Otherwise the tests above would show nothing.
#[test]
fn additions_in_two_steps_soon_have_no_order() {
    let cluster = Cluster::new(&Direct, NODES);
    let players = players(&cluster);
    let is_refused = |round: u64| {
        let offset = round * WORDS * WORD_BYTES;
        let history = history(THREADS, |recorder| {
            for _ in 0..OPERATIONS {
                let player = &players[recorder.thread];
                let describe = |old: &u64| add(0, 1, *old);
                recorder.record(|| player.add_in_two_steps(offset, 1), describe);
            }
        });
        !has_order(&history)
    };
    assert!((0..ROUNDS).any(is_refused), "the checker sees nothing");
}

#[test]
fn a_read_of_what_was_added_to_before_it_began_is_refused() {
    let span = |begin_ns| Span { begin_ns, end_ns: begin_ns + 1 };
    let one_after_the_other = |found| has_order(&[(span(0), add(1, 5, 0)), (span(2), look(1, found))]);
    assert!(one_after_the_other(5));
    assert!(!one_after_the_other(0));
}
