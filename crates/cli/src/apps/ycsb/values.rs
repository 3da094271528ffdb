//! What values say of themselves, and what a process knows of which may be read.
//!
//! A value names its key and its update: the thread that has made it, and the number of that among the thread's, from 1 on; or 0, of the
//! values that keys have before anybody updates them.  A value that is read is one that was set under its key, whole; its update had begun;
//! and it is none that an update of the same thread had replaced, or one of those from before where there had been any, as far as this
//! process knew when the read began: by its own updates, and by what its threads had read.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes at the begin of a value that name its key and its update.
pub(super) const VALUE_BYTES_MIN: u64 = 16;
/// Below it, the number of an update; above it, its thread.
const THREAD_SHIFT: u32 = 40;
/// Latest updates of a key that are known, of one thread each: they share a cache line.
const THREADS_KNOWN: usize = 8;
/// Most words of latest updates: 64 MiB.  Of keys beyond that, none is known.
const KNOWN_WORDS_MAX: usize = 8 << 20;

/// An update, as values name it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) struct Update(u64);

impl Update {
    pub(super) fn new(thread: u64, number: u64) -> Update {
        Update(thread << THREAD_SHIFT | number)
    }

    /// Of the thread whose number it is.
    fn thread(self) -> usize {
        (self.0 >> THREAD_SHIFT) as usize
    }

    /// Which of that thread's.
    fn number(self) -> u64 {
        self.0 & ((1 << THREAD_SHIFT) - 1)
    }

    /// Whether it is no update, but what was there before.
    fn is_first(self) -> bool {
        self.number() == 0
    }
}

/// The rest of a value is filled with what its first bytes say.
pub(super) fn write_value(value: &mut [u8], key: u64, update: Update) {
    value[..8].copy_from_slice(&key.to_le_bytes());
    value[8..16].copy_from_slice(&update.0.to_le_bytes());
    value[16..].fill((key ^ update.0) as u8);
}

/// The update that has set a value; `None` if it is not one of that key and length, or not whole.
fn update_of(value: &[u8], key: u64, len: usize) -> Option<Update> {
    let (head, rest) = value.split_first_chunk::<16>()?;
    let word = |range: Range<usize>| u64::from_le_bytes(head[range].try_into().expect("8 bytes"));
    let fill = (word(0..8) ^ word(8..16)) as u8;
    let is_sound = value.len() == len && word(0..8) == key && rest.iter().all(|byte| *byte == fill);
    is_sound.then_some(Update(word(8..16)))
}

/// What the threads of a process know of updates.
pub(super) struct Known {
    /// Of each thread of the run that is one of this process, how many updates it has begun.
    begun: Vec<Option<AtomicU64>>,
    /// Of each key, the latest of some threads that were there.
    latest: Vec<AtomicU64>,
    width: usize,
}

/// What was known of a key when a read began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before([Update; THREADS_KNOWN]);

impl Known {
    /// Of so many threads and keys; `ours` are those of this process.
    pub(super) fn new(threads: u32, ours: &[u64], keys: u64) -> Known {
        let (threads, width) = (u64::from(threads), (threads as usize).min(THREADS_KNOWN));
        let begun = (0..threads).map(|thread| ours.contains(&thread).then(AtomicU64::default)).collect();
        let words = usize::try_from(keys).unwrap_or(usize::MAX).min(KNOWN_WORDS_MAX / width) * width;
        Known { begun, latest: (0..words).map(|_| AtomicU64::new(0)).collect(), width }
    }

    /// Of a run in which nobody updates: all is as it was set first.
    pub(super) fn of_no_updates() -> Known {
        Known { begun: Vec::new(), latest: Vec::new(), width: 1 }
    }

    /// A thread of ours begins its next update.
    pub(super) fn begin(&self, thread: u64) -> Update {
        let begun = self.begun[thread as usize].as_ref().expect("it is one of ours");
        // Pairs with the load in `is_begun`.  Nobody else stores it.
        let number = begun.load(Ordering::Relaxed) + 1;
        begun.store(number, Ordering::Release);
        Update::new(thread, number)
    }

    /// How many updates a thread of ours has begun.
    pub(super) fn begun(&self, thread: u64) -> u64 {
        let begun = self.begun.get(thread as usize).and_then(Option::as_ref);
        begun.map_or(0, |begun| begun.load(Ordering::Relaxed))
    }

    /// An update of a key was there: it has ended, or its value was read.
    pub(super) fn note(&self, key: u64, update: Update) {
        let Some(row) = self.row(key) else { return };
        let latest = &row[update.thread() % self.width];
        let before = Update(latest.load(Ordering::Relaxed));
        if before.is_first() || before.thread() != update.thread() || before < update {
            // Pairs with the load in `before`.  Where two are at it, one is forgotten, and less is known.
            latest.store(update.0, Ordering::Release);
        }
    }

    /// What is known of a key that is about to be read.
    pub(super) fn before(&self, key: u64) -> Before {
        let mut before = Before([Update::default(); THREADS_KNOWN]);
        for (known, latest) in before.0.iter_mut().zip(self.row(key).unwrap_or_default()) {
            // Pairs with the store in `note`: what was there then is there for this read.
            *known = Update(latest.load(Ordering::Acquire));
        }
        before
    }

    /// The update that a value of that length is of, if it may be read under that key after that.
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
        self.note(key, update);
        Some(update)
    }

    /// Of threads of other processes, that is known when all is over.
    fn is_begun(&self, update: Update) -> bool {
        match self.begun.get(update.thread()) {
            // Pairs with the store in `begin`.
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

/// The latest update of each thread that was read.
#[derive(Clone, Debug)]
pub(super) struct Latest(Vec<u64>);

impl Latest {
    pub(super) fn new(threads: u32) -> Latest {
        Latest(vec![0; threads as usize])
    }

    pub(super) fn note(&mut self, update: Update) {
        if let Some(latest) = self.0.get_mut(update.thread()) {
            *latest = update.number().max(*latest);
        }
    }

    /// Also what others have read.
    pub(super) fn join(&mut self, others: &[u64]) {
        for (latest, other) in self.0.iter_mut().zip(others) {
            *latest = (*latest).max(*other);
        }
    }

    /// By thread.
    pub(super) fn numbers(&self) -> &[u64] {
        &self.0
    }
}
