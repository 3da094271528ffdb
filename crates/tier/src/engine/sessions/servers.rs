//! Names of servers. The directory records a separate name for each server, without a region: see [`crate::names`].
//!
//! To register, a server claims its name and then lists the servers of the service: an exclusive server and a shared
//! server refuse each other. If both register at the same time, both may be refused.

use super::{SessionSide, UserStep};
use crate::effect::{CommandError, NamedServer, OpId, Outcome};
use crate::engine::context::Purpose;
use crate::ids::{NodeId, RegionId};
use crate::message::{ErrorReply, Reply, Request};
use crate::names;

#[derive(Clone, Debug)]
pub(in crate::engine) enum ServerStep {
    Claim {
        id: RegionId,
        name: String,
    },
    /// Looks for servers that exclude the registered one.
    Check {
        id: RegionId,
        name: String,
    },
    Release(Result<Outcome, CommandError>),
    List {
        service: Option<String>,
        found: Vec<NamedServer>,
    },
}

impl SessionSide<'_> {
    pub(super) fn register(&mut self, op: OpId, service: String, is_shared: bool) {
        let me = self.cx.incarnation();
        let name = names::server_name(&service, me.node, is_shared);
        let id = RegionId { origin: me.id, serial: self.cx.next_number() };
        // Known from now on, so that a restarted directory hears of it.
        self.servers.insert(id, name.clone());
        let claim = Request::ClaimName { name: name.clone(), region: id };
        self.ask_directory_for(op, claim, ServerStep::Claim { id, name });
    }

    /// Removes a server's name, and ends the command with `outcome`.
    pub(super) fn unregister(&mut self, op: OpId, id: RegionId, outcome: Result<Outcome, CommandError>) {
        match self.servers.remove(&id) {
            Some(name) => {
                let release = Request::ReleaseName { name, region: id };
                self.ask_directory_for(op, release, ServerStep::Release(outcome));
            }
            None => self.cx.finish(op, outcome),
        }
    }

    pub(super) fn list_servers(&mut self, op: OpId, service: Option<String>) {
        let after = names::before_servers_of(service.as_deref());
        let step = ServerStep::List { service, found: Vec::new() };
        self.ask_directory_for(op, Request::ListNames { after: Some(after) }, step);
    }

    pub(super) fn continue_servers(&mut self, op: OpId, step: ServerStep, body: Result<Reply, ErrorReply>) {
        match (step, body) {
            (ServerStep::Release(outcome), _) => self.cx.finish(op, outcome),
            (ServerStep::Claim { id, name }, Ok(Reply::Done)) => {
                let service = names::service_of(&name).map(|(service, _)| service);
                let after = names::before_servers_of(service);
                let step = ServerStep::Check { id, name };
                self.ask_directory_for(op, Request::ListNames { after: Some(after) }, step);
            }
            (ServerStep::Claim { id, .. }, Err(refusal)) => {
                self.servers.remove(&id);
                self.cx.finish(op, Err(refusal.into()));
            }
            (ServerStep::Check { id, name }, Ok(Reply::Names { names: found, .. })) => {
                match found.iter().any(|(other, ..)| excludes(other, &name)) {
                    true => self.unregister(op, id, Err(ErrorReply::NameTaken.into())),
                    false => self.cx.finish(op, Ok(Outcome::Registered(id))),
                }
            }
            (ServerStep::Check { id, .. }, Err(refusal)) => self.unregister(op, id, Err(refusal.into())),
            (ServerStep::List { service, found }, Ok(Reply::Names { names: page, more, .. })) => {
                self.continue_list_servers(op, service, found, (page, more))
            }
            (ServerStep::List { .. }, Err(refusal)) => self.cx.finish(op, Err(refusal.into())),
            (ServerStep::Check { id, .. }, Ok(_)) => {
                self.unregister(op, id, Err(ErrorReply::Malformed.into()))
            }
            (ServerStep::Claim { .. } | ServerStep::List { .. }, Ok(_)) => {
                self.cx.finish(op, Err(ErrorReply::Malformed.into()))
            }
        }
    }

    fn continue_list_servers(
        &mut self,
        op: OpId,
        service: Option<String>,
        mut found: Vec<NamedServer>,
        (page, more): (Vec<(String, RegionId, NodeId)>, bool),
    ) {
        let is_wanted =
            |server: &NamedServer| service.as_ref().is_none_or(|wanted| *wanted == server.service);
        let servers = page.iter().map_while(|(name, _, node)| {
            let (service, is_shared) = names::service_of(name)?;
            let server = NamedServer { service: service.to_owned(), node: *node, is_shared };
            is_wanted(&server).then_some(server)
        });
        let before = found.len();
        found.extend(servers);
        match page.last() {
            Some((last, ..)) if more && found.len() - before == page.len() => {
                let next = Request::ListNames { after: Some(last.clone()) };
                self.ask_directory_for(op, next, ServerStep::List { service, found });
            }
            _ => self.cx.finish(op, Ok(Outcome::Servers(found))),
        }
    }

    fn ask_directory_for(&mut self, op: OpId, question: Request, step: ServerStep) {
        self.cx.ask_directory(question, Purpose::User(op, UserStep::Servers(step)));
    }
}

/// Returns true if two servers exclude each other: they offer the same service under different names, and not both
/// share it.
fn excludes(other: &str, name: &str) -> bool {
    let (Some((service, others_share)), Some((own_service, shares))) =
        (names::service_of(other), names::service_of(name))
    else {
        return false;
    };
    service == own_service && other != name && !(others_share && shares)
}
