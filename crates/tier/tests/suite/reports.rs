//! Reports about other nodes that are late, repeated, wrong or malicious. They must not harm living nodes.

use crate::common;

use common::{CHUNK_BYTES, Cluster, LEASE_NS};
use halite_tier::access::RegionOffset;
use halite_tier::effect::{Command, Outcome, Placement};
use halite_tier::ids::{Incarnation, NodeId, NodeIncarnation};
use halite_tier::message::{Member, Message, NodeState, Notice, RegionCommand};

fn cluster_of(count: usize) -> Cluster {
    let mut cluster = Cluster::of(count);
    cluster.adapters = true;
    cluster
}

#[test]
fn maximum_pairing_number_is_harmless() {
    let mut cluster = cluster_of(2);
    cluster.forge(1, 0, &Message::Notice(Notice::Paired { pairing: u64::MAX }));
    cluster.part(&[0], &[1]);
    cluster.sleep(2 * LEASE_NS);
    cluster.cut.clear();
    cluster.sleep(3 * LEASE_NS);
    assert!(cluster.hosts[0].engine.is_connected_to(NodeId(1)));
}

/// Past bug: a fill was still running after its handle was unmapped, and changed a sealed region.
#[test]
fn pairing_waits_for_commands_of_unmapped_handles() {
    let mut cluster = cluster_of(3);
    let on_both = Placement::Spread(vec![NodeId(0), NodeId(1)]);
    let wide = cluster.alloc(0, "wide", 2 * CHUNK_BYTES, on_both);
    let slot = cluster.map(2, "wide");
    cluster.slow_to_copy = true;
    let at = RegionOffset { slot, offset: CHUNK_BYTES };
    cluster.submit(2, Command::Fill { at, len: CHUNK_BYTES, byte: 7 });
    cluster.run();
    cluster.submit(2, Command::Unmap(slot));
    cluster.run();
    let seal = cluster.submit(0, Command::RegionCommand(wide, RegionCommand::Seal));
    cluster.run();
    cluster.part(&[0], &[2]);
    cluster.sleep(5 * LEASE_NS / 4);
    cluster.cut.clear();
    cluster.sleep(3 * LEASE_NS / 4);
    assert_eq!(cluster.copies_under_way(), 1, "host 1 executes it");
    assert!(!cluster.has_ended(0, seal));
    cluster.slow_to_copy = false;
    cluster.finish_copies();
    cluster.sleep(4 * LEASE_NS);
    assert_eq!(cluster.outcome(0, seal), Some(Ok(Outcome::Done)));
}

#[test]
fn reported_numbers_use_up_no_numbers() {
    let mut cluster = cluster_of(2);
    let incarnation = NodeIncarnation { node: NodeId(999), id: Incarnation(5) };
    let member = Member { incarnation, pid: 1, bytes_total: 0, state: NodeState::Alive, loss: None };
    let members = vec![(member, String::new())];
    cluster.forge(1, 0, &Message::Notice(Notice::Seen { members, ended: Vec::new() }));
    assert_eq!(cluster.command(1, Command::TakeNumber), Ok(Outcome::Number(NodeId(2))));
}

/// A restarted directory learns of members from the others, one of which has missed the end of a node's former
/// incarnation.
#[test]
fn reports_of_a_predecessor_end_no_unreachable_node() {
    let mut cluster = cluster_of(4);
    let incarnation = cluster.hosts[1].incarnation;
    let former = NodeIncarnation { id: Incarnation(7), ..incarnation };
    cluster.part(&[1], &[3]);
    cluster.sleep(2 * LEASE_NS);
    let unreachable = vec![(Member::unseen(former), "nowhere".to_owned())];
    let known = Notice::Known { living: vec![], unreachable, ended: vec![] };
    cluster.forge(0, 3, &Message::Notice(known));
    cluster.cut.clear();
    cluster.sleep(2 * LEASE_NS);
    assert!(cluster.hosts[3].engine.is_connected_to(NodeId(1)));
    assert!(cluster.hosts[1].engine.is_connected_to(NodeId(3)));
}
