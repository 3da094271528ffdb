//! The sockets of one fabric: one for the first peers, and another for each so many more.
//!
//! A socket's receive buffer holds few packets ([`halite_rnic::room`]), so a socket is for few peers.  Who meets us is told the port of the
//! socket that has room for it; where the system gives no further socket, peers share those that there are.
//!
//! ```text
//!   users    peers 1..16   peers 17..32   ...          a place is held from the offer to the end of the connection
//!   sockets      first        further     ...          a further one is closed when nobody has a place there
//!                  └────── epoll ──┘                   only while there is more than one; else the first is read by itself
//! ```

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
use super::{RoceConfig, read, write};

/// Sockets that one look finds; the rest waits for the next.
const READY_MAX: usize = 16;
/// Any port will do: nothing is sent there.
const DISCARD: u16 = 9;

/// See the header of this file.
#[derive(Debug)]
pub(super) struct Ports {
    address: IpAddr,
    others: Vec<IpAddr>,
    receive_bytes: usize,
    users_max: usize,
    ports_max: usize,
    first: Arc<Port>,
    /// All of them, the first one first.
    all: RwLock<Vec<Arc<Port>>>,
    has_further: AtomicBool,
    /// Watches all of them while there are several.
    epoll: OwnedFd,
    capture: Arc<OnceLock<Capture>>,
    /// What those that are closed have counted.
    unsent: AtomicU64,
    overflowed: AtomicU64,
}

/// A peer's place at a socket.
#[derive(Debug)]
pub(super) struct PortUse(Arc<Port>);

impl PortUse {
    fn take(port: &Arc<Port>) -> Arc<PortUse> {
        port.users.fetch_add(1, Relaxed);
        Arc::new(PortUse(port.clone()))
    }

    pub(super) fn port(&self) -> &Port {
        &self.0
    }
}

impl Drop for PortUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Relaxed);
    }
}

impl Ports {
    pub(super) fn open(config: &RoceConfig) -> io::Result<Ports> {
        let (address, others) = (config.address, config.other_addresses.clone());
        let capture = Arc::<OnceLock<Capture>>::default();
        let first = Arc::new(Port::bind(address, &others, config.receive_bytes, capture.clone())?);
        Ok(Ports {
            address,
            others,
            receive_bytes: config.receive_bytes,
            users_max: config.peers_per_socket,
            ports_max: config.sockets_max,
            all: RwLock::new(vec![first.clone()]),
            first,
            has_further: AtomicBool::new(false),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            capture,
            unsent: AtomicU64::new(0),
            overflowed: AtomicU64::new(0),
        })
    }

    /// Writes all packets there from now on.
    pub(super) fn capture_to(&self, capture: Capture) {
        self.capture.set(capture).expect("a capture is begun once");
    }

    pub(super) fn first(&self) -> &Port {
        &self.first
    }

    pub(super) fn all(&self) -> Vec<Arc<Port>> {
        read(&self.all).clone()
    }

    /// A place for one more peer, and whether what is to be watched by who sleeps has changed by that.
    pub(super) fn port_use(&self) -> (Arc<PortUse>, bool) {
        let mut all = write(&self.all);
        if let Some(port) = all.iter().find(|port| port.users.load(Relaxed) < self.users_max) {
            return (PortUse::take(port), false);
        }
        let is_first = all.len() == 1;
        let opened = if all.len() < self.ports_max { self.open_further(&all) } else { None };
        match opened {
            Some(port) => {
                let port_use = PortUse::take(&port);
                all.push(port);
                self.has_further.store(true, SeqCst);
                (port_use, is_first)
            }
            None => {
                let least = all.iter().min_by_key(|port| port.users.load(Relaxed));
                (PortUse::take(least.expect("the first is always there")), false)
            }
        }
    }

    /// One more, watched; `None` where the system gives none: peers can do without.
    fn open_further(&self, all: &[Arc<Port>]) -> Option<Arc<Port>> {
        let opened = Port::bind(self.address, &self.others, self.receive_bytes, self.capture.clone());
        let watched = opened.and_then(|port| {
            if all.len() == 1 {
                self.watch(&self.first)?;
            }
            self.watch(&port).inspect_err(|_| {
                if all.len() == 1 {
                    let _ = epoll::delete(&self.epoll, &*self.first);
                }
            })?;
            Ok(Arc::new(port))
        });
        watched
            .inspect_err(|error| {
                tracing::debug!("peers share a socket, for no further one can be had: {error}")
            })
            .ok()
    }

    fn watch(&self, port: &Port) -> io::Result<()> {
        let number = u64::from(port.address().port());
        Ok(epoll::add(&self.epoll, port, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?)
    }

    /// Closes those at which nobody has a place.  Says whether what is to be watched by who sleeps has changed by that.
    pub(super) fn close_unused(&self) -> bool {
        if !self.has_further() {
            return false;
        }
        let mut all = write(&self.all);
        let is_over = |port: &mut Arc<Port>| !Arc::ptr_eq(port, &self.first) && port.users.load(Relaxed) == 0;
        for port in all.extract_if(.., is_over) {
            // Who polls may hold it for a moment yet.
            let _ = epoll::delete(&self.epoll, &*port);
            self.unsent.fetch_add(port.unsent(), Relaxed);
            self.overflowed.fetch_add(port.overflowed(), Relaxed);
        }
        let is_alone = all.len() == 1;
        if is_alone {
            let _ = epoll::delete(&self.epoll, &*self.first);
            self.has_further.store(false, SeqCst);
        }
        is_alone
    }

    fn has_further(&self) -> bool {
        // What is watched is decided anew by who sleeps, whenever this changes.
        self.has_further.load(SeqCst)
    }

    /// What who sleeps may have to watch, and which of them it is now.
    pub(super) fn watched(&self) -> ([BorrowedFd<'_>; 2], usize) {
        ([self.first.as_fd(), self.epoll.as_fd()], usize::from(self.has_further()))
    }

    /// Those at which something may have come.
    pub(super) fn for_each_ready(&self, mut then: impl FnMut(&Port)) {
        if !self.has_further() {
            return then(&self.first);
        }
        let mut space = [MaybeUninit::uninit(); READY_MAX];
        // Those that are not emptied wait behind the others for the next time.
        let ready = epoll::wait(&self.epoll, &mut space[..], Some(&Timespec::default()));
        for event in ready.map(|(events, _)| events).unwrap_or_default() {
            let number = event.data.u64();
            let port =
                read(&self.all).iter().find(|port| u64::from(port.address().port()) == number).cloned();
            if let Some(port) = port {
                then(&port);
            }
        }
    }

    pub(super) fn unsent(&self) -> u64 {
        self.unsent.load(Relaxed) + self.all().iter().map(|port| port.unsent()).sum::<u64>()
    }

    /// Datagrams that came when a receive buffer was full.
    pub(super) fn overflowed(&self) -> u64 {
        self.overflowed.load(Relaxed) + self.all().iter().map(|port| port.overflowed()).sum::<u64>()
    }
}

/// Addresses of this host.
impl Ports {
    /// That by which packets go to who meets us at `own`.
    pub(super) fn address_as(&self, own: Option<IpAddr>) -> IpAddr {
        own.filter(|_| !self.others.is_empty()).unwrap_or(self.address)
    }

    /// Where packets from that address of this host come to: the first that is of its kind.
    pub(super) fn address_for(&self, host: IpAddr) -> IpAddr {
        let mut all = [self.address].into_iter().chain(self.others.iter().copied());
        self.address_as(all.find(|own| own.is_ipv4() == host.is_ipv4()))
    }

    /// Whether that is an address of this host, as far as we have heard.
    pub(super) fn is_of_this_host(&self, address: IpAddr) -> bool {
        address.is_loopback() || address == self.address || self.others.contains(&address)
    }

    /// The most payload of packets to a host that fit into frames all the way there, as far as the system knows it.
    pub(super) fn mtu_to(&self, host: IpAddr) -> io::Result<Mtu> {
        // The system tells it of sockets that are connected, which ours is not.
        let any = if host.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let own = if self.others.is_empty() { self.address } else { any };
        let socket = UdpSocket::bind((own, 0))?;
        socket.connect(SocketAddr::new(host, DISCARD))?;
        let (packet_bytes_max, ip_bytes) = match host {
            IpAddr::V4(_) => (sockopt::ip_mtu(&socket)?, IPV4_BYTES),
            IpAddr::V6(_) => (sockopt::ipv6_mtu(&socket)?, IPV6_BYTES),
        };
        Ok(mtu_within(packet_bytes_max as usize, ip_bytes))
    }
}
