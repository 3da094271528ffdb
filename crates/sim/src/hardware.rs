//! The hardware profiles of a world: one between its hosts, and one between the processes of a host.

use crate::profile::Profile;

/// The relation of two processes, which selects the profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// On different hosts, or hosts have one process each.
    Across,
    /// On one host: loads and stores reach the peer's registered memory.
    Within,
}

/// Hardware profiles; see the header of this file.
pub(crate) struct Hardware {
    across: Profile,
    within: Option<Profile>,
}

impl Hardware {
    /// Creates the hardware. Panics if a profile does not fit its place.
    pub(crate) fn new(across: Profile, within: Option<Profile>) -> Hardware {
        for profile in [&across].into_iter().chain(&within) {
            profile.check().unwrap_or_else(|error| panic!("{error}"));
        }
        if let Some(within) = &within {
            assert!(across.is_adapter(), "hosts with several processes reach each other by adapters");
            assert!(!within.is_adapter(), "processes of one host reach each other without an adapter");
        }
        Hardware { across, within }
    }

    /// Returns true if hosts have several processes.
    pub(crate) fn has_processes(&self) -> bool {
        self.within.is_some()
    }

    pub(crate) fn of(&self, reach: Reach) -> &Profile {
        match (reach, &self.within) {
            (Reach::Within, Some(within)) => within,
            _ => &self.across,
        }
    }
}
