//! Nodes that this one is about to meet for the first time, and what waits for that.
//!
//! ```text
//!   the directory: it lives ──> awaited ──> paired              what waits is sent, in its order
//!                                  │──────> its dial failed     it fails as for any node that is not reached
//!                                  │──────> unreachable, dead   the same
//!                                  └──────> a lease is over     the same
//! ```
//!
//! Who joins waits for nobody but the directory: a member that it has heard of late may have lost power since.  So the wait is
//! with those who need that member.  It is for the first meeting alone: who was lost, or could not be reached, is known to be out
//! of reach, and fails at once.

use std::collections::{BTreeMap, BTreeSet};

use super::{Engine, Requester};
use crate::effect::{CommandError, Effect, OpId};
use crate::ids::{NodeId, NodeLife, RegionId, RequestId, SessionId};
use crate::layout::Extent;
use crate::message::{ErrorReply, MappedReply, Message, RegionCommand, Request};
use crate::permissions::Permissions;

use super::user::Act;

/// What waits for nodes that are awaited.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    /// What is to be asked of them, in order.
    to_ask: BTreeMap<NodeId, Vec<(RequestId, Request)>>,
    /// What others asked of us, and takes one of them.
    to_serve: Vec<(Requester, Request)>,
    /// Regions of whose bytes they hold some.
    to_map: Vec<ToMap>,
}

/// A region that its home has let a session map.
#[derive(Debug)]
struct ToMap {
    op: OpId,
    session: SessionId,
    wanted: Permissions,
    region: RegionId,
    home: NodeLife,
    owners: BTreeSet<NodeId>,
}

impl Awaited {
    /// Puts off what is to be asked of a node.
    pub(super) fn ask_later(&mut self, of: NodeId, id: RequestId, body: Request) {
        self.to_ask.entry(of).or_default().push((id, body));
    }

    /// Nobody takes the answers.
    pub(super) fn forget_what_is_asked_by(&mut self, life: NodeLife) {
        self.to_serve.retain(|(requester, _)| requester.life != life);
    }

    fn is_empty(&self) -> bool {
        self.to_ask.is_empty() && self.to_serve.is_empty() && self.to_map.is_empty()
    }
}

impl Engine {
    /// Whether this node is about to meet that one for the first time: what needs it waits until that is so, or is known to
    /// fail.
    pub fn is_awaited(&self, node: NodeId) -> bool {
        self.members.peer_of(node).is_none() && self.pairings.is_awaited(node)
    }

    /// Puts off a request that takes a node which is awaited; whether it does.
    pub(super) fn serves_later(&mut self, requester: Requester, request: &Request) -> bool {
        let is_awaited = |extent: &Extent| self.is_awaited(extent.owner.node);
        let takes_one = match request {
            Request::CopyChunk { from, .. } => is_awaited(from),
            Request::CopyBytes { copy_segments, .. } => {
                copy_segments.iter().any(|segment| is_awaited(&segment.from))
            }
            Request::RegionCommand { order: RegionCommand::Move { to }, .. } => self.is_awaited(*to),
            _ => false,
        };
        if takes_one {
            self.awaited.to_serve.push((requester, request.clone()));
        }
        takes_one
    }

    /// Puts off a mapping some of whose bytes are on nodes that are awaited; whether there are any.  Its home counts us as a
    /// mapper, and is asked anew: what it has said of the region is old by then.
    pub(super) fn maps_later(
        &mut self,
        op: OpId,
        session: SessionId,
        wanted: Permissions,
        reply: &MappedReply,
    ) -> bool {
        let owners = reply.extents.iter().map(|extent| extent.owner.node);
        let owners: BTreeSet<NodeId> = owners.filter(|owner| self.is_awaited(*owner)).collect();
        if owners.is_empty() {
            return false;
        }
        self.begin_mapping(reply.region);
        let (region, home) = (reply.region, reply.home);
        self.awaited.to_map.push(ToMap { op, session, wanted, region, home, owners });
        true
    }

    /// Goes on with what waits for nodes of which it is known by now whether they are met; whether there was any.
    pub(super) fn resume_for_the_met(&mut self) -> bool {
        if self.awaited.is_empty() {
            return false;
        }
        let met: Vec<NodeId> =
            self.awaited.to_ask.keys().copied().filter(|node| !self.is_awaited(*node)).collect();
        for node in &met {
            for (id, body) in self.awaited.to_ask.remove(node).unwrap_or_default() {
                self.ask_at_last(*node, id, body);
            }
        }
        let to_map = std::mem::take(&mut self.awaited.to_map).into_iter();
        let (left, mapped): (Vec<_>, Vec<_>) =
            to_map.partition(|to_map| to_map.owners.iter().any(|owner| self.is_awaited(*owner)));
        self.awaited.to_map = left;
        let is_any = !met.is_empty() || !mapped.is_empty();
        mapped.into_iter().for_each(|to_map| self.map_at_last(to_map));
        self.serve_at_last() || is_any
    }

    fn ask_at_last(&mut self, node: NodeId, id: RequestId, body: Request) {
        let refusal = self.absence_of(node);
        let (now_ns, own) = (self.now_ns, self.config.life.node);
        // A command that no longer waits has forgotten it.
        let Some(asked) = self.asked.get_mut(&id) else { return };
        asked.at_ns = now_ns;
        if self.members.peer_of(node).is_some() {
            return self.say(node, Message::Request { id, body });
        }
        asked.of = own;
        self.loopback.push_back(Message::Reply { id, body: Err(refusal) });
    }

    fn map_at_last(&mut self, to_map: ToMap) {
        let ToMap { op, session, wanted, region, home, .. } = to_map;
        if self.leaving {
            return self.finish(op, Err(ErrorReply::NodeClosed.into()));
        }
        if self.mapper.principal(session).is_none() {
            self.stop_mapping(region);
            self.announce_unmapped(region, home);
            return self.finish(op, Err(CommandError::UnknownHandle));
        }
        self.act(op, Act::Map { session, wanted }, region, home.node, 0);
        self.stop_mapping(region);
    }

    fn serve_at_last(&mut self) -> bool {
        let waiting = std::mem::take(&mut self.awaited.to_serve);
        let count = waiting.len();
        // Those that still wait put themselves back, in their order.
        for (requester, request) in waiting {
            self.handle_request(requester, request);
        }
        self.awaited.to_serve.len() < count
    }

    /// The first meeting with a node has come to nothing, or has taken a lease.
    pub(super) fn await_no_longer(&mut self, life: NodeLife) {
        if self.pairings.await_no_longer(life) {
            self.effects.push_back(Effect::Changed);
        }
    }

    /// Time has passed.
    pub(super) fn await_no_overdue(&mut self) {
        let overdue = self.pairings.awaited_until(self.now_ns);
        overdue.into_iter().for_each(|life| self.await_no_longer(life));
    }
}
