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
fn run_with_rule(rule: &str, singly: bool) -> Option<[(u64, Dropped); 2]> {
    let network = Network::new()?;
    if singly {
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
    pair.until("all changed packets", |pair| {
        let refused = dropped(pair).map(|dropped| dropped.refused + dropped.strangers);
        changed = counted();
        (refused == [0, 0] || refused == changed).then_some(())
    });
    println!("changed {changed:?}, dropped {:?}", dropped(&pair));
    Some([0, 1].map(|side| (changed[side], dropped(&pair)[side])))
}

/// Checks that the fabric drops each changed packet and accepts all other packets. If `is_stranger` is true, it must
/// count the changed packets as packets of strangers, otherwise as refused.
fn check_damage(rule: &str, singly: bool, is_stranger: bool) {
    let Some(sides) = run_with_rule(rule, singly) else { return };
    for (changed, dropped) in sides {
        assert!(changed > 10, "{changed} packets were changed");
        let expected = if is_stranger { (0, changed) } else { (changed, 0) };
        assert_eq!((dropped.refused, dropped.strangers, dropped.malformed), (expected.0, expected.1, 0));
    }
}

#[test]
fn a_changed_payload_is_refused() {
    // No payload byte is above 0x7f.
    let rule = "udp length > 200 numgen random mod 6 == 0 @th,1000,8 set 0xee udp checksum set 0 counter";
    check_damage(rule, true, false);
}

#[test]
fn a_changed_train_is_refused() {
    // Changes the first packet of a train if it is the first or only packet of a long write, which its RETH shows.
    let rule =
        "@th,64,8 { 0x06, 0x0a } @th,256,32 > 1000 numgen random mod 3 == 0 @th,1000,8 set 0xee counter";
    check_damage(rule, false, false);
}

#[test]
fn a_changed_packet_number_is_refused() {
    // A rare packet that has this packet number already does not change.
    check_damage("udp length > 8 numgen random mod 12 == 0 @th,144,16 set 0x5aa5 counter", true, false);
}

#[test]
fn an_unknown_queue_pair_counts_as_a_stranger() {
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
