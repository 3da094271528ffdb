//! Members listed in a store outside of the cluster: they are found without node 0, and a list edited by hand does no
//! harm.

use crate::common;

use std::collections::BTreeMap;

use common::{ARENA_BYTES, CHUNK_BYTES, Cluster, LEASE_NS, allocation};
use halite_tier::effect::{Command, CommandError, OpId, Outcome, Placement};
use halite_tier::engine::Listing;
use halite_tier::ids::NodeId;
use halite_tier::message::{ErrorReply, NodeState};

/// Nodes behind adapters, all connected to each other, except node 0, which has died.
fn without_node_0(count: usize) -> Cluster {
    let mut cluster = Cluster::of(0);
    cluster.adapters = true;
    for node in 0..count as u32 {
        cluster.add(node, ARENA_BYTES);
    }
    cluster.kill(0);
    cluster.run();
    cluster
}

/// As [`without_node_0`], for a large cluster, whose nodes were connected to node 0 alone.
fn large_without_node_0(count: usize) -> Cluster {
    let mut cluster = Cluster::on_demand(count);
    cluster.kill(0);
    cluster.run();
    cluster
}

fn update_list(cluster: &mut Cluster, host: usize, listing: Listing) {
    let now_ns = cluster.now_ns;
    cluster.hosts[host].engine.handle_listed(now_ns, listing);
    cluster.run();
}

fn is(node: u32, address: &str) -> Listing {
    Listing::Is(NodeId(node), address.to_owned())
}

fn all(members: &[(u32, &str)]) -> Listing {
    let pairs = members.iter().map(|(node, address)| (NodeId(*node), (*address).to_owned()));
    Listing::All(pairs.collect::<BTreeMap<_, _>>())
}

fn are_connected(cluster: &Cluster, one: usize, other: usize) -> bool {
    let sees = |here: usize, there: usize| {
        cluster.hosts[here].engine.is_connected_to(cluster.hosts[there].incarnation.node)
    };
    sees(one, other) && sees(other, one)
}

fn state(cluster: &mut Cluster, host: usize, node: u32) -> Option<NodeState> {
    match cluster.command(host, Command::Status) {
        Ok(Outcome::Status(nodes)) => {
            nodes.iter().find(|status| status.node == NodeId(node)).map(|it| it.state)
        }
        other => panic!("{other:?}"),
    }
}

fn alloc_on(cluster: &mut Cluster, host: usize, node: u32) -> Result<Outcome, CommandError> {
    cluster.command(host, allocation(None, CHUNK_BYTES, Placement::On(NodeId(node))))
}

#[test]
fn concurrent_joiners_find_each_other_without_node_0() {
    let mut cluster = without_node_0(2);
    let (second, third) = (cluster.add_unmet(2, ARENA_BYTES), cluster.add_unmet(3, ARENA_BYTES));
    update_list(&mut cluster, second, all(&[(1, "1"), (2, "2"), (3, "3")]));
    assert!(are_connected(&cluster, second, 1));
    assert!(!are_connected(&cluster, second, third), "the higher number dials");
    update_list(&mut cluster, third, is(2, "2"));
    assert!(are_connected(&cluster, second, third));
    assert!(alloc_on(&mut cluster, second, 3).is_ok());
}

#[test]
fn the_lower_number_dials_after_a_lease() {
    let mut cluster = without_node_0(2);
    let second = cluster.add_unmet(2, ARENA_BYTES);
    update_list(&mut cluster, 1, is(2, "2"));
    assert!(!are_connected(&cluster, 1, second));
    cluster.sleep(2 * LEASE_NS);
    assert!(are_connected(&cluster, 1, second));
}

#[test]
fn listed_members_are_dialled_on_first_use() {
    let mut cluster = large_without_node_0(3);
    let late = cluster.add_unmet(7, ARENA_BYTES);
    assert_eq!(alloc_on(&mut cluster, 1, 7), Err(ErrorReply::UnknownNode(NodeId(7)).into()));
    update_list(&mut cluster, 1, is(7, &late.to_string()));
    assert!(!are_connected(&cluster, 1, late), "not used yet");
    assert_eq!(state(&mut cluster, 1, 7), Some(NodeState::Unconnected));
    assert!(alloc_on(&mut cluster, 1, 7).is_ok());
    assert!(are_connected(&cluster, 1, late));
    assert_eq!(state(&mut cluster, 1, 7), Some(NodeState::Alive));
}

#[test]
fn unlisted_members_are_unreachable_without_node_0_only() {
    let mut cluster = Cluster::on_demand(3);
    update_list(&mut cluster, 1, all(&[(0, "0"), (1, "1"), (2, "2")]));
    update_list(&mut cluster, 1, Listing::Gone(NodeId(2)));
    assert_eq!(
        state(&mut cluster, 1, 2),
        Some(NodeState::Unconnected),
        "a lost lease proves no loss of the node"
    );
    cluster.kill(0);
    cluster.run();
    assert_eq!(state(&mut cluster, 1, 2), Some(NodeState::Unreachable));
    update_list(&mut cluster, 1, is(2, "2"));
    assert_eq!(state(&mut cluster, 1, 2), Some(NodeState::Unconnected));
}

#[test]
fn wrong_entries_cost_a_dial_per_lease() {
    let mut cluster = large_without_node_0(3);
    cluster.stop(2);
    update_list(&mut cluster, 1, is(9, "2"));
    assert_eq!(alloc_on(&mut cluster, 1, 9), Err(ErrorReply::PeerDown(NodeId(9)).into()));
    assert_eq!(state(&mut cluster, 1, 9), Some(NodeState::Silent));
    // An address without any answer is awaited as long as a member.
    cluster.silent_dials = true;
    let asked = cluster.submit(1, allocation(None, CHUNK_BYTES, Placement::On(NodeId(9))));
    cluster.sleep(LEASE_NS / 2);
    assert!(!cluster.has_ended(1, asked));
    cluster.sleep(LEASE_NS);
    assert_eq!(cluster.outcome(1, asked), Some(Err(ErrorReply::PeerDown(NodeId(9)).into())));
    update_list(&mut cluster, 1, Listing::Gone(NodeId(9)));
    assert_eq!(alloc_on(&mut cluster, 1, 9), Err(ErrorReply::UnknownNode(NodeId(9)).into()));
}

#[test]
fn own_and_ephemeral_entries_are_ignored() {
    let mut cluster = without_node_0(2);
    cluster.slow_to_dial = true;
    update_list(&mut cluster, 1, all(&[(1, "0"), (NodeId::EPHEMERAL_MIN.0, "0")]));
    update_list(&mut cluster, 1, is(1, "0"));
    update_list(&mut cluster, 1, is(NodeId::EPHEMERAL_MIN.0 + 5, "0"));
    cluster.sleep(3 * LEASE_NS);
    assert_eq!(cluster.dials_under_way(), 0);
    assert_eq!(state(&mut cluster, 1, NodeId::EPHEMERAL_MIN.0), None);
    assert_eq!(state(&mut cluster, 1, 1), Some(NodeState::Alive));
}

/// The cluster's own knowledge of a member takes precedence over the list.
#[test]
fn listed_addresses_of_known_members_are_ignored() {
    let mut cluster = without_node_0(3);
    cluster.slow_to_dial = true;
    update_list(&mut cluster, 2, all(&[(1, "0")]));
    cluster.sleep(3 * LEASE_NS);
    assert_eq!(cluster.dials_under_way(), 0);
    assert!(are_connected(&cluster, 1, 2) && alloc_on(&mut cluster, 2, 1).is_ok());
}

/// All rows of a host's status.
fn rows(cluster: &mut Cluster, host: usize) -> Vec<(u32, NodeState, bool)> {
    match cluster.command(host, Command::Status) {
        Ok(Outcome::Status(nodes)) => {
            nodes.into_iter().map(|status| (status.node.0, status.state, status.loss.is_some())).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// Node 3, which has met node 1 alone, cannot learn of members from node 0.
#[test]
fn joiners_learn_members_without_node_0() {
    let mut cluster = Cluster::of(0);
    cluster.adapters = true;
    for node in 0..3 {
        cluster.add(node, ARENA_BYTES);
    }
    cluster.kill(0);
    cluster.run();
    let late = cluster.add_unmet(3, ARENA_BYTES);
    cluster.connect(late, 1);
    cluster.run();
    assert_eq!(cluster.hosts[late].engine.membership_source(), NodeId(1));
    use NodeState::{Alive, Dead, Unconnected};
    assert_eq!(
        rows(&mut cluster, late),
        [(0, Dead, true), (1, Alive, false), (2, Unconnected, false), (3, Alive, false)]
    );
    assert!(!are_connected(&cluster, late, 2), "status connects no nodes");
    assert_eq!(alloc_on(&mut cluster, late, 2), Err(ErrorReply::UnknownNode(NodeId(2)).into()), "hearsay");
}

/// A newly joined node, which has met all but node 2, requests the status of all.
fn asks_beside_one_that_is_not_met() -> (Cluster, usize, OpId) {
    let mut cluster = without_node_0(3);
    cluster.silent_dials = true;
    let late = cluster.add_unmet(3, ARENA_BYTES);
    cluster.connect(late, 1);
    cluster.run();
    update_list(&mut cluster, late, all(&[(1, "1"), (2, "2")]));
    let asked = cluster.submit(late, Command::Status);
    cluster.run();
    (cluster, late, asked)
}

/// The cost of a host without power for a status request: a tenth of a lease, if the dial takes longer.
#[test]
fn unanswered_members_are_silent_after_a_tenth_lease() {
    let (mut cluster, late, asked) = asks_beside_one_that_is_not_met();
    assert!(!cluster.has_ended(late, asked), "the dial may be answered");
    cluster.sleep(LEASE_NS / 10);
    let Some(Ok(Outcome::Status(nodes))) = cluster.outcome(late, asked) else { panic!("it has not ended") };
    let states: Vec<(u32, NodeState)> = nodes.iter().map(|status| (status.node.0, status.state)).collect();
    use NodeState::{Alive, Dead, Silent};
    assert_eq!(states, [(0, Dead), (1, Alive), (2, Silent), (3, Alive)]);
}

/// A dial to a distant node takes longer than that, but its host answers meanwhile.
#[test]
fn distant_members_are_awaited_while_answering() {
    let (mut cluster, late, asked) = asks_beside_one_that_is_not_met();
    let due_ns = cluster.now_ns + LEASE_NS / 10;
    cluster.hosts[late].engine.handle_dials(due_ns, || true);
    cluster.pass(LEASE_NS / 10);
    assert!(!cluster.has_ended(late, asked), "its host answers");
    cluster.connect(late, 2);
    cluster.run();
    let Some(Ok(Outcome::Status(nodes))) = cluster.outcome(late, asked) else { panic!("it has not ended") };
    assert_eq!(nodes[2].state, NodeState::Alive);

    // A dial without end is not awaited without limit.
    let far = cluster.add_unmet(4, ARENA_BYTES);
    cluster.connect(far, 1);
    cluster.run();
    update_list(&mut cluster, far, all(&[(1, "1"), (2, "2"), (3, "3")]));
    let asked = cluster.submit(far, Command::Status);
    cluster.run();
    for _ in 0..=40 {
        let due_ns = cluster.now_ns + LEASE_NS / 100;
        cluster.hosts[far].engine.handle_dials(due_ns, || true);
        cluster.pass(LEASE_NS / 100);
    }
    cluster.run();
    assert!(cluster.has_ended(far, asked));
}
