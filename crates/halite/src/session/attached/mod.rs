//! Attached sessions: the client's side of the connection to a node in another process of this host.
//!
//! ```text
//!   Session ──> Client::ask ──> request ──> socket ──> the node's session of this principal (crate::attach)
//!                  │ waits                    │
//!                  └── reply <── the thread that reads: one that waits for a reply, or a thread for tasks
//! ```
//!
//! [`wire`] defines the messages. [`line`](mod@line) owns the socket and decides which thread reads it. [`access`]
//! splits long accesses into slices. [`buffers`] has memory that the node accesses in place. The node's own session checks each request, so this folder checks only lengths.
//!
//! The table of requests has its own lock. While holding it, the client takes no other lock and calls no waker.

mod access;
pub(crate) mod buffers;
mod connect;
pub(crate) mod entry;
mod line;
mod remote;
pub(crate) mod wire;

use std::path::Path;
use std::sync::Arc;

use halite_tier::ids::NodeId;
use halite_tier::qos::Priority;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use self::access::lost;
use self::entry::{Kind, Status};
use self::line::Line;
pub(crate) use self::line::{Access, Pending, Undo, Unfinished};
pub(crate) use self::remote::Remote;
use self::wire::{Request, Welcome};
use crate::error::{AttachError, Gone};
use crate::session::Lh;

/// An attached session, whose requests have a priority. Sessions with other priorities share its connection.
pub(crate) struct Client {
    line: Arc<Line>,
    /// Ends the connection with the last session.
    connection: Arc<Connection>,
    welcome: Welcome,
    priority: Priority,
}

struct Connection(Arc<Line>);

/// The answer to a request: a value, and the bytes that follow it.
pub(crate) struct Answer<T> {
    pub(crate) value: T,
    bytes: Vec<u8>,
    data_at: usize,
}

impl<T> Answer<T> {
    pub(crate) fn data(&self) -> &[u8] {
        &self.bytes[self.data_at..]
    }

    pub(crate) fn into_data(mut self) -> Vec<u8> {
        self.bytes.drain(..self.data_at);
        self.bytes
    }
}

impl Client {
    /// Attaches to a living node of this host in the cluster directory: to `node`, or to any.
    pub(crate) fn attach(dir: &Path, node: Option<NodeId>) -> Result<Client, AttachError> {
        let (socket, welcome, memory) = connect::connect(dir, node)?;
        let line = Line::new(welcome.node, socket, memory)
            .map_err(|source| AttachError::Io { path: dir.to_owned(), source })?;
        let connection = Arc::new(Connection(line.clone()));
        let client = Client { line, connection, welcome, priority: Priority::High };
        let (principal, way) = (&client.welcome.principal, client.way());
        tracing::info!("attached in {} as {principal}, by {way}", dir.display());
        Ok(client)
    }

    /// Describes how requests reach the node.
    pub(crate) fn way(&self) -> String {
        let node = self.node();
        match &self.welcome.socket_reason {
            None => format!("memory shared with node {node}"),
            Some(reason) => format!("a Unix socket to node {node} instead of shared memory: {reason}"),
        }
    }

    /// Returns the highest priority of the principal.
    pub(crate) fn highest(&self) -> Priority {
        self.welcome.highest
    }

    /// Returns the same session with `priority` for its requests.
    pub(crate) fn with_priority(&self, priority: Priority) -> Client {
        // A node gives all requests of such a principal low priority, and those without a prefix are faster.
        let priority = if self.welcome.highest == Priority::Low { Priority::High } else { priority };
        let (line, connection) = (self.line.clone(), self.connection.clone());
        Client { line, connection, welcome: self.welcome.clone(), priority }
    }

    /// Posts a request with the priority of this session.
    fn post_request(
        &self,
        request: &impl Serialize,
        data: &[&[u8]],
        undo: Option<Undo>,
    ) -> Result<Pending, Gone> {
        match self.priority {
            Priority::High => self.line.post(request, data, undo),
            Priority::Low => self.line.post(&(Request::Low, request), data, undo),
        }
    }

    pub(crate) fn node(&self) -> NodeId {
        self.welcome.node
    }

    /// Runs a future on the calling thread. While it waits, this thread reads the socket, unless another thread reads
    /// it.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.line.block_on(future)
    }

    /// Sends a request, followed by `data`. The caller may await the reply later.
    pub(crate) fn post(&self, request: &impl Serialize, data: &[&[u8]]) -> Result<Pending, Gone> {
        let posted = self.post_request(request, data, None);
        self.line.send_rest();
        posted
    }

    /// Executes a short request of a thread through shared memory ([`Line::exchange`]).
    pub(crate) fn exchange<T>(
        &self,
        kind: Kind,
        words: [u64; 3],
        payload: &[u8],
        take: impl FnOnce(Status, &[u8]) -> Option<T>,
    ) -> Result<T, Unfinished> {
        match self.priority {
            Priority::High => self.line.exchange(kind, words, payload, take),
            // The lines of the shared memory have no priority.
            Priority::Low => Err(Unfinished::NotSent),
        }
    }

    /// Waits like [`Client::block_on`], after a spin for the reply.
    pub(crate) fn block_on_after_spin<F: Future>(&self, future: F) -> F::Output {
        self.line.block_on_after(future, true)
    }

    /// Sends a request and ignores its reply. Used, for example, to end an object.
    pub(crate) fn tell(&self, request: &Request<'_>) {
        self.tell_with(request, &[]);
    }

    pub(crate) fn tell_with(&self, request: &Request<'_>, data: &[&[u8]]) {
        if let Ok(pending) = self.post_request(request, data, None) {
            pending.detach();
            self.line.send_rest();
        }
    }

    /// Sends a request and waits for its result. If the node sends no reply, `lost` builds the error.
    pub(crate) async fn ask<T: DeserializeOwned, E: DeserializeOwned>(
        &self,
        request: &Request<'_>,
        lost: impl FnOnce(Gone) -> E,
    ) -> Result<T, E> {
        self.ask_with(request, &[], None, lost).await.map(|answer| answer.value)
    }

    /// Sends a request that creates a handle. If the caller drops the future first, the handle is unmapped when it
    /// arrives.
    pub(crate) async fn ask_for_handle<E: DeserializeOwned>(
        &self,
        request: &Request<'_>,
        lost: impl FnOnce(Gone) -> E,
    ) -> Result<Lh, E> {
        let undo: Undo = Box::new(|reply| match wire::decode::<(u8, Lh)>(reply)? {
            // The first byte shows that the result is a value.
            ((0, lh), _) => Some(wire::message(0, &Request::Unmap(lh), &[])),
            _ => None,
        });
        self.ask_with(request, &[], Some(undo), lost).await.map(|answer| answer.value)
    }

    /// Sends a request with data and waits for its result. If the future is dropped after the node has executed the
    /// request, `undo` builds the request that undoes it.
    pub(crate) async fn ask_with<T: DeserializeOwned, E: DeserializeOwned>(
        &self,
        request: &Request<'_>,
        data: &[&[u8]],
        undo: Option<Undo>,
        lost: impl FnOnce(Gone) -> E,
    ) -> Result<Answer<T>, E> {
        match self.post_request(request, data, undo) {
            Ok(pending) => decoded(self.node(), pending.await, lost),
            Err(gone) => Err(lost(gone)),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Decodes a reply of `node` into its result and the data that follow.
pub(crate) fn decoded<T: DeserializeOwned, E: DeserializeOwned>(
    node: NodeId,
    reply: Result<Vec<u8>, Gone>,
    lost: impl FnOnce(Gone) -> E,
) -> Result<Answer<T>, E> {
    let bytes = match reply {
        Ok(bytes) => bytes,
        Err(gone) => return Err(lost(gone)),
    };
    if let Some(exceeded) = wire::refusal_of(&bytes) {
        return Err(lost(Gone::Quota(exceeded)));
    }
    match wire::decode::<Result<T, E>>(&bytes) {
        Some((Ok(value), data)) => {
            let data_at = bytes.len() - data.len();
            Ok(Answer { value, bytes, data_at })
        }
        Some((Err(error), _)) => Err(error),
        // Both ends have the same version, so the node is at fault.
        None => Err(lost(Gone::Lost(node))),
    }
}
