//! A UDP socket: sends trains of packets and receives batches of datagrams.
//!
//! A train is a sequence of packets that one system call sends (UDP segmentation offload). The packets have equal
//! length; only the last one may be shorter. The socket forbids fragmentation and is not connected, so Linux sets the
//! IPv4 identification of a packet to its position in its train, see [`halite_rnic::wire::icrc`]. If the kernel refuses
//! a train, the socket sends its packets one by one.

use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::Instant;

use halite_rnic::Mtu;
use halite_rnic::room::Room;
use halite_rnic::stateless::Responder;
use halite_rnic::wire::{Flow, HEADER_BYTES_MAX, ICRC_BYTES, PLACE_MAX};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};

use super::capture::Capture;
use super::connection::Connection;
use super::scope::{own_scoped, scope_of, scoped, unscoped};
use super::sharing::Sharing;
use super::stateless::new_responder;
use super::{read, single, write};

/// Maximum length of a train in bytes: the largest datagram of IPv4.
const TRAIN_BYTES_MAX: usize = 65507;
/// Maximum number of packets of a train that all kernels accept.
const TRAIN_PACKETS_MAX: usize = 64;
/// Time in ns for which packets are sent one by one after the system refused a train.
const TRAINS_DISABLED_NS: u64 = 60_000_000_000;
/// Maximum number of datagrams or trains that one call receives.
const BATCH_MAX: usize = 8;
/// Bytes of the UDP header, and of the IP header of each version.
const UDP_BYTES: usize = 8;
pub(super) const IPV4_BYTES: usize = 20;
pub(super) const IPV6_BYTES: usize = 40;
/// Maximum length in bytes of a datagram or train that the kernel delivers.
const RECEIVED_BYTES_MAX: usize = 1 << 16;

/// A UDP socket with its own port.
#[derive(Debug)]
pub(super) struct Port {
    socket: UdpSocket,
    state: RwLock<UdpSocketState>,
    /// End of the time without trains after a refusal, in ns since `opened`; 0 if trains are allowed.
    trains_disabled_until_ns: AtomicU64,
    opened: Instant,
    /// Address and port of the socket.
    address: SocketAddr,
    /// Further addresses of this host; if there are any, the socket is bound to all addresses.
    other_addresses: Vec<IpAddr>,
    /// Number of the interface with the node's link-local address; 0 if it has none.
    scope: u32,
    /// True if the socket needs IPv4 addresses in their IPv6-mapped form.
    maps_ipv4: bool,
    /// Number of trains and packets that the system refused.
    unsent: AtomicU64,
    /// Number of consecutive receives that returned as many packets as requested.
    full_in_a_row: AtomicU32,
    /// True if the system reports the arrival times of packets.
    has_timestamps: AtomicBool,
    /// Index of the receiver thread that receives from this socket; 0 without receivers.
    pub(super) receiver: usize,
    /// Number of peers assigned to this socket: connected peers, and peers with a pending offer.
    pub(super) peers: AtomicUsize,
    /// Division of the receive buffer among the peers.
    pub(super) sharing: Sharing,
    /// Answers the requests of stateless lanes of all peers of this socket.
    pub(super) responder: Mutex<Responder>,
    capture: Arc<OnceLock<Capture>>,
}

impl Port {
    /// Binds a socket to `address`, or to all addresses of the host if `others` is not empty. Requests a receive buffer
    /// of `receive_bytes`; the system may grant less.
    pub(super) fn bind(
        address: IpAddr,
        other_addresses: &[IpAddr],
        receive_bytes: usize,
        receiver: usize,
        capture: Arc<OnceLock<Capture>>,
    ) -> io::Result<Port> {
        let maps_ipv4 =
            !other_addresses.is_empty() && other_addresses.iter().chain([&address]).any(IpAddr::is_ipv6);
        let socket = match maps_ipv4 {
            true => bind_both()?,
            false if other_addresses.is_empty() => UdpSocket::bind(own_scoped(SocketAddr::new(address, 0)))?,
            false => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?,
        };
        let state = new_state(&socket, other_addresses)?;
        // Ignores a failure: a smaller buffer works, too.
        let _ = state.set_recv_buffer_size((&socket).into(), receive_bytes);
        let room = Room::new(state.recv_buffer_size((&socket).into())?);
        let scope =
            [address].iter().chain(other_addresses).map(|own| scope_of(*own)).find(|scope| *scope != 0);
        let address = SocketAddr::new(address, socket.local_addr()?.port());
        Ok(Port {
            socket,
            state: RwLock::new(state),
            trains_disabled_until_ns: AtomicU64::new(0),
            opened: Instant::now(),
            address,
            scope: scope.unwrap_or(0),
            other_addresses: other_addresses.to_vec(),
            maps_ipv4,
            unsent: AtomicU64::new(0),
            full_in_a_row: AtomicU32::new(0),
            has_timestamps: AtomicBool::new(false),
            receiver,
            peers: AtomicUsize::new(0),
            sharing: Sharing::new(room),
            responder: Mutex::new(new_responder()?),
            capture,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of the interface with the node's link-local address; 0 if it has none.
    pub(super) fn scope(&self) -> u32 {
        self.scope
    }

    /// Returns the address `own` with this socket's port.
    pub(super) fn at(&self, own: IpAddr) -> SocketAddr {
        SocketAddr::new(own, self.address.port())
    }

    /// Returns the number of datagrams that the system dropped because the receive buffer was full.
    pub(super) fn overflowed(&self) -> u64 {
        // The counter is the last of these (linux/sock_diag.h: SK_MEMINFO_DROPS).
        let mut counts = [0u32; 9];
        let mut len = size_of_val(&counts) as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `counts`, both of which outlive the call.
        let failed = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_MEMINFO,
                (&raw mut counts).cast(),
                &mut len,
            )
        };
        if failed == 0 { u64::from(counts[8]) } else { 0 }
    }

    /// Makes the system report the arrival times of packets. Without this report, the time of the read counts as the
    /// arrival time.
    pub(super) fn enable_timestamps(&self) {
        if !self.has_timestamps.swap(true, Relaxed) {
            single::enable_timestamps(&self.socket);
        }
    }

    pub(super) fn unsent(&self) -> u64 {
        self.unsent.load(Relaxed)
    }

    /// Calls `next` with room for a packet until `next` returns `None`, and sends these packets from the first address
    /// in `ends` to the second. Sends the packets one by one if `singly` is true, otherwise as trains. Returns the
    /// number of trains that the system refused.
    pub(super) fn send_all(
        &self,
        flow: &Flow,
        ends: (SocketAddr, SocketAddr),
        packet_bytes_max: usize,
        singly: bool,
        mut next: impl FnMut(&mut [u8]) -> Option<usize>,
    ) -> u64 {
        thread_local! {
            static BYTES: RefCell<Box<[u8]>> = RefCell::new(vec![0; TRAIN_BYTES_MAX].into_boxed_slice());
        }
        BYTES.with_borrow_mut(|bytes| {
            let packets_max = if singly { 1 } else { self.train_packets_max() };
            let mut train = Train {
                port: self,
                flow,
                ends,
                bytes,
                packets_max,
                len: 0,
                segment: 0,
                packets: 0,
                refused: 0,
            };
            while let Some(len) = next(train.room(packet_bytes_max)) {
                train.add(len);
            }
            train.send();
            train.refused
        })
    }

    /// Sends a train, or its packets one by one if the system refuses it. Returns false in that case.
    fn send_train(
        &self,
        flow: &Flow,
        ends: (SocketAddr, SocketAddr),
        bytes: &mut [u8],
        segment: usize,
    ) -> bool {
        if bytes.len() <= segment {
            self.send_one(ends, bytes);
            return true;
        }
        match self.transmit(ends, bytes, Some(segment)) {
            Ok(()) => self.capture_sent(ends, bytes, segment),
            // The train counts as lost; its packets are retransmitted.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.unsent.fetch_add(1, Relaxed);
            }
            Err(error) => {
                let mut is_any_sent = false;
                for packet in bytes.chunks_mut(segment) {
                    flow.seal(0, packet);
                    is_any_sent |= self.send_one(ends, packet);
                }
                // A firewall, a link that is down or a path that has become narrow refuses the packets as well.
                if is_any_sent || read(&self.state).max_gso_segments() == 1 {
                    self.on_train_refused(&error);
                }
                return false;
            }
        }
        true
    }

    /// Sends one packet without the library, which would spend time on control messages with default values. Returns
    /// false if the system refuses it.
    fn send_one(&self, ends: (SocketAddr, SocketAddr), packet: &[u8]) -> bool {
        let sent = match self.other_addresses[..] {
            [] => rustix::net::sendto(&self.socket, packet, SendFlags::empty(), &ends.1)
                .map(drop)
                .map_err(io::Error::from),
            _ => self.transmit(ends, packet, None),
        };
        match &sent {
            Ok(()) => self.capture_sent(ends, packet, packet.len()),
            Err(_) => {
                self.unsent.fetch_add(1, Relaxed);
            }
        }
        sent.is_ok()
    }

    fn transmit(
        &self,
        (own, target): (SocketAddr, SocketAddr),
        bytes: &[u8],
        segment_size: Option<usize>,
    ) -> io::Result<()> {
        let destination = match target.ip() {
            IpAddr::V4(ip) if self.maps_ipv4 => SocketAddr::new(ip.to_ipv6_mapped().into(), target.port()),
            _ => scoped(target, self.scope),
        };
        // A socket bound to all addresses would choose a source that the peer may not expect.
        let src_ip = Some(own.ip()).filter(|_| !self.other_addresses.is_empty());
        let transmit = Transmit { destination, ecn: None, contents: bytes, segment_size, src_ip };
        read(&self.state).try_send((&self.socket).into(), &transmit)
    }

    fn capture_sent(&self, (own, target): (SocketAddr, SocketAddr), bytes: &[u8], segment: usize) {
        if let Some(capture) = self.capture.get() {
            capture.write(bytes.chunks(segment).map(|packet| (own, target, packet)));
        }
    }

    /// Receives once from the socket; returns true if more packets may wait.
    pub(super) fn receive(&self, batch: &mut Batch) -> bool {
        // A request for more datagrams than there are costs 0.3 us, so this requests one unless recent receives were
        // full.
        let full_in_a_row = self.full_in_a_row.load(Relaxed);
        let requested = if full_in_a_row < 2 { 1 } else { BATCH_MAX };
        let received = match requested {
            1 if self.other_addresses.is_empty() => self.receive_one(batch),
            _ => self.receive_some(batch, requested),
        };
        // After an error, the batch is empty.
        batch.count = received.unwrap_or(0);
        let is_full = batch.count == requested;
        // Relaxed: one thread at a time receives from a socket.
        self.full_in_a_row.store(if is_full { full_in_a_row.saturating_add(1) } else { 0 }, Relaxed);
        if let Some(capture) = self.capture.get().filter(|_| batch.count > 0) {
            let own = |meta: &RecvMeta| {
                let own =
                    meta.dst_ip.map(|own| own.to_canonical()).filter(|_| !self.other_addresses.is_empty());
                self.at(own.unwrap_or(self.address.ip()))
            };
            capture.write(batch.packets().map(|(meta, packet)| (canonical(meta.addr), own(meta), packet)));
        }
        is_full
    }

    fn receive_one(&self, batch: &mut Batch) -> io::Result<usize> {
        batch.metas[0] = single::receive(&self.socket, &mut batch.bytes[..RECEIVED_BYTES_MAX])?;
        Ok(1)
    }

    fn receive_some(&self, batch: &mut Batch, requested: usize) -> io::Result<usize> {
        let mut targets = batch.bytes.chunks_mut(RECEIVED_BYTES_MAX).map(IoSliceMut::new);
        let mut targets: [IoSliceMut<'_>; BATCH_MAX] =
            std::array::from_fn(|_| targets.next().expect("as many as there are"));
        read(&self.state).recv((&self.socket).into(), &mut targets[..requested], &mut batch.metas)
    }

    /// Returns the capabilities of the socket: the maximum number of packets in a train, whether the kernel delivers
    /// received trains whole, and the size of the receive buffer in bytes as the kernel counts it.
    pub(super) fn capabilities(&self) -> (usize, bool, usize) {
        let receive_bytes = read(&self.state).recv_buffer_size((&self.socket).into()).unwrap_or(0);
        (self.train_packets_max(), read(&self.state).gro_segments() > 1, receive_bytes)
    }

    /// Returns the maximum number of packets of a train.
    fn train_packets_max(&self) -> usize {
        let again_ns = self.trains_disabled_until_ns.load(Relaxed);
        if again_ns > 0 && self.now_ns() >= again_ns {
            self.trains_disabled_until_ns.store(0, Relaxed);
            // After a refusal, the library sends no trains while its state lives; so this replaces the state.
            if let Ok(state) = new_state(&self.socket, &self.other_addresses) {
                *write(&self.state) = state;
            }
        }
        read(&self.state).max_gso_segments().min(TRAIN_PACKETS_MAX).min(usize::from(PLACE_MAX) + 1)
    }

    fn now_ns(&self) -> u64 {
        self.opened.elapsed().as_nanos() as u64
    }

    /// Disables trains for [`TRAINS_DISABLED_NS`].
    fn on_train_refused(&self, error: &io::Error) {
        if self.trains_disabled_until_ns.swap(self.now_ns() + TRAINS_DISABLED_NS, Relaxed) == 0 {
            let seconds = TRAINS_DISABLED_NS / 1_000_000_000;
            tracing::warn!(
                "the system refused a train of packets ({error}): packets are sent one by one for {seconds} s"
            );
        }
    }
}

fn new_state(socket: &UdpSocket, other_addresses: &[IpAddr]) -> io::Result<UdpSocketState> {
    let state = UdpSocketState::new(socket.into())?;
    if other_addresses.is_empty() {
        single::disable_unread_options(socket);
    }
    Ok(state)
}

/// Converts an IPv4 address that is mapped to IPv6 back to IPv4, and removes the scope of an IPv6 address.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => unscoped(address),
    }
}

/// Binds a socket to all addresses of this host, of IPv4 and IPv6.
fn bind_both() -> io::Result<UdpSocket> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET6, SocketType::DGRAM, flags, None)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    rustix::net::bind(&socket, &SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0))?;
    Ok(socket.into())
}

/// Returns the maximum payload of packets of at most `packet_bytes_max`, with an IP header of `ip_bytes`.
pub(super) fn mtu_within(packet_bytes_max: usize, ip_bytes: usize) -> Mtu {
    let payload = packet_bytes_max.saturating_sub(ip_bytes + UDP_BYTES + HEADER_BYTES_MAX + ICRC_BYTES);
    let fitting = Mtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() as usize <= payload);
    // Falls back to the smallest MTU.
    fitting.unwrap_or(Mtu::Bytes256)
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A train that is being filled: packets to one target that have not been sent yet.
struct Train<'a> {
    port: &'a Port,
    flow: &'a Flow,
    /// The local address and the address of the peer.
    ends: (SocketAddr, SocketAddr),
    bytes: &'a mut [u8],
    packets_max: usize,
    len: usize,
    /// Length of each packet but the last.
    segment: usize,
    packets: usize,
    /// Number of trains that the system refused.
    refused: u64,
}

impl Train<'_> {
    /// Returns the buffer for the next packet, with room for `bytes`; sends the train first if it lacks the room.
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.bytes.len() - self.len < bytes {
            self.send();
        }
        &mut self.bytes[self.len..]
    }

    /// Adds a packet of `len` bytes, which the caller has written to [`Train::room`]; sends the train first if the
    /// packet cannot belong to it.
    fn add(&mut self, len: usize) {
        let is_closed = self.len < self.packets * self.segment;
        if self.packets > 0 && (is_closed || len > self.segment || self.packets >= self.packets_max) {
            let begin = self.len;
            self.send();
            // The packet begins a new train: move it to the front.
            self.bytes.copy_within(begin..begin + len, 0);
        }
        if self.packets == 0 {
            self.segment = len;
        }
        self.flow.seal(self.packets as u8, &mut self.bytes[self.len..self.len + len]);
        self.len += len;
        self.packets += 1;
    }

    fn send(&mut self) {
        if self.packets > 0 {
            let train = &mut self.bytes[..self.len];
            self.refused += u64::from(!self.port.send_train(self.flow, self.ends, train, self.segment));
            (self.len, self.packets) = (0, 0);
        }
    }
}

/// The lanes whose acknowledgements the next poll sends: the connection and the index of the lane.
pub(super) type HeldAcks = Vec<(Arc<Connection>, usize)>;

/// The datagrams of one receive call.
#[derive(Debug)]
pub(super) struct Batch {
    bytes: Box<[u8]>,
    metas: [RecvMeta; BATCH_MAX],
    count: usize,
    /// Number of consecutive polls that left packets in the socket.
    full_in_a_row: u32,
    pub(super) held_acks: HeldAcks,
}

impl Batch {
    pub(super) fn new() -> Batch {
        Batch {
            bytes: vec![0; BATCH_MAX * RECEIVED_BYTES_MAX].into_boxed_slice(),
            metas: [RecvMeta::default(); BATCH_MAX],
            count: 0,
            full_in_a_row: 0,
            held_acks: Vec::new(),
        }
    }

    /// Returns the number of empty datagrams, which are not packets.
    pub(super) fn empty(&self) -> u64 {
        self.metas[..self.count].iter().filter(|meta| meta.len == 0).count() as u64
    }

    /// Counts consecutive polls that left packets in the socket. `is_more` is true if the present poll did.
    pub(super) fn on_polled(&mut self, is_more: bool) {
        self.full_in_a_row = if is_more { self.full_in_a_row.saturating_add(1) } else { 0 };
    }

    /// Returns the number of consecutive polls that left packets in the socket.
    pub(super) fn full_in_a_row(&self) -> u32 {
        self.full_in_a_row
    }

    /// Returns true if the system has given the arrival time of the first packet.
    pub(super) fn has_timestamps(&self) -> bool {
        self.metas[..self.count].first().is_some_and(|meta| meta.timestamp.is_some())
    }

    /// Returns each packet with its metadata, such as its source address.
    pub(super) fn packets(&self) -> impl Iterator<Item = (&RecvMeta, &[u8])> {
        let trains = self.bytes.chunks(RECEIVED_BYTES_MAX).zip(&self.metas).take(self.count);
        trains.flat_map(|(bytes, meta)| {
            bytes[..meta.len].chunks(meta.stride.max(1)).map(move |packet| (meta, packet))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use halite_rnic::wire::ICRC_BYTES;

    use super::*;

    const BTH_BYTES: usize = 12;
    const PACKET_BYTES: usize = BTH_BYTES + 100 + ICRC_BYTES;
    const PLACE_BYTE: usize = 8;

    /// Sends packets that contain these numbers. Returns the number of refused trains.
    fn send(port: &Port, flow: &Flow, target: SocketAddr, numbers: std::ops::Range<u8>) -> u64 {
        let mut numbers = numbers;
        port.send_all(flow, (port.address(), target), PACKET_BYTES, false, |buffer| {
            let number = numbers.next()?;
            buffer[..PACKET_BYTES].fill(number);
            Some(PACKET_BYTES)
        })
    }

    /// Returns the number and the position in its train of each packet, all of which must have a valid ICRC.
    fn receive(port: &Port, flow: &Flow, count: usize) -> Vec<(u8, u8)> {
        let (mut batch, mut received) = (Batch::new(), Vec::new());
        while received.len() < count {
            port.receive(&mut batch);
            received.extend(batch.packets().map(|(_, packet)| {
                let body = flow.open(packet).expect("the checksum covers the position in the train");
                (body[BTH_BYTES], body[PLACE_BYTE] & PLACE_MAX)
            }));
        }
        received
    }

    fn ports() -> (Port, Port, Flow) {
        let bind = || Port::bind(Ipv4Addr::LOCALHOST.into(), &[], 1 << 20, 0, Arc::default()).unwrap();
        let [from, to] = [bind(), bind()];
        let flow = Flow::new(from.address(), to.address());
        (from, to, flow)
    }

    #[test]
    fn packets_leave_one_by_one_if_the_kernel_refuses_trains() {
        let (from, to, flow) = ports();
        // Without UDP checksums, Linux refuses trains with EINVAL, but accepts single packets.
        let without_checksums: libc::c_int = 1;
        // SAFETY: the kernel reads an int, which outlives the call.
        let failed = unsafe {
            libc::setsockopt(
                from.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_NO_CHECK,
                (&raw const without_checksums).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        assert_eq!(failed, 0);
        assert_eq!(send(&from, &flow, to.address(), 0..5), 1);
        assert_eq!(receive(&to, &flow, 5), [0, 1, 2, 3, 4].map(|number| (number, 0)));
        assert_eq!(
            (from.unsent(), from.train_packets_max()),
            (0, 1),
            "the socket sends no trains for a while"
        );
        assert_eq!(send(&from, &flow, to.address(), 5..8), 0);
        assert_eq!(receive(&to, &flow, 3), [5, 6, 7].map(|number| (number, 0)));
        from.trains_disabled_until_ns.store(1, Relaxed);
        assert!(from.train_packets_max() > 1, "the socket sends trains again");
    }

    #[test]
    fn a_refusal_of_all_packets_disables_no_trains() {
        let (from, _to, flow) = ports();
        // Linux refuses packets to this address with EACCES, unless the socket asks for broadcasts.
        send(&from, &flow, SocketAddr::new(Ipv4Addr::BROADCAST.into(), 7000), 0..5);
        assert_eq!(from.unsent(), 5);
        assert!(from.train_packets_max() > 1);
    }

    #[test]
    fn packets_fit_into_frames_with_all_their_headers() {
        for (frame, ip, expected) in [
            (65536, IPV4_BYTES, Mtu::Bytes4096),
            (9000, IPV6_BYTES, Mtu::Bytes4096),
            (4200, IPV6_BYTES, Mtu::Bytes4096),
            (4096, IPV4_BYTES, Mtu::Bytes2048),
            (1500, IPV4_BYTES, Mtu::Bytes1408),
            (1500, IPV6_BYTES, Mtu::Bytes1408),
            (1499, IPV6_BYTES, Mtu::Bytes1024),
            (1280, IPV6_BYTES, Mtu::Bytes1024),
            (1100, IPV6_BYTES, Mtu::Bytes512),
            (68, IPV4_BYTES, Mtu::Bytes256),
        ] {
            assert_eq!(mtu_within(frame, ip), expected, "{frame}");
        }
    }
}
