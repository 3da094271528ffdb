//! Quotas: what one principal may have of a node's resources.
//!
//! The engine counts the regions of each principal whose home is its node ([`RegionUse`]). The node that serves attached
//! sessions counts everything else.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::Principal;

/// A resource of a node that principals share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Quota {
    /// Attached sessions.
    Sessions,
    /// Memory for requests under way, and for replies that their client has not received, in bytes.
    Memory,
    /// Operations under way.
    Operations,
    /// Waits for a word, which the node polls.
    Waits,
    /// Handles, locks, barriers, watches, functions, ports, senders, and received calls without an answer.
    Objects,
    /// Functions and ports.
    Services,
    /// Regions whose home is the node, including locks and barriers.
    Regions,
    /// Length of these regions in bytes.
    RegionBytes,
}

impl Quota {
    /// All quotas, in the order of their numbers.
    pub const ALL: [Quota; 8] = [
        Quota::Sessions,
        Quota::Memory,
        Quota::Operations,
        Quota::Waits,
        Quota::Objects,
        Quota::Services,
        Quota::Regions,
        Quota::RegionBytes,
    ];

    /// Returns the name of the quota in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Quota::Sessions => "sessions",
            Quota::Memory => "memory",
            Quota::Operations => "operations",
            Quota::Waits => "waits",
            Quota::Objects => "objects",
            Quota::Services => "services",
            Quota::Regions => "regions",
            Quota::RegionBytes => "region_bytes",
        }
    }

    /// Returns true if the quota counts bytes.
    pub fn is_bytes(self) -> bool {
        matches!(self, Quota::Memory | Quota::RegionBytes)
    }
}

/// An amount of each resource: what a principal uses, or may use at most.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Amounts([u64; Quota::ALL.len()]);

impl Amounts {
    /// Maximum amounts: no limit.
    pub const UNLIMITED: Amounts = Amounts([u64::MAX; Quota::ALL.len()]);

    /// Returns the amount of a resource, as a count or in bytes.
    pub fn of(&self, quota: Quota) -> u64 {
        self.0[quota as usize]
    }

    /// Sets the amount of a resource.
    pub const fn set(&mut self, quota: Quota, amount: u64) {
        self.0[quota as usize] = amount;
    }

    /// Returns these amounts with another one of a resource.
    pub const fn with(mut self, quota: Quota, amount: u64) -> Amounts {
        self.set(quota, amount);
        self
    }

    /// Checks that a principal that uses these amounts may use `more` of a resource under the limits of `max`.
    pub fn admit(&self, quota: Quota, more: u64, max: &Amounts) -> Result<(), QuotaExceeded> {
        let (used, max) = (self.of(quota), max.of(quota));
        match used.checked_add(more).is_some_and(|wanted| wanted <= max) {
            true => Ok(()),
            false => Err(QuotaExceeded { quota, asked: more, max }),
        }
    }
}

/// A principal asked for more than its quota. The request had no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QuotaExceeded {
    /// The quota.
    pub quota: Quota,
    /// What was asked for, in addition to what the principal has: a count, or bytes.
    pub asked: u64,
    /// The maximum of the principal.
    pub max: u64,
}

impl fmt::Display for QuotaExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QuotaExceeded { quota, asked, max } = *self;
        let unit = if quota.is_bytes() { " bytes" } else { "" };
        write!(
            f,
            "{asked}{unit} more exceed this principal's quota `{}` of {max}{unit} at the node; free some, or let the user who runs the node raise it",
            quota.name()
        )
    }
}

/// The regions whose home is a node, by the principal that made them. Regions of the node's own principal count nowhere.
#[derive(Clone, Debug)]
pub struct RegionUse {
    /// Maximum amounts of each other principal.
    max: Amounts,
    own: Option<Principal>,
    used: BTreeMap<Principal, Amounts>,
}

impl Default for RegionUse {
    fn default() -> RegionUse {
        RegionUse { max: Amounts::UNLIMITED, own: None, used: BTreeMap::new() }
    }
}

impl RegionUse {
    /// Sets the limits of all principals but `own`.
    pub fn limit(&mut self, own: Principal, max: Amounts) {
        (self.own, self.max) = (Some(own), max);
    }

    /// Returns the maximum amounts of each principal that has quotas.
    pub fn max(&self) -> &Amounts {
        &self.max
    }

    /// Counts a new region of `len` bytes, if the quotas of its maker allow it.
    pub fn take(&mut self, maker: &Principal, len: u64) -> Result<(), QuotaExceeded> {
        if self.own.as_ref() != Some(maker) {
            let used = self.used.get(maker).copied().unwrap_or_default();
            used.admit(Quota::Regions, 1, &self.max)?;
            used.admit(Quota::RegionBytes, len, &self.max)?;
        }
        self.add(maker, len);
        Ok(())
    }

    /// Counts a region whose home is the node now, whatever the quotas.
    pub fn add(&mut self, maker: &Principal, len: u64) {
        if self.own.as_ref() != Some(maker) {
            let used = self.used.entry(maker.clone()).or_default();
            used.set(Quota::Regions, used.of(Quota::Regions) + 1);
            used.set(Quota::RegionBytes, used.of(Quota::RegionBytes).saturating_add(len));
        }
    }

    /// Counts a region that was counted before no more.
    pub fn give_back(&mut self, maker: &Principal, len: u64) {
        let Some(used) = self.used.get_mut(maker) else { return };
        used.set(Quota::Regions, used.of(Quota::Regions) - 1);
        used.set(Quota::RegionBytes, used.of(Quota::RegionBytes).saturating_sub(len));
        if used.of(Quota::Regions) == 0 {
            self.used.remove(maker);
        }
    }

    /// Returns what each principal uses, ordered by principal.
    pub fn used(&self) -> &BTreeMap<Principal, Amounts> {
        &self.used
    }
}
