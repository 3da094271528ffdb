//! Round-trip estimation and the retransmission timeout.

/// Minimum timeout between Halite peers, in ns: two and a half times the default `ack_delay` of 500 us.
const TIMEOUT_NS_MIN: u64 = 1_250_000;

/// Maximum timeout in ns; it bounds the time until a requester notices a restored link.
pub(crate) const TIMEOUT_NS_MAX: u64 = 200_000_000;

/// Maximum bound of the round trip in ns, so that a heavy loss or an outage does not count as a long path.
pub(crate) const BOUND_NS_MAX: u64 = 500_000_000;

/// Number of timeouts without a sample between them that indicates a longer path rather than losses.
const TIMEOUTS_FOR_LONGER_PATH: u32 = 3;

/// Maximum time between packets that request a response, in ns, so that the estimate follows the path.
const SAMPLE_INTERVAL_NS_MAX: u64 = 1_000_000_000;

/// Estimates the round-trip time from packets that request a response and were sent only once. A response to a packet
/// sent several times gives an upper bound, because it may answer any copy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrip {
    smoothed_ns: Option<u64>,
    min_ns: Option<u64>,
    /// The last sample, or an upper bound if `is_bound` is true. If the path has become longer than the timeout, each
    /// packet is sent several times, so there are no samples until the timeout has followed this bound.
    last_ns: u64,
    is_bound: bool,
    /// Timeouts since the last sample, or since the bound was raised.
    timeouts: u32,
    /// The sample or bound before the last one.
    previous_ns: u64,
    /// Send time of the last packet that requested a response or, before that, of the first packet.
    requested_ns: Option<u64>,
    /// The packet being timed, and its send time.
    timed: Option<(u64, u64)>,
}

impl RoundTrip {
    /// Starts to time a packet that requests a response and is sent for the first time, unless another packet is being
    /// timed.
    pub fn start_timing(&mut self, now_ns: u64, sequence: u64) {
        self.timed.get_or_insert((sequence, now_ns));
    }

    /// Takes a sample if the timed packet has been acknowledged, that is, has a number below `una`.
    pub fn finish_timing(&mut self, now_ns: u64, una: u64) {
        if let Some((sequence, sent_ns)) = self.timed
            && sequence < una
        {
            self.timed = None;
            self.add_sample(now_ns.saturating_sub(sent_ns));
        }
    }

    pub fn add_sample(&mut self, sample_ns: u64) {
        self.smoothed_ns = Some(self.smoothed_ns.map_or(sample_ns, |old| old - old / 8 + sample_ns / 8));
        self.min_ns = Some(self.min_ns.map_or(sample_ns, |min| min.min(sample_ns)));
        (self.previous_ns, self.last_ns) = (self.last_ns, sample_ns);
        (self.is_bound, self.timeouts) = (false, 0);
    }

    /// Adds an upper bound of the round trip, in ns, at the end of a silence of `attempts` timeouts. The bound holds
    /// until the next sample; the first bound is also the first estimate. Without a sample in between, a further bound
    /// may only be lower, because successive losses would otherwise raise the bound without limit. After
    /// [`TIMEOUTS_FOR_LONGER_PATH`] timeouts, it may be higher, because the path has probably become longer again.
    pub fn add_bound(&mut self, ns: u64, attempts: u32) {
        self.timeouts += attempts;
        let is_raised = !self.is_bound || self.timeouts >= TIMEOUTS_FOR_LONGER_PATH;
        self.previous_ns = self.last_ns;
        self.last_ns = ns.min(if is_raised { BOUND_NS_MAX } else { self.last_ns });
        self.is_bound = true;
        if is_raised {
            self.timeouts = 0;
        }
        self.smoothed_ns.get_or_insert(self.last_ns);
    }

    /// Adopts an upper bound of the round trip, in ns, until the first sample or response.
    pub fn set_initial_bound(&mut self, ns: u64) {
        self.last_ns = ns.min(BOUND_NS_MAX);
    }

    /// Returns the last sample or upper bound in ns, if there is one.
    pub fn bound_ns(&self) -> Option<u64> {
        Some(self.last_ns).filter(|ns| *ns > 0)
    }

    /// Returns the current round-trip time in ns; `None` before the first sample. This is the median of the smoothed
    /// time and the last two samples or bounds. So the result follows a changed path faster than the smoothed time, and
    /// a single outlier has no effect.
    pub fn current_ns(&self) -> Option<u64> {
        let (low, high) = (self.previous_ns.min(self.last_ns), self.previous_ns.max(self.last_ns));
        self.smoothed_ns.map(|ns| ns.clamp(low, high))
    }

    /// Returns true if the next packet must request a response, because the last request for one is too old.
    pub fn needs_sample(&mut self, now_ns: u64) -> bool {
        now_ns.saturating_sub(*self.requested_ns.get_or_insert(now_ns)) >= SAMPLE_INTERVAL_NS_MAX
    }

    /// Records that a packet that requests a response was sent.
    pub fn on_response_requested(&mut self, now_ns: u64) {
        self.requested_ns = Some(now_ns);
    }

    /// Returns the smallest sample in ns; 0 before the first sample.
    pub fn min_ns(&self) -> u64 {
        self.min_ns.unwrap_or(0)
    }

    /// Stops timing, because the requester does not know which copy of a retransmitted packet a response answers
    /// (Karn's algorithm).
    pub fn cancel_timing(&mut self) {
        self.timed = None;
    }

    /// Returns the smoothed round-trip time in ns; `None` before the first sample.
    pub fn smoothed_ns(&self) -> Option<u64> {
        self.smoothed_ns
    }

    /// Returns the retransmission timeout after `attempts` consecutive timeouts.
    // [ROCE-TIME-1]
    pub fn timeout_ns(&self, attempts: u32) -> u64 {
        let smoothed_ns = self.smoothed_ns.unwrap_or(0);
        let first = (smoothed_ns.saturating_mul(5) / 2)
            .max(self.last_ns.saturating_add(self.last_ns / 4))
            .max(TIMEOUT_NS_MIN);
        first.saturating_mul(1 << attempts.min(20)).min(TIMEOUT_NS_MAX.max(first))
    }
}
