//! The invariant checksum (ICRC): a CRC-32 over all bytes of a packet that no switch or router may change, including
//! addresses and ports.
//!
//! ```text
//!  8 bytes of ones | IP header | UDP header | packet without its ICRC       fields that may change read as ones
//! ```
//!
//! The ICRC is stored little-endian, because its lowest bit is sent first.
//!
//! **The IPv4 identification** is part of the checksum, but a socket can neither set nor read the identification. The
//! value that Linux sends is known if fragmentation is forbidden and the socket is not connected: 0 for a single
//! packet, and counting up from 0 within a train (a sequence of packets sent by segmentation offload). So a Halite peer
//! writes the packet's place in its train into reserved bits, which the checksum also covers. The receiver accepts only
//! that place as the identification ([`Flow::seal`], [`Flow::open`]). Other implementations may send any
//! identification, but the receiver can compute its value. A CRC is linear, so the difference between the received
//! checksum and the one for identification 0 determines the only matching identification, if one exists
//! ([`Flow::open_foreign`]).

use core::net::{IpAddr, SocketAddr};

use super::WireError;
use super::bth::{BTH_BYTES, VARIANT_BYTE};

/// Length of the ICRC in bytes.
pub const ICRC_BYTES: usize = 4;

/// Maximum place (index) of a packet in its train: a place has seven bits.
pub const PLACE_MAX: u8 = 0x7f;

/// Longest pseudo header: ones, IPv6, UDP and the transport header.
const PSEUDO_BYTES_MAX: usize = 8 + 40 + 8 + BTH_BYTES;

/// Offset of the place in a packet.
const PLACE_BYTE: usize = 8;

/// Computes and verifies the ICRC (invariant checksum) of packets from one address to another.
///
/// A connection has two flows, one per direction.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Ones, IP and UDP header with zero lengths and identification, and room for the transport header.
    pseudo: [u8; PSEUDO_BYTES_MAX],
    /// Used length of `pseudo`.
    len: usize,
    version: IpVersion,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum IpVersion {
    V4,
    V6,
}

impl Flow {
    /// Creates the flow from `source` to `target`. IPv4-mapped IPv6 addresses count as IPv4.
    ///
    /// # Panics
    /// Panics if one address is IPv4 and the other IPv6.
    pub fn new(source: SocketAddr, target: SocketAddr) -> Flow {
        let mut pseudo = [0; PSEUDO_BYTES_MAX];
        pseudo[..8].fill(0xff);
        let (version, udp) = match (source.ip().to_canonical(), target.ip().to_canonical()) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                let ip = &mut pseudo[8..28];
                // Five words of header, masked service, fragments forbidden, masked hops, UDP, masked checksum.
                ip[..12].copy_from_slice(&[0x45, 0xff, 0, 0, 0, 0, 0x40, 0, 0xff, 17, 0xff, 0xff]);
                ip[12..16].copy_from_slice(&source.octets());
                ip[16..20].copy_from_slice(&target.octets());
                (IpVersion::V4, 28)
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                let ip = &mut pseudo[8..48];
                // Masked class and label, UDP, masked hops.
                ip[..8].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff, 0, 0, 17, 0xff]);
                ip[8..24].copy_from_slice(&source.octets());
                ip[24..40].copy_from_slice(&target.octets());
                (IpVersion::V6, 48)
            }
            _ => panic!("the flow from {source} to {target} mixes IPv4 and IPv6"),
        };
        pseudo[udp..udp + 2].copy_from_slice(&source.port().to_be_bytes());
        pseudo[udp + 2..udp + 4].copy_from_slice(&target.port().to_be_bytes());
        pseudo[udp + 6..udp + 8].fill(0xff);
        Flow { pseudo, len: udp + 8 + BTH_BYTES, version }
    }

    /// Completes a packet: writes its place in its train, and the ICRC into its last four bytes.
    ///
    /// # Panics
    /// Panics if the packet is shorter than a transport header and an ICRC, if the packet is longer than a datagram, or
    /// if `place` exceeds [`PLACE_MAX`].
    // [ROCE-ICRC-2]
    pub fn seal(&self, place: u8, packet: &mut [u8]) {
        assert!(place <= PLACE_MAX, "place {place} does not fit in seven bits");
        let body = packet.len() - ICRC_BYTES;
        packet[PLACE_BYTE] = packet[PLACE_BYTE] & 0x80 | place;
        let icrc = self.checksum(u16::from(place), &packet[..body]);
        packet[body..].copy_from_slice(&icrc.to_le_bytes());
    }

    /// Verifies the ICRC of a packet from a Halite peer, and returns the packet without the ICRC.
    // [ROCE-ICRC-3]
    pub fn open<'a>(&self, packet: &'a [u8]) -> Result<&'a [u8], WireError> {
        let (body, icrc) = split(packet)?;
        let place = body[PLACE_BYTE] & PLACE_MAX;
        if self.checksum(u16::from(place), body) == icrc { Ok(body) } else { Err(WireError::Icrc) }
    }

    /// Verifies the ICRC of a packet from any implementation. Returns the packet without the ICRC, and the matching
    /// identification.
    ///
    /// Because any identification is accepted, one in 65,536 damaged packets passes; callers should reject unexpected
    /// identifications. With IPv6, the ICRC covers no identification, and this method returns 0.
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
        // The identification is followed by 14 bytes of IPv4 header, the UDP header and the body.
        let bytes_after = 14 + 8 + body.len();
        identification_of(difference, bytes_after).map(|found| (body, found)).ok_or(WireError::Icrc)
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

/// Splits a packet into body and ICRC. Datagrams have less than 64 KiB.
fn split(packet: &[u8]) -> Result<(&[u8], u32), WireError> {
    let (body, icrc) = packet.split_last_chunk().ok_or(WireError::Truncated)?;
    if !(BTH_BYTES..=PACKET_BYTES_MAX - ICRC_BYTES).contains(&body.len()) {
        return Err(WireError::Truncated);
    }
    Ok((body, u32::from_le_bytes(*icrc)))
}

/// Maximum length of a packet in bytes: the largest payload of an IPv4 UDP datagram.
pub const PACKET_BYTES_MAX: usize = 65535 - 20 - 8;

/// The CRC-32 polynomial, bit-reversed.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// x to the power of -8: multiplying by it removes one byte of zeros from the end.
const X_POW_MINUS_8: u32 =
    multiply(multiply(x_pow_minus_2(), x_pow_minus_2()), multiply(x_pow_minus_2(), x_pow_minus_2()));

const fn x_pow_minus_2() -> u32 {
    /// x to the power of -1: one step forward from here yields 1, the highest bit.
    const X_POW_MINUS_1: u32 = ((0x8000_0000 ^ POLYNOMIAL) << 1) | 1;
    multiply(X_POW_MINUS_1, X_POW_MINUS_1)
}

/// Returns the product of two polynomials modulo the CRC polynomial.
const fn multiply(a: u32, mut b: u32) -> u32 {
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

/// Returns the two bytes that, followed by `bytes_after` zeros, yield this difference of two checksums.
fn identification_of(difference: u32, bytes_after: usize) -> Option<u16> {
    let (mut found, mut power, mut bytes) = (difference, X_POW_MINUS_8, bytes_after + 2);
    while bytes != 0 {
        if bytes & 1 != 0 {
            found = multiply(found, power);
        }
        power = multiply(power, power);
        bytes >>= 1;
    }
    // Stepped back to their position, the two bytes are in the lower half of the register, the first one lowest.
    u16::try_from(found).ok().map(u16::swap_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn flow(source: &str, target: &str) -> Flow {
        Flow::new(source.parse().unwrap(), target.parse().unwrap())
    }

    /// Returns a packet with an acknowledgement's opcode, and room for its ICRC.
    fn example(len: usize) -> Vec<u8> {
        let mut packet: Vec<u8> = (0..len).map(|index| (index * 7) as u8).collect();
        packet[0] = 0x11;
        packet
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    #[test]
    fn captured_adapter_packet_verifies() {
        // A congestion notification of a ConnectX-4 Lx, from the tests of scapy's RoCE layer.
        let captured = bytes(
            "45c2 003c 718c 4000 4011 9161 0a00 1101 0a00 1201 0000 12b7 0028 0000 8100 ffff 4000
             0118 0000 0000 0000 0000 0000 0000 0000 0000 0000 0000 82fd 002a",
        );
        let flow = flow("10.0.17.1:0", "10.0.18.1:4791");
        let (body, identification) = flow.open_foreign(&captured[28..]).unwrap();
        assert_eq!((body.len(), identification), (28, 0x718c));
        assert_eq!(flow.open(&captured[28..]), Err(WireError::Icrc), "not sent by a Halite peer");
    }

    #[test]
    fn place_in_the_train_is_the_identification() {
        let flow = flow("10.0.0.1:5000", "10.0.0.2:6000");
        let mut packet = example(100);
        for place in 0..=PLACE_MAX {
            flow.seal(place, &mut packet);
            assert_eq!(flow.open(&packet).map(|body| body[8] & 0x7f), Ok(place));
            assert_eq!(flow.open_foreign(&packet).map(|(_, id)| id), Ok(u16::from(place)));
            packet[8] ^= 1;
            assert_eq!(flow.open(&packet), Err(WireError::Icrc), "another place is rejected");
            packet[8] ^= 1;
        }
    }

    #[test]
    fn packet_of_another_flow_or_length_is_rejected() {
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
        assert_eq!(ours.open(&vec![0; 1 << 17]), Err(WireError::Truncated), "longer than a datagram");
    }

    proptest! {
        #[test]
        fn up_to_three_flipped_bits_are_detected(flips in prop::collection::btree_set(0usize..200 * 8, 1..=3)) {
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
        fn opening_random_bytes_never_panics(packet in prop::collection::vec(any::<u8>(), 0..100)) {
            let flow = flow("10.0.0.1:5000", "10.0.0.2:6000");
            let _ = flow.open(&packet);
            let _ = flow.open_foreign(&packet);
        }
    }
}
