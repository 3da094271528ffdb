//! Members listed in a store outside the cluster: they are found without node 0, and a list edited by hand does no
//! harm.

use crate::common;

use common::{ARENA_BYTES, CHUNK_BYTES, Cluster, LEASE_NS, allocation};
use halite_tier::effect::{CommandError, Outcome, Placement};
use halite_tier::engine::Listing;
use halite_tier::ids::NodeId;
use halite_tier::message::ErrorReply;

fn update_list(cluster: &mut Cluster, host: usize, listing: Listing) {
    let now_ns = cluster.now_ns;
    cluster.hosts[host].engine.handle_listed(now_ns, listing);
    cluster.run();
}

fn is(node: u32, address: &str) -> Listing {
    Listing::Is(NodeId(node), address.to_owned())
}

fn are_connected(cluster: &Cluster, one: usize, other: usize) -> bool {
    let sees = |here: usize, there: usize| {
        cluster.hosts[here].engine.is_connected_to(cluster.hosts[there].incarnation.node)
    };
    sees(one, other) && sees(other, one)
}

fn alloc_on(cluster: &mut Cluster, host: usize, node: u32) -> Result<Outcome, CommandError> {
    cluster.command(host, allocation(None, CHUNK_BYTES, Placement::On(NodeId(node))))
}

#[test]
fn concurrent_joiners_find_each_other_without_node_0() {
    let mut cluster = Cluster::of(2);
    cluster.adapters = true;
    cluster.kill(0);
    cluster.run();
    let (second, third) = (cluster.add_unmet(2, ARENA_BYTES), cluster.add_unmet(3, ARENA_BYTES));
    update_list(
        &mut cluster,
        second,
        Listing::All([1, 2, 3].map(|node| (NodeId(node), node.to_string())).into()),
    );
    assert!(are_connected(&cluster, second, 1));
    assert!(!are_connected(&cluster, second, third), "the higher number dials");
    update_list(&mut cluster, third, is(2, "2"));
    assert!(are_connected(&cluster, second, third));
    assert!(alloc_on(&mut cluster, second, 3).is_ok());
}

#[test]
fn wrong_entries_cost_a_dial_per_lease() {
    let mut cluster = Cluster::on_demand(3);
    cluster.kill(0);
    cluster.run();
    cluster.stop(2);
    update_list(&mut cluster, 1, is(9, "2"));
    assert_eq!(alloc_on(&mut cluster, 1, 9), Err(ErrorReply::NotMet(NodeId(9)).into()));
    // An address without any answer is awaited as long as a member.
    cluster.silent_dials = true;
    let asked = cluster.submit(1, allocation(None, CHUNK_BYTES, Placement::On(NodeId(9))));
    cluster.sleep(LEASE_NS / 2);
    assert!(!cluster.has_ended(1, asked));
    cluster.sleep(LEASE_NS);
    assert_eq!(cluster.outcome(1, asked), Some(Err(ErrorReply::NotMet(NodeId(9)).into())));
    update_list(&mut cluster, 1, Listing::Gone(NodeId(9)));
    assert_eq!(alloc_on(&mut cluster, 1, 9), Err(ErrorReply::UnknownNode(NodeId(9)).into()));
}
