//! What is known of each packet under way, between ends that repeat single ones.
//!
//! ```text
//!   una                                              next
//!    │ lost │ kept │ answered │ under way │ under way │
//! ```
//!
//! Packets are numbered a second time, by when they left last: the network keeps that order, more or less.  So one is lost when `tolerance` others
//! that left after it have arrived, or when one has and it has taken much longer than a round trip.

use std::collections::VecDeque;

/// After how many that left later a packet is lost: at first, and at most where the network keeps no order.
const TOLERANCE_MIN: u64 = 3;
const TOLERANCE_MAX: u64 = 96;
/// Of one that left more often nobody says how long it took.
const COPIES_TIMED_MAX: u32 = 6;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PacketState {
    UnderWay,
    /// The peer has it, and waits for others before it.
    Kept,
    /// It is to be sent again.
    Lost,
    /// Carried out, and answered if it is to be.
    Done,
}

#[derive(Debug)]
struct Entry {
    state: PacketState,
    left_ns: u64,
    first_left_ns: u64,
    order: u64,
    copies: u32,
    /// It is answered by more than an acknowledgement.
    is_answered: bool,
    /// The peer says at once that it has come.
    asks: bool,
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Scoreboard {
    una: u64,
    entries: VecDeque<Entry>,
    /// All before this have been carried out.
    carried_out: u64,
    order_next: u64,
    /// The newest that has arrived, by order.
    order_arrived: Option<u64>,
    under_way: u32,
    lost: u32,
    /// Reads and atomics without an answer.
    open: u32,
    tolerance: u64,
    /// Since [`Scoreboard::take_news`].
    news: News,
}

/// What has become known.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct News {
    pub arrived: u32,
    /// When the newest packet left whose arrival was told at once.
    pub left_ns: Option<u64>,
    /// When one left first that was sent a few times: of which it was, nobody knows.
    pub first_left_ns: Option<u64>,
}

impl Scoreboard {
    pub fn new(una: u64) -> Scoreboard {
        Scoreboard {
            una,
            entries: VecDeque::new(),
            carried_out: una,
            order_next: 0,
            order_arrived: None,
            under_way: 0,
            lost: 0,
            open: 0,
            tolerance: TOLERANCE_MIN,
            news: News::default(),
        }
    }

    pub fn under_way(&self) -> u32 {
        self.under_way
    }

    pub fn open(&self) -> u32 {
        self.open
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn index(&self, sequence: u64) -> Option<usize> {
        let index = usize::try_from(sequence.checked_sub(self.una)?).ok()?;
        (index < self.entries.len()).then_some(index)
    }

    /// The next packet leaves, or one again.
    pub fn note_sent(&mut self, now_ns: u64, sequence: u64, is_answered: bool, asks: bool) {
        if self.index(sequence).is_none() {
            debug_assert_eq!(sequence, self.una + self.entries.len() as u64, "no gaps");
            self.open += u32::from(is_answered);
            let (state, order, copies) = (PacketState::Done, 0, 0);
            let (left_ns, first_left_ns) = (now_ns, now_ns);
            self.entries.push_back(Entry { state, left_ns, first_left_ns, order, copies, is_answered, asks });
        }
        let (order, index) = (self.order_next, (sequence - self.una) as usize);
        self.order_next += 1;
        // Who is asked by one that it keeps has nothing new to say of that.
        if self.entries[index].state != PacketState::Kept {
            self.set(index, PacketState::UnderWay);
        }
        let entry = &mut self.entries[index];
        (entry.left_ns, entry.order, entry.copies) = (now_ns, order, entry.copies + 1);
    }

    fn set(&mut self, index: usize, state: PacketState) {
        let entry = &mut self.entries[index];
        let count = |state: PacketState| {
            (u32::from(state == PacketState::UnderWay), u32::from(state == PacketState::Lost))
        };
        let ((was_under_way, was_lost), (is_under_way, is_lost)) = (count(entry.state), count(state));
        self.under_way = self.under_way + is_under_way - was_under_way;
        self.lost = self.lost + is_lost - was_lost;
        entry.state = state;
    }

    /// A packet is known to have arrived; `trip_ns` is the least that a round trip took.
    fn arrived(&mut self, now_ns: u64, trip_ns: u64, index: usize, state: PacketState) {
        let Entry { state: before, left_ns, order, copies, asks, is_answered, .. } = self.entries[index];
        if before == PacketState::Kept || before == PacketState::Done {
            return self.set(index, state);
        }
        // Whether it was the newest copy that arrived.
        let is_newest =
            before == PacketState::UnderWay && (copies == 1 || now_ns.saturating_sub(left_ns) >= trip_ns);
        if is_newest {
            self.order_arrived = self.order_arrived.max(Some(order));
        } else {
            // It was late, and not lost: the network keeps less of an order than was thought.
            self.tolerance = (2 * self.tolerance).min(TOLERANCE_MAX);
        }
        if copies == 1 && (asks || is_answered || state == PacketState::Kept) {
            self.news.left_ns = self.news.left_ns.max(Some(left_ns));
        }
        if (1..=COPIES_TIMED_MAX).contains(&copies) {
            let first_ns = self.entries[index].first_left_ns;
            self.news.first_left_ns = self.news.first_left_ns.max(Some(first_ns));
        }
        self.news.arrived += 1;
        self.set(index, state);
    }

    /// All before `to` have been carried out.
    // [ROCE-SEL-4]
    pub fn handle_carried_out(&mut self, now_ns: u64, trip_ns: u64, to: u64) {
        let begin = self.carried_out.max(self.una);
        self.carried_out = self.carried_out.max(to);
        for sequence in begin..to {
            let Some(index) = self.index(sequence) else { break };
            let Entry { is_answered, state, .. } = self.entries[index];
            match (is_answered, state) {
                (false, _) => self.arrived(now_ns, trip_ns, index, PacketState::Done),
                // Its answer has left by now, and is waited for as if it were a packet of ours.
                (true, PacketState::Kept) => {
                    self.set(index, PacketState::UnderWay);
                    let entry = &mut self.entries[index];
                    (entry.left_ns, entry.order, entry.copies) = (now_ns, self.order_next, 2);
                    self.order_next += 1;
                }
                // It has arrived, though its answer may be lost.
                (true, PacketState::UnderWay) => {
                    let entry = &self.entries[index];
                    if entry.copies == 1 {
                        self.order_arrived = self.order_arrived.max(Some(entry.order));
                    }
                }
                (true, PacketState::Lost | PacketState::Done) => {}
            }
        }
    }

    /// The peer has kept a packet until its turn.
    pub fn handle_kept(&mut self, now_ns: u64, trip_ns: u64, sequence: u64) {
        if sequence >= self.carried_out
            && let Some(index) = self.index(sequence)
            && matches!(self.entries[index].state, PacketState::UnderWay | PacketState::Lost)
        {
            self.arrived(now_ns, trip_ns, index, PacketState::Kept);
        }
    }

    /// The answer to a request has come.  Says whether it was waited for.
    pub fn handle_answered(&mut self, now_ns: u64, trip_ns: u64, sequence: u64) -> bool {
        self.handle_carried_out(now_ns, trip_ns, sequence);
        let is_open = |index: &usize| {
            self.entries[*index].is_answered && self.entries[*index].state != PacketState::Done
        };
        let Some(index) = self.index(sequence).filter(is_open) else { return false };
        self.arrived(now_ns, trip_ns, index, PacketState::Done);
        self.open -= 1;
        self.carried_out = self.carried_out.max(sequence + 1);
        true
    }

    /// The peer does not have a packet: if it was said to be kept, it has found no receive since, and was dropped.
    pub fn handle_missing(&mut self, sequence: u64) {
        if let Some(index) = self.index(sequence)
            && self.entries[index].state == PacketState::Kept
        {
            self.set(index, PacketState::Lost);
        }
    }

    /// The peer has dropped a packet, and says so.
    pub fn handle_refused(&mut self, sequence: u64) {
        if let Some(index) = self.index(sequence)
            && self.entries[index].state != PacketState::Done
        {
            self.set(index, PacketState::Lost);
        }
    }

    /// Finds out what is lost.  Returns how many packets, and when to look again though nothing was heard.
    // [ROCE-SEL-5]
    pub fn find_lost(&mut self, now_ns: u64, wait_ns: u64) -> (u32, Option<u64>) {
        let (arrived, tolerance) = (self.order_arrived, self.tolerance);
        self.lose(
            |order, left_ns| {
                let Some(behind) =
                    arrived.and_then(|arrived| arrived.checked_sub(order)).filter(|behind| *behind > 0)
                else {
                    return Some(u64::MAX);
                };
                let at_ns = left_ns + wait_ns;
                (behind < tolerance && now_ns < at_ns).then_some(at_ns)
            },
            true,
        )
    }

    /// After silence, all that left before what has arrived is lost; and all of which nobody knows, if the peer has `nothing_else` to say than what is
    /// missing: what was sent to ask it may be further ahead than it keeps by now.
    pub fn find_lost_after_silence(&mut self, nothing_else: bool) -> u32 {
        let arrived = self.order_arrived;
        self.lose(|order, _| (Some(order) >= arrived && !nothing_else).then_some(u64::MAX), !nothing_else).0
    }

    /// Those of which `until` says no time; where none was overtaken there are none, if that `is_order_needed`.
    fn lose(&mut self, until: impl Fn(u64, u64) -> Option<u64>, is_order_needed: bool) -> (u32, Option<u64>) {
        // Where the oldest left after all that has arrived, nothing has been overtaken.
        let is_in_order =
            |oldest: &Entry| oldest.state == PacketState::UnderWay && Some(oldest.order) > self.order_arrived;
        if self.under_way == 0 || is_order_needed && self.entries.front().is_some_and(is_in_order) {
            return (0, None);
        }
        let (before, mut again_ns) = (self.lost, u64::MAX);
        for index in 0..self.entries.len() {
            let Entry { state, order, left_ns, .. } = self.entries[index];
            if state == PacketState::UnderWay {
                match until(order, left_ns) {
                    Some(at_ns) => again_ns = again_ns.min(at_ns),
                    None => self.set(index, PacketState::Lost),
                }
            }
        }
        (self.lost - before, Some(again_ns).filter(|at_ns| *at_ns != u64::MAX))
    }

    /// The oldest that is to be sent again.
    pub fn next_lost(&self) -> Option<u64> {
        if self.lost == 0 {
            return None;
        }
        let index = self.entries.iter().position(|entry| entry.state == PacketState::Lost)?;
        Some(self.una + index as u64)
    }

    /// The newest that is not done, nor to be sent again: by that the peer is asked what it has.
    pub fn newest_open(&self) -> Option<u64> {
        let is_open = |entry: &Entry| matches!(entry.state, PacketState::UnderWay | PacketState::Kept);
        Some(self.una + self.entries.iter().rposition(is_open)? as u64)
    }

    /// Whether there is something to be heard: not where all that is open is to be sent again.
    pub fn is_waiting(&self) -> bool {
        self.under_way > 0 || self.lost == 0 && !self.entries.is_empty()
    }

    /// Moves over what is done; returns the oldest that is not.
    pub fn advance(&mut self) -> u64 {
        while self.entries.front().is_some_and(|entry| entry.state == PacketState::Done) {
            self.entries.pop_front();
            self.una += 1;
        }
        self.una
    }

    pub fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads read the clock before they take a queue pair's lock: who read it first may come second.
    #[test]
    fn a_packet_may_be_heard_of_before_the_time_at_which_it_left() {
        let mut board = Scoreboard::new(5);
        board.note_sent(1000, 5, false, true);
        board.note_sent(2000, 5, false, true);
        board.handle_carried_out(500, 100, 6);
        assert_eq!(board.advance(), 6);
    }
}
