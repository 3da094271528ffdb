//! What the threads of one shm fabric share.
//!
//! Locks are taken in this order, each briefly: a link's state; then a peer's outgoing end or the registered
//! segments; then any one of the others.  Nothing calls out of the fabric while holding one.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::{Arc, Mutex, RwLock};

use halite_fabric::{Event, PeerId};
use halite_mem::doorbell::DOORBELL_BYTES;
use halite_mem::{Doorbell, PagePolicy, Segment, Window};
use rustix::event::{EventfdFlags, epoll};
use rustix::process::PidfdFlags;

use super::completions::Completions;
use super::door::FabricNumber;
use super::inbox::Inbox;
use super::link::Link;
use super::peer::Peer;
use super::socket::Listener;
use super::{ShmConfig, lock, write};
use crate::private_dir::PrivateDir;

/// See the header of this file.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) number: FabricNumber,
    pub(super) config: ShmConfig,
    pub(super) own: Own,
    /// Where our listener is, or was until we closed, and how its socket is called there.
    pub(super) dir: Arc<PrivateDir>,
    pub(super) file_name: String,
    /// `None` once closed.
    pub(super) listener: Mutex<Option<Listener>>,
    pub(super) epoll: OwnedFd,
    /// An eventfd that makes the gate look at its timers and at `stopping`.
    kick: OwnedFd,
    pub(super) stopping: AtomicBool,
    /// Windows of whole segments; a key is an index.  Only ever grows.
    pub(super) registered: RwLock<Vec<Window>>,
    pub(super) links: Mutex<Links>,
    /// From connected until cut off.
    pub(super) peers: RwLock<BTreeMap<PeerId, Arc<Peer>>>,
    pub(super) inbox: Mutex<Inbox>,
    pub(super) completions: Completions,
    events: Mutex<VecDeque<Event>>,
    /// How many events wait, for those who poll: mostly none.
    events_waiting: AtomicUsize,
}

/// What this fabric shows of itself to every peer.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
    pub(super) mailbox: Arc<Segment>,
    pub(super) doorbell: Doorbell,
}

/// The connections, from the first packet until nothing more can be said or heard.
#[derive(Debug, Default)]
pub(super) struct Links {
    by_token: BTreeMap<u64, Arc<Link>>,
    tokens: u64,
    peers: u32,
}

/// What epoll reports, packed into its 64 bits.
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
        let kick = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let core = Core {
            number: FabricNumber::new(),
            own: Own::new()?,
            dir: listener.dir().clone(),
            file_name: listener.file_name().to_owned(),
            listener: Mutex::new(None),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            kick,
            stopping: AtomicBool::new(false),
            registered: RwLock::default(),
            links: Mutex::default(),
            peers: RwLock::default(),
            inbox: Mutex::default(),
            completions: Completions::default(),
            events: Mutex::default(),
            events_waiting: AtomicUsize::new(0),
            config,
        };
        core.watch(&core.kick, Source::Kick, epoll::EventFlags::IN)?;
        core.watch(&listener, Source::Listener, epoll::EventFlags::IN)?;
        *lock(&core.listener) = Some(listener);
        Ok(core)
    }

    /// Queues an event and wakes whoever waits for it.
    pub(super) fn event(&self, event: Event) {
        {
            let mut events = lock(&self.events);
            events.push_back(event);
            // Pairs with the Acquire in next_event().
            self.events_waiting.store(events.len(), Release);
        }
        self.own.doorbell.wake();
    }

    pub(super) fn next_event(&self) -> Option<Event> {
        // Pairs with the Release in event(); the doorbell, which that rings next, orders a look that misses it.
        if self.events_waiting.load(Acquire) == 0 {
            return None;
        }
        let mut events = lock(&self.events);
        let event = events.pop_front();
        self.events_waiting.store(events.len(), Release);
        event
    }

    /// Whether so many events wait that no more peers should be let in.
    pub(super) fn is_crowded(&self) -> bool {
        let links = lock(&self.links).by_token.len();
        let events = lock(&self.events).len();
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

    /// Makes epoll report `fd` again although nothing new has happened to it.
    pub(super) fn watch_again(&self, fd: impl AsFd, source: Source, flags: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(source.pack());
        // Fails only for a descriptor that is not watched, which then needs no more attention either.
        let _ = epoll::modify(&self.epoll, fd, data, flags);
    }

    /// Must precede closing: the peer may hold the same open file, which would keep epoll reporting it.
    pub(super) fn unwatch(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Makes the gate look at its timers.
    pub(super) fn kick(&self) {
        // A full counter means that the gate has been kicked already.
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }

    pub(super) fn take_kick(&self) {
        let _ = rustix::io::read(&self.kick, &mut [0; 8]);
    }

    /// Makes the gate end.
    pub(super) fn stop(&self) {
        // Pairs with the load in is_stopping(); the kick wakes the gate to look.
        self.stopping.store(true, SeqCst);
        self.kick();
    }

    pub(super) fn is_stopping(&self) -> bool {
        // The kick, a system call on either side, orders this.
        self.stopping.load(Relaxed)
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.listener).is_none()
    }
}

impl Own {
    fn new() -> io::Result<Own> {
        let pid = rustix::process::getpid();
        let mailbox = Segment::create("halite-mailbox", DOORBELL_BYTES, PagePolicy::Normal)?;
        let window = mailbox.window(0, DOORBELL_BYTES);
        let window = window.expect("the mailbox is exactly a doorbell");
        Ok(Own {
            pid: pid.as_raw_nonzero().get(),
            pidfd: rustix::process::pidfd_open(pid, PidfdFlags::empty())?,
            mailbox,
            doorbell: Doorbell::new(window).expect("mappings begin at a page"),
        })
    }
}

impl Source {
    fn pack(self) -> u64 {
        match self {
            Source::Listener => 0,
            Source::Kick => 1,
            // Tokens begin at 1.
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
