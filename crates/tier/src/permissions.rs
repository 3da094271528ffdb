//! Permissions of principals on regions.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::Principal;

bitflags::bitflags! {
    /// Permissions on one region.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Permissions: u8 {
        /// Read bytes.
        const READ = 1;
        /// Write and fill bytes.
        const WRITE = 2;
        /// Execute atomic operations (fetch-add and compare-swap) on words.
        const ATOMIC = 4;
        /// Grant, revoke, move, seal, name and free.
        const MASTER = 8;
    }
}

impl Serialize for Permissions {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.bits())
    }
}

impl<'de> Deserialize<'de> for Permissions {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bits = u8::deserialize(deserializer)?;
        Permissions::from_bits(bits).ok_or_else(|| serde::de::Error::custom("unknown permission bits"))
    }
}

impl fmt::Display for Permissions {
    /// Writes one letter for each permission present, and `-` for each absent one: `rw--`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (bit, letter) in [
            (Permissions::READ, 'r'),
            (Permissions::WRITE, 'w'),
            (Permissions::ATOMIC, 'a'),
            (Permissions::MASTER, 'm'),
        ] {
            write!(f, "{}", if self.contains(bit) { letter } else { '-' })?;
        }
        Ok(())
    }
}

/// The target of a grant or revocation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Grantee {
    /// One principal, by its name.
    Principal(Principal),
    /// All principals that are not named in the region's [`AccessList`].
    Everyone,
}

/// Maximum number of principals that a region's access list names, so that descriptions of regions stay short.
pub const NAMED_MAX: usize = 1024;

/// The permissions of all principals on one region.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AccessList {
    /// The principal that made the region.
    pub maker: Principal,
    /// Permissions of principals without an entry in `named`.
    pub everyone: Permissions,
    /// Entries sorted by principal; an entry replaces `everyone` and does not add to it.
    named: Vec<(Principal, Permissions)>,
}

impl AccessList {
    /// Creates the list of a new region: its maker has all permissions, and all other principals have `everyone`.
    pub fn new(maker: Principal, everyone: Permissions) -> AccessList {
        AccessList { everyone, named: vec![(maker.clone(), Permissions::all())], maker }
    }

    /// Returns the permissions of `principal`.
    pub fn of(&self, principal: &Principal) -> Permissions {
        match self.find(principal) {
            Ok(index) => self.named[index].1,
            Err(_) => self.everyone,
        }
    }

    /// Returns the named principals and their permissions, ordered by principal.
    pub fn named(&self) -> &[(Principal, Permissions)] {
        &self.named
    }

    /// Returns true if any principal has the permission [`Permissions::MASTER`].
    pub fn has_master(&self) -> bool {
        let named = self.named.iter().any(|(_, held)| held.contains(Permissions::MASTER));
        named || self.everyone.contains(Permissions::MASTER)
    }

    /// Returns true if the list can name `who`, or names it already.
    pub fn has_room(&self, who: &Grantee) -> bool {
        match who {
            Grantee::Everyone => true,
            Grantee::Principal(principal) => self.named.len() < NAMED_MAX || self.find(principal).is_ok(),
        }
    }

    /// Adds these permissions to those of `who`.
    pub fn grant(&mut self, who: &Grantee, permissions: Permissions) {
        self.set(who, |held| held | permissions);
    }

    /// Removes these permissions from those of `who`.
    pub fn revoke(&mut self, who: &Grantee, permissions: Permissions) {
        self.set(who, |held| held - permissions);
    }

    fn set(&mut self, who: &Grantee, change: impl FnOnce(Permissions) -> Permissions) {
        match who {
            Grantee::Everyone => self.everyone = change(self.everyone),
            Grantee::Principal(principal) => match self.find(principal) {
                Ok(index) => self.named[index].1 = change(self.named[index].1),
                Err(index) => {
                    let held = change(self.everyone);
                    self.named.insert(index, (principal.clone(), held));
                }
            },
        }
    }

    fn find(&self, principal: &Principal) -> Result<usize, usize> {
        self.named.binary_search_by(|(named, _)| named.cmp(principal))
    }
}
