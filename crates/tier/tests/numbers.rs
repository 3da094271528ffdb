//! Numbers of nodes that stay: the directory gives each out once, also when nodes choose their own, and whatever becomes of the nodes.

mod common;

use common::Cluster;
use halite_tier::effect::{Command, Outcome};
use halite_tier::ids::NodeId;
use halite_tier::message::ErrorReply;

fn take(cluster: &mut Cluster, host: usize) -> u32 {
    match cluster.command(host, Command::TakeNumber) {
        Ok(Outcome::Number(number)) => number.0,
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_number_is_given_out_twice_or_that_a_node_has_chosen() {
    let mut cluster = Cluster::of(3);
    assert_eq!([0, 1, 2, 1].map(|host| take(&mut cluster, host)), [3, 4, 5, 6]);
    cluster.add(40, 0);
    assert_eq!(take(&mut cluster, 1), 41);
    cluster.kill(3);
    cluster.run();
    assert_eq!(take(&mut cluster, 1), 42, "also when it is dead");
}

#[test]
fn a_directory_that_is_restarted_goes_on_behind_those_that_it_had_given_out() {
    let mut cluster = Cluster::of(2);
    assert_eq!(take(&mut cluster, 1), 2);
    cluster.hosts[0].engine.restore_numbers(700);
    assert_eq!(take(&mut cluster, 1), 700);
    cluster.hosts[0].engine.restore_numbers(5);
    assert_eq!(take(&mut cluster, 1), 701, "it never goes back");
}

#[test]
fn there_is_an_end_to_them() {
    let mut cluster = Cluster::of(2);
    cluster.hosts[0].engine.restore_numbers(NodeId::EPHEMERAL_MIN.0 - 1);
    assert_eq!(take(&mut cluster, 1), 999);
    assert_eq!(cluster.command(1, Command::TakeNumber), Err(ErrorReply::NoNumbers.into()));
}
