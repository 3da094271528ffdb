//! A client's handle of a store: reads by one-sided reads, and changes by calls to the owners of the shards.

use std::time::Duration;

use halite::{
    AccessCause, AccessError, AllocOptions, BatchError, CallError, Function, Lh, NodeId, PendingCall,
    Permissions, ReadOp, RegionCause, Session,
};

use super::error::KvError;
use super::layout::{
    BUCKET_BYTES, BUCKETS_MAX, Entry, HEAD_WORDS, Hash, KEY_BYTES_MAX, MAGIC, MOVED, ROOT_BYTES, SHARDS_MAX,
    Slot, VALUE_BYTES_MAX, WORD, bucket_of, decode_words, encode_words, long_entry_name, part_name,
    root_name, store_id, table_name,
};
use super::limit::MemoryLimit;
use super::shard::{KEPT_BYTES_MAX, needs_owner};
use super::wire::{
    Answer, Expires, Only, Request, When, batch_answer_bytes_max, parts, push_part, timeout_of,
};

/// Maximum number of keys per batch of lookups.
const KEYS_TOGETHER_MAX: usize = 128;
/// Number of lookups of a key that keeps changing before the client calls the owner.
const ATTEMPTS_MAX: usize = 16;

/// A session's handle of a store. Each thread has its own.
pub struct Store {
    session: Session,
    name: String,
    /// The number by which owners recognise requests to this store.
    pub(super) id: u64,
    shards: Vec<MappedShard>,
    timeout: Duration,
    /// Number of times that the store was reopened before this handle was made.
    pub(super) epoch: u64,
    request: Vec<u8>,
    block: Vec<u8>,
}

/// Mapped regions of a shard.
#[derive(Clone, Debug)]
struct MappedShard {
    node: NodeId,
    function: Function,
    table: Option<(Lh, u64)>,
    heap: Vec<Option<Lh>>,
}

/// Result of one lookup of a key by one-sided reads.
#[derive(PartialEq, Eq, Debug)]
enum Lookup {
    /// Offset and length of the value in the entry's block.
    Value(usize, usize),
    Absent,
    /// The slot points to the entry of another key.
    AnotherKey,
    /// The entry is being changed.
    Retry,
    /// The table was replaced.
    Moved,
    /// The key has an expiry, which only the owner's clock decides.
    CallOwner,
}

/// Result for one key of a batch of lookups.
#[derive(Clone, PartialEq, Eq, Debug)]
enum BatchLookup {
    Value(Option<Vec<u8>>),
    /// There is no room for the value.
    NoRoom,
    /// The lookup was inconclusive. The value fits.
    Retry,
    /// The lookup was inconclusive, so the length of the value is unknown.
    RetryIfRoom,
}

/// Result of reading a key whose value may be omitted.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum BoundedRead {
    Value(Option<Vec<u8>>),
    NoRoom,
}

/// Totals of a store.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Totals {
    pub(super) keys: i64,
    /// Bytes of all entries and tables.
    pub(super) bytes_used: i64,
    /// Number of evicted keys.
    pub(super) evicted: u64,
}

/// Options for setting a value.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SetOptions {
    /// Condition of the change.
    pub only: Only,
    /// Expiry of the value.
    pub expires: Expires,
}

impl Store {
    /// Combines shards of [`Owner`](super::Owner)s into a store: shard `i` is served at `nodes[i]`, by function number
    /// `function` + `i`.
    pub async fn create(
        session: &Session,
        name: &str,
        nodes: &[NodeId],
        function: Function,
        everyone: Permissions,
    ) -> Result<Store, KvError> {
        check_shards(nodes.len() as u64)?;
        let head = [MAGIC, nodes.len() as u64, u64::from(function.0)].into_iter();
        let mut words: Vec<u64> = head.chain(nodes.iter().map(|node| u64::from(node.0))).collect();
        words.resize(HEAD_WORDS, 0);
        let options = AllocOptions { everyone: everyone & Permissions::READ, ..AllocOptions::default() };
        let lh = session.alloc_with(None, HEAD_WORDS as u64 * WORD, options).await?;
        session.write(lh, 0, &encode_words(words)).await?;
        // The head is named only when it is complete.
        if let Err(error) = session.set_name(lh, name).await {
            session.free(lh).await?;
            return Err(error.into());
        }
        Store::open(session, name).await
    }

    /// Opens an existing store.
    pub async fn open(session: &Session, name: &str) -> Result<Store, KvError> {
        let lh = session.map(name, Permissions::READ).await?;
        let len = session.len(lh)?;
        if len != HEAD_WORDS as u64 * WORD {
            return Err(KvError::NotAStore { what: "the length of the region", value: len, wanted: "512" });
        }
        let mut bytes = [0; HEAD_WORDS * WORD as usize];
        session.read(lh, 0, &mut bytes).await?;
        session.unmap(lh).await?;
        let words: Vec<u64> = decode_words(&bytes).collect();
        let [magic, count, function, ref nodes @ ..] = words[..] else { unreachable!("there are 64") };
        if magic != MAGIC {
            let wanted = "the magic number of this version of stores";
            return Err(KvError::NotAStore { what: "the first word", value: magic, wanted });
        }
        check_shards(count)?;
        let shard = |(number, node): (usize, &u64)| MappedShard {
            node: NodeId(*node as u32),
            function: Function((function as u32).wrapping_add(number as u32)),
            table: None,
            heap: Vec::new(),
        };
        let shards = nodes[..count as usize].iter().enumerate().map(shard).collect();
        Ok(Store {
            session: session.clone(),
            name: name.to_owned(),
            id: store_id(name),
            shards,
            timeout: Duration::from_secs(5),
            epoch: 0,
            request: Vec::new(),
            block: Vec::new(),
        })
    }

    /// Changes the node that owns a shard of an existing store. The new owner starts without keys.
    pub async fn place(session: &Session, name: &str, shard: usize, node: NodeId) -> Result<(), KvError> {
        let lh = session.map(name, Permissions::READ | Permissions::WRITE).await?;
        let at = (HEAD_WORDS - SHARDS_MAX + shard) as u64 * WORD;
        let written = session.write(lh, at, &encode_words([u64::from(node.0)])).await;
        session.unmap(lh).await?;
        Ok(written?)
    }

    /// Opens the store again, with the same timeout, after owners have changed.
    pub(super) async fn reopen(&self) -> Result<Store, KvError> {
        let store = Store::open(&self.session, &self.name).await?;
        Ok(Store { timeout: self.timeout, epoch: self.epoch + 1, ..store })
    }

    /// Sets the timeout of calls to owners, by default 5 s. Each 64 MB of a request add 1 s.
    pub fn with_timeout(self, timeout: Duration) -> Store {
        Store { timeout, ..self }
    }

    /// Returns another handle of the same store, without mappings, for a concurrent task.
    pub(super) fn unmapped_clone(&self) -> Store {
        let fresh = |shard: &MappedShard| MappedShard { table: None, heap: Vec::new(), ..*shard };
        Store {
            session: self.session.clone(),
            name: self.name.clone(),
            id: self.id,
            shards: self.shards.iter().map(fresh).collect(),
            timeout: self.timeout,
            epoch: self.epoch,
            request: Vec::new(),
            block: Vec::new(),
        }
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    // Reading, without the owner's thread.

    /// Returns the value of a key. Takes two remote reads one after the other, and a call if the key has an expiry.
    pub async fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value).await?.then_some(value))
    }

    /// Replaces the contents of `value` by the value of a key. Returns false, and leaves `value` unchanged, if the key
    /// does not exist. Takes as many reads and calls as [`Store::get`].
    pub async fn get_into(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, KvError> {
        check_len("key", key.len(), KEY_BYTES_MAX)?;
        let hash = Hash::of(key);
        let shard = hash.shard(self.shards.len());
        match self.get_mapped(shard, hash, key, value).await {
            Some(is_there) => Ok(is_there),
            // Boxed, because it is rare, and so the future of a read stays small.
            None => {
                let got = Box::pin(self.get_with_retries(shard, hash, key, value)).await;
                trim_buffer(&mut self.block);
                got
            }
        }
    }

    /// Looks a key up once, in regions that are already mapped, which usually suffices. Returns `None` if the lookup is
    /// inconclusive or fails; the caller's slower path then reports an error that persists.
    async fn get_mapped(
        &mut self,
        shard: usize,
        hash: Hash,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Option<bool> {
        let (table, buckets) = self.shards[shard].table?;
        let at = bucket_of(hash.bucket_bits(), buckets) * BUCKET_BYTES;
        let mut bucket = [0; BUCKET_BYTES as usize];
        self.session.read(table, at, &mut bucket).await.ok()?;
        let Some((index, slot)) = single_candidate(&bucket, hash)? else { return Some(false) };
        if slot.is_long() {
            return None;
        }
        let heap = (*self.shards[shard].heap.get(slot.part())?)?;
        self.block.resize(slot.bytes() as usize, 0);
        let mut slot_after = [0; WORD as usize];
        let mut batch = [
            ReadOp { lh: heap, offset: slot.offset(), into: &mut self.block },
            ReadOp { lh: table, offset: at + index as u64 * WORD, into: &mut slot_after },
        ];
        self.session.read_batch(&mut batch).await.ok()?;
        match check_entry(&self.block, slot_after, slot, key) {
            Lookup::Value(at, len) => {
                value.clear();
                value.extend(&self.block[at..at + len]);
                Some(true)
            }
            Lookup::AnotherKey => Some(false),
            _ => None,
        }
    }

    /// Looks a key up repeatedly, and calls the owner if that is inconclusive.
    async fn get_with_retries(
        &mut self,
        shard: usize,
        hash: Hash,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, KvError> {
        for _ in 0..ATTEMPTS_MAX {
            let result = match self.lookup(shard, hash, key).await {
                Err(KvError::Access(error)) if is_stale(&error) => Lookup::Moved,
                // The table was replaced during the lookup.
                Err(KvError::Region(error)) if *error.cause() == RegionCause::NotFound => Lookup::Moved,
                // The owner needs no names, and replaces lost memory.
                Err(KvError::Region(error)) if needs_owner(error.cause()) => Lookup::CallOwner,
                result => result?,
            };
            match result {
                Lookup::Value(at, len) => {
                    value.clear();
                    value.extend(&self.block[at..at + len]);
                    return Ok(true);
                }
                Lookup::Absent | Lookup::AnotherKey => return Ok(false),
                Lookup::Retry => {}
                Lookup::Moved => self.unmap_shard(shard).await,
                Lookup::CallOwner => break,
            }
        }
        let answer = Box::pin(self.request(shard, &Request::Get { key })).await?;
        match Answer::decode(&answer) {
            Some(Answer::Bytes(_, bytes)) => {
                value.clear();
                value.extend(bytes);
                Ok(true)
            }
            Some(Answer::Nothing) => Ok(false),
            other => Err(self.error_of(shard, other)),
        }
    }

    /// Returns the values of several keys, as [`Store::get`] does. Takes two rounds of remote reads, each for all keys.
    pub async fn get_many(&mut self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, KvError> {
        let got = self.get_many_bounded(keys, &mut |_, _| true).await?;
        Ok(got
            .into_iter()
            .map(|got| if let BoundedRead::Value(value) = got { value } else { None })
            .collect())
    }

    /// Returns the values of several keys as [`Store::get_many`] does, but omits values for which `has_room` returns
    /// false. Calls `has_room` once per value, with the index of its key and an upper bound of its length.
    pub(super) async fn get_many_bounded(
        &mut self,
        keys: &[&[u8]],
        has_room: &mut impl FnMut(usize, usize) -> bool,
    ) -> Result<Vec<BoundedRead>, KvError> {
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks(KEYS_TOGETHER_MAX) {
            let begin = values.len();
            let lookups = self.lookup_many(keys, &mut |index, bytes| has_room(begin + index, bytes)).await?;
            for (key, lookup) in keys.iter().zip(lookups) {
                values.push(match lookup {
                    BatchLookup::Value(value) => BoundedRead::Value(value),
                    BatchLookup::NoRoom => BoundedRead::NoRoom,
                    // A single lookup does not suffice for this key.
                    BatchLookup::Retry => BoundedRead::Value(self.get(key).await?),
                    BatchLookup::RetryIfRoom if has_room(values.len(), VALUE_BYTES_MAX) => {
                        BoundedRead::Value(self.get(key).await?)
                    }
                    BatchLookup::RetryIfRoom => BoundedRead::NoRoom,
                });
            }
        }
        Ok(values)
    }

    /// Looks several keys up, once each.
    async fn lookup_many(
        &mut self,
        keys: &[&[u8]],
        has_room: &mut impl FnMut(usize, usize) -> bool,
    ) -> Result<Vec<BatchLookup>, KvError> {
        let mut results = vec![BatchLookup::RetryIfRoom; keys.len()];
        let mut buckets_to_read = Vec::with_capacity(keys.len());
        for (index, key) in keys.iter().enumerate() {
            check_len("key", key.len(), KEY_BYTES_MAX)?;
            let hash = Hash::of(key);
            let shard = hash.shard(self.shards.len());
            // An error recurs in the lookup of the single key.
            let Ok(Some((table, buckets))) = self.mapped_table(shard).await else { continue };
            buckets_to_read.push((
                index,
                shard,
                hash,
                table,
                bucket_of(hash.bucket_bits(), buckets) * BUCKET_BYTES,
            ));
        }
        let mut bytes = vec![0; buckets_to_read.len() * BUCKET_BYTES as usize];
        let places = buckets_to_read.iter().zip(bytes.chunks_mut(BUCKET_BYTES as usize));
        let mut reads: Vec<_> = places.map(|(&(.., lh, offset), into)| ReadOp { lh, offset, into }).collect();
        if self.session.read_batch(&mut reads).await.is_err() {
            return Ok(results);
        }
        let mut candidates = Vec::with_capacity(buckets_to_read.len());
        for ((index, shard, hash, table, at), bucket) in
            buckets_to_read.into_iter().zip(bytes.chunks(BUCKET_BYTES as usize))
        {
            match single_candidate(bucket, hash) {
                None => {}
                Some(None) => results[index] = BatchLookup::Value(None),
                Some(Some((_, slot))) if !has_room(index, slot.bytes() as usize) => {
                    results[index] = BatchLookup::NoRoom
                }
                Some(Some((_, slot))) if slot.is_long() => results[index] = BatchLookup::Retry,
                Some(Some((place, slot))) => {
                    results[index] = BatchLookup::Retry;
                    let Ok(heap) = self.mapped_part(shard, slot.part()).await else { continue };
                    candidates.push((index, slot, heap, table, at + place as u64 * WORD));
                }
            }
        }
        let mut blocks: Vec<(Vec<u8>, [u8; WORD as usize])> = candidates
            .iter()
            .map(|(_, slot, ..)| (vec![0; slot.bytes() as usize], [0; WORD as usize]))
            .collect();
        let mut reads = Vec::with_capacity(2 * candidates.len());
        for ((block, slot_after), &(_, slot, heap, table, at)) in blocks.iter_mut().zip(&candidates) {
            reads.push(ReadOp { lh: heap, offset: slot.offset(), into: block });
            reads.push(ReadOp { lh: table, offset: at, into: slot_after });
        }
        if self.session.read_batch(&mut reads).await.is_err() {
            return Ok(results);
        }
        for ((block, slot_after), (index, slot, ..)) in blocks.into_iter().zip(candidates) {
            results[index] = match check_entry(&block, slot_after, slot, keys[index]) {
                Lookup::Value(at, len) => BatchLookup::Value(Some(block[at..at + len].to_vec())),
                Lookup::AnotherKey => BatchLookup::Value(None),
                _ => BatchLookup::Retry,
            };
        }
        Ok(results)
    }

    async fn lookup(&mut self, shard: usize, hash: Hash, key: &[u8]) -> Result<Lookup, KvError> {
        let Some((table, buckets)) = self.mapped_table(shard).await? else { return Ok(Lookup::Retry) };
        let at = bucket_of(hash.bucket_bits(), buckets) * BUCKET_BYTES;
        let mut bucket = [0; BUCKET_BYTES as usize];
        self.session.read(table, at, &mut bucket).await?;
        for (index, word) in decode_words(&bucket).enumerate() {
            if word == MOVED {
                return Ok(Lookup::Moved);
            }
            let Some(slot) = Slot::decode(word).filter(|slot| slot.tag == hash.tag()) else { continue };
            match self.read_entry(shard, (table, at + index as u64 * WORD), slot, key).await? {
                Lookup::AnotherKey => {}
                result => return Ok(result),
            }
        }
        Ok(Lookup::Absent)
    }

    /// Reads the entry of a slot, and then the slot again, which is at offset `at.1` of the table `at.0`.
    async fn read_entry(
        &mut self,
        shard: usize,
        at: (Lh, u64),
        slot: Slot,
        key: &[u8],
    ) -> Result<Lookup, KvError> {
        if slot.is_long() {
            return Box::pin(self.read_long_entry(shard, at, slot, key)).await;
        }
        let heap = self.mapped_part(shard, slot.part()).await?;
        self.block.resize(slot.bytes() as usize, 0);
        let mut slot_after = [0; WORD as usize];
        let mut batch = [
            ReadOp { lh: heap, offset: slot.offset(), into: &mut self.block },
            ReadOp { lh: at.0, offset: at.1, into: &mut slot_after },
        ];
        self.session.read_batch(&mut batch).await.map_err(|BatchError { source, .. }| source)?;
        Ok(check_entry(&self.block, slot_after, slot, key))
    }

    /// Reads the long entry of a slot. Its region is mapped only during the read.
    async fn read_long_entry(
        &mut self,
        shard: usize,
        at: (Lh, u64),
        slot: Slot,
        key: &[u8],
    ) -> Result<Lookup, KvError> {
        let lh = self.session.map(&long_entry_name(&self.name, shard, slot.place), Permissions::READ).await?;
        // The region may belong to a later entry with the same number, which the second read of the slot reveals.
        let len = self.session.len(lh).unwrap_or(0).min(slot.bytes());
        self.block.resize(len as usize, 0);
        let mut slot_after = [0; WORD as usize];
        let mut batch = [
            ReadOp { lh, offset: 0, into: &mut self.block },
            ReadOp { lh: at.0, offset: at.1, into: &mut slot_after },
        ];
        let read = self.session.read_batch(&mut batch).await.map_err(|BatchError { source, .. }| source);
        // The region may have been freed.
        let _ = self.session.unmap(lh).await;
        read?;
        Ok(check_entry(&self.block, slot_after, slot, key))
    }

    /// Returns the table of a shard, and its number of buckets; `None` if it is being replaced.
    async fn mapped_table(&mut self, shard: usize) -> Result<Option<(Lh, u64)>, KvError> {
        match self.shards[shard].table {
            // Boxed, because it is rare, and so the future of a read stays small.
            None => Box::pin(self.map_table(shard)).await,
            table => Ok(table),
        }
    }

    async fn map_table(&mut self, shard: usize) -> Result<Option<(Lh, u64)>, KvError> {
        let root = self.session.map(&root_name(&self.name, shard), Permissions::READ).await?;
        let mut bytes = [0; ROOT_BYTES as usize];
        let read = self.session.read(root, 0, &mut bytes).await;
        self.session.unmap(root).await?;
        read?;
        let words: Vec<u64> = decode_words(&bytes).collect();
        let (generation, buckets) = (words[0], words[1]);
        let lh = self.session.map(&table_name(&self.name, shard, generation), Permissions::READ).await?;
        let is_sound = buckets.is_power_of_two() && buckets <= BUCKETS_MAX;
        if !is_sound || self.session.len(lh)? != buckets * BUCKET_BYTES {
            // The root has two words, and the table may grow between reading them.
            self.session.unmap(lh).await?;
            return Ok(None);
        }
        self.shards[shard].table = Some((lh, buckets));
        Ok(self.shards[shard].table)
    }

    async fn mapped_part(&mut self, shard: usize, part: usize) -> Result<Lh, KvError> {
        if let Some(Some(lh)) = self.shards[shard].heap.get(part) {
            return Ok(*lh);
        }
        let lh = Box::pin(self.session.map(&part_name(&self.name, shard, part), Permissions::READ)).await?;
        let heap = &mut self.shards[shard].heap;
        heap.resize(heap.len().max(part + 1), None);
        heap[part] = Some(lh);
        Ok(lh)
    }

    /// Unmaps all regions of a shard, because handles are stale.
    async fn unmap_shard(&mut self, shard: usize) {
        let table = self.shards[shard].table.take().map(|(lh, _)| lh);
        let heap = std::mem::take(&mut self.shards[shard].heap);
        for lh in table.into_iter().chain(heap.into_iter().flatten()) {
            // The region may have been freed.
            let _ = Box::pin(self.session.unmap(lh)).await;
        }
    }

    // Changes, executed by the owner.

    /// Sets the value of a key if the condition of `options` holds; returns true if it does.
    pub async fn set(&mut self, key: &[u8], value: &[u8], options: SetOptions) -> Result<bool, KvError> {
        self.set_or_rename(key, value, options, false).await
    }

    /// Sets the value as [`set`](Store::set) does. With `is_renamed`, the limit of memory does not apply.
    pub(super) async fn set_or_rename(
        &mut self,
        key: &[u8],
        value: &[u8],
        SetOptions { only, expires }: SetOptions,
        is_renamed: bool,
    ) -> Result<bool, KvError> {
        let request = Request::Set { key, value, only, expires, returns_old: false, is_renamed };
        Ok(self.request_number(key, Some(value), request).await?.is_some())
    }

    /// Sets the value of a key if the condition of `options` holds. Returns the old value, whether or not the condition
    /// holds.
    pub async fn swap(
        &mut self,
        key: &[u8],
        value: &[u8],
        options: SetOptions,
    ) -> Result<Option<Vec<u8>>, KvError> {
        check(key, value)?;
        let SetOptions { only, expires } = options;
        let shard = self.shard_of(key);
        let request = Request::Set { key, value, only, expires, returns_old: true, is_renamed: false };
        let answer = self.request(shard, &request).await?;
        match Answer::decode(&answer) {
            Some(Answer::Bytes(_, bytes)) => Ok(Some(bytes.to_vec())),
            Some(Answer::Nothing) => Ok(None),
            other => Err(self.error_of(shard, other)),
        }
    }

    /// Removes a key. Returns true if it existed.
    pub async fn delete(&mut self, key: &[u8]) -> Result<bool, KvError> {
        Ok(self.request_number(key, None, Request::Delete { key }).await?.is_some())
    }

    /// Appends to the value of a key, which is empty if the key does not exist. Returns the new length in bytes.
    pub async fn append(&mut self, key: &[u8], value: &[u8]) -> Result<u64, KvError> {
        let len = self.request_number(key, Some(value), Request::Append { key, value }).await?;
        Ok(len.unwrap_or(0) as u64)
    }

    /// Adds `number` to the value of a key, which must be a decimal number; an absent key counts as 0. Returns the sum.
    pub async fn add(&mut self, key: &[u8], number: i64) -> Result<i64, KvError> {
        Ok(self.request_number(key, None, Request::Add { key, number }).await?.unwrap_or(0))
    }

    /// Sets the expiry of a key. Returns true if the key exists.
    pub async fn expire(&mut self, key: &[u8], expires: Expires) -> Result<bool, KvError> {
        self.expire_when(key, expires, When::Always).await
    }

    /// Sets the expiry of a key if the condition `when` holds. Returns true if the key exists and the condition holds.
    pub async fn expire_when(&mut self, key: &[u8], expires: Expires, when: When) -> Result<bool, KvError> {
        Ok(self.request_number(key, None, Request::Expire { key, expires, when }).await?.is_some())
    }

    /// Returns the time in ms until a key expires: `Some(None)` if never, `None` if the key does not exist.
    pub async fn time_left(&mut self, key: &[u8]) -> Result<Option<Option<u64>>, KvError> {
        let left = self.request_number(key, None, Request::TimeLeft { key }).await?;
        Ok(left.map(|ms| u64::try_from(ms).ok()))
    }

    /// Returns the expiry of a key; `None` if the key does not exist.
    pub(super) async fn expiry(&mut self, key: &[u8]) -> Result<Option<Expires>, KvError> {
        let expires = self.request_number(key, None, Request::ExpireTime { key }).await?;
        Ok(expires.map(|ms| u64::try_from(ms).map_or(Expires::Never, |ms| Expires::At { ms })))
    }

    // Operations on all shards.

    /// Returns the number of keys.
    pub async fn count(&mut self) -> Result<u64, KvError> {
        let mut sum = 0;
        for shard in 0..self.shards.len() {
            sum += self.request_number_of_shard(shard, Request::Count).await?.unwrap_or(0) as u64;
        }
        Ok(sum)
    }

    /// Returns totals of the shards that answer.
    pub(super) async fn totals(&mut self) -> Totals {
        let mut totals = Totals::default();
        for shard in 0..self.shards.len() {
            if let Ok(Some(count)) = self.request_number_of_shard(shard, Request::Count).await
                && let Ok(answer) = self.request(shard, &Request::Memory).await
                && let Some(Answer::Bytes(used, evicted)) = Answer::decode(&answer)
            {
                totals.keys += count;
                totals.bytes_used += used;
                totals.evicted += decode_words(evicted).sum::<u64>();
            }
        }
        totals
    }

    /// Limits the memory of all shards. A shard whose owner is replaced later has no limit. After an error, the other
    /// shards have the limit.
    pub async fn set_limit(&mut self, limit: MemoryLimit) -> Result<(), KvError> {
        let bytes = match limit.bytes {
            0 => u64::MAX,
            bytes => bytes / self.shards.len() as u64,
        };
        let mut done = Ok(());
        for shard in 0..self.shards.len() {
            let request = Request::Limit { bytes, eviction: limit.eviction };
            done = done.and(self.request_number_of_shard(shard, request).await.map(drop));
        }
        done
    }

    /// Returns true if a node has a shard.
    pub(super) fn has_shard_at(&self, node: NodeId) -> bool {
        self.shards.iter().any(|shard| shard.node == node)
    }

    /// Returns the cursor at which to continue, and about `count` keys. A scan starts with cursor 0 and ends when the
    /// returned cursor is 0. A key that exists during the whole scan is returned at least once.
    pub async fn scan(&mut self, from: u64, count: u64) -> Result<(u64, Vec<Vec<u8>>), KvError> {
        let (shard, from) = split_cursor(from);
        if shard >= self.shards.len() {
            return Ok((0, Vec::new()));
        }
        let answer = self.request(shard, &Request::Scan { from, count }).await?;
        match Answer::decode(&answer) {
            Some(Answer::Bytes(next, keys)) => {
                Ok((self.join_cursor(shard, next as u64), parts(keys).map(<[u8]>::to_vec).collect()))
            }
            other => Err(self.error_of(shard, other)),
        }
    }

    /// Returns the cursor of a scan that continues at `next` in a shard.
    pub(super) fn join_cursor(&self, shard: usize, next: u64) -> u64 {
        match next {
            0 if shard + 1 == self.shards.len() => 0,
            0 => (shard as u64 + 1) << SHARD_SHIFT,
            _ => (shard as u64) << SHARD_SHIFT | next,
        }
    }

    /// Removes all keys, one shard after the other.
    pub async fn clear(&mut self) -> Result<(), KvError> {
        for shard in 0..self.shards.len() {
            self.request_number_of_shard(shard, Request::Clear).await?;
        }
        Ok(())
    }

    /// Stops all owners, which then free their memory, and frees the store's own region.
    pub async fn close(mut self) -> Result<(), KvError> {
        for shard in 0..self.shards.len() {
            self.request_number_of_shard(shard, Request::Close).await?;
        }
        let head = self.session.map(&self.name, Permissions::MASTER).await?;
        Ok(self.session.free(head).await?)
    }

    pub(super) fn shard_of(&self, key: &[u8]) -> usize {
        Hash::of(key).shard(self.shards.len())
    }

    /// Sends a request to the owner of a key, and returns the number in the answer; `None` if the key does not exist or
    /// the condition does not hold.
    async fn request_number(
        &mut self,
        key: &[u8],
        value: Option<&[u8]>,
        request: Request<'_>,
    ) -> Result<Option<i64>, KvError> {
        check(key, value.unwrap_or_default())?;
        self.request_number_of_shard(self.shard_of(key), request).await
    }

    async fn request_number_of_shard(
        &mut self,
        shard: usize,
        request: Request<'_>,
    ) -> Result<Option<i64>, KvError> {
        let answer = self.request(shard, &request).await?;
        match Answer::decode(&answer) {
            Some(Answer::Number(number)) => Ok(Some(number)),
            Some(Answer::Nothing) => Ok(None),
            other => Err(self.error_of(shard, other)),
        }
    }

    pub(super) async fn request(&mut self, shard: usize, request: &Request<'_>) -> Result<Vec<u8>, KvError> {
        request.encode(self.id, &mut self.request);
        let answer = self.request_encoded(shard, &self.request).await;
        trim_buffer(&mut self.request);
        answer
    }

    /// Sends an encoded request to the owner of a shard; returns the answer.
    pub(super) async fn request_encoded(&self, shard: usize, request: &[u8]) -> Result<Vec<u8>, KvError> {
        let MappedShard { node, function, .. } = self.shards[shard];
        Ok(self.session.call(node, function, request, timeout_of(request, self.timeout)).await?)
    }

    /// Sends several requests, each [with a short answer](Request::has_short_answer), to the owner of a shard in one
    /// call; the owner executes them in order. [`Answer::each`] returns the answers.
    pub(super) async fn post_batch(
        &self,
        shard: usize,
        requests: &[&[u8]],
    ) -> Result<PendingCall, CallError> {
        let (mut together, mut request) = (Vec::new(), Vec::new());
        requests.iter().for_each(|request| push_part(&mut together, request));
        Request::Batch { requests: &together }.encode(self.id, &mut request);
        let MappedShard { node, function, .. } = self.shards[shard];
        let answer_bytes_max = batch_answer_bytes_max(requests.len());
        self.session
            .post_call(node, function, &request, answer_bytes_max, timeout_of(&request, self.timeout))
            .await
    }

    /// Returns the error of a refusal or malformed answer.
    pub(super) fn error_of(&self, shard: usize, answer: Option<Answer<'_>>) -> KvError {
        match answer {
            Some(Answer::Full) => KvError::Full,
            Some(Answer::NoDirectory) => KvError::NoDirectory,
            Some(Answer::NotANumber | Answer::NotAFloat) => KvError::NotANumber,
            Some(Answer::Overflow | Answer::Infinite) => KvError::Overflow,
            Some(Answer::AnotherStore) => KvError::Ended,
            // This client has checked the key's length.
            Some(Answer::TooLong) => {
                KvError::TooLong { what: "value", len: VALUE_BYTES_MAX + 1, max: VALUE_BYTES_MAX }
            }
            _ => KvError::Damaged { shard, what: "sent an invalid answer" },
        }
    }
}

/// Frees a buffer that is too long to keep.
fn trim_buffer(buffer: &mut Vec<u8>) {
    if buffer.capacity() > KEPT_BYTES_MAX {
        *buffer = Vec::new();
    }
}

/// Bits of a cursor within a shard; the bits above hold the shard.
const SHARD_SHIFT: u32 = 40;

/// Returns the shard of a cursor, and the cursor within it.
pub(super) fn split_cursor(cursor: u64) -> (usize, u64) {
    ((cursor >> SHARD_SHIFT) as usize, cursor & ((1 << SHARD_SHIFT) - 1))
}

fn check_shards(count: u64) -> Result<(), KvError> {
    if (1..=SHARDS_MAX as u64).contains(&count) {
        return Ok(());
    }
    Err(KvError::NotAStore { what: "the number of shards", value: count, wanted: "from 1 to 61" })
}

fn check(key: &[u8], value: &[u8]) -> Result<(), KvError> {
    check_len("key", key.len(), KEY_BYTES_MAX)?;
    check_len("value", value.len(), VALUE_BYTES_MAX)
}

fn check_len(what: &'static str, len: usize, max: usize) -> Result<(), KvError> {
    if len <= max { Ok(()) } else { Err(KvError::TooLong { what, len, max }) }
}

/// Returns the slot of a bucket that may point to a key, with its index. The outer `Option` is `None` if there are
/// several such slots, or the table was replaced.
fn single_candidate(bucket: &[u8], hash: Hash) -> Option<Option<(usize, Slot)>> {
    let mut found = None;
    for (index, word) in decode_words(bucket).enumerate() {
        if word == MOVED {
            return None;
        }
        if let Some(slot) = Slot::decode_of(word, hash)
            && found.replace((index, slot)).is_some()
        {
            return None;
        }
    }
    Some(found)
}

/// Interprets the block to which a slot points. `slot_after` was read after the block: if it equals the slot, the slot
/// pointed to the entry during the whole read.
fn check_entry(block: &[u8], slot_after: [u8; WORD as usize], slot: Slot, key: &[u8]) -> Lookup {
    if u64::from_le_bytes(slot_after) != slot.encode() {
        return Lookup::Retry;
    }
    match Entry::decode(block, slot.place) {
        Some(entry) if entry.key == key && entry.expires_ms == 0 => {
            Lookup::Value(Entry::bytes(key.len(), 0), entry.value.len())
        }
        Some(entry) if entry.key == key => Lookup::CallOwner,
        Some(entry) if has_tag_of(slot, &entry) => Lookup::AnotherKey,
        _ => Lookup::Retry,
    }
}

/// Returns true if the entry's tag is that of the slot. After a change of the key, the block may hold another entry.
fn has_tag_of(slot: Slot, entry: &Entry<'_>) -> bool {
    Hash::of(entry.key).tag() == slot.tag
}

/// Returns true if a handle is stale, or its memory lost. The error of mapping the region again gives the reason.
fn is_stale(error: &AccessError) -> bool {
    matches!(error.cause(), AccessCause::Stale | AccessCause::PeerDown(_) | AccessCause::LinkLost(_))
}

#[cfg(test)]
mod tests {
    use halite::{Config, Node};

    use super::super::heap::Block;
    use super::super::shard::Shard;
    use super::*;

    const KEY: &[u8] = b"key";

    /// Runs a test with the only shard of a store and a client. The test chooses when the client reads slots.
    fn with_shard_and_client(test: impl AsyncFnOnce(Shard, Store)) {
        let dir = tempfile::tempdir().unwrap();
        let dir_of_cluster = dir.path().join("cluster");
        let config =
            Config { dir: dir_of_cluster, node: Some(NodeId(0)), arena_bytes: 64 << 20, ..Config::default() };
        let node = Node::embedded(config).unwrap();
        let session = node.blocking_session();
        session.block_on(async {
            let session = session.as_async();
            let shard = Shard::create(session.clone(), "store", 0, Permissions::empty()).await.unwrap();
            let everyone = Permissions::empty();
            let store = Store::create(session, "store", &[NodeId(0)], Function(1), everyone).await.unwrap();
            test(shard, store).await;
        });
    }

    async fn set(shard: &mut Shard, value: &[u8]) {
        let (only, expires) = (Only::Always, Expires::Never);
        let request = Request::Set { key: KEY, value, only, expires, returns_old: false, is_renamed: false };
        shard.execute(1, &request, &mut Vec::new()).await.unwrap();
    }

    /// Returns the slot of the key, with the table and offset that hold it.
    async fn slot_of(store: &mut Store) -> (Slot, (Lh, u64)) {
        let (table, buckets) = store.mapped_table(0).await.unwrap().unwrap();
        let at = bucket_of(Hash::of(KEY).bucket_bits(), buckets) * BUCKET_BYTES;
        let mut bucket = [0; BUCKET_BYTES as usize];
        store.session.read(table, at, &mut bucket).await.unwrap();
        let mut slots = decode_words(&bucket).map(Slot::decode).zip((at..).step_by(WORD as usize));
        slots.find_map(|(slot, at)| Some((slot?, (table, at)))).unwrap()
    }

    #[test]
    fn an_entry_without_a_slot_is_not_read() {
        with_shard_and_client(async |mut shard, mut store| {
            set(&mut shard, b"first").await;
            let (slot, at) = slot_of(&mut store).await;
            assert!(matches!(store.read_entry(0, at, slot, KEY).await, Ok(Lookup::Value(_, 5))));
            set(&mut shard, b"second").await;
            // The owner reuses the block of the first value for a third one, and has not changed the slot yet.
            let mut entry = Vec::new();
            Entry { expires_ms: 0, key: KEY, value: b"third" }.encode(slot.place, &mut entry);
            let write = shard.heap().write_op(Block::from(slot), &entry);
            store.session.write_batch(&[write]).await.unwrap();
            assert_eq!(store.read_entry(0, at, slot, KEY).await.unwrap(), Lookup::Retry);
            assert_eq!(store.get(KEY).await.unwrap().as_deref(), Some(&b"second"[..]));
        });
    }
}
