//! Which client's operation begins next.
//!
//! In mode `grouped`, after ScaleRPC, clients take turns in groups: each group has a time slice in which only its clients
//! have operations, so the server needs the connections of one group at a time. In workload `rounds`, each client has one
//! operation per round, and a round begins when the previous one has ended.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Number of clients that have the same time slice.
const GROUP: u32 = 40;
/// Length of a time slice: each client of a group has a few operations in it.
const SLICE: Duration = Duration::from_millis(1);

pub struct Turns {
    clients: u32,
    /// Start of the first time slice; `None` if clients are not grouped.
    slices: Option<Instant>,
    /// Clients whose operation of this round has not begun; `None` without rounds.
    round: Option<BTreeSet<u32>>,
    random: fastrand::Rng,
}

impl Turns {
    pub fn new(clients: u32, is_grouped: bool, has_rounds: bool) -> Turns {
        Turns {
            clients,
            slices: is_grouped.then(Instant::now),
            round: has_rounds.then(BTreeSet::new),
            random: fastrand::Rng::with_seed(1),
        }
    }

    /// Returns the next client that begins an operation; `None` if there is none now. `busy` is the number of clients
    /// with an operation in progress.
    pub fn next(&mut self, busy: usize, is_busy: impl Fn(u32) -> bool) -> Option<u32> {
        let active = self.active();
        if let Some(round) = &mut self.round {
            if round.is_empty() && busy == 0 {
                round.extend(0..self.clients);
            }
            let client = *round.range(active).next()?;
            round.remove(&client);
            return Some(client);
        }
        let busy = if self.slices.is_some() {
            active.clone().filter(|client| is_busy(*client)).count()
        } else {
            busy
        };
        if busy >= active.len() {
            return None;
        }
        loop {
            let client = self.random.u32(active.clone());
            if !is_busy(client) {
                return Some(client);
            }
        }
    }

    /// Takes back an operation, which must begin again.
    pub fn take_back(&mut self, client: u32) {
        if let Some(round) = &mut self.round {
            round.insert(client);
        }
    }

    /// Returns the time until the next time slice; `None` if clients are not grouped.
    pub fn until_next(&self) -> Option<Duration> {
        let passed = self.slices?.elapsed().as_nanos() % SLICE.as_nanos();
        Some(SLICE - Duration::from_nanos(passed as u64))
    }

    /// Returns the clients whose time slice it is.
    fn active(&self) -> Range<u32> {
        let Some(began) = self.slices else { return 0..self.clients };
        let slice = began.elapsed().as_nanos() / SLICE.as_nanos();
        let group = (slice % u128::from(self.clients.div_ceil(GROUP))) as u32;
        GROUP * group..(GROUP * (group + 1)).min(self.clients)
    }
}
