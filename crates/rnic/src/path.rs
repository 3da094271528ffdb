//! Path MTU discovery: finds the longest packets that the network delivers in both directions.
//!
//! ```text
//!   goal, e.g. 4096 ── probe it and the smallest size ──┬─► goal answered: use it
//!                                                       ├─► no answer: the first search goes on; a later one
//!                                                       │   keeps the last result, because the link is down
//!                                                       └─► only the smallest: probe all sizes between, up
//!                                                           to 3 times; use the largest answered meanwhile
//! ```
//!
//! A path may drop long frames silently, because of a misconfiguration or a route change. So both ends probe the path
//! after connecting, and again after several timeouts. The sender then splits packets longer than the path MTU into
//! parts ([`crate::parts`]). The packets keep their sequence numbers, so none is executed twice.

use std::collections::VecDeque;

use crate::config::Mtu;
use crate::round_trip::BOUND_NS_MAX;
use crate::wire::path_eth::packet_bytes_max;
use crate::wire::{Headers, PathEthRepr, Psn};

/// Minimum time to wait for an answer, in ns.
const WAIT_NS_MIN: u64 = 5_000_000;
/// Maximum number of rounds without an answer, except in the first search, which has no limit. The wait doubles after
/// each round.
const ROUNDS: u32 = 6;
/// Maximum number of rounds of larger probes after an answer to a smaller one.
const ROUNDS_AFTER_ANSWER: u32 = 3;
/// Minimum and maximum interval in ns between searches for a larger MTU, while the found MTU is below the negotiated
/// one. Intervals double. So a larger MTU is found, at the latest, after about the time for which the path did not
/// deliver it.
const RAISE_NS_MIN: u64 = 1_000_000_000;
const RAISE_NS_MAX: u64 = 60_000_000_000;
/// Maximum number of queued answers; further probes are ignored.
const ANSWERS_MAX: usize = 16;
const SMALLEST: Mtu = Mtu::Bytes256;

/// The state of path MTU discovery.
#[derive(Debug)]
pub(crate) struct Path {
    /// The negotiated MTU, the upper limit.
    agreed: Mtu,
    found: Mtu,
    /// The MTU that the peer has found.
    peer_found: Mtu,
    search: Option<Search>,
    /// The number of the last search. Answers to earlier searches are stale.
    number: Psn,
    /// The number of the peer's last search.
    peer_number: Option<Psn>,
    probes: VecDeque<Mtu>,
    answers: VecDeque<(Psn, Mtu)>,
    /// Time of the next search for a larger MTU.
    raise_due_ns: Option<u64>,
    raise_interval_ns: u64,
    /// True if a search has finished; the first one finishes only after an answer.
    is_known: bool,
}

#[derive(Debug)]
struct Search {
    /// The largest size to probe.
    goal: Mtu,
    /// The smallest size to adopt. A search for a larger MTU never lowers the MTU, because its probes may be lost by
    /// chance.
    mtu_min: Mtu,
    /// The largest size that the peer has answered.
    answered: Option<Mtu>,
    started_ns: u64,
    rounds_left: u32,
    wait_ns: u64,
    deadline_ns: u64,
}

impl Path {
    /// Creates the state. Searches have consecutive numbers; the first number follows `number`.
    pub fn new(agreed: Mtu, number: Psn) -> Path {
        Path {
            agreed,
            found: agreed,
            peer_found: agreed,
            search: None,
            number,
            peer_number: None,
            probes: VecDeque::new(),
            answers: VecDeque::new(),
            raise_due_ns: None,
            raise_interval_ns: RAISE_NS_MIN,
            is_known: false,
        }
    }

    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// Returns true if a search has found that the network delivers packets of the negotiated MTU.
    pub fn passes_agreed_mtu(&self) -> bool {
        self.is_known && self.mtu() == self.agreed
    }

    /// Returns true if the peer has answered a probe.
    pub fn is_answered(&self) -> bool {
        self.is_known || self.search.as_ref().is_some_and(|search| search.answered.is_some())
    }

    /// Returns the MTU that the path delivers in both directions: the smaller of the two that the ends have found.
    // [ROCE-PATH-3]
    pub fn mtu(&self) -> Mtu {
        self.found.min(self.peer_found)
    }

    /// Returns the number of parts into which the longest packet is split; 1 if the packet is not split.
    pub fn parts(&self) -> u32 {
        self.agreed.bytes().div_ceil(self.mtu().bytes())
    }

    /// Uses `mtu`, the path MTU that an earlier connection to the same host found, until the first search finishes.
    // [ROCE-PATH-5]
    pub fn set_initial_mtu(&mut self, mtu: Mtu) {
        if !self.is_known {
            self.found = mtu.min(self.agreed);
        }
    }

    /// Starts a search, unless a search is running. The first search probes up to the negotiated MTU, a later search up
    /// to the MTU found last. Replaces a running search for a larger MTU, which cannot lower the MTU.
    // [ROCE-PATH-2]
    pub fn search(&mut self, now_ns: u64, round_trip_ns: Option<u64>) {
        let goal = if self.is_known { self.found } else { self.agreed };
        self.search.take_if(|search| search.goal > goal);
        self.search_up_to(goal, now_ns, round_trip_ns);
    }

    fn search_up_to(&mut self, goal: Mtu, now_ns: u64, round_trip_ns: Option<u64>) {
        if self.search.is_some() {
            return;
        }
        self.number = Psn::new(self.number.value().wrapping_add(1));
        let mtu_min = if self.is_known && goal > self.found { self.found } else { SMALLEST };
        let wait_ns = wait_ns(round_trip_ns);
        self.search = Some(Search {
            goal,
            mtu_min,
            answered: None,
            started_ns: now_ns,
            rounds_left: ROUNDS - 1,
            wait_ns,
            deadline_ns: now_ns + wait_ns,
        });
        self.queue_probes();
    }

    /// Queues the probes of one round.
    fn queue_probes(&mut self) {
        let Some(search) = &self.search else { return };
        self.probes.clear();
        match search.answered {
            Some(answered) => {
                let between = |mtu: &Mtu| *mtu > answered && *mtu <= search.goal;
                self.probes.extend(Mtu::ALL.into_iter().filter(between));
            }
            // The smallest goes first: otherwise the probes would form a train, which the path may drop as a whole.
            None => {
                self.probes.extend(Some(SMALLEST).filter(|smallest| *smallest < search.goal));
                self.probes.push_back(search.goal);
            }
        }
    }

    /// Queues an answer of the same length as the probe. Returns false if the probe belongs to an earlier search.
    pub fn handle_probe(&mut self, number: Psn, probe: PathEthRepr) -> bool {
        let is_older = |last: Psn| number.value().wrapping_sub(last.value()) & 0xff_ffff >= 1 << 23;
        if self.peer_number.is_some_and(is_older) {
            return false;
        }
        self.peer_number = Some(number);
        self.peer_found = probe.found.min(self.agreed);
        if probe.size <= self.agreed && self.answers.len() < ANSWERS_MAX {
            self.answers.push_back((number, probe.size));
        }
        true
    }

    /// Records an answer. Returns false if the answer does not belong to the running search.
    pub fn handle_answer(&mut self, now_ns: u64, number: Psn, answer: PathEthRepr) -> bool {
        let Some(search) = self.search.as_mut().filter(|_| number == self.number) else { return false };
        self.peer_found = answer.found.min(self.agreed);
        if answer.size > search.goal || search.answered.is_some_and(|answered| answered >= answer.size) {
            return true;
        }
        let is_first = search.answered.is_none();
        search.answered = Some(answer.size);
        if answer.size == search.goal {
            self.finish_search(now_ns);
        } else if is_first {
            // Answers to the larger probes are in flight, or lost.
            let trip_ns = now_ns.saturating_sub(search.started_ns).min(BOUND_NS_MAX);
            search.rounds_left = ROUNDS_AFTER_ANSWER;
            search.wait_ns = (trip_ns * 3 / 2).max(WAIT_NS_MIN);
            search.deadline_ns = now_ns + (trip_ns / 2).max(WAIT_NS_MIN);
        }
        true
    }

    /// Ends the search and adopts its result.
    fn finish_search(&mut self, now_ns: u64) {
        let Some(search) = self.search.take() else { return };
        self.is_known = true;
        self.probes.clear();
        let is_raise = search.goal > self.found;
        self.raise_interval_ns =
            if is_raise { (2 * self.raise_interval_ns).min(RAISE_NS_MAX) } else { RAISE_NS_MIN };
        self.adopt(search.answered.unwrap_or(self.found).max(search.mtu_min));
        self.raise_due_ns = (self.found < self.agreed).then_some(now_ns + self.raise_interval_ns);
    }

    /// Adopts a path MTU. If it has changed, queues a probe that reports it to the peer.
    fn adopt(&mut self, found: Mtu) {
        if self.found != found {
            self.found = found;
            // If this probe is lost, the next one reports the result.
            self.probes.push_back(SMALLEST);
        }
    }

    /// Returns the next packet to send: its headers, its number, and the length in bytes of its payload, which consists
    /// of zeros.
    // [ROCE-PATH-1]
    // [ROCE-WINDOW-5]
    pub fn poll(&mut self, grant: u32) -> Option<(Headers, Psn, usize)> {
        let found = self.found;
        if let Some((number, size)) = self.answers.pop_front() {
            let eth = PathEthRepr { size, found, grant: u8::try_from(grant).unwrap_or(u8::MAX) };
            return Some((Headers::ProbeAnswer(eth), number, eth.zeros()));
        }
        let eth = PathEthRepr { size: self.probes.pop_front()?, found, grant: 0 };
        Some((Headers::Probe(eth), self.number, eth.zeros()))
    }

    pub fn poll_timeout(&self) -> Option<u64> {
        self.search.as_ref().map(|search| search.deadline_ns).or(self.raise_due_ns)
    }

    /// Starts the next round or the next search, or finishes the search, if that is due.
    pub fn handle_timeout(&mut self, now_ns: u64, round_trip_ns: Option<u64>) {
        if self.poll_timeout().is_none_or(|at| now_ns < at) {
            return;
        }
        let Some(search) = &mut self.search else {
            self.raise_due_ns = None;
            return self.search_up_to(self.agreed, now_ns, round_trip_ns);
        };
        // Over a long path, the first answer may arrive after any number of rounds.
        if search.rounds_left == 0 && (self.is_known || search.answered.is_some()) {
            return self.finish_search(now_ns);
        }
        // Adopts the answer already after one whole round: over a long path, more rounds could take longer than the
        // lease.
        let adopted = search.answered.filter(|_| search.rounds_left < ROUNDS_AFTER_ANSWER);
        let adopted = adopted.map(|answered| answered.max(search.mtu_min));
        search.rounds_left = search.rounds_left.saturating_sub(1);
        if search.answered.is_none() {
            search.wait_ns = (2 * search.wait_ns).min(RAISE_NS_MAX);
        }
        search.deadline_ns = now_ns + search.wait_ns;
        self.queue_probes();
        self.adopt(adopted.unwrap_or(self.found));
    }

    /// Returns true if a packet of this length in bytes must be sent in parts.
    pub fn is_too_long(&self, packet_bytes: usize) -> bool {
        packet_bytes > packet_bytes_max(self.mtu())
    }
}

/// Returns the time in ns to wait for the answers of the first round.
fn wait_ns(round_trip_ns: Option<u64>) -> u64 {
    round_trip_ns.map_or(WAIT_NS_MIN, |ns| (ns.saturating_mul(5) / 2).max(WAIT_NS_MIN))
}
