//! Operations on regions, the directory of names and the cluster.

use std::fmt;
use std::time::Duration;

use halite_tier::effect::{Command, Outcome};
use halite_tier::engine::Engine;
use halite_tier::ids::{NodeId, Principal};
use halite_tier::layout::CHUNK_BYTES_MIN;
use halite_tier::message::{Drained, NAME_BYTES_MAX, NodeStatus, Reach, RegionCommand, RegionInfo};
use halite_tier::names;
use halite_tier::permissions::{self, Permissions};

use crate::cluster::config::EtcdAddress;
use crate::driver::reach::OutOfReach;
use crate::error::{
    AccessError, Gone, ListedRegions, LostRegion, RegionCause, RegionError, UnreachableRegion,
};
use crate::metrics::{AttachedSession, PrincipalUse};
use crate::session::attached::wire::{self, Request};
use crate::session::attached::{Client, Pending, decoded};
use crate::session::{
    AllocOptions, CommandFuture, Embedded, Kind, Lh, NamesMoved, Placement, REGION_BYTES_MAX, Session, Who,
    describe_slot, embedded,
};

/// Evaluates to the [`Embedded`] session, or returns the answer of an attached session's node. The object names the
/// region in errors that do not come from the node.
macro_rules! ask_node {
    ($session:expr, $operation:expr, $object:expr, $request:expr) => {
        embedded!($session, client => {
            client.ask(&$request, |gone| $object.failed($operation, gone.into())).await
        })
    };
}

/// The pages of a list of regions. See [`Session::list_pages`].
pub struct RegionPages<'s> {
    session: &'s Session,
    page: Page,
}

impl fmt::Debug for RegionPages<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionPages").field("session", self.session).finish_non_exhaustive()
    }
}

/// The next page of a list.
enum Page {
    /// The page after this name, or the first one.
    After(Option<String>),
    /// The page that an attached session has requested.
    Requested(Pending),
    /// There is none.
    None,
}

impl RegionPages<'_> {
    /// Returns the next page; `None` after the last one, and after an error. If the caller drops the future, the next call
    /// returns the same page.
    pub async fn next(&mut self) -> Result<Option<ListedRegions>, RegionError> {
        loop {
            match (&self.session.kind, &mut self.page) {
                (_, Page::None) => return Ok(None),
                (Kind::Attached(client), Page::After(after)) => {
                    let posted = client.post(&Request::ListPage(after.as_deref()), &[]);
                    self.page = Page::None;
                    self.page = Page::Requested(posted.map_err(pages_lost)?);
                }
                (Kind::Attached(client), Page::Requested(pending)) => {
                    let reply = pending.await;
                    self.page = Page::None;
                    return self.decode(client, reply).map(Some);
                }
                (Kind::Embedded(_), Page::After(after)) => {
                    let listed = self.session.list_page(after.as_deref()).await;
                    let next = listed.as_ref().ok().and_then(|page| page.next.clone());
                    self.page = next.map_or(Page::None, |after| Page::After(Some(after)));
                    return listed.map(Some);
                }
                (Kind::Embedded(_), Page::Requested(_)) => {
                    unreachable!("only an attached session requests pages")
                }
            }
        }
    }

    /// Decodes a page, after it has requested the next one.
    fn decode(
        &mut self,
        client: &Client,
        reply: Result<Vec<u8>, Gone>,
    ) -> Result<ListedRegions, RegionError> {
        if let Ok(bytes) = &reply
            && let Some((Ok(Some(after)), _)) = wire::decode::<Result<Option<&str>, RegionError>>(bytes)
        {
            let posted = client.post(&Request::ListPage(Some(after)), &[]);
            self.page = Page::Requested(posted.map_err(pages_lost)?);
        }
        decoded(client.node(), reply, pages_lost).map(|answer| answer.value)
    }
}

fn pages_lost(gone: Gone) -> RegionError {
    Object::All("regions").failed("list", gone.into())
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
        let session = embedded!(self, client => {
            let lost = |gone: Gone| Object::new(name, len).failed("alloc", gone.into());
            client.ask_for_handle(&Request::Alloc { name, len, options }, lost).await
        });
        let object = Object::new(name, len);
        let chunk_bytes = session.inner.chunk_bytes;
        check_alloc(name, len, chunk_bytes).map_err(|cause| object.failed("alloc", cause))?;
        let name = name.map(str::to_owned);
        let AllocOptions { placement, everyone, populate } = options;
        let command = Command::Alloc { name, len, chunk_bytes, placement, everyone, populate };
        session.command_for_handle("alloc", object, command).await
    }

    /// Maps a region by name, with the permissions `wanted`.
    ///
    /// Fails unless the principal has all of `wanted`. The handle allows nothing else: if a master maps a region only
    /// for reading, the handle can neither write nor free. A later grant applies only to handles that are mapped after
    /// the grant.
    pub async fn map(&self, name: &str, wanted: Permissions) -> Result<Lh, RegionError> {
        let session = embedded!(self, client => {
            let lost = |gone: Gone| Object::Name(name).failed("map", gone.into());
            client.ask_for_handle(&Request::Map { name, wanted }, lost).await
        });
        let object = Object::Name(name);
        check_name(name).map_err(|cause| object.failed("map", cause))?;
        session.command_for_handle("map", object, Command::Map { name: name.to_owned(), wanted }).await
    }

    /// Unmaps a region; the handle is then invalid.
    pub async fn unmap(&self, lh: Lh) -> Result<(), RegionError> {
        let session = ask_node!(self, "unmap", Object::Slot(lh), Request::Unmap(lh));
        session.check_handle("unmap", lh)?;
        session.command_on("unmap", lh, Command::Unmap(lh.slot)).await
    }

    /// Frees the region and its memory, for all sessions that map it. Needs a handle with [`Permissions::MASTER`], as
    /// all operations that change a region do.
    pub async fn free(&self, lh: Lh) -> Result<(), RegionError> {
        let session = ask_node!(self, "free", Object::Slot(lh), Request::Free(lh));
        session.region_command("free", lh, RegionCommand::Free).await
    }

    /// Grants permissions to `who`. Needs [`Permissions::MASTER`].
    pub async fn grant(&self, lh: Lh, who: Who, permissions: Permissions) -> Result<(), RegionError> {
        let session = ask_node!(self, "grant", Object::Slot(lh), Request::Grant { lh, who, permissions });
        let who = session.grantee("grant", lh, who)?;
        session.region_command("grant", lh, RegionCommand::Grant { who, permissions }).await
    }

    /// Revokes permissions of `who`. When this returns, no access that needed the revoked permissions is in progress.
    /// Needs [`Permissions::MASTER`].
    pub async fn revoke(&self, lh: Lh, who: Who, permissions: Permissions) -> Result<(), RegionError> {
        let session = ask_node!(self, "revoke", Object::Slot(lh), Request::Revoke { lh, who, permissions });
        let who = session.grantee("revoke", lh, who)?;
        session.region_command("revoke", lh, RegionCommand::Revoke { who, permissions }).await
    }

    /// Makes another principal a master of the region too. Needs [`Permissions::MASTER`].
    pub async fn add_master(&self, lh: Lh, who: &str) -> Result<(), RegionError> {
        self.grant(lh, Who::Principal(who.to_owned()), Permissions::MASTER).await
    }

    /// Makes the region immutable, permanently. Needs [`Permissions::MASTER`].
    pub async fn seal(&self, lh: Lh) -> Result<(), RegionError> {
        let session = ask_node!(self, "seal", Object::Slot(lh), Request::Seal(lh));
        session.region_command("seal", lh, RegionCommand::Seal).await
    }

    /// Moves all bytes of the region, and its home, to another node. Accesses continue during the move; an access waits
    /// only while its own chunk is being moved. Needs [`Permissions::MASTER`].
    ///
    /// A chunk is in one place at a time. If `node` ends during the move, the chunks that have moved are lost with it, and
    /// the move fails with [`RegionCause::PeerDown`]; [`RegionInfo::lost`] counts their bytes.
    pub async fn move_to(&self, lh: Lh, node: NodeId) -> Result<(), RegionError> {
        let session = ask_node!(self, "move", Object::Slot(lh), Request::MoveTo { lh, node });
        session.region_command("move", lh, RegionCommand::Move { to: node }).await
    }

    /// Names a region that has no name, so that other sessions find it only once it is ready. A named region remains
    /// after its last session unmaps it. Needs [`Permissions::MASTER`].
    pub async fn set_name(&self, lh: Lh, name: &str) -> Result<(), RegionError> {
        let session = ask_node!(self, "name", Object::Slot(lh), Request::SetName { lh, name });
        check_name(name).map_err(|cause| session.failed_on("name", lh, cause))?;
        session.region_command("name", lh, RegionCommand::SetName { name: name.to_owned() }).await
    }

    /// Returns a description of the region named `name`.
    pub async fn stat(&self, name: &str) -> Result<RegionInfo, RegionError> {
        let session = ask_node!(self, "stat", Object::Name(name), Request::Stat(name));
        let object = Object::Name(name);
        check_name(name).map_err(|cause| object.failed("stat", cause))?;
        match session.command("stat", object, Command::Stat(name.to_owned())).await? {
            Outcome::Info(info) => Ok(*info),
            _ => unreachable!("the command returns a description"),
        }
    }

    /// Returns a description of the region behind a handle.
    pub async fn stat_handle(&self, lh: Lh) -> Result<RegionInfo, RegionError> {
        let session = ask_node!(self, "stat", Object::Slot(lh), Request::StatHandle(lh));
        session.check_handle("stat", lh)?;
        let object = Object::Handle(session, lh);
        match session.command("stat", object, Command::StatHandle(lh.slot)).await? {
            Outcome::Info(info) => Ok(*info),
            _ => unreachable!("the command returns a description"),
        }
    }

    /// Lists all named regions of the cluster whose homes answer, ordered by name. [`Session::list_all`] also lists
    /// regions whose homes do not answer.
    pub async fn list(&self) -> Result<Vec<RegionInfo>, RegionError> {
        self.list_all().await.map(|listed| listed.regions)
    }

    /// Lists all names in use in the cluster, as [`Session::list_pages`] does. Each list in the result is ordered by
    /// name.
    pub async fn list_all(&self) -> Result<ListedRegions, RegionError> {
        let mut pages = self.list_pages();
        let mut all = ListedRegions::default();
        while let Some(page) = pages.next().await? {
            all.regions.extend(page.regions);
            all.unreachable.extend(page.unreachable);
            all.damaged.extend(page.damaged);
        }
        Ok(all)
    }

    /// Lists the names after `after`, in order: at most 1024, and fewer if their descriptions exceed 4 MiB.
    /// [`ListedRegions::next`] is the argument for the next page.
    ///
    /// A name that exists from the first page to the last is listed exactly once. A name that is added or removed
    /// meanwhile is listed once or not at all.
    ///
    /// [`Session::list_pages`] is faster for a whole list.
    pub async fn list_page(&self, after: Option<&str>) -> Result<ListedRegions, RegionError> {
        let session = ask_node!(self, "list", Object::All("regions"), Request::ListPage(after));
        let command = Command::List { after: after.map(str::to_owned) };
        match session.command("list", Object::All("regions"), command).await? {
            Outcome::List { regions, unreachable, damaged, next } => {
                let named = |(name, home)| UnreachableRegion { name, home };
                let unreachable = unreachable.into_iter().map(named).collect();
                Ok(ListedRegions { regions, unreachable, damaged, next })
            }
            _ => unreachable!("the command returns a list"),
        }
    }

    /// Lists all names in use in the cluster, page by page, as [`Session::list_page`] does. While the program handles a
    /// page, the node already gathers the next one.
    pub fn list_pages(&self) -> RegionPages<'_> {
        RegionPages { session: self, page: Page::After(None) }
    }

    /// Lists the names of all regions that were lost with their homes, ordered by name.
    ///
    /// A name leaves the list when a session allocates a region with this name, or when [`Session::forget_name`] or
    /// [`Session::forget_node`] removes it. Node 0 remembers the last 10,000 lost names, and forgets them when it
    /// restarts.
    pub async fn list_lost(&self) -> Result<Vec<LostRegion>, RegionError> {
        let session = ask_node!(self, "list", Object::All("lost regions"), Request::ListLost);
        match session.command("list", Object::All("lost regions"), Command::ListLost).await? {
            Outcome::Lost(names) => Ok(names.into_iter().map(LostRegion::from).collect()),
            _ => unreachable!("the command returns a list"),
        }
    }

    /// Forgets the name of a lost region, as if the region had never existed. Needs no permission.
    pub async fn forget_name(&self, name: &str) -> Result<(), RegionError> {
        let session = ask_node!(self, "forget", Object::Name(name), Request::ForgetName(name));
        let object = Object::Name(name);
        check_name(name).map_err(|cause| object.failed("forget", cause))?;
        session.command("forget", object, Command::ForgetName(name.to_owned())).await.map(|_| ())
    }

    /// Forgets a dead node and all names that were lost with it. Fails with [`RegionCause::NodeLives`] if the node is
    /// alive.
    pub async fn forget_node(&self, node: NodeId) -> Result<(), RegionError> {
        let session = ask_node!(self, "forget", Object::Node(node), Request::ForgetNode(node));
        session.command("forget", Object::Node(node), Command::ForgetNode(node)).await.map(|_| ())
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
        let session = ask_node!(self, "drain", Object::Node(node), Request::Drain { node, within, destroy });
        let within_ns = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        let command = Command::Drain { node, within_ns, stays: !destroy };
        match session.command("drain", Object::Node(node), command).await? {
            Outcome::Drained(drained) => Ok(*drained),
            _ => unreachable!("the command drains a node"),
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
        if to.has_password() {
            return Err(names_not_moved(
                "the address contains a password, which this node would send to all nodes; use password-file=FILE instead",
            ));
        }
        self.move_names_by(Command::MoveNames(to.names_at())).await
    }

    /// Moves all names and the node numbers from etcd back to node 0, which must be connected to every node that has
    /// names. Sessions can map and free regions by name meanwhile; new names wait.
    ///
    /// After the move, no node uses this etcd, and nodes of several hosts need addresses to join. Fails with
    /// [`RegionCause::NamesNotMoved`], and the names stay in etcd, if a node with names is not connected. The caller may
    /// repeat the call. The counts are 0 if the names are at node 0 already.
    pub async fn move_names_back(&self) -> Result<NamesMoved, RegionError> {
        self.move_names_by(Command::MoveNamesBack).await
    }

    async fn move_names_by(&self, command: Command) -> Result<NamesMoved, RegionError> {
        let session = embedded!(self, _client => {
            Err(names_not_moved("an attached session cannot move names; use a session of an embedded node"))
        });
        match session.command("move", Object::All("names"), command).await? {
            Outcome::NamesMoved { names, lost } => Ok(NamesMoved { names, lost }),
            _ => unreachable!("the command moves names"),
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
        let operation = "ask for the reach of";
        let session = ask_node!(self, operation, Object::Node(node), Request::Reach { node, owner });
        match session.command(operation, Object::Node(node), Command::Reach { node, owner }).await? {
            Outcome::Reach(reach) => Ok(reach),
            _ => unreachable!("the command returns a reach"),
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
        let session = ask_node!(self, "status", Object::All("nodes"), Request::Status);
        match session.command("status", Object::All("nodes"), Command::Status).await? {
            Outcome::Status(nodes) => Ok(nodes),
            _ => unreachable!("the command returns a status"),
        }
    }

    /// Lists the sessions that are attached to this session's node ([`Session::attach`]), in the order in which they
    /// attached. An attached session of a user other than the node's lists only the sessions of its own principal.
    pub async fn sessions(&self) -> Result<Vec<AttachedSession>, RegionError> {
        let session = ask_node!(self, "list", Object::All("sessions"), Request::Sessions);
        let driver = &session.inner.driver;
        if driver.is_forked() {
            return Err(Object::All("sessions").failed("list", RegionCause::Forked));
        }
        Ok(driver.shared.attached.list())
    }

    /// Lists the resource use of each principal on this session's node, with its quotas, ordered by principal. The list
    /// contains principals with attached sessions, and principals of regions whose home is the node. An attached
    /// session of a user other than the node's lists only its own principal.
    pub async fn principals(&self) -> Result<Vec<PrincipalUse>, RegionError> {
        let session = ask_node!(self, "list", Object::All("principals"), Request::Principals);
        let driver = &session.inner.driver;
        if driver.is_forked() {
            return Err(Object::All("principals").failed("list", RegionCause::Forked));
        }
        let regions = driver.look(|runner| runner.engine().map(Engine::region_use).cloned());
        Ok(driver.shared.attached.principals(&regions.unwrap_or_default()))
    }

    /// Returns the length in bytes of the region behind a handle.
    pub fn len(&self, lh: Lh) -> Result<u64, AccessError> {
        let session = embedded!(self, client => client.block_on(client.len(lh)));
        session.inner.len(lh)
    }
}

/// Commands of a session to its node.
impl Embedded {
    /// Asks the directory for the number of a permanent node. The directory assigns each number only once.
    pub(crate) async fn take_number(&self) -> Result<NodeId, RegionError> {
        match self.command("number", Object::All("nodes"), Command::TakeNumber).await? {
            Outcome::Number(number) => Ok(number),
            _ => unreachable!("the command returns a number"),
        }
    }

    /// Describes one node; returns `None` if the node is unknown.
    pub(crate) async fn status_of(&self, node: NodeId) -> Option<NodeStatus> {
        match self.command("status", Object::Node(node), Command::StatusOf(node)).await {
            Ok(Outcome::Status(nodes)) => nodes.into_iter().next(),
            _ => None,
        }
    }

    /// Waits until the directory and all paired nodes have replied, or are lost.
    pub(crate) async fn greet(&self) {
        let _ = self.command("greet", Object::All("nodes"), Command::Greet).await;
    }

    async fn region_command(
        &self,
        operation: &'static str,
        lh: Lh,
        order: RegionCommand,
    ) -> Result<(), RegionError> {
        self.check_handle(operation, lh)?;
        self.command_on(operation, lh, Command::RegionCommand(lh.slot, order)).await
    }

    async fn command_on(&self, operation: &'static str, lh: Lh, command: Command) -> Result<(), RegionError> {
        self.command(operation, Object::Handle(self, lh), command).await.map(|_| ())
    }

    async fn command_for_handle(
        &self,
        operation: &'static str,
        object: Object<'_>,
        command: Command,
    ) -> Result<Lh, RegionError> {
        match self.command(operation, object, command).await? {
            Outcome::Mapped { slot, .. } => Ok(Lh { slot, session: self.inner.tag }),
            _ => unreachable!("the command returns a handle"),
        }
    }

    async fn command(
        &self,
        operation: &'static str,
        object: Object<'_>,
        command: Command,
    ) -> Result<Outcome, RegionError> {
        // The directory of names, usually at node 0, serves these commands.
        let by_name = matches!(
            &command,
            Command::Alloc { name: Some(_), .. }
                | Command::Map { .. }
                | Command::Stat(_)
                | Command::List { .. }
                | Command::RegionCommand(_, RegionCommand::SetName { .. })
                | Command::ListLost
                | Command::ForgetName(_)
                | Command::ForgetNode(_)
                | Command::TakeNumber
        );
        let changes_nothing = matches!(
            &command,
            Command::Map { .. } | Command::Stat(_) | Command::List { .. } | Command::ListLost
        );
        let ending = CommandFuture::new(&self.inner, command).await;
        ending.map_err(|error| {
            let cause = RegionCause::from(error);
            let cause = if by_name { self.directory_cause(cause, changes_nothing) } else { cause };
            object.failed(operation, cause)
        })
    }

    /// Returns the cause of a failed request to the directory: if node 0 does not answer, names are not available. A
    /// request that changes nothing, such as a map without an answer, has done nothing.
    pub(crate) fn directory_cause(&self, cause: RegionCause, changes_nothing: bool) -> RegionCause {
        let maybe_done = match cause {
            RegionCause::PeerDown(NodeId::FIRST) => !changes_nothing,
            RegionCause::NotMet(NodeId::FIRST) => false,
            cause => return cause,
        };
        match self.inner.driver.out_of_reach(NodeId::FIRST) {
            Some(OutOfReach { silent }) => RegionCause::DirectoryUnreachable { maybe_done, silent },
            None => RegionCause::DirectoryDown,
        }
    }

    pub(crate) fn check_handle(&self, operation: &'static str, lh: Lh) -> Result<(), RegionError> {
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

/// The object of an operation, as errors name it.
pub(super) enum Object<'a> {
    Name(&'a str),
    Unnamed(u64),
    Handle(&'a Embedded, Lh),
    /// A handle of an attached session, whose node is unreachable.
    Slot(Lh),
    All(&'static str),
    Node(NodeId),
}

impl<'a> Object<'a> {
    fn new(name: Option<&'a str>, len: u64) -> Object<'a> {
        name.map_or(Object::Unnamed(len), Object::Name)
    }

    #[cold]
    pub(super) fn failed(&self, operation: &'static str, cause: RegionCause) -> RegionError {
        let object = match self {
            Object::Name(name) => format!("region {name:?}"),
            Object::Unnamed(len) => format!("a region of {len} bytes without a name"),
            Object::Handle(session, lh) => session.inner.describe(*lh),
            Object::Slot(lh) => describe_slot(*lh),
            Object::All(what) => (*what).to_owned(),
            Object::Node(node) => format!("node {node}"),
        };
        RegionError { operation, object, cause }
    }
}

fn names_not_moved(reason: &str) -> RegionError {
    Object::All("names").failed("move", RegionCause::NamesNotMoved(reason.to_owned()))
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
