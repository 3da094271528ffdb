//! Limits the bytes of a lane's flows that the adapter holds, so that a short request waits for few bytes of other
//! flows.
//!
//! An adapter sends the requests of a queue pair in the order in which they were posted. So the provider posts only as
//! many bytes as the link sends in [`QUEUE_NS`] and one round trip. The other requests wait in the [`Backlog`], in
//! which flows take turns.

use std::collections::VecDeque;

use halite_fabric::Backlog;

use super::Net;
use super::lane::PostedRequest;
use crate::profile::Profile;

/// Time in which the link sends the bytes that wait in the adapter, in ns. A short request waits for them; the link
/// stays busy while the provider handles a completion.
const QUEUE_NS: u64 = 20_000;

/// The requests of a lane that are not posted yet, and the bytes of those that the adapter holds.
#[derive(Debug, Default)]
pub(super) struct FlowQueue {
    pub(super) backlog: Backlog<PostedRequest>,
    /// Lengths in bytes of the posted requests that have not completed, and the times at which they were posted, in
    /// order.
    posted: VecDeque<(u64, u64)>,
    bytes: u64,
    /// The smallest time from a post to the completion; `None` before the first completion.
    round_trip_ns: Option<u64>,
}

impl FlowQueue {
    /// Returns true if the adapter may get another request.
    fn has_room(&self, profile: &Profile) -> bool {
        self.round_trip_ns.is_none_or(|round_trip_ns| {
            self.bytes < profile.bandwidth_bytes_per_us * (QUEUE_NS + round_trip_ns) / 1_000
        })
    }

    /// Returns true if a request of `flow` must wait. Requests of flow 0 never wait.
    pub(super) fn must_wait(&self, flow: u32, profile: &Profile) -> bool {
        flow != 0 && !(self.backlog.is_empty() && self.has_room(profile))
    }

    pub(super) fn on_posted(&mut self, now_ns: u64, bytes: u64) {
        self.posted.push_back((bytes, now_ns));
        self.bytes += bytes;
    }

    /// Records that all but the last `outstanding` posted requests have completed.
    fn on_completed(&mut self, now_ns: u64, outstanding: usize) {
        while self.posted.len() > outstanding {
            let Some((bytes, at_ns)) = self.posted.pop_front() else { return };
            self.bytes -= bytes;
            let round_trip_ns = now_ns - at_ns;
            self.round_trip_ns = Some(self.round_trip_ns.map_or(round_trip_ns, |ns| ns.min(round_trip_ns)));
        }
    }
}

impl Net {
    /// Posts requests of the backlog for which completions have made room.
    pub(super) fn post_from_backlog(&mut self, qp: u32) {
        let now_ns = self.now_ns;
        let profile = self.hardware.profile(self.ends[self.end_of(qp)].reach);
        let Some(lane) = self.lanes[qp as usize].as_deref_mut() else { return };
        lane.flow_queue.on_completed(now_ns, lane.posted());
        let mut posted = 0;
        while !lane.has_ended() && lane.flow_queue.has_room(profile) {
            let divide = |_: &mut PostedRequest| unreachable!("no request is divisible");
            let Some(request) = lane.flow_queue.backlog.pop(u64::MAX, divide) else { break };
            lane.post_to_adapter(now_ns, profile, request);
            posted += 1;
        }
        if posted > 0 {
            self.ring_lane(qp, posted);
        }
    }
}
