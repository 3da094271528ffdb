//! The board: a region of words in which the soak's processes note what they do, kept by the node that is never killed.
//!
//! ```text
//!   word 0         phase
//!   word 8+n       the incarnation of node n that is at work, 0 if there is none
//!   word 32+c      counters, which all change by atomics
//!   word 64+32*r   records, which locks protect
//!   row of incarnation l  what that incarnation is about to do and has done, written by it alone
//! ```
//!
//! A word is written in one piece, so a killed process leaves none half written.

use std::fmt::Debug;

use halite::blocking::Session;
use halite::{Lh, Permissions, Placement};

use super::{Failure, Result, WORKERS, mix};

const NAME: &str = "soak board";
/// Enough for the workers and as many more as are killed.
pub const INCARNATIONS_MAX: u64 = 4096;
/// Counters that are only added to come first, those that are swapped last.
pub const COUNTERS: u64 = 6;
/// How many locks protect a record each.
pub const RECORDS: u64 = 4;
/// Words of a record.
pub const RECORD_WORDS: u64 = 32;
/// Regions that an incarnation lets others read.
pub const SHELVES: u64 = 4;

const PHASE: u64 = 0;
const CURRENT: u64 = 8;
const COUNTER: u64 = 32;
const RECORD: u64 = 64;
const ROWS: u64 = RECORD + RECORDS * RECORD_WORDS;
const ROW_WORDS: u64 = 96;
const WORDS: u64 = ROWS + INCARNATIONS_MAX * ROW_WORDS;

/// What everybody is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Operations.
    Work,
    /// Give everything back; answer and receive on.
    Rest,
    /// Leave the cluster.
    Leave,
}

/// How far an incarnation is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum WorkerState {
    /// It may be joining.
    Starting,
    /// Its services are open.
    Working,
    /// It has given everything back.
    Resting,
}

/// A word of an incarnation's row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// See [`WorkerState`].
    WorkerState,
    /// Operations so far.
    Done,
    /// Which operation is under way: its place in the list of operations.
    Doing,
    /// Operations that failed because of a kill.
    Excused,
    /// How often it has passed the barrier.
    Passes,
    /// Messages that it has received.
    Received,
    /// The sum of what it was about to add to a counter, before it did.
    Intended(u64),
    /// The sum of what it has added to a counter.
    Added(u64),
    /// To which incarnation of a node it last sent.
    SentIncarnation(u32),
    /// How many messages it sent to that incarnation.
    Sent(u32),
    /// Of which incarnation of a node it last received.
    HeardIncarnation(u32),
    /// How many messages it received from that incarnation.
    Heard(u32),
    /// The serial number of a region that others may read; 0 for none.
    Shelf(u64),
    /// See [`Cast`]: the nodes that this region is on.
    ShelfNodes(u64),
    /// See [`Cast`]: their incarnations.
    ShelfPrint(u64),
}

impl Note {
    fn word(self) -> u64 {
        // Each family has room for its members.
        match self {
            Note::WorkerState => 0,
            Note::Done => 1,
            Note::Doing => 2,
            Note::Excused => 3,
            Note::Passes => 4,
            Note::Received => 5,
            Note::Intended(counter) => 8 + counter,
            Note::Added(counter) => 16 + counter,
            Note::SentIncarnation(node) => 24 + u64::from(node),
            Note::Sent(node) => 36 + u64::from(node),
            Note::HeardIncarnation(node) => 48 + u64::from(node),
            Note::Heard(node) => 60 + u64::from(node),
            Note::Shelf(shelf) => 72 + shelf,
            Note::ShelfNodes(shelf) => 80 + shelf,
            Note::ShelfPrint(shelf) => 88 + shelf,
        }
    }
}

/// Nodes that an operation needs, in the incarnations that they had at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cast {
    /// A bit for each node.
    pub nodes: u64,
    /// The incarnations, folded into one number.
    pub print: u64,
    /// Whether each of them was at work.
    pub complete: bool,
}

/// A session's view of the board.
#[derive(Clone, Debug)]
pub struct Board {
    session: Session,
    lh: Lh,
}

impl Board {
    /// Makes it, in the memory of the session's node.
    pub fn make(session: Session) -> Result<Board> {
        let lh = session.alloc(Some(NAME), WORDS * 8, Placement::Local, everything()).map_err(unexpected)?;
        Ok(Board { session, lh })
    }

    /// Maps it.
    pub fn open(session: Session) -> Result<Board> {
        let lh = session.map(NAME, everything()).map_err(unexpected)?;
        Ok(Board { session, lh })
    }

    /// Gives it up, for everybody.
    pub fn free(self) -> Result<()> {
        self.session.free(self.lh).map_err(unexpected)
    }

    /// The session by which it is seen.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// What everybody is to do.
    pub fn phase(&self) -> Result<Phase> {
        Ok(match self.word(PHASE)? {
            0 => Phase::Work,
            1 => Phase::Rest,
            _ => Phase::Leave,
        })
    }

    /// Tells everybody what to do.
    pub fn set_phase(&self, phase: Phase) -> Result<()> {
        self.set_word(PHASE, phase as u64)
    }

    /// Which incarnation of a node is at work; 0 if none is.
    pub fn incarnation(&self, node: u32) -> Result<u64> {
        self.word(CURRENT + u64::from(node))
    }

    /// Set before a kill, and after the next incarnation has begun to work.
    pub fn set_incarnation(&self, node: u32, incarnation: u64) -> Result<()> {
        self.set_word(CURRENT + u64::from(node), incarnation)
    }

    /// These nodes, as they are now.
    pub fn cast(&self, nodes: u64) -> Result<Cast> {
        let (mut print, mut complete) = (0_u64, true);
        for node in (1..=WORKERS).filter(|node| nodes >> node & 1 == 1) {
            let incarnation = self.incarnation(node)?;
            complete &= incarnation != 0;
            print = print.wrapping_add(mix(incarnation));
        }
        Ok(Cast { nodes, print, complete })
    }

    /// Whether any of those nodes has been, or is about to be, killed since.
    pub fn has_changed(&self, cast: &Cast) -> Result<bool> {
        Ok(!cast.complete || self.cast(cast.nodes)? != *cast)
    }

    /// A note of an incarnation.
    pub fn note(&self, incarnation: u64, note: Note) -> Result<u64> {
        self.word(row(incarnation) + note.word())
    }

    /// Changes a note of an incarnation.
    pub fn set_note(&self, incarnation: u64, note: Note, value: u64) -> Result<()> {
        self.set_word(row(incarnation) + note.word(), value)
    }

    /// What a counter holds.
    pub fn counter(&self, counter: u64) -> Result<u64> {
        self.word(COUNTER + counter)
    }

    /// Adds to a counter by one atomic.
    pub fn add(&self, counter: u64, add: u64) -> Result<u64> {
        self.session.fetch_add(self.lh, (COUNTER + counter) * 8, add).map_err(unexpected)
    }

    /// Adds to a counter by swapping; whether nobody else was faster.
    pub fn swap(&self, counter: u64, expected: u64, new: u64) -> Result<bool> {
        let old = self.session.compare_swap(self.lh, (COUNTER + counter) * 8, expected, new);
        Ok(old.map_err(unexpected)? == expected)
    }

    /// A word of a record.
    pub fn record(&self, record: u64, word: u64) -> Result<u64> {
        self.word(RECORD + record * RECORD_WORDS + word)
    }

    /// Changes a word of a record.
    pub fn set_record(&self, record: u64, word: u64, value: u64) -> Result<()> {
        self.set_word(RECORD + record * RECORD_WORDS + word, value)
    }

    fn word(&self, word: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.session.read(self.lh, word * 8, &mut bytes).map_err(unexpected)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn set_word(&self, word: u64, value: u64) -> Result<()> {
        self.session.write(self.lh, word * 8, &value.to_ne_bytes()).map_err(unexpected)
    }
}

fn row(incarnation: u64) -> u64 {
    assert!(incarnation < INCARNATIONS_MAX, "the board has no row for incarnation {incarnation}");
    ROWS + incarnation * ROW_WORDS
}

/// What everybody may do to the soak's regions.
pub fn everything() -> Permissions {
    Permissions::READ | Permissions::WRITE | Permissions::ATOMIC
}

/// Of the first node, which is never killed, nothing is ever refused.
pub fn unexpected<E: std::error::Error + Debug>(error: E) -> Failure {
    Failure(format!("{error} ({error:?})"))
}
