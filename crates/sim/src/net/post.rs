//! Posting: checks requests, copies their inline bytes, and queues the requests for the adapter.

use std::sync::Arc;

use halite_fabric::kind::{self, payload_bytes};
use halite_fabric::{
    Event as FabricEvent, Key, Lane, Local, Operation, PeerId, PostCause, PostError, RegisterError, Status,
    WorkRequest,
};
use halite_mem::{Segment, Window};

use super::end::{End, EndId, EndState};
use super::qp::{Source, Verb, Work};
use super::{Event, Net, POST_TAG};
use crate::digest::checksum;
use crate::hardware::Reach;

impl Net {
    pub(crate) fn register(&mut self, endpoint: u32, segment: Arc<Segment>) -> Result<Key, RegisterError> {
        let max = self.hardware.profile(Reach::BetweenHosts).keys_max;
        let segments = &mut self.endpoints[endpoint as usize].segments;
        if segments.len() >= max {
            return Err(RegisterError::TooManyKeys { max });
        }
        let window = segment.window(0, segment.len()).expect("the window is the whole segment");
        segments.push(Some(window));
        let key = Key(segments.len() as u32 - 1);
        self.announce_to_all(endpoint);
        Ok(key)
    }

    /// Sets the length of the pages of a segment: accesses need a page-table entry for each page.
    pub(crate) fn set_page_bytes(&mut self, endpoint: u32, key: Key, page_bytes: u64) {
        self.endpoints[endpoint as usize].page_bytes.insert(key.0, page_bytes);
    }

    /// Deregisters a key, so that later accesses of peers fail.
    pub(crate) fn deregister(&mut self, endpoint: u32, key: Key) {
        let segments = &mut self.endpoints[endpoint as usize].segments;
        if segments.get_mut(key.0 as usize).and_then(Option::take).is_none() {
            return;
        }
        for end in self.endpoints[endpoint as usize].peers.clone() {
            self.ends[end.other()].mappings.unmap(key);
        }
        self.report(endpoint, FabricEvent::Deregistered { key });
    }

    pub(crate) fn post(
        &mut self,
        endpoint: u32,
        peer: PeerId,
        lane: Lane,
        requests: &[WorkRequest<'_>],
    ) -> Result<(), PostError> {
        let error = |posted, cause| Err(PostError { peer, posted, cause });
        let Some(end) = self.open_end(endpoint, peer) else {
            return error(0, PostCause::NotConnected);
        };
        let End { first_qp, lanes, .. } = self.ends[end];
        let qp = first_qp + 2 * lane.order_among(lanes as usize) as u32;
        let are_queue_pairs = !self.copies_by_processor(end);
        let mut unrung = 0;
        for (posted, request) in requests.iter().enumerate() {
            let posting = match are_queue_pairs {
                true => self.post_to_lane(qp, lane.flow, request),
                false => self.post_copy(qp, request).map(|()| true),
            };
            match posting {
                Ok(is_in_adapter) => unrung += usize::from(is_in_adapter),
                Err(cause) => {
                    self.ring_doorbell(qp, unrung);
                    return error(posted, cause);
                }
            }
        }
        self.ring_doorbell(qp, unrung);
        Ok(())
    }

    pub(super) fn open_end(&self, endpoint: u32, peer: PeerId) -> Option<EndId> {
        let end = self.endpoints[endpoint as usize].end(peer)?;
        (self.ends[end].state == EndState::Open).then_some(end)
    }

    fn post_copy(&mut self, qp: u32, request: &WorkRequest<'_>) -> Result<(), PostCause> {
        self.process_lazy_acks(qp);
        if self.qps[qp as usize].outstanding.len() >= self.profile_of(qp).queue_depth {
            self.qps[qp as usize].wants_room = true;
            self.report_room(qp);
            return Err(PostCause::QueueFull);
        }
        let (verb, inline) = self.parse(qp, &request.operation)?;
        let local = self.local(qp, &verb);
        self.record_post(qp, request, inline);
        let mut copy = self.packets.take_buffer();
        copy.extend_from_slice(inline);
        let post_ns = self.profile_of(qp).post_ns;
        let queue = &mut self.qps[qp as usize];
        // Models a separate posting processor for each lane.
        queue.posted_ns = queue.posted_ns.max(self.now_ns) + post_ns;
        queue.outstanding.push_back(Work {
            id: request.id,
            signalled: request.signalled,
            solicited: request.solicited,
            verb,
            local,
            ready_ns: u64::MAX,
            has_departed: false,
            is_executed: false,
            is_acknowledged: false,
            lazy_ack_ns: None,
            status: Status::Success,
            old: 0,
            response_bytes: 0,
            attempts: 0,
            inline: copy,
        });
        Ok(())
    }

    /// Reports room when a quarter of a full queue is free, so that posters can post several requests at once.
    pub(super) fn report_room(&mut self, qp: u32) {
        let room_at = self.profile_of(qp).queue_depth / 4 * 3;
        let end = &self.ends[self.end_of(qp)];
        let queue = &mut self.qps[qp as usize];
        if !queue.wants_room || end.state != EndState::Open {
            return;
        }
        let excess = queue.outstanding.len().saturating_sub(room_at);
        if excess == 0 {
            queue.wants_room = false;
            let (endpoint, peer) = (end.endpoint, end.peer);
            return self.deliver(endpoint, peer, FabricEvent::Room { peer });
        }
        self.schedule_lazy_ack(qp, excess);
    }

    pub(super) fn record_post(&mut self, qp: u32, request: &WorkRequest<'_>, inline: &[u8]) {
        let bytes = payload_bytes(&request.operation);
        self.counters.posts += 1;
        self.counters.bytes += bytes;
        let sum = checksum(inline);
        self.digest.fold([POST_TAG | u64::from(qp) << 32, request.id.0, bytes, sum]);
        let (from, to) = self.hosts_of(qp);
        self.trace(from, |_| format!("post {} of {bytes} B to host-{to}", kind::name(&request.operation)));
    }

    /// Parses an operation and its inline bytes, and checks its lengths and local memory.
    pub(super) fn parse<'r>(
        &self,
        qp: u32,
        operation: &Operation<'r>,
    ) -> Result<(Verb, &'r [u8]), PostCause> {
        let no_bytes: &[u8] = &[];
        Ok(match *operation {
            Operation::Read { local: Local::Registered { key, offset, len }, remote } => {
                let key = self.local_key(qp, key, offset, len)?;
                (Verb::Read { key, offset, remote, len }, no_bytes)
            }
            Operation::Read { local: Local::Inline(_), .. } => return Err(PostCause::Malformed),
            Operation::Write { local, remote } => {
                self.parse_write(qp, local, |source, len| Verb::Write { source, remote, len, imm: None })?
            }
            Operation::WriteImm { local, remote, imm } => self
                .parse_write(qp, local, |source, len| Verb::Write { source, remote, len, imm: Some(imm) })?,
            Operation::Send { bytes, .. } if bytes.len() > self.profile_of(qp).send_bytes_max => {
                return Err(PostCause::Malformed);
            }
            Operation::Send { bytes, imm } => (Verb::Send { len: bytes.len() as u64, imm }, bytes),
            Operation::FetchAdd { remote, add } => (Verb::FetchAdd { remote, add }, no_bytes),
            Operation::CompareSwap { remote, expected, new } => {
                (Verb::CompareSwap { remote, expected, new }, no_bytes)
            }
        })
    }

    fn parse_write<'r>(
        &self,
        qp: u32,
        local: Local<'r>,
        verb: impl Fn(Source, u64) -> Verb,
    ) -> Result<(Verb, &'r [u8]), PostCause> {
        match local {
            Local::Inline(bytes) if bytes.len() > self.profile_of(qp).inline_bytes_max => {
                Err(PostCause::Malformed)
            }
            Local::Inline(bytes) => Ok((verb(Source::Inline, bytes.len() as u64), bytes)),
            Local::Registered { key, offset, len } => {
                let key = self.local_key(qp, key, offset, len)?;
                Ok((verb(Source::Registered { key, offset }, len), &[]))
            }
        }
    }

    /// Returns the local segment of a request.
    pub(super) fn local(&self, qp: u32, verb: &Verb) -> Option<Window> {
        let key = match *verb {
            Verb::Read { key, .. } | Verb::Write { source: Source::Registered { key, .. }, .. } => key,
            _ => return None,
        };
        self.endpoint_of(qp).segment(Key(key as u32)).cloned()
    }

    fn local_key(&self, qp: u32, key: Key, offset: u64, len: u64) -> Result<usize, PostCause> {
        let segment = self.endpoint_of(qp).segment(key);
        let end = offset.checked_add(len).ok_or(PostCause::Malformed)?;
        let covers = segment.is_some_and(|segment| end <= segment.len());
        covers.then_some(key.0 as usize).ok_or(PostCause::Malformed)
    }

    /// Rings the doorbell for the last `posted` requests.
    fn ring_doorbell(&mut self, qp: u32, posted: usize) {
        if posted == 0 {
            return;
        }
        if !self.copies_by_processor(self.end_of(qp)) {
            return self.ring_lane(qp, posted);
        }
        let profile = self.hardware.profile(self.ends[self.end_of(qp)].reach);
        let queue = &mut self.qps[qp as usize];
        queue.posted_ns += profile.doorbell_ns;
        let ready_ns = queue.posted_ns;
        let before = queue.outstanding.len() - posted;
        queue.outstanding.iter_mut().skip(before).for_each(|work| work.ready_ns = ready_ns);
        self.start_sending(qp);
    }

    /// Schedules the departure of the next piece, unless one is scheduled.
    pub(super) fn start_sending(&mut self, qp: u32) {
        let now_ns = self.now_ns;
        let queue = &mut self.qps[qp as usize];
        let departing = queue.departing;
        if queue.is_sending {
            return;
        }
        if let Some(work) = queue.work(departing) {
            let at_ns = work.ready_ns.max(now_ns);
            queue.is_sending = true;
            self.schedule(at_ns, Event::Depart { qp });
        }
    }
}
