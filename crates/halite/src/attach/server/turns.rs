//! Whose turn it is: users share the thread's time evenly, whatever number of sessions and requests they have (deficit
//! round robin).

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

/// Time of a user in one round. A turn ends with the first operation that exceeds it; a long one yields. A user that has
/// exceeded it gets less in the next rounds.
pub(super) const TURN: Duration = Duration::from_micros(100);

/// The clients that have something to do.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// By user, in the order of their turns.
    waiting: BTreeMap<u32, VecDeque<u64>>,
    /// The same clients.
    members: BTreeSet<u64>,
    /// Time that each user has used in this round, and by which it has exceeded its time in the rounds before.
    used: HashMap<u32, Duration>,
}

impl Turns {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the users that have waiting clients, and the numbers of these clients.
    pub(super) fn users(&self) -> Vec<(u32, usize)> {
        self.waiting.iter().map(|(uid, clients)| (*uid, clients.len())).collect()
    }

    /// Adds a client of a user unless it waits already.
    pub(super) fn add(&mut self, uid: u32, client: u64) {
        if self.members.insert(client) {
            self.waiting.entry(uid).or_default().push_back(client);
        }
    }

    /// Removes the client of a user whose turn it is.
    pub(super) fn next(&mut self, uid: u32) -> Option<u64> {
        let clients = self.waiting.get_mut(&uid)?;
        let client = clients.pop_front()?;
        if clients.is_empty() {
            self.waiting.remove(&uid);
        }
        self.members.remove(&client);
        Some(client)
    }

    pub(super) fn begin_round(&mut self) {
        self.used.retain(|_, used| {
            *used = used.saturating_sub(TURN);
            !used.is_zero()
        });
    }

    /// Returns true if the user has used up its time in this round.
    pub(super) fn is_over(&self, uid: u32) -> bool {
        self.used.get(&uid).is_some_and(|used| *used >= TURN)
    }

    pub(super) fn charge(&mut self, uid: u32, time: Duration) {
        *self.used.entry(uid).or_default() += time;
    }
}
