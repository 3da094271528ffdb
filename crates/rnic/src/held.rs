//! A queue of references to the local memory of posted requests.

use std::collections::VecDeque;

use crate::memory::Refused;

/// References to the local memory of posted requests, oldest first. So a request can access its memory even after the
/// registration of that memory has ended. Entries have their own consecutive keys, which differ from registration keys.
#[derive(Debug)]
pub struct Held<T> {
    /// The key of the oldest entry. Keys count the posted requests, and wrap.
    first: u32,
    held: VecDeque<Option<T>>,
}

impl<T> Default for Held<T> {
    fn default() -> Held<T> {
        Held { first: 0, held: VecDeque::new() }
    }
}

impl<T> Held<T> {
    /// Returns the key that the next call of [`Held::push`] assigns.
    pub fn next_key(&self) -> u32 {
        self.first.wrapping_add(self.held.len() as u32)
    }

    /// Adds the memory of a posted request, or `None` for a request that uses no local memory.
    pub fn push(&mut self, memory: Option<T>) {
        self.held.push_back(memory);
    }

    /// Removes the entry added last, whose request was refused.
    pub fn pop(&mut self) {
        self.held.pop_back();
    }

    /// Drops all entries except the newest `count`.
    pub fn keep_last(&mut self, count: usize) {
        let ended = self.held.len().saturating_sub(count);
        self.held.drain(..ended);
        self.first = self.first.wrapping_add(ended as u32);
    }

    /// Returns the memory with this key. Fails if the entry was dropped or holds no memory.
    pub fn get(&self, key: u32) -> Result<&T, Refused> {
        let index = key.wrapping_sub(self.first) as usize;
        self.held.get(index).and_then(Option::as_ref).ok_or(Refused)
    }
}
