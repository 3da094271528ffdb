//! Closing connections, crashing hosts, and revoking a peer's access to memory.

use halite_fabric::{CutOff, Event as FabricEvent, PeerId, Status};

use super::end::{EndId, EndState};
use super::qp::Work;
use super::{Event, HostState, Net};
use crate::hardware::Reach;
use crate::profile::Fence;
use crate::world::HostId;

/// A message from the kernel at `end` to the kernel at the other end, sent `after_ns` later.
pub(super) struct KernelMessage {
    end: EndId,
    event: Event,
    after_ns: u64,
}

impl Net {
    // Connections.

    /// Ends a connection because the peer does not answer.
    pub(super) fn break_connection(&mut self, end: EndId, status: Status) {
        self.close_end(end, status);
        self.notify_closed(end);
    }

    /// Closes one end: completes outstanding requests with `status`, and reports the disconnection to the fabric.
    pub(super) fn close_end(&mut self, end: EndId, status: Status) {
        let this = &mut self.ends[end];
        let (endpoint, peer, was_open) = (this.endpoint, this.peer, this.is_active());
        this.mappings.unmap_all();
        if !was_open {
            this.state = EndState::Closed;
            return;
        }
        for qp in self.ends[end].qps() {
            self.flush(qp, status);
        }
        self.ends[end].state = EndState::Closed;
        // Messages that arrived before the end must be visible before the disconnection.
        self.endpoints[endpoint as usize].make_all_visible(self.now_ns);
        self.report(endpoint, FabricEvent::Disconnected { peer });
        if !self.copies_by_processor(end) {
            // An adapter drops packets for a closed connection.
            self.mark_cut_off(end, false);
        }
        self.release_memory(endpoint as usize);
        let other = self.ends[end.other()].endpoint;
        self.release_memory(other as usize);
    }

    /// Records and reports that the peer can no longer access this end's memory. `exited` is true if it has crashed.
    pub(super) fn mark_cut_off(&mut self, end: EndId, exited: bool) {
        let this = &mut self.ends[end];
        if this.is_cut_off {
            return;
        }
        this.is_cut_off = true;
        let (endpoint, peer) = (this.endpoint, this.peer);
        // No fabric knows an end that never opened.
        if peer != PeerId(0) {
            self.report(endpoint, FabricEvent::CutOff { peer, exited });
        }
    }

    /// Sends a kernel message behind the packets on the wire. While the link is down, the message waits, because
    /// kernels retransmit. If it were lost, the peer of an isolated end would never be cut off.
    fn send_kernel_message(&mut self, end: EndId, event: Event, after_ns: u64) {
        let this = &self.ends[end];
        let landed_ns = this.qps().map(|qp| self.qps[qp as usize].landed_ns).max().unwrap_or(0);
        match self.kernel_message_ns(this.from_host, this.to_host) {
            Some(at_ns) => self.schedule((at_ns + after_ns).max(landed_ns), event),
            None => self.delayed_messages.push(KernelMessage { end, event, after_ns }),
        }
    }

    /// Sends the delayed kernel messages again, after a link has come up.
    pub(super) fn send_delayed_messages(&mut self) {
        for KernelMessage { end, event, after_ns } in std::mem::take(&mut self.delayed_messages) {
            self.send_kernel_message(end, event, after_ns);
        }
    }

    /// Notifies the peer that this end has closed.
    pub(super) fn notify_closed(&mut self, end: EndId) {
        self.send_kernel_message(end, Event::PeerLeft { end: end.other() }, 0);
        if self.ends[end].reach == Reach::WithinHost {
            self.detach(end);
        }
    }

    /// Handles the message that the peer has closed its end.
    pub(super) fn handle_peer_left(&mut self, end: EndId) {
        let event = Event::PeerLeft { end };
        let host = self.ends[end].from_host;
        if self.copies_by_processor(end) {
            // The process itself unmaps the peer's memory, once it runs and no copy is in progress.
            if !self.runs_or_defers(host, event) {
                return;
            }
            if self.is_copying(end) {
                let at_ns = self.now_ns + self.profile(end).wire_ns.max(1);
                return self.schedule(at_ns, event);
            }
        }
        // A closed end has already notified its peer.
        let must_notify = self.ends[end].state != EndState::Closed;
        self.close_end(end, Status::PeerGone);
        match self.ends[end].reach {
            // The peer reports when it has unmapped this end's memory.
            Reach::WithinHost if must_notify => self.detach(end),
            Reach::BetweenHosts if self.copies_by_processor(end) => {
                // Both ends have closed, so neither can access the other's memory.
                self.mark_cut_off(end, false);
                if must_notify {
                    self.notify_detached(end);
                }
            }
            _ => {}
        }
    }

    pub(super) fn notify_detached(&mut self, end: EndId) {
        self.send_kernel_message(end, Event::PeerDetached { end: end.other() }, 0);
    }

    /// Returns true if a processor is in the middle of a copy.
    fn is_copying(&self, end: EndId) -> bool {
        self.ends[end].qps().any(|qp| {
            let qp = &self.qps[qp as usize];
            let is_reading = |work: &Work| work.response_bytes > 0 && !work.is_acknowledged;
            qp.offset > 0 || qp.outstanding.iter().any(is_reading)
        })
    }

    pub(super) fn handle_peer_crashed(&mut self, end: EndId) {
        self.close_end(end, Status::PeerGone);
        self.mark_cut_off(end, true);
    }

    pub(crate) fn disconnect(&mut self, endpoint: u32, peer: PeerId) {
        if let Some(end) = self.endpoints[endpoint as usize].end(peer)
            && self.ends[end].is_active()
        {
            self.break_connection(end, Status::PeerGone);
        }
    }

    pub(crate) fn cut_off(&mut self, endpoint: u32, peer: PeerId) -> CutOff {
        let Some(end) = self.endpoints[endpoint as usize].end(peer) else {
            return CutOff::Done;
        };
        if self.ends[end].is_cut_off {
            return CutOff::Done;
        }
        if !self.copies_by_processor(end) {
            self.break_connection(end, Status::PeerGone);
            return CutOff::Done;
        }
        self.request_kill(end)
    }

    fn request_kill(&mut self, end: EndId) -> CutOff {
        let this = &self.ends[end];
        // A process never kills its own host.
        let profile = self.profile(end);
        if profile.fence == Fence::Never || this.from_host == this.to_host {
            return CutOff::NotPermitted;
        }
        let endpoint = self.ends[end.other()].endpoint;
        let at_ns = self.now_ns + profile.fence_ns;
        self.schedule(at_ns, Event::Fence { endpoint });
        CutOff::Started
    }

    pub(super) fn handle_fence(&mut self, endpoint: u32) {
        let host = HostId(self.endpoints[endpoint as usize].host);
        // The address may belong to a newer process.
        if self.endpoints[endpoint as usize].is_open {
            self.crash(host, true);
            self.killed.push_back(host);
        }
    }

    // Fabrics.

    /// Closes a fabric: its connections end after all posted requests have completed.
    pub(crate) fn close(&mut self, endpoint: u32) {
        if !self.endpoints[endpoint as usize].is_open {
            return;
        }
        self.abort_dials(endpoint);
        self.endpoints[endpoint as usize].is_open = false;
        let host = self.endpoints[endpoint as usize].host;
        self.trace(host, |net| format!("closes {}", net.endpoints[endpoint as usize].address));
        for end in self.endpoints[endpoint as usize].peers.clone() {
            if self.ends[end].state == EndState::Open {
                self.ends[end].state = EndState::Closing;
                for qp in self.ends[end].qps() {
                    self.process_lazy_acks(qp);
                    // The end closes only after all acknowledgements.
                    self.schedule_lazy_ack(qp, usize::MAX);
                }
                self.close_when_sent(end);
            }
        }
        self.release_memory(endpoint as usize);
    }

    pub(super) fn close_when_sent(&mut self, end: EndId) {
        let this = &self.ends[end];
        let is_sent = |qp: u32| self.qps[qp as usize].outstanding.is_empty() && self.is_lane_idle(qp);
        if this.state == EndState::Closing && this.qps().all(is_sent) {
            self.break_connection(end, Status::PeerGone);
        }
    }

    // Hosts.

    pub(crate) fn pause(&mut self, host: HostId) {
        let state = &mut self.hosts[host.0 as usize].state;
        if *state == HostState::Running {
            *state = HostState::Paused;
            self.trace(host.0, |_| "is paused".to_owned());
        }
    }

    pub(crate) fn resume(&mut self, host: HostId) {
        let resumed = &mut self.hosts[host.0 as usize];
        if resumed.state != HostState::Paused {
            return;
        }
        resumed.state = HostState::Running;
        for event in std::mem::take(&mut resumed.deferred) {
            self.schedule(self.now_ns, event);
        }
        self.trace(host.0, |_| "resumes".to_owned());
    }

    pub(crate) fn restart(&mut self, host: HostId) {
        let state = &mut self.hosts[host.0 as usize].state;
        if *state == HostState::Crashed {
            *state = HostState::Running;
            self.trace(host.0, |_| "restarts".to_owned());
        }
    }

    /// Crashes a host: only its packets on the wire remain. The caller ends its tasks. If `is_reported`, the kernel
    /// notifies other hosts.
    pub(crate) fn crash(&mut self, host: HostId, is_reported: bool) {
        let crashed = &mut self.hosts[host.0 as usize];
        crashed.state = HostState::Crashed;
        crashed.deferred.clear();
        self.trace(host.0, |_| "crashes".to_owned());
        for index in 0..self.endpoints.len() {
            if self.endpoints[index].host == host.0 {
                self.crash_endpoint(index, is_reported);
            }
        }
    }

    fn crash_endpoint(&mut self, index: usize, is_reported: bool) {
        self.hide_writes(index);
        self.endpoints[index].crash();
        // Includes ends that are not open yet, because their peers' ends may already be open.
        let ends = self.ends.all().filter(|end| self.ends[*end].endpoint as usize == index);
        for end in ends.collect::<Vec<_>>() {
            let this = &mut self.ends[end];
            this.state = EndState::Closed;
            this.mappings.unmap_all();
            for qp in this.qps() {
                drop(self.qps[qp as usize].take_outstanding());
                self.lanes[qp as usize] = None;
            }
            if is_reported {
                self.notify_crashed(end);
            }
        }
        self.release_memory(index);
    }

    /// Drops the memory of a closed fabric once no peer can access it.
    fn release_memory(&mut self, index: usize) {
        let is_inaccessible = |end: &EndId| {
            let peer_copies = self.copies_by_processor(*end) && self.ends[end.other()].is_active();
            !self.ends[*end].is_active() && !peer_copies
        };
        if !self.endpoints[index].is_open && self.endpoints[index].peers.iter().all(is_inaccessible) {
            self.endpoints[index].segments = Vec::new();
        }
    }

    /// Schedules the kernel's report to the peer, after all packets of the crashed process have left the wire.
    fn notify_crashed(&mut self, end: EndId) {
        let after_ns = self.profile(end).notice_ns;
        self.send_kernel_message(end, Event::PeerCrashed { end: end.other() }, after_ns);
    }
}
