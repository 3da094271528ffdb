//! Sessions of other processes of this host: the node's side.
//!
//! ```text
//!   client ── socket ──> Connection ── message ──> request ──> future over the client's own Session
//!                            ▲                                        │ wakes the thread
//!                            └───────────── reply ────────────────────┘
//! ```
//!
//! One thread serves all clients. It polls the shared memory of active clients, and the node while operations of these
//! clients are in progress; otherwise it sleeps in epoll. In each turn it receives at most one slice from each readable
//! socket, and then works for each client that has something to do. The users with such clients share the time evenly
//! ([`server`]). A short access through shared memory needs no future, and neither does a short call between two clients
//! ([`direct`]). For each client, the node keeps an ordinary session of the client's principal ([`crate::session`]),
//! which checks each operation as it does for an application of this process. When a connection ends, its session is
//! dropped with all its resources.
//!
//! Clients are untrusted. The thread copies a message, or a line in shared memory, before decoding it; a malformed one
//! ends the connection. The number of clients, and the operations, objects and bytes of each client have bounds. Beyond
//! them, the thread stops reading the client's socket, or ends the connection. The sessions of each principal except
//! the node's own user also share quotas ([`crate::metrics::Account`]); the node refuses a request that exceeds a
//! quota, and names the quota.
//!
//! This folder calls [`crate::session`], [`crate::driver`], [`crate::cluster`] and [`crate::metrics`]. Its only lock,
//! around the list of woken operations, nests in no other lock.

mod buffers;
mod connection;
mod desk;
mod direct;
mod in_flight;
mod requests;
mod server;
mod socket;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;
use std::thread::JoinHandle;

use halite_providers::threads;
use halite_tier::ids::{NodeId, Principal};
use halite_tier::quota::Amounts;
use rustix::event::{EventfdFlags, eventfd};

use self::server::Server;
use self::socket::Closer;
use crate::cluster::cluster_dir::AttachSocket;
use crate::cluster::config::PrincipalRule;
use crate::driver::Driver;
use crate::metrics::AttachedSessions;
use crate::session::Embedded;

/// Opens a session of a principal, or of the node's principal with `None`; returns `None` if the node has no room.
pub(crate) type Opener = Box<dyn Fn(Option<Principal>) -> Option<Embedded> + Send>;

/// Policy of a node for the sessions of other users.
#[derive(Debug)]
pub(crate) struct Policy {
    /// Rules that assign principals to users.
    pub(crate) principals: Vec<PrincipalRule>,
    /// The quotas of each principal.
    pub(crate) quotas: Amounts,
}

/// The thread that serves attached sessions. Dropping this value ends the thread and all its sessions.
#[derive(Debug)]
pub(crate) struct Attach {
    ready: Arc<Ready>,
    thread: Option<JoinHandle<()>>,
}

impl Attach {
    /// Serves sessions at `socket`.
    pub(crate) fn serve(
        socket: AttachSocket,
        node: NodeId,
        (driver, open): (Arc<Driver>, Opener),
        (sessions, policy): (Arc<AttachedSessions>, Policy),
    ) -> io::Result<Attach> {
        let ready = Arc::new(Ready::new()?);
        let epoll = server::epoll(&socket, &ready)?;
        let (of_thread, closer) = (ready.clone(), Closer::start()?);
        let server = move || {
            Server::new(epoll, socket, (node, driver, open), of_thread, (sessions, policy), closer).run()
        };
        let thread = threads::spawn("halite-attach", server)?;
        Ok(Attach { ready, thread: Some(thread) })
    }
}

impl Drop for Attach {
    fn drop(&mut self) {
        self.ready.end();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is already on standard error.
            let _ = thread.join();
        }
    }
}

/// Operations that can continue, and the event descriptor (eventfd) that wakes the thread.
#[derive(Debug)]
struct Ready {
    bell: OwnedFd,
    /// True if operations can continue or the thread must end: a hint for the thread while it polls.
    is_rung: AtomicBool,
    woken: Mutex<Woken>,
}

#[derive(Debug, Default)]
struct Woken {
    operations: Vec<OperationId>,
    /// True while the thread sleeps or is about to sleep.
    sleeps: bool,
    is_over: bool,
}

/// An operation of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct OperationId {
    client: u64,
    request: u64,
}

impl Ready {
    fn new() -> io::Result<Ready> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Ready { bell, is_rung: AtomicBool::new(false), woken: Mutex::default() })
    }

    fn is_rung(&self) -> bool {
        // Only a hint: the mutex orders the operations themselves.
        self.is_rung.load(Relaxed)
    }

    fn woken(&self) -> MutexGuard<'_, Woken> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        let mut woken = self.woken();
        woken.is_over = true;
        self.ring(&mut woken);
    }

    fn ring(&self, woken: &mut Woken) {
        self.is_rung.store(true, Relaxed);
        if std::mem::take(&mut woken.sleeps) {
            // Cannot fail: a wake-up signals the eventfd once per sleep, so its counter has room.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// Returns true if the thread may sleep. After that, the next wake-up signals the eventfd.
    fn may_sleep(&self) -> bool {
        let mut woken = self.woken();
        woken.sleeps = woken.operations.is_empty() && !woken.is_over;
        woken.sleeps
    }

    /// Takes the woken operations, and returns true if the thread must end afterwards.
    fn take(&self) -> (Vec<OperationId>, bool) {
        let mut woken = self.woken();
        woken.sleeps = false;
        self.is_rung.store(false, Relaxed);
        (std::mem::take(&mut woken.operations), woken.is_over)
    }
}

/// Wakes the thread for one operation.
struct OperationWaker {
    ready: Arc<Ready>,
    id: OperationId,
}

impl Wake for OperationWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut woken = self.ready.woken();
        woken.operations.push(self.id);
        self.ready.ring(&mut woken);
    }
}
