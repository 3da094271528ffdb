//! Sessions: one application's attachment to its node, acting as one principal.
//!
//! Everything here is `async` and runs on any executor; [`crate::blocking`] is the same for threads.  A future
//! may be dropped at any time: what it began is then undone or has no effect on memory that the caller owns.
//!
//! It calls the driver, [`crate::rpc`] and [`crate::posted`], and reads from [`crate::cluster`] which way a peer is reached; [`crate::node`] hands it
//! out.  Reads, writes and atomics that loads and stores reach take no lock.  A session's own locks (which locks it holds, which barriers
//! it knows) are held for no call of anything else.

mod access;
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

use halite_mem::Lookup;
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
    AccessError, BatchError, ListedRegions, LostRegion, RegionCause, RegionError, UnreachableRegion,
};
use crate::session::barrier::Barriers;
use crate::session::lock::Locks;

pub use halite_tier::effect::Placement;

/// Longest region, in bytes: as much as a process can address.
pub const REGION_BYTES_MAX: u64 = 1 << 47;

/// A handle: a capability to a region that means something only in the session that got it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lh {
    pub(crate) slot: SlotRef,
    /// Random per session, so that other sessions' handles are recognised.
    pub(crate) session: u64,
}

impl fmt::Debug for Lh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lh({}.{})", self.slot.index, self.slot.generation)
    }
}

/// What was brought to etcd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamesMoved {
    /// How many names; 0 if they were there already.
    pub names: u64,
    /// How many of lost regions, which stay lost.
    pub lost: u64,
}

/// For whom a permission is granted or revoked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Who {
    /// One principal, by name.
    Principal(String),
    /// The default for every principal that is not named.
    Everyone,
}

/// How a region is to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllocOptions {
    /// On which nodes.
    pub placement: Placement,
    /// What principals other than the session's may do.
    pub everyone: Permissions,
    /// Whether the nodes that hold the region take its memory from the system before it is there.  It then counts as
    /// theirs and not the writers', and cannot run out under a writer; making the region takes about 0.3 s per GiB.
    /// Otherwise each page is taken, and accounted for, by the process that touches it first, which costs nothing here.
    pub populate: bool,
}

impl Default for AllocOptions {
    /// Here if there is room, else where there is; for this principal alone; not populated.
    fn default() -> AllocOptions {
        AllocOptions { placement: Placement::Anywhere, everyone: Permissions::empty(), populate: false }
    }
}

/// One read of a batch.
#[derive(Debug)]
pub struct ReadOp<'a> {
    /// From which region.
    pub lh: Lh,
    /// From where in it, in bytes.
    pub offset: u64,
    /// To where, and how much.
    pub into: &'a mut [u8],
}

/// One write of a batch.
#[derive(Clone, Copy, Debug)]
pub struct WriteOp<'a> {
    /// To which region.
    pub lh: Lh,
    /// To where in it, in bytes.
    pub offset: u64,
    /// What, and how much.
    pub from: &'a [u8],
}

/// One compare-swap of several on the words of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwapOp {
    /// Of which word, in bytes: a multiple of 8.
    pub offset: u64,
    /// What it must hold.
    pub expected: u64,
    /// What it then becomes.
    pub new: u64,
}

/// An application's attachment to its node.  Clones are the same session; the last one's drop ends it, and with
/// it all its handles.  What it gives out borrows nothing: guards, watches, calls under way and answers that are lent each count
/// as a clone.
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

/// What the clones of a session share.  Aligned, so that counting clones takes no cache line from accesses.
#[repr(align(64))]
pub(crate) struct Inner {
    pub(crate) path: Arc<DataPath>,
    pub(crate) id: SessionId,
    pub(crate) tag: u64,
    pub(crate) driver: Arc<Driver>,
    pub(crate) principal: Principal,
    /// By which links may know it.
    pub(crate) principal_number: Option<u16>,
    chunk_bytes: u64,
    pub(crate) locks: Locks,
    pub(crate) barriers: Barriers,
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
        let barriers = Barriers::default();
        let principal_number = driver.shared.rpc.client.number_of(&principal);
        let inner =
            Inner { path, id, tag, driver, principal, principal_number, chunk_bytes, locks, barriers };
        Session { inner: Arc::new(inner) }
    }

    /// Moves the node forward by what has arrived, on this thread, unless another one is at it: for threads that look at memory again and
    /// again until a peer has written it.  Where the peer's stores do not reach, this node takes the bytes in, and who looks
    /// keeps its progress thread from the processor.  It waits for nothing, and returns at once where nothing has come.
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

    /// The same session for threads.
    pub fn blocking(&self) -> blocking::Session {
        blocking::Session::new(self.clone())
    }
}

/// Bytes.  Aligned words of up to 8 bytes are read and written in one piece; longer accesses may be seen half
/// done by others.  A future that is dropped may have written any part of its bytes.
impl Session {
    /// Reads from `offset`, as many bytes as `into` takes.
    pub fn read(
        &self,
        lh: Lh,
        offset: u64,
        into: &mut [u8],
    ) -> impl Future<Output = Result<(), AccessError>> {
        self.inner.read_all(lh, offset, into)
    }

    /// Writes `from` at `offset`.
    pub fn write(&self, lh: Lh, offset: u64, from: &[u8]) -> impl Future<Output = Result<(), AccessError>> {
        self.inner.write_all(lh, offset, from)
    }

    /// Reads consecutive bytes from `offset` into several slices.  Nothing is read unless all of it may be.
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

    /// Writes several slices one behind the other at `offset`.  Nothing is written unless all of it may be.
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

    /// Makes several reads, and stops at the first that fails.  Those that must be posted are under way together.
    pub async fn read_batch(&self, batch: &mut [ReadOp<'_>]) -> Result<(), BatchError> {
        self.inner.read_each(batch).await
    }

    /// Makes several writes, and stops at the first that fails.  Those that must be posted are under way together: of
    /// two that overlap, and lie on one node, the later one stays.
    pub async fn write_batch(&self, batch: &[WriteOp<'_>]) -> Result<(), BatchError> {
        self.inner.write_each(batch).await
    }

    /// Reads into a buffer that goes along, as many bytes as it has; for tasks that cannot lend one.
    pub async fn read_owned(
        &self,
        lh: Lh,
        offset: u64,
        mut into: Vec<u8>,
    ) -> (Vec<u8>, Result<(), AccessError>) {
        let done = self.read(lh, offset, &mut into).await;
        (into, done)
    }

    /// Writes a buffer that goes along.
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

/// Regions.
impl Session {
    /// Makes a region of `len` bytes, all zero, and maps it.  The session's principal gets all permissions,
    /// `everyone` is for the others.  A region without a name is reached by its handle only.
    pub async fn alloc(
        &self,
        name: Option<&str>,
        len: u64,
        placement: Placement,
        everyone: Permissions,
    ) -> Result<Lh, RegionError> {
        self.alloc_with(name, len, AllocOptions { placement, everyone, populate: false }).await
    }

    /// As [`Session::alloc`], with more to choose.
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

    /// Maps a region by name.  Fails unless its principal has all of `wanted`, and may then be used for just that: even a
    /// master's handle that was mapped for reading neither writes nor frees.  What is granted later is for handles that
    /// are mapped later.
    pub async fn map(&self, name: &str, wanted: Permissions) -> Result<Lh, RegionError> {
        let object = Object::Name(name);
        check_name(name).map_err(|cause| object.failed("map", cause))?;
        self.handle("map", object, Command::Map { name: name.to_owned(), wanted }).await
    }

    /// Gives a handle up.
    pub async fn unmap(&self, lh: Lh) -> Result<(), RegionError> {
        self.own("unmap", lh)?;
        self.done("unmap", lh, Command::Unmap(lh.slot)).await
    }

    /// Gives the region and its memory up, for all who map it.  Needs a handle with [`Permissions::MASTER`], as all orders
    /// do.
    pub async fn free(&self, lh: Lh) -> Result<(), RegionError> {
        self.order("free", lh, RegionCommand::Free).await
    }

    /// Adds to what `who` may do.  Needs [`Permissions::MASTER`].
    pub async fn grant(&self, lh: Lh, who: Who, permissions: Permissions) -> Result<(), RegionError> {
        let who = self.who("grant", lh, who)?;
        self.order("grant", lh, RegionCommand::Grant { who, permissions }).await
    }

    /// Takes away from what `who` may do; when this returns, no access that it permitted is under way any more.
    /// Needs [`Permissions::MASTER`].
    pub async fn revoke(&self, lh: Lh, who: Who, permissions: Permissions) -> Result<(), RegionError> {
        let who = self.who("revoke", lh, who)?;
        self.order("revoke", lh, RegionCommand::Revoke { who, permissions }).await
    }

    /// Makes another principal a master too.  Needs [`Permissions::MASTER`].
    pub async fn add_master(&self, lh: Lh, who: &str) -> Result<(), RegionError> {
        self.grant(lh, Who::Principal(who.to_owned()), Permissions::MASTER).await
    }

    /// Makes the region immutable for ever.  Needs [`Permissions::MASTER`].
    pub async fn seal(&self, lh: Lh) -> Result<(), RegionError> {
        self.order("seal", lh, RegionCommand::Seal).await
    }

    /// Brings all bytes of the region, and its home, to another node.  Accesses go on meanwhile; each waits
    /// while its own chunk is under way.  Needs [`Permissions::MASTER`].
    pub async fn move_to(&self, lh: Lh, node: NodeId) -> Result<(), RegionError> {
        self.order("move", lh, RegionCommand::Move { to: node }).await
    }

    /// Gives a region that has no name the name by which others map it, so that they find it only when it is ready.
    /// It then lives on when nobody maps it.  Needs [`Permissions::MASTER`].
    pub async fn set_name(&self, lh: Lh, name: &str) -> Result<(), RegionError> {
        check_name(name).map_err(|cause| self.failed_on("name", lh, cause))?;
        self.order("name", lh, RegionCommand::SetName { name: name.to_owned() }).await
    }

    /// Describes a region.
    pub async fn stat(&self, name: &str) -> Result<RegionInfo, RegionError> {
        let object = Object::Name(name);
        check_name(name).map_err(|cause| object.failed("stat", cause))?;
        match self.command("stat", object, Command::Stat(name.to_owned())).await? {
            Outcome::Info(info) => Ok(*info),
            _ => unreachable!("a description was asked for"),
        }
    }

    /// Describes the region of a handle.
    pub async fn stat_handle(&self, lh: Lh) -> Result<RegionInfo, RegionError> {
        self.own("stat", lh)?;
        let object = Object::Handle(self, lh);
        match self.command("stat", object, Command::StatHandle(lh.slot)).await? {
            Outcome::Info(info) => Ok(*info),
            _ => unreachable!("a description was asked for"),
        }
    }

    /// Describes all named regions of the cluster whose homes answer, ordered by name.  [`Session::list_all`] tells of the others, too.
    pub async fn list(&self) -> Result<Vec<RegionInfo>, RegionError> {
        self.list_all().await.map(|listed| listed.regions)
    }

    /// All names of the cluster that are taken, each list ordered by name.
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

    /// Names all regions of the cluster that were lost with their homes, ordered by name: until somebody makes a region of
    /// that name, or forgets the name or the node.  Node 0 remembers 10,000 of them, those lost last, and none from before
    /// it was restarted.
    pub async fn list_lost(&self) -> Result<Vec<LostRegion>, RegionError> {
        match self.command("list", Object::All("lost regions"), Command::ListLost).await? {
            Outcome::Lost(names) => Ok(names.into_iter().map(LostRegion::from).collect()),
            _ => unreachable!("a list was asked for"),
        }
    }

    /// Has a name forgotten whose region was lost: it is then as if it had never been.  Anybody may.
    pub async fn forget_name(&self, name: &str) -> Result<(), RegionError> {
        let object = Object::Name(name);
        check_name(name).map_err(|cause| object.failed("forget", cause))?;
        self.command("forget", object, Command::ForgetName(name.to_owned())).await.map(|_| ())
    }

    /// Has a dead node forgotten, with all names that were lost with it.  Fails with [`RegionCause::NodeLives`] if it lives.
    pub async fn forget_node(&self, node: NodeId) -> Result<(), RegionError> {
        self.command("forget", Object::Node(node), Command::ForgetNode(node)).await.map(|_| ())
    }

    /// Has all that is on a node brought to other living nodes that stay: regions with their homes, parts of regions, locks and barriers;
    /// for at most that long.  From the beginning the node takes nothing new: allocations there fail with [`RegionCause::Draining`], and calls
    /// with [`CallCause::Draining`](crate::CallCause::Draining).  Then it leaves, where something holds [`Node::drained`](crate::Node::drained)
    /// and does so, as `halite node` does; what could not be brought away says [`Drained::left`], and is lost with it.  If it `stays`, it
    /// leaves only if nothing is left, and goes on as before otherwise.
    pub async fn drain(&self, node: NodeId, within: Duration, stays: bool) -> Result<Drained, RegionError> {
        let within_ns = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        match self.command("drain", Object::Node(node), Command::Drain { node, within_ns, stays }).await? {
            Outcome::Drained(drained) => Ok(*drained),
            _ => unreachable!("a node was to be drained"),
        }
    }

    /// Has all names, and the numbers of nodes, brought from node 0 to etcd, while regions are made, mapped and freed by name as before; all nodes
    /// ask for them there from then on, and who joins is told.  Fails with [`RegionCause::NamesNotMoved`] where the names stay at node 0: a node does not
    /// reach that etcd, or another cluster has its names there.  It can be repeated: a move that was interrupted leaves nothing in the way of
    /// the next, and one that is done is done.
    pub async fn move_names(&self, to: &EtcdAddress) -> Result<NamesMoved, RegionError> {
        let object = Object::All("names");
        if to.has_password() {
            let reason = "its address holds a password, which all nodes would be told over the network: name a password-file instead";
            return Err(object.failed("move", RegionCause::NamesNotMoved(reason.to_owned())));
        }
        match self.command("move", object, Command::MoveNames(to.told())).await? {
            Outcome::NamesMoved { names, lost } => Ok(NamesMoved { names, lost }),
            _ => unreachable!("names were to be moved"),
        }
    }

    /// A number for a node that is to stay: one that no other had, and that is given to no other.
    pub(crate) async fn take_number(&self) -> Result<NodeId, RegionError> {
        match self.command("number", Object::All("nodes"), Command::TakeNumber).await? {
            Outcome::Number(number) => Ok(number),
            _ => unreachable!("a number was asked for"),
        }
    }

    /// Whether what a node has begun may still land in the memory of another, `owner`, as that says.  Each node speaks for its own memory: who
    /// has lost sight of a writer, and is to take over what that wrote, asks each node that holds a part of it, until the writer is cut off
    /// there, or paired under a higher number than before.  Neither locks nor the word of any other node stand for that.
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
    /// Fails with [`RegionCause::UnknownNode`] where no node of that number has been in the cluster, as far as the owner knows, and with
    /// [`RegionCause::PeerDown`] where the owner itself is not reached.
    pub async fn reach(&self, node: NodeId, owner: NodeId) -> Result<Reach, RegionError> {
        match self.command("ask for the reach of", Object::Node(node), Command::Reach { node, owner }).await?
        {
            Outcome::Reach(reach) => Ok(reach),
            _ => unreachable!("a reach was asked for"),
        }
    }

    /// Describes all nodes of the cluster, in order.  One that is met for the first time and does not answer is silent
    /// ([`NodeState`](halite_tier::message::NodeState)) after a tenth of a lease.  Where the first node is out of reach, another says who there is
    /// ([`Node::membership_source`](crate::Node::membership_source)); those of whom this node has heard nothing else are not asked: they are unconnected, or as that node says.
    pub async fn status(&self) -> Result<Vec<NodeStatus>, RegionError> {
        match self.command("status", Object::All("nodes"), Command::Status).await? {
            Outcome::Status(nodes) => Ok(nodes),
            _ => unreachable!("a status was asked for"),
        }
    }

    /// Describes one node; `None` if nothing is known of it.
    pub(crate) async fn status_of(&self, node: NodeId) -> Option<NodeStatus> {
        match self.command("status", Object::Node(node), Command::StatusOf(node)).await {
            Ok(Outcome::Status(nodes)) => nodes.into_iter().next(),
            _ => None,
        }
    }

    /// Waits until the directory, and all who are paired with this node, have answered or are lost.
    pub(crate) async fn greet(&self) {
        let _ = self.command("greet", Object::All("nodes"), Command::Greet).await;
    }

    /// Length in bytes of the region behind a handle.
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
        // Named regions and lists are found through the first node, whatever node they are on.
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
            RegionCause::PeerDown(NodeId::FIRST) if by_name => {
                object.failed(operation, RegionCause::DirectoryDown)
            }
            cause => object.failed(operation, cause),
        })
    }

    pub(crate) fn own(&self, operation: &'static str, lh: Lh) -> Result<(), RegionError> {
        if self.inner.owns(lh) {
            return Ok(());
        }
        Err(self.failed_on(operation, lh, RegionCause::ForeignHandle))
    }

    pub(crate) fn failed_on(&self, operation: &'static str, lh: Lh, cause: RegionCause) -> RegionError {
        Object::Handle(self, lh).failed(operation, cause)
    }

    fn who(&self, operation: &'static str, lh: Lh, who: Who) -> Result<permissions::Grantee, RegionError> {
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

/// The error of a vector of accesses that follow each other, `len` bytes from `offset` on.
fn of_vector(error: BatchError, offset: u64, len: u64) -> AccessError {
    let BatchError { index, source, later } = error;
    AccessError { offset, len, partly: source.partly || index > 0 || later, ..source }
}

impl Inner {
    /// Whether the handle was made by this session.
    #[inline]
    pub(crate) fn owns(&self, lh: Lh) -> bool {
        lh.session == self.tag
    }

    /// What errors call a handle's region.
    pub(crate) fn describe(&self, lh: Lh) -> String {
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

/// What errors say that an operation was attempted on.
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

/// A command: submitted when first polled, and undone when dropped before its end.
pub(crate) struct Commanded<'s> {
    inner: &'s Inner,
    command: Option<Command>,
    op: Option<OpId>,
}

impl<'s> Commanded<'s> {
    pub(crate) fn new(inner: &'s Inner, command: Command) -> Commanded<'s> {
        Commanded { inner, command: Some(command), op: None }
    }

    /// One that is submitted already.
    pub(crate) fn submitted(inner: &'s Inner, command: Command) -> Commanded<'s> {
        let undo = Undo::of(&command);
        Commanded { inner, command: None, op: inner.driver.submit(inner.id, command, undo) }
    }
}

impl Future for Commanded<'_> {
    type Output = Ending;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ending> {
        let driver = &self.inner.driver;
        if let Some(command) = self.command.take() {
            let undo = Undo::of(&command);
            self.op = driver.submit(self.inner.id, command, undo);
        }
        let Some(op) = self.op else { return Poll::Ready(Err(crate::driver::ticket::node_closed())) };
        let ending = driver.poll_ticket(op, context);
        if ending.is_ready() {
            self.op = None;
        }
        ending.map(|ending| match ending {
            // A node that leaves makes all handles stale, also for what was submitted just before.
            Err(CommandError::Stale) if driver.is_closed() => Err(crate::driver::ticket::node_closed()),
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
