//! The protocol machine of `halite_rnic` at one end of a lane: a queue pair, or a lane without connection state at the
//! responder.
//!
//! One end of a stateless lane sends requests and reassembles the peer's messages. The responder belongs to the
//! endpoint, and serves the lanes of all peers.

use halite_rnic::stateless::{Lane, PACKET_BYTES_MAX, Receiver, Rights, ServerClock};
use halite_rnic::wire::ICRC_BYTES;
use halite_rnic::{Event, Memory, QueuePair, Request, State};

use super::Net;
use super::datagrams::Datagram;
use super::endpoint::Endpoint;
use super::lane::{address, qpn};
use super::view::View;

/// The protocol machine of one end of a lane.
#[derive(Debug)]
pub(super) enum Transport {
    QueuePair(Box<QueuePair>),
    /// With an estimate of the responder's clock.
    Stateless(Box<Lane>, ServerClock),
}

impl Transport {
    pub(super) fn has_ended(&self) -> bool {
        match self {
            Transport::QueuePair(queue_pair) => queue_pair.state() == State::Error,
            Transport::Stateless(lane, _) => lane.has_ended(),
        }
    }

    /// Returns the number of requests that have not completed.
    pub(super) fn posted(&self) -> usize {
        match self {
            Transport::QueuePair(queue_pair) => queue_pair.posted(),
            Transport::Stateless(lane, _) => lane.posted(),
        }
    }

    pub(super) fn post(&mut self, request: Request) {
        match self {
            Transport::QueuePair(queue_pair) => queue_pair
                .post(request)
                .expect("the request was checked when it was posted, and the queue has room"),
            Transport::Stateless(lane, _) => lane.post(request),
        }
    }

    pub(super) fn close(&mut self) {
        match self {
            Transport::QueuePair(queue_pair) => queue_pair.close(),
            Transport::Stateless(lane, _) => lane.close(),
        }
    }

    /// Posts a receive. A stateless lane needs none.
    pub(super) fn add_receive(&mut self) {
        if let Transport::QueuePair(queue_pair) = self {
            queue_pair.add_receives(1);
        }
    }

    pub(super) fn packet_bytes_max(&self) -> usize {
        match self {
            Transport::QueuePair(queue_pair) => queue_pair.packet_bytes_max(),
            Transport::Stateless(..) => PACKET_BYTES_MAX,
        }
    }

    pub(super) fn poll_transmit(
        &mut self,
        now_ns: u64,
        memory: &impl Memory,
        buffer: &mut [u8],
    ) -> Option<usize> {
        match self {
            Transport::QueuePair(queue_pair) => queue_pair.poll_transmit(now_ns, memory, buffer),
            Transport::Stateless(lane, clock) => {
                let request = lane.poll_transmit(now_ns, clock, memory, buffer);
                request.or_else(|| lane.poll_answer(buffer))
            }
        }
    }

    pub(super) fn handle_timeout(&mut self, now_ns: u64) {
        if let Transport::QueuePair(queue_pair) = self {
            queue_pair.handle_timeout(now_ns);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<u64> {
        match self {
            Transport::QueuePair(queue_pair) => queue_pair.poll_timeout(),
            Transport::Stateless(lane, _) => lane.poll_timeout(),
        }
    }

    pub(super) fn poll_event(&mut self) -> Option<Event> {
        match self {
            Transport::QueuePair(queue_pair) => queue_pair.poll_event(),
            Transport::Stateless(lane, _) => lane.poll_event(),
        }
    }

    /// Returns the numbers of retransmissions and of receiver-not-ready refusals.
    pub(super) fn counts(&self) -> [u64; 2] {
        match self {
            Transport::QueuePair(queue_pair) => {
                let counters = queue_pair.counters();
                [counters.repeated, counters.rnr_naks]
            }
            Transport::Stateless(lane, _) => [lane.packets()[1], 0],
        }
    }

    pub(super) fn round_trip_ns(&self) -> Option<u64> {
        match self {
            Transport::QueuePair(queue_pair) => queue_pair.round_trip_ns(),
            Transport::Stateless(_, clock) => clock.round_trip_ns(),
        }
    }
}

impl Net {
    /// Creates one end of a stateless lane. The peer's responder grants it access.
    pub(super) fn stateless_lane(&mut self, qp: u32, patience_ns: u64) -> Transport {
        let peer = self.ends[self.end_of(qp ^ 1)].endpoint as usize;
        let (host, _) = self.hosts_of(qp);
        let first_number = u64::from(self.random.bits() as u32) << 32;
        let responder = self.endpoints[peer].responder.as_ref().expect("the profile has stateless lanes");
        let grant = responder.grant(address(host), qpn(qp), 0, Rights::AnyKey);
        let mut lane = Box::<Lane>::default();
        lane.set_grant(grant, first_number, patience_ns);
        Transport::Stateless(lane, ServerClock::default())
    }

    /// Passes a packet of a stateless lane to the endpoint's responder or to the lane's requester, and sends the answer
    /// of the responder.
    pub(super) fn pass_to_stateless(&mut self, datagram: Datagram, receiver: Receiver) {
        let Datagram { to, at_ns, bytes } = datagram;
        let end = self.end_of(to);
        let mut answer = [0; PACKET_BYTES_MAX];
        let (host, from) = self.hosts_of(to);
        let body = &bytes[..bytes.len() - ICRC_BYTES];
        let handled = match receiver {
            Receiver::Responder => self.answer(to, at_ns, body, &mut answer),
            Receiver::Requester => self.handle_answer(to, at_ns, body).then_some(0),
        };
        self.trace(host, |_| format!("a datagram of {} B of host-{from} arrives", bytes.len()));
        let Some(len) = handled else { return self.drop_datagram(Datagram { to, at_ns, bytes }) };
        self.ends[end].heard_ns = self.now_ns;
        if len > 0 {
            self.send_datagram(to, &mut answer[..len]);
        }
        self.packets.recycle(bytes);
        self.drive(to);
    }

    /// Executes a request of the peer, and writes the answer. Returns the answer's length, 0 if the next transmission sends
    /// it; `None` without an answer.
    fn answer(&mut self, to: u32, at_ns: u64, body: &[u8], answer: &mut [u8]) -> Option<usize> {
        let (_, from) = self.hosts_of(to);
        let endpoint = self.ends[self.end_of(to)].endpoint as usize;
        let Endpoint { segments, responder, clock_offset_ns, .. } = &mut self.endpoints[endpoint];
        let lane = self.lanes[to as usize].as_deref_mut()?;
        let view = View { segments, keys_usable: u32::MAX, held: &lane.held, word: None };
        let (Transport::Stateless(stateless, clock), Some(responder)) = (&mut lane.transport, responder)
        else {
            return None;
        };
        if stateless.has_ended() {
            return None;
        }
        let executed = responder.execute(at_ns + *clock_offset_ns, address(from), body, &view, answer)?;
        if let Some(message) = responder.poll_message() {
            stateless.handle_message(message);
        }
        if let Some(ack) = executed.acknowledged {
            stateless.handle_ack(at_ns, clock, ack, &view);
        }
        if executed.has_payload() {
            return Some(executed.seal(answer));
        }
        stateless.hold_answer(executed);
        Some(0)
    }

    /// Passes an answer to the requester. Returns true if the answer is authentic.
    fn handle_answer(&mut self, to: u32, at_ns: u64, body: &[u8]) -> bool {
        let Some((transport, view)) = self.transport_and_view(to, None) else { return false };
        match transport {
            Transport::Stateless(lane, clock) => lane.handle_answer(at_ns, clock, body, &view),
            Transport::QueuePair(_) => false,
        }
    }
}
