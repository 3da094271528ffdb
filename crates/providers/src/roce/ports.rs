//! The UDP sockets of one fabric: each serves a group of peers.
//!
//! A receive buffer holds few packets ([`halite_rnic::room`]), so few peers share a socket. A new peer is assigned to a
//! socket with room for it, or to a new socket. If the system refuses a new socket, more peers share the existing
//! sockets.
//!
//! ```text
//!   peers         1..16        17..32      ...          assigned from the offer to the end of the connection
//!   sockets      first        further     ...          a further socket is closed when it has no peers
//!                  └────── epoll ──┘                   used only while there are several sockets
//! ```
//!
//! Each receiver ([`super::receivers`]) has its own epoll and sockets, and new peers are spread over the receivers.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock, RwLock};

use halite_rnic::Mtu;
use rustix::event::epoll;
use rustix::net::sockopt;
use rustix::time::Timespec;

use super::capture::Capture;
use super::port::{IPV4_BYTES, IPV6_BYTES, Port, mtu_within};
use super::scope::{own_scoped, scoped};
use super::{RoceConfig, read, write};

/// Maximum number of ready sockets that one call returns; the next call returns the rest.
const READY_MAX: usize = 16;
/// Port to which the socket for a route lookup connects. Any port works, because this socket sends no packets.
const DISCARD_PORT: u16 = 9;

/// All sockets of a fabric; see the header of this file.
#[derive(Debug)]
pub(super) struct Ports {
    address: IpAddr,
    other_addresses: Vec<IpAddr>,
    receive_bytes: usize,
    peers_per_port_max: usize,
    ports_max: usize,
    first: Arc<Port>,
    /// All sockets, starting with the socket of the first peers.
    all: RwLock<Vec<Arc<Port>>>,
    has_several: AtomicBool,
    /// One epoll for all sockets, used while there are several; or one per receiver, always used.
    epolls: Vec<OwnedFd>,
    has_receivers: bool,
    capture: Arc<OnceLock<Capture>>,
    /// Counters of closed sockets.
    unsent: AtomicU64,
    overflowed: AtomicU64,
}

/// The assignment of a peer to a socket, which ends when this value is dropped.
#[derive(Debug)]
pub(super) struct PortUse(Arc<Port>);

impl PortUse {
    fn take(port: &Arc<Port>) -> Arc<PortUse> {
        port.peers.fetch_add(1, Relaxed);
        Arc::new(PortUse(port.clone()))
    }

    pub(super) fn port(&self) -> &Port {
        &self.0
    }
}

impl Drop for PortUse {
    fn drop(&mut self) {
        self.0.peers.fetch_sub(1, Relaxed);
    }
}

impl Ports {
    pub(super) fn open(config: &RoceConfig) -> io::Result<Ports> {
        let (address, other_addresses) = (config.address, config.other_addresses.clone());
        let capture = Arc::<OnceLock<Capture>>::default();
        let first =
            Arc::new(Port::bind(address, &other_addresses, config.receive_bytes, 0, capture.clone())?);
        let epoll = |_| epoll::create(epoll::CreateFlags::CLOEXEC);
        let ports = Ports {
            address,
            other_addresses,
            receive_bytes: config.receive_bytes,
            peers_per_port_max: config.peers_per_socket,
            ports_max: config.sockets_max,
            all: RwLock::new(vec![first.clone()]),
            first,
            has_several: AtomicBool::new(false),
            epolls: (0..config.receivers.max(1)).map(epoll).collect::<Result<_, _>>()?,
            has_receivers: config.receivers > 0,
            capture,
            unsent: AtomicU64::new(0),
            overflowed: AtomicU64::new(0),
        };
        if ports.has_receivers {
            ports.watch(&ports.first)?;
        }
        Ok(ports)
    }

    /// Captures the packets of all sockets in `capture` from now on.
    pub(super) fn capture_to(&self, capture: Capture) {
        self.capture.set(capture).expect("open() starts at most one capture");
    }

    pub(super) fn first(&self) -> &Port {
        &self.first
    }

    pub(super) fn all(&self) -> Vec<Arc<Port>> {
        read(&self.all).clone()
    }

    /// Assigns one more peer to a socket. Also returns true if the set of descriptors that sleepers must watch has
    /// changed.
    pub(super) fn port_use(&self) -> (Arc<PortUse>, bool) {
        let mut all = write(&self.all);
        let peers = |port: &&Arc<Port>| port.peers.load(Relaxed);
        let mut with_room = all.iter().filter(|port| peers(port) < self.peers_per_port_max);
        let chosen = match self.epolls.len() {
            1 => with_room.next(),
            // Assigns the peer to the receiver with the fewest peers, so each receiver has a peer before any has two.
            several => {
                let peers_of = |receiver| {
                    all.iter()
                        .filter(|port| port.receiver == receiver)
                        .map(|port| peers(&port))
                        .sum::<usize>()
                };
                let has_socket = |receiver| all.iter().any(|port| port.receiver == receiver);
                let least = with_room.min_by_key(|port| (peers_of(port.receiver), peers(port)));
                least.filter(|port| peers_of(port.receiver) == 0 || (0..several).all(has_socket))
            }
        };
        if let Some(port) = chosen {
            return (PortUse::take(port), false);
        }
        let is_first = all.len() == 1 && !self.has_receivers;
        let opened = if all.len() < self.ports_max { self.open_another(&all) } else { None };
        match opened {
            Some(port) => {
                let port_use = PortUse::take(&port);
                all.push(port);
                self.has_several.store(true, SeqCst);
                (port_use, is_first)
            }
            None => {
                let least = all.iter().min_by_key(peers);
                (PortUse::take(least.expect("the first socket is never closed")), false)
            }
        }
    }

    /// Opens and watches a further socket; `None` if the system refuses, and peers must share the existing ones.
    fn open_another(&self, all: &[Arc<Port>]) -> Option<Arc<Port>> {
        let sockets_of = |receiver: &usize| all.iter().filter(|port| port.receiver == *receiver).count();
        let receiver = (0..self.epolls.len()).min_by_key(sockets_of).expect("there is at least one epoll");
        let (address, others) = (self.address, &self.other_addresses);
        let opened = Port::bind(address, others, self.receive_bytes, receiver, self.capture.clone());
        let is_first_alone = all.len() == 1 && !self.has_receivers;
        let watched = opened.and_then(|port| {
            if is_first_alone {
                self.watch(&self.first)?;
            }
            self.watch(&port).inspect_err(|_| {
                if is_first_alone {
                    let _ = epoll::delete(&self.epolls[0], &*self.first);
                }
            })?;
            Ok(Arc::new(port))
        });
        watched
            .inspect_err(|error| {
                tracing::debug!(
                    "cannot open a further UDP socket, so more peers share the existing ones: {error}"
                )
            })
            .ok()
    }

    fn watch(&self, port: &Port) -> io::Result<()> {
        let number = u64::from(port.address().port());
        let epoll = &self.epolls[port.receiver];
        Ok(epoll::add(epoll, port, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?)
    }

    /// Closes the sockets without peers. Returns true if the set of descriptors that sleepers must watch has changed.
    pub(super) fn close_unused(&self) -> bool {
        if !self.has_several() {
            return false;
        }
        let mut all = write(&self.all);
        let is_unused =
            |port: &mut Arc<Port>| !Arc::ptr_eq(port, &self.first) && port.peers.load(Relaxed) == 0;
        for port in all.extract_if(.., is_unused) {
            // A polling thread may still hold the socket.
            let _ = epoll::delete(&self.epolls[port.receiver], &*port);
            self.unsent.fetch_add(port.unsent(), Relaxed);
            self.overflowed.fetch_add(port.overflowed(), Relaxed);
        }
        let is_alone = all.len() == 1;
        if is_alone {
            self.has_several.store(false, SeqCst);
        }
        if is_alone && !self.has_receivers {
            let _ = epoll::delete(&self.epolls[0], &*self.first);
        }
        is_alone
    }

    /// Adds a descriptor to the epolls of all receivers. The receivers wake up when this descriptor becomes readable.
    pub(super) fn wake_receivers_by(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let not_a_port = epoll::EventData::new_u64(u64::MAX);
        self.epolls
            .iter()
            .try_for_each(|epoll| Ok(epoll::add(epoll, descriptor, not_a_port, epoll::EventFlags::IN)?))
    }

    fn has_several(&self) -> bool {
        // When this changes, the caller wakes the sleeper, which selects its descriptor again.
        self.has_several.load(SeqCst)
    }

    /// Returns the two descriptors of which a sleeper watches one, and the index of that one. The index is `None` if
    /// the fabric has receivers.
    pub(super) fn watched(&self) -> ([BorrowedFd<'_>; 2], Option<usize>) {
        let index = (!self.has_receivers).then(|| usize::from(self.has_several()));
        ([self.first.as_fd(), self.epolls[0].as_fd()], index)
    }

    /// Calls `then` for each socket that may have input.
    pub(super) fn for_each_ready(&self, mut then: impl FnMut(&Port)) {
        match self.has_several() {
            true => self.for_each_ready_of(0, Some(&Timespec::default()), then),
            false => then(&self.first),
        }
    }

    /// Calls `then` for each socket of one receiver that may have input. Waits until a socket has input, another thread
    /// wakes the receiver, or `timeout` has passed.
    pub(super) fn for_each_ready_of(
        &self,
        receiver: usize,
        timeout: Option<&Timespec>,
        mut then: impl FnMut(&Port),
    ) {
        let mut space = [MaybeUninit::uninit(); READY_MAX];
        // epoll moves sockets that remain readable behind the others, so every socket gets its turn.
        let ready = epoll::wait(&self.epolls[receiver], &mut space[..], timeout);
        for event in ready.map(|(events, _)| events).unwrap_or_default() {
            let number = event.data.u64();
            let is_ready_port =
                |port: &&Arc<Port>| u64::from(port.address().port()) == number && port.receiver == receiver;
            let port = read(&self.all).iter().find(is_ready_port).cloned();
            if let Some(port) = port {
                then(&port);
            }
        }
    }

    pub(super) fn unsent(&self) -> u64 {
        self.unsent.load(Relaxed) + self.all().iter().map(|port| port.unsent()).sum::<u64>()
    }

    /// Returns the number of datagrams that the system dropped because a receive buffer was full.
    pub(super) fn overflowed(&self) -> u64 {
        self.overflowed.load(Relaxed) + self.all().iter().map(|port| port.overflowed()).sum::<u64>()
    }
}

/// Addresses of this host.
impl Ports {
    /// Returns the source address of packets to a peer whose control connection uses the local address `own`.
    pub(super) fn source_ip(&self, own: Option<IpAddr>) -> IpAddr {
        own.filter(|_| !self.other_addresses.is_empty()).unwrap_or(self.address)
    }

    /// Returns the local address for packets from `host`: the first local address of the same IP version.
    pub(super) fn address_for(&self, host: IpAddr) -> IpAddr {
        let mut all = [self.address].into_iter().chain(self.other_addresses.iter().copied());
        self.source_ip(all.find(|own| own.is_ipv4() == host.is_ipv4()))
    }

    /// Returns true if `address` is a known address of this host.
    pub(super) fn is_own_address(&self, address: IpAddr) -> bool {
        address.is_loopback() || address == self.address || self.other_addresses.contains(&address)
    }

    /// Returns the maximum payload of packets that need no fragmentation on the way to `host`, as far as the system
    /// knows.
    pub(super) fn mtu_to(&self, host: IpAddr) -> io::Result<Mtu> {
        // The system reports the path MTU only for connected sockets, so this opens and connects its own socket.
        let any = if host.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let own = if self.other_addresses.is_empty() { self.address } else { any };
        let socket = UdpSocket::bind(own_scoped(SocketAddr::new(own, 0)))?;
        socket.connect(scoped(SocketAddr::new(host, DISCARD_PORT), self.first.scope()))?;
        let (packet_bytes_max, ip_bytes) = match host {
            IpAddr::V4(_) => (sockopt::ip_mtu(&socket)?, IPV4_BYTES),
            IpAddr::V6(_) => (sockopt::ipv6_mtu(&socket)?, IPV6_BYTES),
        };
        Ok(mtu_within(packet_bytes_max as usize, ip_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_spread_among_receivers() {
        let config = RoceConfig { receivers: 2, peers_per_socket: 2, ..RoceConfig::new("", "") };
        let ports = Ports::open(&config).unwrap();
        let assign = |count| (0..count).map(|_| ports.port_use().0).collect::<Vec<_>>();
        let receivers =
            |peers: &[Arc<PortUse>]| peers.iter().map(|peer| peer.port().receiver).collect::<Vec<_>>();
        let mut peers = assign(5);
        assert_eq!(receivers(&peers), [0, 1, 0, 1, 0]);
        peers.retain(|peer| peer.port().receiver == 0);
        ports.close_unused();
        // Both remaining sockets belong to one receiver, and have room.
        assert_eq!(receivers(&assign(2)), [1, 1]);
    }
}
