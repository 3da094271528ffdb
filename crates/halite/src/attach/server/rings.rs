//! Polls the memory that clients share with the node.
//!
//! The thread polls the next line of each client that was active recently. A client that stays quiet for longer must
//! wake the thread over its socket. While it polls lines, the thread checks the sockets every [`TURN_NS`].

use std::time::Instant;

use super::{Over, Server};
use crate::runtime::wait::{AdaptiveSpin, SPIN_SHORT_NS, YIELD_LONG_NS};

/// Interval, in nanoseconds, at which the polling thread checks the sockets. A client that wakes the thread over its
/// socket waits at most this long, and the system call takes less than 1 % of the time.
const TURN_NS: u64 = 100_000;
/// Rounds between two clock reads.
const ROUNDS_PER_CLOCK: u32 = 32;
/// The same while other spinning threads use the core: the thread yields it at each reading.
const ROUNDS_PER_CLOCK_SHARED: u32 = 4;
/// Rounds between two polls of the node while operations are in progress. A poll takes longer than a round.
const ROUNDS_PER_POLL: u32 = 8;

/// Rounds between two polls of the node while only receives of calls are in progress, most of which get calls of other
/// clients.
const ROUNDS_PER_IDLE_POLL: u32 = 64;

/// Checks of the next line of a client per round, if no other client is active and no operation is in progress. Finding
/// the client takes as long as several checks.
const CHECKS_PER_ROUND: usize = 8;

/// The reason why the thread polls the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Waits {
    No,
    /// Only receives of calls are in progress.
    ForCalls,
    /// Operations are in progress.
    ForNode,
}

/// The clients whose lines the thread polls.
pub(super) struct Rings {
    active: Vec<Active>,
    spin: AdaptiveSpin,
    begin: Instant,
    /// Time of the last line of any client, in nanoseconds.
    last_ns: u64,
    /// True if this thread has polled the node since it last slept. It must then let arrivals wake the progress thread.
    pub(super) has_polled: bool,
}

struct Active {
    client: u64,
    /// True if the client has written a line since the last clock read.
    is_busy: bool,
    /// Time of this client's last line, in nanoseconds.
    last_ns: u64,
}

impl Rings {
    pub(super) fn new() -> Rings {
        let mut spin = AdaptiveSpin::NEW;
        spin.set_by_packets(true);
        Rings { active: Vec::new(), spin, begin: Instant::now(), last_ns: 0, has_polled: false }
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    /// Starts to poll the lines of a client.
    pub(super) fn activate(&mut self, client: u64) {
        if self.active.iter().any(|active| active.client == client) {
            return;
        }
        let now_ns = self.now_ns();
        if self.active.is_empty() {
            self.spin.record_wait(now_ns - self.last_ns);
            self.last_ns = now_ns;
        }
        self.active.push(Active { client, is_busy: true, last_ns: now_ns });
    }
}

impl Server {
    /// Serves lines until the sockets or operations need the thread. Returns false if the thread may sleep.
    pub(super) fn serve_rings(&mut self) -> bool {
        if self.rings.active.is_empty() {
            return false;
        }
        let begin_ns = self.rings.now_ns();
        let mut rounds = 0_u32;
        loop {
            let waits = self.serve_round();
            rounds += 1;
            if !self.turns.is_empty() {
                return true;
            }
            // Otherwise each completion would wake the progress thread, which would then wake this thread.
            let waits = match waits {
                Waits::No => false,
                Waits::ForCalls => rounds.is_multiple_of(ROUNDS_PER_IDLE_POLL),
                Waits::ForNode => rounds.is_multiple_of(ROUNDS_PER_POLL),
            };
            if waits {
                self.driver.poll_as_caller();
                self.rings.has_polled = true;
            }
            if self.ready.is_rung() {
                return true;
            }
            let is_shared = self.rings.spin.shares_core();
            if rounds.is_multiple_of(if is_shared { ROUNDS_PER_CLOCK_SHARED } else { ROUNDS_PER_CLOCK }) {
                let now_ns = self.rings.now_ns();
                self.retire(now_ns);
                if self.rings.active.is_empty() {
                    return false;
                }
                if now_ns - begin_ns >= TURN_NS {
                    return true;
                }
            }
        }
    }

    /// Serves at most one line of each client. Returns what these clients wait for.
    fn serve_round(&mut self) -> Waits {
        let (mut at, mut waits) = (0, Waits::No);
        let is_alone = self.rings.active.len() == 1;
        while let Some(active) = self.rings.active.get_mut(at) {
            let client = active.client;
            let served = match self.clients.get_mut(&client) {
                Some(connection) => {
                    waits = waits.max(match connection.is_waiting() {
                        true => Waits::ForNode,
                        false if connection.is_receiving() => Waits::ForCalls,
                        false => Waits::No,
                    });
                    let checks = if is_alone && waits == Waits::No { CHECKS_PER_ROUND } else { 1 };
                    let mut served = (0..checks).map(|_| connection.serve_line());
                    let served = served.find(|served| !matches!(served, Ok(false)));
                    let served = served.unwrap_or(Ok(false));
                    served.map(|is_served| (is_served, connection.has_output() || connection.has_forwards()))
                }
                None => Err(Over),
            };
            match served {
                Ok((false, _)) => at += 1,
                Ok((true, has_more)) => {
                    active.is_busy = true;
                    at += 1;
                    if has_more {
                        self.forward(client);
                        self.send_to(client);
                    }
                }
                Err(Over) => {
                    self.rings.active.swap_remove(at);
                    self.with(client, |_, _| Err(Over));
                }
            }
        }
        waits
    }

    /// Stops polling clients that have been quiet for long; they then wake the thread over their sockets.
    fn retire(&mut self, now_ns: u64) {
        let rings = &mut self.rings;
        let is_busy = rings.active.iter().any(|active| active.is_busy);
        if is_busy {
            rings.last_ns = now_ns;
            rings.spin.record_wait(0);
        } else if rings.spin.shares_core() || now_ns - rings.last_ns >= SPIN_SHORT_NS {
            std::thread::yield_now();
            let yielded_ns = rings.now_ns() - now_ns;
            rings.spin.record_yield(yielded_ns);
            if yielded_ns > YIELD_LONG_NS {
                rings.spin.record_contention();
            }
        }
        let spin_ns = rings.spin.spin_ns();
        let clients = &mut self.clients;
        let sessions = &self.sessions;
        rings.active.retain_mut(|active| {
            if std::mem::take(&mut active.is_busy) {
                active.last_ns = now_ns;
            }
            if now_ns - active.last_ns < spin_ns {
                return true;
            }
            let Some(connection) = clients.get_mut(&active.client) else { return false };
            let sleeps = connection.try_sleep();
            if sleeps {
                let (operations, bytes) = connection.figures();
                sessions.update(active.client, operations, bytes);
            }
            !sleeps
        });
    }
}
