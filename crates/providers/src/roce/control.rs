//! How connections come about, and how their ends are heard of: Unix sockets in the cluster directory, and ports where other hosts
//! may dial.
//!
//! A polling thread looks here, too, now and then, and always before it sleeps; nothing blocks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use halite_rnic::wire::{Psn, Qpn};
use rustix::event::epoll;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::Timespec;

use super::connection::Connection;
use super::greeting::{LaneOffer, Message, Offer};
use super::line::{Heard, Line};
use super::ports::PortUse;
use super::{Hosts, LANES, Mtu};
use crate::meeting::Listener;

/// The numbers of the listeners in epoll; those of links begin behind them.
const LISTENER: u64 = 0;
const PORT: u64 = 1;
/// What one look sees to; the rest waits for the next.
const EVENTS_MAX: usize = 16;
/// Most who have dialled from other hosts and not said yet what they want, in all and from one address.
const STRANGERS_MAX: usize = 64;
const STRANGERS_FROM_ONE_MAX: usize = 8;

/// See the header of this file.
#[derive(Debug)]
pub(super) struct Control {
    /// `None` once closed.
    listener: Option<Listener>,
    hosts: Option<Hosts>,
    epoll: Arc<OwnedFd>,
    links: BTreeMap<u64, Link>,
    tokens: u64,
    attempts: u64,
    /// Numbers of queue pairs that are ours already.
    qpns: BTreeSet<u32>,
    /// What was agreed on and has come to nothing.
    given_up: Vec<Arc<Connection>>,
}

/// One other end.
#[derive(Debug)]
pub(super) struct Link {
    line: Line,
    /// Whether epoll says when more can be sent.
    is_writing: bool,
    pub(super) handshake: Handshake,
}

#[derive(Debug)]
pub(super) enum Handshake {
    /// We have made an offer to whom we dialled, and wait for the answer.
    Dialled { attempt: Attempt, offer: Offer, port_use: Arc<PortUse>, deadline_ns: u64 },
    /// They are to make us one.
    Accepted { deadline_ns: u64 },
    /// Both have made their offers, and it is to be shown yet that packets get through: to the end that dialled, by an answer to a
    /// probe, and to the other, by the word of the first.
    Agreed { connection: Arc<Connection>, attempt: Option<Attempt>, deadline_ns: u64 },
    /// There is a connection; on one host, the end that was dialled may have to hear yet that the other is ready.
    Connected(Arc<Connection>),
    /// The other end has hung up without a word: its process is ending, which is waited for a little while.
    HungUp { connection: Arc<Connection>, deadline_ns: u64 },
}

/// What is left of somebody's wish to dial another host, which may have several addresses.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    /// All links of one wish have this number; none, but for those, is answered.
    pub(super) number: u64,
    /// As it was wished.
    pub(super) address: String,
    pub(super) hello: Vec<u8>,
    /// Addresses that are to be tried yet, and when the next of them is, though nothing has failed.
    pub(super) rest: VecDeque<SocketAddr>,
    pub(super) next_ns: u64,
}

impl Control {
    pub(super) fn new(dir: &Path, name: &str, hosts: Option<&Hosts>) -> io::Result<Control> {
        let listener = Listener::bind(dir, name)?;
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        for port in hosts.iter().flat_map(|hosts| &hosts.ports) {
            epoll::add(&epoll, port, epoll::EventData::new_u64(PORT), epoll::EventFlags::IN)?;
        }
        let (hosts, links, qpns) = (hosts.cloned(), BTreeMap::new(), BTreeSet::new());
        let (tokens, given_up) = (PORT, Vec::new());
        Ok(Control { listener: Some(listener), hosts, epoll, links, tokens, attempts: 0, qpns, given_up })
    }

    /// Where other hosts may dial.
    pub(super) fn ports(&self) -> Vec<SocketAddr> {
        self.hosts.as_ref().map(Hosts::addresses).unwrap_or_default()
    }

    /// What becomes readable when there is something to look at.
    pub(super) fn epoll(&self) -> Arc<OwnedFd> {
        self.epoll.clone()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.listener.is_none()
    }

    /// Nobody is let in any more, and who was being dialled is not; returns where that was.
    pub(super) fn close(&mut self) -> Vec<Attempt> {
        // A port that others hold, too, is not theirs to be let in by.
        for port in self.hosts.take().into_iter().flat_map(|hosts| hosts.ports) {
            let _ = epoll::delete(&self.epoll, &port);
        }
        self.listener = None;
        let is_unfinished = |_: &u64, link: &mut Link| {
            !matches!(link.handshake, Handshake::Connected(_) | Handshake::HungUp { .. })
        };
        let unfinished: Vec<(u64, Link)> = self.links.extract_if(.., is_unfinished).collect();
        let mut attempts: Vec<Attempt> =
            unfinished.into_iter().filter_map(|(_, link)| self.ended(link)).collect();
        attempts.sort_by_key(|attempt| attempt.number);
        attempts.dedup_by_key(|attempt| attempt.number);
        attempts
    }

    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// Watches a line; an error if that cannot be.
    pub(super) fn add(&mut self, line: Line, handshake: Handshake) -> io::Result<u64> {
        self.tokens += 1;
        let token = self.tokens;
        let is_writing = line.wants_to_write();
        epoll::add(&self.epoll, &line, epoll::EventData::new_u64(token), interest(is_writing))?;
        self.links.insert(token, Link { line, is_writing, handshake });
        Ok(token)
    }

    pub(super) fn handshake(&mut self, token: u64) -> Option<&mut Handshake> {
        self.links.get_mut(&token).map(|link| &mut link.handshake)
    }

    /// The host at the other end of a link, if it dialled a port of ours.
    pub(super) fn from(&self, token: u64) -> Option<IpAddr> {
        self.links.get(&token)?.line.from()
    }

    /// The address of ours that a link ends at, if it is one between hosts.
    pub(super) fn own_address(&self, token: u64) -> Option<IpAddr> {
        self.links.get(&token)?.line.own_address()
    }

    /// What has been said over a link, if anything.
    pub(super) fn receive(&mut self, token: u64) -> Option<Heard> {
        let heard = self.links.get_mut(&token)?.line.receive();
        self.watch(token);
        heard
    }

    /// Says something over a link.  If that fails, it has hung up, which is heard next.
    pub(super) fn send(&mut self, token: u64, message: &Message) {
        if let Some(link) = self.links.get_mut(&token) {
            let _ = link.line.send(message);
            self.watch(token);
        }
    }

    /// Has epoll say when more can be sent, while there is more.
    fn watch(&mut self, token: u64) {
        let Some(link) = self.links.get_mut(&token) else { return };
        let is_writing = link.line.wants_to_write();
        if is_writing != link.is_writing {
            let data = epoll::EventData::new_u64(token);
            // It was added, and is there until it is closed.
            if epoll::modify(&self.epoll, &link.line, data, interest(is_writing)).is_ok() {
                link.is_writing = is_writing;
            }
        }
    }

    /// Dials a port of another host.
    pub(super) fn dial_host(&self, address: SocketAddr) -> io::Result<Line> {
        let hosts = self.hosts.as_ref().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "other hosts are reached by who has the cluster's secret",
            )
        })?;
        Line::dial_host(address, hosts.secrets())
    }

    /// The other end has hung up without a word.  Says whether it may turn out before `deadline_ns` that its process has ended.
    pub(super) fn await_exit(&mut self, token: u64, deadline_ns: u64) -> bool {
        let Some(Link { line, handshake, .. }) = self.links.get_mut(&token) else { return false };
        let (Handshake::Connected(connection), Some(process)) = (&*handshake, line.process()) else {
            return false;
        };
        let _ = epoll::delete(&self.epoll, &*line);
        let is_watched =
            epoll::add(&self.epoll, process, epoll::EventData::new_u64(token), epoll::EventFlags::IN).is_ok();
        *handshake = Handshake::HungUp { connection: connection.clone(), deadline_ns };
        is_watched
    }

    /// Whether it is known that the process at the other end has ended.
    pub(super) fn has_exited(&self, token: u64) -> bool {
        self.links.get(&token).is_some_and(|link| link.line.has_exited())
    }

    /// Hangs up.  Returns what was dialled, if that has come to nothing.
    pub(super) fn remove(&mut self, token: u64) -> Option<Attempt> {
        let link = self.links.remove(&token)?;
        self.ended(link)
    }

    fn ended(&mut self, link: Link) -> Option<Attempt> {
        let (qpns, dialled) = match link.handshake {
            Handshake::Dialled { attempt, offer, .. } => (offer.lanes.map(|lane| lane.qpn), Some(attempt)),
            Handshake::Accepted { .. } => return None,
            Handshake::Agreed { connection, attempt, .. } => {
                self.given_up.push(connection);
                return attempt;
            }
            Handshake::Connected(connection) | Handshake::HungUp { connection, .. } => {
                (connection.qpns(), None)
            }
        };
        self.give_back(&qpns);
        dialled
    }

    /// A number for somebody's wish to dial.
    pub(super) fn new_attempt(&mut self) -> u64 {
        self.attempts += 1;
        self.attempts
    }

    /// Connections that have come to nothing since this was last asked for; their numbers are given back when they have ended.
    pub(super) fn take_given_up(&mut self) -> Vec<Arc<Connection>> {
        std::mem::take(&mut self.given_up)
    }

    /// One address has answered: the others are not waited for.
    pub(super) fn forget_attempt(&mut self, number: u64) {
        for token in self.links_of(number) {
            self.remove(token);
        }
    }

    /// Whether an address is being tried still.
    pub(super) fn is_trying(&self, number: u64) -> bool {
        !self.links_of(number).is_empty()
    }

    fn links_of(&self, number: u64) -> Vec<u64> {
        let is_of = |link: &Link| link.handshake.attempt().is_some_and(|attempt| attempt.number == number);
        self.links.iter().filter(|(_, link)| is_of(link)).map(|(token, _)| *token).collect()
    }

    pub(super) fn give_back(&mut self, qpns: &[Qpn]) {
        for qpn in qpns {
            self.qpns.remove(&qpn.value());
        }
    }

    /// An offer of ours, of which nothing can be guessed.
    pub(super) fn offer(&mut self, address: SocketAddr, mtu: Mtu, selective: bool) -> io::Result<Offer> {
        let lane = LaneOffer { qpn: Qpn::new(0), psn: Psn::new(0) };
        let mut offer = Offer { address, mtu, salt: random()?, lanes: [lane; LANES], selective };
        for lane in &mut offer.lanes {
            *lane = LaneOffer { qpn: self.new_qpn()?, psn: Psn::new(random()?) };
        }
        Ok(offer)
    }

    /// One that nobody has; the first two and the last have a meaning of their own in verbs.
    fn new_qpn(&mut self) -> io::Result<Qpn> {
        loop {
            let qpn = Qpn::new(random()?);
            if (2..0xff_ffff).contains(&qpn.value()) && self.qpns.insert(qpn.value()) {
                return Ok(qpn);
            }
        }
    }

    /// An offer has come to nothing.
    pub(super) fn withdraw(&mut self, offer: &Offer) {
        self.give_back(&offer.lanes.map(|lane| lane.qpn));
    }

    /// Links that have something to say, and whether somebody wants to be let in.
    pub(super) fn ready(&self) -> (Vec<u64>, bool) {
        let mut space = [MaybeUninit::uninit(); EVENTS_MAX];
        let ready = epoll::wait(&self.epoll, &mut space[..], Some(&Timespec::default()));
        let tokens = ready.map(|(events, _)| events.iter().map(|event| event.data.u64()).collect());
        let mut tokens: Vec<u64> = tokens.unwrap_or_default();
        let before = tokens.len();
        tokens.retain(|token| *token > PORT);
        let is_wanted = tokens.len() < before;
        (tokens, is_wanted)
    }

    /// The next one who wants to be let in.
    pub(super) fn accept(&self) -> io::Result<Option<Line>> {
        if let Some(socket) = self.listener.as_ref().map_or(Ok(None), Listener::accept)? {
            return Ok(Some(Line::accepted(socket)));
        }
        let Some(hosts) = &self.hosts else { return Ok(None) };
        for port in &hosts.ports {
            if let Some(line) = Line::accept(port, &hosts.secrets())? {
                return Ok(Some(line));
            }
        }
        Ok(None)
    }

    /// Whether there is room for one more who has not said yet what it wants.
    pub(super) fn has_room_for(&self, line: &Line) -> bool {
        let Some(from) = line.from() else { return true };
        let is_stranger = |link: &&Link| matches!(link.handshake, Handshake::Accepted { .. });
        let strangers = self.links.values().filter(is_stranger).filter_map(|link| link.line.from());
        let (all, of_one) =
            strangers.fold((0, 0), |(all, of_one), other| (all + 1, of_one + usize::from(other == from)));
        all < STRANGERS_MAX && of_one < STRANGERS_FROM_ONE_MAX
    }

    /// Links whose greeting takes too long.
    pub(super) fn late(&self, now_ns: u64) -> Vec<u64> {
        let is_late = |link: &Link| link.handshake.deadline_ns().is_some_and(|deadline| deadline <= now_ns);
        self.links.iter().filter(|(_, link)| is_late(link)).map(|(token, _)| *token).collect()
    }

    /// When the next one is.
    pub(super) fn next_late(&self) -> Option<u64> {
        self.links.values().filter_map(|link| link.handshake.deadline_ns()).min()
    }
}

impl Handshake {
    /// Why we dialled, where that has not come to its end.
    fn attempt(&self) -> Option<&Attempt> {
        match self {
            Handshake::Dialled { attempt, .. } => Some(attempt),
            Handshake::Agreed { attempt, .. } => attempt.as_ref(),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub(super) fn attempt_mut(&mut self) -> Option<&mut Attempt> {
        match self {
            Handshake::Dialled { attempt, .. } => Some(attempt),
            Handshake::Agreed { attempt, .. } => attempt.as_mut(),
            _ => None,
        }
    }

    /// When it has taken too long.
    pub(super) fn over_ns(&self) -> Option<u64> {
        match self {
            Handshake::Dialled { deadline_ns, .. }
            | Handshake::Accepted { deadline_ns }
            | Handshake::Agreed { deadline_ns, .. }
            | Handshake::HungUp { deadline_ns, .. } => Some(*deadline_ns),
            Handshake::Connected(_) => None,
        }
    }

    /// When something is to be done: another address is to be tried, too, or it has taken too long.
    fn deadline_ns(&self) -> Option<u64> {
        let next_ns =
            self.attempt().filter(|attempt| !attempt.rest.is_empty()).map(|attempt| attempt.next_ns);
        self.over_ns().map(|over_ns| next_ns.map_or(over_ns, |next_ns| next_ns.min(over_ns)))
    }
}

fn interest(is_writing: bool) -> epoll::EventFlags {
    if is_writing { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN }
}

fn random() -> io::Result<u32> {
    let mut bytes = [0; 4];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty())?;
    debug_assert_eq!(filled, bytes.len(), "so few are given whole");
    Ok(u32::from_ne_bytes(bytes))
}
