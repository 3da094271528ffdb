//! How connections and hosts end, and what keeps whose hands off whose memory from then on.

use halite_fabric::{CutOff, Event as FabricEvent, PeerId, Status};

use super::qp::QpState;
use super::{Event, HostState, Net};
use crate::hardware::Reach;
use crate::profile::Fence;
use crate::world::HostId;

/// What the kernel at one end of a connection has to say to the other.
pub(super) struct Word {
    /// The end that says it.
    qp: u32,
    /// How long it takes the kernel.
    after_ns: u64,
    event: Event,
}

impl Net {
    // Connections.

    /// Gives a connection up because the peer does not answer.
    pub(super) fn break_off(&mut self, qp: u32, status: Status) {
        self.close_end(qp, status);
        self.say_goodbye(qp);
    }

    /// Closes one end: what is outstanding fails, and its fabric is told.
    pub(super) fn close_end(&mut self, qp: u32, status: Status) {
        let end = &mut self.qps[qp as usize];
        let (endpoint, peer, was_open) = (end.endpoint, end.peer, end.sends());
        end.mapped.give_up();
        if !was_open {
            // Its fabric does not know of it yet, or not any more.
            end.state = QpState::Closed;
            return;
        }
        self.flush(qp, status);
        self.qps[qp as usize].state = QpState::Closed;
        // What the peer said before is heard before its end.
        self.endpoints[endpoint as usize].show_all(self.now_ns);
        self.tell(endpoint, FabricEvent::Disconnected { peer });
        if !self.copies_by_processor(qp) {
            // An adapter drops what comes for a connection that is closed.
            self.fence(qp, false);
        }
        self.release_memory(endpoint as usize);
        let other = self.qps[(qp ^ 1) as usize].endpoint;
        self.release_memory(other as usize);
    }

    /// From now on the peer does not reach this end's memory; whether that is so because it has crashed.
    pub(super) fn fence(&mut self, qp: u32, exited: bool) {
        let end = &mut self.qps[qp as usize];
        if end.fenced {
            return;
        }
        end.fenced = true;
        let (endpoint, peer) = (end.endpoint, end.peer);
        // An end that never opened has nobody to tell.
        if peer != PeerId(0) {
            self.tell(endpoint, FabricEvent::CutOff { peer, exited });
        }
    }

    /// Lets the kernel tell the peer something, behind what is on the wire to it.  Kernels repeat what is lost: while the
    /// link is down the word waits, or an end that is alone would never be cut off.
    fn say(&mut self, word: Word) {
        let end = &self.qps[word.qp as usize];
        match self.word_ns(end.from_host, end.to_host) {
            Some(at_ns) => self.schedule((at_ns + word.after_ns).max(end.landed_ns), word.event),
            None => self.unsaid.push(word),
        }
    }

    /// A link is up: says what has waited for that.
    pub(super) fn say_unsaid(&mut self) {
        for word in std::mem::take(&mut self.unsaid) {
            self.say(word);
        }
    }

    /// Tells the peer, behind what is on the wire to it.
    pub(super) fn say_goodbye(&mut self, qp: u32) {
        self.say(Word { qp, after_ns: 0, event: Event::PeerLeft { qp: qp ^ 1 } });
        if self.qps[qp as usize].reach == Reach::Within {
            self.detach(qp);
        }
    }

    /// The peer has closed its end.
    pub(super) fn handle_peer_left(&mut self, qp: u32) {
        let event = Event::PeerLeft { qp };
        let host = self.qps[qp as usize].from_host;
        if self.copies_by_processor(qp) {
            // The process itself gives the peer's memory up, when it runs and no copy is under way.
            if !self.has_processor(host, event) {
                return;
            }
            if self.is_copying(qp) {
                let at_ns = self.now_ns + self.profile(qp).wire_ns.max(1);
                return self.schedule(at_ns, event);
            }
        }
        // Who has left as well has said so already.
        let answers = self.qps[qp as usize].state != QpState::Closed;
        self.close_end(qp, Status::PeerGone);
        match self.qps[qp as usize].reach {
            // The peer says by itself when it holds no memory of ours any more.
            Reach::Within if answers => self.detach(qp),
            Reach::Across if self.copies_by_processor(qp) => {
                // The peer left, hence gave our memory up; and hears that we gave up its.
                self.fence(qp, false);
                if answers {
                    self.say_detached(qp);
                }
            }
            _ => {}
        }
    }

    pub(super) fn say_detached(&mut self, qp: u32) {
        self.say(Word { qp, after_ns: 0, event: Event::PeerDetached { qp: qp ^ 1 } });
    }

    /// Whether a processor is in the middle of a copy.
    fn is_copying(&mut self, qp: u32) -> bool {
        let end = &mut self.qps[qp as usize];
        let reading = end.outstanding.iter().any(|work| work.answered > 0 && !work.acknowledged);
        end.offset > 0 || reading
    }

    pub(super) fn handle_peer_crashed(&mut self, qp: u32) {
        self.close_end(qp, Status::PeerGone);
        self.fence(qp, true);
    }

    pub(crate) fn disconnect(&mut self, endpoint: u32, peer: PeerId) {
        if let Some(qp) = self.endpoints[endpoint as usize].qp(peer)
            && self.qps[qp as usize].sends()
        {
            self.break_off(qp, Status::PeerGone);
        }
    }

    pub(crate) fn cut_off(&mut self, endpoint: u32, peer: PeerId) -> CutOff {
        let Some(qp) = self.endpoints[endpoint as usize].qp(peer) else {
            return CutOff::Done;
        };
        if self.qps[qp as usize].fenced {
            return CutOff::Done;
        }
        if !self.copies_by_processor(qp) {
            self.break_off(qp, Status::PeerGone);
            return CutOff::Done;
        }
        self.cut_off_by_exit(qp)
    }

    fn cut_off_by_exit(&mut self, qp: u32) -> CutOff {
        let end = &self.qps[qp as usize];
        // Nobody kills the host that it runs on itself.
        let profile = self.profile(qp);
        if profile.fence == Fence::Never || end.from_host == end.to_host {
            return CutOff::NotPermitted;
        }
        let endpoint = self.qps[(qp ^ 1) as usize].endpoint;
        let at_ns = self.now_ns + profile.fence_ns;
        self.schedule(at_ns, Event::Fence { endpoint });
        CutOff::Started
    }

    pub(super) fn handle_fence(&mut self, endpoint: u32) {
        let host = HostId(self.endpoints[endpoint as usize].host);
        // Not what has been started there since.
        if self.endpoints[endpoint as usize].alive {
            self.crash(host, true);
            self.killed.push_back(host);
        }
    }

    // Fabrics.

    /// Leaves all peers, once what has been posted is done.
    pub(crate) fn close(&mut self, endpoint: u32) {
        if !self.endpoints[endpoint as usize].alive {
            return;
        }
        self.give_up_dials(endpoint);
        self.endpoints[endpoint as usize].alive = false;
        let host = self.endpoints[endpoint as usize].host;
        self.trace(host, |net| format!("closes {}", net.endpoints[endpoint as usize].address));
        for qp in self.endpoints[endpoint as usize].peers.clone() {
            if self.qps[qp as usize].state == QpState::Open {
                self.qps[qp as usize].state = QpState::Leaving;
                self.await_known(qp);
                self.leave_when_sent(qp);
            }
        }
        self.release_memory(endpoint as usize);
    }

    pub(super) fn leave_when_sent(&mut self, qp: u32) {
        let end = &self.qps[qp as usize];
        if end.state == QpState::Leaving && end.outstanding.is_empty() {
            self.break_off(qp, Status::PeerGone);
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

    /// Ends everything of a host but its packets.  Its tasks are the caller's to end.  `is_told` if its kernel goes on, and
    /// tells other hosts.
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
        // All of them, for the peers of those that are not open yet may think otherwise.
        let all = 0..self.qps.len() as u32;
        let ours = all.filter(|qp| self.qps[*qp as usize].endpoint as usize == index);
        for qp in ours.collect::<Vec<_>>() {
            let end = &mut self.qps[qp as usize];
            end.state = QpState::Closed;
            end.first += end.outstanding.len() as u64;
            end.outstanding.clear();
            end.departing = end.first;
            end.offset = 0;
            end.mapped.give_up();
            if is_told {
                self.report_crash(qp);
            }
        }
        self.release_memory(index);
    }

    /// Forgets the memory of a fabric that is gone, once nobody can reach it.
    fn release_memory(&mut self, index: usize) {
        let is_over = |qp: &u32| {
            let is_reached = self.copies_by_processor(*qp) && self.qps[(*qp ^ 1) as usize].sends();
            !self.qps[*qp as usize].sends() && !is_reached
        };
        if !self.endpoints[index].alive && self.endpoints[index].peers.iter().all(is_over) {
            self.endpoints[index].segments = Vec::new();
        }
    }

    /// The kernel tells the peer; by when, nothing of the crashed process is on the wire any more.
    fn report_crash(&mut self, qp: u32) {
        let after_ns = self.profile(qp).notice_ns;
        self.say(Word { qp, after_ns, event: Event::PeerCrashed { qp: qp ^ 1 } });
    }
}
