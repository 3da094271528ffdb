//! Quotas: limits on the resources of a node that each principal may use.
//!
//! The engine counts each principal's regions whose home is its node ([`RegionUse`]). The part of the node that serves
//! attached sessions (sessions of other processes) counts all other resources.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::Principal;

/// A resource of a node that each principal may use up to a quota.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Quota {
    /// Number of attached sessions: sessions that other processes opened at the node.
    Sessions,
    /// Memory in bytes for outstanding operations, unread notifications, replies that the client has not received yet, and
    /// buffers.
    Memory,
    /// Number of outstanding operations.
    Operations,
    /// Number of operations that wait until a word changes. The node polls these words.
    Waits,
    /// Number of handles, locks, barriers, buffers, watches, functions, ports, senders, and received but unanswered calls.
    Objects,
    /// Number of open functions and ports.
    Services,
    /// Number of regions whose home is the node, including those of locks and barriers.
    Regions,
    /// Total length, in bytes, of the regions whose home is the node.
    RegionBytes,
}

impl Quota {
    /// All quotas, in the order of their encoding.
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

    /// Returns the quota's name in configurations.
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

    /// Returns true if the quota is in bytes, and false if it is a number of objects.
    pub fn is_bytes(self) -> bool {
        matches!(self, Quota::Memory | Quota::RegionBytes)
    }
}

/// An amount of each resource: the amounts that a principal uses, or its quotas.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Amounts([u64; Quota::ALL.len()]);

impl Amounts {
    /// The maximum amount of each resource, which means no limit.
    pub const UNLIMITED: Amounts = Amounts([u64::MAX; Quota::ALL.len()]);

    /// Returns the amount of a resource: a number of objects, or bytes.
    pub fn of(&self, quota: Quota) -> u64 {
        self.0[quota as usize]
    }

    /// Sets the amount of a resource.
    pub const fn set(&mut self, quota: Quota, amount: u64) {
        self.0[quota as usize] = amount;
    }

    /// Returns a copy of these amounts in which the amount of `quota` is `amount`.
    pub const fn with(mut self, quota: Quota, amount: u64) -> Amounts {
        self.set(quota, amount);
        self
    }

    /// Checks whether a principal that uses these amounts may use `more` of a resource. Fails if the sum exceeds the
    /// quota in `max`.
    pub fn admit(&self, quota: Quota, more: u64, max: &Amounts) -> Result<(), QuotaExceeded> {
        let (used, max) = (self.of(quota), max.of(quota));
        match used.checked_add(more).is_some_and(|wanted| wanted <= max) {
            true => Ok(()),
            false => Err(QuotaExceeded { quota, asked: more, max }),
        }
    }
}

/// The error for a request that would exceed a quota of its principal. The request had no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QuotaExceeded {
    /// The quota that the request would exceed.
    pub quota: Quota,
    /// The amount that the request needs, in addition to the amount in use: a number of objects, or bytes.
    pub asked: u64,
    /// The principal's quota: a number of objects, or bytes.
    pub max: u64,
}

impl fmt::Display for QuotaExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QuotaExceeded { quota, asked, max } = *self;
        let unit = if quota.is_bytes() { " bytes" } else { "" };
        write!(
            f,
            "{asked}{unit} more would exceed this principal's quota `{}` of {max}{unit} at the node; free some, or ask the user who runs the node to raise the quota",
            quota.name()
        )
    }
}

/// The regions whose home is a node, counted per principal that made them. Regions of the node's own principal do not
/// count.
#[derive(Clone, Debug)]
pub struct RegionUse {
    /// The quotas of each principal except the node's own.
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
    /// Sets the quotas of each principal except `own`.
    pub fn limit(&mut self, own: Principal, max: Amounts) {
        (self.own, self.max) = (Some(own), max);
    }

    /// Returns the quotas of each principal except the node's own.
    pub fn max(&self) -> &Amounts {
        &self.max
    }

    /// Counts a new region of `len` bytes for its maker. Fails if this would exceed a quota of the maker.
    pub fn take(&mut self, maker: &Principal, len: u64) -> Result<(), QuotaExceeded> {
        if self.own.as_ref() != Some(maker) {
            let used = self.used.get(maker).copied().unwrap_or_default();
            used.admit(Quota::Regions, 1, &self.max)?;
            used.admit(Quota::RegionBytes, len, &self.max)?;
        }
        self.add(maker, len);
        Ok(())
    }

    /// Counts a region that has moved to this home, even beyond the quotas of its maker.
    pub fn add(&mut self, maker: &Principal, len: u64) {
        if self.own.as_ref() != Some(maker) {
            let used = self.used.entry(maker.clone()).or_default();
            used.set(Quota::Regions, used.of(Quota::Regions) + 1);
            used.set(Quota::RegionBytes, used.of(Quota::RegionBytes).saturating_add(len));
        }
    }

    /// Stops counting a region of `len` bytes.
    pub fn give_back(&mut self, maker: &Principal, len: u64) {
        let Some(used) = self.used.get_mut(maker) else { return };
        used.set(Quota::Regions, used.of(Quota::Regions) - 1);
        used.set(Quota::RegionBytes, used.of(Quota::RegionBytes).saturating_sub(len));
        if used.of(Quota::Regions) == 0 {
            self.used.remove(maker);
        }
    }

    /// Returns the amounts that each principal uses.
    pub fn used(&self) -> &BTreeMap<Principal, Amounts> {
        &self.used
    }
}
