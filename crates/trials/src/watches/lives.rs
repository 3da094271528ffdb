//! Watched regions: possible values of their words, permissions, and notifications.

use super::ledger::{Ledger, Number, Origin, Writer};
use crate::harness::PRINCIPALS;
use crate::regions::permissions::KnownPermissions;
use crate::regions::words::{NEVER, Words};

pub(super) const WORD: u64 = 8;
/// Words per write.
pub(super) const SLOT_WORDS: usize = 4;
/// Offsets of writes; the third slot spans two chunks.
pub(super) const SLOTS: [u64; 3] = [0, 2048, crate::harness::CHUNK_BYTES - 2 * WORD];
/// Words of the shortest region, which reaches into a second chunk.
const WORDS_MIN: u64 = (crate::harness::CHUNK_BYTES + 1024) / WORD;

/// One region from its allocation to its end.
#[derive(Debug)]
pub(super) struct Life {
    words: Words,
    pub(super) permissions: KnownPermissions,
    /// True for each principal from which permissions were ever revoked.
    pub(super) revoked: [bool; PRINCIPALS.len()],
    /// True if the region is being freed, or no session uses it.
    pub(super) is_being_freed: bool,
    /// Time from which the region is certainly gone.
    pub(super) freed_ns: u64,
    pub(super) ledger: Ledger,
    /// Starts of the reads in progress.
    reads: Vec<u64>,
}

/// A write to one slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub(super) number: Number,
    pub(super) slot: usize,
    begin_ns: u64,
}

/// Returns the length of a life's region, which no other has.
pub(super) fn bytes_of(life: usize) -> u64 {
    (WORDS_MIN + life as u64) * WORD
}

/// Returns the life with that length.
pub(super) fn by_len(bytes: u64) -> Option<usize> {
    (bytes / WORD).checked_sub(WORDS_MIN).map(|life| life as usize)
}

impl Life {
    pub(super) fn new(permissions: KnownPermissions) -> Life {
        Life {
            words: Words::fresh(SLOTS.len() * SLOT_WORDS),
            permissions,
            revoked: Default::default(),
            is_being_freed: false,
            freed_ns: NEVER,
            ledger: Ledger::default(),
            reads: Vec::new(),
        }
    }

    /// Records the start of a write with notification; returns its bytes.
    pub(super) fn begin_write(
        &mut self,
        number: Number,
        writer: Writer,
        slot: usize,
        now_ns: u64,
    ) -> (Write, Vec<u8>) {
        self.ledger.begin(number, Origin { writer, slot, begin_ns: now_ns });
        let write = Write { number, slot, begin_ns: now_ns };
        for (index, value) in write.values() {
            self.words.get_mut(index).begin_write(now_ns, value);
        }
        (write, write.values().flat_map(|(_, value)| value.to_le_bytes()).collect())
    }

    /// Records the end of the write, before any watcher was notified.
    pub(super) fn end_write(&mut self, write: Write, now_ns: u64) {
        let oldest_ns = self.reads.iter().copied().min().unwrap_or(now_ns);
        for (index, value) in write.values() {
            self.words.get_mut(index).end_write(write.begin_ns, now_ns, value, oldest_ns);
        }
    }

    /// Records that the write had no effect.
    pub(super) fn undo_write(&mut self, write: Write) {
        for (index, value) in write.values() {
            self.words.get_mut(index).undo_write(write.begin_ns, value);
        }
    }

    /// Records that a watcher has received the notification, so the write ended before the read that follows.
    pub(super) fn record_received(&mut self, number: Number, origin: Origin, now_ns: u64) {
        let Origin { slot, begin_ns, .. } = origin;
        self.end_write(Write { number, slot, begin_ns }, begin_ns.max(now_ns.saturating_sub(1)));
    }

    pub(super) fn begin_read(&mut self, now_ns: u64) {
        self.reads.push(now_ns);
    }

    pub(super) fn end_read(&mut self, begin_ns: u64) {
        let index = self.reads.iter().position(|each| *each == begin_ns).expect("the operation began");
        self.reads.swap_remove(index);
    }

    /// Describes the first word of `bytes`, read from `slot` since `begin_ns`, whose value no write explains; `None` if
    /// all are explained. A reader that `is_cut_off` may see values that were overwritten long ago.
    pub(super) fn find_unexplained(
        &self,
        slot: usize,
        bytes: &[u8],
        begin_ns: u64,
        is_cut_off: bool,
    ) -> Option<String> {
        let words =
            bytes.chunks_exact(WORD as usize).map(|word| u64::from_le_bytes(word.try_into().expect("8")));
        let mut each = words.enumerate().map(|(at, value)| (self.words.get(slot * SLOT_WORDS + at), value));
        let (word, value) = each.find(|(word, value)| {
            let is_explained = word.may_hold(*value, begin_ns) || (is_cut_off && word.may_have_held(*value));
            !is_explained
        })?;
        Some(format!("{value:#x} in slot {slot}, which may hold {}", word.history()))
    }
}

impl Write {
    /// Returns the words and their values.
    fn values(self) -> impl Iterator<Item = (usize, u64)> {
        (0..SLOT_WORDS).map(move |at| (self.slot * SLOT_WORDS + at, self.number << 8 | at as u64))
    }
}
