//! Datagrams: applies the faults of links, and charges the costs of the adapters and kernels that carry the datagrams.

use halite_rnic::State;
use halite_rnic::stateless::receiver_of;
use halite_rnic::wire::{Headers, ICRC_BYTES, Packet};

use super::transport::Transport;
use super::view::View;
use super::{Event, HostState, Net};
use crate::digest::checksum;
use crate::link::Corruption;
use crate::profile::{AtomicsBy, Profile};
use crate::world::HostId;

/// A datagram in flight, or held at its target.
#[derive(Debug)]
pub(super) struct Datagram {
    /// The target queue pair.
    pub(super) to: u32,
    /// Arrival time at the target's host, whose process may be stopped then.
    pub(super) at_ns: u64,
    pub(super) bytes: Vec<u8>,
}

/// Time in ns by which an adapter fetches a packet before the wire is free: the transmission time of the longest packet
/// at 100 Gb/s.
const AHEAD_NS: u64 = 400;

/// Returns the time to move a packet between memory and the wire, at both ends.
fn transfer_ns(profile: &Profile, packet: &Packet<'_>) -> u64 {
    let bytes = packet.payload.len() as u64;
    if profile.is_driven_by_process() {
        return 2 * profile.dma_ns(packet.headers.len_bytes() as u64 + bytes) + profile.pcie_ns;
    }
    match packet.headers {
        // The cost of the acknowledged request already includes the access to memory.
        Headers::Acknowledge(_) => 0,
        Headers::AtomicAcknowledge { .. } if profile.atomics == AtomicsBy::Processor => profile.atomic_ns,
        Headers::AtomicAcknowledge { .. } => 0,
        // The adapter at the target fetches the bytes over its bus, there and back.
        Headers::ReadRequest(_) => 2 * profile.pcie_ns,
        headers if headers.opcode().is_response() => 2 * (profile.dma_ns(bytes) + profile.pcie_ns),
        _ => 2 * profile.dma_ns(bytes) + profile.pcie_ns,
    }
}

impl Net {
    /// Sends the packets of a queue pair until the wire is busy; a kernel takes all of them. Returns the time of the
    /// next run if more packets may be left.
    pub(super) fn transmit_all(&mut self, qp: u32) -> Option<u64> {
        let mut buffer = std::mem::take(&mut self.scratch);
        let (now_ns, mut sent_bytes, mut next_run_ns) = (self.now_ns, 0, None);
        let mtu = self.profile_of(qp).mtu_bytes as usize;
        while let Some(lane) = self.lanes[qp as usize].as_deref() {
            // A run sends one packet of maximum length or several short ones, so that an acknowledgement behind a
            // message does not wait for another run.
            let must_yield = sent_bytes == 0 || sent_bytes >= mtu;
            if let Some(at_ns) = self.next_fetch_ns(qp).filter(|_| must_yield && !lane.has_ended()) {
                // Queue pairs that already wait for the same wire run first.
                next_run_ns = Some(at_ns + u64::from(sent_bytes > 0));
                break;
            }
            buffer.resize(lane.transport.packet_bytes_max(), 0);
            let Some((transport, view)) = self.transport_and_view(qp, None) else { break };
            let Some(len) = transport.poll_transmit(now_ns, &view, &mut buffer) else { break };
            self.send_datagram(qp, &mut buffer[..len]);
            sent_bytes += len;
        }
        self.scratch = buffer;
        next_run_ns
    }

    /// Returns the time at which an adapter may fetch the next packet; `None` for now. An adapter waits until its
    /// sending unit and the wire are nearly free, so queue pairs alternate packet by packet.
    fn next_fetch_ns(&self, qp: u32) -> Option<u64> {
        let profile = self.profile_of(qp);
        if profile.is_driven_by_process() {
            return None;
        }
        let (host, to) = self.hosts_of(qp);
        let free_ns = self.wires[host as usize][to as usize].free_ns().max(self.sender_busy_until_ns(qp));
        (free_ns > self.now_ns + AHEAD_NS).then(|| free_ns - AHEAD_NS)
    }

    pub(super) fn send_datagram(&mut self, qp: u32, bytes: &mut [u8]) {
        let (host, to) = self.hosts_of(qp);
        let profile = self.profile_of(qp);
        let len = bytes.len() as u64;
        let on_wire = len + profile.header_bytes;
        let corruption = self.wires[host as usize][to as usize].link().corruption;
        let body = &bytes[..bytes.len() - ICRC_BYTES];
        let (payload, delivery) = match receiver_of(body) {
            // The tag covers everything behind the transport header.
            Some(_) => {
                let transfer_ns = 2 * profile.dma_ns(len) + profile.pcie_ns;
                let wire = &mut self.wires[host as usize][to as usize];
                let mut delivery =
                    wire.send_datagram(self.now_ns, on_wire, &mut self.random, &mut self.counters);
                delivery.on_time_ns += transfer_ns;
                (0..0, delivery)
            }
            None => {
                let packet = Packet::parse(body).expect("queue pairs write packets");
                let transfer_ns = transfer_ns(profile, &packet);
                let begin = packet.headers.len_bytes();
                (begin..begin + packet.payload.len(), self.pass_stages(qp, &packet, on_wire, transfer_ns))
            }
        };
        let is_detected = corruption == Corruption::Caught || receiver_of(bytes).is_some();
        if delivery.is_damaged && !is_detected && !payload.is_empty() {
            // The damage occurred before the checksum was computed, in an adapter or a switch.
            self.counters.corrupted_uncaught += 1;
            self.damage(&mut bytes[payload]);
        }
        let lane = self.lanes[qp as usize].as_deref_mut().expect("the sending queue pair has a lane");
        lane.outwards.seal(0, bytes);
        if delivery.is_damaged && is_detected {
            self.damage(bytes);
        }
        let lane = self.lanes[qp as usize].as_deref_mut().expect("the sending queue pair has a lane");
        // Undelayed packets keep their order.
        lane.landed_ns = lane.landed_ns.max(delivery.on_time_ns);
        let landed_ns = lane.landed_ns;
        for delay_ns in delivery.delays_ns.into_iter().flatten() {
            let at_ns = landed_ns + delay_ns;
            // Kernel messages that are sent later must arrive later.
            let queue = &mut self.qps[qp as usize];
            queue.landed_ns = queue.landed_ns.max(at_ns);
            let mut copy = self.packets.take_buffer();
            copy.extend_from_slice(bytes);
            let index = self.datagrams.add(Datagram { to: qp ^ 1, at_ns, bytes: copy });
            self.schedule(at_ns, Event::Datagram { index });
        }
    }

    fn damage(&mut self, bytes: &mut [u8]) {
        if !bytes.is_empty() {
            let bit = self.random.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    pub(super) fn handle_datagram(&mut self, index: u32) {
        let to = self.datagrams.get(index).to;
        let (host, _) = self.hosts_of(to);
        if self.profile_of(to).is_driven_by_process() && self.state(HostId(host)) == HostState::Paused {
            self.runs_or_defers(host, Event::Datagram { index });
            return;
        }
        let datagram = self.datagrams.take(index);
        self.digest.fold([u64::from(to), datagram.bytes.len() as u64, checksum(&datagram.bytes), 0]);
        // A packet proves that the peer has opened its end, even if the kernel's answer is late.
        self.establish_if_opening(self.end_of(to));
        self.receive_datagram(datagram);
    }

    /// Handles a datagram's arrival: passes it to its queue pair, or begins the atomic that the adapter must execute.
    /// While the adapter executes an earlier atomic of the lane, the datagram waits.
    pub(super) fn receive_datagram(&mut self, datagram: Datagram) {
        let executes_atomics = self.profile_of(datagram.to).atomics == AtomicsBy::Adapter;
        let Some(lane) = self.lanes[datagram.to as usize].as_deref_mut() else {
            return self.drop_datagram(datagram);
        };
        if lane.is_in_atomic {
            return lane.deferred.push_back(datagram);
        }
        let body = lane.inwards.open(&datagram.bytes);
        if let Some(receiver) = body.as_ref().ok().and_then(|body| receiver_of(body)) {
            return self.pass_to_stateless(datagram, receiver);
        }
        match body.and_then(Packet::parse).map(|packet| packet.headers) {
            Err(_) => {
                self.counters.corrupted_caught += 1;
                self.packets.recycle(datagram.bytes);
            }
            Ok(Headers::FetchAdd(eth) | Headers::CompareSwap(eth))
                if executes_atomics && !lane.has_ended() =>
            {
                self.begin_atomic(datagram, eth);
            }
            Ok(_) => self.pass_to_queue_pair(datagram, None),
        }
    }

    pub(super) fn drop_datagram(&mut self, datagram: Datagram) {
        self.counters.dropped += 1;
        self.packets.recycle(datagram.bytes);
    }

    /// Passes a packet to its queue pair; `word` is the value that an adapter's atomic has read.
    pub(super) fn pass_to_queue_pair(&mut self, datagram: Datagram, word: Option<u64>) {
        let Datagram { to, at_ns, bytes } = datagram;
        let (end, now_ns) = (self.end_of(to), self.now_ns);
        self.ends[end].heard_ns = now_ns;
        let Some((Transport::QueuePair(queue_pair), view)) = self.transport_and_view(to, word) else {
            return self.drop_datagram(Datagram { to, at_ns, bytes });
        };
        let has_ended = queue_pair.state() == State::Error;
        let packet =
            Packet::parse(&bytes[..bytes.len() - ICRC_BYTES]).expect("the packet was parsed when it arrived");
        queue_pair.handle_packet(now_ns, &packet, &view);
        self.counters.dropped += u64::from(has_ended);
        let (host, from) = self.hosts_of(to);
        self.trace(host, |_| format!("a datagram of {} B of host-{from} arrives", bytes.len()));
        self.packets.recycle(bytes);
        self.drive(to);
    }

    /// Returns the transport of a lane, and its view of memory.
    pub(super) fn transport_and_view(
        &mut self,
        qp: u32,
        word: Option<u64>,
    ) -> Option<(&mut Transport, View<'_>)> {
        let end = self.end_of(qp);
        let (endpoint, keys_usable) = (self.ends[end].endpoint, self.keys_usable(end));
        let lane = self.lanes[qp as usize].as_deref_mut()?;
        let segments = &self.endpoints[endpoint as usize].segments;
        Some((&mut lane.transport, View { segments, keys_usable, held: &lane.held, word }))
    }
}
