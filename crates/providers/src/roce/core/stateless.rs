//! Packets of stateless lanes: requests for the responder of a socket, and answers for requesters.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use halite_rnic::stateless::{Receiver, receiver_of};
use quinn_udp::RecvMeta;

use super::super::connection::{Connection, Outcome};
use super::super::port::{HeldAcks, canonical};
use super::super::read;
use super::super::stamps::Clock;
use super::{Core, Received, dest_qp};

/// Packets of one batch from one queue pair of a peer, for the same receiver.
pub(super) struct Run<'a> {
    from: SocketAddr,
    qpn: u32,
    receiver: Receiver,
    packets: Vec<(&'a RecvMeta, &'a [u8])>,
}

impl<'a> Run<'a> {
    /// Begins a run with this packet, if it is one of a stateless lane.
    pub(super) fn of((meta, packet): (&'a RecvMeta, &'a [u8])) -> Option<Run<'a>> {
        let (receiver, qpn) = (receiver_of(packet)?, dest_qp(packet)?);
        Some(Run { from: canonical(meta.addr), qpn, receiver, packets: vec![(meta, packet)] })
    }

    /// Returns true if the packet belongs to the run.
    pub(super) fn contains(&self, (meta, packet): (&RecvMeta, &[u8])) -> bool {
        receiver_of(packet) == Some(self.receiver)
            && dest_qp(packet) == Some(self.qpn)
            && canonical(meta.addr) == self.from
    }

    pub(super) fn push(&mut self, packet: (&'a RecvMeta, &'a [u8])) {
        self.packets.push(packet);
    }
}

impl Core {
    /// Handles the packets of a run. If `held_acks` is given, adds the lane to this list instead of sending answers that
    /// may wait.
    pub(super) fn handle_run(
        &self,
        run: &Run<'_>,
        now_ns: u64,
        clock: &Clock,
        received: &mut Received,
        held_acks: Option<&mut HeldAcks>,
    ) {
        let Some((connection, index)) = self.lane_of(run) else {
            self.dropped.strangers.fetch_add(run.packets.len() as u64, Relaxed);
            return;
        };
        // A packet may wait for longer than its effect may be delayed, if this process did not run: its age is that of
        // its arrival.
        let lease = self.config.lease;
        let packets =
            run.packets.iter().map(|(meta, packet)| (clock.arrived_within(meta, now_ns, lease), *packet));
        let (was_up, mut outcome) = (connection.is_up(), Outcome::default());
        let mut lane = connection.lane(index);
        let handled = match run.receiver {
            Receiver::Responder => {
                let holds = held_acks.is_some();
                lane.answer_requests(&connection, self.context(now_ns), run.from, packets, holds)
            }
            Receiver::Requester => lane.handle_answers(&connection, self.context(now_ns), run.from, packets),
        };
        self.dropped.refused.fetch_add(run.packets.len() as u64 - handled, Relaxed);
        if handled > 0 {
            received.is_from_peer = true;
            connection.heard_ns.store(now_ns, Relaxed);
            if !connection.awaits_answer() {
                self.bring_up(&connection);
            }
        }
        self.advance_lane(&connection, &mut lane, self.now_ns(), held_acks.is_some(), &mut outcome);
        if let Some(held_acks) = held_acks.filter(|_| lane.holds_ack(now_ns)) {
            held_acks.push((connection.clone(), index));
        }
        drop(lane);
        received.rings |= outcome.rings || connection.is_up() != was_up;
        self.end_if_over(&connection, outcome.broken);
    }

    /// Returns the lane of a run: requests carry the number of the peer's queue pair, answers that of this end's.
    fn lane_of(&self, run: &Run<'_>) -> Option<(Arc<Connection>, usize)> {
        let table = read(&self.table);
        let found = match run.receiver {
            Receiver::Responder => table.requesters.get(&(run.from, run.qpn)),
            Receiver::Requester => table.lanes.get(&run.qpn),
        };
        found.filter(|(connection, _)| connection.is_stateless()).cloned()
    }
}
