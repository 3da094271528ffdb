//! Captures the fabric's packets in a file as a network would carry them. The format is nanosecond pcap without link
//! headers.
//!
//! ```text
//!  magic 0xa1b23c4d | version 2.4 | zeros 8 | bytes kept 65535 | link type 101          file header
//!  seconds | nanoseconds | length | length | IP header | UDP header | packet            per sent or received packet
//! ```
//!
//! The kernel writes the IP and UDP headers and does not show them to a socket, so the capture reconstructs these
//! headers. The IPv4 identification is the packet's position in its train (the packets of one send call), which the
//! packet itself contains; see [`halite_rnic::wire::icrc`]. Fields that a socket cannot read get the kernel's defaults:
//! 64 hops, no congestion marks, no flow label.
//!
//! One unbuffered call writes all packets of one send or receive call. The capture ends when the file reaches its size
//! limit or the disk is full; its last packet is complete, and the fabric continues without the capture.

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
/// Bytes of a record's header.
const RECORD_HEADER_BYTES: usize = 16;
/// Link type of packets that begin with an IP header.
const LINK_TYPE_RAW: u32 = 101;
const UDP_BYTES: usize = 8;
/// Offset of the byte that holds a packet's position in its train, below the highest bit.
const PLACE_BYTE: usize = 8;

/// A capture file that threads share; see the header of this file.
#[derive(Debug)]
pub(super) struct Capture(Mutex<Sink>);

#[derive(Debug)]
struct Sink {
    file: File,
    /// Records of the current write; kept to reuse the allocation.
    records: Vec<u8>,
    written: u64,
    bytes_max: u64,
    is_over: bool,
}

impl Capture {
    /// Creates the capture file, or truncates an existing file. The capture writes at most `bytes_max` bytes.
    pub(super) fn create(path: &Path, bytes_max: u64) -> io::Result<Capture> {
        let mut options = OpenOptions::new();
        // NONBLOCK refuses a FIFO without a reader instead of waiting for one. Mode 0600: packets contain data.
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

    /// Writes packets that one call sent or received, each with its source and target address.
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
                // A partial write ends inside a packet: cut it off.
                let _ = self.file.set_len(self.written);
                tracing::warn!("the packet capture ended after {} bytes: {error}", self.written);
            }
        }
        if is_full && !self.is_over {
            self.is_over = true;
            tracing::warn!("the packet capture ended at its limit of {} bytes", self.bytes_max);
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
    // No datagram is longer; the bound protects the arithmetic below.
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
    // In UDP, a checksum of 0 means that the packet has no checksum.
    let checksum = Some(sum.finish()).filter(|sum| *sum != 0).unwrap_or(0xffff);
    udp[6..8].copy_from_slice(&checksum.to_be_bytes());
    records.extend(udp);
    records.extend(packet);
}

/// Ones' complement sum, the checksum of IP and UDP. All parts but the last must have an even length.
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
