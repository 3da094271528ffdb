//! The invariant checksum: a CRC-32 over all that may not change between two ends, addresses and ports included.
//!
//! ```text
//!  8 bytes of ones | IP header | UDP header | packet without its ICRC       fields that change on the way read as ones
//! ```
//!
//! It is stored little-endian, as its first bit leaves first.
//!
//! **The identification** of IPv4 is covered, and a socket neither sets it nor shows it.  What Linux sends is known: with
//! fragmentation forbidden, a socket that is not connected sends 0, and segmentation counts up from there in a train of packets.
//! So between our own ends, packets say their place in their train in reserved bits, which the checksum covers as well, and the
//! one identification that is right is that place ([`Flow::seal`], [`Flow::open`]).  What others send is anybody's guess, and
//! none is needed: a CRC is linear, so the difference to the checksum with identification 0 tells the only identification
//! with which it is right, if there is one ([`Flow::open_foreign`]).

use core::net::{IpAddr, SocketAddr};

use super::WireError;
use super::bth::{BTH_BYTES, VARIANT_BYTE};

/// Its length.
pub const ICRC_BYTES: usize = 4;

/// The last place in a train that can be told.
pub const PLACE_MAX: u8 = 0x7f;

/// Of the longer pseudo header, with ones, IPv6, UDP and the transport header.
const PSEUDO_BYTES_MAX: usize = 8 + 40 + 8 + BTH_BYTES;

/// Where the place stands in a packet.
const PLACE_BYTE: usize = 8;

/// Packets from one address to another.
///
/// The two directions of a connection are two flows.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Ones, IP and UDP header with lengths and identification zero, and room for the transport header.
    pseudo: [u8; PSEUDO_BYTES_MAX],
    /// How much of it is used.
    len: usize,
    version: IpVersion,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum IpVersion {
    V4,
    V6,
}

impl Flow {
    /// From `source` to `target`.  An IPv4 address that is written as one of IPv6 is what it stands for.
    ///
    /// # Panics
    /// Where one is an address of IPv4 and the other of IPv6: no packet goes between these.
    pub fn new(source: SocketAddr, target: SocketAddr) -> Flow {
        let mut pseudo = [0; PSEUDO_BYTES_MAX];
        pseudo[..8].fill(0xff);
        let (version, udp) = match (source.ip().to_canonical(), target.ip().to_canonical()) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                let ip = &mut pseudo[8..28];
                // Five words of header, any service, fragments forbidden, any hops, UDP, any checksum.
                ip[..12].copy_from_slice(&[0x45, 0xff, 0, 0, 0, 0, 0x40, 0, 0xff, 17, 0xff, 0xff]);
                ip[12..16].copy_from_slice(&source.octets());
                ip[16..20].copy_from_slice(&target.octets());
                (IpVersion::V4, 28)
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                let ip = &mut pseudo[8..48];
                // Any class and label, UDP, any hops.
                ip[..8].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff, 0, 0, 17, 0xff]);
                ip[8..24].copy_from_slice(&source.octets());
                ip[24..40].copy_from_slice(&target.octets());
                (IpVersion::V6, 48)
            }
            _ => panic!("no packet goes from {source} to {target}"),
        };
        pseudo[udp..udp + 2].copy_from_slice(&source.port().to_be_bytes());
        pseudo[udp + 2..udp + 4].copy_from_slice(&target.port().to_be_bytes());
        pseudo[udp + 6..udp + 8].fill(0xff);
        Flow { pseudo, len: udp + 8 + BTH_BYTES, version }
    }

    /// Writes the place in the train, and the ICRC into the last four bytes of `packet`, which is complete but for these.
    ///
    /// # Panics
    /// Where the packet is shorter than a transport header and an ICRC, longer than a datagram, or the place too large.
    // [ROCE-ICRC-2]
    pub fn seal(&self, place: u8, packet: &mut [u8]) {
        assert!(place <= PLACE_MAX, "place {place} does not fit in seven bits");
        let body = packet.len() - ICRC_BYTES;
        packet[PLACE_BYTE] = packet[PLACE_BYTE] & 0x80 | place;
        let icrc = self.checksum(u16::from(place), &packet[..body]);
        packet[body..].copy_from_slice(&icrc.to_le_bytes());
    }

    /// What a packet of one of our own ends holds, without its ICRC, if that is right.
    // [ROCE-ICRC-3]
    pub fn open<'a>(&self, packet: &'a [u8]) -> Result<&'a [u8], WireError> {
        let (body, icrc) = split(packet)?;
        let place = body[PLACE_BYTE] & PLACE_MAX;
        if self.checksum(u16::from(place), body) == icrc { Ok(body) } else { Err(WireError::Icrc) }
    }

    /// What a packet of anybody holds, without its ICRC, and with which identification that is right, if it is with any.
    ///
    /// A damaged packet passes with a chance of one in 65,536, since so many identifications would do.  A caller who expects
    /// certain ones refuses others.  In IPv6 the ICRC covers no identification, and the answer is 0.
    // [ROCE-ICRC-4]
    pub fn open_foreign<'a>(&self, packet: &'a [u8]) -> Result<(&'a [u8], u16), WireError> {
        let (body, icrc) = split(packet)?;
        let difference = self.checksum(0, body) ^ icrc;
        if difference == 0 {
            return Ok((body, 0));
        }
        if self.version == IpVersion::V6 {
            return Err(WireError::Icrc);
        }
        // In the pseudo header, what stands behind the identification are 14 bytes of IPv4, and UDP.
        let behind = 14 + 8 + body.len();
        identification_of(difference, behind).map(|found| (body, found)).ok_or(WireError::Icrc)
    }

    // [ROCE-ICRC-1]
    fn checksum(&self, identification: u16, body: &[u8]) -> u32 {
        let mut pseudo = self.pseudo;
        let udp_len = u16::try_from(8 + body.len() + ICRC_BYTES).expect("a datagram");
        let udp = self.len - BTH_BYTES - 8;
        pseudo[udp + 4..udp + 6].copy_from_slice(&udp_len.to_be_bytes());
        match self.version {
            IpVersion::V4 => {
                let total = udp_len.checked_add(20).expect("a datagram");
                pseudo[10..12].copy_from_slice(&total.to_be_bytes());
                pseudo[12..14].copy_from_slice(&identification.to_be_bytes());
            }
            IpVersion::V6 => pseudo[12..14].copy_from_slice(&udp_len.to_be_bytes()),
        }
        let (bth, rest) = body.split_at(BTH_BYTES);
        pseudo[self.len - BTH_BYTES..self.len].copy_from_slice(bth);
        pseudo[self.len - BTH_BYTES + VARIANT_BYTE] = 0xff;
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&pseudo[..self.len]);
        hasher.update(rest);
        hasher.finalize()
    }
}

/// The packet without its ICRC, and that.  Datagrams have less than 64 KiB.
fn split(packet: &[u8]) -> Result<(&[u8], u32), WireError> {
    let (body, icrc) = packet.split_last_chunk().ok_or(WireError::Truncated)?;
    if !(BTH_BYTES..=PACKET_BYTES_MAX - ICRC_BYTES).contains(&body.len()) {
        return Err(WireError::Truncated);
    }
    Ok((body, u32::from_le_bytes(*icrc)))
}

/// What a datagram of IPv4 can carry.
pub const PACKET_BYTES_MAX: usize = 65535 - 20 - 8;

/// The polynomial, its highest power in the lowest bit, as the CRC has it.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// x to the power of -8, so that multiplying takes one byte of zeros off the end.
const BYTE_BACK: u32 = times(times(bits_back_2(), bits_back_2()), times(bits_back_2(), bits_back_2()));

const fn bits_back_2() -> u32 {
    /// x to the power of -1: once forward from here is 1, the highest bit.
    const BIT_BACK: u32 = ((0x8000_0000 ^ POLYNOMIAL) << 1) | 1;
    times(BIT_BACK, BIT_BACK)
}

/// The product of two polynomials modulo that of the CRC.
const fn times(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 1 << 31;
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = if b & 1 != 0 { b >> 1 ^ POLYNOMIAL } else { b >> 1 };
        bit >>= 1;
    }
    product
}

/// Which two bytes, followed by `behind` zeros, make this difference of two checksums.
fn identification_of(difference: u32, behind: usize) -> Option<u16> {
    let (mut found, mut power, mut bytes) = (difference, BYTE_BACK, behind + 2);
    while bytes != 0 {
        if bytes & 1 != 0 {
            found = times(found, power);
        }
        power = times(power, power);
        bytes >>= 1;
    }
    // Taken back to where they entered, two bytes stand in the lower half of the register, the first one lowest.
    u16::try_from(found).ok().map(u16::swap_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn flow(source: &str, target: &str) -> Flow {
        Flow::new(source.parse().unwrap(), target.parse().unwrap())
    }

    /// Some packet with an acknowledgement's opcode, and room for its ICRC.
    fn example(len: usize) -> Vec<u8> {
        let mut packet: Vec<u8> = (0..len).map(|index| (index * 7) as u8).collect();
        packet[0] = 0x11;
        packet
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    /// Bit by bit, out of a whole datagram as a network carries it, by another way than that of this file.
    fn independent(datagram: &[u8]) -> u32 {
        let mut covered = vec![0xff; 8];
        let mut masked = datagram.to_vec();
        let bth = match datagram[0] >> 4 {
            4 => {
                [1, 8, 10, 11].into_iter().for_each(|at| masked[at] = 0xff);
                28
            }
            _ => {
                [1, 2, 3, 7].into_iter().for_each(|at| masked[at] = 0xff);
                masked[0] |= 0x0f;
                48
            }
        };
        masked[bth - 2..bth].fill(0xff);
        masked[bth + 4] = 0xff;
        covered.extend(&masked[..masked.len() - 4]);
        let mut register = u32::MAX;
        for bit in covered.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1)) {
            let feedback = (register & 1) ^ u32::from(bit);
            register = register >> 1 ^ if feedback == 1 { 0xedb8_8320 } else { 0 };
        }
        !register
    }

    /// The datagram that carries `packet`, with all that the checksum does not cover set to something.
    fn datagram(source: SocketAddr, target: SocketAddr, identification: u16, packet: &[u8]) -> Vec<u8> {
        let udp_len = (packet.len() + 8) as u16;
        let mut out = Vec::new();
        match (source.ip(), target.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                out.extend([0x45, 0x02]);
                out.extend((udp_len + 20).to_be_bytes());
                out.extend(identification.to_be_bytes());
                out.extend([0x40, 0, 63, 17, 0xab, 0xcd]);
                out.extend(from.octets());
                out.extend(to.octets());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                out.extend([0x61, 0x23, 0x45, 0x67]);
                out.extend(udp_len.to_be_bytes());
                out.extend([17, 63]);
                out.extend(from.octets());
                out.extend(to.octets());
            }
            _ => unreachable!(),
        }
        out.extend(source.port().to_be_bytes());
        out.extend(target.port().to_be_bytes());
        out.extend(udp_len.to_be_bytes());
        out.extend([0x12, 0x34]);
        out.extend(packet);
        out
    }

    #[test]
    fn a_packet_that_an_adapter_sent_is_right_with_the_identification_that_it_had() {
        // A notification of congestion by a ConnectX-4 Lx: the tests of scapy's RoCE layer have it as captured.
        let captured = bytes(
            "45c2 003c 718c 4000 4011 9161 0a00 1101 0a00 1201 0000 12b7 0028 0000 8100 ffff 4000
             0118 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 82fd 002a",
        );
        let flow = flow("10.0.17.1:0", "10.0.18.1:4791");
        let (body, identification) = flow.open_foreign(&captured[28..]).unwrap();
        assert_eq!((body.len(), identification), (28, 0x718c));
        assert_eq!(flow.open(&captured[28..]), Err(WireError::Icrc), "no end of ours would have sent it");
    }

    #[test]
    fn packets_of_others_are_right_with_their_identification() {
        // An unreliable send out of the same tests.
        let send = bytes("2460ffff000000d300cf1710 4630818be28935d90e9a95505401be885e500000 78f353f3");
        let first = flow("192.168.0.7:49152", "192.168.0.7:4791").open_foreign(&send).map(|(_, id)| id);
        assert_eq!(first, Ok(1144));
    }

    #[test]
    fn a_place_in_the_train_is_the_identification_and_nothing_else_is() {
        let flow = flow("10.0.0.1:5000", "10.0.0.2:6000");
        let mut packet = example(100);
        for place in 0..=PLACE_MAX {
            flow.seal(place, &mut packet);
            assert_eq!(flow.open(&packet).map(|body| body[8] & 0x7f), Ok(place));
            assert_eq!(flow.open_foreign(&packet).map(|(_, id)| id), Ok(u16::from(place)));
            packet[8] ^= 1;
            assert_eq!(flow.open(&packet), Err(WireError::Icrc), "one place for another");
            packet[8] ^= 1;
        }
    }

    #[test]
    fn no_other_place_makes_up_for_a_wrong_one() {
        // The place enters twice, as identification and as itself: no two may cancel each other out.
        let flow = flow("10.0.0.1:5000", "10.0.0.2:6000");
        let mut packet = example(20);
        let mut seen = std::collections::BTreeSet::new();
        for place in 0..=PLACE_MAX {
            flow.seal(place, &mut packet);
            assert!(seen.insert(packet[16..].to_vec()));
        }
    }

    #[test]
    fn a_packet_for_another_address_port_or_length_is_refused() {
        let packet = |flow: &Flow| {
            let mut packet = example(64);
            flow.seal(3, &mut packet);
            packet
        };
        let ours = flow("10.0.0.1:5000", "10.0.0.2:6000");
        for other in [
            flow("10.0.0.3:5000", "10.0.0.2:6000"),
            flow("10.0.0.1:5000", "10.0.0.3:6000"),
            flow("10.0.0.1:5001", "10.0.0.2:6000"),
            flow("10.0.0.1:5000", "10.0.0.2:6001"),
            flow("10.0.0.2:6000", "10.0.0.1:5000"),
            flow("[::1]:5000", "[::2]:6000"),
        ] {
            assert_eq!(ours.open(&packet(&other)), Err(WireError::Icrc));
        }
        let whole = packet(&ours);
        assert_eq!(ours.open(&whole[..60]), Err(WireError::Icrc));
        assert_eq!(ours.open(&whole[..15]), Err(WireError::Truncated));
        assert_eq!(ours.open(&[]), Err(WireError::Truncated));
        assert_eq!(ours.open(&vec![0; 1 << 17]), Err(WireError::Truncated), "no datagram is so long");
    }

    #[test]
    fn marks_of_congestion_on_the_way_change_nothing() {
        let flow = flow("[fe80::1]:5000", "[fe80::2]:6000");
        let mut packet = example(64);
        flow.seal(0, &mut packet);
        packet[VARIANT_BYTE] = 0xc0;
        assert!(flow.open(&packet).is_ok());
    }

    proptest! {
        #[test]
        fn the_checksum_is_that_of_an_independent_computation(
            v6: bool,
            ports: (u16, u16),
            addresses: (u128, u128),
            place in 0..=PLACE_MAX,
            len in 16usize..300,
        ) {
            let address = |bits: u128, port| match v6 {
                // Not one that stands for an address of IPv4.
                true => SocketAddr::new(IpAddr::V6((bits | 1 << 127).into()), port),
                false => SocketAddr::new(IpAddr::V4((bits as u32).into()), port),
            };
            let (source, target) = (address(addresses.0, ports.0), address(addresses.1, ports.1));
            let mut packet = example(len);
            Flow::new(source, target).seal(place, &mut packet);
            let sent = u32::from_le_bytes(*packet.last_chunk().unwrap());
            prop_assert_eq!(sent, independent(&datagram(source, target, u16::from(place), &packet)));
        }

        #[test]
        fn any_identification_is_found_whatever_the_length(id: u16, len in 16usize..5000) {
            let (source, target) = ("10.1.2.3:49152".parse().unwrap(), "10.3.2.1:4791".parse().unwrap());
            let mut packet = example(len);
            let icrc = independent(&datagram(source, target, id, &packet));
            packet[len - 4..].copy_from_slice(&icrc.to_le_bytes());
            prop_assert_eq!(Flow::new(source, target).open_foreign(&packet).map(|(_, id)| id), Ok(id));
        }

        #[test]
        fn up_to_three_flipped_bits_are_never_delivered(flips in prop::collection::btree_set(0usize..200 * 8, 1..=3)) {
            let flow = flow("10.0.0.1:5000", "10.0.0.2:6000");
            let mut packet = example(200);
            flow.seal(5, &mut packet);
            for bit in flips.iter().filter(|bit| *bit / 8 != VARIANT_BYTE) {
                packet[bit / 8] ^= 1 << (bit % 8);
            }
            if flips.iter().any(|bit| bit / 8 != VARIANT_BYTE) {
                prop_assert_eq!(flow.open(&packet), Err(WireError::Icrc));
            }
        }

        #[test]
        fn whatever_arrives_is_opened_or_refused(packet in prop::collection::vec(any::<u8>(), 0..100)) {
            let flow = flow("10.0.0.1:5000", "10.0.0.2:6000");
            let _ = flow.open(&packet);
            let _ = flow.open_foreign(&packet);
        }
    }
}
