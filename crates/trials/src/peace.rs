//! Peace: the time from two leases after the last fault between nodes to the next fault. During peace, all operations
//! on living nodes must succeed.
//!
//! All nodes are connected, or know each other as unconnected members. Every region whose nodes are alive is found
//! under its name or as `NAME@NODE`. No operation that begins during peace fails. If processes share memory, nodes that
//! were cut off have been killed.

use std::rc::Rc;
use std::time::Duration;

use crate::harness::Harness;
use crate::regions;

/// Number of leases: one until a peer declares a node dead, and another until the two reconnect.
pub(crate) const HEALING_LEASES: u32 = 2;

impl Harness {
    fn healing_ns(&self) -> u64 {
        (self.plan.lease() * HEALING_LEASES).as_nanos() as u64
    }

    /// Returns the start of the peace; `None` if there is no peace now.
    fn peace_since_ns(&self) -> Option<u64> {
        let all_running = (0..self.nodes()).all(|node| self.is_up_and_running(node));
        let is_healed = all_running && !self.has_changed_links();
        let since_ns = self.last_change_ns() + self.healing_ns();
        (is_healed && self.reconnects_soon() && since_ns <= self.world.now_ns()).then_some(since_ns)
    }

    /// Returns true if there was peace from the start of an operation until now.
    pub(crate) fn was_peace_since(&self, begin_ns: u64) -> bool {
        self.peace_since_ns().is_some_and(|since_ns| since_ns <= begin_ns)
    }

    /// Returns true if nodes that lose their connection stay alive, each on its own host, and soon dial each other
    /// again.
    pub(crate) fn reconnects_soon(&self) -> bool {
        let is_soon = self.plan.dial_us.is_some_and(|dial_us| dial_us <= self.plan.lease_us / 2);
        self.adapters_cut_off && self.plan.hosts.is_none() && is_soon
    }
}

/// Checks all nodes repeatedly until the trial ends.
pub(crate) async fn check_until_end(harness: Rc<Harness>) {
    // Start of the peace in which the regions were checked last.
    let mut checked_ns = None;
    while harness.sessions_continue() {
        harness.world.sleep(None, harness.plan.lease() / 4).await;
        check_nodes(&harness);
        let since_ns = harness.peace_since_ns();
        if since_ns.is_some() && since_ns != checked_ns {
            checked_ns = since_ns;
            check_regions(&harness).await;
        }
    }
}

fn check_nodes(harness: &Harness) {
    if harness.peace_since_ns().is_none() {
        return;
    }
    for (one, other) in
        (0..harness.nodes()).flat_map(|one| (0..harness.nodes()).map(move |other| (one, other)))
    {
        harness.judge.expect(harness.can_reach(one, other), || {
            format!(
                "node {one} is not connected to node {other}, {HEALING_LEASES} leases after the last fault"
            )
        });
    }
}

/// Checks that every region whose nodes live can be found.
async fn check_regions(harness: &Harness) {
    let begin_ns = harness.world.now_ns();
    for expected in regions::expected_regions(harness) {
        let found = expected.find(harness).await;
        let is_still_due = harness.was_peace_since(begin_ns) && expected.must_exist(harness);
        harness.judge.expect(found.is_ok() || !is_still_due, || {
            format!(
                "from {begin_ns} ns, in peace, {expected} is unreachable: {}",
                found.expect_err("the region is not found")
            )
        });
    }
}

/// Waits for peace, and then for `duration`.
pub(crate) async fn wait_for_peace(harness: &Harness, duration: Duration) {
    while harness.sessions_continue() && harness.peace_since_ns().is_none() {
        harness.world.sleep(None, harness.plan.lease() / 4).await;
    }
    harness.world.sleep(None, duration).await;
}
