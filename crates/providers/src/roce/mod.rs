//! RoCEv2 in user space, as a fabric: real packets over a UDP socket, between processes of one host or of several.
//!
//! ```text
//!   dir/node-1.sock      Unix sockets: who dials and who listens exchange addresses, queue pairs and first packet numbers
//!   dir/node-1.lock      held while node-1 lives
//!   TCP port             the same between hosts, encrypted; by who knows the cluster's secret
//!
//!   poster ── queue pair ── train ──► UDP ──► batch ── queue pair ── memory, events ──► who polls
//! ```
//!
//! [`halite_rnic`] is the adapter; this module is its driver.  It has no thread: who posts sends, and who polls receives, answers,
//! looks at timers, lets peers in and hears of their ends.  Who sleeps does so on the socket itself.  Where it is told to
//! ([`RoceConfig::receivers`]), threads of its own receive and answer.
//!
//! **Keys** count registrations, and a peer that hears of one can use it at once: an rkey is the key, hidden by a number that each
//! end chose for the other when they connected.  It is looked up when a packet arrives, so a key that was taken back leads nowhere.
//!
//! **What a stranger can do**: nothing without guessing two addresses, a port, a queue pair, a packet number and a key, of which
//! all that we choose is random.  What does not fit is counted and dropped.  Who is in the directory is trusted with all memory.
//!
//! **Ends.**  Packets of a peer that was cut off find no queue pair.  The sockets by which peers met stay open: one that closes says
//! that its owner left or died.  Who leaves does so when all that it posted has been acknowledged.

mod bell;
mod capture;
mod connection;
mod control;
mod core;
mod dialling;
mod events;
mod greeting;
mod line;
mod memory;
mod paths;
mod port;
mod ports;
mod probe;
mod receivers;
mod sharing;
mod single;
mod stamps;
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
pub use self::translated::AddressChanged;
use crate::secure::{SecretError, Secrets};

/// Queue pairs to each peer.
const LANES: usize = 2;
/// Longest message.
const SEND_BYTES_MAX: usize = 1 << 16;
/// Longest source that travels with its request.
const INLINE_BYTES_MAX: usize = 4096;
/// Most threads of a fabric's own.
pub const RECEIVERS_MAX: usize = 64;
/// How long a fabric that is dropped waits for its peers to acknowledge what was posted.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How a roce fabric is to be opened.
#[derive(Clone, Debug)]
pub struct RoceConfig {
    /// The cluster directory; created if need be.
    pub dir: PathBuf,
    /// Our name in it; `node-3` listens at `dir/node-3.sock`.
    pub name: String,
    /// What those who connect to us are shown, at most [`HELLO_BYTES_MAX`] bytes.
    pub hello: Vec<u8>,
    /// The address from which packets are sent, and to which they come: one of this host's.  The system chooses the port.
    pub address: IpAddr,
    /// Others of this host's, by which packets go to who dials there, or is reached from there.
    pub other_addresses: Vec<IpAddr>,
    /// Most payload of a packet; of two ends, the smaller one counts, and less where frames on the way are shorter.
    pub mtu: Mtu,
    /// Whether single packets are repeated with those peers that do so, too; else all behind one that is lost.
    pub selective: bool,
    /// What bounds how much is under way to other hosts besides their grants, where single packets are repeated.
    pub congestion: Congestion,
    /// How long a peer that does not answer is waited for.
    pub lease: Duration,
    /// Segments that can be registered.
    pub segments_max: usize,
    /// Connections at one time.
    pub peers_max: usize,
    /// How long a greeting may take.
    pub handshake_timeout: Duration,
    /// Size of the receive buffer that each UDP socket requests, in bytes; the system gives as much as its administrator allows
    /// (`net.core.rmem_max`), and counts twice that.
    pub receive_bytes: usize,
    /// Peers of a socket: more have another one, with a port of its own, since a receive buffer holds few packets.
    pub peers_per_socket: usize,
    /// UDP sockets at one time; peers share them where that is not enough, or the system gives no more.
    pub sockets_max: usize,
    /// Threads of the fabric's own that receive and answer, at most [`RECEIVERS_MAX`]; if 0, who polls does.  Each has sockets of its own, and each new peer goes
    /// to the one that has fewest.  They carry more where there are processors for them; a message that a
    /// thread waits for comes later, for it is handed over.
    pub receivers: usize,
    /// Where to write all packets that are sent and received, as a nanosecond pcap; nowhere if `None`.
    pub pcap: Option<PathBuf>,
    /// The capture ends before it has more bytes than this.
    pub pcap_bytes_max: u64,
    /// How other hosts are met; without this, peers are those of this host.
    pub hosts: Option<Hosts>,
}

/// How other hosts are met.
#[derive(Clone, Debug)]
pub struct Hosts {
    /// Where they may dial us, in the order in which we would like that; nowhere if they may not.
    pub ports: Vec<Arc<TcpListener>>,
    /// What they and we know, and nobody else.
    pub secrets: Secrets,
    /// Where that stands, if it may change: the file is read again whenever somebody is met.
    pub secret_file: Option<PathBuf>,
}

impl Hosts {
    /// Those who know the secrets, and may not dial us.
    pub fn known_by(secrets: Secrets) -> Hosts {
        Hosts { ports: Vec::new(), secrets, secret_file: None }
    }

    /// Those who know the secrets, and may dial us at `address` over TCP; port 0 has the system choose.
    pub fn listen(address: SocketAddr, secrets: Secrets) -> io::Result<Hosts> {
        let mut hosts = Hosts::known_by(secrets);
        hosts.listen_also(address)?;
        Ok(hosts)
    }

    /// They may dial us there, too.
    pub fn listen_also(&mut self, address: SocketAddr) -> io::Result<()> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        self.ports.push(Arc::new(listener));
        Ok(())
    }

    /// Takes the secrets as they are now.  Where they cannot be read, for another process may be replacing the file, those that were read last stay, and
    /// none that was retired before.
    pub(crate) fn read_secrets(&mut self) -> Result<(), SecretError> {
        if let Some(path) = &self.secret_file {
            self.secrets = Secrets::read(path)?;
        }
        Ok(())
    }

    /// The addresses and ports where they may dial us.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.ports.iter().filter_map(|port| port.local_addr().ok()).collect()
    }
}

impl RoceConfig {
    /// The usual values: over loopback in packets of 4096 bytes, of which single ones are repeated, bounded by grants alone, a lease of 5 seconds, 4096 segments, 1024 peers, 16 of each
    /// socket, which asks for 4 MiB, and 64 sockets from which who polls receives, greetings of 2 seconds, no capture; one ends at 1 GiB.
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
        let mut all = self.other_addresses.iter().chain([&self.address]);
        match all.find(|address| address.is_unspecified() || address.is_multicast()) {
            Some(address) => Err(OpenError::Address { address: *address }),
            None => Ok(()),
        }
    }
}

/// Why a roce fabric could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Not a file name.
    #[error("cannot open a roce fabric named {name:?}: the name must be usable as a file name")]
    Name {
        /// What was asked for.
        name: String,
    },
    /// The hello is longer than [`HELLO_BYTES_MAX`].
    #[error("cannot open a roce fabric: its hello of {len} bytes is longer than {HELLO_BYTES_MAX}")]
    HelloTooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// Not an address of one host.
    #[error(
        "cannot open a roce fabric at {address}: an address of this host is needed, which its packets name"
    )]
    Address {
        /// What was asked for.
        address: IpAddr,
    },
    /// More threads than a fabric may have.
    #[error("cannot open a roce fabric with {count} threads that receive: at most {RECEIVERS_MAX}")]
    Receivers {
        /// What was asked for.
        count: usize,
    },
    /// A living process uses the name.
    #[error("cannot open a roce fabric: {name} is in use in {}", dir.display())]
    NameTaken {
        /// Where.
        dir: PathBuf,
        /// What.
        name: String,
    },
    /// The operating system refused.
    #[error("cannot open a roce fabric as {name} in {}, at {address}: {source}", dir.display())]
    Io {
        /// Where.
        dir: PathBuf,
        /// What.
        name: String,
        /// From which address.
        address: IpAddr,
        /// What it said.
        source: io::Error,
    },
    /// The file of the capture cannot be made.
    #[error("cannot write packets to {}: {source}", path.display())]
    Pcap {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Packets that a fabric has dropped before any queue pair saw them, or could not send.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Dropped {
    /// Arrived for no queue pair of ours, or empty; and connections that were hung up on to make room for others.
    pub strangers: u64,
    /// Arrived for a queue pair from another address than its peer's ([`AddressChanged`] counts those that the peer had sent), or damaged.
    pub refused: u64,
    /// Arrived from a peer undamaged, and were no packets.
    pub malformed: u64,
    /// Not taken by the system, trains counted as one.
    pub unsent: u64,
    /// Came when a socket's receive buffer was full, trains counted as one.
    pub overflowed: u64,
}

/// The fabric of those who meet in a directory and talk over UDP; see the header of this file.
///
/// ```
/// # use halite_providers::{RoceConfig, RoceFabric};
/// # use halite_fabric::{Event, Fabric, Sleeper};
/// # let dir = std::env::temp_dir().join(format!("halite-roce-doc-{}", std::process::id()));
/// let one = RoceFabric::open(RoceConfig::new(&dir, "one"))?;
/// let two = RoceFabric::open(RoceConfig::new(&dir, "two"))?;
/// one.connect("two.sock", b"hello, two");
/// // Each end sees to its own part while it polls.
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
    /// Binds a socket, and listens in the cluster directory.
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

    /// What was dropped so far.
    pub fn dropped(&self) -> Dropped {
        self.core.dropped()
    }

    /// What the queue pairs to a peer have counted, together.
    pub fn counters(&self, peer: PeerId) -> Option<Counters> {
        let connection = self.core.peer(peer)?;
        let lanes = (0..LANES).map(|index| connection.lane(index).qp().counters());
        lanes.reduce(|sum, lane| sum + lane)
    }

    /// Whether packets of a peer came from another address than the one that it offered, and were refused.
    pub fn address_change(&self, peer: PeerId) -> Option<AddressChanged> {
        self.core.peer(peer)?.address_change()
    }

    /// The address and port of its packets to the first peers.
    pub fn local_address(&self) -> SocketAddr {
        self.core.ports.first().address()
    }

    /// The addresses and ports of all its sockets, that of the first peers first.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        self.core.ports.all().iter().map(|port| port.address()).collect()
    }

    /// The address and port where other hosts may dial, if they may; the first where there are several.
    pub fn control_port(&self) -> Option<SocketAddr> {
        self.core.control_ports().first().copied()
    }

    /// Whether nothing that was posted is under way.
    pub fn is_idle(&self) -> bool {
        self.core.is_idle()
    }
}

impl Fabric for RoceFabric {
    fn providers(&self) -> Vec<&'static str> {
        vec!["roce"]
    }

    fn capabilities(&self, _: PeerId) -> Capabilities {
        Capabilities {
            provider: "roce",
            direct: false,
            // The peer's processor carries them out, where its memory is.
            atomics: Atomics::Processor,
            lanes: LANES,
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
        // Its user holds the lock.
        let taken = write(&self.core.registered).get_mut(key.0 as usize).and_then(Option::take);
        if taken.is_some() {
            self.core.tell_and_wake(Event::Deregistered { key });
        }
    }

    /// `address` is the file name of a socket in the cluster directory, as [`listeners`](crate::listeners) has it, or a path, or
    /// another host's IP address and port, as `10.1.2.3:7000` or `[fd00::1]:7000`, or several of these with commas between, which are
    /// tried in their order.
    fn connect(&self, address: &str, hello: &[u8]) {
        self.core.dial(address, hello);
    }

    fn post(&self, peer: PeerId, lane: Lane, requests: &[WorkRequest<'_>]) -> Result<(), PostError> {
        let posted = self.core.post(peer, lane.order_among(LANES), requests);
        posted.map_err(|(posted, cause)| PostError { peer, posted, cause })
    }

    fn poll(&self, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        self.core.turn();
        self.core.take_events(events);
        events.len() - before
    }

    /// There is no way but packets.
    fn direct(&self, _: PeerId, _: Key) -> Option<Window> {
        None
    }

    fn cut_off(&self, peer: PeerId) -> CutOff {
        self.disconnect(peer);
        CutOff::Done
    }

    fn disconnect(&self, peer: PeerId) {
        if let Some(connection) = self.core.peer(peer) {
            self.core.end(&connection);
        }
    }

    fn arm(&self, sleeper: Option<Sleeper>) {
        let is_control_seen = self.core.bell.arm(sleeper, self.core.ports.watched());
        if sleeper.is_some() {
            self.core.note_arming(is_control_seen);
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
        // That of the lane in which small requests go, if it has any.
        let of_lane = |index| connection.lane(index).qp().round_trip_ns();
        (0..LANES).find_map(of_lane).map(Duration::from_nanos)
    }

    fn is_being_answered(&self) -> bool {
        lock(&self.core.control).is_being_answered()
    }

    fn path(&self, peer: PeerId) -> Option<Path> {
        let connection = self.core.peer(peer)?;
        let counters = self.counters(peer)?;
        let window = |index| connection.lane(index).qp().window_packets();
        let mtu = (0..LANES).map(|index| connection.lane(index).qp().path_mtu()).min();
        Some(Path {
            mtu_bytes: mtu.unwrap_or(connection.mtu).bytes(),
            is_known: (0..LANES).all(|index| connection.lane(index).qp().knows_path()),
            sent: counters.sent,
            repeated: counters.repeated,
            repeats_single: connection.selective,
            kept: counters.kept,
            timeouts: counters.timeouts,
            arrived: counters.arrived,
            duplicates: counters.duplicates,
            window_packets: (0..LANES).map(window).collect(),
            ends: (connection.own_address, connection.address),
            elsewhere: connection.address_change().map(|change| (change.seen, change.packets)),
        })
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

    /// Connections end when peers have acknowledged what was posted, which polling finds.
    fn close(&self) {
        self.core.close();
    }
}

impl Drop for RoceFabric {
    fn drop(&mut self) {
        self.close();
        let deadline = Instant::now() + LAST_WORDS;
        self.arm(Some(Sleeper::Progress));
        while self.core.has_peers() && Instant::now() < deadline {
            let seen = self.doorbell();
            self.core.turn();
            // Nobody wants them any more, and receivers wait while there are many.
            self.core.take_events(&mut Vec::new());
            let left = self.core.time_left().unwrap_or(LAST_WORDS).min(LAST_WORDS);
            if self.core.has_peers() {
                self.wait(Sleeper::Progress, seen, Some(left));
                self.arm(Some(Sleeper::Progress));
            }
        }
    }
}

/// Nothing panics while it holds one of our locks; if something did all the same, going on with what it left
/// behind would be worse than stopping.
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
    fn a_retired_secret_stays_retired() {
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
