//! Cache of the names that this node's sessions have used, each with its region and home. Sessions ask the cached home
//! first, and the directory only if that fails. Homes verify the name of a region, so stale entries do no harm.

use std::collections::BTreeMap;

use crate::ids::{NodeId, RegionId};

/// Maximum number of known names: at 255 bytes each, about 5 MB.
const KNOWN_NAMES_MAX: usize = 16_384;

#[derive(Debug)]
struct Entry {
    region: RegionId,
    home: NodeId,
    /// Position in the order of insertion.
    serial: u64,
}

/// A bounded map from names to regions and homes, which evicts the oldest entry.
#[derive(Debug, Default)]
pub(super) struct KnownNames {
    names: BTreeMap<Box<str>, Entry>,
    by_serial: BTreeMap<u64, Box<str>>,
    serials: u64,
}

impl KnownNames {
    pub(super) fn record(&mut self, name: &str, region: RegionId, home: NodeId) {
        self.forget(name);
        self.serials += 1;
        self.by_serial.insert(self.serials, name.into());
        self.names.insert(name.into(), Entry { region, home, serial: self.serials });
        if self.names.len() > KNOWN_NAMES_MAX
            && let Some((_, oldest)) = self.by_serial.pop_first()
        {
            self.names.remove(&oldest);
        }
    }

    pub(super) fn forget(&mut self, name: &str) {
        if let Some(entry) = self.names.remove(name) {
            self.by_serial.remove(&entry.serial);
        }
    }

    pub(super) fn find(&self, name: &str) -> Option<(RegionId, NodeId)> {
        self.names.get(name).map(|entry| (entry.region, entry.home))
    }
}
