//! How long a packet may be to come through to the peer, and its answer back.
//!
//! ```text
//!   found, 4096 ──── probes of it and of the smallest ──┬─► answered: it stays
//!                                                       ├─► neither: the link is down, which tells nothing
//!                                                       └─► only the smallest: probes of all between, thrice ──► the largest answered
//! ```
//!
//! Frames that are too long vanish without a word where a path is set up wrongly, and so do those of a path that changes.  So both
//! ends probe when they have met, and whenever much has been waited for in vain.  Packets that are too long leave in parts from then
//! on ([`crate::parts`]), with the numbers that they have: nothing is numbered anew, and nothing done twice.

use std::collections::VecDeque;

use crate::config::Mtu;
use crate::wire::path_eth::packet_bytes_max;
use crate::wire::{Headers, PathEthRepr, Psn};

/// The least that an answer is waited for.
const WAIT_NS_MIN: u64 = 5_000_000;
/// How often probes are sent while nothing is answered: 315 ms in all, if no round trip is known.
const ROUNDS: u32 = 6;
/// How often larger ones are sent when a smaller one was answered.
const ROUNDS_BETWEEN: u32 = 3;
/// When it is looked again whether more comes through.
const RAISE_NS: u64 = 60_000_000_000;
/// Answers that may be owed.
const ANSWERS_MAX: usize = 16;
const SMALLEST: Mtu = Mtu::Bytes256;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Path {
    /// Agreed on: nothing longer is sent.
    most: Mtu,
    found: Mtu,
    /// What the peer has found.
    theirs: Mtu,
    search: Option<Search>,
    /// The number of the last search: answers to others are not heeded.
    number: Psn,
    /// The number of the peer's last search.
    their_number: Option<Psn>,
    probes: VecDeque<Mtu>,
    answers: VecDeque<(Psn, Mtu)>,
    raise_at_ns: Option<u64>,
    /// A search has come to an end.
    is_known: bool,
    /// Some probe has been answered, be it one of a search that is over.
    is_answered: bool,
}

#[derive(Debug)]
struct Search {
    /// Larger ones are not asked for.
    goal: Mtu,
    answered: Option<Mtu>,
    begun_ns: u64,
    rounds_left: u32,
    wait_ns: u64,
    until_ns: u64,
}

impl Path {
    /// Between ends that have agreed on `most`; its searches are counted from `number`.
    pub fn new(most: Mtu, number: Psn) -> Path {
        Path {
            most,
            found: most,
            theirs: most,
            search: None,
            number,
            their_number: None,
            probes: VecDeque::new(),
            answers: VecDeque::new(),
            raise_at_ns: None,
            is_known: false,
            is_answered: false,
        }
    }

    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// Whether packets as long as was agreed on were seen to come through.
    pub fn lets_all_through(&self) -> bool {
        self.is_known && self.mtu() == self.most
    }

    pub fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// The most that comes through both ways.
    // [ROCE-PATH-3]
    pub fn mtu(&self) -> Mtu {
        self.found.min(self.theirs)
    }

    /// How many parts the longest packet leaves in.
    pub fn parts(&self) -> u32 {
        self.most.bytes() / self.mtu().bytes()
    }

    /// So much came through to the same host before: longer packets are cut until more is known.
    // [ROCE-PATH-5]
    pub fn expect(&mut self, mtu: Mtu) {
        if !self.is_known {
            self.found = mtu.min(self.most);
        }
    }

    /// Looks whether what is thought to come through does so, or in the first search whether what was agreed on does, unless it is being
    /// looked for.
    // [ROCE-PATH-2]
    pub fn search(&mut self, now_ns: u64, round_trip_ns: Option<u64>) {
        let goal = if self.is_known { self.found } else { self.most };
        self.search_up_to(goal, now_ns, round_trip_ns);
    }

    fn search_up_to(&mut self, goal: Mtu, now_ns: u64, round_trip_ns: Option<u64>) {
        if self.search.is_some() {
            return;
        }
        self.number = Psn::new(self.number.value().wrapping_add(1));
        let wait_ns = wait_ns(round_trip_ns);
        let (rounds_left, until_ns) = (ROUNDS - 1, now_ns + wait_ns);
        self.search = Some(Search { goal, answered: None, begun_ns: now_ns, rounds_left, wait_ns, until_ns });
        self.ask();
    }

    /// Has the probes of a round leave.
    fn ask(&mut self) {
        let Some(search) = &self.search else { return };
        self.probes.clear();
        match search.answered {
            Some(answered) => {
                let between = |mtu: &Mtu| *mtu > answered && *mtu <= search.goal;
                self.probes.extend(Mtu::ALL.into_iter().filter(between));
            }
            // In this order they are no train, of which all is lost with one.
            None => {
                self.probes.extend(Some(SMALLEST).filter(|smallest| *smallest < search.goal));
                self.probes.push_back(search.goal);
            }
        }
    }

    /// A probe has come: it is answered by a packet of its length.  Says whether it is heeded, which one of an earlier search is not.
    pub fn handle_probe(&mut self, number: Psn, probe: PathEthRepr) -> bool {
        let is_older = |last: Psn| number.value().wrapping_sub(last.value()) & 0xff_ffff >= 1 << 23;
        if self.their_number.is_some_and(is_older) {
            return false;
        }
        self.their_number = Some(number);
        self.theirs = probe.found.min(self.most);
        if probe.size <= self.most && self.answers.len() < ANSWERS_MAX {
            self.answers.push_back((number, probe.size));
        }
        true
    }

    /// An answer has come.  Says whether it is one to a search that is under way.
    pub fn handle_answer(&mut self, now_ns: u64, number: Psn, answer: PathEthRepr) -> bool {
        self.is_answered = true;
        let Some(search) = self.search.as_mut().filter(|_| number == self.number) else { return false };
        self.theirs = answer.found.min(self.most);
        if answer.size > search.goal || search.answered.is_some_and(|answered| answered >= answer.size) {
            return true;
        }
        let is_first = search.answered.is_none();
        search.answered = Some(answer.size);
        if answer.size == search.goal {
            self.settle(now_ns);
        } else if is_first {
            // It lives: what is larger is on its way, or lost.
            search.rounds_left = ROUNDS_BETWEEN;
            search.wait_ns = wait_ns(Some(now_ns.saturating_sub(search.begun_ns)));
            search.until_ns = now_ns + search.wait_ns;
        }
        true
    }

    /// The search is over.
    fn settle(&mut self, now_ns: u64) {
        let Some(search) = self.search.take() else { return };
        self.is_known = true;
        self.probes.clear();
        let before = self.found;
        self.found = search.answered.unwrap_or(before);
        if self.found != before {
            // The peer is told.  If that is lost, it hears of it by the next.
            self.probes.push_back(SMALLEST);
        }
        self.raise_at_ns = (self.found < self.most).then_some(now_ns + RAISE_NS);
    }

    /// The next packet that is to leave, its number, and how many zeros it holds.
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
        self.search.as_ref().map(|search| search.until_ns).or(self.raise_at_ns)
    }

    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.poll_timeout().is_none_or(|at| now_ns < at) {
            return;
        }
        let Some(search) = &mut self.search else {
            self.raise_at_ns = None;
            return self.search_up_to(self.most, now_ns, None);
        };
        if search.rounds_left == 0 {
            return self.settle(now_ns);
        }
        search.rounds_left -= 1;
        if search.answered.is_none() {
            search.wait_ns *= 2;
        }
        search.until_ns = now_ns + search.wait_ns;
        self.ask();
    }

    /// Whether a packet of so many bytes is too long.
    pub fn is_too_long(&self, packet_bytes: usize) -> bool {
        packet_bytes > packet_bytes_max(self.mtu())
    }
}

fn wait_ns(round_trip_ns: Option<u64>) -> u64 {
    round_trip_ns.map_or(WAIT_NS_MIN, |ns| (ns.saturating_mul(5) / 2).max(WAIT_NS_MIN))
}
