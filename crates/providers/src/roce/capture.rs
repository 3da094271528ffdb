//! A fabric's own packets in a file, as a network would show them: nanosecond pcap without link headers.
//!
//! ```text
//!  magic 0xa1b23c4d | version 2.4 | zeros 8 | bytes kept 65535 | link type 101          of the file
//!  seconds | nanoseconds | length | length | IP header | UDP header | packet            of each packet, both ways
//! ```
//!
//! The kernel makes the IP and UDP headers, so here they are made again: the identification of IPv4 is the place in the train, which
//! the packet says, see [`halite_rnic::wire::icrc`].  What a socket does not show is written as our kernel sends it: 64 hops, no
//! marks of congestion, no label.
//!
//! What one call sends or receives is written by one call, and nothing is kept back.  The file ends with a whole packet: at the most
//! bytes that were asked for, and where the disk is full.  The fabric goes on without it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;

use super::lock;

/// Bytes before the first record.
const FILE_HEADER_BYTES: usize = 24;
/// Bytes before a packet of a record.
const RECORD_HEADER_BYTES: usize = 16;
/// Packets that begin with an IP header.
const LINK_TYPE_RAW: u32 = 101;
const UDP_BYTES: usize = 8;
/// The byte of a packet that says its place in its train, below the highest bit.
const PLACE_BYTE: usize = 8;

/// See the header of this file.
#[derive(Debug)]
pub(super) struct Capture(Mutex<Sink>);

#[derive(Debug)]
struct Sink {
    file: File,
    /// What is being written, kept for its room.
    records: Vec<u8>,
    written: u64,
    bytes_max: u64,
    is_over: bool,
}

impl Capture {
    /// Into a file of its own, of which nothing is left that stood there.
    pub(super) fn create(path: &Path, bytes_max: u64) -> io::Result<Capture> {
        let mut options = OpenOptions::new();
        // A FIFO that nobody reads is refused in place of waited for; what peers say is not for everybody's eyes.
        options.write(true).create(true).mode(0o600).custom_flags(OFlags::NONBLOCK.bits() as i32);
        let file = options.open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        file.try_lock()?;
        file.set_len(0)?;
        Capture::of(file, bytes_max)
    }

    fn of(mut file: File, bytes_max: u64) -> io::Result<Capture> {
        let mut header = Vec::with_capacity(FILE_HEADER_BYTES);
        header.extend(0xa1b2_3c4d_u32.to_le_bytes());
        header.extend([2, 0, 4, 0]);
        header.extend([0; 8]);
        header.extend(0xffff_u32.to_le_bytes());
        header.extend(LINK_TYPE_RAW.to_le_bytes());
        file.write_all(&header)?;
        let written = header.len() as u64;
        Ok(Capture(Mutex::new(Sink { file, records: Vec::new(), written, bytes_max, is_over: false })))
    }

    /// Packets that were sent or received together, each with its source and target.
    pub(super) fn write<'a>(&self, packets: impl Iterator<Item = (SocketAddr, SocketAddr, &'a [u8])>) {
        let mut sink = lock(&self.0);
        if sink.is_over {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = [now.as_secs() as u32, now.subsec_nanos()];
        let mut records = std::mem::take(&mut sink.records);
        records.clear();
        let mut room = sink.bytes_max.saturating_sub(sink.written);
        let mut is_full = false;
        for (source, target, packet) in packets {
            let begin = records.len();
            add_record(&mut records, time, source, target, packet);
            let len = (records.len() - begin) as u64;
            if len > room {
                records.truncate(begin);
                is_full = true;
                break;
            }
            room -= len;
        }
        sink.add(&records, is_full);
        sink.records = records;
    }
}

impl Sink {
    fn add(&mut self, records: &[u8], is_full: bool) {
        match self.file.write_all(records) {
            Ok(()) => self.written += records.len() as u64,
            Err(error) => {
                self.is_over = true;
                // What was written of them ends somewhere in a packet.
                let _ = self.file.set_len(self.written);
                tracing::warn!("the capture of packets ends after {} bytes: {error}", self.written);
            }
        }
        if is_full && !self.is_over {
            self.is_over = true;
            tracing::warn!("the packet capture reached its limit of {} bytes and ends", self.bytes_max);
        }
    }
}

fn add_record(records: &mut Vec<u8>, time: [u32; 2], source: SocketAddr, target: SocketAddr, packet: &[u8]) {
    let header = records.len();
    records.extend([0; RECORD_HEADER_BYTES]);
    let begin = records.len();
    add_datagram(records, source, target, packet);
    let len = (records.len() - begin) as u32;
    for (at, number) in [time[0], time[1], len, len].into_iter().enumerate() {
        records[header + 4 * at..][..4].copy_from_slice(&number.to_le_bytes());
    }
}

fn add_datagram(records: &mut Vec<u8>, source: SocketAddr, target: SocketAddr, packet: &[u8]) {
    // No datagram is longer, whatever came.
    let packet = &packet[..packet.len().min(usize::from(u16::MAX) - 20 - UDP_BYTES)];
    let udp_len = (packet.len() + UDP_BYTES) as u16;
    let mut sum = Sum::default();
    match (source.ip().to_canonical(), target.ip().to_canonical()) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            let place = packet.get(PLACE_BYTE).map_or(0, |byte| byte & 0x7f);
            let mut ip = [0; 20];
            ip[0] = 0x45;
            ip[2..4].copy_from_slice(&(udp_len + 20).to_be_bytes());
            ip[4..6].copy_from_slice(&u16::from(place).to_be_bytes());
            // No fragments, 64 hops, UDP.
            [ip[6], ip[8], ip[9]] = [0x40, 64, 17];
            ip[12..16].copy_from_slice(&source.octets());
            ip[16..20].copy_from_slice(&target.octets());
            let mut of_header = Sum::default();
            of_header.add(&ip);
            ip[10..12].copy_from_slice(&of_header.finish().to_be_bytes());
            records.extend(ip);
            sum.add(&ip[12..]);
        }
        (source, target) => {
            let octets = |address| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            let addresses = [octets(source), octets(target)].concat();
            records.extend([0x60, 0, 0, 0]);
            records.extend(udp_len.to_be_bytes());
            records.extend([17, 64]);
            records.extend(&addresses);
            sum.add(&addresses);
        }
    }
    let mut udp = [0; UDP_BYTES];
    for (at, number) in [source.port(), target.port(), udp_len].into_iter().enumerate() {
        udp[2 * at..][..2].copy_from_slice(&number.to_be_bytes());
    }
    sum.add(&[0, 17]);
    sum.add(&udp_len.to_be_bytes());
    sum.add(&udp);
    sum.add(packet);
    // Zero would say that there is none.
    let checksum = Some(sum.finish()).filter(|sum| *sum != 0).unwrap_or(0xffff);
    udp[6..8].copy_from_slice(&checksum.to_be_bytes());
    records.extend(udp);
    records.extend(packet);
}

/// The sum of ones' complements that IP and UDP check; parts but the last have an even length.
#[derive(Default)]
struct Sum(u64);

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        let mut pairs = bytes.chunks_exact(2);
        for pair in &mut pairs {
            self.0 += u64::from(u16::from_be_bytes([pair[0], pair[1]]));
        }
        if let [last] = pairs.remainder() {
            self.0 += u64::from(*last) << 8;
        }
    }

    fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        !(sum as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet_of(len: usize) -> Vec<u8> {
        (0..len).map(|index| index as u8).collect()
    }

    /// Sums to all ones, checksum included, if that is right.
    fn is_sum_right(bytes: &[u8]) -> bool {
        let mut sum = Sum::default();
        sum.add(bytes);
        sum.finish() == 0
    }

    #[test]
    fn headers_of_a_datagram_are_those_that_a_host_sends() {
        // The checksum of the header by hand: 0x26ca.
        let mut datagram = Vec::new();
        let (source, target) = ("10.0.0.1:4660".parse().unwrap(), "10.0.0.2:9".parse().unwrap());
        add_datagram(&mut datagram, source, target, b"hello");
        let expected = [
            0x45, 0, 0, 33, 0, 0, 0x40, 0, 64, 17, 0x26, 0xca, 10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0x34, 0, 9, 0,
            13,
        ];
        assert_eq!(datagram[..26], expected);
        assert_eq!(&datagram[28..], b"hello");
        assert!(is_sum_right(&datagram[..20]));
        let pseudo = [&datagram[12..20], &[0, 17, 0, 13], &datagram[20..]].concat();
        assert!(is_sum_right(&pseudo));
    }

    #[test]
    fn a_packet_over_ipv6_has_its_own_headers() {
        let mut datagram = Vec::new();
        let (source, target) = ("[fe80::1]:1".parse().unwrap(), "[fe80::2]:2".parse().unwrap());
        add_datagram(&mut datagram, source, target, &packet_of(31));
        assert_eq!(datagram.len(), 40 + 8 + 31);
        assert_eq!(datagram[..8], [0x60, 0, 0, 0, 0, 39, 17, 64]);
        assert!(is_sum_right(&[&datagram[8..40], &[0, 17, 0, 39], &datagram[40..]].concat()));
    }

    /// A file without a name.
    fn scratch() -> File {
        let fd = rustix::fs::memfd_create("capture", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        File::from(fd)
    }

    fn write(capture: &Capture, packets: &[&[u8]]) {
        let (source, target) = ("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
        capture.write(packets.iter().map(|packet| (source, target, *packet)));
    }

    fn len_of(capture: &Capture) -> u64 {
        lock(&capture.0).file.metadata().unwrap().len()
    }

    #[test]
    fn a_file_that_has_its_most_bytes_ends_with_a_whole_packet() {
        let each = (RECORD_HEADER_BYTES + 28 + 100) as u64;
        let capture = Capture::of(scratch(), FILE_HEADER_BYTES as u64 + 3 * each - 1).unwrap();
        let packet = packet_of(100);
        write(&capture, &[&packet]);
        write(&capture, &[&packet, &packet, &packet]);
        write(&capture, &[b"short"]);
        assert_eq!(len_of(&capture), FILE_HEADER_BYTES as u64 + 2 * each, "and nothing behind a gap");
    }

    #[test]
    fn where_the_disk_is_full_the_file_ends_with_a_whole_packet() {
        let file = scratch();
        let room = (FILE_HEADER_BYTES + RECORD_HEADER_BYTES + 28 + 100 + 50) as u64;
        file.set_len(room).unwrap();
        rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::GROW).unwrap();
        let capture = Capture::of(file, u64::MAX).unwrap();
        for _ in 0..3 {
            write(&capture, &[&packet_of(100)]);
        }
        assert_eq!(len_of(&capture), room - 50);
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let error = Capture::create(Path::new("/dev/null"), u64::MAX).unwrap_err();
        assert_eq!(error.to_string(), "it is not a regular file");
        assert!(Capture::create(&std::env::temp_dir(), u64::MAX).is_err());
    }
}
