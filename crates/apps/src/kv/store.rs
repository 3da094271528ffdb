//! A client's handle of a store: reads by one-sided reads, and changes by calls to the owners of the shards.

use std::time::Duration;

use halite::{
    AccessCause, AccessError, AllocOptions, BatchError, CallError, Function, Lh, NodeId, PendingCall,
    Permissions, ReadOp, RegionCause, Session,
};

use super::error::KvError;
use super::layout::{
    BUCKET_BYTES, BUCKETS_MAX, Entry, HEAD_WORDS, Hash, KEY_BYTES_MAX, MAGIC, MOVED, ROOT_BYTES, SHARDS_MAX,
    Slot, VALUE_BYTES_MAX, WORD, bucket_of, decode_words, encode_words, long_of, number_of_store, part_of,
    root_of, table_of,
};
use super::shard::KEPT_BYTES_MAX;
use super::wire::{Answer, Expires, Only, Request, When, parts, push_part, together_bytes_max};

/// Maximum number of keys that are looked up together.
const KEYS_TOGETHER_MAX: usize = 128;
/// Number of reads of a key that keeps changing before the owner is asked.
const ATTEMPTS_MAX: usize = 16;

/// A session's handle of a store. Each thread has its own.
pub struct Store {
    session: Session,
    name: String,
    /// The number by which owners recognise requests to this store.
    pub(super) number: u64,
    shards: Vec<Seen>,
    timeout: Duration,
    /// Number of times that the handle from which this one was made was reopened.
    pub(super) epoch: u64,
    request: Vec<u8>,
    block: Vec<u8>,
}

/// Mapped regions of a shard.
#[derive(Clone, Debug)]
struct Seen {
    node: NodeId,
    function: Function,
    table: Option<(Lh, u64)>,
    heap: Vec<Option<Lh>>,
}

/// Result of one lookup of a key.
#[derive(PartialEq, Eq, Debug)]
enum Look {
    Value(usize, usize),
    Nothing,
    /// The slot points to the entry of another key.
    AnotherKey,
    /// The entry is being changed.
    Again,
    /// The table was replaced.
    Moved,
    /// The key has an expiry, by the owner's clock.
    Ask,
}

/// Result for one key of a lookup of several keys.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Glance {
    Value(Option<Vec<u8>>),
    /// There is no room for the value.
    NoRoom,
    /// The lookup was inconclusive, and there is room for the value.
    More,
    /// The lookup was inconclusive, and the length of the value is unknown.
    Nothing,
}

/// Result of reading a key if there is room.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Got {
    Value(Option<Vec<u8>>),
    NoRoom,
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
        let shard = |(number, node): (usize, &u64)| Seen {
            node: NodeId(*node as u32),
            function: Function((function as u32).wrapping_add(number as u32)),
            table: None,
            heap: Vec::new(),
        };
        let shards = nodes[..count as usize].iter().enumerate().map(shard).collect();
        Ok(Store {
            session: session.clone(),
            name: name.to_owned(),
            number: number_of_store(name),
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

    /// Sets the timeout of calls to owners, by default 5 s.
    pub fn with_timeout(self, timeout: Duration) -> Store {
        Store { timeout, ..self }
    }

    /// Returns another handle of the same store, for a concurrent task.
    pub(super) fn again(&self) -> Store {
        let fresh = |seen: &Seen| Seen { table: None, heap: Vec::new(), ..*seen };
        Store {
            session: self.session.clone(),
            name: self.name.clone(),
            number: self.number,
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
        match self.get_at_hand(shard, hash, key, value).await {
            Some(is_there) => Ok(is_there),
            // Rare and long, so boxed: the future of reading stays small.
            None => {
                let got = Box::pin(self.get_again(shard, hash, key, value)).await;
                trim(&mut self.block);
                got
            }
        }
    }

    /// Looks a key up once, in regions that are already mapped, which usually suffices. Returns `None` if the lookup is
    /// inconclusive or fails; the caller's slower path then reports an error that persists.
    async fn get_at_hand(
        &mut self,
        shard: usize,
        hash: Hash,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Option<bool> {
        let (table, buckets) = self.shards[shard].table?;
        let at = bucket_of(hash.low(), buckets) * BUCKET_BYTES;
        let mut bucket = [0; BUCKET_BYTES as usize];
        self.session.read(table, at, &mut bucket).await.ok()?;
        let Some((index, slot)) = only_slot_of(&bucket, hash)? else { return Some(false) };
        if slot.is_long() {
            return None;
        }
        let heap = (*self.shards[shard].heap.get(slot.part())?)?;
        self.block.resize(slot.bytes() as usize, 0);
        let mut again = [0; WORD as usize];
        let mut batch = [
            ReadOp { lh: heap, offset: slot.offset(), into: &mut self.block },
            ReadOp { lh: table, offset: at + index as u64 * WORD, into: &mut again },
        ];
        self.session.read_batch(&mut batch).await.ok()?;
        match look_at(&self.block, again, slot, key) {
            Look::Value(at, len) => {
                value.clear();
                value.extend(&self.block[at..at + len]);
                Some(true)
            }
            Look::AnotherKey => Some(false),
            _ => None,
        }
    }

    /// Looks a key up repeatedly, and calls the owner if that is inconclusive.
    async fn get_again(
        &mut self,
        shard: usize,
        hash: Hash,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, KvError> {
        for _ in 0..ATTEMPTS_MAX {
            let looked = match self.look(shard, hash, key).await {
                Err(KvError::Access(error)) if is_gone(&error) => Look::Moved,
                // The table grew during the look.
                Err(KvError::Region(error)) if *error.cause() == RegionCause::NotFound => Look::Moved,
                looked => looked?,
            };
            match looked {
                Look::Value(at, len) => {
                    value.clear();
                    value.extend(&self.block[at..at + len]);
                    return Ok(true);
                }
                Look::Nothing | Look::AnotherKey => return Ok(false),
                Look::Again => {}
                Look::Moved => self.forget(shard).await,
                Look::Ask => break,
            }
        }
        let answer = Box::pin(self.ask(shard, &Request::Get { key })).await?;
        match Answer::decode(&answer) {
            Some(Answer::Bytes(_, bytes)) => {
                value.clear();
                value.extend(bytes);
                Ok(true)
            }
            Some(Answer::Nothing) => Ok(false),
            other => Err(self.refused(shard, other)),
        }
    }

    /// Returns the values of several keys, as [`Store::get`] does. Takes two rounds of remote reads, each for all keys
    /// together.
    pub async fn get_many(&mut self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, KvError> {
        let got = self.get_some(keys, &mut |_, _| true).await?;
        Ok(got.into_iter().map(|got| if let Got::Value(value) = got { value } else { None }).collect())
    }

    /// Returns the values of several keys as [`Store::get_many`] does, but omits values for which `has_room` returns
    /// false. Calls `has_room` once per value, with the index of its key and an upper bound of its length.
    pub(super) async fn get_some(
        &mut self,
        keys: &[&[u8]],
        has_room: &mut impl FnMut(usize, usize) -> bool,
    ) -> Result<Vec<Got>, KvError> {
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks(KEYS_TOGETHER_MAX) {
            let begin = values.len();
            let glances = self.glance(keys, &mut |index, bytes| has_room(begin + index, bytes)).await?;
            for (key, glance) in keys.iter().zip(glances) {
                values.push(match glance {
                    Glance::Value(value) => Got::Value(value),
                    Glance::NoRoom => Got::NoRoom,
                    // This key takes more than one look.
                    Glance::More => Got::Value(self.get(key).await?),
                    Glance::Nothing if has_room(values.len(), VALUE_BYTES_MAX) => {
                        Got::Value(self.get(key).await?)
                    }
                    Glance::Nothing => Got::NoRoom,
                });
            }
        }
        Ok(values)
    }

    /// Looks several keys up once.
    async fn glance(
        &mut self,
        keys: &[&[u8]],
        has_room: &mut impl FnMut(usize, usize) -> bool,
    ) -> Result<Vec<Glance>, KvError> {
        let mut seen = vec![Glance::Nothing; keys.len()];
        let mut sought = Vec::with_capacity(keys.len());
        for (index, key) in keys.iter().enumerate() {
            check_len("key", key.len(), KEY_BYTES_MAX)?;
            let hash = Hash::of(key);
            let shard = hash.shard(self.shards.len());
            // An error recurs when the key is looked up alone.
            let Ok(Some((table, buckets))) = self.table(shard).await else { continue };
            sought.push((index, shard, hash, table, bucket_of(hash.low(), buckets) * BUCKET_BYTES));
        }
        let mut bytes = vec![0; sought.len() * BUCKET_BYTES as usize];
        let places = sought.iter().zip(bytes.chunks_mut(BUCKET_BYTES as usize));
        let mut reads: Vec<_> = places.map(|(&(.., lh, offset), into)| ReadOp { lh, offset, into }).collect();
        if self.session.read_batch(&mut reads).await.is_err() {
            return Ok(seen);
        }
        let mut followed = Vec::with_capacity(sought.len());
        for ((index, shard, hash, table, at), bucket) in
            sought.into_iter().zip(bytes.chunks(BUCKET_BYTES as usize))
        {
            match only_slot_of(bucket, hash) {
                None => {}
                Some(None) => seen[index] = Glance::Value(None),
                Some(Some((_, slot))) if !has_room(index, slot.bytes() as usize) => {
                    seen[index] = Glance::NoRoom
                }
                Some(Some((_, slot))) if slot.is_long() => seen[index] = Glance::More,
                Some(Some((place, slot))) => {
                    seen[index] = Glance::More;
                    let Ok(heap) = self.part(shard, slot.part()).await else { continue };
                    followed.push((index, slot, heap, table, at + place as u64 * WORD));
                }
            }
        }
        let mut blocks: Vec<(Vec<u8>, [u8; WORD as usize])> = followed
            .iter()
            .map(|(_, slot, ..)| (vec![0; slot.bytes() as usize], [0; WORD as usize]))
            .collect();
        let mut reads = Vec::with_capacity(2 * followed.len());
        for ((block, again), &(_, slot, heap, table, at)) in blocks.iter_mut().zip(&followed) {
            reads.push(ReadOp { lh: heap, offset: slot.offset(), into: block });
            reads.push(ReadOp { lh: table, offset: at, into: again });
        }
        if self.session.read_batch(&mut reads).await.is_err() {
            return Ok(seen);
        }
        for ((block, again), (index, slot, ..)) in blocks.into_iter().zip(followed) {
            seen[index] = match look_at(&block, again, slot, keys[index]) {
                Look::Value(at, len) => Glance::Value(Some(block[at..at + len].to_vec())),
                Look::AnotherKey => Glance::Value(None),
                _ => Glance::More,
            };
        }
        Ok(seen)
    }

    async fn look(&mut self, shard: usize, hash: Hash, key: &[u8]) -> Result<Look, KvError> {
        let Some((table, buckets)) = self.table(shard).await? else { return Ok(Look::Again) };
        let at = bucket_of(hash.low(), buckets) * BUCKET_BYTES;
        let mut bucket = [0; BUCKET_BYTES as usize];
        self.session.read(table, at, &mut bucket).await?;
        for (index, word) in decode_words(&bucket).enumerate() {
            if word == MOVED {
                return Ok(Look::Moved);
            }
            let Some(slot) = Slot::decode(word).filter(|slot| slot.tag == hash.tag()) else { continue };
            match self.follow(shard, (table, at + index as u64 * WORD), slot, key).await? {
                Look::AnotherKey => {}
                look => return Ok(look),
            }
        }
        Ok(Look::Nothing)
    }

    /// Reads the entry of a slot that was read from the table and offset `at`.
    async fn follow(&mut self, shard: usize, at: (Lh, u64), slot: Slot, key: &[u8]) -> Result<Look, KvError> {
        if slot.is_long() {
            return Box::pin(self.follow_long(shard, at, slot, key)).await;
        }
        let heap = self.part(shard, slot.part()).await?;
        self.block.resize(slot.bytes() as usize, 0);
        let mut again = [0; WORD as usize];
        let mut batch = [
            ReadOp { lh: heap, offset: slot.offset(), into: &mut self.block },
            ReadOp { lh: at.0, offset: at.1, into: &mut again },
        ];
        self.session.read_batch(&mut batch).await.map_err(|BatchError { source, .. }| source)?;
        Ok(look_at(&self.block, again, slot, key))
    }

    /// Reads the long entry of a slot, whose region is mapped only meanwhile.
    async fn follow_long(
        &mut self,
        shard: usize,
        at: (Lh, u64),
        slot: Slot,
        key: &[u8],
    ) -> Result<Look, KvError> {
        let lh = self.session.map(&long_of(&self.name, shard, slot.place), Permissions::READ).await?;
        // The region belongs to the entry at most, so a shorter one holds another entry, which the slot's check shows.
        let len = self.session.len(lh).unwrap_or(0).min(slot.bytes());
        self.block.resize(len as usize, 0);
        let mut again = [0; WORD as usize];
        let mut batch = [
            ReadOp { lh, offset: 0, into: &mut self.block },
            ReadOp { lh: at.0, offset: at.1, into: &mut again },
        ];
        let read = self.session.read_batch(&mut batch).await.map_err(|BatchError { source, .. }| source);
        // The region may have been freed.
        let _ = self.session.unmap(lh).await;
        read?;
        Ok(look_at(&self.block, again, slot, key))
    }

    /// Returns the table of a shard, and its number of buckets; `None` if it is being replaced.
    async fn table(&mut self, shard: usize) -> Result<Option<(Lh, u64)>, KvError> {
        match self.shards[shard].table {
            // Rare and long, so boxed: the future of reading stays small.
            None => Box::pin(self.map_table(shard)).await,
            table => Ok(table),
        }
    }

    async fn map_table(&mut self, shard: usize) -> Result<Option<(Lh, u64)>, KvError> {
        let root = self.session.map(&root_of(&self.name, shard), Permissions::READ).await?;
        let mut bytes = [0; ROOT_BYTES as usize];
        let read = self.session.read(root, 0, &mut bytes).await;
        self.session.unmap(root).await?;
        read?;
        let words: Vec<u64> = decode_words(&bytes).collect();
        let (generation, buckets) = (words[0], words[1]);
        let lh = self.session.map(&table_of(&self.name, shard, generation), Permissions::READ).await?;
        let is_sound = buckets.is_power_of_two() && buckets <= BUCKETS_MAX;
        if !is_sound || self.session.len(lh)? != buckets * BUCKET_BYTES {
            // The root has two words, and the table may grow between reading them.
            self.session.unmap(lh).await?;
            return Ok(None);
        }
        self.shards[shard].table = Some((lh, buckets));
        Ok(self.shards[shard].table)
    }

    async fn part(&mut self, shard: usize, part: usize) -> Result<Lh, KvError> {
        if let Some(Some(lh)) = self.shards[shard].heap.get(part) {
            return Ok(*lh);
        }
        let lh = Box::pin(self.session.map(&part_of(&self.name, shard, part), Permissions::READ)).await?;
        let heap = &mut self.shards[shard].heap;
        heap.resize(heap.len().max(part + 1), None);
        heap[part] = Some(lh);
        Ok(lh)
    }

    /// Drops stale handles of a shard.
    async fn forget(&mut self, shard: usize) {
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
        let SetOptions { only, expires } = options;
        let request = Request::Set { key, value, only, expires, returns_old: false };
        Ok(self.number(key, Some(value), request).await?.is_some())
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
        let request = Request::Set { key, value, only, expires, returns_old: true };
        let answer = self.ask(shard, &request).await?;
        match Answer::decode(&answer) {
            Some(Answer::Bytes(_, bytes)) => Ok(Some(bytes.to_vec())),
            Some(Answer::Nothing) => Ok(None),
            other => Err(self.refused(shard, other)),
        }
    }

    /// Removes a key. Returns true if it existed.
    pub async fn delete(&mut self, key: &[u8]) -> Result<bool, KvError> {
        Ok(self.number(key, None, Request::Delete { key }).await?.is_some())
    }

    /// Appends to the value of a key, which is empty if the key does not exist. Returns the new length in bytes.
    pub async fn append(&mut self, key: &[u8], value: &[u8]) -> Result<u64, KvError> {
        let len = self.number(key, Some(value), Request::Append { key, value }).await?;
        Ok(len.unwrap_or(0) as u64)
    }

    /// Adds `number` to the value of a key, which must be a decimal number; an absent key counts as 0. Returns the sum.
    pub async fn add(&mut self, key: &[u8], number: i64) -> Result<i64, KvError> {
        Ok(self.number(key, None, Request::Add { key, number }).await?.unwrap_or(0))
    }

    /// Sets the expiry of a key. Returns true if the key exists.
    pub async fn expire(&mut self, key: &[u8], expires: Expires) -> Result<bool, KvError> {
        self.expire_when(key, expires, When::Always).await
    }

    /// Sets the expiry of a key if the condition `when` holds. Returns true if the key exists and the condition holds.
    pub async fn expire_when(&mut self, key: &[u8], expires: Expires, when: When) -> Result<bool, KvError> {
        Ok(self.number(key, None, Request::Expire { key, expires, when }).await?.is_some())
    }

    /// Returns the time in ms until a key expires: `Some(None)` if never, `None` if the key does not exist.
    pub async fn time_left(&mut self, key: &[u8]) -> Result<Option<Option<u64>>, KvError> {
        let left = self.number(key, None, Request::TimeLeft { key }).await?;
        Ok(left.map(|ms| u64::try_from(ms).ok()))
    }

    // Operations on all shards.

    /// Returns the number of keys.
    pub async fn count(&mut self) -> Result<u64, KvError> {
        let mut sum = 0;
        for shard in 0..self.shards.len() {
            sum += self.number_of(shard, Request::Count).await?.unwrap_or(0) as u64;
        }
        Ok(sum)
    }

    /// Returns the number of keys, and the bytes of all entries and tables, of the shards that answer.
    pub(super) async fn totals(&mut self) -> (i64, i64) {
        let (mut keys, mut bytes) = (0, 0);
        for shard in 0..self.shards.len() {
            if let Ok(Some(count)) = self.number_of(shard, Request::Count).await
                && let Ok(Some(used)) = self.number_of(shard, Request::Memory).await
            {
                (keys, bytes) = (keys + count, bytes + used);
            }
        }
        (keys, bytes)
    }

    /// Returns true if a node has a shard.
    pub(super) fn is_at(&self, node: NodeId) -> bool {
        self.shards.iter().any(|shard| shard.node == node)
    }

    /// Returns the cursor at which to continue, and about `count` keys. A scan starts with cursor 0 and ends when the
    /// returned cursor is 0. A key that exists during the whole scan is returned at least once.
    pub async fn scan(&mut self, from: u64, count: u64) -> Result<(u64, Vec<Vec<u8>>), KvError> {
        let (shard, from) = split_cursor(from);
        if shard >= self.shards.len() {
            return Ok((0, Vec::new()));
        }
        let answer = self.ask(shard, &Request::Scan { from, count }).await?;
        match Answer::decode(&answer) {
            Some(Answer::Bytes(next, keys)) => {
                Ok((self.join_cursor(shard, next as u64), parts(keys).map(<[u8]>::to_vec).collect()))
            }
            other => Err(self.refused(shard, other)),
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
            self.number_of(shard, Request::Clear).await?;
        }
        Ok(())
    }

    /// Stops all owners, which then free their memory, and frees the store's own region.
    pub async fn close(mut self) -> Result<(), KvError> {
        for shard in 0..self.shards.len() {
            self.number_of(shard, Request::Close).await?;
        }
        let head = self.session.map(&self.name, Permissions::MASTER).await?;
        Ok(self.session.free(head).await?)
    }

    pub(super) fn shard_of(&self, key: &[u8]) -> usize {
        Hash::of(key).shard(self.shards.len())
    }

    /// Returns a number from the owner of a key; `None` if the key does not exist or the condition does not hold.
    async fn number(
        &mut self,
        key: &[u8],
        value: Option<&[u8]>,
        request: Request<'_>,
    ) -> Result<Option<i64>, KvError> {
        check(key, value.unwrap_or_default())?;
        self.number_of(self.shard_of(key), request).await
    }

    async fn number_of(&mut self, shard: usize, request: Request<'_>) -> Result<Option<i64>, KvError> {
        let answer = self.ask(shard, &request).await?;
        match Answer::decode(&answer) {
            Some(Answer::Number(number)) => Ok(Some(number)),
            Some(Answer::Nothing) => Ok(None),
            other => Err(self.refused(shard, other)),
        }
    }

    pub(super) async fn ask(&mut self, shard: usize, request: &Request<'_>) -> Result<Vec<u8>, KvError> {
        request.encode(self.number, &mut self.request);
        let answer = self.call(shard, &self.request).await;
        trim(&mut self.request);
        answer
    }

    /// Sends an encoded request to the owner of a shard; returns the answer.
    pub(super) async fn call(&self, shard: usize, request: &[u8]) -> Result<Vec<u8>, KvError> {
        let Seen { node, function, .. } = self.shards[shard];
        Ok(self.session.call(node, function, request, self.timeout).await?)
    }

    /// Sends several requests, each [with a short answer](Request::is_answered_shortly), to the owner of a shard in one
    /// call; the owner executes them in order. [`Answer::each`] returns the answers.
    pub(super) async fn post_together(
        &self,
        shard: usize,
        requests: &[&[u8]],
    ) -> Result<PendingCall, CallError> {
        let (mut together, mut request) = (Vec::new(), Vec::new());
        requests.iter().for_each(|request| push_part(&mut together, request));
        Request::Together { requests: &together }.encode(self.number, &mut request);
        let Seen { node, function, .. } = self.shards[shard];
        let answer_bytes_max = together_bytes_max(requests.len());
        self.session.post_call(node, function, &request, answer_bytes_max, self.timeout).await
    }

    /// Returns the error of a refusal or malformed answer.
    pub(super) fn refused(&self, shard: usize, answer: Option<Answer<'_>>) -> KvError {
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
fn trim(buffer: &mut Vec<u8>) {
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

/// Returns the only slot of a bucket that may point to a key, with its index; `None` if there are several, or the table
/// was replaced.
fn only_slot_of(bucket: &[u8], hash: Hash) -> Option<Option<(usize, Slot)>> {
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

/// Interprets the block to which a slot points. The slot was read `again` after the block: if it is unchanged, it
/// pointed to the entry all the time.
fn look_at(block: &[u8], again: [u8; WORD as usize], slot: Slot, key: &[u8]) -> Look {
    if u64::from_le_bytes(again) != slot.encode() {
        return Look::Again;
    }
    match Entry::decode(block, slot.place) {
        Some(entry) if entry.key == key && entry.expires_ms == 0 => {
            Look::Value(Entry::bytes(key.len(), 0), entry.value.len())
        }
        Some(entry) if entry.key == key => Look::Ask,
        Some(entry) if is_led_to(slot, &entry) => Look::AnotherKey,
        _ => Look::Again,
    }
}

/// Returns true if the slot points to this entry. After a change of the key, its place may hold another.
fn is_led_to(slot: Slot, entry: &Entry<'_>) -> bool {
    Hash::of(entry.key).tag() == slot.tag
}

/// Returns true if a handle is stale. The error of mapping the region again gives the reason.
fn is_gone(error: &AccessError) -> bool {
    matches!(error.cause(), AccessCause::Stale)
}

#[cfg(test)]
mod tests {
    use halite::{Config, Node};

    use super::super::heap::Block;
    use super::super::shard::Shard;
    use super::*;

    const KEY: &[u8] = b"key";

    /// Runs a test with the only shard of a store and a client, which reads slots at moments that the test chooses.
    fn look_with(test: impl AsyncFnOnce(Shard, Store)) {
        let dir = tempfile::tempdir().unwrap();
        let dir_of_cluster = dir.path().join("cluster");
        let config =
            Config { dir: dir_of_cluster, node: Some(NodeId(0)), arena_bytes: 64 << 20, ..Config::default() };
        let node = Node::embedded(config).unwrap();
        let session = node.blocking_session();
        session.block_on(async {
            let session = session.as_async();
            let shard = Shard::make(session.clone(), "store", 0, Permissions::empty()).await.unwrap();
            let everyone = Permissions::empty();
            let store = Store::create(session, "store", &[NodeId(0)], Function(1), everyone).await.unwrap();
            test(shard, store).await;
        });
    }

    async fn set(shard: &mut Shard, value: &[u8]) {
        let (only, expires) = (Only::Always, Expires::Never);
        let request = Request::Set { key: KEY, value, only, expires, returns_old: false };
        shard.perform_or_refuse(1, &request, &mut Vec::new()).await.unwrap();
    }

    /// Returns the slot of the key, and where it is stored.
    async fn slot_of(store: &mut Store) -> (Slot, (Lh, u64)) {
        let (table, buckets) = store.table(0).await.unwrap().unwrap();
        let at = bucket_of(Hash::of(KEY).low(), buckets) * BUCKET_BYTES;
        let mut bucket = [0; BUCKET_BYTES as usize];
        store.session.read(table, at, &mut bucket).await.unwrap();
        let mut slots = decode_words(&bucket).map(Slot::decode).zip((at..).step_by(WORD as usize));
        slots.find_map(|(slot, at)| Some((slot?, (table, at)))).unwrap()
    }

    #[test]
    fn an_entry_that_is_not_public_yet_is_not_taken_for_the_value_whose_memory_it_has() {
        look_with(async |mut shard, mut store| {
            set(&mut shard, b"first").await;
            let (slot, at) = slot_of(&mut store).await;
            assert!(matches!(store.follow(0, at, slot, KEY).await, Ok(Look::Value(_, 5))));
            set(&mut shard, b"second").await;
            // The next value of the same key is written where the first was, and its slot does not lead there yet.
            let mut entry = Vec::new();
            Entry { expires_ms: 0, key: KEY, value: b"third" }.encode(slot.place, &mut entry);
            let write = shard.heap().write_of(Block::from(slot), &entry);
            store.session.write_batch(&[write]).await.unwrap();
            assert_eq!(store.follow(0, at, slot, KEY).await.unwrap(), Look::Again);
            assert_eq!(store.get(KEY).await.unwrap().as_deref(), Some(&b"second"[..]));
        });
    }
}
