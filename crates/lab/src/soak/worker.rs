//! One process of the soak: does random things, in random order, until it is told to rest, or is killed.

use std::thread::{self, JoinHandle};
use std::time::Duration;

use fastrand::Rng;
use halite::blocking::{Mailbox, Server, Session};
use halite::{Config, Node, NodeId, ServeOptions};

use super::board::{Board, Note, Phase, SHELVES, WorkerState, unexpected};
use super::locks::{LOOSE, Loose};
use super::regions::Own;
use super::scratch::Scratch;
use super::talk::{ECHO, PORT, answer};
use super::{Result, WORKERS, WorkerOptions, mailbox, mix};
use crate::conformance::cluster::CHUNK;

/// All workers.
pub const EVERYBODY: u64 = ((1 << WORKERS) - 1) << 1;
/// Twice what all workers together need at most, should all of it be here.
pub const ARENA_BYTES: u64 = 64 << 20;
/// So few that senders meet a full port now and then.
const MESSAGES_MAX: usize = 16;
/// Operations between two looks at what is to be done, and how far this one is.
const OPERATIONS_PER_LOOK: u64 = 16;
/// How often a resting worker looks whether it may leave.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// What a worker remembers.
pub struct Worker {
    pub(super) board: Board,
    pub(super) session: Session,
    pub(super) node: u32,
    pub(super) incarnation: u64,
    pub(super) random: Rng,
    /// What was added to each counter.
    pub(super) sums: [u64; super::board::COUNTERS as usize],
    /// The last round of the barrier, and how many of them were passed here.
    pub(super) round: u64,
    pub(super) passes: u64,
    pub(super) loose: [Option<Loose>; LOOSE as usize],
    pub(super) serial: u64,
    pub(super) shelves: [Option<Own>; SHELVES as usize],
    pub(super) scratch: Option<Scratch>,
    /// To which incarnation of each node how many messages were sent.
    pub(super) sent: [(u64, u64); WORKERS as usize + 1],
    excused: u64,
}

/// One kind of operation.
type Operation = fn(&mut Worker) -> Result<()>;

/// What there is to be done, and how often in 1000 operations.
const OPERATIONS: &[(u64, Operation)] = &[
    (200, Worker::add),
    (150, Worker::swap),
    (216, Worker::write),
    (200, Worker::read),
    (50, Worker::read_from_afar),
    (10, Worker::renew),
    (2, Worker::relocate),
    (40, Worker::fill),
    (30, Worker::copy),
    (30, Worker::lock),
    (6, Worker::lock_loose),
    (2, Worker::meet),
    (30, Worker::call),
    (4, Worker::call_in_batches),
    (30, Worker::send),
];

/// Runs a worker; returns when it was told to leave.
pub fn run(options: &WorkerOptions) -> Result<()> {
    let node = Node::embedded(config(&options.dir, options.node)).map_err(unexpected)?;
    let board = Board::open(node.blocking_session())?;
    let services = Services::open(&node.blocking_session(), &board, options.incarnation)?;
    let mut worker = Worker::new(board, node.blocking_session(), options);
    worker.note_state(WorkerState::Working)?;
    while worker.board.phase()? == Phase::Work {
        worker.do_some()?;
    }
    worker.rest()?;
    while worker.board.phase()? != Phase::Leave {
        thread::park_timeout(LOOK_AGAIN);
    }
    services.close();
    Ok(())
}

/// What all nodes of the soak have in common.
pub fn config(dir: &std::path::Path, node: u32) -> Config {
    Config {
        dir: dir.to_path_buf(),
        node: Some(NodeId(node)),
        arena_bytes: ARENA_BYTES,
        segment_bytes: ARENA_BYTES,
        chunk_bytes: CHUNK,
        ..Config::default()
    }
}

impl Worker {
    fn new(board: Board, session: Session, options: &WorkerOptions) -> Worker {
        Worker {
            board,
            session,
            node: options.node,
            incarnation: options.incarnation,
            random: Rng::with_seed(mix(options.seed) ^ mix(options.incarnation)),
            sums: Default::default(),
            round: 0,
            passes: 0,
            loose: Default::default(),
            serial: 0,
            shelves: Default::default(),
            scratch: None,
            sent: Default::default(),
            excused: 0,
        }
    }

    fn note_state(&self, state: WorkerState) -> Result<()> {
        self.board.set_note(self.incarnation, Note::WorkerState, state as u64)
    }

    fn do_some(&mut self) -> Result<()> {
        for _ in 0..OPERATIONS_PER_LOOK {
            let (kind, operation) = self.choose();
            self.board.set_note(self.incarnation, Note::Doing, kind as u64)?;
            operation(self)?;
        }
        let done = self.board.note(self.incarnation, Note::Done)?;
        self.board.set_note(self.incarnation, Note::Done, done + OPERATIONS_PER_LOOK)
    }

    fn choose(&mut self) -> (usize, Operation) {
        let all: u64 = OPERATIONS.iter().map(|(weight, _)| weight).sum();
        let mut chosen = self.random.u64(0..all);
        for (kind, (weight, operation)) in OPERATIONS.iter().enumerate() {
            match chosen.checked_sub(*weight) {
                Some(rest) => chosen = rest,
                None => return (kind, *operation),
            }
        }
        unreachable!("the weights add up to all")
    }

    /// Another worker, if the one that was drawn is at work: its node and its incarnation.
    pub(super) fn peer(&mut self) -> Result<Option<(u32, u64)>> {
        let node = 1 + self.random.u64(0..u64::from(WORKERS)) as u32;
        let incarnation = self.board.incarnation(node)?;
        Ok((incarnation != 0).then_some((node, incarnation)))
    }

    /// An operation has failed because of a kill.
    pub(super) fn excused(&mut self) -> Result<()> {
        self.excused += 1;
        self.board.set_note(self.incarnation, Note::Excused, self.excused)
    }

    /// Gives everything back.
    fn rest(&mut self) -> Result<()> {
        for shelf in 0..SHELVES {
            self.free(shelf)?;
        }
        if let Some(scratch) = self.scratch.take() {
            self.give_back_scratch(scratch)?;
        }
        self.note_state(WorkerState::Resting)
    }
}

/// What a worker does for others, on threads of its own.
struct Services {
    server: Server,
    mailbox: Mailbox,
    threads: Vec<JoinHandle<()>>,
}

impl Services {
    fn open(session: &Session, board: &Board, incarnation: u64) -> Result<Services> {
        let server = session.serve(ECHO, ServeOptions::default()).map_err(unexpected)?;
        let options = ServeOptions { requests_max: MESSAGES_MAX, ..ServeOptions::default() };
        let mailbox = session.open_port(PORT, options).map_err(unexpected)?;
        let (calls, messages, board) = (server.clone(), mailbox.clone(), board.clone());
        let threads = vec![
            thread::spawn(move || end_unless(answer(&calls))),
            thread::spawn(move || end_unless(mailbox::receive(&messages, &board, incarnation))),
        ];
        Ok(Services { server, mailbox, threads })
    }

    fn close(self) {
        self.server.close();
        self.mailbox.close();
        for thread in self.threads {
            thread.join().expect("services end the process rather than panic");
        }
    }
}

/// A failure of a service ends the process, as one of the worker itself does.
fn end_unless(ended: Result<()>) {
    if let Err(failure) = ended {
        eprintln!("lab: {failure}");
        std::process::exit(1);
    }
}
