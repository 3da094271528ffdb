//! Numbers of nodes that stay: the directory gives each out once, also when nodes choose their own, and whatever becomes of the nodes, and
//! again only when all were.

use crate::common;

use common::{ARENA_BYTES, CHUNK_BYTES, Cluster};
use halite_fabric::PeerId;
use halite_tier::effect::{Command, Outcome, Placement};
use halite_tier::ids::{Incarnation, NodeId, NodeIncarnation};
use halite_tier::link;
use halite_tier::message::{self, ErrorReply, Member, Message, Notice};

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

const LAST: u32 = NodeId::EPHEMERAL_MIN.0 - 1;

#[test]
fn once_each_was_given_out_those_of_nodes_that_have_left_or_were_forgotten_are_given_again() {
    let mut cluster = Cluster::of(2);
    let [left, forgotten, dead] = [5, 7, 9].map(|node| cluster.add(node, ARENA_BYTES));
    cluster.hosts[0].engine.restore_numbers(LAST);
    assert_eq!(take(&mut cluster, 1), LAST);
    let now_ns = cluster.now_ns;
    cluster.hosts[left].engine.leave(now_ns);
    cluster.run();
    [left, forgotten, dead].into_iter().for_each(|host| cluster.kill(host));
    cluster.run();
    cluster.command(1, Command::ForgetNode(NodeId(7))).unwrap();
    // Nobody is known to have had the others; no two who ask are told the same while they join.
    let again: Vec<u32> = (0..LAST - 2).map(|_| take(&mut cluster, 1)).collect();
    let given_up: Vec<u32> = (2..=LAST).filter(|node| *node != 9).collect();
    assert_eq!(again, given_up, "but that of the dead one, which may come back");
    assert_eq!(take(&mut cluster, 1), 2, "in a circle");
    // Who takes one is a node like any other.
    let newcomer = cluster.add(5, ARENA_BYTES);
    cluster.alloc(newcomer, "salt", CHUNK_BYTES, Placement::Local);
    cluster.map(1, "salt");
    assert_eq!([3, 4, 6].map(|_| take(&mut cluster, 1)), [3, 4, 6], "it is not given up any more");
}

#[test]
fn there_is_an_end_to_those_that_nobody_gives_up() {
    let mut cluster = Cluster::of(2);
    cluster.hosts[0].engine.restore_numbers(LAST + 1);
    // Of all others somebody says that they are there, though nobody meets them now.
    let member = |node| Member::unseen(NodeIncarnation { node: NodeId(node), id: Incarnation(9) });
    let members = (2..=LAST).map(|node| (member(node), String::new())).collect();
    let seen = message::encode(&Message::Notice(Notice::Seen { members, ended: Vec::new() }));
    for frame in link::frames(&seen, 1 << 20) {
        cluster.hosts[0].engine.handle_message(cluster.now_ns, PeerId(2), &frame);
    }
    assert_eq!(cluster.command(1, Command::TakeNumber), Err(ErrorReply::NoNumbers.into()));
}
