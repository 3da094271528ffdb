//! Checks that no memory belongs to two regions at once, even in the view of nodes that have not heard of a change yet.
//!
//! The check detects that memory is reused too early as soon as it happens, before accesses collide.

use crate::harness::Harness;

/// Checks all nodes whose processes exist, even stopped ones. Ignores the views of nodes that are cut off: such a node
/// cannot access memory, and if adapters cut it off, the node learns of the cut-off late.
pub(crate) fn check(harness: &Harness) {
    if !harness.kernels_report_deaths() {
        return;
    }
    let mut mapped = Vec::new();
    for node in (0..harness.nodes()).filter(|node| harness.has_process(*node)) {
        let Some(driven) = harness.driven(node) else { continue };
        let reached = driven.reached().into_iter().filter(|(_, at)| {
            harness.driven(at.owner.node.0).is_some_and(|owner| owner.is_reached_by(&driven))
        });
        mapped.extend(reached.map(|(region, at)| (at.owner, at.key, at.offset, at.len, region, node)));
    }
    mapped.sort_unstable();
    // The earlier piece of the same segment that ends last.
    let Some(mut furthest) = mapped.first().copied() else { return };
    for piece in mapped.into_iter().skip(1) {
        let (owner, key, offset, len, region, node) = piece;
        let (other_owner, other_key, other_offset, other_len, other_region, other_node) = furthest;
        let is_same_segment = (owner, key) == (other_owner, other_key);
        harness.judge.expect(!is_same_segment || offset >= other_offset + other_len || region == other_region, || {
            format!(
                "node {node} maps {len} bytes at {offset} of node {} as part of region {region}, and node {other_node} maps \
                 {other_len} bytes at {other_offset} as part of region {other_region}",
                owner.node
            )
        });
        if !is_same_segment || offset + len > other_offset + other_len {
            furthest = piece;
        }
    }
}
