//! A responder's clock, as the process of its requesters knows it.

/// The last answer's stamp, and the time of that answer's arrival; see [`super`].
///
/// A process keeps one clock for each responder, for all requesters, so that a requester that sends rarely has a
/// current stamp. The extrapolated clock is late by the time that the last answer took, and never early, unless the
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

/// Timeout before a round trip was measured, and bounds of later ones, in ns.
const TIMEOUT_NS: u64 = 5_000_000;
const TIMEOUT_NS_MIN: u64 = 1_250_000;

impl ServerClock {
    /// Returns the responder's time; `None` if nothing was heard from it within `within_ns`.
    pub(super) fn now_ns(&self, now_ns: u64, within_ns: u64) -> Option<u64> {
        let last = self.last?;
        let since_ns = now_ns.saturating_sub(last.heard_ns);
        (since_ns <= within_ns).then(|| last.stamp_ns.saturating_add(since_ns))
    }

    /// Learns from an answer. `took_ns` is its round trip, if it was sent once.
    pub(super) fn learn(&mut self, now_ns: u64, stamp_ns: u64, took_ns: Option<u64>) {
        // A late answer has an old stamp: it would set the clock back.
        let is_newer = self.now_ns(now_ns, u64::MAX).is_none_or(|known_ns| known_ns < stamp_ns);
        let is_stale = self.last.is_none_or(|last| now_ns.saturating_sub(last.heard_ns) > STALE_NS);
        if is_newer || is_stale {
            self.last = Some(Last { stamp_ns, heard_ns: now_ns });
        } else if let Some(last) = &mut self.last {
            // Still heard: the extrapolated time continues from here.
            let stamp_ns = last.stamp_ns.saturating_add(now_ns.saturating_sub(last.heard_ns));
            *last = Last { stamp_ns, heard_ns: now_ns };
        }
        let Some(took_ns) = took_ns else { return };
        let (smooth, deviation) = self.round_trip_ns.unwrap_or((took_ns, took_ns / 2));
        let off = smooth.abs_diff(took_ns);
        self.round_trip_ns = Some(((7 * smooth + took_ns) / 8, (3 * deviation + off) / 4));
    }

    /// Returns the time after which a packet is sent again, for its `attempts`th time.
    pub(super) fn timeout_ns(&self, attempts: u32) -> u64 {
        let base = self.round_trip_ns.map_or(TIMEOUT_NS, |(smooth, deviation)| smooth + 4 * deviation);
        base.max(TIMEOUT_NS_MIN) << attempts.min(6)
    }
}

/// Time after which the clock is set even if the stamp is behind the extrapolated one, because rates differ.
const STALE_NS: u64 = 1_000_000_000;
