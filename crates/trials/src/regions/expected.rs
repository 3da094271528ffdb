//! Regions that must exist: allocated, not freed, with all their nodes alive.

use std::fmt::{Display, Formatter};

use halite::Permissions;

use super::commands::name_of;
use super::lives::{LifeId, WORD};
use super::words::NEVER;
use crate::harness::{Harness, PRINCIPALS};

/// Maximum number of attempts to find a region.
const ATTEMPTS_MAX: u32 = 4;

/// A region that must exist.
pub(crate) struct ExpectedRegion {
    life: LifeId,
    name: String,
    len: u64,
    owner: usize,
    /// Node that looks for the region.
    finder: u32,
}

/// Returns all regions that must exist now.
pub(crate) fn expected_regions(harness: &Harness) -> Vec<ExpectedRegion> {
    let regions = harness.regions.borrow();
    let all = regions.ids().map(|life| {
        let found = regions.life(life);
        let (name, len) = (name_of(found.name), found.bytes());
        ExpectedRegion { life, name, len, owner: found.owner, finder: life.0 as u32 % harness.nodes() }
    });
    all.filter(|expected| expected.must_exist(harness)).collect()
}

impl Display for ExpectedRegion {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (life {}, of {} bytes)", self.name, self.life.0, self.len)
    }
}

impl ExpectedRegion {
    /// Returns true if the region must still exist.
    pub(crate) fn must_exist(&self, harness: &Harness) -> bool {
        let regions = harness.regions.borrow();
        let life = regions.life(self.life);
        let is_alive = |node, incarnation| harness.is_up(node) && harness.incarnation(node) == incarnation;
        life.allocated_ns != NEVER && life.free_begin_ns == NEVER && life.is_intact(is_alive)
    }

    /// Maps the region by its name, or by its alias if another region has taken the name since, and reads a word.
    /// Repeats failed attempts, because during a move no node may list the region.
    pub(crate) async fn find(&self, harness: &Harness) -> Result<(), String> {
        for _ in 0..ATTEMPTS_MAX - 1 {
            if self.find_once(harness).await.is_ok() {
                return Ok(());
            }
            harness.world.sleep(None, harness.plan.lease() / 4).await;
        }
        self.find_once(harness).await
    }

    async fn find_once(&self, harness: &Harness) -> Result<(), String> {
        let driven = harness.driven(self.finder).ok_or("the node that looks for it is down")?;
        let session = driven.session_of(PRINCIPALS[self.owner]).expect("the principal's name is valid");
        // A reference would keep a node alive that crashes meanwhile, and the futures of its session would never end.
        drop(driven);
        let named = session.list().await.map_err(|error| error.to_string())?;
        let alias = format!("{}@", self.name);
        let named = named.into_iter().filter(|info| info.len == self.len).filter_map(|info| info.name);
        let mut named = named.filter(|name| *name == self.name || name.starts_with(&alias));
        let name = named.next().ok_or("no name leads to it")?;
        let lh = session.map(&name, Permissions::READ).await.map_err(|error| error.to_string())?;
        let mut word = [0; WORD as usize];
        let read = session.read(lh, self.len - WORD, &mut word).await;
        let _ = session.unmap(lh).await;
        read.map_err(|error| error.to_string())
    }
}
