//! Splits packets longer than the path MTU into parts, and reassembles them.
//!
//! ```text
//!   packet without ICRC   | BTH | headers | payload ........................... |
//!   parts                 | BTH | PartETH | chunk | ICRC |  | BTH | PartETH | chunk, zeros | ICRC |
//! ```
//!
//! All parts of a packet have equal length, so they leave as one train. Parts of several packets may arrive in any
//! order. If a part is lost, the whole packet counts as lost and is retransmitted.

use crate::config::Mtu;
use crate::wire::bth::{BTH_BYTES, Bth};
use crate::wire::part_eth::PART_ETH_BYTES;
use crate::wire::path_eth::packet_bytes_max;
use crate::wire::{HEADER_BYTES_MAX, Headers, ICRC_BYTES, Packet, PartEthRepr, Psn, Qpn};

/// Maximum number of packets being reassembled: a window of 256 packets, each in at least two parts, may arrive in any
/// order. Together with [`HEADER_BYTES_MAX`] and the MTU, it bounds the memory that a peer can make this end allocate.
const PACKETS_MAX: usize = 128;
/// Maximum number of parts of a packet; a packet of 4096 bytes has 16 over the smallest MTU.
const PARTS_MAX: usize = 64;

/// Splits one packet at a time.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    /// Number of the packet in its parts.
    number: u32,
    /// The packet being sent, without its ICRC.
    whole: Vec<u8>,
    /// Offset of the next part.
    begin: usize,
    /// Length of each part's chunk, in bytes.
    chunk: usize,
}

impl Splitter {
    /// Starts to split a packet, given without its ICRC, into parts no longer than packets of `mtu`.
    // [ROCE-PART-1]
    pub fn start(&mut self, packet: &[u8], mtu: Mtu) {
        let room = packet_bytes_max(mtu) - BTH_BYTES - PART_ETH_BYTES - ICRC_BYTES;
        let parts = packet.len().div_ceil(room & !7);
        self.chunk = packet.len().div_ceil(parts).next_multiple_of(8);
        self.number = self.number.wrapping_add(1);
        self.whole.clear();
        self.whole.extend_from_slice(packet);
        self.begin = 0;
    }

    /// Writes the next part to `buffer` and returns its length; `None` if no part is left.
    pub fn poll(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let rest = self.whole.get(self.begin..).filter(|rest| !rest.is_empty())?;
        let bth = Bth::new_checked(&self.whole[..]).expect("a packet begins with its transport header");
        let part =
            PartEthRepr { number: self.number, offset: self.begin as u16, whole: self.whole.len() as u16 };
        let packet = Packet {
            dest_qp: bth.dest_qp(),
            psn: bth.psn(),
            ack_request: false,
            solicited: false,
            headers: Headers::Part(part),
            payload: &[],
        };
        let at = packet.emit_headers(self.chunk, buffer);
        let (bytes, zeros) = buffer[at..at + self.chunk].split_at_mut(rest.len().min(self.chunk));
        bytes.copy_from_slice(&rest[..bytes.len()]);
        zeros.fill(0);
        self.begin += bytes.len();
        Some(crate::wire::packet::packet_bytes(&packet.headers, self.chunk))
    }

    /// Drops the parts that have not been sent yet.
    pub fn clear(&mut self) {
        self.whole.clear();
    }
}

/// Reassembles the newest packets.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    /// Slot `n % PACKETS_MAX` holds the packet with number `n`, until a newer packet replaces it. The list is empty
    /// before the first part arrives.
    slots: Vec<Option<PartialPacket>>,
}

/// A packet of which some parts have arrived.
#[derive(Clone, Debug)]
struct PartialPacket {
    eth: PartEthRepr,
    psn: Psn,
    /// Length of each part's chunk, in bytes.
    chunk: usize,
    /// One bit for each part that has arrived.
    arrived: u64,
    /// Empty once the packet is complete, so that late duplicates of its parts are dropped.
    bytes: Vec<u8>,
}

impl Reassembly {
    /// Adds a part of the packet with the sequence number `psn`. Returns the packet, without its ICRC, once all parts
    /// have arrived.
    // [ROCE-PART-2]
    pub fn add(&mut self, part: PartEthRepr, psn: Psn, chunk: &[u8], mtu_max: Mtu) -> Option<Vec<u8>> {
        let (whole, begin) = (usize::from(part.whole), usize::from(part.offset));
        let is_aligned = !chunk.is_empty() && begin.is_multiple_of(chunk.len()) && begin < whole;
        if !is_aligned
            || whole > HEADER_BYTES_MAX + mtu_max.bytes() as usize
            || whole.div_ceil(chunk.len()) > PARTS_MAX
        {
            return None;
        }
        if self.slots.is_empty() {
            self.slots.resize(PACKETS_MAX, None);
        }
        let slot = &mut self.slots[part.number as usize % PACKETS_MAX];
        if slot.as_ref().is_none_or(|old| (part.number.wrapping_sub(old.eth.number) as i32) > 0) {
            *slot =
                Some(PartialPacket { eth: part, psn, chunk: chunk.len(), arrived: 0, bytes: vec![0; whole] });
        }
        let partial = slot.as_mut()?;
        let is_same_packet = (partial.eth.number, partial.eth.whole, partial.psn, partial.chunk)
            == (part.number, part.whole, psn, chunk.len());
        if !is_same_packet || partial.bytes.is_empty() {
            return None;
        }
        let end = whole.min(begin + chunk.len());
        partial.bytes[begin..end].copy_from_slice(&chunk[..end - begin]);
        partial.arrived |= 1 << (begin / chunk.len());
        if partial.arrived.count_ones() as usize != whole.div_ceil(chunk.len()) {
            return None;
        }
        let bytes = std::mem::take(&mut partial.bytes);
        self.release_copies(psn, bytes[0]);
        Some(bytes)
    }

    /// Releases other copies of a complete packet, which was retransmitted after the loss of a part.
    fn release_copies(&mut self, psn: Psn, opcode: u8) {
        let is_copy = |copy: &&mut PartialPacket| copy.psn == psn && copy.bytes.first() == Some(&opcode);
        for copy in self.slots.iter_mut().flatten().filter(is_copy) {
            copy.bytes = Vec::new();
        }
    }

    /// Drops all parts.
    pub fn clear(&mut self) {
        self.slots = Vec::new();
    }
}

/// Returns true if a reassembled packet matches the headers of its parts.
pub(crate) fn matches_parts(whole: &Packet<'_>, dest_qp: Qpn, psn: Psn) -> bool {
    let is_part = matches!(whole.headers, Headers::Part(_) | Headers::Probe(_) | Headers::ProbeAnswer(_));
    !is_part && whole.dest_qp == dest_qp && whole.psn == psn
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the parts of a 4 KiB packet over an MTU of 512 bytes.
    fn parts(splitter: &mut Splitter, byte: u8) -> Vec<Vec<u8>> {
        let mut whole = vec![byte; 4096 + 28];
        Packet { headers: Headers::SendMiddle, dest_qp: Qpn::new(1), psn: Psn::new(2), ..EMPTY }
            .emit_headers(4112, &mut whole);
        splitter.start(&whole, Mtu::Bytes512);
        let mut buffer = vec![0; packet_bytes_max(Mtu::Bytes4096)];
        std::iter::from_fn(|| splitter.poll(&mut buffer).map(|len| buffer[..len - ICRC_BYTES].to_vec()))
            .collect()
    }

    const EMPTY: Packet<'static> = Packet {
        dest_qp: Qpn::new(0),
        psn: Psn::new(0),
        ack_request: false,
        solicited: false,
        headers: Headers::SendMiddle,
        payload: &[],
    };

    fn add(reassembly: &mut Reassembly, part: &[u8]) -> Option<Vec<u8>> {
        let packet = Packet::parse(part).unwrap();
        let Headers::Part(eth) = packet.headers else { panic!("{packet:?}") };
        reassembly.add(eth, packet.psn, packet.payload, Mtu::Bytes4096)
    }

    #[test]
    fn parts_of_different_packets_form_no_packet() {
        let mut splitter = Splitter::default();
        let [first, second, third] = [1, 2, 3].map(|byte| parts(&mut splitter, byte));
        assert!(first.len() == 8 && first.iter().all(|part| part.len() == first[0].len()), "equal parts");
        for at in 1..8 {
            let mut reassembly = Reassembly::default();
            let mixed = first[..at].iter().chain(&second[at..]);
            assert!(
                mixed.filter_map(|part| add(&mut reassembly, part)).next().is_none(),
                "mixed at part {at}"
            );
            let whole: Vec<_> = third.iter().filter_map(|part| add(&mut reassembly, part)).collect();
            assert!(whole.len() == 1 && whole[0][BTH_BYTES..4096].iter().all(|byte| *byte == 3));
            assert!(first.iter().chain(&third).all(|part| add(&mut reassembly, part).is_none()), "duplicate");
        }
    }
}
