//! Spaces packets evenly, in small bursts, because a whole window at once would fill queues in the network.

/// Pace relative to one window per round trip; above 1, so that pacing does not keep the window from filling.
const PACE_GAIN: f64 = 1.25;
/// Maximum burst in packets: a train of 64 KiB of the longest packets.
pub(crate) const BURST_PACKETS: u32 = 16;
/// Minimum time covered by one burst, in ns, so that sleeps between bursts are not shorter.
const BURST_NS: f64 = 50_000.0;
/// A burst may cover up to the round trip divided by this, to compensate for a late wake-up.
const BURST_TRIP_DIVISOR: f64 = 4.0;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pacer {
    /// Time at which the next packet is due at an even pace.
    due_ns: u64,
}

impl Pacer {
    /// Returns the time at which the next packet may be sent; `None` if the next packet may be sent now. `window` is in
    /// packets.
    pub fn wait_until(&self, now_ns: u64, window: f64, trip_ns: u64) -> Option<u64> {
        let burst_ns = match window < 1.0 {
            true => 0.0,
            false => (interval_ns(window, trip_ns) * f64::from(BURST_PACKETS))
                .max(BURST_NS)
                .max(trip_ns as f64 / BURST_TRIP_DIVISOR),
        };
        let at_ns = self.due_ns.saturating_sub(burst_ns as u64);
        (at_ns > now_ns).then_some(at_ns)
    }

    /// Records `packets` sent packets; for a read, the number of response packets that the read requests.
    pub fn on_sent(&mut self, now_ns: u64, packets: u32, window: f64, trip_ns: u64) {
        self.due_ns = self.due_ns.max(now_ns) + (f64::from(packets) * interval_ns(window, trip_ns)) as u64;
    }
}

fn interval_ns(window: f64, trip_ns: u64) -> f64 {
    let gain = if window < 1.0 { 1.0 } else { PACE_GAIN };
    trip_ns as f64 / (window * gain)
}
