//! Establishes connections and detects their end, by Unix sockets in the cluster directory and by TCP between hosts.
//!
//! The polling thread checks these control sockets at intervals and before each sleep. No call blocks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use halite_rnic::wire::{Psn, Qpn};
use rustix::event::epoll;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::Timespec;

use super::connection::Connection;
use super::control_socket::{ControlEvent, ControlSocket};
use super::greeting::{LaneOffer, Message, Offer};
use super::ports::PortUse;
use super::{Hosts, LANES, Mtu, RoceConfig};
use crate::refusals::Refusals;
use crate::unix_sockets::Listener;

/// Epoll tokens of the listeners; the tokens of links follow.
const UNIX_LISTENER: u64 = 0;
const TCP_LISTENER: u64 = 1;
/// Maximum number of events that one poll handles; the next poll handles the rest.
const EVENTS_MAX: usize = 16;
/// Maximum number of incoming connections that have not yet proven knowledge of the secret: in all, and from one
/// network (see [`network_of`]).
const UNAUTHENTICATED_MAX: usize = 64;
const UNAUTHENTICATED_PER_NETWORK_MAX: usize = 8;
/// Initial and maximum pause before redialling a host that hung up. The pause doubles each time. Half of the pause is
/// random, so that hosts disconnected together do not redial together.
const REDIAL_NS: u64 = 10_000_000;
const REDIAL_NS_MAX: u64 = 200_000_000;

/// All control sockets of a fabric; see the header of this file.
#[derive(Debug)]
pub(super) struct Control {
    /// `None` once closed.
    listener: Option<Listener>,
    hosts: Option<Hosts>,
    epoll: Arc<OwnedFd>,
    links: BTreeMap<u64, Link>,
    token_last: u64,
    attempt_last: u64,
    /// This end's queue pair numbers in use.
    qpns: BTreeSet<u32>,
    /// Connections whose handshake failed, and which the caller of [`Control::take_failed`] ends.
    failed: Vec<Arc<Connection>>,
    /// Attempts to dial hosts that hung up, each with the time of its next dial, in ns.
    postponed: Vec<(u64, Attempt)>,
    pub(super) refusals: Refusals,
    /// True after a warning that the secrets cannot be read, so that the warning is logged only once.
    has_warned_about_secrets: bool,
}

/// An accepted connection.
pub(super) enum Accepted {
    /// A connection from a process of this host.
    SameHost(ControlSocket),
    /// A TCP connection from another host, with the address of that host.
    OtherHost(TcpStream, IpAddr),
}

/// Returns the network that counts as one sender: the IPv4 address itself, or the 64-bit prefix of an IPv6 address.
fn network_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

/// A control connection to one other end, and the state of its handshake.
#[derive(Debug)]
pub(super) struct Link {
    socket: ControlSocket,
    /// True if epoll watches the socket for room to send.
    watches_writable: bool,
    pub(super) handshake: Handshake,
}

#[derive(Debug)]
pub(super) enum Handshake {
    /// This end has sent an offer to the dialled end, and waits for its answer.
    Dialled { attempt: Attempt, offer: Offer, port_use: Arc<PortUse>, deadline_ns: u64 },
    /// The other end has connected, but not sent its offer yet.
    Accepted { deadline_ns: u64 },
    /// Both offers are known, but no packet has arrived yet. The dialling end waits for the answer to a path probe. The
    /// answering end waits for Ready and a packet; until Ready arrives, the dialling end may be a replay.
    Agreed { connection: Arc<Connection>, attempt: Option<Attempt>, has_sent_ready: bool, deadline_ns: u64 },
    /// The connection exists. On one host, the dialled end may still wait for Ready.
    Connected(Arc<Connection>),
    /// The other end has hung up without a message. Until the deadline, this end waits for the exit of the other end's
    /// process.
    HungUp { connection: Arc<Connection>, deadline_ns: u64 },
}

/// An attempt to dial another host, which may have several addresses.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    /// Number of the attempt, which all its links share. When one link succeeds, the fabric closes the others.
    pub(super) number: u64,
    /// The address as the caller of [`halite_fabric::Fabric::connect`] gave it.
    pub(super) address: String,
    pub(super) hello: Vec<u8>,
    /// Address that this link dials; `None` for a socket of this host.
    pub(super) target: Option<SocketAddr>,
    /// Start of the attempt, in ns.
    pub(super) start_ns: u64,
    /// Number of hang-ups of the host since the start.
    pub(super) hang_ups: u32,
    /// Addresses that the fabric has not dialled yet, in order.
    pub(super) remaining: VecDeque<SocketAddr>,
    /// Time in ns from which the fabric dials the next of `remaining` in parallel.
    pub(super) next_dial_ns: u64,
}

impl Control {
    pub(super) fn new(dir: &Path, name: &str, hosts: Option<&Hosts>) -> io::Result<Control> {
        let listener = Listener::bind(dir, name)?;
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(UNIX_LISTENER), epoll::EventFlags::IN)?;
        for port in hosts.iter().flat_map(|hosts| &hosts.ports) {
            epoll::add(&epoll, port, epoll::EventData::new_u64(TCP_LISTENER), epoll::EventFlags::IN)?;
        }
        Ok(Control {
            listener: Some(listener),
            hosts: hosts.cloned(),
            epoll,
            links: BTreeMap::new(),
            token_last: TCP_LISTENER,
            attempt_last: 0,
            qpns: BTreeSet::new(),
            failed: Vec::new(),
            postponed: Vec::new(),
            refusals: Refusals::default(),
            has_warned_about_secrets: false,
        })
    }

    /// Returns the TCP addresses and ports that other hosts may dial.
    pub(super) fn ports(&self) -> Vec<SocketAddr> {
        self.hosts.as_ref().map(Hosts::addresses).unwrap_or_default()
    }

    /// Returns the epoll descriptor, which is readable if a control socket has input.
    pub(super) fn epoll(&self) -> Arc<OwnedFd> {
        self.epoll.clone()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.listener.is_none()
    }

    /// Stops accepting connections. Abandons the unfinished attempts to dial, and returns them.
    pub(super) fn close(&mut self) -> Vec<Attempt> {
        // Another process may keep the port open, so dropping it would not remove it from the epoll.
        for port in self.hosts.take().into_iter().flat_map(|hosts| hosts.ports) {
            let _ = epoll::delete(&self.epoll, &port);
        }
        self.listener = None;
        let is_unfinished = |_: &u64, link: &mut Link| {
            !matches!(link.handshake, Handshake::Connected(_) | Handshake::HungUp { .. })
        };
        let unfinished: Vec<(u64, Link)> = self.links.extract_if(.., is_unfinished).collect();
        let mut attempts: Vec<Attempt> =
            unfinished.into_iter().filter_map(|(_, link)| self.release(link)).collect();
        attempts.extend(self.postponed.drain(..).map(|(_, attempt)| attempt));
        attempts.sort_by_key(|attempt| attempt.number);
        attempts.dedup_by_key(|attempt| attempt.number);
        attempts
    }

    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// Adds a socket as a new link that epoll watches, and returns its token. Fails if epoll refuses.
    pub(super) fn add(&mut self, socket: ControlSocket, handshake: Handshake) -> io::Result<u64> {
        self.token_last += 1;
        let token = self.token_last;
        let watches_writable = socket.needs_writable();
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(token), interest(watches_writable))?;
        self.links.insert(token, Link { socket, watches_writable, handshake });
        Ok(token)
    }

    pub(super) fn handshake(&mut self, token: u64) -> Option<&mut Handshake> {
        self.links.get_mut(&token).map(|link| &mut link.handshake)
    }

    /// Returns the address of the host that dialled a link; `None` for a link that this end dialled or of this host.
    pub(super) fn dialler(&self, token: u64) -> Option<IpAddr> {
        self.links.get(&token)?.socket.dialler()
    }

    /// Returns the local address of a link between hosts; `None` within a host.
    pub(super) fn own_ip(&self, token: u64) -> Option<IpAddr> {
        self.links.get(&token)?.socket.own_ip()
    }

    /// Returns the next message or event of a link; `None` if none is pending.
    pub(super) fn receive(&mut self, token: u64) -> Option<ControlEvent> {
        let event = self.links.get_mut(&token)?.socket.receive();
        self.update_watch(token);
        event
    }

    /// Sends a message over a link. If that fails, the next call of [`Control::receive`] reports the hang-up.
    pub(super) fn send(&mut self, token: u64, message: &Message) {
        if let Some(link) = self.links.get_mut(&token) {
            let _ = link.socket.send(message);
            self.update_watch(token);
        }
    }

    /// Sends the last message over a link between hosts. Returns true if the kernel has accepted the whole message, and
    /// so delivers it even if this process exits.
    pub(super) fn send_last(&mut self, token: u64, message: &Message) -> bool {
        let Some(link) = self.links.get_mut(&token) else { return false };
        let is_sent = link.socket.send(message).is_ok() && !link.socket.needs_writable();
        self.update_watch(token);
        is_sent
    }

    /// Makes epoll watch the socket for room to send while messages are queued.
    fn update_watch(&mut self, token: u64) {
        let Some(link) = self.links.get_mut(&token) else { return };
        let watches_writable = link.socket.needs_writable();
        if watches_writable != link.watches_writable {
            let data = epoll::EventData::new_u64(token);
            // The socket stays in epoll until it is closed, so this cannot fail.
            if epoll::modify(&self.epoll, &link.socket, data, interest(watches_writable)).is_ok() {
                link.watches_writable = watches_writable;
            }
        }
    }

    /// Starts to dial a TCP port of another host.
    pub(super) fn dial_host(&mut self, address: SocketAddr) -> io::Result<ControlSocket> {
        self.read_secrets();
        let hosts = self.hosts.as_ref().ok_or_else(|| {
            io::Error::new(io::ErrorKind::Unsupported, "a node of another host needs the cluster's secret")
        })?;
        ControlSocket::dial_host(address, hosts.secrets.clone())
    }

    /// Reads the secrets again, for a new connection. Logs a warning for the first failure in a row.
    fn read_secrets(&mut self) {
        let Some(hosts) = &mut self.hosts else { return };
        match hosts.read_secrets() {
            Ok(()) => self.has_warned_about_secrets = false,
            Err(error) if !std::mem::replace(&mut self.has_warned_about_secrets, true) => {
                tracing::warn!("{error}; the secrets read earlier stay in use");
            }
            Err(_) => {}
        }
    }

    /// Records that the other end of a link has hung up without a message. Returns true if this end must wait until
    /// `deadline_ns` for the exit of that process.
    pub(super) fn await_exit(&mut self, token: u64, deadline_ns: u64) -> bool {
        let Some(Link { socket, handshake, .. }) = self.links.get_mut(&token) else { return false };
        let (Handshake::Connected(connection), Some(process)) = (&*handshake, socket.process()) else {
            return false;
        };
        let _ = epoll::delete(&self.epoll, &*socket);
        let is_watched =
            epoll::add(&self.epoll, process, epoll::EventData::new_u64(token), epoll::EventFlags::IN).is_ok();
        *handshake = Handshake::HungUp { connection: connection.clone(), deadline_ns };
        is_watched
    }

    /// Returns true if the process at the other end is known to have ended.
    pub(super) fn has_exited(&self, token: u64) -> bool {
        self.links.get(&token).is_some_and(|link| link.socket.has_exited())
    }

    /// Closes a link. Returns its attempt to dial, if the link had one and the attempt has not succeeded.
    pub(super) fn remove(&mut self, token: u64) -> Option<Attempt> {
        let link = self.links.remove(&token)?;
        self.release(link)
    }

    /// Releases the queue pair numbers of a closed link, or adds its connection to the failed ones. Returns its
    /// unfinished attempt to dial.
    fn release(&mut self, link: Link) -> Option<Attempt> {
        let (qpns, dialled) = match link.handshake {
            Handshake::Dialled { attempt, offer, .. } => (offer.qpns(), Some(attempt)),
            Handshake::Accepted { .. } => return None,
            Handshake::Agreed { connection, attempt, .. } => {
                self.failed.push(connection);
                return attempt;
            }
            Handshake::Connected(connection) | Handshake::HungUp { connection, .. } => {
                (connection.qpns().to_vec(), None)
            }
        };
        self.release_qpns(&qpns);
        dialled
    }

    /// Returns an unused number for an attempt to dial.
    pub(super) fn next_attempt_number(&mut self) -> u64 {
        self.attempt_last += 1;
        self.attempt_last
    }

    /// Removes and returns the connections whose handshake has failed since the last call. The caller must end these
    /// connections and release their queue pair numbers.
    pub(super) fn take_failed(&mut self) -> Vec<Arc<Connection>> {
        std::mem::take(&mut self.failed)
    }

    /// Closes all unfinished links of an attempt after one address has answered.
    pub(super) fn close_attempt(&mut self, number: u64) {
        for token in self.links_of_attempt(number) {
            self.remove(token);
        }
        self.postponed.retain(|(_, attempt)| attempt.number != number);
    }

    /// Returns true if a dialled host has answered, but its connection is not complete yet.
    pub(super) fn is_being_answered(&self) -> bool {
        self.links.values().any(|link| match &link.handshake {
            Handshake::Dialled { .. } => link.socket.has_answered(),
            Handshake::Agreed { attempt, .. } => attempt.is_some(),
            _ => false,
        })
    }

    /// Extends the deadline of a dialled host that has answered to `lease_ns` after the dial, because the host may be
    /// distant. Returns false and changes nothing if the host has not answered, or if the deadline is already that
    /// late.
    pub(super) fn extend_deadline(&mut self, token: u64, lease_ns: u64) -> bool {
        let Some(Link { socket, handshake: Handshake::Dialled { attempt, deadline_ns, .. }, .. }) =
            self.links.get_mut(&token)
        else {
            return false;
        };
        let until_ns = attempt.start_ns.saturating_add(lease_ns);
        let is_extended = attempt.target.is_some() && socket.has_answered() && *deadline_ns < until_ns;
        if is_extended {
            *deadline_ns = until_ns;
        }
        is_extended
    }

    /// Returns true if a link of the attempt exists, or if the attempt is postponed.
    pub(super) fn is_attempt_active(&self, number: u64) -> bool {
        !self.links_of_attempt(number).is_empty()
            || self.postponed.iter().any(|(_, other)| other.number == number)
    }

    /// Postpones an attempt to dial a host that hung up before it answered. A host with too many unauthenticated
    /// connections hangs up in this way. Drops the attempt if `handshake_timeout_ns` would pass before the next dial.
    pub(super) fn postpone(&mut self, attempt: &Attempt, now_ns: u64, handshake_timeout_ns: u64) {
        let (Some(target), Ok(random)) = (attempt.target, random()) else { return };
        let at_ns = now_ns + pause_ns(attempt.hang_ups, random);
        if at_ns < attempt.start_ns.saturating_add(handshake_timeout_ns) {
            let (hang_ups, remaining) = (attempt.hang_ups + 1, VecDeque::from([target]));
            self.postponed.push((at_ns, Attempt { hang_ups, remaining, ..attempt.clone() }));
        }
    }

    /// Removes and returns the postponed attempts whose pause has ended.
    pub(super) fn take_postponed(&mut self, now_ns: u64) -> Vec<Attempt> {
        let due = self.postponed.extract_if(.., |(at_ns, _)| *at_ns <= now_ns);
        due.map(|(_, attempt)| attempt).collect()
    }

    fn links_of_attempt(&self, number: u64) -> Vec<u64> {
        let is_of = |link: &Link| link.handshake.attempt().is_some_and(|attempt| attempt.number == number);
        self.links.iter().filter(|(_, link)| is_of(link)).map(|(token, _)| *token).collect()
    }

    pub(super) fn release_qpns(&mut self, qpns: &[Qpn]) {
        for qpn in qpns {
            self.qpns.remove(&qpn.value());
        }
    }

    /// Creates an offer with random queue pair numbers, packet numbers and salt.
    pub(super) fn create_offer(
        &mut self,
        address: SocketAddr,
        mtu: Mtu,
        config: &RoceConfig,
    ) -> io::Result<Offer> {
        let (selective, responder) = (config.selective, config.responder);
        let (lanes_max, tells_waits, salt) = (config.lanes as u8, selective, random()?);
        // The last lane of the offer is followed by the lanes beyond it.
        let numbers = [self.new_qpns(1)?, self.new_qpns(1 + config.lanes.saturating_sub(LANES) as u32)?];
        let mut lanes = numbers.map(|qpn| LaneOffer { qpn, psn: Psn::new(0) });
        for lane in &mut lanes {
            lane.psn = Psn::new(random()?);
        }
        Ok(Offer { address, mtu, salt, lanes, lanes_max, selective, tells_waits, responder })
    }

    /// Reserves `count` unused numbers in sequence, and returns the first. The first two and the last of all numbers
    /// are reserved in verbs.
    fn new_qpns(&mut self, count: u32) -> io::Result<Qpn> {
        loop {
            let qpn = Qpn::new(random()?);
            let mut range = qpn.value()..qpn.value() + count;
            if range.start >= 2
                && range.end <= 0xff_ffff
                && !range.clone().any(|qpn| self.qpns.contains(&qpn))
            {
                self.qpns.extend(&mut range);
                return Ok(qpn);
            }
        }
    }

    /// Releases the queue pair numbers of an offer that led to no connection.
    pub(super) fn withdraw_offer(&mut self, offer: &Offer) {
        self.release_qpns(&offer.qpns());
    }

    /// Returns the tokens of the links with input. Also returns true if a listener has a pending connection.
    pub(super) fn ready(&self) -> (Vec<u64>, bool) {
        let mut space = [MaybeUninit::uninit(); EVENTS_MAX];
        let ready = epoll::wait(&self.epoll, &mut space[..], Some(&Timespec::default()));
        let tokens = ready.map(|(events, _)| events.iter().map(|event| event.data.u64()).collect());
        let mut tokens: Vec<u64> = tokens.unwrap_or_default();
        let before = tokens.len();
        tokens.retain(|token| *token > TCP_LISTENER);
        let has_newcomer = tokens.len() < before;
        (tokens, has_newcomer)
    }

    /// Accepts the next waiting connection; returns `None` if no connection waits.
    pub(super) fn accept(&mut self) -> io::Result<Option<Accepted>> {
        if let Some(socket) = self.listener.as_ref().map_or(Ok(None), Listener::accept)? {
            return Ok(Some(Accepted::SameHost(ControlSocket::to_process(socket))));
        }
        let Some(hosts) = &self.hosts else { return Ok(None) };
        let mut accepted = hosts.ports.iter().filter_map(|port| ControlSocket::accept_tcp(port).transpose());
        let Some((socket, dialler)) = accepted.next().transpose()? else { return Ok(None) };
        Ok(Some(Accepted::OtherHost(socket, dialler)))
    }

    /// Wraps an accepted TCP connection, with the current secrets. Returns `None` once the fabric is closed.
    pub(super) fn accepted_tcp(&mut self, socket: TcpStream, dialler: IpAddr) -> Option<ControlSocket> {
        self.read_secrets();
        let secrets = self.hosts.as_ref()?.secrets.clone();
        Some(ControlSocket::accepted_tcp(socket, dialler, secrets))
    }

    /// Returns true if the dialling end of the link has not yet proven that it knows the secret.
    pub(super) fn is_unauthenticated(&self, token: u64) -> bool {
        self.links.get(&token).is_some_and(Link::is_unauthenticated)
    }

    /// Returns true if a control connection of the dial attempt `number` has sent `Ready`.
    pub(super) fn has_sent_ready(&self, number: u64) -> bool {
        let mut links = self.links.values();
        links.any(|link| match &link.handshake {
            Handshake::Agreed { attempt: Some(attempt), has_sent_ready, .. } => {
                *has_sent_ready && attempt.number == number
            }
            _ => false,
        })
    }

    /// Selects the unauthenticated link to close so that this end can accept a connection from the host `dialler`.
    /// Returns `None` if there is room without closing a link. Selects the oldest link of the same network or, if there
    /// is none, the oldest link of the network with the most links. So a new host finds room.
    pub(super) fn link_to_evict_for(&self, dialler: IpAddr) -> Option<u64> {
        let links = self.links.iter().filter(|(_, link)| link.is_unauthenticated());
        let links = links.filter_map(|(token, link)| Some((*token, network_of(link.socket.dialler()?))));
        link_to_evict(&links.collect::<Vec<_>>(), network_of(dialler))
    }

    /// Returns the tokens of the links whose deadline has passed.
    pub(super) fn expired(&self, now_ns: u64) -> Vec<u64> {
        let is_late = |link: &Link| link.handshake.deadline_ns().is_some_and(|deadline| deadline <= now_ns);
        self.links.iter().filter(|(_, link)| is_late(link)).map(|(token, _)| *token).collect()
    }

    /// Returns the earliest deadline of all links and postponed attempts, in ns; `None` without links and attempts.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        let links = self.links.values().filter_map(|link| link.handshake.deadline_ns());
        links.chain(self.postponed.iter().map(|(at_ns, _)| *at_ns)).min()
    }
}

/// Selects the link to close for one of the network `newcomer`, among unauthenticated links ordered by age; `None` if
/// there is room.
fn link_to_evict(links: &[(u64, IpAddr)], newcomer: IpAddr) -> Option<u64> {
    let mut counts = BTreeMap::<IpAddr, usize>::new();
    links.iter().for_each(|(_, network)| *counts.entry(*network).or_default() += 1);
    let has_many = counts.get(&newcomer).is_some_and(|count| *count >= UNAUTHENTICATED_PER_NETWORK_MAX);
    let most = counts.values().max().filter(|_| links.len() >= UNAUTHENTICATED_MAX);
    let is_candidate = |network: &IpAddr| match has_many {
        true => *network == newcomer,
        false => most.is_some_and(|most| counts[network] == *most),
    };
    links.iter().find(|(_, network)| is_candidate(network)).map(|(token, _)| *token)
}

/// Returns the pause before dialling a host again after `hang_ups` hang-ups.
fn pause_ns(hang_ups: u32, random: u32) -> u64 {
    let pause_ns = REDIAL_NS.checked_shl(hang_ups.min(16)).unwrap_or(REDIAL_NS_MAX).min(REDIAL_NS_MAX);
    pause_ns / 2 + u64::from(random) % (pause_ns / 2)
}

impl Link {
    fn is_unauthenticated(&self) -> bool {
        match &self.handshake {
            Handshake::Accepted { .. } => true,
            Handshake::Agreed { connection, attempt: None, .. } => {
                !connection.is_up() && !self.socket.is_authenticated()
            }
            _ => false,
        }
    }
}

impl Handshake {
    /// Returns the unfinished attempt of a dialling end.
    fn attempt(&self) -> Option<&Attempt> {
        match self {
            Handshake::Dialled { attempt, .. } => Some(attempt),
            Handshake::Agreed { attempt, .. } => attempt.as_ref(),
            _ => None,
        }
    }

    /// Returns the unfinished attempt of a dialling end, for changes.
    pub(super) fn attempt_mut(&mut self) -> Option<&mut Attempt> {
        match self {
            Handshake::Dialled { attempt, .. } => Some(attempt),
            Handshake::Agreed { attempt, .. } => attempt.as_mut(),
            _ => None,
        }
    }

    /// Returns the time in ns at which the handshake fails, or at which the wait for the exit of the peer's process
    /// ends; `None` while connected.
    pub(super) fn end_ns(&self) -> Option<u64> {
        match self {
            Handshake::Dialled { deadline_ns, .. }
            | Handshake::Accepted { deadline_ns }
            | Handshake::Agreed { deadline_ns, .. }
            | Handshake::HungUp { deadline_ns, .. } => Some(*deadline_ns),
            Handshake::Connected(_) => None,
        }
    }

    /// Returns the time of the next action: to dial another address in parallel, or to fail the handshake.
    fn deadline_ns(&self) -> Option<u64> {
        let next_dial_ns = self
            .attempt()
            .filter(|attempt| !attempt.remaining.is_empty())
            .map(|attempt| attempt.next_dial_ns);
        self.end_ns().map(|end_ns| next_dial_ns.map_or(end_ns, |next_dial_ns| next_dial_ns.min(end_ns)))
    }
}

fn interest(watches_writable: bool) -> epoll::EventFlags {
    if watches_writable { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN }
}

fn random() -> io::Result<u32> {
    let mut bytes = [0; 4];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty())?;
    debug_assert_eq!(filled, bytes.len(), "the kernel returns so few bytes whole");
    Ok(u32::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one unauthenticated link per network number, in the order of arrival, which determines the tokens.
    fn links(networks: impl IntoIterator<Item = u8>) -> Vec<(u64, IpAddr)> {
        (0..).zip(networks.into_iter().map(network)).collect()
    }

    fn network(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    #[test]
    fn a_new_link_evicts_the_oldest_of_the_largest_network() {
        // Seven networks have nine links each, except network 7, which connected first and has ten.
        let networks: Vec<u8> = (0..64).map(|index| 7 - (index % 7) as u8).collect();
        assert_eq!(link_to_evict(&links(networks[..63].to_vec()), network(9)), None, "there is room");
        assert_eq!(link_to_evict(&links(networks.clone()), network(9)), Some(0), "the oldest of network 7");
        // Each network has a single link, so the new link evicts the oldest link of all.
        assert_eq!(link_to_evict(&links(100..164), network(9)), Some(0));
        // A network with a single link keeps it, however old, while another network has two.
        assert_eq!(link_to_evict(&links((100..163).chain([162])), network(9)), Some(62));
    }
}
