//! The permissions on a region. While a grant or a revocation is in progress, the judge does not know whether the
//! principal has the permission. So this file records the time since which the principal certainly has it, and the time
//! until which the principal may have it.

use halite::Permissions;

use super::words::NEVER;
use crate::harness::PRINCIPALS;

/// Times for which a principal has had one permission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Right {
    /// Time until which the principal may have had it; [`NEVER`] if it may have it now.
    maybe_until_ns: u64,
    /// Time since which the principal has certainly had it; [`NEVER`] if it may not have it.
    sure_since_ns: u64,
}

/// Read and write permission of each principal.
#[derive(Clone, Debug)]
pub(crate) struct Rights {
    rights: [[Right; 2]; PRINCIPALS.len()],
}

pub(crate) const KINDS: [Permissions; 2] = [Permissions::READ, Permissions::WRITE];

impl Rights {
    /// Returns the permissions of a new region.
    pub(crate) fn new(owner: usize, everyone: Permissions) -> Rights {
        let right = |has| match has {
            true => Right { maybe_until_ns: NEVER, sure_since_ns: 0 },
            false => Right { maybe_until_ns: 0, sure_since_ns: NEVER },
        };
        let of = |principal| KINDS.map(|kind| right(principal == owner || everyone.contains(kind)));
        Rights { rights: std::array::from_fn(of) }
    }

    fn each(&mut self, principal: usize, kinds: Permissions) -> impl Iterator<Item = &mut Right> {
        self.rights[principal]
            .iter_mut()
            .zip(KINDS)
            .filter(move |(_, kind)| kinds.contains(*kind))
            .map(|(right, _)| right)
    }

    pub(crate) fn begin_grant(&mut self, principal: usize, kinds: Permissions) {
        self.each(principal, kinds).for_each(|right| right.maybe_until_ns = NEVER);
    }

    pub(crate) fn end_grant(&mut self, principal: usize, kinds: Permissions, now_ns: u64) {
        self.each(principal, kinds).for_each(|right| right.sure_since_ns = now_ns);
    }

    pub(crate) fn begin_revoke(&mut self, principal: usize, kinds: Permissions) {
        self.each(principal, kinds).for_each(|right| right.sure_since_ns = NEVER);
    }

    pub(crate) fn end_revoke(&mut self, principal: usize, kinds: Permissions, now_ns: u64) {
        self.each(principal, kinds).for_each(|right| right.maybe_until_ns = now_ns);
    }

    /// Returns true if `principal` may have had all of `kinds` at some time since `begin_ns`.
    pub(crate) fn may_have(&self, principal: usize, kinds: Permissions, begin_ns: u64) -> bool {
        self.of(principal, kinds).all(|right| right.maybe_until_ns >= begin_ns)
    }

    /// Returns true if `principal` has had all of `kinds` since `begin_ns`.
    pub(crate) fn has_had(&self, principal: usize, kinds: Permissions, begin_ns: u64) -> bool {
        self.of(principal, kinds).all(|right| right.sure_since_ns <= begin_ns)
    }

    fn of(&self, principal: usize, kinds: Permissions) -> impl Iterator<Item = &Right> {
        self.rights[principal]
            .iter()
            .zip(KINDS)
            .filter(move |(_, kind)| kinds.contains(*kind))
            .map(|(right, _)| right)
    }
}
