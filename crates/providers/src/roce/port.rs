//! The socket: trains of packets out, batches of datagrams in.
//!
//! A train is a row of packets of one length, of which the last may be shorter: one system call, and one walk through the kernel.
//! The socket forbids fragments and is not connected, so the identification of a packet is its place in its train, see
//! [`halite_rnic::wire::icrc`].  Where a train is refused, its packets leave one by one.

use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use halite_rnic::Mtu;
use halite_rnic::wire::{Flow, HEADER_BYTES_MAX, ICRC_BYTES, PLACE_MAX};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::capture::Capture;

/// What is asked of the system; it gives as much as its administrator allows.
const RECEIVE_BYTES_WANTED: usize = 4 << 20;
/// Most bytes of a train: a datagram of IPv4.
const TRAIN_BYTES_MAX: usize = 65507;
/// Most packets of a train that all kernels take.
const TRAIN_PACKETS_MAX: usize = 64;
/// Datagrams, or trains, that one call receives.
const BATCH: usize = 8;
/// Headers of UDP, and of each version of IP.
const UDP_BYTES: usize = 8;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
/// Any port will do: nothing is sent there.
const DISCARD: u16 = 9;
/// What the kernel may hand over at a time.
const RECEIVED_BYTES_MAX: usize = 1 << 16;

/// A socket with a port of its own.
#[derive(Debug)]
pub(super) struct Port {
    socket: UdpSocket,
    state: UdpSocketState,
    /// Where packets come from and go to, unless another one is said.
    address: SocketAddr,
    /// More addresses of this host, if the socket has all of them.
    others: Vec<IpAddr>,
    /// Whether it takes addresses of IPv4 as those of IPv6.
    maps: bool,
    /// What its receive buffer holds, by the kernel's count.
    room_bytes: usize,
    /// Trains and packets that the system did not take.
    unsent: AtomicU64,
    capture: Option<Capture>,
}

impl Port {
    /// With that address, or these: a socket has one, or all of its host.
    pub(super) fn bind(address: IpAddr, others: &[IpAddr]) -> io::Result<Port> {
        let maps = !others.is_empty() && others.iter().chain([&address]).any(IpAddr::is_ipv6);
        let socket = match maps {
            true => bind_both()?,
            false if others.is_empty() => UdpSocket::bind((address, 0))?,
            false => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?,
        };
        let state = UdpSocketState::new((&socket).into())?;
        // A smaller one will do.
        let _ = state.set_recv_buffer_size((&socket).into(), RECEIVE_BYTES_WANTED);
        let room_bytes = state.recv_buffer_size((&socket).into())?;
        let address = SocketAddr::new(address, socket.local_addr()?.port());
        let (others, unsent) = (others.to_vec(), AtomicU64::new(0));
        Ok(Port { socket, state, address, others, maps, room_bytes, unsent, capture: None })
    }

    /// Writes all packets there from now on.
    pub(super) fn capture_to(&mut self, capture: Capture) {
        self.capture = Some(capture);
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where packets of who meets us at `own` come to.
    pub(super) fn address_as(&self, own: Option<IpAddr>) -> SocketAddr {
        let own = own.filter(|_| !self.others.is_empty()).unwrap_or(self.address.ip());
        SocketAddr::new(own, self.address.port())
    }

    /// Where packets from that address of this host come to: the first that is of its kind.
    pub(super) fn address_for(&self, host: IpAddr) -> SocketAddr {
        let mut all = [self.address.ip()].into_iter().chain(self.others.iter().copied());
        self.address_as(all.find(|own| own.is_ipv4() == host.is_ipv4()))
    }

    /// Whether that is an address of this host, as far as we have heard.
    pub(super) fn is_of_this_host(&self, address: IpAddr) -> bool {
        address.is_loopback() || address == self.address.ip() || self.others.contains(&address)
    }

    /// How many full packets of `payload` bytes its buffer holds at least: the kernel counts what it has taken for each.
    pub(super) fn room_packets(&self, payload: u32) -> u32 {
        // Headers of ours and of the kernel, rounded up to what its allocator gives, and the packet's own bookkeeping.
        let each = (payload + 800).next_power_of_two() + 256;
        (self.room_bytes as u32 / each).max(1)
    }

    /// The most payload of packets to a host that fit into frames all the way there, as far as the system knows it.
    pub(super) fn mtu_to(&self, host: IpAddr) -> io::Result<Mtu> {
        // The system tells it of sockets that are connected, which ours is not.
        let any = if host.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let own = if self.others.is_empty() { self.address.ip() } else { any };
        let socket = UdpSocket::bind((own, 0))?;
        socket.connect((host, DISCARD))?;
        let (packet_bytes_max, ip_bytes) = match host {
            IpAddr::V4(_) => (sockopt::ip_mtu(&socket)?, IPV4_BYTES),
            IpAddr::V6(_) => (sockopt::ipv6_mtu(&socket)?, IPV6_BYTES),
        };
        Ok(mtu_within(packet_bytes_max as usize, ip_bytes))
    }

    pub(super) fn unsent(&self) -> u64 {
        self.unsent.load(Relaxed)
    }

    /// Calls `write` with room for packets until it writes none, and sends what it has written from the first of `ends` to the second.
    pub(super) fn send_all(
        &self,
        flow: &Flow,
        ends: (SocketAddr, SocketAddr),
        packet_bytes_max: usize,
        mut write: impl FnMut(&mut [u8]) -> Option<usize>,
    ) {
        thread_local! {
            static BYTES: RefCell<Box<[u8]>> = RefCell::new(vec![0; TRAIN_BYTES_MAX].into_boxed_slice());
        }
        BYTES.with_borrow_mut(|bytes| {
            let mut train = Train { port: self, flow, ends, bytes, len: 0, segment: 0, packets: 0 };
            while let Some(len) = write(train.room(packet_bytes_max)) {
                train.add(len);
            }
            train.leave();
        });
    }

    fn send_train(&self, flow: &Flow, ends: (SocketAddr, SocketAddr), bytes: &mut [u8], segment: usize) {
        if bytes.len() <= segment {
            return self.send_one(ends, bytes);
        }
        match self.transmit(ends, bytes, Some(segment)) {
            Ok(()) => self.capture_sent(ends, bytes, segment),
            // As good as lost; what is missing is sent again.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.unsent.fetch_add(1, Relaxed);
            }
            Err(_) => {
                for packet in bytes.chunks_mut(segment) {
                    flow.seal(0, packet);
                    self.send_one(ends, packet);
                }
            }
        }
    }

    /// Cheaper than through the library, whose control messages say what is the default.
    fn send_one(&self, ends: (SocketAddr, SocketAddr), packet: &[u8]) {
        let sent = match self.others[..] {
            [] => self.socket.send_to(packet, ends.1).map(drop),
            _ => self.transmit(ends, packet, None),
        };
        match sent {
            Ok(()) => self.capture_sent(ends, packet, packet.len()),
            Err(_) => {
                self.unsent.fetch_add(1, Relaxed);
            }
        }
    }

    fn transmit(
        &self,
        (own, target): (SocketAddr, SocketAddr),
        bytes: &[u8],
        segment_size: Option<usize>,
    ) -> io::Result<()> {
        let destination = match target.ip() {
            IpAddr::V4(ip) if self.maps => SocketAddr::new(ip.to_ipv6_mapped().into(), target.port()),
            _ => target,
        };
        // A socket with all addresses does not know by itself which of them the peer expects.
        let src_ip = Some(own.ip()).filter(|_| !self.others.is_empty());
        let transmit = Transmit { destination, ecn: None, contents: bytes, segment_size, src_ip };
        self.state.try_send((&self.socket).into(), &transmit)
    }

    fn capture_sent(&self, (own, target): (SocketAddr, SocketAddr), bytes: &[u8], segment: usize) {
        if let Some(capture) = &self.capture {
            capture.write(bytes.chunks(segment).map(|packet| (own, target, packet)));
        }
    }

    /// Receives once, and says whether more may wait.
    pub(super) fn receive(&self, batch: &mut Batch) -> bool {
        let mut targets = batch.bytes.chunks_mut(RECEIVED_BYTES_MAX).map(IoSliceMut::new);
        let mut targets: [IoSliceMut<'_>; BATCH] =
            std::array::from_fn(|_| targets.next().expect("as many as there are"));
        // To ask for more than there is costs a third of a microsecond: where calls come one by one, one is asked for.
        let wanted = if batch.full_in_a_row < 2 { 1 } else { BATCH };
        let received = self.state.recv((&self.socket).into(), &mut targets[..wanted], &mut batch.metas);
        // Whatever went wrong, nothing has come.
        batch.count = received.unwrap_or(0);
        let is_full = batch.count == wanted;
        batch.full_in_a_row = if is_full { batch.full_in_a_row.saturating_add(1) } else { 0 };
        if let Some(capture) = self.capture.as_ref().filter(|_| batch.count > 0) {
            let own = |meta: &RecvMeta| self.address_as(meta.dst_ip.map(|own| own.to_canonical()));
            capture.write(batch.with_metas().map(|(meta, packet)| (canonical(meta.addr), own(meta), packet)));
        }
        is_full
    }

    /// Most packets of a train.
    fn train_packets_max(&self) -> usize {
        self.state.max_gso_segments().min(TRAIN_PACKETS_MAX).min(usize::from(PLACE_MAX) + 1)
    }
}

/// An address of IPv4 as that, also where the socket takes it as one of IPv6.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// A socket with all addresses of this host, of both kinds.
fn bind_both() -> io::Result<UdpSocket> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET6, SocketType::DGRAM, flags, None)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    rustix::net::bind(&socket, &SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0))?;
    Ok(socket.into())
}

/// The most payload of packets that have at most so many bytes, from their header of IP on.
fn mtu_within(packet_bytes_max: usize, ip_bytes: usize) -> Mtu {
    let payload = packet_bytes_max.saturating_sub(ip_bytes + UDP_BYTES + HEADER_BYTES_MAX + ICRC_BYTES);
    let fitting = Mtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() as usize <= payload);
    // Less cannot be had.
    fitting.unwrap_or(Mtu::Bytes256)
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Packets to one target that have not left yet.
struct Train<'a> {
    port: &'a Port,
    flow: &'a Flow,
    /// Ours, and the peer's.
    ends: (SocketAddr, SocketAddr),
    bytes: &'a mut [u8],
    len: usize,
    /// Length of each packet but the last.
    segment: usize,
    packets: usize,
}

impl Train<'_> {
    /// Where the next packet is to be written.
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.bytes.len() - self.len < bytes {
            self.leave();
        }
        &mut self.bytes[self.len..]
    }

    /// A packet of this length was written there.
    fn add(&mut self, len: usize) {
        let is_closed = self.len < self.packets * self.segment;
        if self.packets > 0
            && (is_closed || len > self.segment || self.packets >= self.port.train_packets_max())
        {
            let begin = self.len;
            self.leave();
            // Only a short one moves, or the first of the next train.
            self.bytes.copy_within(begin..begin + len, 0);
        }
        if self.packets == 0 {
            self.segment = len;
        }
        self.flow.seal(self.packets as u8, &mut self.bytes[self.len..self.len + len]);
        self.len += len;
        self.packets += 1;
    }

    fn leave(&mut self) {
        if self.packets > 0 {
            self.port.send_train(self.flow, self.ends, &mut self.bytes[..self.len], self.segment);
            (self.len, self.packets) = (0, 0);
        }
    }
}

/// What was received at a time.
#[derive(Debug)]
pub(super) struct Batch {
    bytes: Box<[u8]>,
    metas: [RecvMeta; BATCH],
    count: usize,
    /// How often as much came as was asked for.
    full_in_a_row: u32,
}

impl Batch {
    pub(super) fn new() -> Batch {
        let bytes = vec![0; BATCH * RECEIVED_BYTES_MAX].into_boxed_slice();
        Batch { bytes, metas: [RecvMeta::default(); BATCH], count: 0, full_in_a_row: 0 }
    }

    /// How many datagrams hold nothing, and so are no packets.
    pub(super) fn empty(&self) -> u64 {
        self.metas[..self.count].iter().filter(|meta| meta.len == 0).count() as u64
    }

    /// How often as much came as was asked for.
    pub(super) fn full_in_a_row(&self) -> u32 {
        self.full_in_a_row
    }

    /// Each packet, and where it came from.
    pub(super) fn packets(&self) -> impl Iterator<Item = (SocketAddr, &[u8])> {
        self.with_metas().map(|(meta, packet)| (canonical(meta.addr), packet))
    }

    fn with_metas(&self) -> impl Iterator<Item = (&RecvMeta, &[u8])> {
        let trains = self.bytes.chunks(RECEIVED_BYTES_MAX).zip(&self.metas).take(self.count);
        trains.flat_map(|(bytes, meta)| {
            bytes[..meta.len].chunks(meta.stride.max(1)).map(move |packet| (meta, packet))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::fd::AsRawFd;

    use halite_rnic::wire::ICRC_BYTES;

    use super::*;

    const BTH_BYTES: usize = 12;
    const PACKET_BYTES: usize = BTH_BYTES + 100 + ICRC_BYTES;
    const PLACE_BYTE: usize = 8;

    /// Sends packets that hold these numbers.
    fn send(port: &Port, flow: &Flow, target: SocketAddr, numbers: std::ops::Range<u8>) {
        let mut numbers = numbers;
        port.send_all(flow, (port.address(), target), PACKET_BYTES, |buffer| {
            let number = numbers.next()?;
            buffer[..PACKET_BYTES].fill(number);
            Some(PACKET_BYTES)
        });
    }

    /// The number and the place in its train of each packet, all of which have a right ICRC.
    fn receive(port: &Port, flow: &Flow, count: usize) -> Vec<(u8, u8)> {
        let (mut batch, mut received) = (Batch::new(), Vec::new());
        while received.len() < count {
            port.receive(&mut batch);
            received.extend(batch.packets().map(|(_, packet)| {
                let body = flow.open(packet).expect("the identification is that of its place");
                (body[BTH_BYTES], body[PLACE_BYTE] & PLACE_MAX)
            }));
        }
        received
    }

    fn ports() -> (Port, Port, Flow) {
        let [from, to] = [(); 2].map(|()| Port::bind(Ipv4Addr::LOCALHOST.into(), &[]).unwrap());
        let flow = Flow::new(from.address(), to.address());
        (from, to, flow)
    }

    #[test]
    fn packets_of_one_length_leave_in_a_train() {
        let (from, to, flow) = ports();
        send(&from, &flow, to.address(), 0..5);
        assert_eq!(receive(&to, &flow, 5), [0, 1, 2, 3, 4].map(|number| (number, number)));
    }

    #[test]
    fn where_the_kernel_refuses_trains_each_packet_leaves_by_itself() {
        let (from, to, flow) = ports();
        // Linux makes no trains without checksums of UDP: it says EINVAL, and takes single packets.
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
        send(&from, &flow, to.address(), 0..5);
        assert_eq!(receive(&to, &flow, 5), [0, 1, 2, 3, 4].map(|number| (number, 0)));
        assert_eq!((from.unsent(), from.train_packets_max()), (0, 1), "it is not asked for again");
        send(&from, &flow, to.address(), 5..8);
        assert_eq!(receive(&to, &flow, 3), [5, 6, 7].map(|number| (number, 0)));
    }

    #[test]
    fn an_empty_datagram_is_no_packet_and_counts() {
        let (from, to, _) = ports();
        from.socket.send_to(&[], to.address()).unwrap();
        let mut batch = Batch::new();
        while batch.count == 0 {
            to.receive(&mut batch);
        }
        assert_eq!((batch.packets().count(), batch.empty()), (0, 1));
    }

    #[test]
    fn packets_fit_into_frames_with_all_their_headers() {
        for (frame, ip, expected) in [
            (65536, IPV4_BYTES, Mtu::Bytes4096),
            (9000, IPV6_BYTES, Mtu::Bytes4096),
            (4200, IPV6_BYTES, Mtu::Bytes4096),
            (4096, IPV4_BYTES, Mtu::Bytes2048),
            (1500, IPV4_BYTES, Mtu::Bytes1024),
            (1280, IPV6_BYTES, Mtu::Bytes1024),
            (1100, IPV6_BYTES, Mtu::Bytes512),
            (68, IPV4_BYTES, Mtu::Bytes256),
        ] {
            assert_eq!(mtu_within(frame, ip), expected, "{frame}");
        }
    }
}
