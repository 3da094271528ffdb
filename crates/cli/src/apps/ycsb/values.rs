//! The format of values, and the check that a read returns a valid one.
//!
//! A value contains its key and its update. An update consists of a thread and a number, which counts the thread's
//! updates from 1; number 0 stands for the first value of a key. A read must return an undamaged value of its key, set
//! by an update that has begun. From its own updates and reads, this process knows the latest updates of a key. A read
//! must not return a value that is older than the latest update of the same thread that was known when the read began.
//! It must not return the first value if any update was known.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Minimum length of a value in bytes: the key and the update.
pub(super) const VALUE_BYTES_MIN: u64 = 16;
/// Number of bits of an update's number; the thread is in the bits above.
const THREAD_SHIFT: u32 = 40;
/// Maximum number of latest updates that are recorded per key, each of a different thread: one cache line.
const THREADS_KNOWN: usize = 8;
/// Maximum number of words for latest updates: 64 MiB. Further keys are not tracked.
const KNOWN_WORDS_MAX: usize = 8 << 20;

/// A thread and the number of its update.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) struct Update(u64);

impl Update {
    pub(super) fn new(thread: u64, number: u64) -> Update {
        Update(thread << THREAD_SHIFT | number)
    }

    fn thread(self) -> usize {
        (self.0 >> THREAD_SHIFT) as usize
    }

    fn number(self) -> u64 {
        self.0 & ((1 << THREAD_SHIFT) - 1)
    }

    /// Returns true if the value precedes all updates.
    fn is_first(self) -> bool {
        self.number() == 0
    }
}

/// Writes a value: key, update, and a byte derived from both in the rest.
pub(super) fn write_value(value: &mut [u8], key: u64, update: Update) {
    value[..8].copy_from_slice(&key.to_le_bytes());
    value[8..16].copy_from_slice(&update.0.to_le_bytes());
    value[16..].fill((key ^ update.0) as u8);
}

/// Returns the update that set `value`; `None` if the value is damaged, or of another key or length.
fn update_of(value: &[u8], key: u64, len: usize) -> Option<Update> {
    let (head, rest) = value.split_first_chunk::<16>()?;
    let word = |range: Range<usize>| u64::from_le_bytes(head[range].try_into().expect("8 bytes"));
    let fill = (word(0..8) ^ word(8..16)) as u8;
    let is_sound = value.len() == len && word(0..8) == key && rest.iter().all(|byte| *byte == fill);
    is_sound.then_some(Update(word(8..16)))
}

/// The updates that the threads of a process know.
pub(super) struct Known {
    /// Number of updates begun, for threads of this process; `None` for others. Indexed by thread of the run.
    begun: Vec<Option<AtomicU64>>,
    /// The latest known updates, `width` words per key.
    latest: Vec<AtomicU64>,
    width: usize,
}

/// The latest known updates of a key when a read began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before([Update; THREADS_KNOWN]);

impl Known {
    /// Creates the state for `threads` threads of the run, of which `ours` are in this process.
    pub(super) fn new(threads: u32, ours: &[u64], keys: u64) -> Known {
        let (threads, width) = (u64::from(threads), (threads as usize).min(THREADS_KNOWN));
        let begun = (0..threads).map(|thread| ours.contains(&thread).then(AtomicU64::default)).collect();
        let words = usize::try_from(keys).unwrap_or(usize::MAX).min(KNOWN_WORDS_MAX / width) * width;
        Known { begun, latest: (0..words).map(|_| AtomicU64::new(0)).collect(), width }
    }

    /// Creates the state for a run without updates, in which all keys keep their first values.
    pub(super) fn without_updates() -> Known {
        Known { begun: Vec::new(), latest: Vec::new(), width: 1 }
    }

    /// Begins the next update of a thread of this process.
    pub(super) fn begin_update(&self, thread: u64) -> Update {
        let begun = self.begun[thread as usize].as_ref().expect("it is one of ours");
        // Pairs with the load in `is_begun`. No other thread stores to this word.
        let number = begun.load(Ordering::Relaxed) + 1;
        begun.store(number, Ordering::Release);
        Update::new(thread, number)
    }

    /// Returns the number of updates that a thread of this process has begun.
    pub(super) fn updates_begun(&self, thread: u64) -> u64 {
        let begun = self.begun.get(thread as usize).and_then(Option::as_ref);
        begun.map_or(0, |begun| begun.load(Ordering::Relaxed))
    }

    /// Records an update that has ended, or whose value was read.
    pub(super) fn record(&self, key: u64, update: Update) {
        let Some(row) = self.row(key) else { return };
        let latest = &row[update.thread() % self.width];
        let before = Update(latest.load(Ordering::Relaxed));
        if before.is_first() || before.thread() != update.thread() || before < update {
            // Pairs with the load in `before`. If two threads store at once, one is forgotten, which only weakens the
            // check.
            latest.store(update.0, Ordering::Release);
        }
    }

    /// Returns the known updates of a key, for a read that is about to begin.
    pub(super) fn before(&self, key: u64) -> Before {
        let mut before = Before([Update::default(); THREADS_KNOWN]);
        for (known, latest) in before.0.iter_mut().zip(self.row(key).unwrap_or_default()) {
            // Pairs with the store in `record`: the read must see the recorded updates.
            *known = Update(latest.load(Ordering::Acquire));
        }
        before
    }

    /// Returns the update that set `value`, if a read of `key` that began with `before` may return it.
    pub(super) fn check(&self, value: &[u8], key: u64, len: usize, before: Before) -> Option<Update> {
        let update = update_of(value, key, len)?;
        if update.is_first() {
            let is_replaced = before.0.iter().any(|known| !known.is_first());
            return (update == Update::default() && !is_replaced).then_some(update);
        }
        if !self.is_begun(update) {
            return None;
        }
        let known = before.0[update.thread() % self.width];
        let is_replaced = !known.is_first() && known.thread() == update.thread() && update < known;
        if is_replaced {
            return None;
        }
        self.record(key, update);
        Some(update)
    }

    /// Returns true if the update has begun, or belongs to another process. Updates of other processes are checked at
    /// the end of the run.
    fn is_begun(&self, update: Update) -> bool {
        match self.begun.get(update.thread()) {
            // Pairs with the store in `begin_update`.
            Some(Some(begun)) => update.number() <= begun.load(Ordering::Acquire),
            Some(None) => true,
            None => false,
        }
    }

    fn row(&self, key: u64) -> Option<&[AtomicU64]> {
        let at = usize::try_from(key).ok()?.checked_mul(self.width)?;
        self.latest.get(at..at + self.width)
    }
}

/// For each thread, the number of the latest of its updates that was read.
#[derive(Clone, Debug)]
pub(super) struct Latest(Vec<u64>);

impl Latest {
    pub(super) fn new(threads: u32) -> Latest {
        Latest(vec![0; threads as usize])
    }

    pub(super) fn record(&mut self, update: Update) {
        if let Some(latest) = self.0.get_mut(update.thread()) {
            *latest = update.number().max(*latest);
        }
    }

    /// Adds the reads of other processes.
    pub(super) fn merge(&mut self, others: &[u64]) {
        for (latest, other) in self.0.iter_mut().zip(others) {
            *latest = (*latest).max(*other);
        }
    }

    /// Returns the numbers by thread.
    pub(super) fn numbers(&self) -> &[u64] {
        &self.0
    }
}
