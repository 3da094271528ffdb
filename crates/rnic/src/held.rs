//! What posted requests hold on their own side.

use std::collections::VecDeque;

use crate::memory::Refused;

/// The local memory of posted requests, oldest first, behind keys of its own: it stays though what it is registered by is taken back.
#[derive(Debug)]
pub struct Held<T> {
    /// The key of the oldest one, which counts all that were ever posted.
    first: u32,
    held: VecDeque<Option<T>>,
}

impl<T> Default for Held<T> {
    fn default() -> Held<T> {
        Held { first: 0, held: VecDeque::new() }
    }
}

impl<T> Held<T> {
    /// The key of the next request that is posted.
    pub fn next_key(&self) -> u32 {
        self.first.wrapping_add(self.held.len() as u32)
    }

    /// A request was posted, which may hold nothing.
    pub fn push(&mut self, memory: Option<T>) {
        self.held.push_back(memory);
    }

    /// Only so many of the last have not ended.
    pub fn keep_last(&mut self, count: usize) {
        let ended = self.held.len().saturating_sub(count);
        self.held.drain(..ended);
        self.first = self.first.wrapping_add(ended as u32);
    }

    /// What the request of that key holds.
    pub fn get(&self, key: u32) -> Result<&T, Refused> {
        let index = key.wrapping_sub(self.first) as usize;
        self.held.get(index).and_then(Option::as_ref).ok_or(Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_on_behind_those_of_requests_that_have_ended_also_past_their_last_number() {
        let mut held = Held { first: u32::MAX, held: VecDeque::new() };
        let keys = ["one", "two", "three"].map(|name| {
            let key = held.next_key();
            held.push((name != "two").then_some(name));
            key
        });
        assert_eq!(keys, [u32::MAX, 0, 1]);
        held.keep_last(2);
        assert_eq!([u32::MAX, 0, 1, 2].map(|key| held.get(key).ok()), [None, None, Some(&"three"), None]);
        assert_eq!(held.next_key(), 2);
    }
}
