//! The hardware profiles of a world: one between its hosts, and one between the processes of a host.

use crate::profile::Profile;

/// The relation of two processes, which selects the profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// On different hosts, or hosts have one process each.
    BetweenHosts,
    /// On one host: loads and stores reach the peer's registered memory.
    WithinHost,
}

/// Hardware profiles; see the header of this file.
pub(crate) struct Hardware {
    between_hosts: Profile,
    within_host: Option<Profile>,
}

impl Hardware {
    /// Creates the hardware. Panics if a profile is invalid, or unsuitable for its place.
    pub(crate) fn new(between_hosts: Profile, within_host: Option<Profile>) -> Hardware {
        for profile in [&between_hosts].into_iter().chain(&within_host) {
            profile.check().unwrap_or_else(|error| panic!("{error}"));
        }
        if let Some(within_host) = &within_host {
            assert!(between_hosts.is_adapter(), "hosts with several processes reach each other by adapters");
            assert!(!within_host.is_adapter(), "processes of one host reach each other without an adapter");
        }
        Hardware { between_hosts, within_host }
    }

    /// Returns true if hosts have several processes.
    pub(crate) fn has_processes(&self) -> bool {
        self.within_host.is_some()
    }

    pub(crate) fn profile(&self, reach: Reach) -> &Profile {
        match (reach, &self.within_host) {
            (Reach::WithinHost, Some(within_host)) => within_host,
            _ => &self.between_hosts,
        }
    }
}
