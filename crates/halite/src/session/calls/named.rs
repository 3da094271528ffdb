//! Servers and calls by name.
//!
//! ```text
//!  serve_named("words") ── serves function h("words") ── registers (name, node) in the directory
//!  call_named("words")  ── nodes of "words", cached or from the directory ── call(node, h("words"))
//! ```
//!
//! The directory stores only the nodes that serve a name: the function's number is a hash `h` of the name.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use halite_tier::effect::{Command, NamedServer, Outcome};
use halite_tier::ids::{NodeId, RegionId};
use halite_tier::rpc::PAYLOAD_BYTES_MAX;

use super::server::{Function, Receiver, Server};
use crate::error::{
    CallCause, CallError, Gone, NamedCallCause, NamedCallError, RegionCause, RegionError, ServeCause,
    ServeError,
};
use crate::rpc::{ServeOptions, ServiceId};
use crate::runtime::locks::{lock, ranked};
use crate::session::attached::wire::{self, Request};
use crate::session::attached::{Answer, Client, Remote};
use crate::session::calls::served::RemoteServer;
use crate::session::{CommandFuture, Embedded, Session, check_name, embedded};

/// Time, in nanoseconds, after which a session asks again for the servers of a shared name, so that it finds new
/// servers.
const SHARED_FOR_NS: u64 = 1_000_000_000;

/// The services that a session has called, by name.
pub(crate) type Services = Mutex<BTreeMap<Box<str>, KnownServers>>;

ranked! {
    BTreeMap<Box<str>, KnownServers> => SessionServices;
}

/// The servers of a name, as the directory last listed them.
#[derive(Debug)]
pub(crate) struct KnownServers {
    nodes: Vec<NodeId>,
    /// Index of the server for the next call.
    next: usize,
    /// Time at which the session asks the directory for the servers again.
    expires_ns: u64,
}

impl KnownServers {
    fn new(servers: &[NamedServer], now_ns: u64) -> KnownServers {
        let is_shared = servers.iter().any(|server| server.is_shared);
        let expires_ns = if is_shared { now_ns.saturating_add(SHARED_FOR_NS) } else { u64::MAX };
        KnownServers { nodes: servers.iter().map(|server| server.node).collect(), next: 0, expires_ns }
    }

    /// Returns all nodes that serve the name, beginning with the node for the next call. The following call begins with
    /// the next node.
    fn rotation(&mut self) -> Vec<NodeId> {
        let mut nodes = self.nodes.clone();
        nodes.rotate_left(self.next);
        self.next = (self.next + 1) % self.nodes.len();
        nodes
    }
}

/// A server's name in the directory, registered until the server ends.
pub(super) struct Registration {
    session: Embedded,
    id: RegionId,
    has_ended: AtomicBool,
}

impl Registration {
    /// Removes the name, without waiting for the directory.
    pub(super) fn end(&self) {
        let driver = &self.session.inner.driver;
        // A node that has left or failed has no names.
        if self.has_ended.swap(true, Ordering::Relaxed) || driver.is_closed() || driver.is_forked() {
            return;
        }
        drop(CommandFuture::submit(&self.session.inner, Command::Unregister(self.id)));
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.end();
    }
}

/// Servers and calls by name. Servers have a name space of their own, separate from those of regions, locks and
/// barriers.
impl Session {
    /// Serves calls to a name, at this session's node. The name becomes free when the server closes or the node ends.
    ///
    /// Fails with [`ServeCause::NameTaken`] if another server has the name. If all servers of a name set
    /// [`ServeOptions::shared`], they share it, and calls alternate between them. Each node has at most one server of a
    /// name; clone the server to receive with several threads.
    ///
    /// ```
    /// # use halite::{Config, Node, NodeId, ServeOptions};
    /// # use std::time::Duration;
    /// # let dir = std::env::temp_dir().join(format!("halite-doc-named-{}", std::process::id()));
    /// # let node = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
    /// let session = node.blocking_session();
    /// let server = session.serve_named("shout", ServeOptions::default())?;
    /// std::thread::spawn(move || {
    ///     while let Ok(call) = server.recv() {
    ///         let answer = call.input().to_ascii_uppercase();
    ///         let _ = call.reply(&answer);
    ///     }
    /// });
    /// assert_eq!(session.call_named("shout", b"salt", Duration::from_secs(10))?, b"SALT");
    /// # drop(node);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn serve_named(&self, name: &str, options: ServeOptions) -> Result<Server, ServeError> {
        let failed = |cause| ServeError { what: format!("the name {name:?}"), cause };
        let session = embedded!(self, client => {
            let lost = |gone: Gone| failed(gone.into());
            let remote = Remote::open(client, &Request::ServeNamed { name, options }, lost).await?;
            Ok(Server::remote(RemoteServer::named(remote, function_of(name))))
        });
        check_service(name).map_err(|cause| failed(ServeCause::Name(cause)))?;
        let is_shared = options.shared;
        let id = ServiceId::Function(function_of(name).0);
        let receiver = Receiver::open(session, id, options).map_err(|error| failed(error.cause))?;
        let register = Command::Register { service: name.to_owned(), is_shared };
        match CommandFuture::new(&session.inner, register).await {
            Ok(Outcome::Registered(id)) => {
                let registration =
                    Registration { session: session.clone(), id, has_ended: AtomicBool::new(false) };
                Ok(Server::named(receiver, registration))
            }
            Ok(_) => unreachable!("the command returns a registration"),
            Err(error) => Err(failed(match session.directory_cause(error.into(), false) {
                RegionCause::NameTaken => ServeCause::NameTaken,
                cause => ServeCause::Name(cause),
            })),
        }
    }

    /// Calls the server of a name, and returns its answer. Fails with [`NamedCallCause::NoServer`] if no server has the
    /// name.
    ///
    /// The session remembers the servers of a name. If a server has ended and its handler cannot have run, the session
    /// sends the call to the next one, and finally to the servers that the directory lists then. `timeout` applies to
    /// all attempts together.
    pub async fn call_named(
        &self,
        name: &str,
        input: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u8>, NamedCallError> {
        let failed = |cause| NamedCallError { name: name.to_owned(), cause };
        let session = embedded!(self, client => call_remotely(client, name, input, timeout).await);
        check_service(name).map_err(|cause| failed(NamedCallCause::Name(cause)))?;
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let deadline_ns = session.inner.driver.now_ns().saturating_add(timeout_ns);
        let cached = session.cached(name);
        let mut last = NamedCallCause::NoServer;
        for known in [cached, None] {
            let is_resolved = known.is_none();
            let nodes = match known {
                Some(nodes) => nodes,
                None => session.resolve(name, deadline_ns).await.map_err(failed)?,
            };
            for node in nodes {
                match self.call(node, function_of(name), input, session.left(deadline_ns)).await {
                    Ok(answer) => return Ok(answer),
                    Err(error) if error.may_have_run || !may_try_next_server(error.cause) => {
                        return Err(failed(NamedCallCause::Call(error)));
                    }
                    Err(error) => {
                        lock(&session.inner.services).remove(name);
                        last = NamedCallCause::Call(error);
                    }
                }
            }
            if is_resolved {
                break;
            }
        }
        Err(failed(last))
    }

    /// Lists the servers of a name, or, if `name` is `None`, all servers that have names. The list is ordered by name.
    pub async fn servers(&self, name: Option<&str>) -> Result<Vec<NamedServer>, RegionError> {
        let failed = |cause| RegionError { operation: "list", object: "servers".to_owned(), cause };
        let session = embedded!(self, client => {
            client.ask(&Request::Servers(name), |gone| failed(gone.into())).await
        });
        name.map_or(Ok(()), check_service).map_err(failed)?;
        session.listed(name).await.map_err(failed)
    }
}

/// Calls a name for an attached session.
async fn call_remotely(
    client: &Client,
    name: &str,
    input: &[u8],
    timeout: Duration,
) -> Result<Vec<u8>, NamedCallError> {
    // After the loss of the connection, the caller cannot know which node was called, or whether the handler ran.
    let failed = |cause, may_have_run| {
        let call = CallError { node: client.node(), function: function_of(name).0, cause, may_have_run };
        NamedCallError { name: name.to_owned(), cause: NamedCallCause::Call(call) }
    };
    match input.len() {
        len if len as u64 > PAYLOAD_BYTES_MAX => {
            return Err(failed(CallCause::InputTooLong { len: len as u64 }, false));
        }
        len if len > wire::PAYLOAD_BYTES_MAX => return Err(failed(CallCause::NoMemory, false)),
        _ => {}
    }
    let lost = |gone: Gone| failed(gone.into(), gone.maybe_done());
    let request = Request::CallNamed { name, timeout };
    client.ask_with(&request, &[input], None, lost).await.map(Answer::<()>::into_data)
}

impl Embedded {
    async fn listed(&self, name: Option<&str>) -> Result<Vec<NamedServer>, RegionCause> {
        match CommandFuture::new(&self.inner, Command::ListServers(name.map(str::to_owned))).await {
            Ok(Outcome::Servers(servers)) => Ok(servers),
            Ok(_) => unreachable!("the command returns a list"),
            Err(error) => Err(self.directory_cause(error.into(), true)),
        }
    }

    fn cached(&self, name: &str) -> Option<Vec<NodeId>> {
        let mut services = lock(&self.inner.services);
        let known = services.get_mut(name).filter(|known| self.inner.driver.now_ns() < known.expires_ns)?;
        Some(known.rotation())
    }

    /// Asks the directory for the servers of a name, and remembers them.
    async fn resolve(&self, name: &str, deadline_ns: u64) -> Result<Vec<NodeId>, NamedCallCause> {
        let driver = &self.inner.driver;
        let listed = driver.within(self.left(deadline_ns), self.listed(Some(name))).await;
        let servers = match listed {
            Some(listed) => listed.map_err(NamedCallCause::Name)?,
            // A node that leaves fires all timers.
            None if driver.is_closed() => return Err(NamedCallCause::Name(self.inner.closed_region_cause())),
            None => return Err(NamedCallCause::Timeout),
        };
        let mut known = KnownServers::new(&servers, driver.now_ns());
        if servers.is_empty() {
            lock(&self.inner.services).remove(name);
            return Err(NamedCallCause::NoServer);
        }
        let mut services = lock(&self.inner.services);
        // Calls continue to alternate from where they were.
        known.next = services.get(name).map_or(0, |former| former.next) % known.nodes.len();
        let nodes = known.rotation();
        services.insert(name.into(), known);
        Ok(nodes)
    }

    fn left(&self, deadline_ns: u64) -> Duration {
        Duration::from_nanos(deadline_ns.saturating_sub(self.inner.driver.now_ns()))
    }
}

/// Returns true if the call may go to another server, because it failed before a handler ran.
fn may_try_next_server(cause: CallCause) -> bool {
    matches!(
        cause,
        CallCause::PeerDown
            | CallCause::NotMet
            | CallCause::UnknownNode
            | CallCause::UnknownFunction
            | CallCause::ServerClosed
            | CallCause::Draining
            | CallCause::Busy
    )
}

/// Returns the function that serves a name: 2^31 plus a hash (FNV-1a) of 31 bits, above all numbers that applications
/// choose.
fn function_of(name: &str) -> Function {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    Function(hash | Function::NAMED_MIN)
}

/// Checks that a server's name is valid; in the directory, a NUL is appended to it.
fn check_service(name: &str) -> Result<(), RegionCause> {
    check_name(name)?;
    if name.contains('\0') { Err(RegionCause::NameReserved) } else { Ok(()) }
}
