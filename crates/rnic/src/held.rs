//! A queue of references to the local memory of posted requests.

use std::collections::VecDeque;

use crate::memory::Refused;

/// References to the local memory of posted requests, oldest first. They let a request access its memory even after the
/// registration of that memory has ended. Entries have consecutive keys, which are not the keys of registrations.
#[derive(Debug)]
pub struct Held<T> {
    /// The key of the oldest entry. Keys wrap.
    first: u32,
    entries: VecDeque<Option<T>>,
}

impl<T> Default for Held<T> {
    fn default() -> Held<T> {
        Held { first: 0, entries: VecDeque::new() }
    }
}

impl<T> Held<T> {
    /// Returns the key that the next call of [`Held::push`] assigns.
    pub fn next_key(&self) -> u32 {
        self.first.wrapping_add(self.entries.len() as u32)
    }

    /// Adds the memory of a posted request, or `None` for a request that uses no local memory.
    pub fn push(&mut self, memory: Option<T>) {
        self.entries.push_back(memory);
    }

    /// Removes the newest entry. Call this method if the queue pair refuses its request.
    pub fn pop(&mut self) {
        self.entries.pop_back();
    }

    /// Drops all entries except the newest `count`.
    pub fn keep_last(&mut self, count: usize) {
        let dropped = self.entries.len().saturating_sub(count);
        self.entries.drain(..dropped);
        self.first = self.first.wrapping_add(dropped as u32);
    }

    /// Returns the memory with this key. Fails with [`Refused`] if the entry was dropped or has no memory.
    pub fn get(&self, key: u32) -> Result<&T, Refused> {
        let index = key.wrapping_sub(self.first) as usize;
        self.entries.get(index).and_then(Option::as_ref).ok_or(Refused)
    }
}
