//! An estimate of a responder's clock, and of the round trip to it, kept by the process of its requesters.

use crate::round_trip::{RoundTrip, TIMEOUT_NS_MAX};

/// An estimate of a stateless responder's clock, extrapolated from the stamp of its last answer; see [`super`].
///
/// A process keeps one `ServerClock` per responder, shared by all of its requesters, so that a requester that sends
/// rarely also has a current stamp. The estimate is late by the time that the last answer took. It is early only if the
/// two clocks run at different rates.
#[derive(Clone, Copy, Default, Debug)]
pub struct ServerClock {
    last: Option<Last>,
    path: PathTime,
}

/// An estimate of a round trip, for timeouts.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct PathTime {
    trip: RoundTrip,
    /// Mean deviation of the round trip in ns.
    deviation_ns: u64,
    /// Time of the last answer to a packet that was sent once.
    sampled_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    stamp_ns: u64,
    heard_ns: u64,
}

/// Timeout before the first round trip is measured, and the minimum of later timeouts, in ns.
const TIMEOUT_NS: u64 = 5_000_000;
const TIMEOUT_NS_MIN: u64 = 1_250_000;
/// Time in ns without an answer after which a stamp may set the clock backwards, because the rates of the two clocks
/// differ.
const STALE_NS: u64 = 1_000_000_000;

impl ServerClock {
    /// Sets an upper bound of the round trip in ns, for the timeouts before the first measurement.
    pub fn expect_round_trip(&mut self, ns: u64) {
        if self.round_trip_ns().is_none() {
            self.path.trip.set_initial_bound(ns);
        }
    }

    /// Returns the smoothed round trip in ns, or its upper bound; `None` if neither is known.
    pub fn round_trip_ns(&self) -> Option<u64> {
        self.path.trip.smoothed_ns().or(self.path.trip.bound_ns())
    }

    /// Returns the estimated time of the responder; `None` if no answer has arrived within the last `within_ns`.
    pub(super) fn now_ns(&self, now_ns: u64, within_ns: u64) -> Option<u64> {
        let last = self.last?;
        let since_ns = now_ns.saturating_sub(last.heard_ns);
        (since_ns <= within_ns).then(|| last.stamp_ns.saturating_add(since_ns))
    }

    /// Updates the estimated time from an answer.
    pub(super) fn learn(&mut self, now_ns: u64, stamp_ns: u64) {
        // A late answer has an old stamp, and would set the clock backwards.
        let is_newer = self.now_ns(now_ns, u64::MAX).is_none_or(|known_ns| known_ns < stamp_ns);
        let is_stale = self.last.is_none_or(|last| now_ns.saturating_sub(last.heard_ns) > STALE_NS);
        if is_newer || is_stale {
            self.last = Some(Last { stamp_ns, heard_ns: now_ns });
        } else if let Some(last) = &mut self.last {
            // The answer only shows that the responder is alive: extrapolation continues from here.
            let stamp_ns = last.stamp_ns.saturating_add(now_ns.saturating_sub(last.heard_ns));
            *last = Last { stamp_ns, heard_ns: now_ns };
        }
    }

    /// Updates the estimated round trip; see [`PathTime::add_round_trip`].
    pub(super) fn add_round_trip(&mut self, now_ns: u64, sent_ns: u64, copies: u32) {
        self.path.add_round_trip(now_ns, sent_ns, copies);
    }

    /// Returns the time in ns after which a packet is sent again; see [`PathTime::timeout_ns`].
    pub(super) fn timeout_ns(&self, attempts: u32) -> u64 {
        self.path.timeout_ns(attempts)
    }
}

impl PathTime {
    /// Updates the estimated round trip from an answer that arrives now, to a packet of which `copies` were sent, the first
    /// at `sent_ns`. An answer to several copies may belong to any of them, so its time is only an upper bound. It matters
    /// if the round trip has become longer than the timeout: then every packet is retransmitted, and no sample follows.
    pub(super) fn add_round_trip(&mut self, now_ns: u64, sent_ns: u64, copies: u32) {
        let took_ns = now_ns.saturating_sub(sent_ns);
        if copies > 1 {
            if self.sampled_ns <= sent_ns {
                self.trip.add_bound(took_ns, copies - 1);
            }
            return;
        }
        self.deviation_ns = match self.trip.smoothed_ns() {
            Some(smooth_ns) => (3 * self.deviation_ns + smooth_ns.abs_diff(took_ns)) / 4,
            None => took_ns / 2,
        };
        self.trip.add_sample(took_ns);
        self.sampled_ns = now_ns;
    }

    /// Returns the time in ns after which a packet is sent again; it doubles with each of the `attempts` made so far.
    // [ROCE-STATELESS-5]
    pub(super) fn timeout_ns(&self, attempts: u32) -> u64 {
        // Half of the round trip allows for a host that runs late, where measurements hardly deviate.
        let measured = self.trip.smoothed_ns().map(|ns| ns + (4 * self.deviation_ns).max(ns / 2));
        let bound = self.trip.bound_ns().map(|ns| ns + ns / 4);
        let base = measured.max(bound).unwrap_or(TIMEOUT_NS);
        let base = base.max(TIMEOUT_NS_MIN);
        (base << attempts.min(6)).min(TIMEOUT_NS_MAX.max(base))
    }
}
