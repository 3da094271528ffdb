//! Members that a store outside of the cluster lists: they are found without node 0, and a list that somebody has edited harms nobody.

use crate::common;

use std::collections::BTreeMap;

use common::{ARENA_BYTES, CHUNK_BYTES, Cluster, LEASE_NS, allocation};
use halite_tier::effect::{Command, CommandError, OpId, Outcome, Placement};
use halite_tier::engine::Listing;
use halite_tier::ids::NodeId;
use halite_tier::message::{ErrorReply, NodeState};

/// Nodes behind adapters, each connected to all others, but for node 0, which has died.
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

/// The same of a large cluster: each was connected to node 0 alone.
fn large_without_node_0(count: usize) -> Cluster {
    let mut cluster = Cluster::on_demand(count);
    cluster.kill(0);
    cluster.run();
    cluster
}

fn hear(cluster: &mut Cluster, host: usize, listing: Listing) {
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
fn two_that_have_joined_at_once_without_node_0_find_each_other() {
    let mut cluster = without_node_0(2);
    let (second, third) = (cluster.add_unmet(2, ARENA_BYTES), cluster.add_unmet(3, ARENA_BYTES));
    hear(&mut cluster, second, all(&[(1, "1"), (2, "2"), (3, "3")]));
    assert!(are_connected(&cluster, second, 1));
    assert!(!are_connected(&cluster, second, third), "the higher number dials");
    hear(&mut cluster, third, is(2, "2"));
    assert!(are_connected(&cluster, second, third));
    assert!(alloc_on(&mut cluster, second, 3).is_ok());
}

#[test]
fn the_lower_number_dials_where_the_higher_has_not_for_a_lease() {
    let mut cluster = without_node_0(2);
    let second = cluster.add_unmet(2, ARENA_BYTES);
    hear(&mut cluster, 1, is(2, "2"));
    assert!(!are_connected(&cluster, 1, second));
    cluster.sleep(2 * LEASE_NS);
    assert!(are_connected(&cluster, 1, second));
}

#[test]
fn a_member_of_a_large_cluster_is_found_by_who_uses_it_while_node_0_is_away() {
    let mut cluster = large_without_node_0(3);
    let late = cluster.add_unmet(7, ARENA_BYTES);
    assert_eq!(alloc_on(&mut cluster, 1, 7), Err(ErrorReply::UnknownNode(NodeId(7)).into()));
    hear(&mut cluster, 1, is(7, &late.to_string()));
    assert!(!are_connected(&cluster, 1, late), "nobody uses it");
    assert_eq!(state(&mut cluster, 1, 7), Some(NodeState::Unconnected));
    assert!(alloc_on(&mut cluster, 1, 7).is_ok());
    assert!(are_connected(&cluster, 1, late));
    assert_eq!(state(&mut cluster, 1, 7), Some(NodeState::Alive));
}

#[test]
fn who_is_listed_no_more_is_told_as_out_of_reach_only_while_node_0_does_not_say_how_it_is() {
    let mut cluster = Cluster::on_demand(3);
    hear(&mut cluster, 1, all(&[(0, "0"), (1, "1"), (2, "2")]));
    hear(&mut cluster, 1, Listing::Gone(NodeId(2)));
    assert_eq!(
        state(&mut cluster, 1, 2),
        Some(NodeState::Unconnected),
        "a lost lease is no loss of the node"
    );
    cluster.kill(0);
    cluster.run();
    assert_eq!(state(&mut cluster, 1, 2), Some(NodeState::Unreachable));
    hear(&mut cluster, 1, is(2, "2"));
    assert_eq!(state(&mut cluster, 1, 2), Some(NodeState::Unconnected));
}

#[test]
fn who_is_listed_where_nobody_is_costs_a_dial_a_lease_and_who_uses_it_an_error() {
    let mut cluster = large_without_node_0(3);
    cluster.stop(2);
    hear(&mut cluster, 1, is(9, "2"));
    assert_eq!(alloc_on(&mut cluster, 1, 9), Err(ErrorReply::PeerDown(NodeId(9)).into()));
    assert_eq!(state(&mut cluster, 1, 9), Some(NodeState::Silent));
    // What does not answer at all is waited for as long as for a member.
    cluster.silent_dials = true;
    let asked = cluster.submit(1, allocation(None, CHUNK_BYTES, Placement::On(NodeId(9))));
    cluster.sleep(LEASE_NS / 2);
    assert!(!cluster.has_ended(1, asked));
    cluster.sleep(LEASE_NS);
    assert_eq!(cluster.outcome(1, asked), Some(Err(ErrorReply::PeerDown(NodeId(9)).into())));
    hear(&mut cluster, 1, Listing::Gone(NodeId(9)));
    assert_eq!(alloc_on(&mut cluster, 1, 9), Err(ErrorReply::UnknownNode(NodeId(9)).into()));
}

#[test]
fn what_is_listed_of_this_node_or_of_one_that_passes_is_not_taken() {
    let mut cluster = without_node_0(2);
    cluster.slow_to_dial = true;
    hear(&mut cluster, 1, all(&[(1, "0"), (NodeId::EPHEMERAL_MIN.0, "0")]));
    hear(&mut cluster, 1, is(1, "0"));
    hear(&mut cluster, 1, is(NodeId::EPHEMERAL_MIN.0 + 5, "0"));
    cluster.sleep(3 * LEASE_NS);
    assert_eq!(cluster.dials_under_way(), 0);
    assert_eq!(state(&mut cluster, 1, NodeId::EPHEMERAL_MIN.0), None);
    assert_eq!(state(&mut cluster, 1, 1), Some(NodeState::Alive));
}

/// What the cluster knows of a member by itself is better than what anybody can write.
#[test]
fn a_wrong_address_of_a_member_that_is_known_is_not_dialled() {
    let mut cluster = without_node_0(3);
    cluster.slow_to_dial = true;
    hear(&mut cluster, 2, all(&[(1, "0")]));
    cluster.sleep(3 * LEASE_NS);
    assert_eq!(cluster.dials_under_way(), 0);
    assert!(are_connected(&cluster, 1, 2) && alloc_on(&mut cluster, 2, 1).is_ok());
}

/// All rows that a host has to show.
fn rows(cluster: &mut Cluster, host: usize) -> Vec<(u32, NodeState, bool)> {
    match cluster.command(host, Command::Status) {
        Ok(Outcome::Status(nodes)) => {
            nodes.into_iter().map(|status| (status.node.0, status.state, status.loss.is_some())).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// Node 3, which has met node 1 alone, cannot be told of members by node 0.
#[test]
fn who_joins_without_node_0_is_told_by_another_member_whom_that_knows_also_of_the_dead() {
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
    assert!(!are_connected(&cluster, late, 2), "nobody is connected for that");
    assert_eq!(
        alloc_on(&mut cluster, late, 2),
        Err(ErrorReply::UnknownNode(NodeId(2)).into()),
        "it is hearsay"
    );
}

/// A node that has just joined asks how all are, and has met all but node 2.
fn asks_beside_one_that_is_not_met() -> (Cluster, usize, OpId) {
    let mut cluster = without_node_0(3);
    cluster.silent_dials = true;
    let late = cluster.add_unmet(3, ARENA_BYTES);
    cluster.connect(late, 1);
    cluster.run();
    hear(&mut cluster, late, all(&[(1, "1"), (2, "2")]));
    let asked = cluster.submit(late, Command::Status);
    cluster.run();
    (cluster, late, asked)
}

/// What a host without power costs who asks how all are: a tenth of a lease, where the dial takes longer.
#[test]
fn a_member_that_does_not_answer_a_first_dial_is_shown_as_silent_after_a_tenth_of_a_lease() {
    let (mut cluster, late, asked) = asks_beside_one_that_is_not_met();
    assert!(!cluster.has_ended(late, asked), "it may answer");
    cluster.sleep(LEASE_NS / 10);
    let Some(Ok(Outcome::Status(nodes))) = cluster.outcome(late, asked) else { panic!("it has not ended") };
    let states: Vec<(u32, NodeState)> = nodes.iter().map(|status| (status.node.0, status.state)).collect();
    use NodeState::{Alive, Dead, Silent};
    assert_eq!(states, [(0, Dead), (1, Alive), (2, Silent), (3, Alive)]);
}

/// A dial to one that is far away takes longer than that, and its host is heard meanwhile.
#[test]
fn a_member_that_is_far_away_is_waited_for_while_something_is_heard_of_whom_this_node_dials() {
    let (mut cluster, late, asked) = asks_beside_one_that_is_not_met();
    let due_ns = cluster.now_ns + LEASE_NS / 10;
    cluster.hosts[late].engine.handle_dials(due_ns, || true);
    cluster.pass(LEASE_NS / 10);
    assert!(!cluster.has_ended(late, asked), "it is there");
    cluster.connect(late, 2);
    cluster.run();
    let Some(Ok(Outcome::Status(nodes))) = cluster.outcome(late, asked) else { panic!("it has not ended") };
    assert_eq!(nodes[2].state, NodeState::Alive);

    // Who hangs half way is not waited for without end.
    let far = cluster.add_unmet(4, ARENA_BYTES);
    cluster.connect(far, 1);
    cluster.run();
    hear(&mut cluster, far, all(&[(1, "1"), (2, "2"), (3, "3")]));
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
