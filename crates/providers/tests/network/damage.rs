//! The network changes packets and corrects the UDP checksum: only the ICRC detects the damage.

use halite_providers::roce::Dropped;

use crate::common::Cluster;
use crate::common::pair::Pair;
use crate::traffic::Traffic;
use crate::world::Network;

/// Number of requests that each end makes.
const REQUESTS: usize = 250;

/// Runs traffic while `rule` changes packets on arrival. Returns, for each side, the number of changed packets or
/// trains, and the counters of dropped packets. In a rule, `@th` counts bits from the start of the UDP header, which
/// has 64 bits.
fn run_with_rule(rule: &str, disables_offload: bool) -> Option<[(u64, Dropped); 2]> {
    let network = Network::new()?;
    if disables_offload {
        network.disable_offload();
    }
    let cluster = Cluster::new();
    let mut pair = network.connect([0, 1].map(|side| network.config(&cluster, side)));
    for side in 0..2 {
        network.on_arrival(side, &[rule]);
    }
    Traffic::new(&pair, 8).run(&mut pair, REQUESTS);
    let counted = || [0, 1].map(|side| network.counted(side)[0]);
    let dropped = |pair: &Pair| pair.ends.each_ref().map(|end| end.fabric.dropped());
    let mut changed = counted();
    // The fabric may not have received the last packets yet.
    pair.wait_for("all changed packets", |pair| {
        let refused = dropped(pair).map(|dropped| dropped.refused + dropped.strangers);
        changed = counted();
        (refused == [0, 0] || refused == changed).then_some(())
    });
    println!("changed {changed:?}, dropped {:?}", dropped(&pair));
    Some([0, 1].map(|side| (changed[side], dropped(&pair)[side])))
}

/// Checks that the fabric drops each changed packet and accepts all other packets. If `is_misdirected` is true, it must
/// count the changed packets as packets for an unknown queue pair, otherwise as refused.
fn check_damage(rule: &str, disables_offload: bool, is_misdirected: bool) {
    let Some(sides) = run_with_rule(rule, disables_offload) else { return };
    for (changed, dropped) in sides {
        assert!(changed > 10, "{changed} packets were changed");
        let expected = if is_misdirected { (0, changed) } else { (changed, 0) };
        assert_eq!((dropped.refused, dropped.strangers, dropped.malformed), (expected.0, expected.1, 0));
    }
}

#[test]
fn packets_with_changed_payload_are_refused() {
    // No payload byte is above 0x7f.
    let rule = "udp length > 200 numgen random mod 6 == 0 @th,1000,8 set 0xee udp checksum set 0 counter";
    check_damage(rule, true, false);
}

#[test]
fn trains_with_a_changed_packet_are_refused() {
    // Changes the first packet of a train if it is the first or only packet of a long write, which its RETH shows.
    let rule =
        "@th,64,8 { 0x06, 0x0a } @th,256,32 > 1000 numgen random mod 3 == 0 @th,1000,8 set 0xee counter";
    check_damage(rule, false, false);
}

#[test]
fn packets_with_a_changed_number_are_refused() {
    // The rule does not change a packet that already has this number, which is rare.
    check_damage("udp length > 8 numgen random mod 12 == 0 @th,144,16 set 0x5aa5 counter", true, false);
}

#[test]
fn packets_for_an_unknown_queue_pair_are_counted_separately() {
    check_damage("udp length > 8 numgen random mod 12 == 0 @th,104,16 set 0x5aa5 counter", true, true);
}

#[test]
fn changes_that_routers_may_make_are_accepted() {
    // Changes the type of service, congestion bits, hop limit and identification, which routers may rewrite where
    // fragmentation is forbidden.
    let rule = "udp length > 8 ip dscp set cs5 ip ecn set ce ip ttl set 3 ip id set 0x1234 counter";
    let Some(sides) = run_with_rule(rule, false) else { return };
    for (changed, dropped) in sides {
        assert!(changed > 100, "{changed} packets were changed");
        assert_eq!(dropped, Dropped::default());
    }
}
