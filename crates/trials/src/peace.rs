//! Peace: two leases after all that went wrong between nodes is over, everything works that has not died.
//!
//! All nodes see each other, every region is found whose nodes live, under its name or as
//! `NAME@NODE`, and no operation fails that is begun then.  Where processes share memory, who was out of sight was killed.

use std::rc::Rc;
use std::time::Duration;

use halite::RegionCause;

use crate::harness::Harness;
use crate::regions;

/// A lease until somebody is missed, and another until the two are paired anew.
pub(crate) const HEALING_LEASES: u32 = 2;

impl Harness {
    fn healing_ns(&self) -> u64 {
        (self.plan.lease() * HEALING_LEASES).as_nanos() as u64
    }

    /// Since when there is peace, if there is.
    fn peace_since_ns(&self) -> Option<u64> {
        let is_whole = (0..self.nodes()).all(|node| self.is_well(node)) && !self.has_disturbed_links();
        let since_ns = self.last_trouble_ns() + self.healing_ns();
        (is_whole && self.is_mended_soon() && since_ns <= self.world.now_ns()).then_some(since_ns)
    }

    /// Whether what began then, and ends now, was done in peace.
    pub(crate) fn was_peace_since(&self, begin_ns: u64) -> bool {
        self.peace_since_ns().is_some_and(|since_ns| since_ns <= begin_ns)
    }

    /// Whether nodes that do not hear each other live all the same, each on a host of its own, and who is dialled in vain is soon
    /// dialled again.
    pub(crate) fn is_mended_soon(&self) -> bool {
        let is_soon = self.plan.dial_us.is_some_and(|dial_us| dial_us <= self.plan.lease_us / 2);
        self.cut_off_is_by_adapters && self.plan.hosts.is_none() && is_soon
    }
}

/// Looks at all nodes, again and again, until the trial closes.
pub(crate) async fn keep(harness: Rc<Harness>) {
    let mut looked_ns = None;
    while harness.goes_on() {
        harness.world.sleep(None, harness.plan.lease() / 4).await;
        look_at_nodes(&harness);
        let since_ns = harness.peace_since_ns();
        if since_ns.is_some() && since_ns != looked_ns {
            looked_ns = since_ns;
            look_at_regions(&harness).await;
        }
    }
}

fn look_at_nodes(harness: &Harness) {
    if harness.peace_since_ns().is_none() {
        return;
    }
    for (one, other) in
        (0..harness.nodes()).flat_map(|one| (0..harness.nodes()).map(move |other| (one, other)))
    {
        harness.judge.expect(harness.does_see(one, other), || {
            format!(
                "node {one} does not see node {other}, and nothing has gone wrong for {HEALING_LEASES} leases"
            )
        });
    }
}

/// Every region is there all of whose nodes live.
async fn look_at_regions(harness: &Harness) {
    let begin_ns = harness.world.now_ns();
    for kept in regions::kept(harness) {
        let found = kept.find(harness).await;
        let is_still_due = harness.was_peace_since(begin_ns) && kept.is_kept(harness);
        harness.judge.expect(found.is_ok() || !is_still_due, || {
            format!("from {begin_ns} ns, in peace, {kept} is not reached: {}", found.expect_err("it is not"))
        });
    }
}

/// Whether an operation that fails for that says that somebody is not reached.
pub(crate) fn is_of_distance(cause: &RegionCause) -> bool {
    matches!(
        cause,
        RegionCause::PeerDown(_)
            | RegionCause::NodeClosed
            | RegionCause::DirectoryDown
            | RegionCause::UnknownNode(_)
            | RegionCause::NoMemoryNode
    )
}

/// Waits until there is peace, and then for so long.
pub(crate) async fn wait_for_truce(harness: &Harness, long: Duration) {
    while harness.goes_on() && harness.peace_since_ns().is_none() {
        harness.world.sleep(None, harness.plan.lease() / 4).await;
    }
    harness.world.sleep(None, long).await;
}
