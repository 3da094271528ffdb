//! The sessions of other processes that are attached to a node, and the resource use of their principals.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use halite_tier::quota::{Amounts, Quota, QuotaExceeded, RegionUse};
use serde::{Deserialize, Serialize};

/// A session that is attached to a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AttachedSession {
    /// Name of the principal as which the session acts.
    pub principal: String,
    /// Id of the process that attached the session, in the process numbering of the node's host.
    pub pid: u32,
    /// Number of operations in progress.
    pub operations: u64,
    /// Memory of the node that the session's requests and unsent replies use, in bytes.
    pub bytes: u64,
    /// Why a Unix socket carries the requests, as text; `None` if they pass through memory that the client shares with
    /// the node.
    pub socket_reason: Option<String>,
}

/// Resource use of a principal on a node, with the quotas that limit it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PrincipalUse {
    /// Name of the principal.
    pub principal: String,
    /// Resource use of the principal's attached sessions and of its regions whose home is the node.
    pub used: Amounts,
    /// Quota of each resource; [`Amounts::UNLIMITED`] for the user who runs the node.
    pub max: Amounts,
}

/// Total resource use of the attached sessions of one principal. Only the thread that serves the sessions changes it.
#[derive(Debug)]
pub(crate) struct Account {
    used: [AtomicU64; Quota::ALL.len()],
    max: Amounts,
}

impl Account {
    fn used(&self) -> Amounts {
        Quota::ALL.into_iter().fold(Amounts::default(), |amounts, quota| {
            amounts.with(quota, self.used[quota as usize].load(Relaxed))
        })
    }

    /// Checks that the principal may use `more` additional units of a resource.
    pub(crate) fn admit(&self, quota: Quota, more: u64) -> Result<(), QuotaExceeded> {
        self.used().admit(quota, more, &self.max)
    }

    /// Returns how many more units of a resource the principal may use.
    pub(crate) fn room(&self, quota: Quota) -> u64 {
        self.max.of(quota).saturating_sub(self.used().of(quota))
    }

    /// Returns true if the principal uses its whole quota of a resource, or more.
    pub(crate) fn is_exhausted(&self, quota: Quota) -> bool {
        self.used[quota as usize].load(Relaxed) >= self.max.of(quota)
    }

    /// Counts a change of an amount from `old` to `new`.
    pub(crate) fn change(&self, quota: Quota, old: u64, new: u64) {
        // The amount is a sum of counts, and includes `old`.
        self.used[quota as usize].fetch_add(new.wrapping_sub(old), Relaxed);
    }
}

/// The attached sessions of a node, by the number of their connection, and the accounts of their principals.
#[derive(Debug, Default)]
pub(crate) struct AttachedSessions {
    /// Numbers of operations that were started, and of requests that were refused.
    counts: [AtomicU64; 2],
    sessions: Mutex<BTreeMap<u64, AttachedSession>>,
    /// Accounts with sessions, by principal; true for the account of the node's own user.
    accounts: Mutex<BTreeMap<(String, bool), Weak<Account>>>,
}

impl AttachedSessions {
    fn sessions(&self) -> MutexGuard<'_, BTreeMap<u64, AttachedSession>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accounts(&self) -> MutexGuard<'_, BTreeMap<(String, bool), Weak<Account>>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the state of a session; with `None`, removes the session.
    pub(crate) fn set(&self, connection: u64, session: Option<AttachedSession>) {
        match session {
            Some(session) => drop(self.sessions().insert(connection, session)),
            None => drop(self.sessions().remove(&connection)),
        }
    }

    /// Adds to the counts of operations that were started, and of requests that were refused because of a quota.
    pub(crate) fn count(&self, [started, refused]: [u64; 2]) {
        self.counts[0].fetch_add(started, Relaxed);
        self.counts[1].fetch_add(refused, Relaxed);
    }

    /// Returns the numbers of operations that were started, and of requests that were refused.
    pub(crate) fn counts(&self) -> [u64; 2] {
        [0, 1].map(|of: usize| self.counts[of].load(Relaxed))
    }

    /// Updates the figures of a session.
    pub(crate) fn update(&self, connection: u64, operations: u64, bytes: u64) {
        if let Some(session) = self.sessions().get_mut(&connection) {
            (session.operations, session.bytes) = (operations, bytes);
        }
    }

    pub(crate) fn list(&self) -> Vec<AttachedSession> {
        self.sessions().values().cloned().collect()
    }

    /// Returns the account of a principal; without `max`, that of the node's own user, which has no quotas.
    pub(crate) fn account(&self, principal: &str, max: Option<&Amounts>) -> Arc<Account> {
        let mut accounts = self.accounts();
        accounts.retain(|_, account| account.strong_count() > 0);
        let place = accounts.entry((principal.to_owned(), max.is_none())).or_default();
        place.upgrade().unwrap_or_else(|| {
            let max = max.copied().unwrap_or(Amounts::UNLIMITED);
            let account = Arc::new(Account { used: Default::default(), max });
            *place = Arc::downgrade(&account);
            account
        })
    }

    /// Returns the resource use of each principal, ordered by principal: that of its attached sessions and of its
    /// `regions`.
    pub(crate) fn principals(&self, regions: &RegionUse) -> Vec<PrincipalUse> {
        let accounts = self.accounts();
        let of = |((principal, _), account): (&(String, bool), &Weak<Account>)| {
            let account = account.upgrade()?;
            Some(PrincipalUse { principal: principal.clone(), used: account.used(), max: account.max })
        };
        let mut found: Vec<PrincipalUse> = accounts.iter().filter_map(of).collect();
        for (principal, used) in regions.used() {
            let place = match found.iter_mut().find(|of| *of.principal == *principal.0) {
                Some(of) => of,
                None => {
                    let (principal, max) = (principal.to_string(), *regions.max());
                    found.push(PrincipalUse { principal, used: *used, max });
                    continue;
                }
            };
            for quota in [Quota::Regions, Quota::RegionBytes] {
                place.used.set(quota, used.of(quota));
            }
        }
        found.sort_by(|one, other| one.principal.cmp(&other.principal));
        found
    }
}
