//! Locks: one session of the cluster at a time holds a lock.
//!
//! ```text
//!  Idle ── lock ──> Busy ── free, or granted ──> Held ── unlock, or the guard's drop ──> Busy ──> Idle
//!                     └─ dropped, timeout, error: Idle
//! ```
//!
//! A lock is a word in a hidden region (`halite_tier::lockword`). If loads and stores reach the word, a session takes a
//! free lock, and releases it, by one compare-swap each, without a message. Otherwise the session asks the home, which
//! keeps the queue of waiters. The request takes one round trip, while two posted atomics would take two; and the home
//! knows each request, including those whose future was dropped.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use halite_tier::access::{Atomic, Blocked};
use halite_tier::effect::{Command, CommandError, Outcome, Release};
use halite_tier::engine::Engine;
use halite_tier::lockword::{Holder, STATE_OFFSET, TOKENS_OFFSET, token_correction};
use halite_tier::message::ErrorReply;
use halite_tier::names::Service;
use halite_tier::permissions::Permissions;
use serde::{Deserialize, Serialize};

use crate::error::{LockCause, LockError, RegionCause};
use crate::runtime::locks::{lock, ranked};
use crate::session::attached::wire::{self, Request};
use crate::session::attached::{Client, Undo};
use crate::session::{CommandFuture, Embedded, Inner, Lh, Session, Who, check_name, embedded};

/// All locks that a session has used.
pub(crate) struct Locks {
    holder: Holder,
    by_name: Mutex<BTreeMap<Box<str>, Arc<NamedLock>>>,
}

impl Locks {
    pub(crate) fn new(holder: Holder) -> Locks {
        Locks { holder, by_name: Mutex::default() }
    }
}

/// One lock, as a session uses it.
#[derive(Debug)]
struct NamedLock {
    name: Box<str>,
    state: Mutex<LockUse>,
}

ranked! {
    BTreeMap<Box<str>, Arc<NamedLock>> => SessionLocks;
    LockUse => SessionLock;
}

#[derive(Debug)]
struct LockUse {
    /// Handle of the region that holds the lock's word.
    lh: Option<Lh>,
    usage: Usage,
    /// True if the home may not have processed the cancel of an earlier request. Then the next request also goes to the
    /// home, behind the cancel, and not directly to the word.
    via_home: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Usage {
    Idle,
    /// A thread of this session is taking or releasing the lock.
    Busy,
    /// This session holds the lock, with this fencing token.
    Held(u64),
}

/// A held lock. Dropping the guard releases the lock, without waiting.
///
/// ```
/// # use halite::{Config, LockCause, Node, NodeId};
/// # let dir = std::env::temp_dir().join(format!("halite-doc-lock-{}", std::process::id()));
/// # let node = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
/// let (ada, bob) = (node.blocking_session(), node.blocking_session());
/// let first = ada.lock("ledger")?;
/// assert_eq!(bob.try_lock("ledger").unwrap_err().cause, LockCause::Held);
/// let first_token = first.token();
/// drop(first);
/// let second = bob.lock("ledger")?;
/// assert!(second.token() > first_token && !second.recovered());
/// # drop(second);
/// # drop((ada, bob, node));
/// # std::fs::remove_dir_all(dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the lock is released when its guard is dropped"]
pub struct Guard {
    lock: HeldLock,
    token: u64,
    recovered: bool,
    /// True if dropping the guard does not release the lock.
    is_disarmed: bool,
}

/// A lock that a session holds.
enum HeldLock {
    Local {
        session: Embedded,
        named: Arc<NamedLock>,
    },
    /// The node of an attached session holds it.
    Remote {
        client: Arc<Client>,
        name: Box<str>,
    },
}

/// A lock that an attached session has taken, as its node reports it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TakenLock {
    name: String,
    token: u64,
    recovered: bool,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.lock {
            HeldLock::Local { named, .. } => &named.name,
            HeldLock::Remote { name, .. } => name,
        };
        f.debug_struct("Guard").field("lock", name).field("token", &self.token).finish()
    }
}

impl Guard {
    /// Returns the fencing token, which increases with each acquisition of this lock.
    ///
    /// A resource that the lock protects can reject tokens lower than the highest that it has seen. A lower token
    /// belongs to a former holder, which lost the lock because it paused for too long.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Returns true if the previous holder died while it held the lock. The protected data may then be half changed.
    pub fn recovered(&self) -> bool {
        self.recovered
    }

    /// Checks that the guard still holds the lock; fails with [`LockCause::Lapsed`] otherwise.
    ///
    /// A guard expires one lease ([`Config::lease`](crate::Config)) after this node's last acknowledged heartbeat to
    /// the lock's home, by this node's clock. The home gives the lock to another session only after that. Call this
    /// before each step that needs exclusion: the check takes a mutex of this process, and sends no message. Accesses
    /// that began under the lock may still land at other nodes after another session has got the lock; if that matters,
    /// compare [tokens](Guard::token).
    pub fn check(&self) -> Result<(), LockError> {
        match &self.lock {
            HeldLock::Local { session, named } => {
                let kept = session.inner.check_kept(named, Some(self.token));
                kept.map_err(|cause| failed("keep", &named.name, cause))
            }
            HeldLock::Remote { client, name } => {
                client.block_on(check_remotely(client, name, Some(self.token)))
            }
        }
    }

    /// Releases the lock, and waits until it is released.
    pub async fn unlock(mut self) -> Result<(), LockError> {
        self.is_disarmed = true;
        match &self.lock {
            HeldLock::Local { session, named } => session.inner.unlock(named, Some(self.token)).await,
            HeldLock::Remote { client, name } => release_remotely(client, name, Some(self.token)).await,
        }
    }

    /// Keeps the lock after the guard is gone, until [`Session::unlock`] or the end of the session. Returns the fencing
    /// token.
    pub fn keep(mut self) -> u64 {
        self.is_disarmed = true;
        self.token
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        match &self.lock {
            _ if self.is_disarmed => {}
            HeldLock::Remote { client, name } => {
                client.tell(&Request::Unlock { name, token: Some(self.token) })
            }
            // A node that has left or failed holds no locks.
            HeldLock::Local { session, .. } if session.inner.driver.is_closed() => {}
            HeldLock::Local { session, named } => {
                // The message to the home is queued when this returns; that is enough.
                let _ = session.inner.begin_unlock(named, Some(self.token));
            }
        }
    }
}

/// Locks.
///
/// Locks have a name space of their own. The first use of a lock creates it on a permanent node. Sessions exclude each
/// other, threads of one session do not; give each thread its own session to exclude them.
///
/// If a holder dies, the lock passes to the next session that waits for it or requests it, once the holder is cut off.
/// If a holder is unreachable, the lock passes on once the holder's guard [has expired](Guard::check). If the home
/// dies, the next session creates the lock anew. The new lock does not exclude the old holder, but its tokens are still
/// higher, because tokens start at the time of day by the fastest clock that the cluster has heard of.
impl Session {
    /// Takes a lock. Waiting sessions get the lock in the order of their requests.
    ///
    /// Waits as long as other sessions hold the lock, but fails with [`LockCause::HeldBySilent`] within three leases if
    /// a holder's node is silent and cannot be cut off.
    pub async fn lock(&self, name: &str) -> Result<Guard, LockError> {
        let session = embedded!(self, client => take_remotely(client, name, Wait::Forever).await);
        Attempt::begin(session, name)?.take(true).await
    }

    /// Takes a lock if it is free; otherwise fails with [`LockCause::Held`].
    pub async fn try_lock(&self, name: &str) -> Result<Guard, LockError> {
        let session = embedded!(self, client => take_remotely(client, name, Wait::No).await);
        Attempt::begin(session, name)?.take(false).await
    }

    /// Takes a lock, or fails with [`LockCause::Timeout`] after `timeout`.
    pub async fn lock_within(&self, name: &str, timeout: Duration) -> Result<Guard, LockError> {
        let session = embedded!(self, client => take_remotely(client, name, Wait::For(timeout)).await);
        let driver = &session.inner.driver;
        let taken = driver.within(timeout, self.lock(name)).await;
        taken.unwrap_or_else(|| {
            // A node that leaves fires all timers.
            let cause = match driver.is_closed() {
                true => LockCause::Region(session.inner.closed_region_cause()),
                false => LockCause::Timeout,
            };
            Err(failed("take", name, cause))
        })
    }

    /// Checks, as [`Guard::check`] does, a lock that this session holds by a guard or has [kept](Guard::keep).
    pub fn check_lock(&self, name: &str) -> Result<(), LockError> {
        self.check_token(name, None)
    }

    /// Checks a lock as [`Session::check_lock`] does. With a `token`, checks that the guard with this token holds the
    /// lock.
    pub(crate) fn check_token(&self, name: &str, token: Option<u64>) -> Result<(), LockError> {
        let session = embedded!(self, client => client.block_on(check_remotely(client, name, token)));
        let kept = session.inner.named_lock(name).and_then(|named| session.inner.check_kept(&named, token));
        kept.map_err(|cause| failed("keep", name, cause))
    }

    /// Releases a lock that this session holds by a guard or has [kept](Guard::keep).
    pub async fn unlock(&self, name: &str) -> Result<(), LockError> {
        self.unlock_token(name, None).await
    }

    /// Releases a lock as [`Session::unlock`] does. With a `token`, releases it only if the guard with this token holds
    /// it.
    pub(crate) async fn unlock_token(&self, name: &str, token: Option<u64>) -> Result<(), LockError> {
        let session = embedded!(self, client => release_remotely(client, name, token).await);
        let named = session.inner.named_lock(name).map_err(|cause| failed("release", name, cause))?;
        session.inner.unlock(&named, token).await
    }

    /// Creates a lock. Other principals may take it only if `everyone` has [`Permissions::ATOMIC`], or after a
    /// [grant](Session::grant_lock). A lock that is created by its first use is open to all principals.
    pub async fn create_lock(&self, name: &str, everyone: Permissions) -> Result<(), LockError> {
        let failed = |cause| failed("create", name, cause);
        let session = embedded!(self, client => {
            client.ask(&Request::CreateLock { name, everyone }, |gone| failed(gone.into())).await
        });
        let named = session.inner.named_lock(name).map_err(failed)?;
        let made = session.anchor(Service::Lock, name, everyone).await;
        lock(&named.state).lh = Some(made.map_err(|cause| failed(cause.into()))?);
        Ok(())
    }

    /// Lets `who` take a lock, if `permissions` contains [`Permissions::ATOMIC`]. Needs [`Permissions::MASTER`], which
    /// the creator of the lock has.
    pub async fn grant_lock(&self, name: &str, who: Who, permissions: Permissions) -> Result<(), LockError> {
        let session = embedded!(self, client => {
            let request = Request::GrantLock { name, who, permissions };
            client.ask(&request, |gone| failed("grant", name, gone.into())).await
        });
        let master = session.lock_master("grant", name).await?;
        let granted = self.grant(master.lh, who, permissions).await;
        granted.map_err(|error| failed("grant", name, error.cause.into()))
    }

    /// Revokes permissions for a lock; a session that holds the lock keeps it. Needs [`Permissions::MASTER`].
    pub async fn revoke_lock(&self, name: &str, who: Who, permissions: Permissions) -> Result<(), LockError> {
        let session = embedded!(self, client => {
            let request = Request::RevokeLock { name, who, permissions };
            client.ask(&request, |gone| failed("revoke", name, gone.into())).await
        });
        let master = session.lock_master("revoke", name).await?;
        let revoked = self.revoke(master.lh, who, permissions).await;
        revoked.map_err(|error| failed("revoke", name, error.cause.into()))
    }

    /// Frees a lock's memory (64 bytes) and its name.
    ///
    /// The next session that uses the name creates a new lock, even while a session holds the old lock. The old lock
    /// then excludes no session, and the new tokens are higher. Needs [`Permissions::MASTER`].
    pub async fn free_lock(&self, name: &str) -> Result<(), LockError> {
        let session = embedded!(self, client => {
            client.ask(&Request::FreeLock(name), |gone| failed("free", name, gone.into())).await
        });
        let master = session.lock_master("free", name).await?;
        let freed = self.free(master.lh).await;
        freed.map_err(|error| failed("free", name, error.cause.into()))
    }
}

impl Embedded {
    /// Asks the home to take a lock away from this session, even if the session does not hold it.
    pub(crate) async fn unlock_unheld(&self, name: &str) -> Result<(), LockError> {
        let failed = |cause| failed("release", name, cause);
        check_name(name).map_err(|cause| failed(cause.into()))?;
        let opened = self.open(Service::Lock, name, Permissions::ATOMIC).await;
        let lh = opened.map_err(|cause| failed(cause.into()))?;
        let unlock = Command::Unlock { slot: lh.slot, release: Release::Used };
        let ended = CommandFuture::new(&self.inner, unlock).await;
        self.forget(lh);
        ended.map(|_| ()).map_err(|error| failed(error.into()))
    }

    async fn lock_master(&self, operation: &'static str, name: &str) -> Result<Master, LockError> {
        let failed = |cause| failed(operation, name, cause);
        check_name(name).map_err(|cause| failed(cause.into()))?;
        self.open_master(Service::Lock, name).await.map_err(|cause| failed(cause.into()))
    }
}

fn failed(operation: &'static str, name: &str, cause: LockCause) -> LockError {
    LockError { operation, name: name.to_owned(), cause }
}

/// Maximum wait of an attempt to take a lock that another session holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Wait {
    No,
    Forever,
    For(Duration),
}

/// Locks of attached sessions.
async fn take_remotely(client: &Arc<Client>, name: &str, wait: Wait) -> Result<Guard, LockError> {
    let request = Request::Lock { name, wait };
    // A lock that is granted too late is released.
    let undo: Undo = Box::new(|reply| {
        let (taken, _) = wire::decode::<Result<TakenLock, LockError>>(reply)?;
        let TakenLock { name, token, .. } = taken.ok()?;
        Some(wire::message(0, &Request::Unlock { name: &name, token: Some(token) }, &[]))
    });
    let taken = client.ask_with(&request, &[], Some(undo), |gone| failed("take", name, gone.into())).await?;
    let TakenLock { token, recovered, .. } = taken.value;
    let lock = HeldLock::Remote { client: client.clone(), name: name.into() };
    Ok(Guard { lock, token, recovered, is_disarmed: false })
}

async fn check_remotely(client: &Client, name: &str, token: Option<u64>) -> Result<(), LockError> {
    client.ask(&Request::CheckLock { name, token }, |gone| failed("keep", name, gone.into())).await
}

async fn release_remotely(client: &Client, name: &str, token: Option<u64>) -> Result<(), LockError> {
    client.ask(&Request::Unlock { name, token }, |gone| failed("release", name, gone.into())).await
}

/// The node's side of locks of attached sessions.
impl Session {
    /// Takes a lock, and keeps it until [`Session::unlock_token`] or the end of the session.
    pub(crate) async fn take_and_keep(&self, name: &str, wait: Wait) -> Result<TakenLock, LockError> {
        let guard = match wait {
            Wait::No => self.try_lock(name).await?,
            Wait::Forever => self.lock(name).await?,
            Wait::For(timeout) => self.lock_within(name, timeout).await?,
        };
        let recovered = guard.recovered();
        Ok(TakenLock { name: name.to_owned(), token: guard.keep(), recovered })
    }
}

/// Regions of locks and barriers.
impl Embedded {
    /// Maps the region of a lock or barrier; creates the region if it does not exist.
    pub(crate) async fn open(
        &self,
        service: Service,
        name: &str,
        wanted: Permissions,
    ) -> Result<Lh, RegionCause> {
        loop {
            let map = Command::Map { name: service.region_name(name), wanted };
            match self.map_service(map).await {
                Err(RegionCause::NotFound) => {}
                other => return other,
            }
            match self.anchor(service, name, Permissions::ATOMIC).await {
                // Another session created it first.
                Err(RegionCause::NameTaken) => {}
                other => return other,
            }
        }
    }

    /// Maps the region of a lock or barrier with the rights of a master, which the handles of [`Embedded::open`] lack.
    pub(crate) async fn open_master(&self, service: Service, name: &str) -> Result<Master, RegionCause> {
        let lh = self.open(service, name, Permissions::MASTER).await?;
        Ok(Master { session: self.clone(), lh })
    }

    pub(crate) async fn anchor(
        &self,
        service: Service,
        name: &str,
        everyone: Permissions,
    ) -> Result<Lh, RegionCause> {
        self.map_service(Command::Anchor { service, name: name.to_owned(), everyone }).await
    }

    async fn map_service(&self, command: Command) -> Result<Lh, RegionCause> {
        match CommandFuture::new(&self.inner, command).await.map_err(RegionCause::from)? {
            Outcome::Mapped { slot, .. } => Ok(Lh { slot, session: self.inner.tag }),
            _ => unreachable!("the command returns a handle"),
        }
    }

    /// Unmaps a stale handle, without waiting.
    pub(crate) fn forget(&self, lh: Lh) {
        drop(CommandFuture::submit(&self.inner, Command::Unmap(lh.slot)));
    }
}

/// A handle to the region of a lock or barrier, for a single operation that needs the rights of a master.
pub(crate) struct Master {
    session: Embedded,
    pub(crate) lh: Lh,
}

impl Drop for Master {
    fn drop(&mut self) {
        self.session.forget(self.lh);
    }
}

/// An attempt to take a lock; a session has at most one at a time.
pub(crate) struct Attempt {
    session: Embedded,
    named: Arc<NamedLock>,
    /// True once the session holds the lock.
    is_disarmed: bool,
}

impl Attempt {
    pub(crate) fn begin(session: &Embedded, name: &str) -> Result<Attempt, LockError> {
        let begun = session.inner.named_lock(name).and_then(|named| {
            // A node that has left does not learn the outcome of earlier attempts.
            if session.inner.driver.is_closed() {
                return Err(LockCause::Region(session.inner.closed_region_cause()));
            }
            let mut state = lock(&named.state);
            if state.usage != Usage::Idle {
                return Err(LockCause::AlreadyHeld);
            }
            state.usage = Usage::Busy;
            drop(state);
            Ok(Attempt { session: session.clone(), named, is_disarmed: false })
        });
        begun.map_err(|cause| failed("take", name, cause))
    }

    /// Takes the lock if it is free and loads and stores reach its word; otherwise returns `None`.
    pub(crate) fn take_free(&mut self) -> Option<Guard> {
        let inner = &*self.session.inner;
        let mut state = lock(&self.named.state);
        let lh = state.lh.filter(|_| !state.via_home)?;
        let take = Atomic::CompareSwap { expected: 0, new: inner.locks.holder.state() };
        match inner.path.atomic(inner.id, lh.slot, STATE_OFFSET, take) {
            Ok(0) => {}
            Err(Blocked::Down(_) | Blocked::Stale) => {
                state.lh = None;
                drop(state);
                self.session.forget(lh);
                return None;
            }
            _ => return None,
        }
        drop(state);
        // If this fails, the home handles the request, and finds that this session holds the word.
        let token = inner.next_token(lh)?;
        Some(self.succeed(token, false))
    }

    /// Takes the lock. If another session holds it, waits if `wait` is true, and fails otherwise.
    pub(crate) async fn take(mut self, wait: bool) -> Result<Guard, LockError> {
        let taken = self.acquire(wait).await;
        taken.map_err(|cause| failed("take", &self.named.name, cause))
    }

    async fn acquire(&mut self, wait: bool) -> Result<Guard, LockCause> {
        loop {
            if let Some(guard) = self.take_free() {
                return Ok(guard);
            }
            let known = lock(&self.named.state).lh;
            let lh = match known {
                Some(lh) => lh,
                None => {
                    let lh = self.session.open(Service::Lock, &self.named.name, Permissions::ATOMIC).await?;
                    *lock(&self.named.state).lh.insert(lh)
                }
            };
            let base_ns = self.session.inner.driver.env().since_1970_ns();
            match CommandFuture::new(&self.session.inner, Command::Lock { slot: lh.slot, wait, base_ns })
                .await
            {
                Ok(Outcome::Locked { token, recovered }) => return Ok(self.succeed(token, recovered)),
                Ok(_) => unreachable!("the command returns a lock"),
                // The lock was freed, or its home restarted, since it was opened.
                Err(CommandError::Stale | CommandError::Refused(ErrorReply::NotFound)) => self.forget(lh),
                Err(error) => {
                    if let CommandError::Refused(ErrorReply::PeerDown(_) | ErrorReply::NotMet(_)) = error {
                        self.forget(lh);
                    }
                    return Err(error.into());
                }
            }
        }
    }

    fn forget(&self, lh: Lh) {
        lock(&self.named.state).lh = None;
        self.session.forget(lh);
    }

    fn succeed(&mut self, token: u64, recovered: bool) -> Guard {
        let mut state = lock(&self.named.state);
        (state.usage, state.via_home) = (Usage::Held(token), false);
        self.is_disarmed = true;
        let lock = HeldLock::Local { session: self.session.clone(), named: self.named.clone() };
        Guard { lock, token, recovered, is_disarmed: false }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.is_disarmed {
            let mut state = lock(&self.named.state);
            (state.usage, state.via_home) = (Usage::Idle, true);
        }
    }
}

impl Inner {
    fn named_lock(&self, name: &str) -> Result<Arc<NamedLock>, LockCause> {
        if self.driver.is_forked() {
            return Err(LockCause::Region(RegionCause::Forked));
        }
        let mut by_name = lock(&self.locks.by_name);
        if let Some(named) = by_name.get(name) {
            return Ok(named.clone());
        }
        check_name(name)?;
        let state = Mutex::new(LockUse { lh: None, usage: Usage::Idle, via_home: false });
        let named = Arc::new(NamedLock { name: name.into(), state });
        by_name.insert(name.into(), named.clone());
        Ok(named)
    }

    /// Returns the fencing token of a lock that this session has just taken; `None` if loads and stores do not reach
    /// the counter now.
    fn next_token(&self, lh: Lh) -> Option<u64> {
        let add = |add| self.path.atomic(self.id, lh.slot, TOKENS_OFFSET, Atomic::FetchAdd { add }).ok();
        let last = add(1)?;
        let correction = token_correction(last, || {
            let heard_ns = self.driver.look(|runner| runner.engine().map_or(0, Engine::time_of_day_ns));
            heard_ns.max(self.driver.env().since_1970_ns())
        });
        if correction > 0 {
            add(correction)?;
        }
        Some(last.wrapping_add(1).wrapping_add(correction))
    }

    async fn unlock(&self, named: &NamedLock, token: Option<u64>) -> Result<(), LockError> {
        let ended = match self.begin_unlock(named, token) {
            Ok(None) => Ok(()),
            Ok(Some(asked)) => asked.await.map(|_| ()).map_err(LockCause::from),
            Err(cause) => Err(cause),
        };
        ended.map_err(|cause| failed("release", &named.name, cause))
    }

    /// Starts to release the lock if this session holds it; with a `token`, only if the guard with this token holds it.
    /// Returns the command to wait for, if there is one. Until the word has changed or the home has been asked, no
    /// thread of this session may try to take the lock again.
    fn begin_unlock(
        &self,
        named: &NamedLock,
        token: Option<u64>,
    ) -> Result<Option<CommandFuture<'_>>, LockCause> {
        // A node that leaves has released all its locks.
        if self.driver.is_closed() {
            return Err(LockCause::Region(self.closed_region_cause()));
        }
        let mut state = lock(&named.state);
        let lh = match (state.usage, state.lh) {
            (Usage::Held(held), Some(lh)) if token.is_none_or(|token| token == held) => lh,
            _ => return Err(LockCause::NotHeld),
        };
        state.usage = Usage::Busy;
        // Submitting may wake tasks, which may run any code.
        drop(state);
        let released = self.release(lh);
        lock(&named.state).usage = Usage::Idle;
        released
    }

    /// Checks that this session still holds the lock; with a `token`, that the guard with this token still holds it.
    fn check_kept(&self, named: &NamedLock, token: Option<u64>) -> Result<(), LockCause> {
        if self.driver.is_closed() {
            return Err(LockCause::Region(self.closed_region_cause()));
        }
        let lh = match *lock(&named.state) {
            LockUse { usage: Usage::Held(held), lh: Some(lh), .. }
                if token.is_none_or(|token| token == held) =>
            {
                lh
            }
            _ => return Err(LockCause::NotHeld),
        };
        let until_ns = self.driver.look(|runner| runner.lock_is_kept_until_ns(self.id, lh.slot));
        if until_ns > Some(self.driver.now_ns()) { Ok(()) } else { Err(LockCause::Lapsed) }
    }

    fn release(&self, lh: Lh) -> Result<Option<CommandFuture<'_>>, LockCause> {
        let holder = self.locks.holder;
        let release = Atomic::CompareSwap { expected: holder.state(), new: 0 };
        match self.path.atomic(self.id, lh.slot, STATE_OFFSET, release) {
            Ok(before) if before == holder.state() => Ok(None),
            Ok(before) if Holder::of_state(before) != Some(holder) => Err(LockCause::NotHeld),
            _ => {
                let unlock = Command::Unlock { slot: lh.slot, release: Release::Used };
                Ok(Some(CommandFuture::submit(self, unlock)))
            }
        }
    }

    /// Releases all locks at the end of the session.
    pub(crate) fn abandon_locks(&self) {
        if self.driver.is_closed() {
            return;
        }
        for named in lock(&self.locks.by_name).values() {
            let state = lock(&named.state);
            if let (Usage::Held(_), Some(lh)) = (state.usage, state.lh) {
                let unlock = Command::Unlock { slot: lh.slot, release: Release::Abandoned };
                drop(CommandFuture::submit(self, unlock));
            }
        }
    }
}
