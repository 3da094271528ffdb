//! The out-of-order buffer: keeps packets that arrive early, until all earlier packets have arrived.
//!
//! ```text
//!   expected │ kept │      │ kept │ kept │            at most `span` packets after the expected one
//!   bits:       1      0      1      1
//! ```
//!
//! The responder keeps each packet that it has reported as kept, until all earlier packets have been executed. So the
//! requester need not retransmit this packet.

use std::collections::BTreeMap;

use crate::config::Mtu;
use crate::wire::{Headers, Packet, Psn, Qpn};

/// Maximum of `span`, in packets.
pub(crate) const SPAN_MAX: u64 = 8192;
/// Maximum bytes of early packets that the responder keeps.
const SPAN_BYTES: u64 = 8 << 20;

/// Returns the span: the number of packets after the expected one that the responder keeps and the requester may send.
/// The span suffices for a long path, even if a retransmitted packet is lost again while later packets are sent. The
/// bitmap of the span fits into half of a packet.
// [ROCE-SEL-1]
pub(crate) fn span(mtu: Mtu) -> u64 {
    let bytes = u64::from(mtu.bytes());
    SPAN_MAX.min(SPAN_BYTES / bytes).min(4 * bytes)
}

/// The kept packets, by sequence number.
#[derive(Debug, Default)]
pub(crate) struct KeptPackets {
    packets: BTreeMap<u64, KeptPacket>,
}

/// A packet without its queue pair and sequence number.
#[derive(Debug)]
pub(crate) struct KeptPacket {
    ack_request: bool,
    solicited: bool,
    headers: Headers,
    payload: Box<[u8]>,
}

impl KeptPacket {
    /// Returns the packet, with `sequence` as its number.
    pub fn packet(&self, sequence: u64) -> Packet<'_> {
        let KeptPacket { ack_request, solicited, headers, ref payload } = *self;
        Packet { dest_qp: Qpn::new(0), psn: Psn::of(sequence), ack_request, solicited, headers, payload }
    }
}

impl KeptPackets {
    /// Keeps a packet. Returns false if the packet is a duplicate.
    pub fn keep(&mut self, sequence: u64, packet: &Packet<'_>) -> bool {
        let Packet { ack_request, solicited, headers, payload, .. } = *packet;
        let is_new = !self.packets.contains_key(&sequence);
        if is_new {
            self.packets
                .insert(sequence, KeptPacket { ack_request, solicited, headers, payload: payload.into() });
        }
        is_new
    }

    /// Removes and returns the packet with this number, and drops all packets with lower numbers.
    pub fn take(&mut self, sequence: u64) -> Option<KeptPacket> {
        // A faulty peer may send packets with the sequence numbers of a read response.
        while self.packets.first_key_value().is_some_and(|(first, _)| *first < sequence) {
            self.packets.pop_first();
        }
        self.packets.remove(&sequence)
    }

    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns the highest number of a kept packet.
    pub fn highest(&self) -> Option<u64> {
        self.packets.last_key_value().map(|(highest, _)| *highest)
    }

    /// Returns a bitmap of the kept packets after `expected`, lowest bit first, padded to a multiple of four bytes.
    pub fn bits(&self, expected: u64) -> Vec<u8> {
        let len = self.highest().map_or(0, |highest| highest - expected);
        let mut bits = vec![0; (len as usize).div_ceil(32) * 4];
        for sequence in self.packets.keys() {
            let index = (sequence - expected - 1) as usize;
            bits[index / 8] |= 1 << (index % 8);
        }
        bits
    }
}

/// Returns the sequence numbers that a bitmap reports as kept. The first bit stands for the number after `missing`.
pub(crate) fn kept_sequences(missing: u64, bits: &[u8]) -> impl Iterator<Item = u64> {
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
        /// The model is the set of arrived packets; the expected packet is the lowest missing one.
        #[test]
        fn kept_packets_are_returned_once_and_in_order(
            begin in 1u64 << 24..1 << 40,
            arrivals in prop::collection::vec(0u64..64, 0..200),
        ) {
            let (mut kept, mut expected, mut arrived) = (KeptPackets::default(), begin, BTreeSet::new());
            for after in arrivals {
                let sequence = begin + after;
                let is_new = arrived.insert(sequence);
                if sequence > expected {
                    prop_assert_eq!(kept.keep(sequence, &PACKET), is_new);
                } else if sequence == expected {
                    expected += 1;
                    while let Some(early) = kept.take(expected) {
                        prop_assert_eq!(early.packet(expected), Packet { psn: Psn::of(expected), dest_qp: Qpn::new(0), ..PACKET });
                        expected += 1;
                    }
                }
                let missing = (begin..).find(|sequence| !arrived.contains(sequence));
                prop_assert_eq!(Some(expected), missing);
                let bits = kept.bits(expected);
                let reported: Vec<u64> = kept_sequences(expected, &bits).collect();
                prop_assert_eq!(&reported, &arrived.range(expected..).copied().collect::<Vec<_>>());
                prop_assert_eq!((kept.is_empty(), bits.len() % 4), (reported.is_empty(), 0));
            }
        }
    }

    #[test]
    fn kept_packets_with_numbers_of_a_read_response_are_dropped() {
        let mut kept = KeptPackets::default();
        (2..5).for_each(|sequence| assert!(kept.keep(sequence, &PACKET)));
        assert!(kept.take(5).is_none() && kept.is_empty());
    }
}
