//! Closing connections, crashing hosts, and revoking a peer's access to memory.

use halite_fabric::{CutOff, Event as FabricEvent, PeerId, Status};

use super::end::{EndId, EndState};
use super::{Event, HostState, Net};
use crate::hardware::Reach;
use crate::profile::Fence;
use crate::world::HostId;

/// A message from the kernel at one end of a connection to the other.
pub(super) struct Word {
    /// The sending end.
    end: EndId,
    /// Delay before it is sent.
    after_ns: u64,
    event: Event,
}

impl Net {
    // Connections.

    /// Ends a connection because the peer does not answer.
    pub(super) fn break_off(&mut self, end: EndId, status: Status) {
        self.close_end(end, status);
        self.send_goodbye(end);
    }

    /// Closes one end: fails outstanding requests, and informs the fabric.
    pub(super) fn close_end(&mut self, end: EndId, status: Status) {
        let this = &mut self.ends[end];
        let (endpoint, peer, was_open) = (this.endpoint, this.peer, this.sends());
        this.mapped.unmap_all();
        if !was_open {
            // The fabric does not know the end yet, or no longer.
            this.state = EndState::Closed;
            return;
        }
        for qp in self.ends[end].qps() {
            self.flush(qp, status);
        }
        self.ends[end].state = EndState::Closed;
        // Earlier messages of the peer precede the end.
        self.endpoints[endpoint as usize].show_all(self.now_ns);
        self.tell(endpoint, FabricEvent::Disconnected { peer });
        if !self.copies_by_processor(end) {
            // An adapter drops packets for a closed connection.
            self.fence(end, false);
        }
        self.release_memory(endpoint as usize);
        let other = self.ends[end.other()].endpoint;
        self.release_memory(other as usize);
    }

    /// Records that the peer can no longer access this end's memory; `exited` if it has crashed.
    pub(super) fn fence(&mut self, end: EndId, exited: bool) {
        let this = &mut self.ends[end];
        if this.fenced {
            return;
        }
        this.fenced = true;
        let (endpoint, peer) = (this.endpoint, this.peer);
        // No fabric knows an end that never opened.
        if peer != PeerId(0) {
            self.tell(endpoint, FabricEvent::CutOff { peer, exited });
        }
    }

    /// Sends a kernel message behind the packets on the wire. Kernels retransmit: the message waits while the link is
    /// down; otherwise an isolated end would never be fenced.
    fn say(&mut self, word: Word) {
        let this = &self.ends[word.end];
        let landed_ns = this.qps().map(|qp| self.qps[qp as usize].landed_ns).max();
        match self.word_ns(this.from_host, this.to_host) {
            Some(at_ns) => self.schedule((at_ns + word.after_ns).max(landed_ns.unwrap_or(0)), word.event),
            None => self.unsent.push(word),
        }
    }

    /// Sends the kernel messages that waited for a link to come up.
    pub(super) fn send_unsent(&mut self) {
        for word in std::mem::take(&mut self.unsent) {
            self.say(word);
        }
    }

    /// Tells the peer that this end has closed.
    pub(super) fn send_goodbye(&mut self, end: EndId) {
        self.say(Word { end, after_ns: 0, event: Event::PeerLeft { end: end.other() } });
        if self.ends[end].reach == Reach::Within {
            self.detach(end);
        }
    }

    /// Handles the peer's message that it has closed its end.
    pub(super) fn handle_peer_left(&mut self, end: EndId) {
        let event = Event::PeerLeft { end };
        let host = self.ends[end].from_host;
        if self.copies_by_processor(end) {
            // The process itself drops the peer's memory, when it runs and no copy is in progress.
            if !self.has_processor(host, event) {
                return;
            }
            if self.is_copying(end) {
                let at_ns = self.now_ns + self.profile(end).wire_ns.max(1);
                return self.schedule(at_ns, event);
            }
        }
        // An end that has closed has already sent its message.
        let answers = self.ends[end].state != EndState::Closed;
        self.close_end(end, Status::PeerGone);
        match self.ends[end].reach {
            // The peer reports when it has unmapped this end's memory.
            Reach::Within if answers => self.detach(end),
            Reach::Across if self.copies_by_processor(end) => {
                // The peer has left, so it cannot access this end's memory; it learns the same from this end.
                self.fence(end, false);
                if answers {
                    self.send_detached(end);
                }
            }
            _ => {}
        }
    }

    pub(super) fn send_detached(&mut self, end: EndId) {
        self.say(Word { end, after_ns: 0, event: Event::PeerDetached { end: end.other() } });
    }

    /// Returns true if a processor is in the middle of a copy.
    fn is_copying(&self, end: EndId) -> bool {
        self.ends[end].qps().any(|qp| {
            let qp = &self.qps[qp as usize];
            let reading = qp.outstanding.iter().any(|work| work.answered > 0 && !work.acknowledged);
            qp.offset > 0 || reading
        })
    }

    pub(super) fn handle_peer_crashed(&mut self, end: EndId) {
        self.close_end(end, Status::PeerGone);
        self.fence(end, true);
    }

    pub(crate) fn disconnect(&mut self, endpoint: u32, peer: PeerId) {
        if let Some(end) = self.endpoints[endpoint as usize].end(peer)
            && self.ends[end].sends()
        {
            self.break_off(end, Status::PeerGone);
        }
    }

    pub(crate) fn cut_off(&mut self, endpoint: u32, peer: PeerId) -> CutOff {
        let Some(end) = self.endpoints[endpoint as usize].end(peer) else {
            return CutOff::Done;
        };
        if self.ends[end].fenced {
            return CutOff::Done;
        }
        if !self.copies_by_processor(end) {
            self.break_off(end, Status::PeerGone);
            return CutOff::Done;
        }
        self.cut_off_by_exit(end)
    }

    fn cut_off_by_exit(&mut self, end: EndId) -> CutOff {
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
        if self.endpoints[endpoint as usize].alive {
            self.crash(host, true);
            self.killed.push_back(host);
        }
    }

    // Fabrics.

    /// Leaves all peers, after all posted requests have ended.
    pub(crate) fn close(&mut self, endpoint: u32) {
        if !self.endpoints[endpoint as usize].alive {
            return;
        }
        self.give_up_dials(endpoint);
        self.endpoints[endpoint as usize].alive = false;
        let host = self.endpoints[endpoint as usize].host;
        self.trace(host, |net| format!("closes {}", net.endpoints[endpoint as usize].address));
        for end in self.endpoints[endpoint as usize].peers.clone() {
            if self.ends[end].state == EndState::Open {
                self.ends[end].state = EndState::Leaving;
                for qp in self.ends[end].qps() {
                    self.await_known(qp);
                }
                self.leave_when_sent(end);
            }
        }
        self.release_memory(endpoint as usize);
    }

    pub(super) fn leave_when_sent(&mut self, end: EndId) {
        let this = &self.ends[end];
        let is_sent = |qp: u32| self.qps[qp as usize].outstanding.is_empty() && self.is_lane_idle(qp);
        if this.state == EndState::Leaving && this.qps().all(is_sent) {
            self.break_off(end, Status::PeerGone);
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
        let held = &mut self.hosts[host.0 as usize];
        if held.state != HostState::Paused {
            return;
        }
        held.state = HostState::Running;
        for event in std::mem::take(&mut held.held) {
            self.schedule(self.now_ns, event);
        }
        self.trace(host.0, |_| "goes on".to_owned());
    }

    pub(crate) fn restart(&mut self, host: HostId) {
        let state = &mut self.hosts[host.0 as usize].state;
        if *state == HostState::Crashed {
            *state = HostState::Running;
            self.trace(host.0, |_| "starts again".to_owned());
        }
    }

    /// Crashes a host: only its packets on the wire remain. The caller ends its tasks. If `is_told`, the kernel informs
    /// other hosts.
    pub(crate) fn crash(&mut self, host: HostId, is_told: bool) {
        let crashed = &mut self.hosts[host.0 as usize];
        crashed.state = HostState::Crashed;
        crashed.held.clear();
        self.trace(host.0, |_| "crashes".to_owned());
        for index in 0..self.endpoints.len() {
            if self.endpoints[index].host == host.0 {
                self.crash_endpoint(index, is_told);
            }
        }
    }

    fn crash_endpoint(&mut self, index: usize, is_told: bool) {
        self.silence(index);
        self.endpoints[index].forget();
        // Includes ends that are not open yet, because their peers may be.
        let ours = self.ends.all().filter(|end| self.ends[*end].endpoint as usize == index);
        for end in ours.collect::<Vec<_>>() {
            let this = &mut self.ends[end];
            this.state = EndState::Closed;
            this.mapped.unmap_all();
            for qp in this.qps() {
                self.qps[qp as usize].forget();
                self.lanes[qp as usize] = None;
            }
            if is_told {
                self.report_crash(end);
            }
        }
        self.release_memory(index);
    }

    /// Drops the memory of a closed fabric, once no peer can access it.
    fn release_memory(&mut self, index: usize) {
        let is_over = |end: &EndId| {
            let is_reached = self.copies_by_processor(*end) && self.ends[end.other()].sends();
            !self.ends[*end].sends() && !is_reached
        };
        if !self.endpoints[index].alive && self.endpoints[index].peers.iter().all(is_over) {
            self.endpoints[index].segments = Vec::new();
        }
    }

    /// Schedules the kernel's report to the peer, after all packets of the crashed process have left the wire.
    fn report_crash(&mut self, end: EndId) {
        let after_ns = self.profile(end).notice_ns;
        self.say(Word { end, after_ns, event: Event::PeerCrashed { end: end.other() } });
    }
}
