//! A fabric over shared memory between the processes of one host.
//!
//! Connected processes map each other's registered segments. To write, the posting thread copies the bytes into the
//! peer's segment. Sends, and the immediates of writes, go through rings, one per ordered pair of processes, and a
//! doorbell wakes sleeping threads. The acceptor thread accepts peers and detects when their processes exit, but moves
//! no data.
//!
//! The bytes of a small inline write with immediate (up to 496 bytes) are instead part of the ring record of the write,
//! and the receiver copies these bytes to their address when it polls. So such a write moves one cache line between
//! cores instead of two, one for the data and one for the immediate. The poster checks key and range as for any write.
//! The receiver checks both again, and treats an invalid record as a corrupt ring. Small writes that are still in the
//! ring when a peer leaves or dies are executed with its last messages, before [`Event::Disconnected`].
//!
//! ```text
//!   dir/node-1.sock      Unix sockets: greetings, and the descriptors of segments
//!   dir/node-1.lock      locked while node-1 runs; if the file is not locked, node-1 is dead
//!
//!   poster --copy--> peer's segment --push--> ring --ring--> doorbell --> peer's poll
//!   poster --push small write--> ring --ring--> doorbell --> peer's poll --copy--> peer's segment
//! ```
//!
//! Processes that may enter the directory trust each other with all registered memory. The permissions of the directory
//! admit only its owner's processes. Each process still checks all messages: an invalid message ends the connection of
//! the peer that sent it, and has no other effect.
//!
//! Messages that a peer published before it died or left are delivered before [`Event::Disconnected`].

mod acceptor;
mod core;
mod events;
mod greeting;
mod inbox;
mod lines;
mod link;
mod peer;
mod post;
mod record;
mod room;
mod send_port;
mod shortage;
mod socket;
mod warning;
mod wire;
mod withdrawn;

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use halite_fabric::{
    Atomics, Capabilities, CutOff, Event, Fabric, HELLO_BYTES_MAX, Key, Lane, Lines, PeerId, PostError,
    RegisterError, RemoteAddress, Sleeper, WorkRequest,
};
use halite_mem::{PagePolicy, Segment, Window, ring};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

use self::core::{Core, OwnProcess};
use self::inbox::CorruptRing;
use self::lines::PeerLines;
use self::link::Link;
use self::peer::Peer;
use self::post::Access;
use self::shortage::LinkError;
use crate::threads;
use crate::unix_sockets;

use self::withdrawn::NO_LINK;

/// Maximum size of a ring, in bytes. The maximum also applies to the rings of peers, so it limits the memory that a
/// received message can make this process allocate.
pub const RING_BYTES_MAX: u64 = 64 << 20;
/// Approximate maximum number of events per poll.
const POLL_EVENTS_MAX: usize = 256;

/// The configuration of a shm fabric.
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// The cluster directory. [`ShmFabric::open`] creates the directory if it does not exist.
    pub dir: PathBuf,
    /// The name of this fabric in the directory; `node-3` listens at `dir/node-3.sock`.
    pub name: String,
    /// Data sent to each peer while connecting, at most [`HELLO_BYTES_MAX`] bytes.
    pub hello: Vec<u8>,
    /// Capacity of each outgoing ring, in bytes: a power of two from 4 KiB to [`RING_BYTES_MAX`]. A send may take at
    /// most a quarter of a ring.
    pub ring_bytes: u64,
    /// Maximum number of segments that this fabric registers, and that each peer may register.
    pub segments_max: usize,
    /// Maximum number of connections at one time, including disconnected peers that are not cut off yet.
    pub peers_max: usize,
    /// Maximum number of completions that wait for a poll. The fabric refuses posts while so many completions wait.
    pub completions_max: usize,
    /// Time limit of a handshake, and of announcing a new segment to a peer.
    pub handshake_timeout: Duration,
    /// The action of [`Fabric::cut_off`]: kill the peer's process, or only wait until it exits.
    pub fence: Fence,
    /// The mechanism by which threads sleep until an event arrives.
    pub sleep: Sleep,
    /// True to permit callers to access peers' memory by loads and stores ([`Fabric::direct`]). False to permit only
    /// posted requests, as over a network.
    pub direct: bool,
}

/// The mechanism by which a thread sleeps until an event arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleep {
    /// A futex: the fastest mechanism, but a thread can wait for this fabric only.
    Futex,
    /// Eventfds that peers signal, one for each kind of sleeper ([`Fabric::descriptor`]). A thread can wait for several
    /// fabrics at once.
    Descriptor,
}

/// The action of [`Fabric::cut_off`] against a peer that must no longer access the memory of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fence {
    /// The fabric kills the peer's process.
    Kill,
    /// The fabric does not kill the peer's process. Until that process exits, the caller must not reuse memory that it
    /// can access.
    Never,
}

impl ShmConfig {
    /// Returns the default configuration: rings of 256 KiB, 4096 segments, 1024 peers, handshakes of 2 seconds,
    /// sleeping on a futex.
    pub fn new(dir: impl Into<PathBuf>, name: impl Into<String>) -> ShmConfig {
        ShmConfig {
            dir: dir.into(),
            name: name.into(),
            hello: Vec::new(),
            ring_bytes: 256 << 10,
            segments_max: 4096,
            peers_max: 1024,
            completions_max: 64 << 10,
            handshake_timeout: Duration::from_secs(2),
            fence: Fence::Kill,
            sleep: Sleep::Futex,
            direct: true,
        }
    }

    fn check(&self) -> Result<(), OpenError> {
        let ring_bytes = self.ring_bytes;
        if !ring_bytes.is_power_of_two() || !(4096..=RING_BYTES_MAX).contains(&ring_bytes) {
            return Err(OpenError::RingBytes { ring_bytes });
        }
        if self.name.is_empty() || self.name.contains('/') {
            return Err(OpenError::Name { name: self.name.clone() });
        }
        if self.hello.len() > HELLO_BYTES_MAX {
            return Err(OpenError::HelloTooLong { len: self.hello.len() });
        }
        Ok(())
    }

    fn new_ring(&self) -> io::Result<Arc<Segment>> {
        let len = ring::ring_bytes(self.ring_bytes);
        Segment::create("halite-ring", len, PagePolicy::Normal)
    }

    fn send_bytes_max(&self) -> usize {
        (self.ring_bytes / 4) as usize
    }
}

/// The reason why [`ShmFabric::open`] failed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The ring size is not a power of two, too small, or too large.
    #[error(
        "cannot open a shm fabric with rings of {ring_bytes} bytes: the size must be a power of two from 4096 to {RING_BYTES_MAX}"
    )]
    RingBytes {
        /// The ring size, in bytes.
        ring_bytes: u64,
    },
    /// The name is not usable as a file name.
    #[error("cannot open a shm fabric named {name:?}: the name must be usable as a file name")]
    Name {
        /// Name of the fabric.
        name: String,
    },
    /// The hello is longer than [`HELLO_BYTES_MAX`].
    #[error("cannot open a shm fabric: its hello of {len} bytes is longer than {HELLO_BYTES_MAX}")]
    HelloTooLong {
        /// Length of the hello, in bytes.
        len: usize,
    },
    /// A running process uses the name.
    #[error("cannot open a shm fabric: a running process uses the name {name} in {}", dir.display())]
    NameTaken {
        /// Path of the cluster directory.
        dir: PathBuf,
        /// Name of the fabric.
        name: String,
    },
    /// A system call failed.
    #[error("cannot open a shm fabric as {name} in {}: {source}", dir.display())]
    Io {
        /// Path of the cluster directory.
        dir: PathBuf,
        /// Name of the fabric.
        name: String,
        /// Error of the system call.
        source: io::Error,
    },
}

/// A fabric over shared memory for processes that use the same directory; see [`crate::shm`].
///
/// ```
/// # use halite_providers::{ShmConfig, ShmFabric};
/// # use halite_fabric::{Event, Fabric, Sleeper};
/// # let dir = std::env::temp_dir().join(format!("halite-doc-{}", std::process::id()));
/// let one = ShmFabric::open(ShmConfig::new(&dir, "one"))?;
/// let two = ShmFabric::open(ShmConfig::new(&dir, "two"))?;
/// one.connect("two.sock", b"hello, two");
/// let mut events = Vec::new();
/// while events.is_empty() {
///     let seen = two.doorbell();
///     if two.poll(&mut events) == 0 {
///         two.wait(Sleeper::Progress, seen, None);
///     }
/// }
/// assert!(matches!(&events[0], Event::Connected { hello, dialled: None, .. } if hello == b"hello, two"));
/// # drop((one, two));
/// # std::fs::remove_dir(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ShmFabric {
    core: Arc<Core>,
    acceptor: Option<JoinHandle<()>>,
}

impl ShmFabric {
    /// Opens a fabric: listens in the cluster directory, and starts the acceptor thread.
    ///
    /// Raises this process's soft limit of descriptors to the hard limit, because each peer takes three descriptors, or
    /// five if its threads sleep on descriptors. The usual soft limit of 1024 only protects programs that use `select`.
    pub fn open(config: ShmConfig) -> Result<Arc<ShmFabric>, OpenError> {
        config.check()?;
        let (dir, name) = (config.dir.clone(), config.name.clone());
        ShmFabric::start(config).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => OpenError::NameTaken { dir, name },
            _ => OpenError::Io { dir, name, source },
        })
    }

    fn start(config: ShmConfig) -> io::Result<Arc<ShmFabric>> {
        raise_descriptor_limit();
        let core = Arc::new(Core::open(config)?);
        let shared = core.clone();
        let acceptor = threads::spawn("halite-shm-acceptor", move || acceptor::run(&shared))?;
        Ok(Arc::new(ShmFabric { core, acceptor: Some(acceptor) }))
    }
}

/// Raises the soft limit of descriptors. Ignores a failure: a caller that runs out of descriptors later gets an error
/// that names the limit.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}

impl Fabric for ShmFabric {
    fn providers(&self) -> Vec<&'static str> {
        vec!["shm"]
    }

    /// Always returns false: on one host, a process that does not answer in time is stopped, not far away.
    fn is_being_answered(&self) -> bool {
        false
    }

    fn capabilities(&self, _: PeerId) -> Capabilities {
        Capabilities {
            provider: "shm",
            direct: self.core.config.direct,
            // The caller's processor executes the atomics.
            atomics: Atomics::Processor,
            lanes: 1,
            send_bytes_max: self.core.config.send_bytes_max(),
            // Inline sources are copied straight to their destination.
            inline_bytes_max: usize::MAX,
        }
    }

    fn register(&self, segment: Arc<Segment>) -> Result<Key, RegisterError> {
        let window = segment.window(0, segment.len());
        let window = window.expect("the whole segment");
        let key = {
            let mut registered = write(&self.core.registered);
            let max = self.core.config.segments_max;
            if registered.len() >= max {
                return Err(RegisterError::TooManyKeys { max });
            }
            registered.push(Some(window.clone()));
            // Registered before a peer can receive the key, and in the order of the keys.
            lock(&self.core.inbox).register(window);
            Key(registered.len() as u32 - 1)
        };
        // A link that is added meanwhile reads the table itself.
        for link in self.core.all_links() {
            link.announce_segments(&self.core);
        }
        Ok(key)
    }

    fn deregister(&self, key: Key) {
        let is_registered = {
            let mut registered = write(&self.core.registered);
            let taken = registered.get_mut(key.0 as usize).and_then(Option::take);
            // Drops small writes that still wait in rings.
            lock(&self.core.inbox).withdraw(key);
            taken.is_some()
        };
        if !is_registered {
            return;
        }
        self.core.update_withdrawn(|withdrawn| withdrawn.begin(key.0));
        // A link that is added meanwhile reads the table itself.
        for link in self.core.all_links() {
            link.withdraw(&self.core, key.0);
        }
        self.core.update_withdrawn(|withdrawn| withdrawn.forget(key.0, NO_LINK));
    }

    /// Connects to the fabric that listens at `address`: the file name of a socket in the cluster directory, as
    /// returned by [`listeners`](crate::listeners), or a path.
    fn connect(&self, address: &str, hello: &[u8]) {
        if let Err(trouble) = self.dial(address, hello) {
            self.core.fail_to_connect(address, &trouble);
        }
    }

    /// Executes all requests in order on the calling thread, and ignores the lane.
    fn post(&self, peer: PeerId, _: Lane, requests: &[WorkRequest<'_>]) -> Result<(), PostError> {
        self.core.post(peer, requests)
    }

    fn poll(&self, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        let len_max = before + POLL_EVENTS_MAX;
        // Takes at most half of the events from this queue, so that messages of peers get the other half.
        self.core.events.take(events, POLL_EVENTS_MAX / 2);
        let (corrupt, made_room) = {
            let inbox = &mut *lock(&self.core.inbox);
            (inbox.poll(events, len_max), inbox.take_made_room())
        };
        // leave() takes the lock of the inbox, so this thread must not hold it here.
        if let Some(CorruptRing(peer)) = corrupt {
            self.leave(peer, "the peer corrupted its ring");
        }
        for peer in made_room {
            self.core.ring(peer);
        }
        if !self.core.waiters.is_empty() {
            self.core.push_room_events(events);
        }
        events.len() - before
    }

    fn direct(&self, peer: PeerId, key: Key) -> Option<Window> {
        if !self.core.config.direct {
            return None;
        }
        let peer = self.core.peer(peer)?;
        match self.core.with_window(&peer, key, Window::clone) {
            Ok(Access::Made(window)) => Some(window),
            _ => None,
        }
    }

    fn lines(&self, peer: PeerId, at: RemoteAddress, count: u32) -> Option<Box<dyn Lines>> {
        let window = self.direct(peer, at.key)?;
        let peer = self.core.peer(peer)?;
        let mailbox = lock(&peer.send_port).as_ref()?.mailbox().clone();
        Some(Box::new(PeerLines::new(window, at.offset, count, mailbox)?))
    }

    fn cut_off(&self, peer: PeerId) -> CutOff {
        // The table contains a peer until the peer is cut off.
        let Some(peer) = self.core.peer(peer) else {
            return CutOff::Done;
        };
        if !self.may_kill(&peer) {
            return CutOff::NotPermitted;
        }
        match rustix::process::pidfd_send_signal(&peer.process.pidfd, Signal::KILL) {
            // SRCH: the process has already exited, and the acceptor will detect that.
            Ok(()) | Err(rustix::io::Errno::SRCH) => CutOff::Started,
            Err(_) => CutOff::NotPermitted,
        }
    }

    fn warn(&self, peer: PeerId, text: &str) {
        if let Some(peer) = self.core.peer(peer).filter(|peer| self.may_kill(peer)) {
            warning::write_line(&peer.process, text);
        }
    }

    fn disconnect(&self, peer: PeerId) {
        self.leave(peer, "this process disconnected");
    }

    fn arm(&self, sleeper: Option<Sleeper>) {
        self.core.own.doorbell.arm(sleeper);
    }

    fn wait(&self, sleeper: Sleeper, seen: u32, timeout: Option<Duration>) {
        let OwnProcess { doorbell, sleepers, .. } = &self.core.own;
        match sleepers {
            None => doorbell.wait(sleeper, seen, timeout),
            Some(sleepers) => sleepers[sleeper.place()].sleep(timeout, || doorbell.seq() != seen),
        }
    }

    fn doorbell(&self) -> u32 {
        self.core.own.doorbell.seq()
    }

    fn wake(&self) {
        self.core.own.doorbell.wake();
    }

    fn descriptor(&self, sleeper: Sleeper) -> Option<BorrowedFd<'_>> {
        self.core.own.doorbell.descriptor(sleeper)
    }

    /// Closes the fabric. The caller must first drop the windows from [`Fabric::direct`]. While a thread of this
    /// process holds such a window, this process does not report to the peer that it has unmapped the peer's memory, so
    /// the peer does not reuse that memory.
    fn close(&self) {
        if let Some(listener) = lock(&self.core.listener).take() {
            self.core.unwatch(&listener);
        }
        for link in self.core.all_links() {
            link.leave(&self.core, "this fabric is closed");
        }
    }
}

impl ShmFabric {
    fn dial(&self, address: &str, hello: &[u8]) -> Result<(), LinkError> {
        if hello.len() > HELLO_BYTES_MAX {
            return Err(format!("the hello of {} bytes is longer than {HELLO_BYTES_MAX}", hello.len()).into());
        }
        if self.core.is_closed() {
            return Err("this fabric is closed".into());
        }
        // Joining an absolute path yields that path.
        let path = self.core.config.dir.join(address);
        let socket = unix_sockets::connect(&path)?;
        let dialled = Some(address.to_owned());
        Ok(Link::open(&self.core, Arc::new(socket), dialled, hello)?)
    }

    fn may_kill(&self, peer: &Peer) -> bool {
        self.core.config.fence != Fence::Never && peer.process.pid.is_some_and(|pid| pid != self.core.own.pid)
    }

    fn leave(&self, peer: PeerId, reason: &str) {
        let link = self.core.peer(peer);
        let link = link.and_then(|peer| self.core.link(peer.link_token));
        if let Some(link) = link {
            link.leave(&self.core, reason);
        }
    }
}

impl Drop for ShmFabric {
    fn drop(&mut self) {
        self.close();
        self.core.stop();
        if let Some(acceptor) = self.acceptor.take() {
            let ended = acceptor.join();
            debug_assert!(ended.is_ok(), "the acceptor panicked");
        }
    }
}

/// A poisoned lock is a bug: no code panics while it holds a lock of the fabric, and half-changed state must not be
/// used.
const POISONED: &str = "a thread panicked while it held a lock of the shm fabric";

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect(POISONED)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().expect(POISONED)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().expect(POISONED)
}
