//! Tracks the keys that are being deregistered, and the peers that may still access their segments.
//!
//! ```text
//!   withdraw(key) ── each link that announced the key sends Withdrawn ── its peer unmaps the segment, sends Forgotten
//!                                                                        or is cut off      │
//!                                  all peers have done so: Event::Deregistered <────────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet};

/// Placeholder in `awaited` for the deregistering thread, until it has notified all links. Tokens of links start at 1.
pub(super) const NO_LINK: u64 = 0;

/// The keys under deregistration.
#[derive(Debug, Default)]
pub(super) struct Withdrawn {
    /// The links whose peers know the segment and have not answered with Forgotten, by key.
    awaited: BTreeMap<u32, BTreeSet<u64>>,
}

impl Withdrawn {
    /// Starts the deregistration of a key. The deregistration ends no earlier than the call of [`Withdrawn::forget`]
    /// with [`NO_LINK`].
    pub(super) fn begin(&mut self, key: u32) {
        self.awaited.insert(key, BTreeSet::from([NO_LINK]));
    }

    /// Records that the peer of a link knows the segment.
    pub(super) fn await_link(&mut self, key: u32, link: u64) {
        self.awaited.entry(key).or_default().insert(link);
    }

    /// Returns true if the peer of a link has not yet confirmed that it has unmapped the segment of a key.
    pub(super) fn is_awaited(&self, key: u32, link: u64) -> bool {
        self.awaited.get(&key).is_some_and(|links| links.contains(&link))
    }

    /// Records that the peer of a link has unmapped the segment of a key.
    pub(super) fn forget(&mut self, key: u32, link: u64) {
        if let Some(links) = self.awaited.get_mut(&key) {
            links.remove(&link);
        }
    }

    /// Records that the peer of a link is cut off.
    pub(super) fn forget_link(&mut self, link: u64) {
        for links in self.awaited.values_mut() {
            links.remove(&link);
        }
    }

    /// Removes and returns the keys through which no peer can access memory any more.
    pub(super) fn take_done(&mut self) -> Vec<u32> {
        self.awaited.extract_if(.., |_, links| links.is_empty()).map(|(key, _)| key).collect()
    }
}
