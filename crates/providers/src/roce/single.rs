//! One datagram at a time, with no more said of it than is needed.
//!
//! The library's receive asks for several, and for the time, the class and the own address of each: a third of a microsecond, which a
//! call over UDP pays twice.

use std::io::{self, IoSliceMut};
use std::mem::{MaybeUninit, offset_of, size_of};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use quinn_udp::RecvMeta;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};

/// What the system says of a train: a header, and the length of each packet but the last.
const CONTROL_BYTES: usize = size_of::<libc::cmsghdr>() + size_of::<u64>();
const SEGMENT_AT: usize = size_of::<libc::cmsghdr>();

/// Aligned as a header is: what is in front of one that is not would be left out, and with it room for the length.
#[repr(align(8))]
struct Control([MaybeUninit<u8>; CONTROL_BYTES]);

/// Has the system say nothing of a datagram that its receiver does not look at.  The library has turned all of it on.
pub(super) fn say_less(socket: &UdpSocket) {
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
        // SAFETY: the kernel reads an int, which outlives the call.  Options of another family fail, which means that they are off.
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const off).cast(), len) };
    }
}

/// Receives one datagram, or the train that it begins, if one waits.
pub(super) fn receive(socket: &UdpSocket, bytes: &mut [u8]) -> io::Result<RecvMeta> {
    let mut space = Control([MaybeUninit::new(0u8); CONTROL_BYTES]);
    let mut control = RecvAncillaryBuffer::new(&mut space.0);
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::DONTWAIT)?;
    drop(control);
    let address = received.address.ok_or(io::ErrorKind::InvalidData)?;
    let mut meta = RecvMeta::default();
    meta.addr = SocketAddr::try_from(address)?;
    meta.len = received.bytes;
    meta.stride = segment_of(&space.0).unwrap_or(received.bytes);
    Ok(meta)
}

/// The length of the packets of a train, if it is one.
fn segment_of(space: &[MaybeUninit<u8>; CONTROL_BYTES]) -> Option<usize> {
    let int_at = |at: usize| {
        // SAFETY: all bytes were set to 0 when the space was made, and the kernel only ever sets them.
        let bytes = std::array::from_fn(|index| unsafe { space[at + index].assume_init() });
        libc::c_int::from_ne_bytes(bytes)
    };
    let level = int_at(offset_of!(libc::cmsghdr, cmsg_level));
    let kind = int_at(offset_of!(libc::cmsghdr, cmsg_type));
    let is_train = (level, kind) == (libc::SOL_UDP, libc::UDP_GRO);
    is_train.then(|| usize::try_from(int_at(SEGMENT_AT)).ok()).flatten()
}
