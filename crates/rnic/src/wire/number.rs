//! Queue pair numbers and packet sequence numbers, which have 24 bits on the wire.

const MASK: u32 = 0xff_ffff;

/// Maximum distance, in packets, of an accepted packet's sequence number from the expected number, exclusive: a quarter
/// of the 24-bit range.
pub const SEQUENCE_WINDOW: u64 = 1 << 22;

/// The number of a queue pair (verbs' qpn).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Qpn(u32);

/// The 24-bit sequence number of a packet (verbs' psn), as on the wire.
///
/// The requester and the responder count packets with 64 bits, which never wrap, and send the lower 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Psn(u32);

impl Qpn {
    /// Creates a number from the lower 24 bits of `value`.
    pub const fn new(value: u32) -> Qpn {
        Qpn(value & MASK)
    }

    /// Returns the 24-bit value.
    pub fn value(self) -> u32 {
        self.0
    }
}

impl Psn {
    /// Creates a number from the lower 24 bits of `value`.
    pub const fn new(value: u32) -> Psn {
        Psn(value & MASK)
    }

    /// Creates a number from the lower 24 bits of a 64-bit sequence number.
    pub fn of(sequence: u64) -> Psn {
        Psn((sequence & u64::from(MASK)) as u32)
    }

    /// Returns the 24-bit value.
    pub fn value(self) -> u32 {
        self.0
    }

    /// Returns the 64-bit sequence number nearest to `near` that has these lower 24 bits. Returns `None` if its
    /// distance from `near` is [`SEQUENCE_WINDOW`] or more.
    // [ROCE-SEQ-1]
    pub fn expand(self, near: u64) -> Option<u64> {
        let ahead = self.0.wrapping_sub(near as u32) & MASK;
        let (distance, sequence) = if ahead <= MASK / 2 {
            (u64::from(ahead), near.checked_add(u64::from(ahead))?)
        } else {
            let behind = u64::from(MASK - ahead) + 1;
            (behind, near.checked_sub(behind)?)
        };
        (distance < SEQUENCE_WINDOW).then_some(sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_expand_to_the_nearest_in_the_window() {
        let near = (1 << 24) + 1;
        assert_eq!(Psn::new(1).expand(near), Some(near));
        assert_eq!(Psn::new(MASK).expand(near), Some(near - 2));
        let near = 1 << 40;
        assert_eq!(Psn::of(near + SEQUENCE_WINDOW).expand(near), None);
        assert_eq!(Psn::of(near - SEQUENCE_WINDOW).expand(near), None);
        assert_eq!(Psn::of(near + SEQUENCE_WINDOW - 1).expand(near), Some(near + SEQUENCE_WINDOW - 1));
        assert_eq!(Psn::new(MASK).expand(0), None, "before number 0");
    }
}
