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

/// Consecutive packets of one batch from one queue pair of a peer, for the same receiver.
pub(super) struct Run<'a> {
    origin: Origin,
    packets: Vec<(&'a RecvMeta, &'a [u8])>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Origin {
    from: SocketAddr,
    qpn: u32,
    receiver: Receiver,
}

impl<'a> Run<'a> {
    /// Adds a packet to the last run, or to a new one. Returns false if the packet does not belong to a stateless lane.
    pub(super) fn add(runs: &mut Vec<Run<'a>>, (meta, packet): (&'a RecvMeta, &'a [u8])) -> bool {
        let (Some(receiver), Some(qpn)) = (receiver_of(packet), dest_qp(packet)) else { return false };
        let origin = Origin { from: canonical(meta.addr), qpn, receiver };
        match runs.last_mut().filter(|last| last.origin == origin) {
            Some(last) => last.packets.push((meta, packet)),
            None => runs.push(Run { origin, packets: vec![(meta, packet)] }),
        }
        true
    }
}

impl Core {
    /// Handles the packets of consecutive runs. If `held_acks` is given, keeps answers that may wait, and adds their lanes to
    /// this list.
    pub(super) fn handle_runs(
        &self,
        runs: &[Run<'_>],
        now_ns: u64,
        clock: &Clock,
        received: &mut Received,
        mut held_acks: Option<&mut HeldAcks>,
    ) {
        let found: Vec<_> = runs.iter().map(|run| self.lane_of(run)).collect();
        let mut rest = &found[..];
        while let Some(first) = rest.first() {
            let is_same = |lane: &&Option<(Arc<Connection>, usize)>| match (first, lane) {
                (Some((one, index)), Some((other, other_index))) => {
                    Arc::ptr_eq(one, other) && index == other_index
                }
                (one, other) => one.is_none() && other.is_none(),
            };
            // Requests and answers of the same lane are handled together, because answers permit further requests.
            let count = rest.iter().take_while(is_same).count();
            let of_lane = &runs[runs.len() - rest.len()..][..count];
            match first {
                Some((connection, index)) => {
                    let held_acks = held_acks.as_deref_mut();
                    self.handle_runs_of((connection, *index), of_lane, now_ns, clock, received, held_acks);
                }
                None => {
                    let packets = of_lane.iter().map(|run| run.packets.len() as u64).sum();
                    self.dropped.strangers.fetch_add(packets, Relaxed);
                }
            }
            rest = &rest[count..];
        }
    }

    fn handle_runs_of(
        &self,
        (connection, index): (&Arc<Connection>, usize),
        runs: &[Run<'_>],
        now_ns: u64,
        clock: &Clock,
        received: &mut Received,
        held_acks: Option<&mut HeldAcks>,
    ) {
        // If this process did not run, a packet may have waited for a long time: its age counts from its arrival.
        let lease = self.config.lease;
        let (was_up, mut outcome) = (connection.is_up(), Outcome::default());
        let mut lane = connection.lane(index);
        let mut handled = 0;
        for run in runs {
            let packets =
                run.packets.iter().map(|(meta, packet)| (clock.arrived_within(meta, now_ns, lease), *packet));
            let of_run = match run.origin.receiver {
                Receiver::Responder => {
                    let holds = held_acks.is_some();
                    lane.answer_requests(connection, self.context(now_ns), run.origin.from, packets, holds)
                }
                Receiver::Requester => {
                    lane.handle_answers(connection, self.context(now_ns), run.origin.from, packets)
                }
            };
            self.dropped.refused.fetch_add(run.packets.len() as u64 - of_run, Relaxed);
            handled += of_run;
        }
        if handled > 0 {
            received.is_from_peer = true;
            connection.heard_ns.store(now_ns, Relaxed);
            if !connection.awaits_answer() {
                self.bring_up(connection);
            }
        }
        self.advance_lane(connection, &mut lane, self.now_ns(), held_acks.is_some(), &mut outcome);
        if let Some(held_acks) = held_acks.filter(|_| lane.holds_ack(now_ns)) {
            held_acks.push((connection.clone(), index));
        }
        drop(lane);
        received.rings |= outcome.rings || connection.is_up() != was_up;
        self.end_if_over(connection, outcome.broken);
    }

    /// Returns the lane of a run. Requests contain the number of the peer's queue pair, answers the number of this end's.
    fn lane_of(&self, run: &Run<'_>) -> Option<(Arc<Connection>, usize)> {
        let (table, Origin { from, qpn, receiver }) = (read(&self.table), run.origin);
        let found = match receiver {
            Receiver::Responder => table.requesters.get(&(from, qpn)),
            Receiver::Requester => table.lanes.get(&qpn),
        };
        found.filter(|(connection, _)| connection.is_stateless()).cloned()
    }
}
