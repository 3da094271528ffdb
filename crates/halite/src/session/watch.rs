//! Watching: writes that notify the watchers of a region.
//!
//! ```text
//!   writer                      home of the region              watcher
//!                                 list of ports  <── Watch ────── watch: opens a port
//!   write (one-sided)
//!   ListWatchers ───────────────>
//!   <──────────────── Watchers ┘
//!   message to each port ───────────────────────────────────────> recv
//! ```
//!
//! The bytes have landed before the writer sends the first message. A watch ends with the handle from which it was
//! made.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use halite_tier::access::Blocked;
use halite_tier::effect::{Command, Outcome};
use halite_tier::engine::Engine;
use halite_tier::ids::{NodeId, NodeIncarnation, RegionId};
use halite_tier::message::NodeState;
use halite_tier::permissions::Permissions;
use serde::{Deserialize, Serialize};

use crate::driver::runner::Runner;
use crate::error::{
    AccessCause, AccessError, Gone, NotifyCause, NotifyError, RegionCause, RegionError, SendCause, SendError,
    ServeCause, ServeError,
};
use crate::rpc::ServeOptions;
use crate::runtime::wait::join_all;
use crate::session::attached::Remote;
use crate::session::attached::wire::Request;
use crate::session::calls::{Mailbox, Message, Port};
use crate::session::regions::Object;
use crate::session::{CommandFuture, Embedded, Inner, Lh, Session, describe_slot, embedded};

/// Maximum number of notifications in a watch's queue; when it is full, writers wait.
pub const NOTIFICATIONS_MAX: usize = 256;

/// Maximum wait for a watcher's node that this node does not know yet; a shorter lease limits it further. This node
/// notices a new connection within microseconds. The longer limit covers a dead node that this node has already
/// forgotten, while the region's home still lists its watcher.
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(1);

/// A notification of a write to a watched region.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Notification {
    /// Offset of the written bytes in the region.
    pub offset: u64,
    /// Number of written bytes.
    pub len: u64,
    /// The value that the writer passed to [`Session::write_notify`].
    pub value: u64,
    /// Principal of the session that wrote.
    pub from: String,
    /// Node of the session that wrote.
    pub node: NodeId,
}

/// A notification as the writer sends it to a watcher.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct SentNotification {
    region: RegionId,
    offset: u64,
    len: u64,
    value: u64,
}

/// A watched region. Dropping it ends the watch and discards notifications that were not received.
///
/// ```
/// # use halite::{Config, Node, NodeId, Permissions, Placement};
/// # let dir = std::env::temp_dir().join(format!("halite-doc-watch-{}", std::process::id()));
/// # let node = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
/// let session = node.blocking_session();
/// let board = session.alloc(Some("board"), 64, Placement::Local, Permissions::READ)?;
/// let watch = session.watch(board)?;
/// session.write_notify(board, 8, b"salt", 7)?;
///
/// let notification = watch.recv()?;
/// assert_eq!((notification.offset, notification.len, notification.value), (8, 4, 7));
/// # drop((watch, session, node));
/// # std::fs::remove_dir_all(dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Watch {
    watching: Watching,
}

#[derive(Debug)]
enum Watching {
    Local(LocalWatch),
    /// The node of an attached session watches.
    Remote(Remote),
}

/// A watch that this process's node manages.
#[derive(Debug)]
struct LocalWatch {
    session: Embedded,
    lh: Lh,
    region: RegionId,
    port: Port,
    mailbox: Mailbox,
}

/// Watches and notifying writes.
impl Session {
    /// Watches a region. After this returns, each [`Session::write_notify`] to the region sends the watch a
    /// notification. Needs [`READ`](crate::Permissions::READ).
    pub async fn watch(&self, lh: Lh) -> Result<Watch, RegionError> {
        let session = embedded!(self, client => {
            let lost = |gone: Gone| Object::Slot(lh).failed("watch", gone.into());
            Ok(Watch { watching: Watching::Remote(Remote::open(client, &Request::Watch(lh), lost).await?) })
        });
        Ok(Watch { watching: Watching::Local(session.watch(lh).await?) })
    }

    /// Writes `from` at `offset`, then notifies all watchers of the region. The application defines the meaning of
    /// `value`, which each notification carries. Needs [`WRITE`](crate::Permissions::WRITE).
    ///
    /// Returns when the notification is in the queue of every watcher, so a slow watcher delays the writer. Ignores
    /// watches that have ended and watchers whose nodes are gone. Notifications of one writer arrive in order. Costs
    /// the write and one request to the region's home, even without watchers, because a cached list would miss new
    /// watchers. If the future is dropped, any part of the bytes may have been written, and some watchers notified. A
    /// thread that receives from its own watch must not fill that watch's queue.
    pub async fn write_notify(
        &self,
        lh: Lh,
        offset: u64,
        from: &[u8],
        value: u64,
    ) -> Result<(), NotifyError> {
        let len = from.len() as u64;
        match self.write(lh, offset, from).await {
            Ok(()) => self.notify_of(lh, offset, len, value).await,
            Err(AccessError { region, cause, partly, .. }) => {
                Err(NotifyError { region, offset, len, cause: NotifyCause::Write { cause, partly } })
            }
        }
    }

    /// Notifies the watchers of a region that `len` bytes from `offset` were written.
    pub(crate) async fn notify_of(
        &self,
        lh: Lh,
        offset: u64,
        len: u64,
        value: u64,
    ) -> Result<(), NotifyError> {
        let session = embedded!(self, client => {
            client.ask(&Request::Notify { lh, offset, len, value }, |gone| {
                let cause = NotifyCause::Watchers(gone.into());
                NotifyError { region: describe_slot(lh), offset, len, cause }
            }).await
        });
        let notified = session.notify_watchers(lh, offset, len, value).await;
        notified.map_err(|cause| NotifyError { region: session.inner.describe(lh), offset, len, cause })
    }
}

impl Embedded {
    async fn watch(&self, lh: Lh) -> Result<LocalWatch, RegionError> {
        let failed = |cause| self.failed_on("watch", lh, cause);
        let checked = self.inner.check("watch", lh, Permissions::READ, 0, 0).await;
        checked.map_err(|error| failed(region_cause(error.cause)))?;
        let (port, mailbox) = self.open_watch_port().map_err(|_| failed(self.inner.closed_region_cause()))?;
        let begun = CommandFuture::new(&self.inner, Command::Watch { slot: lh.slot, port: port.0 }).await;
        match begun {
            Ok(Outcome::Watching { region }) => {
                Ok(LocalWatch { session: self.clone(), lh, region, port, mailbox })
            }
            Ok(_) => unreachable!("the command returns a watch"),
            Err(error) => Err(failed(error.into())),
        }
    }

    async fn notify_watchers(&self, lh: Lh, offset: u64, len: u64, value: u64) -> Result<(), NotifyCause> {
        let (region, watchers) = match CommandFuture::new(&self.inner, Command::ListWatchers(lh.slot)).await {
            Ok(Outcome::Watchers { region, watchers }) => (region, watchers),
            Ok(_) => unreachable!("the command returns watchers"),
            Err(error) => return Err(NotifyCause::Watchers(error.into())),
        };
        let encoded = postcard::to_stdvec(&SentNotification { region, offset, len, value });
        let bytes = encoded.expect("numbers can be encoded");
        // Concurrently: a slow watcher delays the writer, but not the other watchers.
        let notifications =
            watchers.into_iter().map(|(incarnation, port)| self.notify(incarnation, Port(port), &bytes));
        match join_all(notifications).await.into_iter().find_map(Result::err) {
            Some(SendError { node, cause, may_have_arrived, .. }) => {
                Err(NotifyCause::Telling { node, cause, may_have_arrived })
            }
            None => Ok(()),
        }
    }

    async fn notify(&self, incarnation: NodeIncarnation, port: Port, bytes: &[u8]) -> Result<(), SendError> {
        let driver = &self.inner.driver;
        let lease_ns = driver.look(|runner| runner.engine().map_or(0, Engine::lease_ns));
        let timeout = CONNECT_TIMEOUT_MAX.min(Duration::from_nanos(lease_ns));
        if !driver.within(timeout, self.connect_to(incarnation)).await.unwrap_or(false) {
            // The watcher's node has left since the home listed it, or this node cannot reach it.
            return Ok(());
        }
        match self.send_to_any_port(incarnation.node, port, bytes).await {
            Err(SendError {
                cause:
                    SendCause::UnknownPort | SendCause::PeerDown | SendCause::NotMet | SendCause::UnknownNode,
                ..
            }) => Ok(()),
            notified => notified,
        }
    }

    /// Waits until a node is connected or known to be gone. Returns true if it is connected. The wait is needed because
    /// a node that has just joined may watch a region before this node has noticed its connection.
    async fn connect_to(&self, incarnation: NodeIncarnation) -> bool {
        let driver = &self.inner.driver;
        let is_unconnected =
            |runner: &Runner| runner.engine().is_some_and(|it| it.is_unconnected(incarnation.node));
        if driver.look(is_unconnected) {
            driver.connect(incarnation.node).await;
            return driver.look(|runner| runner.incarnation_of(incarnation.node)) == Some(incarnation);
        }
        loop {
            let seen = driver.shared.member_changes.count();
            let connected =
                driver.look(|runner| runner.engine().map_or(Some(true), |it| is_connected(it, incarnation)));
            if let Some(connected) = connected {
                return connected;
            }
            driver.shared.member_changes.wait(seen).await;
        }
    }

    fn open_watch_port(&self) -> Result<(Port, Mailbox), ServeError> {
        let options = ServeOptions { requests_max: NOTIFICATIONS_MAX, ..ServeOptions::default() };
        loop {
            // Random, since a counter would be global state; a number repeats once in 2^31 times.
            let port = Port(Port::RESERVED_MIN.0 | self.inner.driver.env().random() as u32);
            match self.open_any_port(port, options.clone()) {
                Err(ServeError { cause: ServeCause::Taken { .. }, .. }) => {}
                opened => return opened.map(|mailbox| (port, mailbox)),
            }
        }
    }
}

/// Returns `Some(true)` if a node is connected, `Some(false)` if it is known to be out of reach, otherwise `None`.
fn is_connected(engine: &Engine, incarnation: NodeIncarnation) -> Option<bool> {
    if engine.incarnation_of(incarnation.node) == Some(incarnation) {
        return Some(true);
    }
    let known = engine.known_peer(0, incarnation.node).filter(|known| known.incarnation == incarnation)?;
    let is_out_of_reach = |state| {
        matches!(state, NodeState::Silent | NodeState::Unreachable | NodeState::Dead | NodeState::Left)
    };
    is_out_of_reach(known.state).then_some(false)
}

impl Watch {
    /// Receives the next notification. A later read of the notified bytes returns them as the writer wrote them, or as
    /// a later write of any session left them.
    ///
    /// Fails when the watch has ended, after all earlier notifications have been received: the region was freed, its
    /// handle was unmapped, its home is down, or the right to read was revoked. If the node leaves, pending
    /// notifications are lost. If the future is dropped, no notification is lost.
    pub async fn recv(&self) -> Result<Notification, RegionError> {
        match &self.watching {
            Watching::Local(watch) => watch.recv().await,
            Watching::Remote(remote) => {
                let received = remote.recv(&Request::RecvNotification(remote.id()), watch_error).await;
                received.map(|answer| answer.value)
            }
        }
    }

    /// Returns the next notification; returns `None` if none is queued. Fails as [`Watch::recv`] does.
    pub fn try_recv(&self) -> Result<Option<Notification>, RegionError> {
        match &self.watching {
            Watching::Local(watch) => watch.try_recv(),
            Watching::Remote(remote) => {
                let received = remote.try_recv(&Request::TryRecvNotification(remote.id()), watch_error)?;
                Ok(received.map(|answer| answer.value))
            }
        }
    }

    /// Ends the watch of a session of this process; receives in progress then fail.
    pub(crate) fn close(&self) {
        if let Watching::Local(watch) = &self.watching {
            watch.mailbox.close();
        }
    }

    /// Runs a future on this thread, as the watch's session does.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        match &self.watching {
            Watching::Local(watch) => watch.inner().driver.block_on(future),
            Watching::Remote(remote) => remote.client().block_on(future),
        }
    }
}

/// The error of a watch whose node is gone.
fn watch_error(gone: Gone) -> RegionError {
    RegionError { operation: "watch", object: "a region".to_owned(), cause: gone.into() }
}

impl LocalWatch {
    async fn recv(&self) -> Result<Notification, RegionError> {
        loop {
            // Read before the check, so that no change during the check is missed.
            let seen = self.inner().driver.shared.handle_changes.count();
            if let Some(notification) = self.try_recv()? {
                return Ok(notification);
            }
            if let Some(message) = self.message_or_change(seen).await
                && let Some(notification) = self.decode(message?)
            {
                return Ok(notification);
            }
        }
    }

    fn try_recv(&self) -> Result<Option<Notification>, RegionError> {
        while let Some(message) = self.mailbox.try_recv().map_err(|error| self.closed(error))? {
            if let Some(notification) = self.decode(message) {
                return Ok(Some(notification));
            }
        }
        self.check().map(|()| None)
    }

    /// Returns the next message, or `None` if the handle changes first.
    async fn message_or_change(&self, seen: u64) -> Option<Result<Message, RegionError>> {
        let mut message = pin!(self.mailbox.recv());
        let mut change = pin!(self.inner().driver.shared.handle_changes.wait_for(seen, self.lh.slot.index));
        poll_fn(|context| match message.as_mut().poll(context) {
            Poll::Ready(message) => Poll::Ready(Some(message.map_err(|error| self.closed(error)))),
            Poll::Pending => change.as_mut().poll(context).map(|()| None),
        })
        .await
    }

    /// Decodes a notification. Returns `None` for a malformed one, which only a faulty node sends.
    fn decode(&self, message: Message) -> Option<Notification> {
        let Message { from, node, bytes } = message;
        let SentNotification { region, offset, len, value } = postcard::from_bytes(&bytes).ok()?;
        (region == self.region).then_some(Notification { offset, len, value, from, node })
    }

    /// Checks that the handle still refers to a readable region.
    fn check(&self) -> Result<(), RegionError> {
        let inner = self.inner();
        if inner.driver.is_forked() {
            return Err(self.failed(RegionCause::Forked));
        }
        match inner.path.locate(inner.id, self.lh.slot, Permissions::READ, 0, 1) {
            Ok(_) | Err(Blocked::Changing | Blocked::Post { .. }) => Ok(()),
            Err(blocked) => Err(self.failed(region_cause(inner.cause_of(blocked, 0, 0)))),
        }
    }

    fn closed(&self, _: ServeError) -> RegionError {
        // No other watch uses the port, so only the end of the node or of this watch can close it.
        let (inner, driver) = (self.inner(), &self.inner().driver);
        let is_over = driver.is_closed() || driver.is_forked();
        self.failed(if is_over { inner.closed_region_cause() } else { RegionCause::UnknownHandle })
    }

    fn failed(&self, cause: RegionCause) -> RegionError {
        RegionError { operation: "watch", object: format!("region {}", self.region), cause }
    }

    fn inner(&self) -> &Inner {
        &self.session.inner
    }
}

/// Converts the cause of a failed access to zero bytes into the cause of a failed watch.
fn region_cause(cause: AccessCause) -> RegionCause {
    match cause {
        AccessCause::Stale => RegionCause::Stale,
        AccessCause::ForeignHandle => RegionCause::ForeignHandle,
        AccessCause::UnknownHandle => RegionCause::UnknownHandle,
        AccessCause::PermissionDenied { missing } => RegionCause::PermissionDenied { missing },
        AccessCause::PeerDown(node) | AccessCause::LinkLost(node) => RegionCause::PeerDown(node),
        AccessCause::Sealed => RegionCause::Sealed,
        AccessCause::NodeClosed(node) => RegionCause::NodeClosed(node),
        AccessCause::Forked => RegionCause::Forked,
        AccessCause::OutOfRange { .. }
        | AccessCause::Overflow
        | AccessCause::Unaligned { .. }
        | AccessCause::Unmapped(_)
        | AccessCause::UnmappedBy { .. }
        | AccessCause::NoStaging
        | AccessCause::Quota(_) => unreachable!("no byte is accessed"),
    }
}

impl Drop for LocalWatch {
    fn drop(&mut self) {
        // A node that has left or failed is on no list of watchers.
        if self.inner().driver.is_closed() {
            return;
        }
        // Closed before the home knows, so that no writer waits for room in a queue without a reader.
        self.mailbox.close();
        let unwatch = Command::Unwatch { region: self.region, port: self.port.0 };
        drop(CommandFuture::submit(&self.session.inner, unwatch));
    }
}
