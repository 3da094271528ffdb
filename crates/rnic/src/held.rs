//! References to the local memory of posted requests.

use std::collections::VecDeque;

use crate::memory::Refused;

/// Holds references to the local memory of posted requests, oldest first, so that it stays accessible even if it is
/// deregistered. The keys are separate from those of registrations.
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
    /// Returns the key that the memory of the next request gets.
    pub fn next_key(&self) -> u32 {
        self.first.wrapping_add(self.held.len() as u32)
    }

    /// Adds the memory of a posted request; `None` if the request uses no local memory.
    pub fn push(&mut self, memory: Option<T>) {
        self.held.push_back(memory);
    }

    /// Drops all entries except the last `count`.
    pub fn keep_last(&mut self, count: usize) {
        let ended = self.held.len().saturating_sub(count);
        self.held.drain(..ended);
        self.first = self.first.wrapping_add(ended as u32);
    }

    /// Returns the memory of the request with this key.
    pub fn get(&self, key: u32) -> Result<&T, Refused> {
        let index = key.wrapping_sub(self.first) as usize;
        self.held.get(index).and_then(Option::as_ref).ok_or(Refused)
    }
}
