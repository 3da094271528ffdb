//! The state of each unacknowledged packet, with selective repeat.
//!
//! ```text
//!   una                                          next
//!    │ lost │ kept │ done │ in flight │ in flight │
//! ```
//!
//! Each transmission gets an `order`, a number that increases with each transmission; the network roughly preserves it.
//! A packet counts as lost in two cases: a packet sent `reorder_threshold` or more transmissions later has arrived; or
//! any later packet has arrived and the packet is overdue, by a quarter of a round trip or by the longest delay seen on
//! this path.

use std::collections::{BTreeSet, VecDeque};

use crate::kept::SPAN_MAX;

/// Bounds of the reordering threshold, in packets: 3 as in TCP at first, doubled whenever a packet counted as lost
/// arrives. At the upper bound, time alone decides.
const REORDER_THRESHOLD_MIN: u64 = 3;
const REORDER_THRESHOLD_MAX: u64 = SPAN_MAX;
/// Number of consecutive losses, without a late arrival between them, after which the threshold halves: the path
/// reorders less than before. On a path that both loses and reorders, one retransmission in this many is then
/// unnecessary.
const LOSSES_TO_HALVE: u32 = 64;
/// Arrivals after which the round trip of an overtaken packet has little effect.
const OVERTAKEN_PACKETS: u64 = 1024;
/// Threshold from which the path counts as one that reorders packets: the value after four late packets.
const REORDER_THRESHOLD_CONFIRMED: u64 = REORDER_THRESHOLD_MIN << 4;
/// Maximum number of transmissions of a packet whose response still gives an upper bound of the round trip. These take
/// about half a second.
const COPIES_MEASURED_MAX: u32 = 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PacketState {
    InFlight,
    /// The peer keeps it until earlier packets arrive.
    Kept,
    /// To be retransmitted.
    Lost,
    /// Executed, and its response, if it returns data, has arrived.
    Done,
}

#[derive(Debug)]
struct Entry {
    state: PacketState,
    /// Time of the last transmission.
    sent_ns: u64,
    /// Time of the first transmission.
    first_sent_ns: u64,
    /// The `order` of the last transmission, in its stream.
    order: u64,
    /// The `order` of the last transmission that was not a spare. A response shows that the request arrived, but not
    /// that its spare arrived.
    order_without_spare: u64,
    /// Number of transmissions.
    copies: u32,
    /// Sequence numbers that the request with this number takes: above 1 for a read of several packets, 0 for the
    /// further numbers of such a read. If the request was sent several times, this is the smallest count, because the
    /// peer may keep any copy.
    numbers: u32,
    /// True if its response returns data.
    returns_data: bool,
    /// True if the peer acknowledges it at once.
    requests_ack: bool,
    /// Number of the request that carried this number first: a read of several packets has several numbers.
    request: u64,
}

/// A sequence of packets in flight whose order is roughly preserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stream {
    /// Transmissions of this end: the network roughly preserves their order.
    Sent,
    /// First responses to requests that the peer has executed: the peer sends them in sequence, no matter how long it
    /// has kept their requests.
    Responses,
}

/// The unacknowledged packets, from `una` on.
#[derive(Debug, Default)]
pub(super) struct Scoreboard {
    una: u64,
    entries: VecDeque<Entry>,
    /// The packets that may still arrive or count as lost, by [`Stream`]: the `order` and number of each, oldest first.
    /// Also contains some packets that have already arrived or count as lost.
    candidates: [VecDeque<(u64, u64)>; 2],
    /// The lost packets.
    lost: BTreeSet<u64>,
    /// Number after the last packet known to be executed.
    executed_end: u64,
    order_next: u64,
    /// Highest `order` of the arrived packets.
    order_arrived: Option<u64>,
    in_flight: u32,
    /// Reads and atomics whose response has not arrived.
    unanswered: u32,
    reorder_threshold: u64,
    /// The longest round trip of a packet that was declared lost and then arrived, in ns.
    late_ns: u64,
    /// Longest round trip, in ns, of the recent packets that others have overtaken.
    overtaken_ns: u64,
    /// Losses since the last late arrival, and since the threshold was halved.
    losses: u32,
    /// Collected for [`Scoreboard::take_progress`].
    progress: Progress,
}

/// The arrivals that responses have reported since the last call of [`Scoreboard::take_progress`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Progress {
    pub arrived: u32,
    /// Send time of the newest arrived packet that was sent only once and that the peer acknowledged without delay.
    pub sent_ns: Option<u64>,
    /// Latest time of a first transmission, among the arrived packets that were transmitted at most
    /// [`COPIES_MEASURED_MAX`] times.
    pub first_sent_ns: Option<u64>,
}

impl Scoreboard {
    pub fn new(una: u64) -> Scoreboard {
        let reorder_threshold = REORDER_THRESHOLD_MIN;
        Scoreboard { una, executed_end: una, reorder_threshold, ..Scoreboard::default() }
    }

    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns the number after the last packet known to be executed.
    pub fn executed_end(&self) -> u64 {
        self.executed_end
    }

    pub fn unanswered(&self) -> u32 {
        self.unanswered
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn index(&self, sequence: u64) -> Option<usize> {
        let index = usize::try_from(sequence.checked_sub(self.una)?).ok()?;
        (index < self.entries.len()).then_some(index)
    }

    /// Records the transmission of a new or retransmitted packet that takes `numbers` sequence numbers.
    pub fn on_sent(
        &mut self,
        now_ns: u64,
        sequence: u64,
        numbers: u32,
        returns_data: bool,
        requests_ack: bool,
    ) {
        let request = sequence;
        for sequence in sequence..sequence + u64::from(numbers) {
            if self.index(sequence).is_none() {
                debug_assert_eq!(sequence, self.una + self.entries.len() as u64, "no gaps");
                self.unanswered += u32::from(returns_data);
                self.entries.push_back(Entry {
                    state: PacketState::Done,
                    sent_ns: now_ns,
                    first_sent_ns: now_ns,
                    order: 0,
                    order_without_spare: 0,
                    copies: 0,
                    numbers: 0,
                    returns_data,
                    requests_ack,
                    request,
                });
            }
            let order = self.next_order(Stream::Sent, sequence);
            let index = (sequence - self.una) as usize;
            // A kept packet sent as a probe stays kept.
            if self.entries[index].state != PacketState::Kept {
                self.set_state(index, PacketState::InFlight);
            }
            let entry = &mut self.entries[index];
            (entry.order, entry.order_without_spare) = (order, order);
            (entry.sent_ns, entry.copies) = (now_ns, entry.copies + 1);
        }
        let entry = &mut self.entries[(sequence - self.una) as usize];
        entry.numbers = if entry.numbers == 0 { numbers } else { entry.numbers.min(numbers) };
    }

    /// Appends a packet to a stream, and returns the packet's `order`.
    fn next_order(&mut self, stream: Stream, sequence: u64) -> u64 {
        let order = self.order_next;
        self.order_next += 1;
        self.candidates[stream as usize].push_back((order, sequence));
        order
    }

    /// Returns the index of the packet of a transmission that is still in flight.
    fn candidate_index(&self, order: u64, sequence: u64) -> Option<usize> {
        let is_open = |entry: &Entry| entry.state == PacketState::InFlight && entry.order == order;
        self.index(sequence).filter(|index| is_open(&self.entries[*index]))
    }

    /// Returns true if the peer is not known to have received this request, or any part of its numbers.
    pub fn is_in_flight(&self, sequence: u64, numbers: u32) -> bool {
        let Some(first) = self.index(sequence).filter(|_| sequence >= self.executed_end) else {
            return false;
        };
        let is_in_flight = |entry: &Entry| {
            entry.state == PacketState::InFlight && entry.request == sequence && entry.copies == 1
        };
        self.entries.range(first..).take(numbers as usize).filter(|entry| is_in_flight(entry)).count()
            == numbers as usize
    }

    /// Records the transmission of a spare: a second copy of a READ request, sent in case the first one is lost. From
    /// now on, later packets overtake the request only if they also overtake the spare. The round trip of the first
    /// copy is still a sample.
    pub fn on_spare_sent(&mut self, sequence: u64, numbers: u32) {
        for sequence in sequence..sequence + u64::from(numbers) {
            let Some(index) = self.index(sequence) else { return };
            self.entries[index].order = self.next_order(Stream::Sent, sequence);
        }
    }

    fn set_state(&mut self, index: usize, state: PacketState) {
        let (entry, sequence) = (&mut self.entries[index], self.una + index as u64);
        let is_in_flight = |state: PacketState| u32::from(state == PacketState::InFlight);
        self.in_flight = self.in_flight + is_in_flight(state) - is_in_flight(entry.state);
        match state {
            PacketState::Lost => {
                self.lost.insert(sequence);
            }
            _ if entry.state == PacketState::Lost => {
                self.lost.remove(&sequence);
            }
            _ => {}
        }
        entry.state = state;
    }

    /// Marks a packet as arrived; `trip_ns` is the smallest round trip measured.
    fn mark_arrived(&mut self, now_ns: u64, trip_ns: u64, index: usize, state: PacketState) {
        let Entry { state: before, sent_ns, order_without_spare, copies, requests_ack, returns_data, .. } =
            self.entries[index];
        if before == PacketState::Kept || before == PacketState::Done {
            return self.set_state(index, state);
        }
        // True if the last copy arrived, not a late earlier copy.
        let is_newest =
            before == PacketState::InFlight && (copies == 1 || now_ns.saturating_sub(sent_ns) >= trip_ns);
        if is_newest {
            self.order_arrived = self.order_arrived.max(Some(order_without_spare));
        } else {
            self.on_late_arrival(now_ns, index);
        }
        if copies == 1 && (requests_ack || returns_data || state == PacketState::Kept) {
            self.progress.sent_ns = self.progress.sent_ns.max(Some(sent_ns));
        }
        if (1..=COPIES_MEASURED_MAX).contains(&copies) {
            let first_sent_ns = self.entries[index].first_sent_ns;
            self.progress.first_sent_ns = self.progress.first_sent_ns.max(Some(first_sent_ns));
        }
        let is_overtaken = copies == 1 && Some(order_without_spare) < self.order_arrived;
        let overtaken_ns = if is_overtaken { now_ns.saturating_sub(sent_ns) } else { 0 };
        self.overtaken_ns = overtaken_ns.max(self.overtaken_ns - self.overtaken_ns / OVERTAKEN_PACKETS);
        self.progress.arrived += 1;
        self.set_state(index, state);
    }

    /// Raises the reordering threshold, because an earlier copy turned out to be late, not lost.
    fn on_late_arrival(&mut self, now_ns: u64, index: usize) {
        self.reorder_threshold = (2 * self.reorder_threshold).min(REORDER_THRESHOLD_MAX);
        self.late_ns = self.late_ns.max(now_ns.saturating_sub(self.entries[index].first_sent_ns));
        self.losses = 0;
    }

    /// Returns true if the path delays single packets by itself: several packets arrived after they were declared lost.
    pub fn reorders(&self) -> bool {
        self.reorder_threshold >= REORDER_THRESHOLD_CONFIRMED
    }

    /// Returns the longest round trip, in ns, of a packet that was declared lost and then arrived.
    pub fn late_ns(&self) -> u64 {
        self.late_ns
    }

    /// Returns the longest round trip, in ns, of the recent packets that others have overtaken; 0 if there are none.
    pub fn overtaken_ns(&self) -> u64 {
        self.overtaken_ns
    }

    /// Handles a report that the peer has executed all packets before `to`.
    // [ROCE-SEL-4]
    pub fn handle_executed(&mut self, now_ns: u64, trip_ns: u64, to: u64) {
        let begin = self.executed_end.max(self.una);
        self.executed_end = self.executed_end.max(to);
        for sequence in begin..to {
            let Some(index) = self.index(sequence) else { break };
            let Entry { returns_data, state, .. } = self.entries[index];
            match (returns_data, state) {
                (false, _) => self.mark_arrived(now_ns, trip_ns, index, PacketState::Done),
                // A later response has arrived, so the peer has sent this response. A kept packet counts as sent twice,
                // so that its response gives no sample.
                (true, PacketState::Kept | PacketState::InFlight) => {
                    self.set_state(index, PacketState::InFlight);
                    let order = self.next_order(Stream::Responses, sequence);
                    let entry = &mut self.entries[index];
                    entry.order = order;
                    if state == PacketState::Kept {
                        (entry.sent_ns, entry.first_sent_ns, entry.copies) = (now_ns, now_ns, 2);
                    }
                }
                (true, PacketState::Lost | PacketState::Done) => {}
            }
        }
    }

    /// Handles a report that the peer has received packet `sequence` early and keeps it.
    pub fn handle_kept(&mut self, now_ns: u64, trip_ns: u64, sequence: u64) {
        let Some(first) = self.index(sequence).filter(|_| sequence >= self.executed_end) else { return };
        for index in first..first + self.entries[first].numbers as usize {
            if matches!(self.entries[index].state, PacketState::InFlight | PacketState::Lost) {
                self.mark_arrived(now_ns, trip_ns, index, PacketState::Kept);
            }
        }
    }

    /// Handles the response to a read or an atomic. Returns false if the response is a duplicate.
    pub fn handle_response(&mut self, now_ns: u64, trip_ns: u64, sequence: u64) -> bool {
        self.handle_executed(now_ns, trip_ns, sequence);
        let is_open = |index: &usize| {
            self.entries[*index].returns_data && self.entries[*index].state != PacketState::Done
        };
        let Some(index) = self.index(sequence) else { return false };
        if !is_open(&index) {
            if self.entries[index].copies > 1 {
                self.on_late_arrival(now_ns, index);
            }
            return false;
        }
        self.mark_arrived(now_ns, trip_ns, index, PacketState::Done);
        self.unanswered -= 1;
        self.executed_end = self.executed_end.max(sequence + 1);
        true
    }

    /// Returns true if an earlier response is late or lost.
    pub fn awaits_response_before(&self, sequence: u64) -> bool {
        let mut candidates = self.candidates[Stream::Responses as usize].iter();
        let late = candidates.find(|(order, sequence)| self.candidate_index(*order, *sequence).is_some());
        let is_before = |earlier: &u64| *earlier < sequence;
        late.is_some_and(|(_, late)| is_before(late)) || self.lost.first().is_some_and(is_before)
    }

    /// Handles a report that packet `sequence` is missing. If the peer had kept that packet, it has since dropped the
    /// packet, because no receive was posted.
    pub fn handle_missing(&mut self, sequence: u64) {
        if let Some(index) = self.index(sequence)
            && self.entries[index].state == PacketState::Kept
        {
            self.set_state(index, PacketState::Lost);
        }
    }

    /// Handles an RNR NAK for packet `sequence`: the peer has dropped this packet.
    pub fn handle_dropped(&mut self, sequence: u64) {
        if let Some(index) = self.index(sequence)
            && self.entries[index].state != PacketState::Done
        {
            self.set_state(index, PacketState::Lost);
        }
    }

    /// Marks lost packets. Returns the number of losses, and the time in ns of the next check if no response arrives
    /// earlier.
    // [ROCE-SEL-5]
    pub fn find_lost(&mut self, now_ns: u64, wait_ns: u64) -> (u32, Option<u64>) {
        let reorder_threshold = self.reorder_threshold;
        let (lost, at_ns) = self.mark_lost(|_, behind, sent_ns| {
            let at_ns = if behind == 0 { u64::MAX } else { sent_ns + wait_ns };
            (behind < reorder_threshold && now_ns < at_ns).then_some(at_ns)
        });
        self.losses += lost;
        if self.losses >= LOSSES_TO_HALVE {
            self.reorder_threshold = (reorder_threshold / 2).max(REORDER_THRESHOLD_MIN);
            (self.late_ns, self.losses) = (self.late_ns / 2, 0);
        }
        (lost, at_ns)
    }

    /// After a silence, marks packets as lost: the packets sent before an arrived packet, among them the responses to
    /// all executed requests, or, if `stalled` is true, all packets in flight. `stalled` is true if a response brought
    /// no progress; the probe may then have been beyond the span that the peer keeps. Returns the number of losses.
    pub fn find_lost_after_silence(&mut self, stalled: bool) -> u32 {
        let is_behind = |stream, behind| behind > 0 || stream == Stream::Responses;
        self.mark_lost(|stream, behind, _| (!is_behind(stream, behind) && !stalled).then_some(u64::MAX)).0
    }

    /// Marks as lost the packets in flight for which `until` returns `None`, given the stream, the number of places by
    /// which the newest arrival of the stream is ahead, and the send time. Returns the number of losses and the
    /// earliest time that `until` returned.
    ///
    /// A lost request is one packet on the path, however many response packets it requests. So these count as one loss.
    /// But if the peer has executed the request, the response packets themselves were lost, and each counts.
    // [ROCE-SEL-7]
    fn mark_lost(&mut self, until: impl Fn(Stream, u64, u64) -> Option<u64>) -> (u32, Option<u64>) {
        let (mut losses, mut next_ns) = (0, u64::MAX);
        for stream in [Stream::Sent, Stream::Responses] {
            let mut lost_request = None;
            // Packets of a stream are lost in order, so the first packet that is not lost ends the search.
            while let Some((order, sequence)) = self.candidates[stream as usize].front().copied() {
                if let Some(index) = self.candidate_index(order, sequence) {
                    let Entry { sent_ns, request, .. } = self.entries[index];
                    let behind = match stream {
                        Stream::Sent => self.order_arrived.map_or(0, |arrived| arrived.saturating_sub(order)),
                        Stream::Responses => self.executed_end - 1 - sequence,
                    };
                    if let Some(at_ns) = until(stream, behind, sent_ns) {
                        next_ns = next_ns.min(at_ns);
                        break;
                    }
                    self.set_state(index, PacketState::Lost);
                    losses += u32::from(sequence < self.executed_end || lost_request != Some(request));
                    lost_request = Some(request);
                }
                self.candidates[stream as usize].pop_front();
            }
        }
        (losses, Some(next_ns).filter(|at_ns| *at_ns != u64::MAX))
    }

    /// Returns the oldest lost packet.
    pub fn next_lost(&self) -> Option<u64> {
        self.lost.first().copied()
    }

    /// Returns the number of consecutive lost packets, from `sequence` on, that one request can retrieve. All of these
    /// packets first belonged to the same request, and the peer executed either all of them or, as far as this end
    /// knows, none.
    pub fn lost_together(&self, sequence: u64) -> u32 {
        let Some(index) = self.index(sequence) else { return 0 };
        let request = self.entries[index].request;
        let is_lost = |entry: &&Entry| entry.state == PacketState::Lost && entry.request == request;
        let lost = self.entries.range(index..).take_while(is_lost).count() as u64;
        match self.executed_end.checked_sub(sequence) {
            None | Some(0) => lost as u32,
            Some(executed_end) => lost.min(executed_end) as u32,
        }
    }

    /// Returns the newest packet that is in flight or kept by the peer, to be sent as a probe.
    pub fn newest_unfinished(&self) -> Option<u64> {
        let is_open = |entry: &Entry| matches!(entry.state, PacketState::InFlight | PacketState::Kept);
        Some(self.una + self.entries.iter().rposition(is_open)? as u64)
    }

    /// Returns true if a response is outstanding; false if every unfinished packet is lost.
    pub fn awaits_response(&self) -> bool {
        self.in_flight > 0 || self.lost.is_empty() && !self.entries.is_empty()
    }

    /// Removes the finished packets at the front, and returns the new `una`.
    pub fn advance(&mut self) -> u64 {
        while self.entries.front().is_some_and(|entry| entry.state == PacketState::Done) {
            self.entries.pop_front();
            self.una += 1;
        }
        for stream in 0..self.candidates.len() {
            while let Some((order, sequence)) = self.candidates[stream].front()
                && self.candidate_index(*order, *sequence).is_none()
            {
                self.candidates[stream].pop_front();
            }
        }
        self.una
    }

    pub fn take_progress(&mut self) -> Progress {
        std::mem::take(&mut self.progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads read the clock before they lock the queue pair, so calls may come with decreasing times.
    #[test]
    fn packet_may_be_acknowledged_before_its_send_time() {
        let mut scoreboard = Scoreboard::new(5);
        scoreboard.on_sent(1000, 5, 1, false, true);
        scoreboard.on_sent(2000, 5, 1, false, true);
        scoreboard.handle_executed(500, 100, 6);
        assert_eq!(scoreboard.advance(), 6);
    }
}
