//! Commands of sessions. Each command is a short series of requests to other nodes.

mod known;
mod listing;
pub(super) mod memory;
mod placing;
mod servers;
mod status;
mod waits;

use std::collections::BTreeMap;

use self::known::KnownNames;
use self::listing::Page;
use self::memory::IssuedCopies;
use self::placing::Placed;
use self::servers::ServerStep;
use self::status::Statuses;
use self::waits::Waits;
use super::context::{Context, Purpose};
use super::deferred::{Deferred, Unmapping};
use super::on_demand::DialWaiter;
use super::owner::Owner;
use crate::access::SlotRef;
use crate::directory::LOST_NAMES_MAX;
use crate::effect::{Command, CommandError, Effect, OpId, Outcome};
use crate::ids::{NodeId, NodeIncarnation, Principal, RegionId, RequestId, SessionId};
use crate::layout::CHUNK_BYTES_MIN;
use crate::lockword::LOCK_BYTES;
use crate::mapper::Mapper;
use crate::message::{ErrorReply, LostName, MappedReply, Notice, RegionCommand, Reply, Request};
use crate::names::Service;
use crate::permissions::Permissions;

/// Maximum number of times that a command is redirected because its region has moved.
const HOPS_MAX: u8 = 16;
/// Maximum number of homes to try while the store of names is unreachable, since each attempt may take seconds.
const DIRECTORY_FAILURES_MAX: u8 = 3;

/// State of commands in flight, except for the part in their pending requests.
#[derive(Debug, Default)]
pub(super) struct Commands {
    waits: Waits,
    memory: IssuedCopies,
    pages: BTreeMap<OpId, Page>,
    statuses: Statuses,
    /// Number of map requests in flight per region. Once the home has replied to one, it lists this node as a mapper.
    mapping: BTreeMap<RegionId, usize>,
    placed: Placed,
    /// Regions and homes of names used before, if names are kept outside the cluster.
    known: KnownNames,
}

/// The engine state that session commands may use.
pub(super) struct SessionSide<'a> {
    pub(super) cx: Context<'a>,
    pub(super) commands: &'a mut Commands,
    pub(super) mapper: &'a mut Mapper,
    pub(super) deferred: &'a mut Deferred,
    pub(super) owner: &'a Owner,
    pub(super) servers: &'a mut BTreeMap<RegionId, String>,
}

/// Parameters of a region to allocate.
struct RegionSpec {
    name: Option<String>,
    len: u64,
    chunk_bytes: u64,
    everyone: Permissions,
    populate: bool,
}

/// The step that a command is in, with the state that it needs.
#[derive(Clone, Debug)]
pub(super) enum UserStep {
    Alloc {
        session: SessionId,
        request: Request,
        others: Vec<NodeId>,
        /// Number of homes so far that could not register the name.
        directory_failures: u8,
        /// The first home that was lost before it answered: it may have made the region.
        lost: Option<NodeId>,
    },
    Find {
        name: String,
        then: AfterFind,
    },
    Action {
        action: RegionAction,
        region: RegionId,
        hops: u8,
    },
    ListNames {
        after: Option<String>,
    },
    Describe {
        home: NodeId,
        names: Vec<(String, RegionId)>,
        hops: u8,
    },
    ListLost {
        names: Vec<LostName>,
    },
    Servers(ServerStep),
    Forget,
    Reach,
    Members(StatusScope),
    Number,
    StatusOf(NodeId),
    Unlock {
        request: Request,
        hops: u8,
    },
    Drain,
    MoveNames,
}

/// The members that a status command covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StatusScope {
    AllMembers,
    /// The nodes that are paired with this one.
    PairedPeers,
}

/// The request to send to the home once a name is found.
#[derive(Clone, Debug)]
pub(super) enum AfterFind {
    Map { session: SessionId, wanted: Permissions },
    Stat,
}

/// A request to a region's home.
#[derive(Clone, Debug)]
pub(super) enum RegionAction {
    /// Maps a region except for its bytes at the `unmet` nodes, to which no connection could be made.
    Map {
        session: SessionId,
        wanted: Permissions,
        unmet: Vec<NodeIncarnation>,
        /// The name by which the region was last found, if it may have another one now.
        name: Option<String>,
    },
    /// Describes a region; `name` as for `Map`.
    Stat {
        name: Option<String>,
    },
    RegionCommand {
        principal: Principal,
        command: RegionCommand,
    },
    Watch {
        principal: Principal,
        port: u32,
    },
    Unwatch {
        port: u32,
    },
    ListWatchers {
        principal: Principal,
    },
}

impl AfterFind {
    fn into_action(self, name: Option<String>) -> RegionAction {
        match self {
            AfterFind::Map { session, wanted } => {
                RegionAction::Map { session, wanted, unmet: Vec::new(), name }
            }
            AfterFind::Stat => RegionAction::Stat { name },
        }
    }
}

impl SessionSide<'_> {
    /// Ends a session and unmaps all its handles.
    pub(super) fn close(&mut self, session: SessionId) {
        for index in self.mapper.handles_of(session) {
            self.unmap(index, None);
        }
        self.mapper.close_session(session);
    }

    /// Starts a command of a session. [`Effect::Finish`] reports its result, perhaps before this returns.
    ///
    /// [`Effect::Finish`]: crate::effect::Effect::Finish
    pub(super) fn start(&mut self, op: OpId, session: SessionId, command: Command) {
        match command {
            Command::Alloc { name, len, chunk_bytes, placement, everyone, populate } => {
                let places = self.nodes_for(placement);
                self.alloc_on(op, session, RegionSpec { name, len, chunk_bytes, everyone, populate }, places)
            }
            Command::Map { name, wanted } => self.find(op, name, AfterFind::Map { session, wanted }),
            Command::Stat(name) => self.find(op, name, AfterFind::Stat),
            Command::StatHandle(slot) => {
                self.act_on_handle(op, session, slot, RegionAction::Stat { name: None })
            }
            Command::RegionCommand(slot, command) => self.command_region(op, session, slot, command),
            Command::Unmap(slot) => match self.mapper.region_of(session, slot) {
                Some(_) => self.unmap(slot.index, Some(op)),
                None => self.cx.finish(op, Err(CommandError::Stale)),
            },
            Command::Fill { at, len, byte } => self.start_fill(op, session, at, len, byte),
            Command::Copy { to, from, len } => self.start_copy(op, session, to, from, len),
            Command::List { after } => self.list_names(op, after),
            Command::ListLost => self.list_lost(op, Vec::new()),
            Command::Register { service, is_shared } => self.register(op, service, is_shared),
            Command::Unregister(id) => self.unregister(op, id, Ok(Outcome::Done)),
            Command::ListServers(service) => self.list_servers(op, service),
            Command::ForgetName(name) => self.forget(op, Request::ForgetName { name }),
            Command::Drain { node, within_ns, stays } => {
                self.cx.ask(node, Request::Drain { within_ns, stays }, Purpose::User(op, UserStep::Drain));
            }
            Command::MoveNames(to) => {
                self.cx.ask_directory(Request::MoveNames { to }, Purpose::User(op, UserStep::MoveNames));
            }
            Command::MoveNamesBack => {
                self.cx.ask_directory(Request::MoveNamesBack, Purpose::User(op, UserStep::MoveNames));
            }
            Command::TakeNumber => {
                self.cx.ask_directory(Request::TakeNumber, Purpose::User(op, UserStep::Number));
            }
            Command::ForgetNode(node) => self.forget(op, Request::ForgetNode { node }),
            Command::Anchor { service, name, everyone } => self.anchor(op, session, service, &name, everyone),
            Command::Lock { slot, wait, base_ns } => self.request_lock(op, session, slot, wait, base_ns),
            Command::Unlock { slot, release } => self.release_lock(op, session, slot, release),
            Command::Arrive { slot, participants, timeout_ns } => {
                self.arrive(op, session, slot, participants, timeout_ns)
            }
            Command::Withdraw(waiting) => self.withdraw(op, waiting),
            Command::Watch { slot, port } => {
                self.act_as_principal(op, session, slot, |principal| RegionAction::Watch { principal, port })
            }
            Command::Unwatch { region, port } => self.unwatch(op, region, port),
            Command::ListWatchers(slot) => {
                self.act_as_principal(op, session, slot, |principal| RegionAction::ListWatchers { principal })
            }
            Command::Reach { node, owner } => {
                self.cx.ask(owner, Request::Reach { node }, Purpose::User(op, UserStep::Reach));
            }
            Command::Status => self.request_members(op, StatusScope::AllMembers),
            Command::StatusOf(node) => self.request_status_of(op, node),
            Command::Greet => self.request_members(op, StatusScope::PairedPeers),
        }
    }

    /// Allocates the region of a lock or barrier on a node chosen by the hash of its name, to spread the load.
    fn anchor(&mut self, op: OpId, session: SessionId, service: Service, name: &str, everyone: Permissions) {
        let name = service.region_name(name);
        let (mut nodes, unconnected) = self.memory_nodes_by_contact();
        if !nodes.is_empty() {
            let first = hash(&name) % nodes.len() as u64;
            nodes.rotate_left(first as usize);
        }
        nodes.extend(unconnected);
        let others = nodes.split_off(nodes.len().min(1));
        let (name, len, chunk_bytes) = (Some(name), LOCK_BYTES, CHUNK_BYTES_MIN);
        let wanted = RegionSpec { name, len, chunk_bytes, everyone, populate: false };
        self.alloc_on(op, session, wanted, (nodes, others));
    }

    fn alloc_on(
        &mut self,
        op: OpId,
        session: SessionId,
        wanted: RegionSpec,
        (nodes, others): (Vec<NodeId>, Vec<NodeId>),
    ) {
        let Some(maker) = self.mapper.principal(session).cloned() else {
            return self.cx.finish(op, Err(CommandError::UnknownHandle));
        };
        let Some(home) = nodes.first().copied() else {
            return self.cx.finish(op, Err(CommandError::NoMemoryNode));
        };
        let RegionSpec { name, len, chunk_bytes, everyone, populate } = wanted;
        let request = Request::Alloc { name, len, chunk_bytes, nodes, maker, everyone, populate };
        let step =
            UserStep::Alloc { session, request: request.clone(), others, directory_failures: 0, lost: None };
        self.cx.ask(home, request, Purpose::User(op, step));
    }

    /// Finds a region by name. If names are outside, tries the known home first, even while the store is down.
    fn find(&mut self, op: OpId, name: String, then: AfterFind) {
        match self.commands.known.find(&name) {
            Some((region, home)) => self.start_action(op, then.into_action(Some(name)), region, home, 0),
            None => self.look_up(op, name, then),
        }
    }

    fn look_up(&mut self, op: OpId, name: String, then: AfterFind) {
        let step = UserStep::Find { name: name.clone(), then };
        self.cx.ask_directory(Request::FindName { name }, Purpose::User(op, step));
    }

    fn record_name(&mut self, name: &str, region: RegionId, home: NodeId) {
        if self.cx.names_are_outside() {
            self.commands.known.record(name, region, home);
        }
    }

    /// Asks the directory, since the region that last had the name was not found by it.
    fn look_up_again(&mut self, op: OpId, name: String, then: AfterFind) {
        self.commands.known.forget(&name);
        self.look_up(op, name, then);
    }

    /// Sends a master's command to the home, which checks the principal, if the handle has that permission.
    fn command_region(&mut self, op: OpId, session: SessionId, slot: SlotRef, command: RegionCommand) {
        let held = self.mapper.permissions_of(session, slot).unwrap_or(Permissions::all());
        let missing = Permissions::MASTER - held;
        match missing.is_empty() {
            true => self.act_as_principal(op, session, slot, |principal| RegionAction::RegionCommand {
                principal,
                command,
            }),
            false => self.cx.finish(op, Err(ErrorReply::PermissionDenied { missing }.into())),
        }
    }

    fn act_as_principal(
        &mut self,
        op: OpId,
        session: SessionId,
        slot: SlotRef,
        action: impl FnOnce(Principal) -> RegionAction,
    ) {
        match self.mapper.principal(session).cloned() {
            Some(principal) => self.act_on_handle(op, session, slot, action(principal)),
            None => self.cx.finish(op, Err(CommandError::UnknownHandle)),
        }
    }

    fn act_on_handle(&mut self, op: OpId, session: SessionId, slot: SlotRef, action: RegionAction) {
        match self.mapper.region_of(session, slot) {
            Some((region, home)) => self.start_action(op, action, region, home.node, 0),
            None => self.cx.finish(op, Err(CommandError::Stale)),
        }
    }

    pub(super) fn start_action(
        &mut self,
        op: OpId,
        action: RegionAction,
        region: RegionId,
        home: NodeId,
        hops: u8,
    ) {
        let request = match &action {
            RegionAction::Map { session, wanted, name, .. } => {
                let Some(principal) = self.mapper.principal(*session).cloned() else {
                    return self.cx.finish(op, Err(CommandError::UnknownHandle));
                };
                *self.commands.mapping.entry(region).or_default() += 1;
                Request::Map { region, principal, wanted: *wanted, name: name.clone() }
            }
            RegionAction::Stat { .. } => Request::Stat { region },
            RegionAction::RegionCommand { principal, command } => {
                Request::RegionCommand { region, principal: principal.clone(), command: command.clone() }
            }
            RegionAction::Watch { principal, port } => {
                Request::Watch { region, principal: principal.clone(), port: *port }
            }
            RegionAction::Unwatch { port } => Request::Unwatch { region, port: *port },
            RegionAction::ListWatchers { principal } => {
                Request::ListWatchers { region, principal: principal.clone() }
            }
        };
        self.cx.ask(home, request, Purpose::User(op, UserStep::Action { action, region, hops }));
    }

    pub(super) fn continue_command(
        &mut self,
        op: OpId,
        step: UserStep,
        from: NodeIncarnation,
        body: Result<Reply, ErrorReply>,
    ) {
        match (step, body) {
            (UserStep::Alloc { session, request, others, directory_failures, lost }, body) => {
                self.continue_alloc(op, session, request, (others, directory_failures, lost), body)
            }
            (UserStep::Find { name, then }, Ok(Reply::Found { region, home })) => {
                self.record_name(&name, region, home);
                self.start_action(op, then.into_action(None), region, home, 0);
            }
            (
                UserStep::Action { action: RegionAction::Map { session, wanted, name, .. }, region, .. },
                Err(refusal),
            ) => {
                self.stop_mapping(region);
                // Another handle may have been unmapped while this map request was in flight. A home without the region
                // does not list this node; it may be about to make the region for this node, and must list it then.
                if refusal != ErrorReply::NotFound {
                    self.announce_unmapped(region, from);
                }
                let is_final = matches!(refusal, ErrorReply::PermissionDenied { .. } | ErrorReply::Sealed);
                match name.filter(|_| !is_final) {
                    Some(name) => self.look_up_again(op, name, AfterFind::Map { session, wanted }),
                    None => self.cx.finish(op, Err(refusal.into())),
                }
            }
            (UserStep::Action { action, region, hops }, body) => {
                self.continue_action(op, action, region, hops, body)
            }
            (UserStep::ListNames { after }, body) => self.continue_list(op, after, body),
            (UserStep::Describe { home, names, hops }, body) => {
                self.continue_describe(op, (home, names, hops), body)
            }
            (UserStep::ListLost { names }, body) => self.continue_list_lost(op, names, body),
            (UserStep::Servers(step), body) => self.continue_servers(op, step, body),
            (UserStep::Forget, Ok(Reply::Done)) => self.cx.finish(op, Ok(Outcome::Done)),
            (UserStep::Number, Ok(Reply::Number(number))) => self.cx.finish(op, Ok(Outcome::Number(number))),
            (UserStep::Members(scope), _) => self.request_statuses(op, scope, Vec::new()),
            (UserStep::StatusOf(node), body) => self.gather_status(op, node, body),
            (UserStep::Reach, Ok(Reply::Reached(reach))) => self.cx.finish(op, Ok(Outcome::Reach(reach))),
            (UserStep::Unlock { .. }, Ok(Reply::Done)) => self.cx.finish(op, Ok(Outcome::Done)),
            (UserStep::Unlock { request, hops }, Ok(Reply::MovedTo { home })) if hops < HOPS_MAX => {
                self.request_unlock(op, home, request, hops + 1)
            }
            (UserStep::Drain, Ok(Reply::Drained(drained))) => {
                self.cx.finish(op, Ok(Outcome::Drained(drained)))
            }
            (UserStep::MoveNames, Ok(Reply::NamesMoved { names, lost })) => {
                self.cx.finish(op, Ok(Outcome::NamesMoved { names, lost }))
            }
            (_, Err(refusal)) => self.cx.finish(op, Err(refusal.into())),
            (_, Ok(_)) => self.cx.finish(op, Err(ErrorReply::Malformed.into())),
        }
    }

    fn continue_alloc(
        &mut self,
        op: OpId,
        session: SessionId,
        mut request: Request,
        (mut others, mut directory_failures, mut lost): (Vec<NodeId>, u8, Option<NodeId>),
        body: Result<Reply, ErrorReply>,
    ) {
        if let Err(ErrorReply::PeerDown(node)) = body {
            lost.get_or_insert(node);
        }
        let is_directory_out = matches!(body, Err(ErrorReply::DirectoryOut { .. }));
        directory_failures += u8::from(is_directory_out);
        match body {
            // A claim by an earlier home may have succeeded, so the name may belong to this command.
            Err(ErrorReply::NameTaken) if directory_failures > 0 => {
                let reason = "an earlier request to it failed, and may have claimed the name".to_owned();
                self.cx.finish(op, Err(ErrorReply::DirectoryOut { reason }.into()))
            }
            Err(out @ ErrorReply::DirectoryOut { .. }) if directory_failures >= DIRECTORY_FAILURES_MAX => {
                self.cx.finish(op, Err(out.into()))
            }
            Ok(Reply::Mapped(reply)) => {
                if let Request::Alloc { name: Some(name), .. } = &request {
                    self.record_name(name, reply.region, reply.home.node);
                }
                self.count_placed(&reply.extents);
                self.insert_mapping(op, session, (Permissions::all(), Vec::new()), &reply)
            }
            // A draining node may refuse before this node hears that it drains.
            Err(
                ErrorReply::NoSpace { .. }
                | ErrorReply::OutOfMemory { .. }
                | ErrorReply::PeerDown(_)
                | ErrorReply::NotMet(_)
                | ErrorReply::Draining(_)
                // Other nodes may reach the store of names.
                | ErrorReply::DirectoryOut { .. },
            ) if !others.is_empty() => {
                let next = others.remove(0);
                if let Request::Alloc { nodes, .. } = &mut request {
                    *nodes = vec![next];
                }
                let step = UserStep::Alloc { session, request: request.clone(), others, directory_failures, lost };
                self.cx.ask(next, request, Purpose::User(op, step));
            }
            Ok(_) => self.cx.finish(op, Err(ErrorReply::Malformed.into())),
            // Only the last home certainly did nothing.
            Err(ErrorReply::NotMet(node)) => {
                let refusal = lost.map_or(ErrorReply::NotMet(node), ErrorReply::PeerDown);
                self.cx.finish(op, Err(refusal.into()))
            }
            Err(refusal) => self.cx.finish(op, Err(refusal.into())),
        }
    }

    fn insert_mapping(
        &mut self,
        op: OpId,
        session: SessionId,
        (wanted, unmet): (Permissions, Vec<NodeIncarnation>),
        reply: &MappedReply,
    ) {
        let sound = crate::layout::is_sound(&reply.extents, reply.len, reply.chunk_bytes);
        if self.cx.membership().is_leaving() {
            // Peers rely on the notice that this node leaves, so it must map nothing more.
            let node = self.cx.incarnation().node;
            return self.cx.finish(op, Err(ErrorReply::NodeClosed(node).into()));
        }
        if !sound || self.mapper.principal(session).is_none() {
            self.announce_unmapped(reply.region, reply.home);
            return self.cx.finish(op, Err(CommandError::UnknownHandle));
        }
        if let Some(owner) = self.cx.owner_to_connect(reply, &unmet) {
            let (region, home) = (reply.region, reply.home);
            let waiting = DialWaiter::Mapping { op, session, wanted, unmet, region, home };
            return self.cx.wait_until_connected(owner, waiting);
        }
        // Handles from before the loss of the home stay invalid: they may allow what was revoked since.
        if let Some(quiesce) = self.mapper.drop_if_lost(reply.region) {
            self.cx.push(Effect::Quiesce(quiesce));
        }
        let locator = self.owner.locator(self.cx.incarnation(), self.cx.members());
        let slot = self.mapper.insert(reply, session, wanted, &locator);
        self.cx.finish(op, Ok(Outcome::Mapped { slot, region: reply.region }));
    }

    fn continue_action(
        &mut self,
        op: OpId,
        action: RegionAction,
        region: RegionId,
        hops: u8,
        body: Result<Reply, ErrorReply>,
    ) {
        if matches!(action, RegionAction::Map { .. }) {
            self.stop_mapping(region);
        }
        match (action, body) {
            (action, Ok(Reply::MovedTo { home })) if hops < HOPS_MAX => {
                self.start_action(op, action, region, home, hops + 1)
            }
            (RegionAction::Map { session, wanted, unmet, name }, Ok(Reply::Mapped(reply))) => {
                if let Some(name) = name {
                    self.record_name(&name, region, reply.home.node);
                }
                self.insert_mapping(op, session, (wanted, unmet), &reply)
            }
            (RegionAction::Stat { name: Some(name) }, body) => match body {
                Ok(Reply::Info(info)) if info.name.as_deref() == Some(&name) => {
                    self.record_name(&name, region, info.home);
                    self.cx.finish(op, Ok(Outcome::Info(info)))
                }
                _ => self.look_up_again(op, name, AfterFind::Stat),
            },
            (RegionAction::Stat { name: None }, Ok(Reply::Info(info))) => {
                self.cx.finish(op, Ok(Outcome::Info(info)))
            }
            (RegionAction::RegionCommand { .. } | RegionAction::Unwatch { .. }, Ok(Reply::Done)) => {
                self.cx.finish(op, Ok(Outcome::Done))
            }
            (RegionAction::Watch { .. }, Ok(Reply::Done)) => {
                self.cx.finish(op, Ok(Outcome::Watching { region }))
            }
            (RegionAction::ListWatchers { .. }, Ok(Reply::Watchers { watchers })) => {
                self.cx.finish(op, Ok(Outcome::Watchers { region, watchers }))
            }
            (_, Err(refusal)) => self.cx.finish(op, Err(refusal.into())),
            (_, Ok(_)) => self.cx.finish(op, Err(ErrorReply::Malformed.into())),
        }
    }

    fn stop_mapping(&mut self, region: RegionId) {
        if let Some(count) = self.commands.mapping.get_mut(&region) {
            *count -= 1;
            if *count == 0 {
                self.commands.mapping.remove(&region);
            }
        }
    }

    fn unmap(&mut self, index: u32, op: Option<OpId>) {
        let home = self.mapper.path_region(index).and_then(|region| self.mapper.home_of(region));
        match (self.mapper.remove(index), home) {
            (Some((region, last, quiesce)), Some(home)) => {
                let last_of = last.then_some((region, home));
                self.deferred.finish_unmapping_later(self.cx.out(), quiesce, Unmapping { last_of, op });
            }
            _ => {
                if let Some(op) = op {
                    self.cx.finish(op, Err(CommandError::Stale));
                }
            }
        }
    }

    /// Tells the home that this node does not map the region, unless it does or a map request is in flight.
    pub(super) fn announce_unmapped(&mut self, region: RegionId, home: NodeIncarnation) {
        if !self.cx.is_present(home) {
            // The home learns the same from the end of the pairing.
            return;
        }
        let mapped = self.mapper.home_of(region).is_some() || self.commands.mapping.contains_key(&region);
        if !mapped {
            // Every map request sent so far has been answered.
            let upto = RequestId(self.cx.out().last_number());
            self.cx.notify(home.node, Notice::Unmapped { region, upto });
        }
    }

    /// Ends a session's watch. If this node does not map the region, the home has already dropped the watch.
    fn unwatch(&mut self, op: OpId, region: RegionId, port: u32) {
        match self.mapper.home_of(region) {
            Some(home) => self.start_action(op, RegionAction::Unwatch { port }, region, home.node, 0),
            None => self.cx.finish(op, Ok(Outcome::Done)),
        }
    }

    fn list_lost(&mut self, op: OpId, names: Vec<LostName>) {
        let after = names.last().map(|lost| lost.name.clone());
        self.cx.ask_directory(Request::ListLost { after }, Purpose::User(op, UserStep::ListLost { names }));
    }

    fn continue_list_lost(&mut self, op: OpId, mut names: Vec<LostName>, body: Result<Reply, ErrorReply>) {
        match body {
            Ok(Reply::Lost { names: found, more }) => {
                let progress = !found.is_empty();
                names.extend(found);
                match more && progress && names.len() < LOST_NAMES_MAX {
                    true => self.list_lost(op, names),
                    false => self.cx.finish(op, Ok(Outcome::Lost(names))),
                }
            }
            Ok(_) => self.cx.finish(op, Err(ErrorReply::Malformed.into())),
            Err(refusal) => self.cx.finish(op, Err(refusal.into())),
        }
    }

    fn forget(&mut self, op: OpId, request: Request) {
        self.cx.ask_directory(request, Purpose::User(op, UserStep::Forget));
    }
}

/// Returns the FNV-1a hash of a name, which is the same on every node and in every version.
fn hash(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
