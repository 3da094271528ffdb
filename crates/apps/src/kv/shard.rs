//! A shard at its owner: the table that clients read, and the execution of requests.
//!
//! Only the owner writes. It keeps a private copy of the slots, and trusts an entry in shared memory only if its
//! checksum matches.

mod edit;
mod lost;

use std::collections::BTreeSet;

use halite::{AllocOptions, Lh, Permissions, Session, WriteOp};

use super::decimal::parse_integer;
use super::error::KvError;
use super::heap::{self, Block, Heap, Live};
use super::layout::{
    BUCKET_BYTES, BUCKET_SLOTS, BUCKETS_MAX, CLASSES, Entry, Hash, KEY_BYTES_MAX, MOVED, ROOT_BYTES, Slot,
    VALUE_BYTES_MAX, WORD, bucket_of, class_of, encode_words, root_name, table_name, units_of,
};
use super::limit::Eviction;
use super::wire::{Answer, Expires, Only, Request, When, push_part};

use self::edit::edit_value;
pub(super) use self::lost::needs_owner;

/// Buckets of a new table.
const BUCKETS_MIN: u64 = 8;
/// The table grows when `QUARTERS - 1` quarters of its slots are in use.
const QUARTERS: u64 = 4;
/// Maximum number of slots per key after growth. A full bucket of a sparser table means that keys were chosen to
/// collide, so the table does not grow, and the shard refuses the key.
const SLOTS_PER_KEY_MAX: u64 = 32;
/// Maximum number of expired keys that are removed at a time.
const SWEEP_MAX: usize = 64;
/// Maximum number of keys per answer to a scan.
pub(super) const SCAN_MAX: u64 = 10_000;
/// Maximum bytes of keys per answer to a scan, except those of its last bucket.
const SCAN_BYTES_MAX: usize = 1 << 20;
/// Number of change counters. A key's hash selects its counter, so several keys share one.
const CHANGE_COUNTERS: usize = 1 << 16;
/// Maximum length of a buffer that is kept for the next request.
pub(super) const KEPT_BYTES_MAX: usize = 2 << 20;
/// Number of random slots that are tried to find a key to evict. One in two or three is in use, unless keys were
/// removed.
const EVICTION_PROBES: usize = 64;
/// If there is no block for an entry, keys with at least this many bytes are evicted, or a part of all bytes in use if
/// that is less; then twice as many, for this number of rounds.
const EVICTED_BYTES_MIN: u64 = 1 << 20;
const EVICTED_DIVISOR: u64 = 16;
const EVICTION_ROUNDS: u32 = 4;
/// Bytes per write when a table is overwritten.
const FILL_BYTES: usize = 64 << 10;

/// A shard, and its owner's state.
pub(super) struct Shard {
    session: Session,
    name: String,
    number: usize,
    everyone: Permissions,
    root: Lh,
    table: Table,
    heap: Heap,
    keys: u64,
    /// Expiry in ms and key of each entry that expires.
    expiring: BTreeSet<(u64, Box<[u8]>)>,
    /// Change counters, for clients that watch keys. Empty until a client watches one.
    change_counts: Vec<u64>,
    /// Maximum bytes in use.
    limit_bytes: u64,
    eviction: Eviction,
    /// Chooses keys to evict.
    random: fastrand::Rng,
    /// Number of evicted keys.
    evicted: u64,
    /// True while a request is tried again after an eviction.
    is_evicting: bool,
    /// True if the last request was refused because its bucket is full.
    is_bucket_full: bool,
    /// True if the shard continues without keys after a loss of memory.
    pub(super) outlives_memory: bool,
    /// True if memory of the shard was lost with a node.
    is_lost: bool,
    /// Total number of removed or replaced entries.
    removals: u64,
    /// Value of `removals`, and the class of the requested block, when the last compaction failed.
    failed_compaction: Option<(u64, u8)>,
    /// The last entry read.
    entry: Vec<u8>,
    /// The last entry written.
    written: Vec<u8>,
}

struct Table {
    lh: Lh,
    generation: u64,
    buckets: u64,
    slots: Vec<u64>,
    /// For each slot, the bits of its key's hash that determine its bucket.
    bucket_bits: Vec<u32>,
}

/// An entry that was found; its bytes are in the shard's buffer.
#[derive(Clone, Copy, Debug)]
struct Found {
    index: usize,
    slot: Slot,
    expires_ms: u64,
    value_at: usize,
    value_len: usize,
}

impl Table {
    async fn create(
        session: &Session,
        name: &str,
        shard: usize,
        generation: u64,
        buckets: u64,
        everyone: Permissions,
    ) -> Result<Table, KvError> {
        let name = table_name(name, shard, generation);
        let lh = heap::allocate_region(session, &name, buckets * BUCKET_BYTES, everyone).await?;
        let slots = buckets as usize * BUCKET_SLOTS;
        Ok(Table { lh, generation, buckets, slots: vec![0; slots], bucket_bits: vec![0; slots] })
    }

    fn bucket_slots(&self, bucket_bits: u32) -> std::ops::Range<usize> {
        let begin = bucket_of(bucket_bits, self.buckets) as usize * BUCKET_SLOTS;
        begin..begin + BUCKET_SLOTS
    }

    fn empty_slot(&self, bucket_bits: u32) -> Option<usize> {
        self.bucket_slots(bucket_bits).find(|index| self.slots[*index] == 0)
    }

    /// Copies all slots to a table of twice the length.
    fn copy_to(&self, other: &mut Table) {
        for (word, bucket_bits) in self.slots.iter().zip(&self.bucket_bits).filter(|(word, _)| **word != 0) {
            let free = other.empty_slot(*bucket_bits).expect("its buckets have slots of one bucket each");
            (other.slots[free], other.bucket_bits[free]) = (*word, *bucket_bits);
        }
    }
}

impl Shard {
    pub(super) async fn create(
        session: Session,
        name: &str,
        number: usize,
        everyone: Permissions,
    ) -> Result<Shard, KvError> {
        let options = AllocOptions { everyone, ..AllocOptions::default() };
        let root = session.alloc_with(Some(&root_name(name, number)), ROOT_BYTES, options).await?;
        let table = match Table::create(&session, name, number, 0, BUCKETS_MIN, everyone).await {
            Ok(table) => table,
            Err(error) => {
                session.free(root).await?;
                return Err(error);
            }
        };
        session.write(root, 0, &encode_words([0, BUCKETS_MIN])).await?;
        let heap = Heap::new(session.clone(), name, number, everyone);
        let (name, expiring, entry, written) = (name.to_owned(), BTreeSet::new(), Vec::new(), Vec::new());
        let (keys, change_counts, removals, failed_compaction) = (0, Vec::new(), 0, None);
        Ok(Shard {
            session,
            name,
            number,
            everyone,
            root,
            table,
            heap,
            keys,
            expiring,
            change_counts,
            limit_bytes: u64::MAX,
            eviction: Eviction::Never,
            random: fastrand::Rng::with_seed(number as u64),
            evicted: 0,
            is_evicting: false,
            is_bucket_full: false,
            outlives_memory: false,
            is_lost: false,
            removals,
            failed_compaction,
            entry,
            written,
        })
    }

    /// Frees all memory of the shard.
    pub(super) async fn free(mut self) -> Result<(), KvError> {
        let mut freed = self.heap.clear().await.and(self.heap.free_deferred().await);
        for lh in [self.table.lh, self.root] {
            // Frees the other region even if this one fails.
            freed = freed.and(heap::free(&self.session, lh).await);
        }
        freed
    }

    /// Executes a request at `now_ms` and writes the answer into `answer`. Fails only if the shard cannot continue.
    pub(super) async fn execute(
        &mut self,
        now_ms: u64,
        request: &Request<'_>,
        answer: &mut Vec<u8>,
    ) -> Result<(), KvError> {
        self.is_bucket_full = false;
        let mut done = self.try_execute(now_ms, request, answer).await;
        if let Err(KvError::Full) = done
            && self.eviction != Eviction::Never
        {
            // Boxed, because it is rare, and so the futures of get and set stay small.
            done = Box::pin(self.execute_with_eviction(now_ms, request, answer)).await;
        }
        for buffer in [&mut self.entry, &mut self.written] {
            if buffer.capacity() > KEPT_BYTES_MAX {
                *buffer = Vec::new();
            }
        }
        match done {
            Err(KvError::Full) => {
                Answer::Full.encode(answer);
                Ok(())
            }
            Err(KvError::NoDirectory) => {
                Answer::NoDirectory.encode(answer);
                Ok(())
            }
            done => done,
        }
    }

    /// Returns true if compaction waits until eviction has been tried.
    fn evicts_before_compaction(&self) -> bool {
        self.eviction != Eviction::Never && !self.is_evicting
    }

    /// Executes a request that has found no memory, after the eviction of some keys.
    async fn execute_with_eviction(
        &mut self,
        now_ms: u64,
        request: &Request<'_>,
        answer: &mut Vec<u8>,
    ) -> Result<(), KvError> {
        let mut done = Err(KvError::Full);
        self.is_evicting = true;
        for round in 0..EVICTION_ROUNDS {
            // Keys can be chosen to fill one bucket, and other keys must not suffer.
            if self.is_bucket_full {
                break;
            }
            let bytes = EVICTED_BYTES_MIN.min(self.bytes_used() / EVICTED_DIVISOR) << round;
            let is_smaller = self.evict_down_to(now_ms, self.bytes_used().saturating_sub(bytes)).await?;
            done = self.try_execute(now_ms, request, answer).await;
            if !is_smaller || !matches!(done, Err(KvError::Full)) {
                break;
            }
        }
        self.is_evicting = false;
        done
    }

    async fn try_execute(
        &mut self,
        now_ms: u64,
        request: &Request<'_>,
        answer: &mut Vec<u8>,
    ) -> Result<(), KvError> {
        if self.bytes_used() > self.limit_bytes && request.may_grow() {
            let is_within = Box::pin(self.evict_down_to(now_ms, self.limit_bytes)).await?;
            if !is_within {
                return Err(KvError::Full);
            }
        }
        let outcome = match *request {
            Request::Get { key } => match self.find(now_ms, key).await? {
                Some(found) => {
                    self.answer_value(found, answer);
                    return Ok(());
                }
                None => Answer::Nothing,
            },
            Request::Set { key, value, only, expires, returns_old, is_renamed: _ } => {
                let found = self.find(now_ms, key).await?;
                let holds = match only {
                    Only::Always => true,
                    Only::IfAbsent => found.is_none(),
                    Only::IfPresent => found.is_some(),
                };
                // The buffer holds the old value until the next read.
                match found.filter(|_| returns_old) {
                    Some(found) => self.answer_value(found, answer),
                    None if holds && !returns_old => Answer::Number(1).encode(answer),
                    None => Answer::Nothing.encode(answer),
                }
                if !holds {
                    return Ok(());
                }
                if key.len() > KEY_BYTES_MAX || value.len() > VALUE_BYTES_MAX {
                    Answer::TooLong.encode(answer);
                    return Ok(());
                }
                let expires_ms = expiry(now_ms, expires, found);
                return self.put(key, value, expires_ms, found).await;
            }
            Request::Delete { key } => match self.find(now_ms, key).await? {
                Some(found) => {
                    self.remove(key, found).await?;
                    Answer::Number(1)
                }
                None => Answer::Nothing,
            },
            Request::DeleteIf { key, value, is_equal } => match self.find(now_ms, key).await? {
                Some(found) if (self.value(found) == value) == is_equal => {
                    self.remove(key, found).await?;
                    Answer::Number(1)
                }
                _ => Answer::Nothing,
            },
            Request::Watch { key } => {
                // The removal of an expired key is a change.
                self.find(now_ms, key).await?;
                if self.change_counts.is_empty() {
                    self.change_counts = vec![0; CHANGE_COUNTERS];
                }
                Answer::Number(
                    self.change_counts[Hash::of(key).bucket_bits() as usize % CHANGE_COUNTERS] as i64,
                )
            }
            Request::Take { key } => match self.find(now_ms, key).await? {
                Some(found) => {
                    self.answer_value(found, answer);
                    return self.remove(key, found).await;
                }
                None => Answer::Nothing,
            },
            Request::GetAndExpire { key, expires } => match self.find(now_ms, key).await? {
                Some(found) => {
                    self.answer_value(found, answer);
                    return Box::pin(self.set_expiry(now_ms, key, expires, found)).await;
                }
                None => Answer::Nothing,
            },
            // Boxed, because they are rarer, and so the futures of get and set stay small.
            Request::Append { key, value } => Box::pin(self.append(now_ms, key, value)).await?,
            Request::Add { key, number } => Box::pin(self.add(now_ms, key, number)).await?,
            Request::SetRange { .. }
            | Request::SetBit { .. }
            | Request::AddFloat { .. }
            | Request::BitFields { .. } => return Box::pin(self.edit(now_ms, request, answer)).await,
            Request::Expire { key, expires, when } => match self.find(now_ms, key).await? {
                Some(found)
                    if may_change_expiry(when, found.expires_ms, expiry(now_ms, expires, Some(found))) =>
                {
                    Box::pin(self.set_expiry(now_ms, key, expires, found)).await?;
                    Answer::Number(1)
                }
                _ => Answer::Nothing,
            },
            Request::TimeLeft { key } => match self.find(now_ms, key).await? {
                None => Answer::Nothing,
                Some(Found { expires_ms: 0, .. }) => Answer::Number(-1),
                Some(found) => Answer::Number((found.expires_ms - now_ms) as i64),
            },
            Request::ExpireTime { key } => match self.find(now_ms, key).await? {
                None => Answer::Nothing,
                Some(Found { expires_ms: 0, .. }) => Answer::Number(-1),
                Some(found) => Answer::Number(found.expires_ms as i64),
            },
            Request::Scan { from, count } => {
                return Box::pin(self.scan(now_ms, from, count.min(SCAN_MAX), answer)).await;
            }
            Request::Count => {
                Box::pin(self.sweep(now_ms, usize::MAX)).await?;
                Answer::Number(self.keys as i64)
            }
            Request::Clear => {
                Box::pin(self.clear()).await?;
                Answer::Number(1)
            }
            Request::Memory => {
                let evicted = self.evicted.to_le_bytes();
                Answer::Bytes(self.bytes_used() as i64, &evicted).encode(answer);
                return Ok(());
            }
            Request::Limit { bytes, eviction } => {
                (self.limit_bytes, self.eviction) = (bytes, eviction);
                Answer::Number(1)
            }
            Request::Close => Answer::Number(1),
            // The owner splits these first.
            Request::Batch { .. } => Answer::Malformed,
        };
        outcome.encode(answer);
        Ok(())
    }

    /// Returns the heap, for tests of readers.
    #[cfg(test)]
    pub(super) fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Returns the bytes of all entries and of the table.
    fn bytes_used(&self) -> u64 {
        self.heap.bytes_used() + self.table.buckets * BUCKET_BYTES
    }

    /// Evicts keys until at most `bytes` bytes are used. Returns false if the policy does not permit that.
    async fn evict_down_to(&mut self, now_ms: u64, bytes: u64) -> Result<bool, KvError> {
        while self.bytes_used() > bytes {
            if !self.evict(now_ms).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes an expired key, or else a key that the policy chooses. Returns false if there is none.
    async fn evict(&mut self, now_ms: u64) -> Result<bool, KvError> {
        let may_evict = |at: u64| at <= now_ms || self.eviction == Eviction::SoonestExpiry;
        if let Some((at, key)) = self.expiring.first().filter(|(at, _)| may_evict(*at)).cloned() {
            self.evicted += u64::from(at > now_ms);
            // At this time the key has expired, so `find` removes it.
            self.find(at, &key).await?;
            return Ok(true);
        }
        if self.eviction != Eviction::Random || self.keys == 0 {
            return Ok(false);
        }
        let (slots, random) = (&self.table.slots, &mut self.random);
        let begin = random.usize(..slots.len());
        // Slots in order would prefer the first slots of buckets, so they are only the last resort.
        let mut indices = (0..EVICTION_PROBES).map(|_| random.usize(..slots.len()));
        let index = indices.find(|index| slots[*index] != 0);
        let index = index.or_else(|| (begin..slots.len()).chain(0..begin).find(|index| slots[*index] != 0));
        let Some((index, slot)) = index.and_then(|index| Some((index, Slot::decode(slots[index])?))) else {
            return Ok(false);
        };
        self.heap.read(slot, &mut self.entry).await?;
        let Some(entry) = Entry::decode(&self.entry, slot.place) else { return Err(self.damaged()) };
        let (key, expires_ms) = (entry.key.to_vec(), entry.expires_ms);
        self.evicted += 1;
        self.remove(&key, Found { index, slot, expires_ms, value_at: 0, value_len: 0 }).await?;
        Ok(true)
    }

    /// Removes at most `keys_max` expired keys.
    pub(super) async fn sweep(&mut self, now_ms: u64, keys_max: usize) -> Result<(), KvError> {
        for _ in 0..keys_max {
            let Some((_, key)) = self.expiring.first().filter(|(at, _)| *at <= now_ms).cloned() else {
                break;
            };
            // `find` removes an expired key.
            self.find(now_ms, &key).await?;
        }
        Ok(())
    }

    pub(super) async fn sweep_batch(&mut self, now_ms: u64) -> Result<(), KvError> {
        self.sweep(now_ms, SWEEP_MAX).await
    }

    fn value(&self, found: Found) -> &[u8] {
        &self.entry[found.value_at..found.value_at + found.value_len]
    }

    fn answer_value(&self, found: Found, answer: &mut Vec<u8>) {
        let expires_ms = found.expires_ms as i64;
        Answer::Bytes(expires_ms, self.value(found)).encode(answer);
    }

    /// Returns the entry of a key, unless it has expired.
    async fn find(&mut self, now_ms: u64, key: &[u8]) -> Result<Option<Found>, KvError> {
        let hash = Hash::of(key);
        for index in self.table.bucket_slots(hash.bucket_bits()) {
            let Some(slot) = Slot::decode(self.table.slots[index]).filter(|slot| slot.tag == hash.tag())
            else {
                continue;
            };
            self.heap.read(slot, &mut self.entry).await?;
            let Some(entry) = Entry::decode(&self.entry, slot.place) else { return Err(self.damaged()) };
            if entry.key != key {
                continue;
            }
            let expires_ms = entry.expires_ms;
            let (value_at, value_len) = (Entry::bytes(key.len(), 0), entry.value.len());
            let found = Found { index, slot, expires_ms, value_at, value_len };
            if has_expired(expires_ms, now_ms) {
                self.remove(key, found).await?;
                return Ok(None);
            }
            return Ok(Some(found));
        }
        Ok(None)
    }

    fn damaged(&self) -> KvError {
        KvError::Damaged { shard: self.number, what: "has a damaged entry" }
    }

    /// Writes an entry, in place of the one found under its key, if any.
    async fn put(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_ms: u64,
        found: Option<Found>,
    ) -> Result<(), KvError> {
        let hash = Hash::of(key);
        let bytes = Entry::bytes(key.len(), value.len());
        let class = class_of(bytes).expect("lengths have been checked");
        if found.is_none() {
            self.make_room(hash.bucket_bits()).await?;
        }
        let block = match self.heap.allocate(class, bytes).await {
            // Eviction takes less time than compaction, which gains more if much is free.
            Err(KvError::Full)
                if self.evicts_before_compaction() && !self.heap.is_part_free(EVICTED_DIVISOR) =>
            {
                return Err(KvError::Full);
            }
            // Boxed, because it is rare, and a large future otherwise.
            Err(error @ (KvError::Full | KvError::NoDirectory)) => {
                Box::pin(self.compact(class)).await?.ok_or(error)?
            }
            allocated => allocated?,
        };
        // Compaction may have moved the entry that was found.
        let found = found.map(|found| Found {
            slot: Slot::decode(self.table.slots[found.index]).expect("the entry exists"),
            ..found
        });
        Entry { expires_ms, key, value }.encode(block.place, &mut self.written);
        let index = match found {
            Some(found) => found.index,
            None => self.table.empty_slot(hash.bucket_bits()).expect("room has been made"),
        };
        let word = block.slot(hash.tag()).encode();
        // Both regions are on this node, where writes take effect in this order: a reader that sees the slot sees the
        // entry.
        let slot = WriteOp { lh: self.table.lh, offset: index as u64 * WORD, from: &word.to_le_bytes() };
        let writes = [self.heap.write_op(block, &self.written), slot];
        self.session.write_batch(&writes).await.map_err(|error| error.source)?;
        self.table.slots[index] = word;
        if found.is_none() {
            self.table.bucket_bits[index] = hash.bucket_bits();
        }
        self.count_change(hash.bucket_bits());
        match found {
            Some(found) => self.release_entry(key, found),
            None => self.keys += 1,
        }
        if expires_ms != 0 {
            self.expiring.insert((expires_ms, key.into()));
        }
        self.free_retired().await
    }

    /// Frees the regions of long entries that were replaced or removed.
    async fn free_retired(&mut self) -> Result<(), KvError> {
        // Boxed, because it is rare, and a large future otherwise.
        if self.heap.has_retired() { Box::pin(self.heap.free_retired()).await } else { Ok(()) }
    }

    /// Makes a block of `class` from scattered free memory by moving the live entries in between. Returns `None` if
    /// that is impossible.
    async fn compact(&mut self, class: u8) -> Result<Option<Block>, KvError> {
        // Compaction fails again unless memory was freed since. Long entries are in no part of the heap.
        if class >= CLASSES || self.failed_compaction == Some((self.removals, class)) {
            return Ok(None);
        }
        let slots = self.table.slots.iter().enumerate();
        let mut live: Vec<Live> = slots
            .filter_map(|(index, word)| Some(Live { slot: Slot::decode(*word)?, index }))
            .filter(|live| !live.slot.is_long())
            .collect();
        live.sort_unstable_by_key(|live| live.slot.place);
        let Some(begin) = self.heap.sparsest_range(class, &live) else { return Ok(None) };
        let range = begin..begin + units_of(class);
        self.heap.rebuild_free_blocks(&live, Some((begin, class)));
        let mut is_free = true;
        for live in live.iter_mut().filter(|live| range.contains(&u64::from(live.slot.place))) {
            match self.heap.allocate_without_growing(live.slot.class) {
                Some(block) => live.slot = self.move_entry(*live, block).await?,
                None => is_free = false,
            }
        }
        self.heap.rebuild_free_blocks(&live, is_free.then_some((begin, class)));
        if !is_free {
            self.failed_compaction = Some((self.removals, class));
        }
        Ok(is_free.then_some(Block { place: begin as u32, class }))
    }

    /// Copies an entry to a free block; returns the slot that now points to it.
    async fn move_entry(&mut self, live: Live, block: Block) -> Result<Slot, KvError> {
        let mut bytes = Vec::new();
        self.heap.read(live.slot, &mut bytes).await?;
        let Some(entry) = Entry::decode(&bytes, live.slot.place) else { return Err(self.damaged()) };
        entry.encode(block.place, &mut self.written);
        let slot = block.slot(live.slot.tag);
        // The order matters, as in `put`.
        let word = slot.encode().to_le_bytes();
        let to_slot = WriteOp { lh: self.table.lh, offset: live.index as u64 * WORD, from: &word };
        let writes = [self.heap.write_op(block, &self.written), to_slot];
        self.session.write_batch(&writes).await.map_err(|error| error.source)?;
        self.table.slots[live.index] = slot.encode();
        Ok(slot)
    }

    fn count_change(&mut self, bucket_bits: u32) {
        if let Some(count) = self.change_counts.get_mut(bucket_bits as usize % CHANGE_COUNTERS) {
            *count += 1;
        }
    }

    /// Writes the found entry again with a new expiry; removes it if it expires at once.
    async fn set_expiry(
        &mut self,
        now_ms: u64,
        key: &[u8],
        expires: Expires,
        found: Found,
    ) -> Result<(), KvError> {
        let expires_ms = expiry(now_ms, expires, Some(found));
        if has_expired(expires_ms, now_ms) {
            return self.remove(key, found).await;
        }
        let value = self.value(found).to_vec();
        self.put(key, &value, expires_ms, Some(found)).await
    }

    async fn remove(&mut self, key: &[u8], found: Found) -> Result<(), KvError> {
        self.set_slot(found.index, 0).await?;
        self.count_change(self.table.bucket_bits[found.index]);
        self.release_entry(key, found);
        self.keys -= 1;
        self.free_retired().await
    }

    /// Frees the block of an entry whose slot was changed. A concurrent reader of the block detects the reuse when it
    /// reads the slot again.
    fn release_entry(&mut self, key: &[u8], found: Found) {
        self.heap.release(Block::from(found.slot));
        self.removals += 1;
        if found.expires_ms != 0 {
            self.expiring.remove(&(found.expires_ms, key.into()));
        }
    }

    async fn set_slot(&mut self, index: usize, word: u64) -> Result<(), KvError> {
        self.session.write(self.table.lh, index as u64 * WORD, &word.to_le_bytes()).await?;
        self.table.slots[index] = word;
        Ok(())
    }

    async fn append(&mut self, now_ms: u64, key: &[u8], tail: &[u8]) -> Result<Answer<'static>, KvError> {
        let found = self.find(now_ms, key).await?;
        let mut value = found.map_or(Vec::new(), |found| self.value(found).to_vec());
        value.extend(tail);
        if key.len() > KEY_BYTES_MAX || value.len() > VALUE_BYTES_MAX {
            return Ok(Answer::TooLong);
        }
        self.put(key, &value, expiry(now_ms, Expires::Unchanged, found), found).await?;
        Ok(Answer::Number(value.len() as i64))
    }

    /// Executes a request that changes a part of a value.
    async fn edit(
        &mut self,
        now_ms: u64,
        request: &Request<'_>,
        answer: &mut Vec<u8>,
    ) -> Result<(), KvError> {
        let (Request::SetRange { key, .. }
        | Request::SetBit { key, .. }
        | Request::AddFloat { key, .. }
        | Request::BitFields { key, .. }) = *request
        else {
            unreachable!("the caller passes only these requests");
        };
        let found = self.find(now_ms, key).await?;
        let absent = if matches!(request, Request::AddFloat { .. }) { &b"0"[..] } else { &[] };
        let mut value = found.map_or(absent, |found| self.value(found)).to_vec();
        match edit_value(&mut value, request, answer) {
            _ if key.len() > KEY_BYTES_MAX => Answer::TooLong.encode(answer),
            Err(refusal) => refusal.encode(answer),
            Ok(true) => {
                self.put(key, &value, expiry(now_ms, Expires::Unchanged, found), found).await?;
            }
            Ok(false) => {}
        }
        Ok(())
    }

    async fn add(&mut self, now_ms: u64, key: &[u8], number: i64) -> Result<Answer<'static>, KvError> {
        if key.len() > KEY_BYTES_MAX {
            return Ok(Answer::TooLong);
        }
        let found = self.find(now_ms, key).await?;
        let text = found.map_or(&b"0"[..], |found| self.value(found));
        let Some(old) = parse_integer(text) else { return Ok(Answer::NotANumber) };
        let Some(sum) = old.checked_add(number) else { return Ok(Answer::Overflow) };
        let value = sum.to_string();
        self.put(key, value.as_bytes(), expiry(now_ms, Expires::Unchanged, found), found).await?;
        Ok(Answer::Number(sum))
    }

    /// Returns keys of some buckets, each preceded by its length. A client that continues at the returned cursor sees
    /// each key that stays at least once, even if the table grows: buckets are visited in the order of their reversed
    /// bits.
    async fn scan(
        &mut self,
        now_ms: u64,
        from: u64,
        count: u64,
        answer: &mut Vec<u8>,
    ) -> Result<(), KvError> {
        let bits = self.table.buckets.trailing_zeros();
        let mut cursor = from.reverse_bits() >> (u64::BITS - bits) << (u64::BITS - bits);
        let (mut keys, mut found) = (Vec::new(), 0);
        let next = loop {
            let bucket = cursor.reverse_bits();
            for index in self.table.bucket_slots(bucket as u32) {
                let Some(slot) = Slot::decode(self.table.slots[index]) else { continue };
                self.heap.read(slot, &mut self.entry).await?;
                let Some(entry) = Entry::decode(&self.entry, slot.place) else { return Err(self.damaged()) };
                if !has_expired(entry.expires_ms, now_ms) {
                    push_part(&mut keys, entry.key);
                    found += 1;
                }
            }
            match cursor.checked_add(1 << (u64::BITS - bits)) {
                None => break 0,
                Some(after) if found >= count.max(1) || keys.len() >= SCAN_BYTES_MAX => {
                    break after.reverse_bits();
                }
                Some(after) => cursor = after,
            }
        };
        Answer::Bytes(next as i64, &keys).encode(answer);
        Ok(())
    }

    async fn clear(&mut self) -> Result<(), KvError> {
        // A client that has seen a key disappear must not find it again, so all slots are cleared before the table is
        // replaced.
        self.fill_slots(self.table.lh, self.table.slots.len(), 0).await?;
        for index in 0..self.table.slots.len() {
            if self.table.slots[index] != 0 {
                self.count_change(self.table.bucket_bits[index]);
            }
        }
        self.table.slots.fill(0);
        self.keys = 0;
        self.expiring.clear();
        self.heap.clear().await?;
        if self.table.buckets == BUCKETS_MIN {
            return Ok(());
        }
        match self.create_table(self.table.generation + 1, BUCKETS_MIN).await {
            // The shard keeps the larger table, which works as well.
            Err(KvError::Full | KvError::NoDirectory) => Ok(()),
            created => self.switch_to_table(created?).await,
        }
    }

    /// Grows the table until the bucket selected by `bucket_bits` has an empty slot.
    async fn make_room(&mut self, bucket_bits: u32) -> Result<(), KvError> {
        while self.table.empty_slot(bucket_bits).is_none()
            || (self.keys + 1) * QUARTERS > self.table.slots.len() as u64 * (QUARTERS - 1)
        {
            // Boxed, because growth is rare, and so the future of set stays small.
            Box::pin(self.grow()).await?;
        }
        Ok(())
    }

    /// Replaces the table by one of twice the length.
    async fn grow(&mut self) -> Result<(), KvError> {
        let (buckets, generation) = (2 * self.table.buckets, self.table.generation + 1);
        let is_sparse = (self.keys + 1) * SLOTS_PER_KEY_MAX < buckets * BUCKET_SLOTS as u64;
        if buckets > BUCKETS_MAX || is_sparse {
            self.is_bucket_full = true;
            return Err(KvError::Full);
        }
        let mut table = match self.create_table(generation, buckets).await {
            // Removed values may have left empty parts of the heap, whose memory the table can use.
            Err(KvError::Full) if self.heap.shrink().await? => self.create_table(generation, buckets).await?,
            created => created?,
        };
        // In a full store, the old table's region has been freed by now.
        self.table.copy_to(&mut table);
        self.session.write(table.lh, 0, &encode_words(table.slots.iter().copied())).await?;
        self.switch_to_table(table).await
    }

    /// Replaces the table by `table`, whose slots are already in shared memory.
    async fn switch_to_table(&mut self, table: Table) -> Result<(), KvError> {
        self.session.write(self.root, 0, &encode_words([table.generation, table.buckets])).await?;
        let old = std::mem::replace(&mut self.table, table);
        // Readers that see these slots in the old table map the new one.
        self.fill_slots(old.lh, old.slots.len(), MOVED as u8).await?;
        self.heap.free_region(old.lh).await
    }

    /// Overwrites each byte of a table's slots with `byte`.
    async fn fill_slots(&self, table: Lh, slots: usize, byte: u8) -> Result<(), KvError> {
        let (len, bytes) = (slots * WORD as usize, vec![byte; FILL_BYTES.min(slots * WORD as usize)]);
        for at in (0..len).step_by(FILL_BYTES) {
            self.session.write(table, at as u64, &bytes[..FILL_BYTES.min(len - at)]).await?;
        }
        Ok(())
    }

    async fn create_table(&self, generation: u64, buckets: u64) -> Result<Table, KvError> {
        Table::create(&self.session, &self.name, self.number, generation, buckets, self.everyone).await
    }
}

/// Returns true if the condition allows a change of expiry from `old_ms` to `new_ms`.
fn may_change_expiry(when: When, old_ms: u64, new_ms: u64) -> bool {
    let rank = |ms| if ms == 0 { u64::MAX } else { ms };
    match when {
        When::Always => true,
        When::KeptForEver => old_ms == 0,
        When::Expiring => old_ms != 0,
        When::Later => rank(new_ms) > rank(old_ms),
        When::Sooner => rank(new_ms) < rank(old_ms),
        When::SoonerIfExpiring => old_ms != 0 && rank(new_ms) < rank(old_ms),
    }
}

fn has_expired(expires_ms: u64, now_ms: u64) -> bool {
    expires_ms != 0 && expires_ms <= now_ms
}

/// Returns the expiry of a value that is set now.
fn expiry(now_ms: u64, expires: Expires, found: Option<Found>) -> u64 {
    match expires {
        Expires::Never => 0,
        Expires::Unchanged => found.map_or(0, |found| found.expires_ms),
        // The maximum stays below `u64::MAX`, which stands for "never" in comparisons.
        Expires::After { ms } => now_ms.saturating_add(ms).clamp(1, i64::MAX as u64),
        Expires::At { ms } => ms.clamp(1, i64::MAX as u64),
    }
}
