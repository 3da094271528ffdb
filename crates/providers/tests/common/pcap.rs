//! Reads UDP datagrams from captures: pcap of Ethernet or raw IP. Shares no code with the writer.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

/// A datagram as it is on the wire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Datagram {
    pub source: SocketAddr,
    pub target: SocketAddr,
    /// Time since the Unix epoch, with the resolution of the capture: 1 us or 1 ns.
    pub time: Duration,
    /// Bytes from the IP header on.
    pub ip: Vec<u8>,
    /// Offset of the UDP payload.
    at: usize,
}

impl Datagram {
    /// Returns the UDP payload.
    pub fn payload(&self) -> &[u8] {
        &self.ip[self.at..]
    }

    /// Returns the identification field of IPv4.
    pub fn identification(&self) -> u16 {
        u16_at(&self.ip, 4)
    }

    /// Parses an IP packet that carries UDP and has no options; `None` for others.
    pub fn parse(ip: &[u8], time: Duration) -> Option<Datagram> {
        let version = ip.first()? >> 4;
        let (total, protocol, source, target, udp): (_, _, IpAddr, IpAddr, _) = match version {
            4 if ip[0] == 0x45 && ip.len() >= 20 => {
                let address = |at: usize| <[u8; 4]>::try_from(&ip[at..at + 4]).unwrap().into();
                (usize::from(u16_at(ip, 2)), ip[9], address(12), address(16), 20)
            }
            6 if ip.len() >= 40 => {
                let address = |at: usize| <[u8; 16]>::try_from(&ip[at..at + 16]).unwrap().into();
                (usize::from(u16_at(ip, 4)) + 40, ip[6], address(8), address(24), 40)
            }
            _ => return None,
        };
        if protocol != 17 || total < udp + 8 {
            return None;
        }
        // Ethernet pads short packets.
        let ip = ip.get(..total)?.to_vec();
        let (from, to) = (u16_at(&ip, udp), u16_at(&ip, udp + 2));
        assert_eq!(usize::from(u16_at(&ip, udp + 4)), total - udp, "the length in the UDP header");
        Some(Datagram { source: (source, from).into(), target: (target, to).into(), time, ip, at: udp + 8 })
    }
}

/// Returns all datagrams of a complete capture.
pub fn datagrams(path: &Path) -> Vec<Datagram> {
    let bytes = fs::read(path).unwrap();
    assert!(bytes.len() >= 24, "{} is not a capture", path.display());
    let fraction_ns = match u32_at(&bytes, 0) {
        0xa1b2_3c4d => 1,
        0xa1b2_c3d4 => 1000,
        other => panic!("magic {other:#x}"),
    };
    let link = match u32_at(&bytes, 20) {
        1 => 14,
        101 => 0,
        other => panic!("link type {other}"),
    };
    let (mut found, mut rest) = (Vec::new(), &bytes[24..]);
    while !rest.is_empty() {
        let len = u32_at(rest, 8) as usize;
        assert_eq!(len, u32_at(rest, 12) as usize, "the capture contains whole packets");
        let (frame, next) = rest[16..].split_at(len);
        let time = Duration::new(u32_at(rest, 0).into(), u32_at(rest, 4) * fraction_ns);
        found.extend(Datagram::parse(&frame[link..], time));
        rest = next;
    }
    found
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
}

/// Reads a field of the file's own headers.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Computes the ICRC of a datagram bit by bit, from its IP header on. Ignores the last four bytes, which contain the
/// ICRC of the sender.
pub fn icrc_of(ip: &[u8]) -> u32 {
    let mut masked = ip.to_vec();
    let transport = match ip[0] >> 4 {
        4 => {
            // Type of service, hop limit and checksum.
            [1, 8, 10, 11].into_iter().for_each(|at| masked[at] = 0xff);
            28
        }
        _ => {
            // Traffic class, flow label and hop limit.
            [1, 2, 3, 7].into_iter().for_each(|at| masked[at] = 0xff);
            masked[0] |= 0x0f;
            48
        }
    };
    // The UDP checksum, and the congestion bits.
    masked[transport - 2..transport].fill(0xff);
    masked[transport + 4] = 0xff;
    let covered = [0xff; 8].iter().chain(&masked[..masked.len() - 4]);
    let mut register = u32::MAX;
    for byte in covered {
        register ^= u32::from(*byte);
        for _ in 0..8 {
            let feedback = if register & 1 == 1 { 0xedb8_8320 } else { 0 };
            register = register >> 1 ^ feedback;
        }
    }
    !register
}
