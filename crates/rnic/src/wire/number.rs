//! Numbers of queue pairs and of packets, which have 24 bits on the wire.

const MASK: u32 = 0xff_ffff;

/// How many packets behind or ahead of the expected one a number can be told from a replay: a quarter of all numbers.
pub const SEQUENCE_WINDOW: u64 = 1 << 22;

/// The number of a queue pair (verbs' qpn).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Qpn(u32);

/// The sequence number of a packet (verbs' psn), as it is on the wire.
///
/// State machines count packets in 64 bits, which never wrap around, and send the lower 24 of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Psn(u32);

impl Qpn {
    /// The lower 24 bits of `value`.
    pub const fn new(value: u32) -> Qpn {
        Qpn(value & MASK)
    }

    /// Its 24 bits.
    pub fn value(self) -> u32 {
        self.0
    }
}

impl Psn {
    /// The lower 24 bits of `value`.
    pub const fn new(value: u32) -> Psn {
        Psn(value & MASK)
    }

    /// That of the packet that is number `sequence` of all.
    pub fn of(sequence: u64) -> Psn {
        Psn((sequence & u64::from(MASK)) as u32)
    }

    /// Its 24 bits.
    pub fn value(self) -> u32 {
        self.0
    }

    /// The number nearest to `near` that looks like this on the wire; `None` where that is more than [`SEQUENCE_WINDOW`] away.
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_told_apart_on_both_sides_of_the_wrap() {
        let near = (1 << 24) + 1;
        assert_eq!(Psn::new(1).expand(near), Some(near));
        assert_eq!(Psn::new(MASK).expand(near), Some(near - 2));
        assert_eq!(Psn::new(5).expand((1 << 25) - 3), Some((1 << 25) + 5));
    }

    #[test]
    fn a_number_too_far_away_is_none_of_ours() {
        let near = 1 << 40;
        assert_eq!(Psn::of(near + SEQUENCE_WINDOW).expand(near), None);
        assert_eq!(Psn::of(near - SEQUENCE_WINDOW).expand(near), None);
        assert_eq!(Psn::of(near + SEQUENCE_WINDOW - 1).expand(near), Some(near + SEQUENCE_WINDOW - 1));
        assert_eq!(Psn::new(MASK).expand(0), None, "before the first");
    }

    proptest! {
        #[test]
        fn a_number_near_by_comes_back(near in (1u64 << 24)..(1 << 60), offset in 1 - (1i64 << 22)..(1 << 22)) {
            let sequence = near.checked_add_signed(offset).unwrap();
            prop_assert_eq!(Psn::of(sequence).expand(near), Some(sequence));
        }
    }
}
