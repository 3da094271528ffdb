//! One poll: receives and handles packets and, at intervals, control messages and timers.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use halite_rnic::Cause;
use halite_rnic::wire::bth::Bth;
use halite_rnic::wire::{Headers, Packet};
use quinn_udp::RecvMeta;

use super::super::connection::{Connection, Lane, Outcome};
use super::super::port::{Batch, HeldAcks, Port, canonical};
use super::super::stamps::Clock;
use super::super::{POISONED, read};
use super::Core;
use super::ending::end_cause;

/// Interval at which a busy poller checks for control messages, in ns.
const CONTROL_NS: u64 = 2_000_000;
/// Number of consecutive full batches after which due timers run and control messages are read anyway. Before that, they
/// wait, because the packet that would stop the timer may still be in the socket.
const BATCHES_BEFORE_TIMERS: u32 = 16;
/// Maximum delay of timers, in ns, while packets wait in the sockets of receivers. The receivers may themselves wait
/// for a core.
const TIMERS_LATE_NS: u64 = 2_000_000;

/// Result of one receive from a socket.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::roce) struct Received {
    /// True if further packets may wait in the socket.
    pub(in crate::roce) is_more: bool,
    /// True if the caller must wake sleeping threads.
    pub(in crate::roce) rings: bool,
    /// True if a packet came from a peer.
    is_from_peer: bool,
}

impl Core {
    /// Receives and handles packets and control messages, and runs timers. Returns at once if another thread polls.
    pub(in crate::roce) fn poll_once(&self) {
        let Ok(mut batch) = self.batch.try_lock() else { return };
        let now_ns = self.now_ns();
        self.send_held_acks(&mut batch, now_ns);
        let (is_more, runs_timers) = if self.receivers.is_empty() {
            let is_more = self.receive(&mut batch, now_ns);
            batch.on_polled(is_more);
            (is_more, batch.full_in_a_row().is_multiple_of(BATCHES_BEFORE_TIMERS))
        } else {
            // With receivers, waiting packets do not delay this thread's handshakes.
            let full_in_a_row = self.full_in_a_row_of_receivers();
            let is_late = now_ns >= self.due_ns.load(SeqCst).saturating_add(TIMERS_LATE_NS);
            assert!(!self.has_receiver_panicked.load(Relaxed), "{POISONED}");
            (false, full_in_a_row == 0 || full_in_a_row >= BATCHES_BEFORE_TIMERS || is_late)
        };
        let seen_ns = self.control_seen_ns.load(Relaxed);
        // Checks the control sockets at a sleeper's request even if packets wait. Unknown senders may have sent these
        // packets, and the sleeper has already consumed the edge of the control message.
        if seen_ns == 0 || (!is_more || runs_timers) && now_ns >= seen_ns + CONTROL_NS {
            self.control_seen_ns.store(now_ns, Relaxed);
            self.poll_control(&mut batch, now_ns);
            self.close_unused_ports();
        }
        if runs_timers {
            self.run_due_timers(now_ns);
        }
    }

    /// Sends the acknowledgements that the last poll held back, unless other packets have carried them since.
    fn send_held_acks(&self, batch: &mut Batch, now_ns: u64) {
        for (connection, index) in batch.held_acks.drain(..) {
            let mut outcome = Outcome::default();
            let mut lane = connection.lane(index);
            if lane.holds_ack(now_ns) {
                self.advance_lane(&connection, &mut lane, now_ns, false, &mut outcome);
            }
            drop(lane);
            if outcome.rings {
                self.bell.on_arrival();
            }
            self.end_if_over(&connection, outcome.broken);
        }
    }

    /// Requests a check of the control sockets by the last poll before a sleep, if arming consumed an edge of these
    /// sockets, or if they have unread input.
    pub(in crate::roce) fn on_arm(&self, has_control_edge: bool) {
        if has_control_edge || !self.control_is_empty.load(Relaxed) {
            self.control_seen_ns.store(0, Relaxed);
        }
    }

    /// Receives once from each socket; returns true if more packets may wait.
    pub(super) fn receive(&self, batch: &mut Batch, now_ns: u64) -> bool {
        let mut is_more = false;
        // A thread that has armed the bell is about to sleep.
        let mut held_acks = (!self.bell.is_armed()).then(|| std::mem::take(&mut batch.held_acks));
        self.ports.for_each_ready(|port| {
            let received = self.receive_from(port, batch, held_acks.as_mut(), now_ns);
            is_more |= received.is_more;
            if received.rings {
                self.bell.on_arrival();
            }
            if received.is_from_peer {
                // The lock of the batch excludes other writers; readers need no ordering.
                self.traffic.store(self.traffic.load(Relaxed).wrapping_add(1), Relaxed);
            }
        });
        if let Some(held_acks) = held_acks {
            batch.held_acks = held_acks;
        }
        is_more
    }

    /// Receives once from a socket. If `held_acks` is given, adds the lanes whose acknowledgements may wait to this
    /// list, instead of sending the acknowledgements.
    pub(in crate::roce) fn receive_from(
        &self,
        port: &Port,
        batch: &mut Batch,
        mut held_acks: Option<&mut HeldAcks>,
        now_ns: u64,
    ) -> Received {
        let is_more = port.receive(batch);
        let empty = batch.empty();
        if empty > 0 {
            self.dropped.strangers.fetch_add(empty, Relaxed);
        }
        let clock = Clock::read(batch, || self.now_ns());
        let mut packets = batch.packets().peekable();
        let mut received = Received { is_more, ..Received::default() };
        while let Some((meta, packet)) = packets.next() {
            let qpn = dest_qp(packet);
            let Some((connection, index)) = qpn.and_then(|qpn| read(&self.table).lanes.get(&qpn).cloned())
            else {
                self.dropped.strangers.fetch_add(1, Relaxed);
                continue;
            };
            let mut outcome = Outcome::default();
            let was_up = connection.is_up();
            let (is_answered, mut has_begun, mut has_come);
            {
                let mut lane = connection.lane(index);
                has_come = self.handle(&connection, &mut lane, now_ns, &clock, (meta, packet));
                while let Some(next) = packets.next_if(|(_, next)| dest_qp(next) == qpn) {
                    has_come |= self.handle(&connection, &mut lane, now_ns, &clock, next);
                }
                has_begun = lane.take_has_begun();
                if has_begun && !lane.has_heard_requests() {
                    // The answer to a probe contains the peer's share; an earlier rebalance saves the peer a round
                    // trip.
                    drop(lane);
                    self.rebalance_if_due(&port.sharing, has_begun, now_ns);
                    has_begun = false;
                    lane = connection.lane(index);
                }
                // With arrival times, the ends measure the network's delay, which needs the exact send time.
                let leaves_ns = if clock.is_known() { self.now_ns() } else { now_ns };
                self.advance_lane(&connection, &mut lane, leaves_ns, held_acks.is_some(), &mut outcome);
                is_answered = lane.qp().is_path_answered();
                if let Some(held_acks) = held_acks.as_deref_mut().filter(|_| lane.holds_ack(leaves_ns)) {
                    held_acks.push((connection.clone(), index));
                }
            }
            if has_come {
                received.is_from_peer = true;
                self.rebalance_if_due(&port.sharing, has_begun, now_ns);
            }
            if !has_come && !connection.is_up() && connection.address_change().is_some() {
                self.shorten_deadline(&connection, now_ns);
            }
            if is_answered && connection.awaits_answer() {
                self.handle_answered(&connection);
            }
            received.rings |= outcome.rings || connection.is_up() != was_up;
            self.end_if_over(&connection, outcome.broken);
        }
        received
    }

    /// Handles a packet. Returns true if it came from the peer.
    fn handle(
        &self,
        connection: &Connection,
        lane: &mut Lane,
        now_ns: u64,
        clock: &Clock,
        (meta, bytes): (&RecvMeta, &[u8]),
    ) -> bool {
        let Some(body) = connection.open(canonical(meta.addr), bytes) else {
            self.dropped.refused.fetch_add(1, Relaxed);
            return false;
        };
        let Ok(packet) = Packet::parse(body) else {
            self.dropped.malformed.fetch_add(1, Relaxed);
            return false;
        };
        connection.heard_ns.store(now_ns, Relaxed);
        // A peer that sends requests has received this end's answer, although its Ready may arrive later. A peer that
        // sends a probe may still wait for the answer.
        let is_probe = matches!(packet.headers, Headers::Probe(_) | Headers::ProbeAnswer(_));
        if is_probe {
            if connection.on_probe() {
                self.bring_up(connection);
            }
        } else if !connection.awaits_answer() {
            self.bring_up(connection);
        }
        let arrived_ns = clock.arrived_ns(meta, now_ns);
        lane.handle_packet(connection, self.context(now_ns), arrived_ns, &packet);
        true
    }

    pub(super) fn end_if_over(&self, connection: &Connection, broken: Option<Cause>) {
        if let Some(cause) = broken {
            connection.note_end(end_cause(cause));
        }
        if broken.is_some() || connection.is_leaving() && connection.is_idle() {
            self.end(connection);
        }
    }
}

/// Returns the target queue pair number in a packet's header.
fn dest_qp(packet: &[u8]) -> Option<u32> {
    Bth::new_checked(packet).ok().map(|bth| bth.dest_qp().value())
}
