//! Requests of all kinds in both directions at the same time. Each request is executed once and in order, although the
//! network loses, repeats and reorders packets.
//!
//! In one lane, an end writes parts of its constant data to random places of the other end's memory, and reads constant
//! data of the other end. In the other lane, it sends messages and notifications, and executes fetch-adds and swaps. No
//! other request accesses the same memory, so the test knows the result of each request when it posts the request. No
//! transmitted byte is above 0x7f, so other tests can recognise changed bytes.

use std::collections::VecDeque;
use std::ops::Range;

use fastrand::Rng;
use halite_fabric::{Completion, CompletionKind, Event, Key, Lane, Local, Operation, Status, WorkId};
use halite_mem::Window;

use crate::common::pair::Pair;
use crate::common::{bytes_of, inline, remote};

/// Length of the constant data, and of the memory for writes.
const BYTES: usize = 1 << 18;
/// Length of the buffer for the result of a read, and the maximum length of a read.
const READ_BYTES_MAX: usize = 1 << 14;
/// Maximum number of posted requests of one end.
const POSTED_MAX: usize = 24;
/// Number of words that atomics change.
const WORDS: u64 = 4;
const BULK: Lane = Lane { number: 1, class: halite_fabric::Class::Bulk, flow: 2 };

/// State of one end.
struct Side {
    constant: (Key, Vec<u8>),
    written: (Key, Window),
    /// Expected contents after all writes of the other end.
    model: Vec<u8>,
    words: (Key, Window),
    word_values: [u64; WORDS as usize],
    /// Buffers for results of reads, one for each posted request.
    read: (Key, Window),
    /// Expected results of this end's posted requests, by lane and in order.
    expected: [VecDeque<(WorkId, Expected)>; 2],
    /// Messages that this end must still receive, in order.
    messages: VecDeque<(Vec<u8>, u32)>,
    /// Number of requests that this end has made.
    count: usize,
    /// Number of requests that were reads.
    reads: usize,
}

#[derive(Debug)]
enum Expected {
    Done,
    Old(u64),
    Read { at: usize, bytes: Vec<u8> },
}

pub struct Traffic {
    sides: [Side; 2],
    random: Rng,
}

impl Traffic {
    pub fn new(pair: &Pair, seed: u64) -> Traffic {
        println!("traffic of seed {seed}");
        let mut random = Rng::with_seed(seed);
        let sides = std::array::from_fn(|index| {
            let end = &pair.ends[index];
            let constant: Vec<u8> = (0..BYTES).map(|_| random.usize(0..0x80) as u8).collect();
            let (constant_key, window) = end.register(BYTES as u64);
            window.write(0, &constant).unwrap();
            Side {
                constant: (constant_key, constant),
                written: end.register(BYTES as u64),
                model: vec![0; BYTES],
                words: end.register(8 * WORDS),
                word_values: [0; WORDS as usize],
                read: end.register((POSTED_MAX * READ_BYTES_MAX) as u64),
                expected: Default::default(),
                messages: VecDeque::new(),
                count: 0,
                reads: 0,
            }
        });
        Traffic { sides, random }
    }

    /// Executes this many further requests at each end, and checks all results.
    pub fn run(&mut self, pair: &mut Pair, requests: usize) {
        let targets = self.sides.each_ref().map(|side| side.count + requests);
        pair.wait_for("the end of the traffic", |pair| {
            for (end, target) in targets.into_iter().enumerate() {
                while self.sides[end].count < target && self.posted(end) < POSTED_MAX {
                    self.post(pair, end);
                }
                while let Some(event) = pair.ends[end].events.pop_front() {
                    self.check(end, event);
                }
            }
            (0..2).all(|end| self.sides[end].count == targets[end] && self.posted(end) == 0).then_some(())
        });
        pair.wait_for("all messages", |pair| {
            for end in 0..2 {
                while let Some(event) = pair.ends[end].events.pop_front() {
                    self.check(end, event);
                }
            }
            self.sides.iter().all(|side| side.messages.is_empty()).then_some(())
        });
        self.check_memory();
    }

    /// Checks that memory has exactly the expected contents.
    pub fn check_memory(&self) {
        for side in &self.sides {
            assert!(
                bytes_of(&side.written.1, 0, BYTES) == side.model,
                "the memory differs from the written bytes"
            );
            for (at, value) in side.word_values.iter().enumerate() {
                assert_eq!(side.words.1.load_u64(8 * at as u64), Ok(*value));
            }
        }
    }

    fn posted(&self, end: usize) -> usize {
        self.sides[end].expected.iter().map(VecDeque::len).sum()
    }

    fn post(&mut self, pair: &mut Pair, end: usize) {
        let count = self.sides[end].count;
        self.sides[end].count += 1;
        let [this, other] = match &mut self.sides {
            [this, other] if end == 0 => [this, other],
            [other, this] => [this, other],
        };
        let lane = match self.random.usize(0..8) {
            0..=2 => {
                let source = range(&mut self.random, BYTES, 20_000);
                let to = self.random.usize(0..BYTES - source.len());
                other.model[to..][..source.len()].copy_from_slice(&this.constant.1[source.clone()]);
                let (offset, len) = (source.start as u64, source.len() as u64);
                let local = Local::Registered { key: this.constant.0, offset, len };
                let write = Operation::Write { local, remote: remote(other.written.0, to as u64) };
                (1, pair.post_to(end, BULK, write), Expected::Done)
            }
            3 => {
                let source = range(&mut self.random, BYTES, READ_BYTES_MAX);
                // Reads complete in order, so no other read uses this buffer now.
                let at = this.reads % POSTED_MAX * READ_BYTES_MAX;
                this.reads += 1;
                let (offset, len) = (at as u64, source.len() as u64);
                let local = Local::Registered { key: this.read.0, offset, len };
                let read = Operation::Read { local, remote: remote(other.constant.0, source.start as u64) };
                let id = pair.post_to(end, BULK, read);
                (1, id, Expected::Read { at, bytes: other.constant.1[source].to_vec() })
            }
            4 => {
                let bytes = this.constant.1[range(&mut self.random, BYTES, 9000)].to_vec();
                let imm = count as u32;
                let id = pair.post(end, Operation::Send { bytes: &bytes, imm });
                other.messages.push_back((bytes, imm));
                (0, id, Expected::Done)
            }
            5 => {
                let imm = count as u32;
                other.messages.push_back((Vec::new(), imm));
                let local = inline(&[]);
                let notify = Operation::WriteImm { local, remote: remote(other.written.0, 0), imm };
                (0, pair.post(end, notify), Expected::Done)
            }
            6 => {
                let (word, add) = (self.random.usize(0..WORDS as usize), self.random.usize(0..1000) as u64);
                let old = other.word_values[word];
                other.word_values[word] += add;
                let remote = remote(other.words.0, 8 * word as u64);
                (0, pair.post(end, Operation::FetchAdd { remote, add }), Expected::Old(old))
            }
            _ => {
                let word = self.random.usize(0..WORDS as usize);
                let (old, new) = (other.word_values[word], self.random.usize(0..1 << 30) as u64);
                // Every other swap expects a wrong value.
                let expected = old + (count as u64 & 1);
                if expected == old {
                    other.word_values[word] = new;
                }
                let remote = remote(other.words.0, 8 * word as u64);
                (0, pair.post(end, Operation::CompareSwap { remote, expected, new }), Expected::Old(old))
            }
        };
        this.expected[lane.0].push_back((lane.1, lane.2));
    }

    fn check(&mut self, end: usize, event: Event) {
        let Event::Completed(Completion { status, kind, .. }) = event else {
            panic!("unexpected event: {event:?}");
        };
        assert_eq!(status, Status::Success);
        let side = &mut self.sides[end];
        let (id, old) = match kind {
            CompletionKind::Received { bytes, imm } => {
                return assert_eq!(side.messages.pop_front(), Some((bytes, imm)));
            }
            CompletionKind::Notified { imm } => {
                return assert_eq!(side.messages.pop_front(), Some((Vec::new(), imm)));
            }
            CompletionKind::Done { id } => (id, None),
            CompletionKind::Atomic { id, old } => (id, Some(old)),
        };
        let mut lanes = side.expected.iter_mut();
        let lane = lanes.find(|lane| lane.front().is_some_and(|(next, _)| *next == id));
        let (_, expected) =
            lane.expect("requests of a lane complete in order, each once").pop_front().unwrap();
        match expected {
            Expected::Done => assert_eq!(old, None),
            Expected::Old(value) => assert_eq!(old, Some(value)),
            Expected::Read { at, bytes } => {
                assert!(
                    bytes_of(&side.read.1, at as u64, bytes.len()) == bytes,
                    "the read returned wrong bytes"
                );
            }
        }
    }
}

/// Returns a random range within `bytes`, at most `len_max` long. Half of the ranges have at most 64 bytes.
fn range(random: &mut Rng, bytes: usize, len_max: usize) -> Range<usize> {
    let bound = if random.bool() { 64 } else { len_max };
    let len = random.usize(1..=bound);
    let begin = random.usize(0..bytes - len);
    begin..begin + len
}
