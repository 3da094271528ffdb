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
mod barrier;
pub mod blocking;
pub mod calls;
pub(crate) mod explain;
pub(crate) mod lock;
mod memory;
pub mod typed;
mod wait;
pub(crate) mod watch;

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use halite_mem::{Lookup, Process};
use halite_tier::access::{DataPath, SlotRef};
use halite_tier::effect::{Command, CommandError, OpId, Outcome};
use halite_tier::ids::{NodeId, NodeIncarnation, Principal, SessionId};
use halite_tier::layout::CHUNK_BYTES_MIN;
use halite_tier::lockword::Holder;
use halite_tier::message::{Drained, NAME_BYTES_MAX, NodeStatus, Reach, RegionCommand, RegionInfo};
use halite_tier::names;
use halite_tier::permissions::{self, Permissions};

use crate::cluster::config::EtcdAddress;
use crate::driver::Driver;
use crate::driver::ticket::{Ending, Undo};
use crate::error::{
    AccessCause, AccessError, BatchError, ListedRegions, LostRegion, RegionCause, RegionError,
    UnreachableRegion,
};
use crate::session::barrier::Barriers;
use crate::session::calls::Services;
use crate::session::lock::Locks;

pub use halite_tier::effect::Placement;

/// Maximum length of a region, in bytes: the address space of a process, 128 TiB.
pub const REGION_BYTES_MAX: u64 = 1 << 47;

/// A handle: a capability to a region, valid only in the session that mapped the region.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
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

/// The names that [`Session::move_names`] moved to etcd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamesMoved {
    /// Number of moved names; 0 if the names were in etcd already.
    pub names: u64,
    /// Number of lost names that were moved; their regions stay lost.
    pub lost: u64,
}

/// The principals to which a grant or revocation applies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Who {
    /// One principal, given by name.
    Principal(String),
    /// All principals that the region's grants do not name.
    Everyone,
}

/// Options of [`Session::alloc_with`].
#[derive(Clone, PartialEq, Eq, Debug)]
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    pub(crate) inner: Arc<Inner>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.inner.id).finish_non_exhaustive()
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
    pub(crate) principal: Principal,
    /// Number that replaces the principal's name in short calls, if the node has assigned one.
    pub(crate) principal_number: Option<u16>,
    chunk_bytes: u64,
    pub(crate) locks: Locks,
    pub(crate) barriers: Barriers,
    pub(crate) services: Services,
    process: Process,
}

impl Session {
    pub(crate) fn new(
        driver: Arc<Driver>,
        incarnation: NodeIncarnation,
        id: SessionId,
        principal: Principal,
        tag: u64,
        chunk_bytes: u64,
    ) -> Session {
        let (path, locks) = (driver.shared.path.clone(), Locks::new(Holder::new(incarnation, id)));
        let (barriers, process) = (Barriers::default(), driver.process);
        let principal_number = driver.shared.rpc.client.number_of(&principal);
        let inner = Inner {
            path,
            id,
            tag,
            driver,
            principal,
            principal_number,
            chunk_bytes,
            locks,
            barriers,
            services: Services::default(),
            process,
        };
        Session { inner: Arc::new(inner) }
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
    pub fn progress(&self) {
        self.inner.driver.poll_once();
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
    pub fn read(
        &self,
        lh: Lh,
        offset: u64,
        into: &mut [u8],
    ) -> impl Future<Output = Result<(), AccessError>> {
        self.inner.read_all(lh, offset, into)
    }

    /// Writes the bytes of `from` at `offset`.
    pub fn write(&self, lh: Lh, offset: u64, from: &[u8]) -> impl Future<Output = Result<(), AccessError>> {
        self.inner.write_all(lh, offset, from)
    }

    /// Reads consecutive bytes from `offset` into several slices. Reads nothing unless the whole range is readable.
    pub async fn read_vectored(
        &self,
        lh: Lh,
        offset: u64,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<(), AccessError> {
        let len = into.iter().map(|slice| slice.len() as u64).sum();
        self.inner.check("read", lh, Permissions::READ, offset, len).await?;
        let mut at = offset;
        let ops = into.iter_mut().map(|slice| {
            let op = ReadOp { lh, offset: at, into: slice };
            at += op.into.len() as u64;
            op
        });
        let mut ops: Vec<_> = ops.collect();
        self.inner.read_each(&mut ops).await.map_err(|error| of_vector(error, offset, len))
    }

    /// Writes several slices consecutively from `offset`. Writes nothing unless the whole range is writable.
    pub async fn write_vectored(&self, lh: Lh, offset: u64, from: &[IoSlice<'_>]) -> Result<(), AccessError> {
        let len = from.iter().map(|slice| slice.len() as u64).sum();
        self.inner.check("write", lh, Permissions::WRITE, offset, len).await?;
        let mut at = offset;
        let ops = from.iter().map(|slice| {
            let op = WriteOp { lh, offset: at, from: slice };
            at += op.from.len() as u64;
            op
        });
        let ops: Vec<_> = ops.collect();
        self.inner.write_each(&ops).await.map_err(|error| of_vector(error, offset, len))
    }

    /// Executes several reads, and stops at the first that fails. Posted reads are outstanding together.
    pub async fn read_batch(&self, batch: &mut [ReadOp<'_>]) -> Result<(), BatchError> {
        self.inner.read_each(batch).await
    }

    /// Executes several writes, and stops at the first that fails. Posted writes are outstanding together; if two
    /// writes to one node overlap, the later one in the batch takes effect last.
    pub async fn write_batch(&self, batch: &[WriteOp<'_>]) -> Result<(), BatchError> {
        self.inner.write_each(batch).await
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

/// Operations on regions, the directory and the cluster.
impl Session {
    /// Allocates a region of `len` bytes, all zero, and maps it. The session's principal gets all permissions, other
    /// principals get `everyone`. A region without a name can be reached only by its handle.
    pub async fn alloc(
        &self,
        name: Option<&str>,
        len: u64,
        placement: Placement,
        everyone: Permissions,
    ) -> Result<Lh, RegionError> {
        self.alloc_with(name, len, AllocOptions { placement, everyone, populate: false }).await
    }

    /// Allocates and maps a region, with more options than [`Session::alloc`].
    pub async fn alloc_with(
        &self,
        name: Option<&str>,
        len: u64,
        options: AllocOptions,
    ) -> Result<Lh, RegionError> {
        let object = Object::new(name, len);
        let chunk_bytes = self.inner.chunk_bytes;
        check_alloc(name, len, chunk_bytes).map_err(|cause| object.failed("alloc", cause))?;
        let name = name.map(str::to_owned);
        let AllocOptions { placement, everyone, populate } = options;
        let command = Command::Alloc { name, len, chunk_bytes, placement, everyone, populate };
        self.handle("alloc", object, command).await
    }

    /// Maps a region by name, with the permissions `wanted`.
    ///
    /// Fails unless the principal has all of `wanted`. The handle allows nothing else: if a master maps a region only
    /// for reading, the handle can neither write nor free. A later grant applies only to handles that are mapped after
    /// the grant.
    pub async fn map(&self, name: &str, wanted: Permissions) -> Result<Lh, RegionError> {
        let object = Object::Name(name);
        check_name(name).map_err(|cause| object.failed("map", cause))?;
        self.handle("map", object, Command::Map { name: name.to_owned(), wanted }).await
    }

    /// Unmaps a region; the handle is then invalid.
    pub async fn unmap(&self, lh: Lh) -> Result<(), RegionError> {
        self.own("unmap", lh)?;
        self.done("unmap", lh, Command::Unmap(lh.slot)).await
    }

    /// Frees the region and its memory, for all sessions that map it. Needs a handle with [`Permissions::MASTER`], as
    /// all operations that change a region do.
    pub async fn free(&self, lh: Lh) -> Result<(), RegionError> {
        self.order("free", lh, RegionCommand::Free).await
    }

    /// Grants permissions to `who`. Needs [`Permissions::MASTER`].
    pub async fn grant(&self, lh: Lh, who: Who, permissions: Permissions) -> Result<(), RegionError> {
        let who = self.grantee("grant", lh, who)?;
        self.order("grant", lh, RegionCommand::Grant { who, permissions }).await
    }

    /// Revokes permissions of `who`. When this returns, no access that needed the revoked permissions is in progress.
    /// Needs [`Permissions::MASTER`].
    pub async fn revoke(&self, lh: Lh, who: Who, permissions: Permissions) -> Result<(), RegionError> {
        let who = self.grantee("revoke", lh, who)?;
        self.order("revoke", lh, RegionCommand::Revoke { who, permissions }).await
    }

    /// Makes another principal a master of the region too. Needs [`Permissions::MASTER`].
    pub async fn add_master(&self, lh: Lh, who: &str) -> Result<(), RegionError> {
        self.grant(lh, Who::Principal(who.to_owned()), Permissions::MASTER).await
    }

    /// Makes the region immutable, permanently. Needs [`Permissions::MASTER`].
    pub async fn seal(&self, lh: Lh) -> Result<(), RegionError> {
        self.order("seal", lh, RegionCommand::Seal).await
    }

    /// Moves all bytes of the region, and its home, to another node. Accesses continue during the move; an access waits
    /// only while its own chunk is being moved. Needs [`Permissions::MASTER`].
    pub async fn move_to(&self, lh: Lh, node: NodeId) -> Result<(), RegionError> {
        self.order("move", lh, RegionCommand::Move { to: node }).await
    }

    /// Names a region that has no name, so that other sessions find it only once it is ready. A region with a name
    /// stays when no session maps it any more. Needs [`Permissions::MASTER`].
    pub async fn set_name(&self, lh: Lh, name: &str) -> Result<(), RegionError> {
        check_name(name).map_err(|cause| self.failed_on("name", lh, cause))?;
        self.order("name", lh, RegionCommand::SetName { name: name.to_owned() }).await
    }

    /// Describes the region that has a name.
    pub async fn stat(&self, name: &str) -> Result<RegionInfo, RegionError> {
        let object = Object::Name(name);
        check_name(name).map_err(|cause| object.failed("stat", cause))?;
        match self.command("stat", object, Command::Stat(name.to_owned())).await? {
            Outcome::Info(info) => Ok(*info),
            _ => unreachable!("a description was asked for"),
        }
    }

    /// Describes the region behind a handle.
    pub async fn stat_handle(&self, lh: Lh) -> Result<RegionInfo, RegionError> {
        self.own("stat", lh)?;
        let object = Object::Handle(self, lh);
        match self.command("stat", object, Command::StatHandle(lh.slot)).await? {
            Outcome::Info(info) => Ok(*info),
            _ => unreachable!("a description was asked for"),
        }
    }

    /// Lists all named regions of the cluster whose homes answer, ordered by name. [`Session::list_all`] also lists
    /// regions whose homes do not answer.
    pub async fn list(&self) -> Result<Vec<RegionInfo>, RegionError> {
        self.list_all().await.map(|listed| listed.regions)
    }

    /// Lists all names in use in the cluster. Each list in the result is ordered by name.
    pub async fn list_all(&self) -> Result<ListedRegions, RegionError> {
        match self.command("list", Object::All("regions"), Command::List).await? {
            Outcome::List { regions, unreachable, damaged } => {
                let named = |(name, home)| UnreachableRegion { name, home };
                let unreachable = unreachable.into_iter().map(named).collect();
                Ok(ListedRegions { regions, unreachable, damaged })
            }
            _ => unreachable!("a list was asked for"),
        }
    }

    /// Lists the names of all regions that were lost with their homes, ordered by name.
    ///
    /// A name leaves the list when a session allocates a region with this name, or when [`Session::forget_name`] or
    /// [`Session::forget_node`] removes it. Node 0 remembers the last 10,000 lost names, and forgets them when it
    /// restarts.
    pub async fn list_lost(&self) -> Result<Vec<LostRegion>, RegionError> {
        match self.command("list", Object::All("lost regions"), Command::ListLost).await? {
            Outcome::Lost(names) => Ok(names.into_iter().map(LostRegion::from).collect()),
            _ => unreachable!("a list was asked for"),
        }
    }

    /// Forgets the name of a lost region, as if the region had never existed. Needs no permission.
    pub async fn forget_name(&self, name: &str) -> Result<(), RegionError> {
        let object = Object::Name(name);
        check_name(name).map_err(|cause| object.failed("forget", cause))?;
        self.command("forget", object, Command::ForgetName(name.to_owned())).await.map(|_| ())
    }

    /// Forgets a dead node and all names that were lost with it. Fails with [`RegionCause::NodeLives`] if the node is
    /// alive.
    pub async fn forget_node(&self, node: NodeId) -> Result<(), RegionError> {
        self.command("forget", Object::Node(node), Command::ForgetNode(node)).await.map(|_| ())
    }

    /// Moves everything on a node to other live permanent nodes: regions with their homes, chunks of regions, locks and
    /// barriers. The drain ends after `within` at the latest.
    ///
    /// From the start, the node refuses allocations with [`RegionCause::Draining`] and calls with
    /// [`CallCause::Draining`](crate::CallCause::Draining). After the drain, the node leaves if its process waits for
    /// [`Node::drained`](crate::Node::drained) and then lets it leave, as `halite node` does. If [`Drained::left`]
    /// lists regions that could not be moved, the node keeps them and continues as before, unless `destroy` is set:
    /// then the node leaves, and these regions are lost with it.
    pub async fn drain(&self, node: NodeId, within: Duration, destroy: bool) -> Result<Drained, RegionError> {
        let within_ns = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        let command = Command::Drain { node, within_ns, stays: !destroy };
        match self.command("drain", Object::Node(node), command).await? {
            Outcome::Drained(drained) => Ok(*drained),
            _ => unreachable!("a node was to be drained"),
        }
    }

    /// Moves all names and the node numbers from node 0 to etcd. Sessions can allocate, map and free regions by name
    /// during the move.
    ///
    /// After the move, all nodes look names up in etcd, including nodes that join later. Fails with
    /// [`RegionCause::NamesNotMoved`], and the names stay at node 0, if a node cannot reach this etcd, or if another
    /// cluster has its names under the same prefix. The caller may repeat the call: an interrupted move does not block
    /// the next one, and a completed move stays done.
    pub async fn move_names(&self, to: &EtcdAddress) -> Result<NamesMoved, RegionError> {
        let object = Object::All("names");
        if to.has_password() {
            let reason = "its address holds a password, which all nodes would be told over the network: name a password-file instead";
            return Err(object.failed("move", RegionCause::NamesNotMoved(reason.to_owned())));
        }
        match self.command("move", object, Command::MoveNames(to.names_at())).await? {
            Outcome::NamesMoved { names, lost } => Ok(NamesMoved { names, lost }),
            _ => unreachable!("names were to be moved"),
        }
    }

    /// Asks the directory for the number of a permanent node. The directory assigns each number only once.
    pub(crate) async fn take_number(&self) -> Result<NodeId, RegionError> {
        match self.command("number", Object::All("nodes"), Command::TakeNumber).await? {
            Outcome::Number(number) => Ok(number),
            _ => unreachable!("a number was asked for"),
        }
    }

    /// Asks `owner` whether operations of `node` may still land in its memory.
    ///
    /// Each node answers for its own memory only. An application that replaces a writer with which it lost contact must
    /// ask each owner of the region, until the owner reports that the writer is cut off, or that the writer has paired
    /// with the owner again, under a higher number ([`Reach::pairing`]). Neither locks nor reports of other nodes
    /// replace these answers.
    ///
    /// ```
    /// # use halite::{Config, Node, NodeId};
    /// # let dir = std::env::temp_dir().join(format!("halite-doc-reach-{}", std::process::id()));
    /// # let node = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
    /// let session = node.blocking_session();
    /// let reach = session.reach(NodeId(0), NodeId(0))?;
    /// assert!(!reach.is_cut_off, "a node touches its own memory for as long as it lives");
    /// # drop((session, node));
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Fails with [`RegionCause::UnknownNode`] if the owner knows no node of the cluster with this number, and with
    /// [`RegionCause::PeerDown`] if the owner cannot be reached.
    pub async fn reach(&self, node: NodeId, owner: NodeId) -> Result<Reach, RegionError> {
        match self.command("ask for the reach of", Object::Node(node), Command::Reach { node, owner }).await?
        {
            Outcome::Reach(reach) => Ok(reach),
            _ => unreachable!("a reach was asked for"),
        }
    }

    /// Describes all nodes of the cluster, ordered by number.
    ///
    /// If a node is being connected for the first time and does not answer, it counts as silent
    /// ([`NodeState`](halite_tier::message::NodeState)) after three tenths of a lease, or after a whole lease if its
    /// host answers. If the first node is unreachable, another node lists the members
    /// ([`Node::membership_source`](crate::Node::membership_source)). The session does not ask members that this node
    /// knows only from that list, and reports them as unconnected or in the state that the list gives.
    pub async fn status(&self) -> Result<Vec<NodeStatus>, RegionError> {
        match self.command("status", Object::All("nodes"), Command::Status).await? {
            Outcome::Status(nodes) => Ok(nodes),
            _ => unreachable!("a status was asked for"),
        }
    }

    /// Describes one node; returns `None` if the node is unknown.
    pub(crate) async fn status_of(&self, node: NodeId) -> Option<NodeStatus> {
        match self.command("status", Object::Node(node), Command::StatusOf(node)).await {
            Ok(Outcome::Status(nodes)) => nodes.into_iter().next(),
            _ => None,
        }
    }

    /// Waits until the directory and all paired nodes have answered, or are lost.
    pub(crate) async fn greet(&self) {
        let _ = self.command("greet", Object::All("nodes"), Command::Greet).await;
    }

    /// Returns the length in bytes of the region behind a handle.
    pub fn len(&self, lh: Lh) -> Result<u64, AccessError> {
        self.inner.len(lh)
    }

    async fn order(&self, operation: &'static str, lh: Lh, order: RegionCommand) -> Result<(), RegionError> {
        self.own(operation, lh)?;
        self.done(operation, lh, Command::RegionCommand(lh.slot, order)).await
    }

    async fn done(&self, operation: &'static str, lh: Lh, command: Command) -> Result<(), RegionError> {
        self.command(operation, Object::Handle(self, lh), command).await.map(|_| ())
    }

    async fn handle(
        &self,
        operation: &'static str,
        object: Object<'_>,
        command: Command,
    ) -> Result<Lh, RegionError> {
        match self.command(operation, object, command).await? {
            Outcome::Mapped { slot, .. } => Ok(Lh { slot, session: self.inner.tag }),
            _ => unreachable!("a handle was asked for"),
        }
    }

    async fn command(
        &self,
        operation: &'static str,
        object: Object<'_>,
        command: Command,
    ) -> Result<Outcome, RegionError> {
        // Named regions and lists are found through the first node, wherever they are.
        let by_name = matches!(
            &command,
            Command::Alloc { name: Some(_), .. }
                | Command::Map { .. }
                | Command::Stat(_)
                | Command::List
                | Command::RegionCommand(_, RegionCommand::SetName { .. })
                | Command::ListLost
                | Command::ForgetName(_)
                | Command::ForgetNode(_)
                | Command::TakeNumber
        );
        let ending = Commanded::new(&self.inner, command).await;
        ending.map_err(|error| match RegionCause::from(error) {
            RegionCause::PeerDown(NodeId::FIRST) | RegionCause::NotMet(NodeId::FIRST) if by_name => {
                object.failed(operation, RegionCause::DirectoryDown)
            }
            cause => object.failed(operation, cause),
        })
    }

    pub(crate) fn own(&self, operation: &'static str, lh: Lh) -> Result<(), RegionError> {
        if self.inner.owns(lh) {
            return Ok(());
        }
        let cause = self.inner.driver.closed_or_forked(RegionCause::ForeignHandle, RegionCause::Forked);
        Err(self.failed_on(operation, lh, cause))
    }

    pub(crate) fn failed_on(&self, operation: &'static str, lh: Lh, cause: RegionCause) -> RegionError {
        Object::Handle(self, lh).failed(operation, cause)
    }

    fn grantee(
        &self,
        operation: &'static str,
        lh: Lh,
        who: Who,
    ) -> Result<permissions::Grantee, RegionError> {
        match who {
            Who::Everyone => Ok(permissions::Grantee::Everyone),
            Who::Principal(name) if (1..=Principal::BYTES_MAX).contains(&name.len()) => {
                Ok(permissions::Grantee::Principal(Principal(name.into())))
            }
            Who::Principal(name) => {
                let cause = RegionCause::BadPrincipal { len: name.len() };
                Err(Object::Handle(self, lh).failed(operation, cause))
            }
        }
    }
}

/// Converts the error of consecutive accesses into the error of one access of `len` bytes from `offset`.
fn of_vector(error: BatchError, offset: u64, len: u64) -> AccessError {
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
    pub(crate) fn closed_region(&self) -> RegionCause {
        self.driver.closed_or_forked(RegionCause::NodeClosed, RegionCause::Forked)
    }

    /// Returns the cause of an access's failure if this session does not own the handle.
    #[cold]
    pub(crate) fn not_owned(&self) -> AccessCause {
        self.driver.closed_or_forked(AccessCause::ForeignHandle, AccessCause::Forked)
    }

    /// Returns the text by which errors name the region of a handle.
    pub(crate) fn describe(&self, lh: Lh) -> String {
        if self.driver.is_forked() {
            return format!("handle {}.{}", lh.slot.index, lh.slot.generation);
        }
        let pin = self.path.pins().pin();
        match self.path.slots().get(&pin, lh.slot.index, lh.slot.generation) {
            Lookup::Found(mapping) if self.owns(lh) => format!("region {}", mapping.region),
            _ => format!("handle {}.{}", lh.slot.index, lh.slot.generation),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.abandon_locks();
        self.driver.close_session(self.id);
    }
}

/// The object of an operation, as errors name it.
enum Object<'a> {
    Name(&'a str),
    Unnamed(u64),
    Handle(&'a Session, Lh),
    All(&'static str),
    Node(NodeId),
}

impl<'a> Object<'a> {
    fn new(name: Option<&'a str>, len: u64) -> Object<'a> {
        name.map_or(Object::Unnamed(len), Object::Name)
    }

    #[cold]
    fn failed(&self, operation: &'static str, cause: RegionCause) -> RegionError {
        let object = match self {
            Object::Name(name) => format!("region {name:?}"),
            Object::Unnamed(len) => format!("a region of {len} bytes without a name"),
            Object::Handle(session, lh) => session.inner.describe(*lh),
            Object::All(what) => (*what).to_owned(),
            Object::Node(node) => format!("node {node}"),
        };
        RegionError { operation, object, cause }
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), RegionCause> {
    match name.len() {
        _ if names::is_reserved(name) => Err(RegionCause::NameReserved),
        0 => Err(RegionCause::NameEmpty),
        len if len > NAME_BYTES_MAX => Err(RegionCause::NameTooLong { len }),
        _ => Ok(()),
    }
}

fn check_alloc(name: Option<&str>, len: u64, chunk_bytes: u64) -> Result<(), RegionCause> {
    if let Some(name) = name {
        check_name(name)?;
    }
    if len == 0 {
        return Err(RegionCause::ZeroLength);
    }
    if len > REGION_BYTES_MAX {
        return Err(RegionCause::TooLarge { len });
    }
    if !chunk_bytes.is_power_of_two() || chunk_bytes < CHUNK_BYTES_MIN {
        return Err(RegionCause::BadChunkSize { chunk_bytes });
    }
    Ok(())
}

/// A command to the engine. The first poll submits it; a drop before its end withdraws or undoes it.
pub(crate) struct Commanded<'s> {
    inner: &'s Inner,
    command: Option<Command>,
    op: Option<OpId>,
}

impl<'s> Commanded<'s> {
    pub(crate) fn new(inner: &'s Inner, command: Command) -> Commanded<'s> {
        Commanded { inner, command: Some(command), op: None }
    }

    /// Wraps a command and submits it at once.
    pub(crate) fn submitted(inner: &'s Inner, command: Command) -> Commanded<'s> {
        let undo = Undo::of(&command);
        Commanded { inner, command: None, op: inner.driver.submit(inner.id, command, undo) }
    }
}

impl Future for Commanded<'_> {
    type Output = Ending;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ending> {
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

impl Drop for Commanded<'_> {
    fn drop(&mut self) {
        if let Some(op) = self.op {
            self.inner.driver.abandon(op);
        }
    }
}
