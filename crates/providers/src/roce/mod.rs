//! A fabric over RoCEv2 in user space: packets in UDP datagrams between processes on one or several hosts.
//!
//! ```text
//!   dir/node-1.sock      Unix sockets: both ends exchange addresses, queue pairs and first packet numbers
//!   dir/node-1.lock      locked while node-1 runs
//!   TCP port             the same exchange between hosts, encrypted with keys derived from the cluster's secret
//!
//!   poster ── queue pair ── train ──► UDP ──► batch ── queue pair ── memory, events ──► poller
//! ```
//!
//! [`halite_rnic`] is the adapter, and this module is its driver. By default the fabric has no threads. A post sends
//! packets. A poll receives and answers packets, runs timers, accepts peers and detects the ends of connections. Callers
//! sleep on the sockets. With [`RoceConfig::receivers`], threads of the fabric receive and answer packets.
//!
//! **Trains** are sequences of packets that one system call sends (UDP_SEGMENT).
//!
//! **Keys** are the numbers of registrations, counted up. When two fabrics connect, each end gives the other a salt;
//! the rkey in a packet is the key XORed with the salt of the end that owns the memory. So a peer that learns a key can
//! build the rkey without another exchange, and a third party cannot. The responder looks up the key of each arriving
//! packet, so packets with a deregistered key have no effect.
//!
//! **Attackers.** To access memory, a third party must guess two addresses, a port, a queue pair number, a packet
//! number and a key; the fabric chooses its numbers at random. The fabric counts and drops packets that do not match.
//! Processes that may enter the directory are trusted with all registered memory.
//!
//! **Disconnection.** After a peer is cut off, its packets match no queue pair, so the fabric drops them. The control
//! socket of a connection stays open; when the other end closes it, that end has left or died. An end that closes its
//! fabric first waits until peers have acknowledged its requests.

mod bell;
mod capture;
mod connection;
mod control;
mod control_socket;
mod core;
mod dialling;
mod events;
mod greeting;
mod memory;
mod paths;
mod port;
mod ports;
mod probe;
mod receivers;
mod scope;
mod sharing;
mod single;
mod stamps;
mod stateless;
mod translated;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use halite_fabric::{
    Atomics, Capabilities, CutOff, Event, Fabric, HELLO_BYTES_MAX, Key, Lane, Path, PeerId, PostError,
    RegisterError, Sleeper, WorkRequest,
};
use halite_mem::{Segment, Window};
pub use halite_rnic::{Congestion, Counters, Mtu};

use self::capture::Capture;
use self::core::Core;
#[cfg(fuzzing)]
pub use self::greeting::check_greeting;
pub use self::probe::{SocketProbe, probe};
use self::receivers::Receivers;
pub use self::scope::{scope_of, scoped, unscoped};
pub use self::stateless::ResponderMode;
pub use self::translated::AddressChanged;
use crate::secure::{SecretError, Secrets};

/// Default number of queue pairs to each peer.
const LANES: usize = 2;
/// Maximum value of [`RoceConfig::lanes`].
pub const LANES_MAX: usize = 4;
/// Maximum length of a message in bytes.
const SEND_BYTES_MAX: usize = 1 << 16;
/// Maximum length in bytes of a source that is copied into its request: a page, and the header of a reply before it.
const INLINE_BYTES_MAX: usize = 4096 + 64;
/// Maximum value of [`RoceConfig::receivers`].
pub const RECEIVERS_MAX: usize = 64;
/// Maximum time for which a dropped fabric waits for acknowledgements.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The configuration of a roce fabric.
#[derive(Clone, Debug)]
pub struct RoceConfig {
    /// The cluster directory. The fabric creates the directory if it does not exist.
    pub dir: PathBuf,
    /// The name of this fabric in the directory; `node-3` listens at `dir/node-3.sock`.
    pub name: String,
    /// Data sent to each peer while connecting, at most [`HELLO_BYTES_MAX`] bytes.
    pub hello: Vec<u8>,
    /// The address of this host from which the fabric sends packets and at which it receives packets. The system
    /// chooses the port.
    pub address: IpAddr,
    /// Further addresses of this host. If the control connection to a peer uses one of these addresses, the packets to
    /// and from this peer use the same address.
    pub other_addresses: Vec<IpAddr>,
    /// Maximum payload of a packet. A connection uses the smaller of the values of its two ends, or less if the path
    /// MTU is smaller.
    pub mtu: Mtu,
    /// True to use selective repeat with peers that support selective repeat. Otherwise, the loss of a packet causes
    /// the retransmission of all later packets, too.
    pub selective: bool,
    /// Congestion control for packets to other hosts, in addition to credits. Has no effect unless `selective` is true
    /// at both ends.
    pub congestion: Congestion,
    /// The ends that keep state for requests.
    pub responder: ResponderMode,
    /// Number of lanes to each peer, from 1 to [`LANES_MAX`]. A connection has the smaller of the numbers of its two
    /// ends, and one lane only if both ends are set to one; stateless connections have two.
    pub lanes: usize,
    /// Time without packets from a peer after which the fabric ends the connection to this peer.
    pub lease: Duration,
    /// Maximum number of registered segments.
    pub segments_max: usize,
    /// Maximum number of connections at one time.
    pub peers_max: usize,
    /// Time limit of a handshake. For a dialled host that has answered, the limit is the lease if the lease is longer.
    pub handshake_timeout: Duration,
    /// Size of the receive buffer that each UDP socket requests, in bytes. Linux grants at most `net.core.rmem_max`,
    /// and reserves twice the granted size.
    pub receive_bytes: usize,
    /// Maximum number of peers per UDP socket; further peers get another socket with its own port. A receive buffer
    /// holds few packets, so few peers should share a socket.
    pub peers_per_socket: usize,
    /// Maximum number of UDP sockets. When this maximum is reached, or the system refuses another socket, more peers
    /// share the existing sockets.
    pub sockets_max: usize,
    /// Number of threads that receive packets and answer peers, at most [`RECEIVERS_MAX`]. With 0, the polling thread
    /// receives and answers. Each thread has its own sockets, and a new peer is assigned to the thread with the fewest
    /// peers. Receiver threads increase throughput if cores are free for them, but add latency to messages, because
    /// they hand events over to the poller.
    pub receivers: usize,
    /// Path of the file into which the fabric captures all sent and received packets, as nanosecond pcap; `None` for no
    /// capture.
    pub pcap: Option<PathBuf>,
    /// Maximum size of the capture file, in bytes.
    pub pcap_bytes_max: u64,
    /// Settings for connections to and from other hosts; with `None`, all peers are on this host.
    pub hosts: Option<Hosts>,
}

/// Settings for connections to and from other hosts.
#[derive(Clone, Debug)]
pub struct Hosts {
    /// TCP listeners that other hosts may dial, in order of preference; empty if other hosts may not dial this host.
    pub ports: Vec<Arc<TcpListener>>,
    /// The secrets of the cluster.
    pub secrets: Secrets,
    /// Path of the file with the secrets, if the secrets may change. The fabric reads this file again for each new
    /// connection.
    pub secret_file: Option<PathBuf>,
}

impl Hosts {
    /// Allows connections to other hosts that know the secrets, but no connections from other hosts.
    pub fn known_by(secrets: Secrets) -> Hosts {
        Hosts { ports: Vec::new(), secrets, secret_file: None }
    }

    /// Allows connections to and from hosts that know the secrets. Other hosts dial `address` over TCP; if its port is
    /// 0, the system chooses one.
    pub fn listen(address: SocketAddr, secrets: Secrets) -> io::Result<Hosts> {
        let mut hosts = Hosts::known_by(secrets);
        hosts.listen_also(address)?;
        Ok(hosts)
    }

    /// Listens at a further address, which other hosts may dial.
    pub fn listen_also(&mut self, address: SocketAddr) -> io::Result<()> {
        let listener = TcpListener::bind(scope::own_scoped(address))?;
        listener.set_nonblocking(true)?;
        self.ports.push(Arc::new(listener));
        Ok(())
    }

    /// Reads the secrets again. If that fails, for example while another process replaces the file, the secrets that
    /// were read last stay in use.
    pub(crate) fn read_secrets(&mut self) -> Result<(), SecretError> {
        if let Some(path) = &self.secret_file {
            self.secrets = Secrets::read(path)?;
        }
        Ok(())
    }

    /// Returns the TCP addresses and ports that other hosts may dial.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.ports.iter().filter_map(|port| port.local_addr().ok()).collect()
    }
}

impl RoceConfig {
    /// Returns the default configuration: loopback, packets of 4096 bytes, selective repeat, credits without congestion
    /// control, queue pairs for two lanes, a lease of 5 seconds, 4096 segments, 1024 peers with 16 per socket, at most
    /// 64 sockets with receive buffers of 4 MiB, no receiver threads, handshakes of 2 seconds, and no capture (the size
    /// limit of a capture is 1 GiB).
    pub fn new(dir: impl Into<PathBuf>, name: impl Into<String>) -> RoceConfig {
        RoceConfig {
            dir: dir.into(),
            name: name.into(),
            hello: Vec::new(),
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            other_addresses: Vec::new(),
            mtu: Mtu::Bytes4096,
            selective: true,
            congestion: Congestion::Grant,
            responder: ResponderMode::Stateful,
            lanes: LANES,
            lease: Duration::from_secs(5),
            segments_max: 4096,
            peers_max: 1024,
            handshake_timeout: Duration::from_secs(2),
            receive_bytes: 4 << 20,
            peers_per_socket: 16,
            sockets_max: 64,
            receivers: 0,
            pcap: None,
            pcap_bytes_max: 1 << 30,
            hosts: None,
        }
    }

    fn check(&self) -> Result<(), OpenError> {
        if self.name.is_empty() || self.name.contains('/') {
            return Err(OpenError::Name { name: self.name.clone() });
        }
        if self.hello.len() > HELLO_BYTES_MAX {
            return Err(OpenError::HelloTooLong { len: self.hello.len() });
        }
        if self.receivers > RECEIVERS_MAX {
            return Err(OpenError::Receivers { count: self.receivers });
        }
        if !(1..=LANES_MAX).contains(&self.lanes) {
            return Err(OpenError::Lanes { count: self.lanes });
        }
        let mut addresses = self.other_addresses.iter().chain([&self.address]);
        match addresses.find(|address| address.is_unspecified() || address.is_multicast()) {
            Some(address) => Err(OpenError::Address { address: *address }),
            None => Ok(()),
        }
    }
}

/// The reason why [`RoceFabric::open`] failed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The name is not usable as a file name.
    #[error("cannot open a roce fabric named {name:?}: the name must be usable as a file name")]
    Name {
        /// Name of the fabric.
        name: String,
    },
    /// The hello is longer than [`HELLO_BYTES_MAX`].
    #[error("cannot open a roce fabric: its hello of {len} bytes is longer than {HELLO_BYTES_MAX}")]
    HelloTooLong {
        /// Length of the hello, in bytes.
        len: usize,
    },
    /// The address is not a specific address of one host.
    #[error("cannot open a roce fabric at {address}: it must be one specific address of this host")]
    Address {
        /// The configured address.
        address: IpAddr,
    },
    /// The number of receivers exceeds [`RECEIVERS_MAX`].
    #[error("cannot open a roce fabric with {count} receivers: the maximum is {RECEIVERS_MAX}")]
    Receivers {
        /// The configured number of receivers.
        count: usize,
    },
    /// The number of lanes is 0 or exceeds [`LANES_MAX`].
    #[error(
        "cannot open a roce fabric with {count} lanes to each peer: the minimum is 1, the maximum {LANES_MAX}"
    )]
    Lanes {
        /// The configured number of lanes.
        count: usize,
    },
    /// A running process uses the name.
    #[error("cannot open a roce fabric: a running process uses the name {name} in {}", dir.display())]
    NameTaken {
        /// Path of the cluster directory.
        dir: PathBuf,
        /// Name of the fabric.
        name: String,
    },
    /// A system call failed.
    #[error("cannot open a roce fabric as {name} in {}, at {address}: {source}", dir.display())]
    Io {
        /// Path of the cluster directory.
        dir: PathBuf,
        /// Name of the fabric.
        name: String,
        /// The configured address.
        address: IpAddr,
        /// Error of the system call.
        source: io::Error,
    },
    /// The capture file cannot be created.
    #[error("cannot write packets to {}: {source}", path.display())]
    Pcap {
        /// Path of the capture file.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
}

/// Counters of packets that the fabric dropped before they reached a queue pair, and of packets that it could not send.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Dropped {
    /// Empty datagrams, packets for an unknown queue pair, and unauthenticated connections that the fabric closed to
    /// make room for others.
    pub strangers: u64,
    /// Packets with a wrong checksum or tag, and packets for a queue pair from another address than its peer's. If such
    /// packets have a valid checksum, [`AddressChanged`] reports their address.
    pub refused: u64,
    /// Malformed packets from a peer, with a valid checksum.
    pub malformed: u64,
    /// Packets that the system refused to send. A refused train (packets of one system call) counts as one packet.
    pub unsent: u64,
    /// Packets that the system dropped because a socket's receive buffer was full. A train counts as one packet.
    pub overflowed: u64,
}

/// A fabric over UDP for processes that find each other in a cluster directory, or by host addresses; see
/// [`crate::roce`].
///
/// ```
/// # use halite_providers::{RoceConfig, RoceFabric};
/// # use halite_fabric::{Event, Fabric, Sleeper};
/// # let dir = std::env::temp_dir().join(format!("halite-roce-doc-{}", std::process::id()));
/// let one = RoceFabric::open(RoceConfig::new(&dir, "one"))?;
/// let two = RoceFabric::open(RoceConfig::new(&dir, "two"))?;
/// one.connect("two.sock", b"hello, two");
/// // Each end makes progress only while it polls.
/// let mut events = Vec::new();
/// while events.is_empty() {
///     one.poll(&mut Vec::new());
///     two.poll(&mut events);
/// }
/// assert!(matches!(&events[0], Event::Connected { hello, dialled: None, .. } if hello == b"hello, two"));
/// # drop((one, two));
/// # std::fs::remove_dir(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RoceFabric {
    core: Arc<Core>,
    _receivers: Receivers,
}

impl RoceFabric {
    /// Opens a fabric: binds a UDP socket, and listens at a Unix socket in the cluster directory.
    pub fn open(config: RoceConfig) -> Result<Arc<RoceFabric>, OpenError> {
        config.check()?;
        let (dir, name, address) = (config.dir.clone(), config.name.clone(), config.address);
        let (pcap, bytes_max) = (config.pcap.clone(), config.pcap_bytes_max);
        let opened = Core::open(config).map(Arc::new);
        let opened = opened.and_then(|core| Ok((Receivers::start(&core)?, core)));
        let (receivers, core) = opened.map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => OpenError::NameTaken { dir, name },
            _ => OpenError::Io { dir, name, address, source },
        })?;
        if let Some(path) = pcap {
            let created = Capture::create(&path, bytes_max);
            core.ports.capture_to(created.map_err(|source| OpenError::Pcap { path, source })?);
        }
        Ok(Arc::new(RoceFabric { core, _receivers: receivers }))
    }

    /// Returns the counters of packets dropped since the fabric was opened.
    pub fn dropped(&self) -> Dropped {
        self.core.dropped()
    }

    /// Returns the sum of the counters of all queue pairs to a peer; `None` if the peer is not connected.
    pub fn counters(&self, peer: PeerId) -> Option<Counters> {
        let connection = self.core.peer(peer)?;
        connection.lanes().map(|lane| lane.qp().counters()).reduce(|sum, lane| sum + lane)
    }

    /// Returns the address change of a peer, if the fabric refused packets of the peer because they came from another
    /// address than the peer offered.
    pub fn address_change(&self, peer: PeerId) -> Option<AddressChanged> {
        self.core.peer(peer)?.address_change()
    }

    /// Returns the address and port of the first UDP socket.
    pub fn local_address(&self) -> SocketAddr {
        self.core.ports.first().address()
    }

    /// Returns the addresses and ports of all UDP sockets, in the order in which they were opened.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        self.core.ports.all().iter().map(|port| port.address()).collect()
    }

    /// Returns the first TCP address and port that other hosts may dial; `None` if other hosts may not dial this host.
    pub fn control_port(&self) -> Option<SocketAddr> {
        self.core.control_ports().first().copied()
    }

    /// Returns true if all posted requests have completed.
    pub fn is_idle(&self) -> bool {
        self.core.is_idle()
    }
}

impl Fabric for RoceFabric {
    fn providers(&self) -> Vec<&'static str> {
        vec!["roce"]
    }

    fn capabilities(&self, peer: PeerId) -> Capabilities {
        Capabilities {
            provider: "roce",
            direct: false,
            // The peer's processor executes the atomics on its own memory.
            atomics: Atomics::Processor,
            lanes: self.core.peer(peer).map_or(self.core.config.lanes, |connection| connection.lane_count()),
            send_bytes_max: SEND_BYTES_MAX,
            inline_bytes_max: INLINE_BYTES_MAX,
        }
    }

    fn register(&self, segment: Arc<Segment>) -> Result<Key, RegisterError> {
        let window = segment.window(0, segment.len()).expect("the whole segment");
        let mut registered = write(&self.core.registered);
        let max = self.core.config.segments_max;
        if registered.len() >= max {
            return Err(RegisterError::TooManyKeys { max });
        }
        registered.push(Some(window));
        Ok(Key(registered.len() as u32 - 1))
    }

    fn deregister(&self, key: Key) {
        // Accesses hold the lock, so no access is in progress after this.
        let removed = write(&self.core.registered).get_mut(key.0 as usize).and_then(Option::take);
        if removed.is_some() {
            self.core.queue_and_wake(Event::Deregistered { key });
        }
    }

    /// Connects to the fabric at `address`: the file name of a socket in the cluster directory, as returned by
    /// [`listeners`](crate::listeners); a path; or IP addresses and ports of another host, separated by commas and
    /// tried in order, such as `10.1.2.3:7000,[fd00::1]:7000`.
    fn connect(&self, address: &str, hello: &[u8]) {
        self.core.dial(address, hello);
    }

    fn post(&self, peer: PeerId, lane: Lane, requests: &[WorkRequest<'_>]) -> Result<(), PostError> {
        let posted = self.core.post(peer, lane, requests);
        posted.map_err(|(posted, cause)| PostError { peer, posted, cause })
    }

    fn poll(&self, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        self.core.poll_once();
        self.core.take_events(events);
        events.len() - before
    }

    /// Always returns `None`: this fabric reaches peers' memory by packets only.
    fn direct(&self, _: PeerId, _: Key) -> Option<Window> {
        None
    }

    fn cut_off(&self, peer: PeerId) -> CutOff {
        self.disconnect(peer);
        CutOff::Done
    }

    fn take_end_reason(&self, peer: PeerId) -> Option<String> {
        self.core.take_end_reason(peer)
    }

    fn disconnect(&self, peer: PeerId) {
        if let Some(connection) = self.core.peer(peer) {
            self.core.end(&connection);
        }
    }

    fn arm(&self, sleeper: Option<Sleeper>) {
        let has_control_edge = self.core.bell.arm(sleeper, self.core.ports.watched());
        if sleeper.is_some() {
            self.core.on_arm(has_control_edge);
        }
    }

    fn wait(&self, sleeper: Sleeper, seen: u32, timeout: Option<Duration>) {
        self.core.bell.wait(sleeper, seen, timeout);
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.core.time_left()
    }

    fn heard(&self, peer: PeerId) -> Option<Duration> {
        let heard_ns = self.core.peer(peer)?.heard_ns.load(Relaxed);
        Some(Duration::from_nanos(self.core.now_ns().saturating_sub(heard_ns)))
    }

    fn round_trip(&self, peer: PeerId) -> Option<Duration> {
        let connection = self.core.peer(peer)?;
        if let Some(ns) = connection.stateless_round_trip_ns() {
            return Some(Duration::from_nanos(ns));
        }
        // Prefers the lane of small requests, if it has a measurement.
        connection.lanes().find_map(|lane| lane.qp().round_trip_ns()).map(Duration::from_nanos)
    }

    fn is_being_answered(&self) -> bool {
        lock(&self.core.control).is_being_answered()
    }

    fn path(&self, peer: PeerId) -> Option<Path> {
        let connection = self.core.peer(peer)?;
        let counters = self.counters(peer)?;
        let [sent, repeated, arrived] = connection.stateless_packets();
        let [timeouts, duplicates] = connection.timeouts_and_duplicates();
        let (is_stateless, responder_reason) = connection.responder();
        let mtu = connection.lanes().map(|lane| lane.qp().path_mtu()).min();
        Some(Path {
            mtu_bytes: mtu.unwrap_or(connection.mtu).bytes(),
            is_known: connection.lanes().all(|lane| lane.qp().knows_path()),
            sent: counters.sent + sent,
            repeated: counters.repeated + repeated,
            repeats_single: connection.selective,
            kept: counters.kept,
            timeouts,
            trains_refused: connection.lanes().map(|lane| lane.trains_refused()).sum(),
            arrived: counters.arrived + arrived,
            duplicates: counters.duplicates + duplicates,
            window_packets: connection.lanes().map(|lane| lane.window_packets()).collect(),
            congestion: connection.lane(0).qp().congestion().name(),
            responder: if is_stateless { ResponderMode::Stateless } else { ResponderMode::Stateful }.name(),
            responder_reason,
            ends: (connection.own_address, connection.address),
            elsewhere: connection.address_change().map(|change| (change.seen, change.packets)),
        })
    }

    fn dropped_packets(&self) -> Vec<(&'static str, u64)> {
        let Dropped { strangers, refused, malformed, unsent, overflowed } = self.core.dropped();
        vec![
            ("stranger", strangers),
            ("refused", refused),
            ("malformed", malformed),
            ("unsent", unsent),
            ("overflowed", overflowed),
        ]
    }

    fn polls_by_system_calls(&self) -> bool {
        true
    }

    fn traffic(&self) -> u64 {
        self.core.traffic()
    }

    fn doorbell(&self) -> u32 {
        self.core.bell.seq()
    }

    fn wake(&self) {
        self.core.bell.wake();
    }

    fn descriptor(&self, sleeper: Sleeper) -> Option<BorrowedFd<'_>> {
        Some(self.core.bell.descriptor(sleeper))
    }

    /// Closes the fabric. Later polls end each connection once the peer has acknowledged all posted requests.
    fn close(&self) {
        self.core.close();
    }
}

impl Drop for RoceFabric {
    fn drop(&mut self) {
        self.close();
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        self.arm(Some(Sleeper::Progress));
        while self.core.has_peers() && Instant::now() < deadline {
            let seen = self.doorbell();
            self.core.poll_once();
            // Discards the pending events, so that receivers waiting for room can exit.
            self.core.take_events(&mut Vec::new());
            let timeout = self.core.time_left().unwrap_or(CLOSE_TIMEOUT).min(CLOSE_TIMEOUT);
            if self.core.has_peers() {
                self.wait(Sleeper::Progress, seen, Some(timeout));
                self.arm(Some(Sleeper::Progress));
            }
        }
    }
}

/// Message of the panic with which the fabric stops after a thread panicked under a lock, because the state may be
/// broken.
const POISONED: &str = "a thread panicked while it held a lock of the roce fabric";

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect(POISONED)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().expect(POISONED)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().expect(POISONED)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_unreadable_secret_file_keeps_the_last_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let write = |digit: &str| {
            std::fs::write(&path, digit.repeat(64)).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        };
        write("a");
        let first = Secrets::read(&path).unwrap();
        let mut hosts = Hosts { secret_file: Some(path.clone()), ..Hosts::known_by(first.clone()) };
        write("b");
        hosts.read_secrets().unwrap();
        let second = hosts.secrets.clone();
        assert_ne!(first, second);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        hosts.read_secrets().unwrap_err();
        assert_eq!(hosts.secrets, second);
        write("");
        hosts.read_secrets().unwrap_err();
        assert_eq!(hosts.secrets, second);
    }
}
