//! Receives one datagram per call, with only the control messages that the fabric needs.
//!
//! The library `quinn-udp` instead receives several datagrams per call, with the time, the traffic class and the local
//! address of each. That costs a third of a microsecond more per receive, and each request with its response takes two
//! receives.

use std::io::{self, IoSliceMut};
use std::mem::{MaybeUninit, offset_of, size_of};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use quinn_udp::RecvMeta;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};

const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
/// Bytes of the control messages: the arrival time, if requested, and a train's packet length, each after a header.
const CONTROL_BYTES: usize = 2 * HEADER_BYTES + size_of::<libc::timespec>() + size_of::<u64>();

/// Space for control messages, aligned as a header. In unaligned space, the library would skip the first bytes, and the
/// messages would not fit.
#[repr(align(8))]
struct Control([MaybeUninit<u8>; CONTROL_BYTES]);

/// Disables the control messages that the library has enabled and the receiver does not read.
pub(super) fn disable_unread_options(socket: &UdpSocket) {
    let options = [
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
        (libc::IPPROTO_IP, libc::IP_RECVTOS),
        (libc::IPPROTO_IP, libc::IP_PKTINFO),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    ];
    let off: libc::c_int = 0;
    for (level, name) in options {
        let len = size_of_val(&off) as libc::socklen_t;
        // SAFETY: the kernel reads an int, which outlives the call. Options of the other IP version fail; they are off.
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const off).cast(), len) };
    }
}

/// Makes the system report the arrival time of each datagram.
pub(super) fn enable_timestamps(socket: &UdpSocket) {
    let on: libc::c_int = 1;
    let len = size_of_val(&on) as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS);
    // SAFETY: the kernel reads an int, which outlives the call. If it fails, there are no arrival times.
    unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const on).cast(), len) };
}

/// Receives one datagram or train; fails with `WouldBlock` if none has arrived.
pub(super) fn receive(socket: &UdpSocket, bytes: &mut [u8]) -> io::Result<RecvMeta> {
    let mut space = Control([MaybeUninit::new(0u8); CONTROL_BYTES]);
    let mut control = RecvAncillaryBuffer::new(&mut space.0);
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::DONTWAIT)?;
    drop(control);
    let address = received.address.ok_or(io::ErrorKind::InvalidData)?;
    let mut meta = RecvMeta::default();
    meta.addr = SocketAddr::try_from(address)?;
    meta.len = received.bytes;
    let ancillary = Ancillary::read(&space.0);
    meta.stride = ancillary.segment.unwrap_or(received.bytes);
    meta.timestamp = ancillary.stamp;
    Ok(meta)
}

/// Control messages of a datagram.
#[derive(Clone, Copy, Default)]
struct Ancillary {
    /// Length of the packets of a train; `None` for a single datagram.
    segment: Option<usize>,
    /// Arrival time since 1970; `None` if the system gave none.
    stamp: Option<Duration>,
}

impl Ancillary {
    fn read(space: &[MaybeUninit<u8>; CONTROL_BYTES]) -> Ancillary {
        // SAFETY: all bytes were initialized with 0, and the kernel only overwrites them.
        let space = space.map(|byte| unsafe { byte.assume_init() });
        let (mut ancillary, mut at) = (Ancillary::default(), 0);
        while let Some(len) = word(&space, at).filter(|len| (HEADER_BYTES..=CONTROL_BYTES - at).contains(len))
        {
            let int = |at: usize| Some(i32::from_ne_bytes(*space.get(at..)?.first_chunk()?));
            let level = int(at + offset_of!(libc::cmsghdr, cmsg_level));
            let kind = int(at + offset_of!(libc::cmsghdr, cmsg_type));
            let data = at + HEADER_BYTES;
            match (level, kind) {
                (Some(libc::SOL_UDP), Some(libc::UDP_GRO)) => {
                    ancillary.segment = int(data).and_then(|len| usize::try_from(len).ok());
                }
                (Some(libc::SOL_SOCKET), Some(libc::SCM_TIMESTAMPNS)) => {
                    let [seconds, rest] = [0, size_of::<usize>()].map(|at| word(&space, data + at));
                    ancillary.stamp = seconds.zip(rest).map(|(s, ns)| Duration::new(s as u64, ns as u32));
                }
                _ => {}
            }
            at += len.next_multiple_of(size_of::<usize>());
        }
        ancillary
    }
}

/// Returns the word at `at`, in the system's byte order; `None` beyond the end.
fn word(space: &[u8; CONTROL_BYTES], at: usize) -> Option<usize> {
    Some(usize::from_ne_bytes(*space.get(at..)?.first_chunk()?))
}
