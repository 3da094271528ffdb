//! How long a round trip takes, and from that, how long to wait before something is sent again.

/// The least that a requester waits between our own ends: two and a half times as long as a receiver keeps an acknowledgement back.
const WAIT_NS_MIN: u64 = 1_250_000;

/// The most, so that a link that comes back is found soon.
const WAIT_NS_MAX: u64 = 200_000_000;

/// Measured on packets that asked for an answer, and were sent once.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundTrip {
    smoothed_ns: Option<u64>,
    least_ns: Option<u64>,
    /// The packet that is being timed, and when it left.
    timed: Option<(u64, u64)>,
}

impl RoundTrip {
    /// A packet leaves for the first time, and asks for an answer.
    pub fn begin(&mut self, now_ns: u64, sequence: u64) {
        self.timed.get_or_insert((sequence, now_ns));
    }

    /// All up to `una` has been answered.
    pub fn end(&mut self, now_ns: u64, una: u64) {
        if let Some((sequence, since)) = self.timed
            && sequence < una
        {
            self.timed = None;
            self.note(now_ns.saturating_sub(since));
        }
    }

    /// One was measured.
    pub fn note(&mut self, sample_ns: u64) {
        self.smoothed_ns = Some(self.smoothed_ns.map_or(sample_ns, |old| old - old / 8 + sample_ns / 8));
        self.least_ns = Some(self.least_ns.map_or(sample_ns, |least| least.min(sample_ns)));
    }

    /// The least there was; 0 before.
    pub fn least_ns(&self) -> u64 {
        self.least_ns.unwrap_or(0)
    }

    /// Something is sent again, so that nobody knows which copy is answered.
    pub fn give_up(&mut self) {
        self.timed = None;
    }

    /// Smoothed, once there was a sample.
    pub fn smoothed_ns(&self) -> Option<u64> {
        self.smoothed_ns
    }

    /// How long to wait when it has been waited `attempts` times in vain.
    // [ROCE-TIME-1]
    pub fn wait_ns(&self, attempts: u32) -> u64 {
        let first = self.smoothed_ns.map_or(WAIT_NS_MIN, |ns| (ns.saturating_mul(5) / 2).max(WAIT_NS_MIN));
        first.saturating_mul(1 << attempts.min(20)).min(WAIT_NS_MAX.max(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_call_is_repaired_within_two_milliseconds_or_four_round_trips() {
        for trip in [10_000, 400_000, 500_000, 600_000, 1_000_000, 20_000_000] {
            let mut measured = RoundTrip::default();
            measured.begin(0, 1);
            measured.end(trip, 2);
            // There and back, to hear what is missing, and there again.
            let repaired = measured.wait_ns(0) + trip / 2 * 3;
            assert!(repaired <= (4 * trip).max(2_000_000), "{trip}: {repaired}");
            assert!(measured.wait_ns(0) > trip + 500_000, "a late acknowledgement is no loss");
        }
    }

    #[test]
    fn who_does_not_answer_is_asked_more_and_more_rarely() {
        let unmeasured = RoundTrip::default();
        let waits: Vec<u64> = (0..30).map(|attempts| unmeasured.wait_ns(attempts)).collect();
        assert_eq!(&waits[..3], [WAIT_NS_MIN, 2 * WAIT_NS_MIN, 4 * WAIT_NS_MIN]);
        assert!(waits.is_sorted() && waits[29] == WAIT_NS_MAX);
    }
}
