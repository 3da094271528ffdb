//! The known permissions on a region. While a grant or a revocation is in progress, the judge does not know whether the
//! principal has the permission. So it records the time since which the principal certainly has it, and the time until
//! which the principal may have it.

use halite::Permissions;

use super::words::NEVER;
use crate::harness::PRINCIPALS;

/// Times for which a principal has had one permission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PermissionTimes {
    /// Time until which the principal may have had it; [`NEVER`] if it may have it now.
    maybe_until_ns: u64,
    /// Time since which the principal has certainly had it; [`NEVER`] if it may not have it.
    sure_since_ns: u64,
}

/// Read and write permission of each principal.
#[derive(Clone, Debug)]
pub(crate) struct KnownPermissions {
    times: [[PermissionTimes; 2]; PRINCIPALS.len()],
}

pub(crate) const KINDS: [Permissions; 2] = [Permissions::READ, Permissions::WRITE];

impl KnownPermissions {
    /// Returns the permissions of a new region.
    pub(crate) fn new(owner: usize, everyone: Permissions) -> KnownPermissions {
        let times = |is_granted| match is_granted {
            true => PermissionTimes { maybe_until_ns: NEVER, sure_since_ns: 0 },
            false => PermissionTimes { maybe_until_ns: 0, sure_since_ns: NEVER },
        };
        let of_principal = |principal| KINDS.map(|kind| times(principal == owner || everyone.contains(kind)));
        KnownPermissions { times: std::array::from_fn(of_principal) }
    }

    fn times_mut(
        &mut self,
        principal: usize,
        kinds: Permissions,
    ) -> impl Iterator<Item = &mut PermissionTimes> {
        self.times[principal]
            .iter_mut()
            .zip(KINDS)
            .filter(move |(_, kind)| kinds.contains(*kind))
            .map(|(times, _)| times)
    }

    pub(crate) fn begin_grant(&mut self, principal: usize, kinds: Permissions) {
        self.times_mut(principal, kinds).for_each(|times| times.maybe_until_ns = NEVER);
    }

    pub(crate) fn end_grant(&mut self, principal: usize, kinds: Permissions, now_ns: u64) {
        self.times_mut(principal, kinds).for_each(|times| times.sure_since_ns = now_ns);
    }

    pub(crate) fn begin_revoke(&mut self, principal: usize, kinds: Permissions) {
        self.times_mut(principal, kinds).for_each(|times| times.sure_since_ns = NEVER);
    }

    pub(crate) fn end_revoke(&mut self, principal: usize, kinds: Permissions, now_ns: u64) {
        self.times_mut(principal, kinds).for_each(|times| times.maybe_until_ns = now_ns);
    }

    /// Returns true if `principal` may have had all of `kinds` at some time since `begin_ns`.
    pub(crate) fn may_have(&self, principal: usize, kinds: Permissions, begin_ns: u64) -> bool {
        self.times(principal, kinds).all(|times| times.maybe_until_ns >= begin_ns)
    }

    /// Returns true if `principal` has had all of `kinds` since `begin_ns`.
    pub(crate) fn has_had(&self, principal: usize, kinds: Permissions, begin_ns: u64) -> bool {
        self.times(principal, kinds).all(|times| times.sure_since_ns <= begin_ns)
    }

    fn times(&self, principal: usize, kinds: Permissions) -> impl Iterator<Item = &PermissionTimes> {
        self.times[principal]
            .iter()
            .zip(KINDS)
            .filter(move |(_, kind)| kinds.contains(*kind))
            .map(|(times, _)| times)
    }
}
