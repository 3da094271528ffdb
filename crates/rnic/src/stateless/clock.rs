//! An estimate of a responder's clock, kept by the process of its requesters.

/// An estimate of a stateless responder's clock, extrapolated from the stamp of its last answer; see [`super`].
///
/// A process keeps one `ServerClock` per responder, shared by all of its requesters, so that a requester that sends
/// rarely also has a current stamp. The estimate is late by the time that the last answer took. It is early only if the
/// two clocks run at different rates.
#[derive(Clone, Copy, Default, Debug)]
pub struct ServerClock {
    last: Option<Last>,
    /// Smoothed round trip in ns, and its mean deviation.
    round_trip_ns: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    stamp_ns: u64,
    heard_ns: u64,
}

/// Timeout before the first round trip is measured, and the minimum of later timeouts, in ns.
const TIMEOUT_NS: u64 = 5_000_000;
const TIMEOUT_NS_MIN: u64 = 1_250_000;

impl ServerClock {
    /// Sets an upper bound of the round trip in ns, for the timeouts before the first measurement.
    pub fn expect_round_trip(&mut self, ns: u64) {
        self.round_trip_ns.get_or_insert((ns, 0));
    }

    /// Returns the smoothed round trip in ns, or its upper bound; `None` if neither is known.
    pub fn round_trip_ns(&self) -> Option<u64> {
        self.round_trip_ns.map(|(smooth, _)| smooth)
    }

    /// Returns the estimated time of the responder; `None` if no answer has arrived within the last `within_ns`.
    pub(super) fn now_ns(&self, now_ns: u64, within_ns: u64) -> Option<u64> {
        let last = self.last?;
        let since_ns = now_ns.saturating_sub(last.heard_ns);
        (since_ns <= within_ns).then(|| last.stamp_ns.saturating_add(since_ns))
    }

    /// Updates the estimate from an answer. `took_ns` is the round-trip time; `None` if the request was sent several
    /// times.
    pub(super) fn learn(&mut self, now_ns: u64, stamp_ns: u64, took_ns: Option<u64>) {
        // A late answer has an old stamp: it would set the clock back.
        let is_newer = self.now_ns(now_ns, u64::MAX).is_none_or(|known_ns| known_ns < stamp_ns);
        let is_stale = self.last.is_none_or(|last| now_ns.saturating_sub(last.heard_ns) > STALE_NS);
        if is_newer || is_stale {
            self.last = Some(Last { stamp_ns, heard_ns: now_ns });
        } else if let Some(last) = &mut self.last {
            // The answer only shows that the responder is alive: extrapolation continues from here.
            let stamp_ns = last.stamp_ns.saturating_add(now_ns.saturating_sub(last.heard_ns));
            *last = Last { stamp_ns, heard_ns: now_ns };
        }
        let Some(took_ns) = took_ns else { return };
        let (smooth, deviation) = self.round_trip_ns.unwrap_or((took_ns, took_ns / 2));
        let off = smooth.abs_diff(took_ns);
        self.round_trip_ns = Some(((7 * smooth + took_ns) / 8, (3 * deviation + off) / 4));
    }

    /// Returns the time in ns after which a packet is sent again; it doubles with each of the `attempts` made so far.
    pub(super) fn timeout_ns(&self, attempts: u32) -> u64 {
        let base = self.round_trip_ns.map_or(TIMEOUT_NS, |(smooth, deviation)| smooth + 4 * deviation);
        base.max(TIMEOUT_NS_MIN) << attempts.min(6)
    }
}

/// Time in ns without an answer after which a stamp sets the clock even backwards, because the two clocks' rates
/// differ.
const STALE_NS: u64 = 1_000_000_000;
