//! Dialling: connects two fabrics by one message in each direction.

use std::collections::VecDeque;

use halite_fabric::{ConnectFailure, ConnectTrouble, Event as FabricEvent, HELLO_BYTES_MAX, PeerId};
use halite_rnic::stateless::Responder;

use super::direct::Mappings;
use super::end::{End, EndId, EndState};
use super::endpoint::Endpoint;
use super::qp::Qp;
use super::{Event, HostState, Net};
use crate::hardware::Reach;
use crate::world::HostId;

/// Reason for a failed dial of a closed fabric.
const CLOSED: &str = "this fabric is closed";
/// Maximum offset of a responder's clock in ns: an hour.
const CLOCK_OFFSET_NS_MAX: u64 = 3_600_000_000_000;

/// An attempt to connect.
#[derive(Debug)]
pub(super) struct Dial {
    from: u32,
    to: u32,
    hello: Vec<u8>,
    /// Number of the dialling fabric's keys, which the dial carries.
    keys: u32,
    /// True if the result has been reported.
    is_reported: bool,
    /// The dialling end, once the target has created it.
    end: Option<EndId>,
}

impl Net {
    pub(crate) fn open(&mut self, host: HostId, address: &str, hello: Vec<u8>) -> u32 {
        assert_eq!(self.state(host), HostState::Running, "only a running host can open a fabric");
        assert!(hello.len() <= HELLO_BYTES_MAX, "a hello of {} bytes is too long", hello.len());
        let index = self.endpoints.len() as u32;
        let taken = self.addresses.insert(address.to_owned(), index);
        assert!(taken.is_none(), "the address {address} has been used before");
        let mut endpoint = Endpoint::new(host.0, address.to_owned(), hello);
        if let Some(effect_life_ns) = self.hardware.profile(Reach::BetweenHosts).effect_life_ns {
            let mut secret = [0; 32];
            self.random.fill(&mut secret);
            endpoint.responder = Some(Responder::with_effect_life(1, secret, effect_life_ns));
            endpoint.clock_offset_ns = self.random.below(CLOCK_OFFSET_NS_MAX);
        }
        self.endpoints.push(endpoint);
        self.trace(host.0, |_| format!("opens {address}"));
        index
    }

    /// Returns the addresses of all other open fabrics.
    pub(crate) fn discover(&self, endpoint: u32) -> Vec<String> {
        let others = self.addresses.iter().filter(|(_, index)| **index != endpoint);
        let alive = others.filter(|(_, index)| self.endpoints[**index as usize].is_open);
        alive.map(|(address, _)| address.clone()).collect()
    }

    pub(crate) fn connect(&mut self, from: u32, address: &str, hello: &[u8]) {
        let to = self.addresses.get(address).copied();
        match to {
            _ if hello.len() > HELLO_BYTES_MAX => {
                let len = hello.len();
                self.report_connect_failure(
                    from,
                    address,
                    &format!("hello of {len} bytes is longer than {HELLO_BYTES_MAX}"),
                );
            }
            _ if !self.endpoints[from as usize].is_open => self.report_connect_failure(from, address, CLOSED),
            Some(to) => self.dial(from, to, hello),
            None => self.report_connect_failure(from, address, "no process has that address"),
        }
    }

    fn report_connect_failure(&mut self, from: u32, address: &str, reason: &str) {
        let (address, reason) = (address.to_owned(), reason.to_owned());
        self.report(
            from,
            FabricEvent::ConnectFailed(ConnectFailure { address, reason, trouble: ConnectTrouble::Theirs }),
        );
    }

    fn dial(&mut self, from: u32, to: u32, hello: &[u8]) {
        let dial = self.dials.len() as u32;
        let keys = self.key_count(from);
        self.dials.push(Dial { from, to, hello: hello.to_vec(), keys, is_reported: false, end: None });
        let (from_host, to_host) = (self.host_of(from), self.host_of(to));
        let arrives_ns = self.kernel_message_ns(from_host, to_host);
        if let Some(at_ns) = arrives_ns {
            self.schedule(at_ns, Event::DialArrives { dial });
        }
        let profile = self.hardware.profile(self.reach(HostId(from_host), HostId(to_host)));
        let at_ns = self.now_ns + profile.connect_timeout_ns;
        self.schedule(at_ns, Event::DialTimeout { dial });
    }

    fn key_count(&self, endpoint: u32) -> u32 {
        self.endpoints[endpoint as usize].segments.len() as u32
    }

    fn host_of(&self, endpoint: u32) -> u32 {
        self.endpoints[endpoint as usize].host
    }

    pub(super) fn handle_dial_arrives(&mut self, dial: u32) {
        let Dial { from, to, is_reported, .. } = self.dials[dial as usize];
        let (from_host, to_host) = (self.host_of(from), self.host_of(to));
        let state = self.hosts[to_host as usize].state;
        // The kernel refuses if the process does not exist; a crashed or paused host does not answer.
        if state != HostState::Crashed && !self.endpoints[to as usize].is_open {
            return self.send_dial_answer(dial, None, to_host, from_host);
        }
        if !self.runs_or_defers(to_host, Event::DialArrives { dial }) || is_reported {
            return;
        }
        let dialling_end = self.create_ends(dial, from_host, to_host);
        self.dials[dial as usize].end = Some(dialling_end);
        self.send_dial_answer(dial, Some(dialling_end), to_host, from_host);
    }

    /// Creates both ends, and opens the end of the target. Returns the dialling end.
    fn create_ends(&mut self, dial: u32, from_host: u32, to_host: u32) -> EndId {
        let Dial { from, to, keys, .. } = self.dials[dial as usize];
        let dialling_hello = std::mem::take(&mut self.dials[dial as usize].hello);
        let (target_hello, address) =
            (self.endpoints[to as usize].hello.clone(), self.endpoints[to as usize].address.clone());
        let (target_keys, reach) = (self.key_count(to), self.reach(HostId(from_host), HostId(to_host)));
        let (lanes, first_qp) = (self.hardware.profile(reach).lanes as u32, self.qps.len() as u32);
        let now_ns = self.now_ns;
        let new_end = |endpoint, [from_host, to_host]: [u32; 2]| End {
            endpoint,
            peer: PeerId(0),
            hello: Vec::new(),
            dialled: None,
            state: EndState::Opening,
            is_cut_off: false,
            from_host,
            to_host,
            reach,
            first_qp,
            lanes,
            unpolled: VecDeque::new(),
            heard_ns: now_ns,
            keys_known: 0,
            keys_announced: 0,
            mappings: Mappings::default(),
        };
        let dialling_end = self.ends.push(End {
            hello: target_hello,
            dialled: Some(address),
            keys_announced: keys,
            keys_known: target_keys,
            ..new_end(from, [from_host, to_host])
        });
        let target_end = self.ends.push(End {
            hello: dialling_hello,
            first_qp: first_qp + 1,
            keys_announced: target_keys,
            keys_known: keys,
            ..new_end(to, [to_host, from_host])
        });
        for _ in 0..lanes {
            self.qps.extend([Qp::new(dialling_end), Qp::new(target_end)]);
            self.lanes.extend([None, None]);
        }
        if !self.copies_by_processor(dialling_end) {
            self.ends[dialling_end].qps().for_each(|qp| self.connect_lane(qp));
        }
        self.establish(target_end);
        dialling_end
    }

    fn send_dial_answer(&mut self, dial: u32, end: Option<EndId>, from: u32, to: u32) {
        if let Some(at_ns) = self.kernel_message_ns(from, to) {
            self.schedule(at_ns, Event::DialAnswered { dial, end });
        }
    }

    pub(super) fn handle_dial_answered(&mut self, dial: u32, end: Option<EndId>) {
        match end {
            _ if self.dials[dial as usize].is_reported => {}
            Some(end) => {
                self.dials[dial as usize].is_reported = true;
                self.establish_if_opening(end);
            }
            None => self.fail_dial(dial, "connection refused"),
        }
    }

    /// Opens an end whose peer has already opened its own, unless the fabric has closed since.
    pub(super) fn establish_if_opening(&mut self, end: EndId) {
        let this = &mut self.ends[end];
        if this.state != EndState::Opening {
            return;
        }
        if self.endpoints[this.endpoint as usize].is_open {
            return self.establish(end);
        }
        this.state = EndState::Closed;
        self.notify_closed(end);
    }

    /// Opens an end: from now on, requests can be posted to it.
    fn establish(&mut self, end: EndId) {
        let index = self.ends[end].endpoint;
        let endpoint = &mut self.endpoints[index as usize];
        endpoint.peers.push(end);
        let peer = PeerId(endpoint.peers.len() as u32);
        let this = &mut self.ends[end];
        this.peer = peer;
        this.state = EndState::Open;
        let (hello, dialled) = (std::mem::take(&mut this.hello), this.dialled.take());
        self.report(index, FabricEvent::Connected { peer, hello, dialled });
        self.announce(end);
    }

    pub(super) fn handle_dial_timeout(&mut self, dial: u32) {
        self.abort_dial(dial, "timed out");
    }

    /// Fails the outstanding dials of a closing fabric.
    pub(super) fn abort_dials(&mut self, endpoint: u32) {
        for dial in 0..self.dials.len() as u32 {
            if self.dials[dial as usize].from == endpoint {
                self.abort_dial(dial, CLOSED);
            }
        }
    }

    fn abort_dial(&mut self, dial: u32, reason: &str) {
        let opened = self.dials[dial as usize].end;
        let established = opened.is_some_and(|end| self.ends[end].peer != PeerId(0));
        if self.dials[dial as usize].is_reported || established {
            return;
        }
        if let Some(end) = opened {
            self.ends[end].state = EndState::Closed;
            self.notify_closed(end);
        }
        self.fail_dial(dial, reason);
    }

    fn fail_dial(&mut self, dial: u32, reason: &str) {
        let Dial { from, to, .. } = self.dials[dial as usize];
        self.dials[dial as usize].is_reported = true;
        let address = self.endpoints[to as usize].address.clone();
        if self.endpoints[from as usize].is_open {
            self.report_connect_failure(from, &address, reason);
        }
    }
}
