//! Estimates the bandwidth-delay product of a path: the number of packets that the path holds at the current rate of
//! delivery.
//!
//! The peer's grant is the number of packets for which its receive buffer has room. On a long path, most packets in
//! flight are not in that buffer but on the path. So the requester may send the estimated number of packets in addition
//! to the grant. Each round trip in which a whole window arrives enlarges the next window by one grant, until the
//! slowest link is saturated. From then on, at most one grant of packets queues before that link, and later fewer
//! ([`super::surplus`]).
//!
//! The smallest round-trip time excludes queueing. To measure this time again, the window shrinks to a quarter of
//! the estimate for two round trips every [`WINDOW_NS`], so that the queue drains.

/// Minimum length of a measurement round, in ns. Within shorter rounds, arrivals come in bursts.
const ROUND_NS_MIN: u64 = 1_000_000;
/// Number of rounds; the largest of their values is the estimate.
const ROUNDS: usize = 8;
/// Interval between measurements of the smallest round trip, in ns; a measurement counts for two intervals.
const WINDOW_NS: u64 = 5_000_000_000;

/// The smallest sample of the current and of the previous window. The larger one of each two consecutive samples
/// counts, because a path may deliver a single packet early.
#[derive(Debug, Default)]
pub(super) struct WindowedMin {
    ns: [Option<u64>; 2],
    last_ns: u64,
    window_begin_ns: Option<u64>,
}

impl WindowedMin {
    pub fn min_ns(&self) -> Option<u64> {
        self.ns.into_iter().flatten().min()
    }

    /// Adds a time. Returns true if a new window begins, except for the first window.
    pub fn add(&mut self, now_ns: u64, sample_ns: Option<u64>) -> bool {
        if let Some(sample_ns) = sample_ns {
            let larger_ns = sample_ns.max(std::mem::replace(&mut self.last_ns, sample_ns));
            self.ns[0] = Some(self.ns[0].map_or(larger_ns, |ns| ns.min(larger_ns)));
        }
        let window_begin_ns = *self.window_begin_ns.get_or_insert(now_ns);
        let is_next = now_ns.saturating_sub(window_begin_ns) >= WINDOW_NS;
        if is_next {
            self.window_begin_ns = Some(now_ns);
            self.ns = [None, self.ns[0]];
        }
        is_next
    }
}

/// The estimate of the bandwidth-delay product.
#[derive(Debug, Default)]
pub(super) struct Bdp {
    trips: WindowedMin,
    /// End of the time in which the queue drains, in ns.
    drain_end_ns: u64,
    is_draining: bool,
    round_begin_ns: u64,
    arrived: u32,
    /// True if the window or the pace has held packets back in this round. Otherwise, the sender may have had too
    /// little to send, so an arrival rate below the estimate shows nothing.
    was_limited: bool,
    /// Estimates of the last rounds, newest first, in packets.
    rounds: [u32; ROUNDS],
}

impl Bdp {
    /// Returns the number of packets that may be in flight beyond the peer's grant: none while the queue drains.
    pub fn packets(&self) -> u32 {
        if self.is_draining { 0 } else { self.estimate() }
    }

    /// Returns the estimate in packets, also while the queue drains, and the smallest round trip in ns; `None` before
    /// the first measurement.
    pub fn product(&self) -> Option<(u32, u64)> {
        Some((self.estimate(), self.trips.min_ns()?))
    }

    /// Records that the window or the pace holds packets back.
    pub fn on_limited(&mut self) {
        self.was_limited = true;
    }

    fn estimate(&self) -> u32 {
        self.rounds.into_iter().max().unwrap_or(0)
    }

    /// Returns the maximum number of packets in flight while the queue drains, and `None` at other times.
    pub fn drain_limit(&self) -> Option<u32> {
        self.is_draining.then(|| (self.estimate() / 4).max(1))
    }

    /// Records that `arrived` further packets have arrived. `trip_ns` is a sample of the round-trip time; `None` if the
    /// arrival gives no sample.
    pub fn on_arrived(&mut self, now_ns: u64, arrived: u32, trip_ns: Option<u64>) {
        let is_next = self.trips.add(now_ns, trip_ns);
        let Some(trip_ns) = self.trips.min_ns() else { return };
        if is_next {
            self.drain_end_ns = now_ns.saturating_add(2 * trip_ns + ROUND_NS_MIN);
        }
        self.is_draining = now_ns < self.drain_end_ns;
        if self.is_draining {
            (self.arrived, self.round_begin_ns) = (0, now_ns);
            return;
        }
        self.arrived = self.arrived.saturating_add(arrived);
        let elapsed_ns = now_ns.saturating_sub(self.round_begin_ns);
        if elapsed_ns >= trip_ns.max(ROUND_NS_MIN) {
            let packets = (u128::from(self.arrived) * u128::from(trip_ns) / u128::from(elapsed_ns)) as u32;
            if self.was_limited || packets > self.estimate() {
                self.rounds.rotate_right(1);
                self.rounds[0] = packets;
            }
            (self.arrived, self.was_limited, self.round_begin_ns) = (0, false, now_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Reports the arrival of 40 packets in each ms, over a path with the round trip `trip_ns`.
    fn add_arrivals(bdp: &mut Bdp, ms: std::ops::Range<u64>, trip_ns: u64) {
        for ms in ms {
            bdp.on_limited();
            bdp.on_arrived(ms * MS, 40, Some(trip_ns));
        }
    }

    #[test]
    fn estimate_follows_the_round_trip_within_two_windows() {
        let mut bdp = Bdp::default();
        add_arrivals(&mut bdp, 1..100, 20 * MS);
        assert_eq!(bdp.packets(), 800);
        // A queue lengthens the round trip, not the path.
        add_arrivals(&mut bdp, 100..4_000, 26 * MS);
        assert_eq!(bdp.packets(), 800);
        add_arrivals(&mut bdp, 4_000..16_000, 50 * MS);
        assert_eq!(bdp.packets(), 2000);
    }

    #[test]
    fn no_packet_exceeds_the_grant_while_the_queue_drains() {
        let mut bdp = Bdp::default();
        add_arrivals(&mut bdp, 1..5_001, 20 * MS);
        assert_eq!(bdp.packets(), 800);
        add_arrivals(&mut bdp, 5_001..5_030, 20 * MS);
        assert_eq!(bdp.packets(), 0);
        add_arrivals(&mut bdp, 5_030..5_100, 20 * MS);
        assert_eq!(bdp.packets(), 800);
    }
}
