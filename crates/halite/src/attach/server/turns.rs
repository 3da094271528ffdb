//! Whose turn it is: users share the thread's time evenly, whatever number of sessions and requests they have.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

/// Time of a user in one round. A turn ends with the first operation that exceeds it; a long one yields.
pub(super) const TURN: Duration = Duration::from_micros(100);

/// The clients that have something to do.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// In the order of their turns.
    waiting: VecDeque<u64>,
    /// The same clients.
    members: BTreeSet<u64>,
    /// Time that each user has used in this round.
    used: HashMap<u32, Duration>,
}

impl Turns {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Adds a client unless it waits already.
    pub(super) fn add(&mut self, client: u64) {
        if self.members.insert(client) {
            self.waiting.push_back(client);
        }
    }

    /// Removes the client whose turn it is.
    pub(super) fn next(&mut self) -> Option<u64> {
        let client = self.waiting.pop_front()?;
        self.members.remove(&client);
        Some(client)
    }

    pub(super) fn begin_round(&mut self) {
        self.used.clear();
    }

    /// Returns true if the user has used up its time in this round.
    pub(super) fn is_over(&self, uid: u32) -> bool {
        self.used.get(&uid).is_some_and(|used| *used >= TURN)
    }

    pub(super) fn charge(&mut self, uid: u32, time: Duration) {
        *self.used.entry(uid).or_default() += time;
    }
}
