//! A hash table from byte strings to values, for counting.
//!
//! The table itself holds keys of at most 8 bytes, such as most words, so their lookup takes one cache miss. A separate
//! buffer holds longer keys.

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::hash::{BuildHasher, Hasher};

/// Maximum length of a key, in bytes.
pub const KEY_BYTES_MAX: usize = u32::MAX as usize;

/// Values by key.
#[derive(Debug)]
pub struct Table<V> {
    slots: HashTable<Slot<V>>,
    /// Bytes of the keys that do not fit into their slots.
    long_keys: Vec<u8>,
}

#[derive(Debug)]
struct Slot<V> {
    /// The key's first 8 bytes, with zeros behind a shorter key.
    prefix: [u8; 8],
    /// Offset of a longer key in `long_keys`.
    start: usize,
    len: u32,
    hash: u32,
    value: V,
}

impl<V> Default for Table<V> {
    fn default() -> Table<V> {
        Table { slots: HashTable::new(), long_keys: Vec::new() }
    }
}

impl<V> Table<V> {
    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns true if the table has no key.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Combines `value` into the value of `key` by `combine`, or stores it if the table does not have the key.
    ///
    /// # Panics
    ///
    /// If the key is longer than [`KEY_BYTES_MAX`].
    #[inline]
    pub fn add(&mut self, key: &[u8], value: V, combine: impl FnOnce(&mut V, V)) {
        let mut prefix = [0; 8];
        if key.len() <= 8 {
            prefix[..key.len()].copy_from_slice(key);
            let hash = hash_short(prefix, key.len());
            let is_same = |slot: &Slot<V>| slot.prefix == prefix && slot.len as usize == key.len();
            match self.slots.find_mut(widen(hash), is_same) {
                Some(slot) => combine(&mut slot.value, value),
                None => self.insert(key, prefix, hash, value),
            }
        } else {
            prefix.copy_from_slice(&key[..8]);
            let hash = hash_long(key);
            let long_keys = &self.long_keys;
            let is_same = |slot: &Slot<V>| slot.hash == hash && slot.key(long_keys) == key;
            match self.slots.find_mut(widen(hash), is_same) {
                Some(slot) => combine(&mut slot.value, value),
                None => self.insert(key, prefix, hash, value),
            }
        }
    }

    #[cold]
    fn insert(&mut self, key: &[u8], prefix: [u8; 8], hash: u32, value: V) {
        let len = u32::try_from(key.len()).expect("callers respect KEY_BYTES_MAX");
        let start = self.long_keys.len();
        if key.len() > 8 {
            self.long_keys.extend_from_slice(key);
        }
        let slot = Slot { prefix, start, len, hash, value };
        self.slots.insert_unique(widen(hash), slot, |slot| widen(slot.hash));
    }

    /// Returns all keys and values, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &V)> {
        self.slots.iter().map(|slot| (slot.key(&self.long_keys), &slot.value))
    }

    /// Returns all keys and values, in no particular order.
    pub fn into_entries(self) -> impl Iterator<Item = (Vec<u8>, V)> {
        let long_keys = self.long_keys;
        self.slots.into_iter().map(move |slot| (slot.key(&long_keys).to_owned(), slot.value))
    }

    /// Returns all keys and values, in no particular order, each with the number of its part, from 0 to `parts` - 1.
    /// The part of a key depends only on the key and on `parts`, so all processes of a run agree on it.
    pub fn iter_parts(&self, parts: usize) -> impl Iterator<Item = (usize, &[u8], &V)> {
        let part = move |hash: u32| ((u64::from(hash) * parts as u64) >> 32) as usize;
        self.slots.iter().map(move |slot| (part(slot.hash), slot.key(&self.long_keys), &slot.value))
    }
}

impl<V> Slot<V> {
    fn key<'a>(&'a self, long_keys: &'a [u8]) -> &'a [u8] {
        let len = self.len as usize;
        if len <= 8 { &self.prefix[..len] } else { &long_keys[self.start..self.start + len] }
    }
}

#[inline]
fn hash_short(prefix: [u8; 8], len: usize) -> u32 {
    // Two keys differ in their prefixes unless they end with zeros, so the length matters little.
    let mixed = (u64::from_le_bytes(prefix) ^ len as u64).wrapping_mul(MULTIPLIER);
    (mixed ^ mixed >> 32).wrapping_mul(MULTIPLIER).rotate_left(32) as u32
}

#[inline]
fn hash_long(key: &[u8]) -> u32 {
    let mut hasher = FixedState::default().build_hasher();
    hasher.write(key);
    (hasher.finish() >> 32) as u32
}

/// Spreads a hash over the 64 bits of which the table uses the lowest and the highest.
#[inline]
fn widen(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(MULTIPLIER)
}

/// An odd number with mixed bits: 2^64 divided by the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
