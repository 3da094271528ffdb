//! Polls the memory that clients share with the node.
//!
//! The thread polls the next line of each client that was active recently. A client that stays quiet for longer must
//! wake the thread over its socket. While it polls lines, the thread checks the sockets every [`TURN_NS`].
//!
//! If clients of several users are active, the users take turns, and in its turn each user gets the same time, whatever
//! number of clients it has (deficit round robin). A turn over the socket counts, too.

use std::time::{Duration, Instant};

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

/// Lines that the thread serves between two clock reads, if fewer rounds do not reach it: together as long as
/// [`TURN_NS`] if they are long.
const LINES_PER_CLOCK: u32 = 16;
/// Time of a user in one round, in nanoseconds: about one line of 64 KiB, or twenty short ones. A user that exceeds it
/// gets less in the next rounds.
const QUANTUM_NS: i64 = 5_000;
/// Time that a check without a line costs a user, in nanoseconds.
const CHECK_NS: i64 = 20;

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
    /// The users with active clients.
    users: Vec<User>,
    spin: AdaptiveSpin,
    begin: Instant,
    /// Time of the last line of any client, in nanoseconds.
    last_ns: u64,
    /// Number of lines since the thread last compared the clock.
    lines: u32,
    /// Time of the last clock read while the thread polls lines, in nanoseconds.
    read_ns: u64,
    /// True if this thread has polled the node since it last slept. It must then let arrivals wake the progress thread.
    pub(super) has_polled: bool,
}

struct User {
    uid: u32,
    active: Vec<Active>,
    /// Index of the client whose line is next.
    next: usize,
    /// Time that is left for this user, in nanoseconds.
    left_ns: i64,
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
        Rings {
            users: Vec::new(),
            spin,
            begin: Instant::now(),
            last_ns: 0,
            lines: 0,
            read_ns: 0,
            has_polled: false,
        }
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    /// Starts to poll the lines of a client.
    pub(super) fn activate(&mut self, client: u64, uid: u32) {
        let user = self.users.iter().position(|user| user.uid == uid);
        if user.is_some_and(|user| self.users[user].active.iter().any(|active| active.client == client)) {
            return;
        }
        let now_ns = self.now_ns();
        if self.users.is_empty() {
            self.spin.record_wait(now_ns - self.last_ns);
            self.last_ns = now_ns;
        }
        let active = Active { client, is_busy: true, last_ns: now_ns };
        match user {
            Some(user) => self.users[user].active.push(active),
            None => self.users.push(User { uid, active: vec![active], next: 0, left_ns: 0 }),
        }
    }

    /// Counts time that a user has used otherwise, at most that of one turn.
    pub(super) fn charge(&mut self, uid: u32, time: Duration) {
        if let Some(user) = self.users.iter_mut().find(|user| user.uid == uid) {
            user.left_ns = (user.left_ns - time.as_nanos() as i64).max(-(TURN_NS as i64));
        }
    }

    /// Reads the clock, and returns the nanoseconds since the last time.
    fn lap_ns(&mut self) -> i64 {
        let now_ns = self.now_ns();
        (now_ns - std::mem::replace(&mut self.read_ns, now_ns)) as i64
    }
}

impl Server {
    /// Serves lines until the sockets or operations need the thread. Returns false if the thread may sleep.
    pub(super) fn serve_rings(&mut self) -> bool {
        if self.rings.users.is_empty() {
            return false;
        }
        let begin_ns = self.rings.now_ns();
        self.rings.read_ns = begin_ns;
        let mut rounds = 0_u32;
        loop {
            let (waits, takes_turns) = match self.rings.users.len() {
                0 | 1 => (self.serve_all(), false),
                _ => self.serve_users(),
            };
            rounds += 1;
            // The turns of one user must not keep others from their lines.
            let may_go_on = takes_turns && self.rings.read_ns - begin_ns < TURN_NS;
            if !self.turns.is_empty() && !may_go_on {
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
            if self.rings.lines >= LINES_PER_CLOCK {
                self.rings.lines = 0;
                let now_ns = self.rings.now_ns();
                if now_ns - begin_ns >= TURN_NS {
                    self.retire(now_ns);
                    return !self.rings.users.is_empty();
                }
            }
            let is_shared = self.rings.spin.shares_core();
            if rounds.is_multiple_of(if is_shared { ROUNDS_PER_CLOCK_SHARED } else { ROUNDS_PER_CLOCK }) {
                let now_ns = self.rings.now_ns();
                self.rings.read_ns = now_ns;
                self.retire(now_ns);
                if self.rings.users.is_empty() {
                    return false;
                }
                if now_ns - begin_ns >= TURN_NS {
                    return true;
                }
            }
        }
    }

    /// Serves at most one line of each client of the only user, up to [`LINES_PER_CLOCK`] in all. Returns what these
    /// clients wait for.
    fn serve_all(&mut self) -> Waits {
        let mut waits = Waits::No;
        let Some(User { active, next, .. }) = self.rings.users.first() else { return waits };
        let (count, mut at) = (active.len(), *next);
        for _ in 0..count {
            at = if at < count { at } else { 0 };
            at = self.serve_client(0, at, count == 1, &mut waits).map_or(0, |_| at + 1);
            if self.rings.lines >= LINES_PER_CLOCK {
                break;
            }
        }
        self.rings.users[0].next = at;
        waits
    }

    /// Gives each user a turn. Returns what the clients wait for, and true if there were lines to serve.
    fn serve_users(&mut self) -> (Waits, bool) {
        let (mut waits, mut has_lines) = (Waits::No, false);
        let mut user = 0;
        while let Some(turn) = self.rings.users.get_mut(user) {
            turn.left_ns = (turn.left_ns + QUANTUM_NS).min(QUANTUM_NS);
            has_lines |= self.serve_user(user, &mut waits);
            user += 1;
        }
        if !has_lines {
            // The users without time left wait for no other user.
            self.rings.users.iter_mut().for_each(|user| user.left_ns = user.left_ns.max(0));
        }
        (waits, has_lines)
    }

    /// Serves the clients of a user in turn, as far as the user has time left. Returns true if they had lines.
    fn serve_user(&mut self, user: usize, waits: &mut Waits) -> bool {
        let (mut has_lines, mut quiet) = (false, 0);
        while let Some(turn) = self.rings.users.get_mut(user)
            && turn.left_ns > 0
            && quiet < turn.active.len()
        {
            let at = turn.next % turn.active.len();
            turn.next = at + 1;
            let used_ns = match self.serve_client(user, at, false, waits) {
                Some(true) => {
                    (has_lines, quiet) = (true, 0);
                    self.rings.lap_ns()
                }
                _ => {
                    quiet += 1;
                    CHECK_NS
                }
            };
            self.rings.users[user].left_ns -= used_ns;
        }
        has_lines
    }

    /// Serves the next line of a client, if there is one, and adds what the client waits for. Returns `None` if there is
    /// no such client.
    #[inline]
    fn serve_client(&mut self, user: usize, at: usize, is_alone: bool, waits: &mut Waits) -> Option<bool> {
        loop {
            let active = self.rings.users.get_mut(user)?.active.get_mut(at)?;
            let client = active.client;
            let served = match self.clients.get_mut(&client) {
                Some(connection) => {
                    *waits = (*waits).max(match connection.is_waiting() {
                        true => Waits::ForNode,
                        false if connection.is_receiving() => Waits::ForCalls,
                        false => Waits::No,
                    });
                    let checks = if is_alone && *waits == Waits::No { CHECKS_PER_ROUND } else { 1 };
                    let mut served = (0..checks).map(|_| connection.serve_line());
                    let served = served.find(|served| !matches!(served, Ok(false)));
                    let served = served.unwrap_or(Ok(false));
                    served.map(|is_served| (is_served, connection.has_output() || connection.has_forwards()))
                }
                None => Err(Over),
            };
            match served {
                Ok((is_served, has_more)) => {
                    active.is_busy |= is_served;
                    self.rings.lines += u32::from(is_served);
                    if is_served && has_more {
                        self.forward(client);
                        self.send_to(client);
                    }
                    return Some(is_served);
                }
                Err(Over) => {
                    self.rings.users[user].active.swap_remove(at);
                    self.with(client, |_, _| Err(Over));
                }
            }
        }
    }

    /// Stops polling clients that have been quiet for long; they then wake the thread over their sockets.
    fn retire(&mut self, now_ns: u64) {
        let rings = &mut self.rings;
        let is_busy = rings.users.iter().flat_map(|user| &user.active).any(|active| active.is_busy);
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
        let mut stays = |active: &mut Active| {
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
        };
        rings.users.retain_mut(|user| {
            user.active.retain_mut(&mut stays);
            !user.active.is_empty()
        });
    }
}
