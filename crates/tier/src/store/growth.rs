//! By how much the arena grows next, and when it may be tried again.
//!
//! Where the system refuses a segment, half of it is tried, down to [`SEGMENT_BYTES_MIN`].  When even that is refused, the
//! arena stays as it is for a while; then the next allocation that needs more tries it all again.

/// No segment is made smaller because a larger one was refused.
const SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// How long the system is left alone after it has refused everything, at first and at most.
const PATIENCE_NS_MIN: u64 = 100_000_000;
const PATIENCE_NS_MAX: u64 = 10_000_000_000;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Growth {
    /// How long segments are where the system gives them.
    usual_bytes: u64,
    /// How long they are since it refused a longer one.
    reduced_bytes: Option<u64>,
    /// What was asked for, while that is under way.
    asked: Option<SegmentRequest>,
    /// When the system may be asked again; it has refused everything.
    refused_until_ns: Option<u64>,
    patience_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct SegmentRequest {
    bytes: u64,
    /// A shorter segment would be of no use to who asked.
    least: u64,
}

impl Growth {
    pub(super) fn new(usual_bytes: u64) -> Growth {
        Growth {
            usual_bytes,
            reduced_bytes: None,
            asked: None,
            refused_until_ns: None,
            patience_ns: PATIENCE_NS_MIN,
        }
    }

    /// Whether the system may be asked.
    pub(super) fn is_open(&self, now_ns: u64) -> bool {
        self.refused_until_ns.is_none_or(|until_ns| until_ns <= now_ns)
    }

    /// Whether the system refused everything when it was last asked.
    pub(super) fn is_refused(&self) -> bool {
        self.refused_until_ns.is_some()
    }

    /// Asks for a segment, unless one is under way: of the usual length, for whole chunks, where there is no reason to
    /// ask for less; for `least` bytes at least and `most` at most.
    pub(super) fn ask(&mut self, chunk_bytes: u64, least: u64, most: u64) -> Option<u64> {
        if self.asked.is_some() {
            return None;
        }
        let wanted = match self.reduced_bytes {
            Some(reduced) => reduced.max(least),
            None => self.usual_bytes.max(chunk_bytes),
        };
        let bytes = wanted.min(most);
        self.asked = Some(SegmentRequest { bytes, least });
        Some(bytes)
    }

    pub(super) fn handle_given(&mut self) {
        *self = Growth { reduced_bytes: self.reduced_bytes, ..Growth::new(self.usual_bytes) };
    }

    pub(super) fn handle_refused(&mut self, now_ns: u64) {
        let Some(asked) = self.asked.take() else { return };
        let floor = SEGMENT_BYTES_MIN.max(asked.least);
        if asked.bytes > floor {
            self.reduced_bytes = Some((asked.bytes / 2).max(floor));
        } else {
            self.reduced_bytes = None;
            self.refused_until_ns = Some(now_ns.saturating_add(self.patience_ns));
            self.patience_ns = (2 * self.patience_ns).min(PATIENCE_NS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// What is asked for of a system that gives segments of at most `given` bytes, until one is given or none is left
    /// to ask for.
    fn asked(growth: &mut Growth, given: u64, least: u64) -> Vec<u64> {
        let mut asked = Vec::new();
        while growth.is_open(0) {
            asked.extend(growth.ask(4096, least, u64::MAX));
            if asked.last() <= Some(&given) {
                growth.handle_given();
                break;
            }
            growth.handle_refused(0);
        }
        asked
    }

    #[test]
    fn halves_are_tried_until_one_is_given_and_stay_in_use() {
        let mut growth = Growth::new(16 * MIB);
        assert_eq!(asked(&mut growth, 5 * MIB, 1), [16 * MIB, 8 * MIB, 4 * MIB]);
        assert_eq!(asked(&mut growth, 5 * MIB, 1), [4 * MIB]);
        assert!(!growth.is_refused());
    }

    #[test]
    fn who_is_refused_everything_waits_ever_longer_and_then_asks_for_all_again() {
        let mut growth = Growth::new(4 * MIB);
        assert_eq!(asked(&mut growth, 0, 1), [4 * MIB, 2 * MIB, MIB]);
        assert!(growth.is_refused() && !growth.is_open(PATIENCE_NS_MIN - 1));
        assert!(growth.is_open(PATIENCE_NS_MIN));
        for _ in 0..3 {
            growth.ask(4096, 1, 1);
            growth.handle_refused(0);
        }
        assert!(!growth.is_open(7 * PATIENCE_NS_MIN) && growth.is_open(8 * PATIENCE_NS_MIN));
        assert_eq!(growth.ask(4096, 1, u64::MAX), Some(4 * MIB));
        growth.handle_given();
        assert!(!growth.is_refused());
    }

    #[test]
    fn less_than_is_of_use_is_not_asked_for() {
        let mut growth = Growth::new(16 * MIB);
        assert_eq!(asked(&mut growth, 0, 6 * MIB), [16 * MIB, 8 * MIB, 6 * MIB]);
        let mut growth = Growth::new(MIB);
        assert_eq!(growth.ask(4 * MIB, 1, u64::MAX), Some(4 * MIB), "a whole chunk");
        assert_eq!(growth.ask(4 * MIB, 1, u64::MAX), None, "one is under way");
    }
}
