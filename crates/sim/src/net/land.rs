//! Landing, if processors copy: an arriving piece of a request writes to the target's memory, or reads it.

use halite_fabric::{Completion, CompletionKind, RemoteAddress, Status};
use halite_mem::{AccessError, Window};

use super::end::{EndId, EndState};
use super::packet::{Packet, PacketKind};
use super::qp::Verb;
use super::{Event, Net};
use crate::digest::checksum;

impl Net {
    pub(super) fn handle_land(&mut self, index: u32) {
        let packet = self.packets.take(index);
        self.digest.fold([u64::from(packet.qp), packet.number, packet.offset, checksum(&packet.bytes)]);
        match packet.kind {
            PacketKind::Request(_) => self.land_request(packet),
            PacketKind::Response(verb) => self.land_response(packet, verb),
        }
    }

    /// Returns true if copies to this end reach its memory. The target cannot refuse them; only the exit of the copying
    /// process stops them.
    pub(super) fn accepts_copies(&self, end: EndId) -> bool {
        !self.ends[end].is_cut_off
    }

    fn land_request(&mut self, packet: Packet) {
        let target = packet.qp ^ 1;
        // A packet proves that the peer has opened its end, even if the kernel's answer is late.
        self.establish_if_opening(self.end_of(target));
        let queue = &self.qps[target as usize];
        if !queue.stalled.is_empty() {
            let index = self.packets.add(packet);
            self.qps[target as usize].stalled.push_back(index);
            return;
        }
        if !self.accepts_copies(self.end_of(target)) {
            return self.drop_packet(packet);
        }
        if !self.has_receive(target, &packet) {
            return self.stall(target, packet);
        }
        self.execute(target, packet);
    }

    fn drop_packet(&mut self, packet: Packet) {
        self.counters.dropped += 1;
        if packet.is_last {
            self.await_ack(packet.qp, packet.number);
        }
        self.packets.recycle(packet.bytes);
    }

    // Receives.

    fn has_receive(&self, target: u32, packet: &Packet) -> bool {
        let PacketKind::Request(verb) = packet.kind else {
            return true;
        };
        let end = &self.ends[self.end_of(target)];
        // A closed end keeps no messages.
        let consumes = packet.is_last && verb.needs_receive() && end.state == EndState::Open;
        !consumes || end.unpolled.len() < self.profile_of(target).receive_depth
    }

    /// Holds a packet that found no posted receive, and retries it later, before the packets behind it.
    fn stall(&mut self, target: u32, packet: Packet) {
        self.counters.receiver_not_ready += 1;
        let index = self.packets.add(packet);
        self.qps[target as usize].stalled.push_back(index);
        let at_ns = self.now_ns + self.profile_of(target).rnr_ns;
        self.schedule(at_ns, Event::ReceiverRetry { qp: target });
    }

    pub(super) fn handle_receiver_retry(&mut self, target: u32) {
        let mut stalled = std::mem::take(&mut self.qps[target as usize].stalled);
        while let Some(index) = stalled.pop_front() {
            let packet = self.packets.take(index);
            self.land_request(packet);
            let queue = &self.qps[target as usize];
            if !queue.stalled.is_empty() {
                break;
            }
        }
        // The packets that stay refused precede packets that have arrived since.
        self.qps[target as usize].stalled.append(&mut stalled);
    }

    // Execution of requests.

    fn execute(&mut self, target: u32, packet: Packet) {
        let Packet { qp, number, kind, offset, is_last, solicited, bytes } = packet;
        let PacketKind::Request(verb) = kind else {
            unreachable!("only requests are executed");
        };
        match verb {
            Verb::Write { remote, len, imm, .. } => {
                let status = self.write(target, remote, len, offset, &bytes);
                self.packets.recycle(bytes);
                match status {
                    Status::Success if is_last => {
                        if let Some(imm) = imm {
                            self.deliver_message(target, CompletionKind::Notified { imm }, solicited);
                        }
                        self.acknowledge(qp, number, status, 0);
                    }
                    Status::Success => {}
                    _ => self.refuse(qp, number, is_last),
                }
            }
            Verb::Send { imm, .. } => {
                self.deliver_message(target, CompletionKind::Received { bytes, imm }, solicited);
                self.acknowledge(qp, number, Status::Success, 0);
            }
            Verb::FetchAdd { remote, add } => {
                self.atomic(target, qp, number, remote, |word| word.fetch_add_u64(remote.offset, add));
            }
            Verb::CompareSwap { remote, expected, new } => {
                let swap = |word: &Window| word.compare_exchange_u64(remote.offset, expected, new);
                self.atomic(target, qp, number, remote, swap);
            }
            Verb::Read { remote, len, .. } => self.begin_read(target, qp, number, remote, len),
        }
        let (host, of) = self.hosts_of(target);
        self.trace(host, |_| format!("{} {number} of host-{of} lands from byte {offset}", verb.name()));
    }

    /// Returns the segment that `remote` names for the other end of `target`.
    pub(super) fn segment(&self, target: u32, remote: RemoteAddress) -> Option<&Window> {
        self.endpoint_of(target).segment(remote.key)
    }

    fn covers(window: &Window, remote: RemoteAddress, len: u64) -> bool {
        remote.offset.checked_add(len).is_some_and(|end| end <= window.len())
    }

    /// Writes a piece to memory. Checks the range of the whole request.
    fn write(&self, target: u32, remote: RemoteAddress, len: u64, offset: u64, bytes: &[u8]) -> Status {
        match self.segment(target, remote) {
            Some(window) if Net::covers(window, remote, len) => {
                window.write(remote.offset + offset, bytes).expect("the whole range is inside");
                Status::Success
            }
            _ => Status::RemoteAccess,
        }
    }

    /// Refuses a request if processors copy: the lane continues, and the target gets no event.
    pub(super) fn refuse(&mut self, qp: u32, number: u64, is_last: bool) {
        if is_last {
            self.acknowledge(qp, number, Status::RemoteAccess, 0);
        }
    }

    /// Delivers a message or immediate, if the connection is open: no fabric polls a closed one.
    pub(super) fn deliver_message(&mut self, target: u32, kind: CompletionKind, solicited: bool) {
        let end = self.end_of(target);
        let end = &mut self.ends[end];
        let (endpoint, peer) = (end.endpoint, end.peer);
        if end.state == EndState::Open {
            end.unpolled.push_back(target);
            let completion = Completion { peer, status: Status::Success, kind };
            if solicited {
                self.complete(endpoint, completion);
            } else {
                self.complete_unsolicited(endpoint, completion);
            }
        }
    }

    fn atomic(
        &mut self,
        target: u32,
        qp: u32,
        number: u64,
        remote: RemoteAddress,
        change: impl FnOnce(&Window) -> Result<u64, AccessError>,
    ) {
        let changed = self.segment(target, remote).map(change);
        let Some(Ok(old)) = changed else {
            return self.refuse(qp, number, true);
        };
        if let Some(work) = self.qps[qp as usize].work(number) {
            work.old = old;
        }
        self.acknowledge(qp, number, Status::Success, self.profile_of(qp).atomic_ns);
    }

    fn begin_read(&mut self, target: u32, qp: u32, number: u64, remote: RemoteAddress, len: u64) {
        let window = self.segment(target, remote);
        if !window.is_some_and(|window| Net::covers(window, remote, len)) {
            return self.refuse(qp, number, true);
        }
        if let Some(work) = self.qps[qp as usize].work(number) {
            work.is_executed = true;
            self.schedule(self.now_ns, Event::Respond { qp, number });
        }
    }

    /// Writes a piece of a response to the memory of the requester.
    fn land_response(&mut self, packet: Packet, verb: Verb) {
        let Packet { qp, number, offset: piece, is_last, bytes, .. } = packet;
        let Verb::Read { offset, .. } = verb else {
            unreachable!("only reads are answered with bytes");
        };
        if let Some(work) = self.qps[qp as usize].work(number) {
            let window = work.local.as_ref().expect("the segment was looked up when the read was posted");
            window.write(offset + piece, &bytes).expect("the range was checked when it was posted");
            if is_last {
                self.schedule(self.now_ns, Event::Acknowledge { qp, number });
            }
        }
        self.packets.recycle(bytes);
    }
}
