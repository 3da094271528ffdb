//! Spaces packets evenly, in small bursts, because a whole window at once would fill queues in the network.

/// Pace relative to one congestion window per round trip; above 1, so that pacing does not keep the window from
/// filling.
const WINDOW_GAIN: f64 = 1.25;
/// Maximum burst in packets: a train of 64 KiB of the longest packets.
pub(crate) const BURST_PACKETS: u32 = 16;
/// Minimum time covered by one burst, in ns, so that sleeps between bursts are not shorter.
const BURST_NS: f64 = 50_000.0;
/// A burst may cover up to the round trip divided by this, to compensate for a late wake-up. A controller shrinks the
/// window if the burst fills a queue; without one, the burst must find room behind a whole grant.
const BURST_DIVISOR_WINDOW: f64 = 4.0;
const BURST_DIVISOR_PATH: f64 = 16.0;

/// The rate and burst length at which packets are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Time from one packet to the next.
    interval_ns: f64,
    /// Time that one burst covers.
    burst_ns: f64,
}

impl Pace {
    /// Returns the pace for a congestion window of `window` packets.
    pub fn of_window(window: f64, trip_ns: u64) -> Pace {
        let trip_ns = trip_ns as f64;
        match window < 1.0 {
            true => Pace { interval_ns: trip_ns / window, burst_ns: 0.0 },
            false => Pace::with_burst(trip_ns / (window * WINDOW_GAIN), trip_ns / BURST_DIVISOR_WINDOW),
        }
    }

    /// Returns the pace of a path without congestion control: as many packets per round trip as may be in flight.
    pub fn of_path(packets: u32, trip_ns: u64) -> Pace {
        let trip_ns = trip_ns as f64;
        Pace::with_burst(trip_ns / f64::from(packets), trip_ns / BURST_DIVISOR_PATH)
    }

    /// Returns a pace whose bursts cover `burst_ns`, or more if needed for [`BURST_PACKETS`] or [`BURST_NS`].
    fn with_burst(interval_ns: f64, burst_ns: f64) -> Pace {
        let burst_ns = burst_ns.max(interval_ns * f64::from(BURST_PACKETS)).max(BURST_NS);
        Pace { interval_ns, burst_ns }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pacer {
    /// Time at which the next packet is due at an even pace.
    due_ns: u64,
}

impl Pacer {
    /// Returns the time at which the next packet may be sent; `None` if the next packet may be sent now.
    pub fn wait_until(&self, now_ns: u64, pace: Pace) -> Option<u64> {
        let release_ns = self.due_ns.saturating_sub(pace.burst_ns as u64);
        (release_ns > now_ns).then_some(release_ns)
    }

    /// Records that `packets` packets were sent. A read counts as the response packets that it requests.
    pub fn on_sent(&mut self, now_ns: u64, packets: u32, pace: Pace) {
        self.due_ns = self.due_ns.max(now_ns) + (f64::from(packets) * pace.interval_ns) as u64;
    }
}
