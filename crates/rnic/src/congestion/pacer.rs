//! Has packets leave evenly, a few at a time: a window that leaves at once fills the queues on the way, and so it stays.

/// How much faster than one window in a round trip, so that a window is used up.
const FASTER: f64 = 1.25;
/// Packets that may leave together: a train of 64 KiB of the longest.
const BURST_PACKETS: f64 = 16.0;
/// And whatever leaves in so long: no sleep is shorter.
const BURST_NS: f64 = 50_000.0;
/// And in such a part of a round trip: who slept for too long makes up for it.
const BURST_ONE_OF: f64 = 4.0;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pacer {
    /// When the last packet would have left, had they all left evenly.
    even_ns: u64,
}

impl Pacer {
    /// When the next packet may leave, if it may not now.
    pub fn wait_until(&self, now_ns: u64, window: f64, trip_ns: u64) -> Option<u64> {
        let burst_ns = match window < 1.0 {
            true => 0.0,
            false => (interval_ns(window, trip_ns) * BURST_PACKETS)
                .max(BURST_NS)
                .max(trip_ns as f64 / BURST_ONE_OF),
        };
        let at_ns = self.even_ns.saturating_sub(burst_ns as u64);
        (at_ns > now_ns).then_some(at_ns)
    }

    /// A packet leaves.
    pub fn note_sent(&mut self, now_ns: u64, window: f64, trip_ns: u64) {
        self.even_ns = self.even_ns.max(now_ns) + interval_ns(window, trip_ns) as u64;
    }
}

fn interval_ns(window: f64, trip_ns: u64) -> f64 {
    let faster = if window < 1.0 { 1.0 } else { FASTER };
    trip_ns as f64 / (window * faster)
}
