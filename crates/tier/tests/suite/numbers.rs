//! Numbers of permanent nodes: the directory reissues the number of a node that has left only after it has issued all
//! numbers.

use crate::common;

use common::{ARENA_BYTES, CHUNK_BYTES, Cluster};
use halite_tier::effect::{Command, Outcome, Placement};
use halite_tier::ids::{Incarnation, NodeId, NodeIncarnation};
use halite_tier::message::{ErrorReply, Member, Message, Notice};

fn take(cluster: &mut Cluster, host: usize) -> u32 {
    match cluster.command(host, Command::TakeNumber) {
        Ok(Outcome::Number(number)) => number.0,
        other => panic!("{other:?}"),
    }
}

const LAST: u32 = NodeId::EPHEMERAL_MIN.0 - 1;

#[test]
fn freed_numbers_are_reissued_after_exhaustion() {
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
    // The other numbers are unused; concurrent requesters receive different ones while they join.
    let again: Vec<u32> = (0..LAST - 2).map(|_| take(&mut cluster, 1)).collect();
    let given_up: Vec<u32> = (2..=LAST).filter(|node| *node != 9).collect();
    assert_eq!(again, given_up, "except the dead node's, which may return");
    assert_eq!(take(&mut cluster, 1), 2, "cyclically");
    // A node that takes a reissued number is a node like any other.
    let newcomer = cluster.add(5, ARENA_BYTES);
    cluster.alloc(newcomer, "salt", CHUNK_BYTES, Placement::Local);
    cluster.map(1, "salt");
    assert_eq!([3, 4, 6].map(|_| take(&mut cluster, 1)), [3, 4, 6], "taken again");
}

#[test]
fn numbers_run_out_if_none_is_freed() {
    let mut cluster = Cluster::of(2);
    cluster.hosts[0].engine.restore_numbers(LAST + 1);
    // The store reports members of all other numbers, though none is connected now.
    let member = |node| Member::unseen(NodeIncarnation { node: NodeId(node), id: Incarnation(9) });
    let members = (2..=LAST).map(|node| (member(node), String::new())).collect();
    cluster.forge(1, 0, &Message::Notice(Notice::Seen { members, ended: Vec::new() }));
    assert_eq!(cluster.command(1, Command::TakeNumber), Err(ErrorReply::NoNumbers.into()));
}
