//! Round-trip estimation and the retransmission timeout.

/// Minimum timeout between Halite peers, in ns: two and a half times the default `ack_delay` of 500 us.
const WAIT_NS_MIN: u64 = 1_250_000;

/// Maximum timeout in ns; it bounds the time until a requester notices a restored link.
const WAIT_NS_MAX: u64 = 200_000_000;

/// Estimates the round-trip time from packets that request a response and were sent only once.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundTrip {
    smoothed_ns: Option<u64>,
    min_ns: Option<u64>,
    /// The packet being timed, and its send time.
    timed: Option<(u64, u64)>,
}

impl RoundTrip {
    /// Starts to time a new packet that requests a response, unless another packet is being timed.
    pub fn begin(&mut self, now_ns: u64, sequence: u64) {
        self.timed.get_or_insert((sequence, now_ns));
    }

    /// Takes a sample if the timed packet has been acknowledged, that is, has a number below `una`.
    pub fn end(&mut self, now_ns: u64, una: u64) {
        if let Some((sequence, since)) = self.timed
            && sequence < una
        {
            self.timed = None;
            self.add_sample(now_ns.saturating_sub(since));
        }
    }

    pub fn add_sample(&mut self, sample_ns: u64) {
        self.smoothed_ns = Some(self.smoothed_ns.map_or(sample_ns, |old| old - old / 8 + sample_ns / 8));
        self.min_ns = Some(self.min_ns.map_or(sample_ns, |min| min.min(sample_ns)));
    }

    /// Returns the smallest sample in ns; 0 before the first sample.
    pub fn min_ns(&self) -> u64 {
        self.min_ns.unwrap_or(0)
    }

    /// Stops timing, because the requester does not know which copy of a retransmitted packet a response answers
    /// (Karn's algorithm).
    pub fn cancel(&mut self) {
        self.timed = None;
    }

    /// Returns the smoothed round-trip time in ns; `None` before the first sample.
    pub fn smoothed_ns(&self) -> Option<u64> {
        self.smoothed_ns
    }

    /// Returns the retransmission timeout after `attempts` consecutive timeouts.
    // [ROCE-TIME-1]
    pub fn wait_ns(&self, attempts: u32) -> u64 {
        let first = self.smoothed_ns.map_or(WAIT_NS_MIN, |ns| (ns.saturating_mul(5) / 2).max(WAIT_NS_MIN));
        first.saturating_mul(1 << attempts.min(20)).min(WAIT_NS_MAX.max(first))
    }
}
