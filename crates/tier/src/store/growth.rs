//! Growth of the arena: how much memory to request from the operating system, and when to retry.
//!
//! If the operating system refuses a segment, the next request is half as long, down to [`SEGMENT_BYTES_MIN`]. If the
//! system refuses that length too, the arena does not grow for 0.1 to 10 s. The next allocation after that requests the
//! full length again.

/// Minimum length of a segment after halving.
const SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// Initial and maximum wait after the system has refused the shortest segment.
const PATIENCE_NS_MIN: u64 = 100_000_000;
const PATIENCE_NS_MAX: u64 = 10_000_000_000;

/// The state of growth; see the module's documentation.
#[derive(Debug)]
pub(super) struct Growth {
    /// Normal length of segments.
    usual_bytes: u64,
    /// Length of segments after a longer one was refused; `None` if no segment was refused.
    reduced_bytes: Option<u64>,
    /// The request in flight.
    requested: Option<SegmentRequest>,
    /// Earliest time of the next request, after the system has refused the shortest segment.
    refused_until_ns: Option<u64>,
    patience_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct SegmentRequest {
    bytes: u64,
    /// Minimum length that serves the allocation.
    bytes_min: u64,
}

impl Growth {
    pub(super) fn new(usual_bytes: u64) -> Growth {
        Growth {
            usual_bytes,
            reduced_bytes: None,
            requested: None,
            refused_until_ns: None,
            patience_ns: PATIENCE_NS_MIN,
        }
    }

    /// Returns true if a request to the system is allowed now.
    pub(super) fn is_open(&self, now_ns: u64) -> bool {
        self.refused_until_ns.is_none_or(|until_ns| until_ns <= now_ns)
    }

    /// Returns true if the system has refused the shortest segment most recently.
    pub(super) fn is_refused(&self) -> bool {
        self.refused_until_ns.is_some()
    }

    /// Requests a segment, and returns its length, or `None` if a request is in flight. The length is the usual length
    /// rounded up to a chunk, or the reduced length; at least `bytes_min` unless `bytes_max` is less.
    pub(super) fn request(&mut self, chunk_bytes: u64, bytes_min: u64, bytes_max: u64) -> Option<u64> {
        if self.requested.is_some() {
            return None;
        }
        let wanted = match self.reduced_bytes {
            Some(reduced) => reduced.max(bytes_min),
            None => self.usual_bytes.max(chunk_bytes),
        };
        let bytes = wanted.min(bytes_max);
        self.requested = Some(SegmentRequest { bytes, bytes_min });
        Some(bytes)
    }

    pub(super) fn handle_granted(&mut self) {
        *self = Growth { reduced_bytes: self.reduced_bytes, ..Growth::new(self.usual_bytes) };
    }

    pub(super) fn handle_refused(&mut self, now_ns: u64) {
        let Some(requested) = self.requested.take() else { return };
        let floor = SEGMENT_BYTES_MIN.max(requested.bytes_min);
        if requested.bytes > floor {
            self.reduced_bytes = Some((requested.bytes / 2).max(floor));
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

    /// The lengths requested from a system that grants at most `given` bytes, until it grants one or growth stops.
    fn requested(growth: &mut Growth, given: u64, bytes_min: u64) -> Vec<u64> {
        let mut requested = Vec::new();
        while growth.is_open(0) {
            requested.extend(growth.request(4096, bytes_min, u64::MAX));
            if requested.last() <= Some(&given) {
                growth.handle_granted();
                break;
            }
            growth.handle_refused(0);
        }
        requested
    }

    #[test]
    fn refused_segments_are_halved() {
        let mut growth = Growth::new(16 * MIB);
        assert_eq!(requested(&mut growth, 5 * MIB, 1), [16 * MIB, 8 * MIB, 4 * MIB]);
        assert_eq!(requested(&mut growth, 5 * MIB, 1), [4 * MIB]);
        assert!(!growth.is_refused());
    }

    #[test]
    fn refusals_back_off_then_full_length_returns() {
        let mut growth = Growth::new(4 * MIB);
        assert_eq!(requested(&mut growth, 0, 1), [4 * MIB, 2 * MIB, MIB]);
        assert!(growth.is_refused() && !growth.is_open(PATIENCE_NS_MIN - 1));
        assert!(growth.is_open(PATIENCE_NS_MIN));
        for _ in 0..3 {
            growth.request(4096, 1, 1);
            growth.handle_refused(0);
        }
        assert!(!growth.is_open(7 * PATIENCE_NS_MIN) && growth.is_open(8 * PATIENCE_NS_MIN));
        assert_eq!(growth.request(4096, 1, u64::MAX), Some(4 * MIB));
        growth.handle_granted();
        assert!(!growth.is_refused());
    }
}
