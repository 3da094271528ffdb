//! The polling thread's cache of shared tables, which is valid until the tables change.

use std::sync::Arc;

use halite_fabric::{LINE_BYTES, PeerId};
use halite_tier::rpc::line::{index_of, request_mark};
use halite_tier::rpc::{Kind, RequestLine};

use super::incoming::{DecodedRequest, Incoming, LineReply, ServiceId};
use super::input::{Bytes, Payload};
use super::service::Service;
use crate::rpc::peers::Peers;
use crate::rpc::shared::{Block, Caller, Inbound, Link, PeerParameters};
use crate::runtime::locks::lock;

/// Requests on their way to their queues, and the cache of tables. The polling thread keeps this value to reuse its
/// memory.
#[derive(Debug, Default)]
pub(crate) struct ReceiveBatch {
    pub(super) requests: Vec<DecodedRequest>,
    pub(super) cache: TableCache,
}

/// The polling thread's cache of shared tables, which is valid until the tables change.
#[derive(Debug, Default)]
pub(super) struct TableCache {
    version: u64,
    pub(super) rows: Vec<CachedRow>,
    services: Vec<(ServiceId, Arc<Service>)>,
}

/// A row of lines into which a peer writes requests.
#[derive(Debug)]
pub(super) struct CachedRow {
    pub(super) peer: PeerId,
    pub(super) link: Arc<Link>,
    lines: Arc<Block>,
    /// The peer's handshake, once it has arrived.
    parameters: Option<PeerParameters>,
    /// The callers that the peer has introduced, by number.
    callers: Vec<Option<Arc<Caller>>>,
}

impl TableCache {
    #[inline]
    pub(super) fn refresh(&mut self, peers: &Peers) {
        if self.version != peers.version() {
            self.reload(peers);
        }
    }

    #[cold]
    fn reload(&mut self, peers: &Peers) {
        // Read before the tables, so that a change in between causes another reload.
        self.version = peers.version();
        let table = peers.read();
        self.services = table.services.all().map(|service| (service.id, service.clone())).collect();
        self.rows.clear();
        for (peer, link) in table.links_up() {
            let inbound = lock(&link.inbound);
            if let Some(lines) = inbound.lines.clone() {
                let (parameters, callers) = (inbound.parameters, inbound.all_introduced().to_vec());
                self.rows.push(CachedRow { peer, link: link.clone(), lines, parameters, callers });
            }
        }
    }

    /// Returns the service with this number, by a search in sorted order.
    #[inline]
    pub(super) fn service(&self, id: ServiceId) -> Option<&Arc<Service>> {
        match &self.services[..] {
            [(known, service)] => (*known == id).then_some(service),
            all => all.binary_search_by_key(&id, |(known, _)| *known).ok().map(|place| &all[place].1),
        }
    }
}

impl CachedRow {
    /// Returns true if a request may have arrived in the row.
    #[inline]
    pub(super) fn has_more(&self) -> bool {
        let next = self.link.reader.position();
        first_word(&self.lines, next) as u16 == request_mark(next)
    }

    /// Returns true if the copy contains all callers that the peer has introduced.
    pub(super) fn is_current(&self, inbound: &Inbound) -> bool {
        let known = self.callers.iter().filter(|caller| caller.is_some()).count();
        let introduced = inbound.all_introduced().iter().filter(|caller| caller.is_some()).count();
        self.parameters.is_some() == inbound.parameters.is_some() && known == introduced
    }

    /// Copies the callers that the peer has introduced.
    #[cold]
    pub(super) fn refresh(&mut self, inbound: &Inbound) {
        self.parameters = inbound.parameters;
        self.callers = inbound.all_introduced().to_vec();
    }

    /// Reads the next request of the row without a lock, if it is for `service` and may bypass the queue.
    #[inline]
    pub(super) fn request_for(&mut self, service: &Service) -> Option<Box<Incoming>> {
        let (link, parameters) = (&self.link, self.parameters.as_ref()?);
        let position = link.reader.position();
        let words = self.lines.window().load_words(offset_of(position)).expect("the row has that line");
        let line = RequestLine::parse(&words).ok()?;
        let is_of = ServiceId::of(line.kind, line.number) == service.id;
        // The service looks up a grant under its lock.
        let is_granted = matches!(line.kind, Kind::GrantedSend(_));
        if !is_of || is_granted || line.posted_before != link.reader.heard() {
            return None;
        }
        let caller = self.callers.get(usize::from(line.principal))?.as_ref()?;
        let (at, room) = parameters.slot(line.slot).ok()?;
        if !service.admits(&caller.principal) {
            return None;
        }
        let id = link.served.open(line.slot).ok()?;
        link.reader.advance();
        let input = Payload::Local(Bytes::Short(line.input_bytes, line.input));
        let reply = LineReply { cancels: link.cancels(), id, at, room, bytes_max: line.reply_bytes_max };
        Some(Incoming::of(caller, reply, input))
    }
}

#[inline]
pub(super) fn offset_of(position: u64) -> u64 {
    u64::from(index_of(position)) * LINE_BYTES as u64
}

#[inline]
fn first_word(lines: &Block, position: u64) -> u64 {
    lines.window().load_u64(offset_of(position)).expect("the row has that line")
}
