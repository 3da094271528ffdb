//! Packets that came before their turn, kept until it is theirs.
//!
//! ```text
//!   expected │ kept │      │ kept │ kept │            at most span numbers behind what is expected
//!   bits:       1      0      1      1
//! ```
//!
//! What was kept once is never dropped, but for the end of the connection: so the peer need not send again what it was told of.

use std::collections::BTreeMap;

use crate::wire::{Headers, Packet, Psn, Qpn};

/// Most numbers behind the expected one that are kept: their bits fit into the smallest packet.
pub(crate) const SPAN_MAX: u64 = 1024;

/// How many numbers behind the expected one are kept by who grants so many packets, and used by whom that was granted.  More than are under
/// way at a time, so that what is missing may be repeated, and lost again, while the rest goes on: four round trips.
// [ROCE-SEL-1]
pub(crate) fn span(grant: u32) -> u64 {
    (4 * u64::from(grant)).clamp(4, SPAN_MAX)
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    packets: BTreeMap<u64, Early>,
}

/// A packet without its numbers.
#[derive(Debug)]
pub(crate) struct Early {
    ack_request: bool,
    solicited: bool,
    headers: Headers,
    payload: Box<[u8]>,
}

impl Early {
    /// As it came.
    pub fn packet(&self, sequence: u64) -> Packet<'_> {
        let Early { ack_request, solicited, headers, ref payload } = *self;
        Packet { dest_qp: Qpn::new(0), psn: Psn::of(sequence), ack_request, solicited, headers, payload }
    }
}

impl Kept {
    /// Keeps a packet; says whether it was not there yet.
    pub fn keep(&mut self, sequence: u64, packet: &Packet<'_>) -> bool {
        let Packet { ack_request, solicited, headers, payload, .. } = *packet;
        let is_new = !self.packets.contains_key(&sequence);
        if is_new {
            self.packets.insert(sequence, Early { ack_request, solicited, headers, payload: payload.into() });
        }
        is_new
    }

    /// Gives out the packet of that number, and forgets those before it.
    pub fn take(&mut self, sequence: u64) -> Option<Early> {
        // A peer may have put some among the numbers of a read, where none belong.
        while self.packets.first_key_value().is_some_and(|(first, _)| *first < sequence) {
            self.packets.pop_first();
        }
        self.packets.remove(&sequence)
    }

    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// A bit for each number behind `expected`, the lowest first: whether its packet is kept.  Whole words of four bytes, up to the last
    /// that is kept.
    pub fn bits(&self, expected: u64) -> Vec<u8> {
        let last = self.packets.last_key_value().map_or(0, |(last, _)| last - expected);
        let mut bits = vec![0; (last as usize).div_ceil(32) * 4];
        for sequence in self.packets.keys() {
            let index = (sequence - expected - 1) as usize;
            bits[index / 8] |= 1 << (index % 8);
        }
        bits
    }
}

/// The numbers that are said to be kept.
pub(crate) fn numbers(missing: u64, bits: &[u8]) -> impl Iterator<Item = u64> {
    let is_set = |index: &u64| bits[(index / 8) as usize] >> (index % 8) & 1 == 1;
    (0..8 * bits.len() as u64).filter(is_set).map(move |index| missing + 1 + index)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const PACKET: Packet<'static> = Packet {
        dest_qp: Qpn::new(1),
        psn: Psn::new(0),
        ack_request: true,
        solicited: true,
        headers: Headers::SendMiddle,
        payload: b"some",
    };

    proptest! {
        /// The model is the set of all that has come; what is expected is the least that has not.
        #[test]
        fn what_is_kept_is_what_came_and_is_given_out_once_in_order(
            begin in 1u64 << 24..1 << 40,
            arrivals in prop::collection::vec(0u64..64, 0..200),
        ) {
            let (mut kept, mut expected, mut come) = (Kept::default(), begin, BTreeSet::new());
            for after in arrivals {
                let sequence = begin + after;
                let is_new = come.insert(sequence);
                if sequence > expected {
                    prop_assert_eq!(kept.keep(sequence, &PACKET), is_new);
                } else if sequence == expected {
                    expected += 1;
                    while let Some(early) = kept.take(expected) {
                        prop_assert_eq!(early.packet(expected), Packet { psn: Psn::of(expected), dest_qp: Qpn::new(0), ..PACKET });
                        expected += 1;
                    }
                }
                let missing = (begin..).find(|sequence| !come.contains(sequence));
                prop_assert_eq!(Some(expected), missing);
                let bits = kept.bits(expected);
                let told: Vec<u64> = numbers(expected, &bits).collect();
                prop_assert_eq!(&told, &come.range(expected..).copied().collect::<Vec<_>>());
                prop_assert_eq!((kept.is_empty(), bits.len() % 4), (told.is_empty(), 0));
            }
        }
    }

    #[test]
    fn the_bits_of_the_longest_span_fit_into_the_smallest_packet() {
        let mut kept = Kept::default();
        assert!(kept.keep(7 + SPAN_MAX, &PACKET));
        assert_eq!((kept.bits(7).len() as u64, span(u32::MAX), span(0)), (SPAN_MAX / 8, SPAN_MAX, 4));
        assert_eq!(numbers(7, &kept.bits(7)).collect::<Vec<_>>(), [7 + SPAN_MAX]);
    }

    #[test]
    fn numbers_among_those_of_a_read_are_forgotten() {
        let mut kept = Kept::default();
        (2..5).for_each(|sequence| assert!(kept.keep(sequence, &PACKET)));
        assert!(kept.take(5).is_none() && kept.is_empty());
    }
}
