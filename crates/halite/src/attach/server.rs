//! The thread that serves attached sessions: it accepts, receives, polls operations and sends.

mod calls;
mod rings;
mod turns;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::{Arc, Once};
use std::time::Instant;

use halite_tier::ids::NodeId;
use halite_tier::quota::Quota;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use self::rings::Rings;
use self::turns::{TURN, Turns};
use super::buffers::Buffers;
use super::connection::{Connection, Over, Peer};
use super::desk::Desk;
use super::direct::Direct;
use super::in_flight::InFlight;
use super::socket::{Closer, Socket};
use super::{Opener, Policy, Ready};
use crate::cluster::cluster_dir::AttachSocket;
use crate::cluster::principals::principal_of;
use crate::driver::Driver;
use crate::metrics::{AttachedSession, AttachedSessions};
use crate::session::attached::wire::{Refusal, SLICE_BYTES, Welcome};

/// Maximum number of connections of other users.
const SESSIONS_MAX: usize = 1024;
/// Connections beyond this maximum that the node's own user may have.
const RESERVED: usize = 64;
/// Maximum number of connections that have not said hello; the oldest ends when one more comes.
const SILENT_MAX: usize = 256;
/// Pause, in ms, before the next accept after the system ran out of descriptors.
const SHORTAGE_MS: i64 = 100;
/// Maximum number of events that one wait returns.
const EVENTS_MAX: usize = 256;

/// Tokens of the listener and the bell; clients count from 0.
const LISTENER: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;

pub(super) struct Server {
    epoll: OwnedFd,
    socket: AttachSocket,
    node: NodeId,
    driver: Arc<Driver>,
    open: Opener,
    ready: Arc<Ready>,
    clients: BTreeMap<u64, Connection>,
    /// State of the attached sessions, for the node's reports and metrics.
    sessions: Arc<AttachedSessions>,
    policy: Policy,
    /// Clients whose operations wait until the client receives replies.
    stalled: BTreeSet<u64>,
    /// Clients that use shared memory.
    rings: Rings,
    turns: Turns,
    /// Sessions that have ended and still have objects, by user.
    ended: BTreeMap<u32, VecDeque<Rc<Desk>>>,
    /// True while [`Server::finish_calls`] runs.
    finishes_calls: bool,
    closer: Closer,
    next_client: u64,
    /// User id of the node's process.
    own_uid: u32,
    /// User id under which the kernel shows all users that the node's user namespace does not map; `None` if it maps all.
    unmapped_uid: Option<u32>,
    /// True if the thread waits for connections.
    accepts: bool,
    buffers: Buffers,
    direct: Rc<Direct>,
    in_flight: Rc<InFlight>,
    /// Bytes that were just received.
    slice: Vec<u8>,
}

/// Returns a descriptor that waits for connections and for the bell.
pub(super) fn epoll(socket: &AttachSocket, ready: &Ready) -> io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &socket.listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
    epoll::add(&epoll, &ready.bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
    Ok(epoll)
}

impl Server {
    /// Creates the state of the thread. Only that thread may use it.
    pub(super) fn new(
        epoll: OwnedFd,
        socket: AttachSocket,
        (node, driver, open): (NodeId, Arc<Driver>, Opener),
        ready: Arc<Ready>,
        (sessions, policy): (Arc<AttachedSessions>, Policy),
        closer: Closer,
    ) -> Server {
        Server {
            epoll,
            socket,
            node,
            driver,
            open,
            ready,
            clients: BTreeMap::new(),
            sessions,
            policy,
            stalled: BTreeSet::new(),
            rings: Rings::new(),
            turns: Turns::default(),
            ended: BTreeMap::new(),
            finishes_calls: false,
            closer,
            next_client: 0,
            own_uid: rustix::process::geteuid().as_raw(),
            unmapped_uid: unmapped_uid(),
            accepts: true,
            buffers: Buffers::default(),
            direct: Rc::default(),
            in_flight: Rc::default(),
            slice: vec![0; SLICE_BYTES],
        }
    }

    /// Serves clients until the node ends.
    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let mut is_short = false;
        loop {
            let is_polling = self.serve_rings();
            if !is_polling && std::mem::take(&mut self.rings.has_polled) {
                self.driver.rest();
            }
            self.turns.begin_round();
            self.end_objects();
            let has_turns = !self.turns.is_empty() || !self.ended.is_empty();
            self.end_overdue_calls();
            let timeout_ms = match (!is_polling && !has_turns && self.ready.may_sleep(), is_short) {
                (false, _) => Some(0),
                (true, true) => Some(SHORTAGE_MS),
                (true, false) => self.ms_to_search(),
            };
            let timeout =
                timeout_ms.map(|ms| Timespec { tv_sec: ms / 1000, tv_nsec: (ms % 1000 * 1_000_000) as _ });
            let waited = epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref());
            if waited.is_err_and(|error| error != Errno::INTR) {
                // The wait fails only if the system lacks memory.
                std::thread::sleep(std::time::Duration::from_millis(SHORTAGE_MS as u64));
            }
            is_short = false;
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => is_short = self.accept().is_err(),
                    BELL => drop(rustix::io::read(&self.ready.bell, &mut [0; 8])),
                    client => self.serve(client, event.flags),
                }
            }
            let (woken, is_over) = self.ready.take();
            for id in woken {
                if let Some(connection) = self.clients.get_mut(&id.client) {
                    connection.wake(id.request);
                    self.turns.add(connection.peer().uid, id.client);
                }
            }
            self.take_turns();
            // Other sessions of their principals may have received replies.
            let (clients, turns) = (&self.clients, &mut self.turns);
            self.stalled.retain(|client| {
                let Some(connection) = clients.get(client) else { return false };
                let may_continue = connection.may_continue();
                if may_continue {
                    turns.add(connection.peer().uid, *client);
                }
                !may_continue
            });
            // The node has ended all waits, so the clients have received the errors.
            if is_over {
                return;
            }
            self.set_accepting(!is_short && self.clients.len() < SESSIONS_MAX + RESERVED);
        }
    }

    fn set_accepting(&mut self, accepts: bool) {
        if accepts != self.accepts {
            let flags = if accepts { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
            let data = epoll::EventData::new_u64(LISTENER);
            self.accepts = epoll::modify(&self.epoll, &self.socket.listener, data, flags).is_ok() == accepts;
        }
    }

    /// Accepts a connection. Fails if the system lacks descriptors or memory.
    fn accept(&mut self) -> Result<(), Over> {
        let stream = match self.socket.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(()),
                _ => return Err(Over),
            },
        };
        // Clients that have disconnected, or that the kernel cannot identify, are not served.
        let (Ok((uid, pid)), Ok(())) =
            (halite_providers::peer_of(stream.as_fd()), stream.set_nonblocking(true))
        else {
            return Ok(());
        };
        let socket = Socket::new(stream, self.closer.clone());
        if uid != self.own_uid && Some(uid) == self.unmapped_uid {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| {
                tracing::warn!("refused a client: the node's user namespace does not map its user, and shows all such users as {uid}");
            });
            return Ok(());
        }
        let of_user = self.clients.values().filter(|other| other.peer().uid == uid).count();
        // Sessions beyond the maximum are refused with a reason; connections that never say hello must not starve
        // others.
        let most = self.policy.quotas.of(Quota::Sessions).saturating_mul(2);
        if uid != self.own_uid && (of_user as u64 >= most || self.clients.len() >= SESSIONS_MAX) {
            return Ok(());
        }
        let mut silent =
            self.clients.iter().filter(|(_, other)| !other.is_attached()).map(|(client, _)| *client);
        let oldest = silent.next();
        if silent.count() + 1 >= SILENT_MAX {
            oldest.and_then(|oldest| self.clients.remove(&oldest));
        }
        let peer = Peer { uid, pid };
        let client = self.next_client;
        let flags = epoll::EventFlags::IN;
        if epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(client), flags).is_err() {
            return Err(Over);
        }
        self.next_client += 1;
        self.clients.insert(client, Connection::new(socket, client, peer, self.ready.clone()));
        Ok(())
    }

    /// Handles an event of a client's socket, unless its user has used up its time in this round: the event then comes
    /// again.
    fn serve(&mut self, client: u64, flags: epoll::EventFlags) {
        let begin = Instant::now();
        let Some(uid) = self.clients.get(&client).map(|connection| connection.peer().uid) else {
            let uid = self.in_flight.user_of(client);
            self.in_flight.look(client);
            uid.into_iter().for_each(|uid| self.charge(uid, begin));
            return;
        };
        // A closed socket causes an event in each round, which must not use up the time for its last requests.
        if self.turns.is_over(uid) || self.clients.get(&client).is_some_and(Connection::has_closed) {
            return;
        }
        let mut slice = std::mem::take(&mut self.slice);
        self.with(client, |connection, server| {
            if flags.intersects(!epoll::EventFlags::OUT) {
                connection.receive(&mut slice)?;
            }
            if connection.has_hello()? {
                let answer = server.admit(connection.peer());
                let pid = connection.peer().pid;
                let session = connection.greet(answer).map(|Welcome { principal, socket_reason, .. }| {
                    AttachedSession { principal, pid, operations: 0, bytes: 0, socket_reason }
                });
                server.sessions.set(client, session);
            }
            Ok(())
        });
        self.slice = slice;
        self.charge(uid, begin);
    }

    /// Counts the time since `begin` as a user's.
    fn charge(&mut self, uid: u32, begin: Instant) {
        let used = begin.elapsed();
        self.turns.charge(uid, used);
        self.rings.charge(uid, used);
    }

    /// Runs `act` on a connection, then sends its output. Drops the connection if it has ended.
    fn with(&mut self, client: u64, act: impl FnOnce(&mut Connection, &Server) -> Result<(), Over>) {
        let Some(mut connection) = self.clients.remove(&client) else { return };
        let acted = act(&mut connection, self).and_then(|()| connection.flush());
        self.sessions.count(connection.take_counts());
        if acted.is_ok() && connection.set_interest(&self.epoll, client).is_ok() {
            if connection.is_awake() {
                self.rings.activate(client, connection.peer().uid);
            }
            let (operations, bytes) = connection.figures();
            self.sessions.update(client, operations, bytes);
            if connection.has_stalled() {
                self.stalled.insert(client);
            }
            if connection.wants_turn() {
                self.turns.add(connection.peer().uid, client);
            }
            let has_forwards = connection.has_forwards();
            self.clients.insert(client, connection);
            if has_forwards {
                self.forward(client);
            }
        } else {
            self.sessions.set(client, None);
            let uid = connection.peer().uid;
            self.ended.entry(uid).or_default().extend(connection.end(&self.epoll));
        }
        self.finish_calls();
    }

    /// Ends objects of sessions that have ended, the oldest session of each user first, as far as the user has time left in
    /// this round. Thousands of them take more than 0.1 s.
    fn end_objects(&mut self) {
        let mut users = std::mem::take(&mut self.ended);
        users.retain(|uid, desks| {
            while let Some(desk) = desks.front()
                && !self.turns.is_over(*uid)
            {
                let begin = Instant::now();
                if !desk.end_one() {
                    // Ends the session itself.
                    desks.pop_front();
                }
                self.charge(*uid, begin);
            }
            !desks.is_empty()
        });
        self.ended = users;
        self.finish_calls();
    }

    /// Gives each client that has something to do a turn, as far as its user has time left in this round.
    fn take_turns(&mut self) {
        for (uid, waiting) in self.turns.users() {
            for _ in 0..waiting {
                if self.turns.is_over(uid) {
                    break;
                }
                let Some(client) = self.turns.next(uid) else { break };
                let begin = Instant::now();
                self.with(client, |connection, _| connection.take_turn(begin + TURN));
                self.charge(uid, begin);
            }
        }
    }

    /// Opens the session of a client that has sent its hello.
    fn admit(&self, peer: Peer) -> Result<(Welcome, Desk), Refusal> {
        let is_owner = peer.uid == self.own_uid;
        let session = (self.open)((!is_owner).then(|| principal_of(peer.uid, &self.policy.principals)));
        let session = session.ok_or(Refusal::TooManySessions { max: 1 << 16, of_user_only: false })?;
        let principal = session.inner.principal.0.as_ref().to_owned();
        let highest = session.inner.highest;
        let account = self.sessions.account(&principal, (!is_owner).then_some(&self.policy.quotas));
        account.admit(Quota::Sessions, 1).map_err(|exceeded| Refusal::TooManySessions {
            max: exceeded.max.try_into().unwrap_or(u32::MAX),
            of_user_only: true,
        })?;
        Ok((
            Welcome { node: self.node, principal, highest, socket_reason: None },
            Desk::new(
                session,
                is_owner,
                account,
                (self.buffers.clone(), self.direct.clone()),
                (peer.uid, self.in_flight.clone()),
            ),
        ))
    }
}

/// Returns the user id under which the kernel shows all users that the user namespace of this process does not map: in a
/// container, users of its host. `None` if it maps all users.
fn unmapped_uid() -> Option<u32> {
    let maps = std::fs::read_to_string("/proc/self/uid_map").ok()?;
    let lengths = maps.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    let maps_all = lengths.sum::<u64>() >= u64::from(u32::MAX);
    let uid = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
    (!maps_all).then(|| uid.trim().parse().ok()).flatten()
}
