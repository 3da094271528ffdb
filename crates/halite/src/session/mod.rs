//! Sessions: an application's attachment to a node, acting as one principal.
//!
//! All operations are `async` and run on any executor; [`crate::blocking`] has the same operations for threads. A
//! future may be dropped at any time. What then happens to an operation that has begun depends on the operation:
//!
//! - A dropped `alloc`, `map`, `lock`, `watch` or `serve_named` still ends, and then the node undoes its result. The
//!   node withdraws the wait for a lock or at a barrier.
//! - Other commands to the engine, such as `grant`, `move_to` and `free`, still take effect.
//! - A read, write or atomic may still take effect in the region, fully or in part, but touches no memory of the caller
//!   any more.
//! - A call or message may still reach its receiver.
//!
//! The session calls the driver, [`crate::rpc`] and [`crate::posted`], and asks [`crate::cluster`] for the path to a
//! peer; [`crate::node`] creates sessions. Reads, writes and atomics by loads and stores take no lock. A session's own
//! locks (its tables of locks, barriers and services) are never held across a call into another module.

pub(crate) mod access;
mod atomic;
pub(crate) mod attached;
mod barrier;
pub mod blocking;
pub(crate) mod buffer;
pub mod calls;
pub(crate) mod explain;
pub(crate) mod lock;
mod memory;
pub(crate) mod qos;
pub(crate) mod regions;
pub mod typed;
mod wait;
pub(crate) mod watch;

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use halite_mem::{Lookup, Process};
use halite_tier::access::{DataPath, SlotRef};
use halite_tier::effect::{Command, CommandError, OpId};
use halite_tier::ids::{NodeId, NodeIncarnation, Principal, SessionId};
use halite_tier::lockword::Holder;
use halite_tier::permissions::Permissions;
use halite_tier::qos::Priority;
use serde::{Deserialize, Serialize};

use crate::driver::Driver;
use crate::driver::ticket::{CommandResult, Undo};
use crate::error::{AccessCause, AccessError, AttachError, BatchError, RegionCause};
use crate::session::attached::Client;
use crate::session::barrier::Barriers;
use crate::session::calls::Services;
use crate::session::lock::Locks;

pub use halite_tier::effect::Placement;
pub use regions::RegionPages;
pub(crate) use regions::check_name;

/// Maximum length of a region, in bytes: the address space of a process, 128 TiB.
pub const REGION_BYTES_MAX: u64 = 1 << 47;

/// A handle: a capability to a region, valid only in the session that mapped the region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lh {
    pub(crate) slot: SlotRef,
    /// Random number of the session, by which a session recognises handles of other sessions.
    pub(crate) session: u64,
}

impl fmt::Debug for Lh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lh({}.{})", self.slot.index, self.slot.generation)
    }
}

/// The names that [`Session::move_names`] or [`Session::move_names_back`] moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NamesMoved {
    /// Number of moved names; 0 if the names were in etcd already.
    pub names: u64,
    /// Number of lost names that were moved; their regions stay lost.
    pub lost: u64,
}

/// The principals to which a grant or revocation applies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Who {
    /// One principal, given by name.
    Principal(String),
    /// All principals that the region's grants do not name.
    Everyone,
}

/// Options of [`Session::alloc_with`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AllocOptions {
    /// The nodes that hold the region.
    pub placement: Placement,
    /// Permissions of all principals except the session's own.
    pub everyone: Permissions,
    /// True if the owners allocate the region's memory from the system before the region exists. The memory is then
    /// charged to the owners, not to writers, and cannot run out under a writer; the allocation takes about 0.3 s per
    /// GiB. Otherwise the first process that touches a page allocates it, and the page is charged to this process.
    pub populate: bool,
}

impl Default for AllocOptions {
    /// Returns the default: on this node if it has room, otherwise on another; no permissions for other principals; not
    /// populated.
    fn default() -> AllocOptions {
        AllocOptions { placement: Placement::Anywhere, everyone: Permissions::empty(), populate: false }
    }
}

/// One read of a batch.
#[derive(Debug)]
pub struct ReadOp<'a> {
    /// Handle of the region.
    pub lh: Lh,
    /// Offset in the region, in bytes.
    pub offset: u64,
    /// Destination; its length is the number of bytes to read.
    pub into: &'a mut [u8],
}

/// One write of a batch.
#[derive(Clone, Copy, Debug)]
pub struct WriteOp<'a> {
    /// Handle of the region.
    pub lh: Lh,
    /// Offset in the region, in bytes.
    pub offset: u64,
    /// The bytes to write.
    pub from: &'a [u8],
}

/// One compare-swap on a word of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SwapOp {
    /// Offset of the word, in bytes: a multiple of 8.
    pub offset: u64,
    /// Value that the word must hold.
    pub expected: u64,
    /// Value that replaces the word.
    pub new: u64,
}

/// An application's attachment to its node.
///
/// Clones are the same session. Dropping the last clone ends the session and all its handles. Guards, watches, posted
/// calls and borrowed answers each count as a clone, so none of them borrows the session.
///
/// A session belongs to the process that joined the cluster. After a `fork`, it still belongs to the parent: in the
/// child, all operations of the node, its sessions, servers, mailboxes, guards and posted accesses fail with `Forked`
/// ([`RegionCause::Forked`], [`AccessCause::Forked`](crate::AccessCause::Forked),
/// [`CallCause::Forked`](crate::CallCause::Forked) and so on), and dropping them does nothing. The child may join as a
/// node of its own. A child that keeps running without `exec` keeps the parent's descriptors open, so other nodes may
/// notice the parent's end only when its lease expires.
///
/// ```
/// # use halite::{Config, Node, NodeId, Permissions, Placement};
/// # let dir = std::env::temp_dir().join(format!("halite-doc-session-{}", std::process::id()));
/// # let node = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
/// let session = node.session();
/// let greet = async {
///     let lh = session.alloc(Some("greeting"), 64, Placement::Local, Permissions::READ).await?;
///     session.write(lh, 0, b"hello").await?;
///     let mut bytes = [0; 5];
///     session.read(lh, 0, &mut bytes).await?;
///     assert_eq!(&bytes, b"hello");
///     Ok::<(), Box<dyn std::error::Error>>(())
/// };
/// // Any executor will do; this one needs no other crate.
/// session.blocking().block_on(greet)?;
/// # drop(node);
/// # std::fs::remove_dir_all(dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Session {
    pub(crate) kind: Kind,
}

/// The node of a session: in this process, or in another process of this host.
#[derive(Clone)]
pub(crate) enum Kind {
    Embedded(Embedded),
    Attached(Arc<Client>),
}

/// A session of a node of this process.
#[derive(Clone)]
pub(crate) struct Embedded {
    pub(crate) inner: Arc<Inner>,
    pub(crate) priority: Priority,
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

/// Evaluates to the [`Embedded`] session, or returns the value of the expression, which carries the operation out on
/// the client of an attached session.
macro_rules! embedded {
    ($session:expr, $client:ident => $attached:expr) => {
        match &$session.kind {
            $crate::session::Kind::Embedded(session) => session,
            $crate::session::Kind::Attached($client) => return $attached,
        }
    };
}
pub(crate) use embedded;

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Embedded(session) => session.fmt(f),
            Kind::Attached(client) => {
                f.debug_struct("Session").field("attached_to", &client.node()).finish_non_exhaustive()
            }
        }
    }
}

/// State that the clones of a session share. Its alignment keeps the count of clones out of the cache lines that
/// accesses use.
#[repr(align(64))]
pub(crate) struct Inner {
    pub(crate) path: Arc<DataPath>,
    pub(crate) id: SessionId,
    pub(crate) tag: u64,
    pub(crate) driver: Arc<Driver>,
    node: NodeId,
    pub(crate) principal: Principal,
    /// The highest priority of the principal.
    pub(crate) highest: Priority,
    /// Number that replaces the principal's name in short calls, if the node has assigned one.
    pub(crate) principal_number: Option<u16>,
    chunk_bytes: u64,
    pub(crate) locks: Locks,
    pub(crate) barriers: Barriers,
    pub(crate) services: Services,
    process: Process,
}

impl Embedded {
    pub(crate) fn new(
        driver: Arc<Driver>,
        incarnation: NodeIncarnation,
        id: SessionId,
        principal: Principal,
        tag: u64,
        chunk_bytes: u64,
    ) -> Embedded {
        let (path, locks) = (driver.shared.path.clone(), Locks::new(Holder::new(incarnation, id)));
        let (barriers, process) = (Barriers::default(), driver.process);
        let principal_number = driver.shared.rpc.client.number_of(&principal);
        let highest = driver.shared.shaping.highest(&principal);
        let inner = Inner {
            path,
            id,
            tag,
            driver,
            node: incarnation.node,
            principal,
            highest,
            principal_number,
            chunk_bytes,
            locks,
            barriers,
            services: Services::default(),
            process,
        };
        Embedded { inner: Arc::new(inner), priority: highest }
    }
}

impl From<Embedded> for Session {
    fn from(session: Embedded) -> Session {
        Session { kind: Kind::Embedded(session) }
    }
}

impl Session {
    /// Attaches to a living node of this host in the cluster directory, such as one that `halite up` or `halite node`
    /// started. The session acts as the Unix user of this process.
    ///
    /// An attached session has all operations of a session. The process neither joins the cluster nor needs an adapter:
    /// it sends each operation to the node through memory that both share, and the node executes the operation with the
    /// permissions of the user. A read takes about as long as a round trip of two cache lines while both processes are
    /// awake, and two wake-ups longer otherwise. A Unix socket carries requests and replies beyond 64 KiB or beyond 32
    /// at a time, and all requests and replies if no memory could be shared.
    ///
    /// When the node ends, all operations fail with `NodeClosed` at once. When the session ends, even because the
    /// process was killed, the node releases the session's handles and locks, and ends its servers.
    ///
    /// An input, an answer or a message of an attached session has at most 16 MiB.
    ///
    /// ```
    /// # use halite::{AttachMode, Config, Node, NodeId, Permissions, Placement, blocking};
    /// # let dir = std::env::temp_dir().join(format!("halite-doc-attach-{}", std::process::id()));
    /// // Usually `halite up` or `halite node` runs the node.
    /// let attach = Some(AttachMode::Owner);
    /// let config = Config { dir: dir.clone(), node: Some(NodeId(0)), attach, ..Config::default() };
    /// let node = Node::embedded(config)?;
    /// let session = blocking::Session::attach(&dir)?;
    /// let lh = session.alloc(Some("greeting"), 64, Placement::Local, Permissions::READ)?;
    /// session.write(lh, 0, b"hello")?;
    /// assert_eq!(node.blocking_session().stat("greeting")?.len, 64);
    /// # drop((session, node));
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn attach(dir: impl AsRef<Path>) -> Result<Session, AttachError> {
        Ok(Session { kind: Kind::Attached(Arc::new(Client::attach(dir.as_ref(), None)?)) })
    }

    /// Attaches as [`Session::attach`] does, but to the node with this number.
    pub fn attach_to(dir: impl AsRef<Path>, node: NodeId) -> Result<Session, AttachError> {
        Ok(Session { kind: Kind::Attached(Arc::new(Client::attach(dir.as_ref(), Some(node))?)) })
    }

    /// Returns the number of the session's node.
    pub fn node(&self) -> NodeId {
        match &self.kind {
            Kind::Embedded(session) => session.inner.node,
            Kind::Attached(client) => client.node(),
        }
    }

    /// Runs a future on this thread, which drives the node or reads its replies while it waits.
    #[inline]
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        match &self.kind {
            Kind::Embedded(session) => session.inner.driver.block_on(future),
            Kind::Attached(client) => client.block_on(future),
        }
    }

    /// Polls the node once on this thread, unless another thread is polling. Returns at once if nothing has arrived.
    ///
    /// Call this in a loop that polls memory for the write of a peer. If the peer's stores do not reach this memory
    /// directly, this node must receive the bytes, and a loop without this call may keep the progress thread off the
    /// processor.
    ///
    /// ```
    /// # use halite::{Config, Node, NodeId, Permissions, Placement};
    /// # let dir = std::env::temp_dir().join(format!("halite-doc-progress-{}", std::process::id()));
    /// # let node = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
    /// let session = node.blocking_session();
    /// let flag = session.alloc(Some("flag"), 8, Placement::Local, Permissions::all())?;
    /// # let peer = node.blocking_session();
    /// # let peers_flag = peer.map("flag", Permissions::WRITE)?;
    /// # let raising = std::thread::spawn(move || peer.write(peers_flag, 0, &1u64.to_ne_bytes()));
    /// let mut word = [0; 8];
    /// while u64::from_ne_bytes(word) == 0 {
    ///     session.progress();
    ///     session.read(flag, 0, &mut word)?;
    /// }
    /// # raising.join().unwrap()?;
    /// # drop(node);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Several threads may call this at once, and so may handlers and wakers. The node of an attached session makes
    /// progress without this call.
    pub fn progress(&self) {
        if let Kind::Embedded(session) = &self.kind {
            session.inner.driver.poll_once();
        }
    }

    /// Returns this session as a session for threads.
    pub fn blocking(&self) -> blocking::Session {
        blocking::Session::new(self.clone())
    }
}

/// Reads and writes.
///
/// Aligned words of up to 8 bytes are read and written in one piece; other sessions may see part of a longer access. If
/// the future of a write is dropped, any part of its bytes may have been written.
impl Session {
    /// Reads `into.len()` bytes from `offset`.
    pub async fn read(&self, lh: Lh, offset: u64, into: &mut [u8]) -> Result<(), AccessError> {
        let session = embedded!(self, client => Box::pin(client.read(lh, offset, into)).await);
        session.inner.read_all(session.priority, lh, offset, into).await
    }

    /// Writes the bytes of `from` at `offset`.
    pub async fn write(&self, lh: Lh, offset: u64, from: &[u8]) -> Result<(), AccessError> {
        let session = embedded!(self, client => Box::pin(client.write(lh, offset, from)).await);
        session.inner.write_all(session.priority, lh, offset, from).await
    }

    /// Reads consecutive bytes from `offset` into several slices. Reads nothing unless the whole range is readable.
    pub async fn read_vectored(
        &self,
        lh: Lh,
        offset: u64,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<(), AccessError> {
        let len = into.iter().map(|slice| slice.len() as u64).sum();
        self.check("read", lh, Permissions::READ, offset, len).await?;
        let mut at = offset;
        let ops = into.iter_mut().map(|slice| {
            let op = ReadOp { lh, offset: at, into: slice };
            at += op.into.len() as u64;
            op
        });
        let mut ops: Vec<_> = ops.collect();
        self.read_batch(&mut ops).await.map_err(|error| vectored_error(error, offset, len))
    }

    /// Writes several slices consecutively from `offset`. Writes nothing unless the whole range is writable.
    pub async fn write_vectored(&self, lh: Lh, offset: u64, from: &[IoSlice<'_>]) -> Result<(), AccessError> {
        let len = from.iter().map(|slice| slice.len() as u64).sum();
        self.check("write", lh, Permissions::WRITE, offset, len).await?;
        let mut at = offset;
        let ops = from.iter().map(|slice| {
            let op = WriteOp { lh, offset: at, from: slice };
            at += op.from.len() as u64;
            op
        });
        let ops: Vec<_> = ops.collect();
        self.write_batch(&ops).await.map_err(|error| vectored_error(error, offset, len))
    }

    /// Executes several reads, and stops at the first that fails. Posted reads are outstanding together.
    pub async fn read_batch(&self, batch: &mut [ReadOp<'_>]) -> Result<(), BatchError> {
        let session = embedded!(self, client => client.read_batch(batch).await);
        session.inner.read_each(session.priority, batch).await
    }

    /// Executes several writes, and stops at the first that fails. Posted writes are outstanding together; if two
    /// writes to one node overlap, the later one in the batch takes effect last.
    pub async fn write_batch(&self, batch: &[WriteOp<'_>]) -> Result<(), BatchError> {
        let session = embedded!(self, client => client.write_batch(batch).await);
        session.inner.write_each(session.priority, batch).await
    }

    /// Checks rights and bounds of a whole access.
    pub(crate) async fn check(
        &self,
        operation: &'static str,
        lh: Lh,
        wanted: Permissions,
        offset: u64,
        len: u64,
    ) -> Result<(), AccessError> {
        let session = embedded!(self, client => client.check(operation, lh, wanted, offset, len).await);
        session.inner.check(operation, lh, wanted, offset, len).await
    }

    /// Fills a buffer with bytes from `offset` on, and returns the buffer. For tasks that must own the buffer.
    pub async fn read_owned(
        &self,
        lh: Lh,
        offset: u64,
        mut into: Vec<u8>,
    ) -> (Vec<u8>, Result<(), AccessError>) {
        let done = self.read(lh, offset, &mut into).await;
        (into, done)
    }

    /// Writes the bytes of a buffer at `offset`, and returns the buffer. For tasks that must own the buffer.
    pub async fn write_owned(
        &self,
        lh: Lh,
        offset: u64,
        from: Vec<u8>,
    ) -> (Vec<u8>, Result<(), AccessError>) {
        let done = self.write(lh, offset, &from).await;
        (from, done)
    }
}

/// Converts the error of consecutive accesses into the error of one access of `len` bytes from `offset`.
fn vectored_error(error: BatchError, offset: u64, len: u64) -> AccessError {
    let BatchError { index, source, later } = error;
    AccessError { offset, len, partly: source.partly || index > 0 || later, ..source }
}

impl Inner {
    /// Returns true if this session made the handle and runs in the process that joined the cluster.
    #[inline]
    pub(crate) fn owns(&self, lh: Lh) -> bool {
        lh.session == self.tag && self.process.is_current()
    }

    /// Returns the cause of an operation's failure on a closed node.
    #[cold]
    pub(crate) fn closed_region_cause(&self) -> RegionCause {
        self.driver.closed_or_forked(RegionCause::NodeClosed(self.node), RegionCause::Forked)
    }

    /// Returns the cause of an access's failure if this session does not own the handle.
    #[cold]
    pub(crate) fn unowned_cause(&self) -> AccessCause {
        self.driver.closed_or_forked(AccessCause::ForeignHandle, AccessCause::Forked)
    }

    /// Returns the text by which errors name the region of a handle.
    pub(crate) fn describe(&self, lh: Lh) -> String {
        if self.driver.is_forked() {
            return describe_slot(lh);
        }
        let pin = self.path.pins().pin();
        match self.path.slots().get(&pin, lh.slot.index, lh.slot.generation) {
            Lookup::Found(mapping) if self.owns(lh) && mapping.session == self.id => {
                format!("region {}", mapping.region)
            }
            _ => describe_slot(lh),
        }
    }
}

/// Returns the text by which errors name a handle without a known region.
pub(crate) fn describe_slot(lh: Lh) -> String {
    format!("handle {}.{}", lh.slot.index, lh.slot.generation)
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.abandon_locks();
        self.driver.close_session(self.id);
    }
}

/// A command to the engine. The first poll submits it; a drop before its end withdraws or undoes it.
pub(crate) struct CommandFuture<'s> {
    inner: &'s Inner,
    command: Option<Command>,
    op: Option<OpId>,
}

impl<'s> CommandFuture<'s> {
    pub(crate) fn new(inner: &'s Inner, command: Command) -> CommandFuture<'s> {
        CommandFuture { inner, command: Some(command), op: None }
    }

    /// Wraps a command and submits it at once.
    pub(crate) fn submit(inner: &'s Inner, command: Command) -> CommandFuture<'s> {
        let undo = Undo::of(&command);
        CommandFuture { inner, command: None, op: inner.driver.submit(inner.id, command, undo) }
    }
}

impl Future for CommandFuture<'_> {
    type Output = CommandResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CommandResult> {
        let driver = &self.inner.driver;
        if driver.is_forked() {
            return Poll::Ready(Err(driver.closed_error()));
        }
        if let Some(command) = self.command.take() {
            let undo = Undo::of(&command);
            self.op = driver.submit(self.inner.id, command, undo);
        }
        let Some(op) = self.op else { return Poll::Ready(Err(driver.closed_error())) };
        let ending = driver.poll_ticket(op, context);
        if ending.is_ready() {
            self.op = None;
        }
        ending.map(|ending| match ending {
            // A node that leaves makes all handles stale, including those of commands that were just submitted.
            Err(CommandError::Stale) if driver.is_closed() => Err(driver.closed_error()),
            ending => ending,
        })
    }
}

impl Drop for CommandFuture<'_> {
    fn drop(&mut self) {
        if let Some(op) = self.op {
            self.inner.driver.abandon(op);
        }
    }
}
