//! The shared state of one shm fabric.
//!
//! Lock order: a link's state; then a peer's outgoing end or the registered segments; then any one other lock. A thread
//! holds each lock briefly, and calls no code outside the fabric while it holds a lock.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

use halite_fabric::{ConnectFailure, Event, Key, PeerId, Sleepers};
use halite_mem::doorbell::DOORBELL_BYTES;
use halite_mem::{Doorbell, PagePolicy, Segment, Sleeper, Window};
use rustix::event::{EventfdFlags, epoll};
use rustix::process::PidfdFlags;

use super::events::Events;
use super::inbox::Inbox;
use super::link::Link;
use super::peer::Peer;
use super::room::Waiters;
use super::send_port::FabricNumber;
use super::shortage::LinkError;
use super::withdrawn::Withdrawn;
use super::{ShmConfig, Sleep, lock, write};
use crate::refusals::Refusals;
use crate::unix_sockets::Listener;

/// The state of one fabric; the header of this file gives the lock order.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) number: FabricNumber,
    pub(super) config: ShmConfig,
    pub(super) own: OwnProcess,
    /// `None` once the fabric is closed.
    pub(super) listener: Mutex<Option<Listener>>,
    pub(super) epoll: OwnedFd,
    /// An eventfd that wakes the acceptor to check its timers and `stopping`.
    kick: OwnedFd,
    pub(super) stopping: AtomicBool,
    /// Windows of whole segments, by key; `None` after deregistration. The list never shrinks.
    pub(super) registered: RwLock<Vec<Option<Window>>>,
    /// Keys that are being deregistered.
    pub(super) withdrawn: Mutex<Withdrawn>,
    pub(super) links: Mutex<Links>,
    /// All peers that are not cut off yet.
    pub(super) peers: RwLock<BTreeMap<PeerId, Arc<Peer>>>,
    pub(super) inbox: Mutex<Inbox>,
    pub(super) events: Events,
    /// Peers whose ring was full at a post.
    pub(super) waiters: Waiters,
    refusals: Mutex<Refusals>,
    /// Time at which the fabric was opened.
    opened_at: Instant,
}

/// The parts of the hello that this fabric sends to every peer.
#[derive(Debug)]
pub(super) struct OwnProcess {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
    pub(super) mailbox: Arc<Segment>,
    pub(super) doorbell: Doorbell,
    /// The sleepers on the descriptors of the doorbell, by [`Sleeper::place`](halite_mem::Sleeper::place); `None` if
    /// threads sleep on a futex.
    pub(super) sleepers: Option<[Sleepers; 2]>,
}

/// The connections by token. A link stays until its socket carries no more messages.
#[derive(Debug, Default)]
pub(super) struct Links {
    by_token: BTreeMap<u64, Arc<Link>>,
    tokens: u64,
    peers: u32,
}

/// The source of an epoll report, packed into its 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    Listener,
    Kick,
    Socket { token: u64 },
    Exit { token: u64 },
}

impl Core {
    pub(super) fn open(config: ShmConfig) -> io::Result<Core> {
        let listener = Listener::bind(&config.dir, &config.name)?;
        let core = Core {
            number: FabricNumber::new(),
            own: OwnProcess::new(config.sleep)?,
            listener: Mutex::new(None),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            kick: eventfd()?,
            stopping: AtomicBool::new(false),
            registered: RwLock::default(),
            withdrawn: Mutex::default(),
            links: Mutex::default(),
            peers: RwLock::default(),
            inbox: Mutex::default(),
            events: Events::default(),
            waiters: Waiters::default(),
            refusals: Mutex::default(),
            opened_at: Instant::now(),
            config,
        };
        core.watch(&core.kick, Source::Kick, epoll::EventFlags::IN)?;
        core.watch(&listener, Source::Listener, epoll::EventFlags::IN)?;
        *lock(&core.listener) = Some(listener);
        Ok(core)
    }

    /// Logs that this fabric refused an incoming connection.
    pub(super) fn log_refusal(&self, reason: &str) {
        let now_ns = self.opened_at.elapsed().as_nanos() as u64;
        lock(&self.refusals).tell(now_ns, || tracing::warn!("refused the connection of a process: {reason}"));
    }

    /// Logs the number of refusals that were only counted, if the interval has ended. Returns true if the caller must
    /// call this method again later.
    pub(super) fn log_suppressed_refusals(&self) -> bool {
        let mut refusals = lock(&self.refusals);
        refusals.tell_left_out(self.opened_at.elapsed().as_nanos() as u64);
        refusals.due_ns() != u64::MAX
    }

    /// Queues an event and wakes the waiting threads.
    pub(super) fn push_event(&self, event: Event) {
        self.events.extend([event]);
        self.own.doorbell.wake();
    }

    /// Queues the event that an outgoing connection failed.
    pub(super) fn fail_to_connect(&self, address: &str, trouble: &LinkError) {
        let (reason, trouble) = (trouble.to_string(), trouble.kind());
        self.push_event(Event::ConnectFailed(ConnectFailure {
            address: address.to_owned(),
            reason,
            trouble,
        }));
    }

    /// Wakes a peer that sleeps until its outgoing ring has room.
    pub(super) fn ring(&self, peer: PeerId) {
        let send_port = self.peer(peer).map(|peer| peer.send_port.clone());
        if let Some(outgoing) =
            send_port.as_deref().map(|send_port| lock(send_port)).as_deref().and_then(Option::as_ref)
        {
            outgoing.ring();
        }
    }

    /// Returns true if so many links or events exist that the acceptor must refuse peers.
    pub(super) fn must_refuse_peers(&self) -> bool {
        let links = lock(&self.links).by_token.len();
        let events = self.events.count_connection_events();
        links >= self.config.peers_max || events >= 4 * self.config.peers_max
    }

    pub(super) fn peer(&self, id: PeerId) -> Option<Arc<Peer>> {
        super::read(&self.peers).get(&id).cloned()
    }

    pub(super) fn add_peer(&self, peer: Arc<Peer>) {
        write(&self.peers).insert(peer.id, peer);
    }

    pub(super) fn remove_peer(&self, id: PeerId) {
        write(&self.peers).remove(&id);
    }

    pub(super) fn link(&self, token: u64) -> Option<Arc<Link>> {
        lock(&self.links).by_token.get(&token).cloned()
    }

    pub(super) fn all_links(&self) -> Vec<Arc<Link>> {
        lock(&self.links).by_token.values().cloned().collect()
    }

    pub(super) fn add_link(&self, new: impl FnOnce(u64) -> Link) -> Arc<Link> {
        let mut links = lock(&self.links);
        links.tokens += 1;
        let token = links.tokens;
        let link = Arc::new(new(token));
        links.by_token.insert(token, link.clone());
        link
    }

    pub(super) fn remove_link(&self, token: u64) {
        lock(&self.links).by_token.remove(&token);
        self.update_withdrawn(|withdrawn| withdrawn.forget_link(token));
    }

    /// Applies `change` to the keys under deregistration. Then queues a deregistered event for each key through which
    /// no peer can access memory any more.
    pub(super) fn update_withdrawn(&self, change: impl FnOnce(&mut Withdrawn)) {
        let mut withdrawn = lock(&self.withdrawn);
        change(&mut withdrawn);
        let done = withdrawn.take_done();
        drop(withdrawn);
        done.into_iter().for_each(|key| self.push_event(Event::Deregistered { key: Key(key) }));
    }

    pub(super) fn next_peer_id(&self) -> PeerId {
        let mut links = lock(&self.links);
        links.peers += 1;
        PeerId(links.peers)
    }

    pub(super) fn watch(&self, fd: impl AsFd, source: Source, flags: epoll::EventFlags) -> io::Result<()> {
        let data = epoll::EventData::new_u64(source.pack());
        Ok(epoll::add(&self.epoll, fd, data, flags)?)
    }

    /// Makes epoll report `fd` again, even if no new event has occurred.
    pub(super) fn watch_again(&self, fd: impl AsFd, source: Source, flags: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(source.pack());
        // Fails only for an unwatched descriptor, which needs no report.
        let _ = epoll::modify(&self.epoll, fd, data, flags);
    }

    /// Stops epoll from watching `fd`. Callers must do this before they close `fd`: the peer may hold the same open
    /// file, and epoll would continue to report events of that file.
    pub(super) fn unwatch(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Wakes the acceptor to check its timers.
    pub(super) fn kick(&self) {
        // Fails only if the counter is full. The acceptor has then been woken already.
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }

    pub(super) fn take_kick(&self) {
        let _ = rustix::io::read(&self.kick, &mut [0; 8]);
    }

    pub(super) fn stop(&self) {
        // The following kick wakes the acceptor, which then reads `stopping`.
        self.stopping.store(true, SeqCst);
        self.kick();
    }

    pub(super) fn is_stopping(&self) -> bool {
        // Relaxed: the system calls of the kick order this load after the store in stop().
        self.stopping.load(Relaxed)
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.listener).is_none()
    }
}

impl OwnProcess {
    fn new(sleep: Sleep) -> io::Result<OwnProcess> {
        let pid = rustix::process::getpid();
        let mailbox = Segment::create("halite-mailbox", DOORBELL_BYTES, PagePolicy::Normal)?;
        let window = mailbox.window(0, DOORBELL_BYTES);
        let window = window.expect("the mailbox has the length of a doorbell");
        let doorbell = match sleep {
            Sleep::Futex => Doorbell::new(window),
            Sleep::Descriptor => Doorbell::with_descriptors(window, [eventfd()?, eventfd()?]),
        };
        let doorbell = doorbell.expect("mappings begin at a page");
        let new_sleepers =
            |kind| doorbell.descriptor(kind).map(|descriptor| Sleepers::new([descriptor])).transpose();
        let [progress, caller] = Sleeper::KINDS;
        let sleepers = new_sleepers(progress)?.zip(new_sleepers(caller)?).map(<[Sleepers; 2]>::from);
        Ok(OwnProcess {
            pid: pid.as_raw_nonzero().get(),
            pidfd: rustix::process::pidfd_open(pid, PidfdFlags::empty())?,
            mailbox,
            doorbell,
            sleepers,
        })
    }
}

fn eventfd() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

impl Source {
    fn pack(self) -> u64 {
        match self {
            Source::Listener => 0,
            Source::Kick => 1,
            // Tokens start at 1, so the packed values 0 and 1 are free.
            Source::Socket { token } => token << 1,
            Source::Exit { token } => token << 1 | 1,
        }
    }

    pub(super) fn unpack(packed: u64) -> Source {
        let token = packed >> 1;
        match packed {
            0 => Source::Listener,
            1 => Source::Kick,
            _ if packed & 1 == 0 => Source::Socket { token },
            _ => Source::Exit { token },
        }
    }
}
