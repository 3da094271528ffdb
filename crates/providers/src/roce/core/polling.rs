//! One poll: receives and handles packets and, now and then, control messages and timers.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use halite_rnic::wire::bth::Bth;
use halite_rnic::wire::{Headers, Packet};
use quinn_udp::RecvMeta;

use super::super::connection::{Connection, Lane, Outcome};
use super::super::port::{Batch, Port, canonical};
use super::super::stamps::Clock;
use super::super::{POISONED, read};
use super::Core;

/// Interval at which a busy poller checks for control messages, in ns.
const CONTROL_NS: u64 = 500_000;
/// Consecutive full batches after which timers are looked at.  Before, not: what waits in the socket may be what they wait for.
const BATCHES_BEFORE_TIME: u32 = 16;
/// How late timers may be for what waits in the sockets of receivers, of which each may wait for a processor.
const TIME_LATE_NS: u64 = 2_000_000;

/// What one look at a socket has brought.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::roce) struct Received {
    /// Whether more may wait there.
    pub(in crate::roce) is_more: bool,
    /// Whether sleepers are to be woken for it.
    pub(in crate::roce) rings: bool,
    /// Whether anything was a peer's.
    is_of_peers: bool,
}

impl Core {
    /// Takes in what has come, unless another thread does.
    pub(in crate::roce) fn turn(&self) {
        let Ok(mut batch) = self.batch.try_lock() else { return };
        let now_ns = self.now_ns();
        let (is_more, sees_to_time) = if self.receivers.is_empty() {
            let is_more = self.receive(&mut batch, now_ns);
            batch.note_polled(is_more);
            (is_more, batch.full_in_a_row().is_multiple_of(BATCHES_BEFORE_TIME))
        } else {
            // Packets keep nobody from greetings who does not receive them.
            let full_in_a_row = self.full_in_a_row_of_receivers();
            let is_late = now_ns >= self.due_ns.load(SeqCst).saturating_add(TIME_LATE_NS);
            assert!(!self.has_receiver_panicked.load(Relaxed), "{POISONED}");
            (false, full_in_a_row == 0 || full_in_a_row >= BATCHES_BEFORE_TIME || is_late)
        };
        let seen_ns = self.control_seen_ns.load(Relaxed);
        // Before a sleep also while packets wait: they may be nobody's business, and the edge of what a peer has said is taken already.
        if seen_ns == 0 || !is_more && now_ns >= seen_ns + CONTROL_NS {
            self.control_seen_ns.store(now_ns, Relaxed);
            self.look_at_control(&mut batch, now_ns);
            self.close_unused_ports();
        }
        if sees_to_time {
            self.see_to_time(now_ns);
        }
    }

    /// Who arms is about to sleep: what it polls before that sees everything whose edge has been taken.
    pub(in crate::roce) fn note_arming(&self, has_control_edge: bool) {
        if has_control_edge || !self.control_is_empty.load(Relaxed) {
            self.control_seen_ns.store(0, Relaxed);
        }
    }

    /// Receives once from each socket; returns true if more may wait.
    pub(super) fn receive(&self, batch: &mut Batch, now_ns: u64) -> bool {
        let mut is_more = false;
        self.ports.for_each_ready(|port| {
            let received = self.receive_from(port, batch, now_ns);
            is_more |= received.is_more;
            if received.rings {
                self.bell.note_arrival();
            }
            if received.is_of_peers {
                // Under the lock of the batch, so that nobody else counts; it orders nothing.
                self.traffic.store(self.traffic.load(Relaxed).wrapping_add(1), Relaxed);
            }
        });
        is_more
    }

    /// Receives once from a socket.
    pub(in crate::roce) fn receive_from(&self, port: &Port, batch: &mut Batch, now_ns: u64) -> Received {
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
                    // The answer to its probe says how much it may send, which spares it a round trip.
                    drop(lane);
                    self.see_to_shares(&port.sharing, has_begun, now_ns);
                    has_begun = false;
                    lane = connection.lane(index);
                }
                // Who measures the network by what leaves says exactly when that is.
                let leaves_ns = if clock.is_known() { self.now_ns() } else { now_ns };
                self.move_on(&connection, &mut lane, leaves_ns, &mut outcome);
                is_answered = lane.qp().is_path_answered();
            }
            if has_come {
                received.is_of_peers = true;
                self.see_to_shares(&port.sharing, has_begun, now_ns);
            }
            if !has_come && !connection.is_up() && connection.address_change().is_some() {
                self.hurry(&connection, now_ns);
            }
            if is_answered && connection.awaits_answer() {
                self.handle_answered(&connection);
            }
            received.rings |= outcome.rings || connection.is_up() != was_up;
            self.end_if_over(&connection, outcome.is_broken);
        }
        received
    }

    /// Says whether it was a packet of the peer.
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
        // Who sends has heard us: its "ready" may come later than this.  A probe asks for that yet.
        let is_probe = matches!(packet.headers, Headers::Probe(_) | Headers::ProbeAnswer(_));
        if is_probe {
            if connection.note_probe() {
                self.come_up(connection);
            }
        } else if !connection.awaits_answer() {
            self.come_up(connection);
        }
        let arrived_ns = clock.arrived_ns(meta, now_ns);
        lane.handle_packet(connection, self.context(now_ns), arrived_ns, &packet);
        true
    }

    pub(super) fn end_if_over(&self, connection: &Connection, is_broken: bool) {
        if is_broken || connection.is_leaving() && connection.is_idle() {
            self.end(connection);
        }
    }
}

/// For which queue pair a packet is, as it says itself.
fn dest_qp(packet: &[u8]) -> Option<u32> {
    Bth::new_checked(packet).ok().map(|bth| bth.dest_qp().value())
}
