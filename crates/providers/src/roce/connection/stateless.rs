//! Connects stateless lanes ([`super::super::stateless`]) with the socket, the responder and the registered memory.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use halite_rnic::stateless::{Lane as StatelessLane, PACKET_BYTES_MAX, PART_BYTES_MAX};
use halite_rnic::wire::Flow;
use halite_rnic::wire::path_eth::packet_bytes_max;

use super::super::greeting::Grants;
use super::super::lock;
use super::super::memory::View;
use super::super::port::Port;
use super::super::stateless::{grant_of, grants_of};
use super::{Connection, Lane, LaneContext, Waiting};

/// Length in bytes at which a train is sent, so that the peer checks its tags while this end computes the tags of the next
/// train. Of 16, 24, 32, 48 and 64 KiB, 24 KiB is the fastest for a transfer of 64 KiB on loopback.
const TRAIN_BYTES: usize = 24 << 10;

impl Connection {
    /// Returns the grants by which the peer accesses all registered memory of this end; `None` if the lanes are stateful.
    pub(in crate::roce) fn grants(&self) -> Option<Grants> {
        let port = self.port_use.port();
        self.is_stateless().then(|| grants_of(&lock(&port.responder), self.address, &self.their_qpns))
    }

    /// Installs the peer's grants in stateless lanes that have none yet.
    pub(in crate::roce) fn install(&self, grants: &Grants, patience: Duration) {
        for ((mut lane, grant), qpn) in self.lanes().zip(grants).zip(&self.qpns) {
            // The number of the first packet is random, so no earlier requester used the numbers after it.
            let first_number = u64::from(lane.first_psn.value()) << 32;
            if let Some(stateless) = &mut lane.stateless {
                stateless.set_grant(grant_of(*qpn, grant), first_number, patience.as_nanos() as u64);
            }
        }
    }

    /// Returns the number of request packets that stateless lanes have sent, of retransmissions among these, and of
    /// packets that have arrived on these lanes.
    pub(in crate::roce) fn stateless_packets(&self) -> [u64; 3] {
        self.lanes()
            .filter_map(|lane| lane.stateless.as_ref().map(StatelessLane::packets))
            .fold([0; 3], |sum, packets| std::array::from_fn(|index| sum[index] + packets[index]))
    }

    /// Returns the number of timeouts, and of the peer's requests that a stateless lane answered from the record of effects.
    pub(in crate::roce) fn timeouts_and_duplicates(&self) -> [u64; 2] {
        let of_lanes = self.lanes().map(|lane| [lane.timeouts.all, lane.duplicates]);
        of_lanes.fold([0; 2], |sum, counts| std::array::from_fn(|index| sum[index] + counts[index]))
    }

    /// Returns the smoothed round trip of stateless lanes in ns; `None` before the first measurement.
    pub(in crate::roce) fn stateless_round_trip_ns(&self) -> Option<u64> {
        lock(self.clock.as_ref()?).round_trip_ns()
    }
}

/// The caller holds the lock of the lane.
impl Lane {
    /// Returns the current maximum number of packets in flight.
    pub(in crate::roce) fn window_packets(&self) -> u32 {
        let queue_pair = || self.qp.window_packets();
        self.stateless.as_ref().map_or_else(queue_pair, |stateless| stateless.window_packets() as u32)
    }

    /// Posts waiting requests to a stateless lane, while it takes some.
    fn fill_stateless(&mut self) {
        let part_bytes = PART_BYTES_MAX.into();
        while self.stateless.as_ref().is_some_and(StatelessLane::takes_request) {
            let divided = &mut self.divided;
            let Some(waiting) = self.backlog.pop(part_bytes, |waiting| {
                divided.insert(waiting.request.id, false);
                waiting.divide(part_bytes)
            }) else {
                return;
            };
            self.post_stateless(waiting);
        }
    }

    /// Posts a request to a stateless lane.
    pub(super) fn post_stateless(&mut self, waiting: Waiting) {
        let request = self.hold(waiting);
        if let Some(stateless) = &mut self.stateless {
            stateless.post(request);
        }
    }

    /// Executes requests of a stateless lane that arrived from `from` at the given times in ns, and answers them. Returns the
    /// number of requests that the peer sent. If `holds` is true, keeps answers without bytes until the next poll: then a
    /// process that waits for the request continues first, and its next request carries the answer.
    pub(in crate::roce) fn answer_requests<'p>(
        &mut self,
        connection: &Connection,
        context: LaneContext<'_>,
        from: SocketAddr,
        mut packets: impl Iterator<Item = (u64, &'p [u8])>,
        holds: bool,
    ) -> u64 {
        let Lane { stateless: Some(stateless), held, singly_until_ns, duplicates, record_due_ns, .. } = self
        else {
            return 0;
        };
        let Connection { outwards, address, own_address, salt, port_use, clock, .. } = connection;
        let Some(clock) = clock else { return 0 };
        let view = View { registered: context.registered, salt: *salt, held };
        let ends = (*own_address, *address);
        let singly = context.now_ns < *singly_until_ns;
        let mut responder = lock(&port_use.port().responder);
        let before = responder.counters().repeated;
        let mut handled = 0;
        let answer = |buffer: &mut [u8]| {
            packets.by_ref().find_map(|(arrived_ns, packet)| {
                // After the end of the connection, the peer has no access.
                let body = connection.open(from, packet).filter(|_| !connection.has_ended.load(Relaxed))?;
                if stateless.has_ended() {
                    return None;
                }
                let executed = responder.execute(arrived_ns, from, body, &view, buffer);
                // A reference, because moving the answer takes as long as computing its tag.
                let answer = executed.as_ref()?;
                handled += 1;
                if let Some(message) = responder.poll_message() {
                    stateless.handle_message(message);
                }
                if let Some(ack) = answer.acknowledged {
                    stateless.handle_ack(arrived_ns, &mut lock(clock), ack, &view);
                }
                if holds && !answer.has_payload() {
                    stateless.hold_answer(executed?);
                    return None;
                }
                Some(answer.seal(buffer))
            })
        };
        let refused = send_trains(port_use.port(), outwards, ends, singly, answer);
        *duplicates += responder.counters().repeated - before;
        *record_due_ns = responder.sweep_ns();
        stateless.add_arrived(handled);
        self.trains_refused += refused;
        handled
    }

    /// Handles answers to requests of a stateless lane that arrived from `from` at the given times in ns. Returns the
    /// number of answers that the peer sent.
    pub(in crate::roce) fn handle_answers<'p>(
        &mut self,
        connection: &Connection,
        context: LaneContext<'_>,
        from: SocketAddr,
        packets: impl Iterator<Item = (u64, &'p [u8])>,
    ) -> u64 {
        let Lane { stateless: Some(stateless), held, .. } = self else { return 0 };
        let Some(clock) = &connection.clock else { return 0 };
        let view = View { registered: context.registered, salt: connection.salt, held };
        let is_ours = |(arrived_ns, packet): &(u64, &[u8])| {
            let body = connection.open(from, packet);
            body.is_some_and(|body| stateless.handle_answer(*arrived_ns, &mut lock(clock), body, &view))
        };
        let handled = packets.filter(is_ours).count() as u64;
        stateless.add_arrived(handled);
        handled
    }

    /// Sends the due packets of a stateless lane. Returns the time of its next timer, in ns.
    pub(super) fn transmit_stateless(
        &mut self,
        connection: &Connection,
        context: LaneContext<'_>,
        holds_answers: bool,
        singly: bool,
    ) -> Option<u64> {
        let (clock, mut has_sent) = (*lock(connection.clock.as_ref()?), false);
        let Connection { outwards, address, own_address, salt, port_use, .. } = connection;
        let ends = (*own_address, *address);
        // A lane never divides a packet again, so its packets stay short until the path MTU is known.
        if let Some(stateless) = self.stateless.as_mut().filter(|_| self.qp.knows_path()) {
            stateless.set_packet_max(packet_bytes_max(self.qp.path_mtu()));
        }
        // After a loss, packets are sent one by one, because the path may drop trains.
        let repeats =
            self.stateless.as_ref().is_some_and(|stateless| stateless.has_due_repeat(context.now_ns));
        let singly = singly || repeats;
        let next = |buffer: &mut [u8]| {
            self.fill_stateless();
            let view = View { registered: context.registered, salt: *salt, held: &self.held };
            let len = self.stateless.as_mut()?.poll_transmit(context.now_ns, &clock, &view, buffer);
            has_sent |= len.is_some();
            // Answers are not longer than requests, so they may follow in the same train.
            len.or_else(|| {
                let sends_answers = has_sent || !holds_answers;
                self.stateless.as_mut().filter(|_| sends_answers)?.poll_answer(buffer)
            })
        };
        let refused = send_trains(port_use.port(), outwards, ends, singly, next);
        self.trains_refused += refused;
        if repeats {
            let [sent, repeated, arrived] = self.stateless.as_ref()?.packets();
            self.count_timeout(context.now_ns, sent - repeated, arrived);
        }
        let record_due_ns = self.record_due_ns.take();
        self.stateless.as_ref()?.poll_timeout().into_iter().chain(record_due_ns).min()
    }
}

/// Sends the packets that `next` writes, as [`Port::send_all`] does, in trains of about [`TRAIN_BYTES`].
fn send_trains(
    port: &Port,
    flow: &Flow,
    ends: (SocketAddr, SocketAddr),
    singly: bool,
    mut next: impl FnMut(&mut [u8]) -> Option<usize>,
) -> u64 {
    let (mut refused, mut is_more) = (0, true);
    while is_more {
        let mut room = TRAIN_BYTES;
        refused += port.send_all(flow, ends, PACKET_BYTES_MAX, singly, |buffer| {
            if room == 0 {
                return None;
            }
            let len = next(buffer);
            is_more = len.is_some();
            room = room.saturating_sub(len.unwrap_or(room));
            len
        });
    }
    refused
}
