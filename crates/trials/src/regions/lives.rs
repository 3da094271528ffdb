//! The lives of regions. A life is one region from its allocation to its end; names are reused, lives are not. Each
//! life has a unique region length, by which a session that maps a name recognizes the life.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use halite::Permissions;

use super::permissions::KnownPermissions;
use super::words::{NEVER, Words};

pub(super) const WORD: u64 = 8;
/// Maximum number of lives. The region length of a life, in words, identifies the life modulo this number.
const LIVES_MAX: u64 = 4096;
/// Bit positions of the write's and the life's number in a value.
const WRITE_SHIFT: u32 = 14;
const LIFE_SHIFT: u32 = 48;

/// All regions of a trial.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    lives: Vec<Life>,
    writes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct LifeId(pub(super) usize);

/// One region from its allocation to its end.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) name: usize,
    /// Index of the owner's principal.
    pub(super) owner: usize,
    pub(super) words: Words,
    pub(super) permissions: KnownPermissions,
    pub(super) alloc_begin_ns: u64,
    /// Time at which the allocation returned; [`NEVER`] if that is unknown.
    pub(super) allocated_ns: u64,
    /// Nodes that may hold the region's home or chunks, with their incarnations.
    places: BTreeSet<(u32, u32)>,
    /// Time at which a session began to free the region; [`NEVER`] if none has.
    pub(super) free_begin_ns: u64,
    /// Time from which the region is certainly gone.
    pub(super) freed_ns: u64,
    /// True for each principal from which permissions were ever revoked.
    pub(super) revoked: [bool; crate::harness::PRINCIPALS.len()],
    /// Accesses in progress, by start.
    accesses: BTreeMap<u64, u32>,
    /// Target words of copies in progress.
    copies: Vec<Range<usize>>,
}

/// A write in progress.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) life: LifeId,
    pub(super) words: Range<usize>,
    begin_ns: u64,
    kind: WriteKind,
}

#[derive(Clone, Copy, Debug)]
enum WriteKind {
    Stamped(u64),
    Filled(u8),
}

impl Regions {
    /// Records that a session begins to allocate a region. Returns the length that the region must have; `None` if
    /// there have been too many lives.
    pub(super) fn begin_life(
        &mut self,
        now_ns: u64,
        name: usize,
        owner: usize,
        everyone: Permissions,
        is_long: bool,
    ) -> Option<(LifeId, u64)> {
        let id = self.lives.len() as u64;
        if id + 1 >= LIVES_MAX {
            return None;
        }
        let words = u64::from(is_long) * LIVES_MAX + id + 1;
        self.lives.push(Life {
            name,
            owner,
            words: Words::fresh(words as usize),
            permissions: KnownPermissions::new(owner, everyone),
            alloc_begin_ns: now_ns,
            allocated_ns: NEVER,
            places: BTreeSet::new(),
            free_begin_ns: NEVER,
            freed_ns: NEVER,
            revoked: Default::default(),
            accesses: BTreeMap::new(),
            copies: Vec::new(),
        });
        Some((LifeId(id as usize), words * WORD))
    }

    /// Returns the life with that length.
    pub(super) fn by_len(&self, len: u64) -> Option<LifeId> {
        let id = (len / WORD % LIVES_MAX).checked_sub(1)? as usize;
        let is_right = self.lives.get(id).is_some_and(|life| life.bytes() == len);
        is_right.then_some(LifeId(id))
    }

    pub(super) fn life(&self, id: LifeId) -> &Life {
        &self.lives[id.0]
    }

    pub(super) fn life_mut(&mut self, id: LifeId) -> &mut Life {
        &mut self.lives[id.0]
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = LifeId> {
        (0..self.lives.len()).map(LifeId)
    }

    /// Returns all lives of regions that ever had the name.
    pub(super) fn named(&self, name: usize) -> impl Iterator<Item = &Life> {
        self.lives.iter().filter(move |life| life.name == name)
    }

    // Writes.

    /// Records the start of a write. Returns its bytes, which no other write has at that place.
    pub(super) fn begin_write(&mut self, now_ns: u64, life: LifeId, words: Range<usize>) -> (Write, Vec<u8>) {
        self.writes += 1;
        let write = Write { life, words, begin_ns: now_ns, kind: WriteKind::Stamped(self.writes) };
        self.begin_candidates(&write);
        let mut bytes = Vec::with_capacity(write.words.len() * WORD as usize);
        write.values().for_each(|(_, value)| bytes.extend(value.to_le_bytes()));
        (write, bytes)
    }

    pub(super) fn begin_fill(&mut self, now_ns: u64, life: LifeId, words: Range<usize>, byte: u8) -> Write {
        let write = Write { life, words, begin_ns: now_ns, kind: WriteKind::Filled(byte) };
        self.begin_candidates(&write);
        write
    }

    fn begin_candidates(&mut self, write: &Write) {
        let life = &mut self.lives[write.life.0];
        for (index, value) in write.values() {
            life.words.get_mut(index).begin_write(write.begin_ns, value);
        }
    }

    pub(super) fn end_write(&mut self, now_ns: u64, write: &Write) {
        let life = &mut self.lives[write.life.0];
        let oldest_ns = life.oldest_access_ns(now_ns);
        for (index, value) in write.values() {
            life.words.get_mut(index).end_write(write.begin_ns, now_ns, value, oldest_ns);
        }
    }

    /// Records that the write had no effect, and will have none.
    pub(super) fn undo_write(&mut self, write: &Write) {
        let life = &mut self.lives[write.life.0];
        for (index, value) in write.values() {
            life.words.get_mut(index).undo_write(write.begin_ns, value);
        }
    }

    // Copies.

    /// Records the start of a copy. Until it ends, the target words may hold all values that were ever written.
    pub(super) fn begin_copy(&mut self, to: LifeId, words: Range<usize>) {
        self.lives[to.0].copies.push(words);
    }

    /// Records the end of a copy that began at `begin_ns`.
    pub(super) fn end_copy(
        &mut self,
        now_ns: u64,
        begin_ns: u64,
        from: (LifeId, usize),
        to: (LifeId, Range<usize>),
    ) {
        let (to, words) = to;
        let first = words.start;
        let oldest_ns = self.lives[to.0].oldest_access_ns(now_ns);
        for index in words.clone() {
            let source = &self.lives[from.0.0];
            let at = from.1 + index - first;
            // If source and target overlap, this copy itself is one of the copies in progress.
            let own_copies = usize::from(from.0 == to && words.contains(&at));
            let changing = source.copies.iter().filter(|copy| copy.contains(&at)).count();
            let is_unknown = source.words.get(at).is_unknown() || changing > own_copies;
            // A set, because copies of copies would multiply the values.
            let values: BTreeSet<u64> = source.words.get(at).possible_values(begin_ns).collect();
            let target = self.lives[to.0].words.get_mut(index);
            for value in values {
                target.begin_write(begin_ns, value);
                target.end_write(begin_ns, now_ns, value, oldest_ns);
            }
            if is_unknown {
                target.set_unknown();
            }
        }
        self.forget_copy(to, &words);
    }

    /// Records that the copy had no effect, and will have none.
    pub(super) fn forget_copy(&mut self, to: LifeId, words: &Range<usize>) {
        let copies = &mut self.lives[to.0].copies;
        if let Some(index) = copies.iter().position(|each| each == words) {
            copies.swap_remove(index);
        }
    }

    // Reads.

    /// Returns the index and value of the first word whose value no write explains, among the words that were read. A
    /// reader that `is_cut_off` may see values that were overwritten long ago.
    pub(super) fn find_unexplained(
        &self,
        id: LifeId,
        begin_ns: u64,
        first: usize,
        bytes: &[u8],
        is_cut_off: bool,
    ) -> Option<(usize, u64)> {
        let life = self.life(id);
        let values = bytes
            .chunks_exact(WORD as usize)
            .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
        values.enumerate().map(|(at, value)| (first + at, value)).find(|(index, value)| {
            let is_explained = life.words.get(*index).may_hold(*value, begin_ns)
                || (life.is_copied_to(*index) && self.was_written(*value))
                || (is_cut_off && life.words.get(*index).may_have_held(*value));
            !is_explained
        })
    }

    fn was_written(&self, value: u64) -> bool {
        let is_stamp = value >> LIFE_SHIFT <= self.lives.len() as u64
            && (value >> WRITE_SHIFT & ((1 << (LIFE_SHIFT - WRITE_SHIFT)) - 1)) <= self.writes;
        is_stamp || value.to_le_bytes().iter().all(|byte| *byte == value as u8)
    }

    /// Returns the origin of a value, for error messages.
    pub(super) fn describe(&self, value: u64) -> String {
        let (life, write) =
            (value >> LIFE_SHIFT, value >> WRITE_SHIFT & ((1 << (LIFE_SHIFT - WRITE_SHIFT)) - 1));
        let index = value & ((1 << WRITE_SHIFT) - 1);
        match life.checked_sub(1).and_then(|life| self.lives.get(life as usize).map(|found| (life, found))) {
            Some((life, found)) => {
                format!("{value:#x}: write {write} to word {index} of r{} (life {life})", found.name)
            }
            None => format!("{value:#x}"),
        }
    }
}

impl Life {
    pub(super) fn bytes(&self) -> u64 {
        self.words.len() as u64 * WORD
    }

    /// Returns true if the region has existed since `begin_ns`, as far as the ledger knows.
    pub(super) fn has_lived_since(&self, begin_ns: u64) -> bool {
        self.allocated_ns < begin_ns && self.free_begin_ns == NEVER
    }

    /// Records that the region may be on these nodes, in these incarnations.
    pub(super) fn add_places(&mut self, places: impl IntoIterator<Item = (u32, u32)>) {
        self.places.extend(places);
    }

    /// Returns true if the region has lost no bytes; `is_alive` returns true if an incarnation of a node lives.
    pub(super) fn is_intact(&self, is_alive: impl Fn(u32, u32) -> bool) -> bool {
        self.places.iter().all(|(node, incarnation)| is_alive(*node, *incarnation))
    }

    /// Returns true if the region may have existed at some time since `begin_ns`.
    pub(super) fn may_have_lived(&self, begin_ns: u64) -> bool {
        self.freed_ns >= begin_ns
    }

    pub(super) fn begin_access(&mut self, now_ns: u64) {
        *self.accesses.entry(now_ns).or_default() += 1;
    }

    pub(super) fn end_access(&mut self, begin_ns: u64) {
        let count = self.accesses.get_mut(&begin_ns).expect("the operation began");
        *count -= 1;
        if *count == 0 {
            self.accesses.remove(&begin_ns);
        }
    }

    fn oldest_access_ns(&self, now_ns: u64) -> u64 {
        self.accesses.keys().next().copied().unwrap_or(now_ns)
    }

    fn is_copied_to(&self, index: usize) -> bool {
        self.words.get(index).is_unknown() || self.copies.iter().any(|words| words.contains(&index))
    }
}

impl Write {
    /// Returns the words and their values.
    fn values(&self) -> impl Iterator<Item = (usize, u64)> + use<> {
        let (life, kind) = (self.life.0 as u64 + 1, self.kind);
        self.words.clone().map(move |index| {
            let value = match kind {
                WriteKind::Stamped(number) => {
                    life << LIFE_SHIFT | number << WRITE_SHIFT | (index as u64 & ((1 << WRITE_SHIFT) - 1))
                }
                WriteKind::Filled(byte) => u64::from_le_bytes([byte; 8]),
            };
            (index, value)
        })
    }
}
