//! Scenarios of losses, and how they are reported.

use crate::common;

use common::{CHUNK_BYTES, Cluster, LEASE_NS};
use halite_tier::effect::{Command, CommandError, Outcome, Placement};
use halite_tier::ids::{NodeId, NodeIncarnation};
use halite_tier::message::{ErrorReply, Loss, LossCause, LostName, NodeStatus};
use halite_tier::permissions::Permissions;

const LEN: u64 = 3 * CHUNK_BYTES;

/// The refusal for a name that cannot be mapped.
fn refusal(cluster: &mut Cluster, host: usize, name: &str) -> ErrorReply {
    let by_map = cluster.command(host, Command::Map { name: name.into(), wanted: Permissions::READ });
    let by_stat = cluster.command(host, Command::Stat(name.into()));
    assert_eq!(by_map, by_stat, "all commands agree");
    match by_map {
        Err(CommandError::Refused(refusal)) => refusal,
        other => panic!("{name:?} is found: {other:?}"),
    }
}

fn loss(cluster: &mut Cluster, host: usize, name: &str) -> (NodeIncarnation, Loss) {
    match refusal(cluster, host, name) {
        ErrorReply::Lost { home, loss } => (home, loss),
        other => panic!("{name:?}: {other}"),
    }
}

fn lost_names(cluster: &mut Cluster, host: usize) -> Vec<LostName> {
    match cluster.command(host, Command::ListLost) {
        Ok(Outcome::Lost(names)) => names,
        other => panic!("{other:?}"),
    }
}

fn status(cluster: &mut Cluster, host: usize) -> Vec<NodeStatus> {
    match cluster.command(host, Command::Status) {
        Ok(Outcome::Status(nodes)) => nodes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn losses_are_dated_by_last_contact_not_restart() {
    let mut cluster = Cluster::of(3);
    cluster.kills = false;
    cluster.adapters = true;
    cluster.alloc(2, "salt", LEN, Placement::Local);
    let dead = cluster.hosts[2].incarnation;
    // Its host loses power: no node sees how its process ends.
    cluster.part(&[2], &[0, 1]);
    let heard_ns = cluster.now_ns;
    cluster.hosts[2].running = false;
    cluster.sleep(10 * LEASE_NS);
    cluster.add(2, common::ARENA_BYTES);
    for host in [0, 1] {
        let age_ns = cluster.now_ns - heard_ns;
        let unreachable = Loss { cause: LossCause::Unreachable, age_ns };
        assert_eq!(loss(&mut cluster, host, "salt"), (dead, unreachable), "at host {host}");
    }
}

#[test]
fn ephemeral_nodes_are_remembered_for_regions_only() {
    const COUNT: u32 = 20;
    let mut cluster = Cluster::of(2);
    for number in 0..COUNT {
        let ephemeral = cluster.add(1000 + number, 1 << 20);
        cluster.alloc(ephemeral, &format!("salt {number:02}"), CHUNK_BYTES, Placement::Local);
        cluster.kill(ephemeral);
        cluster.run();
    }
    // A node that knows 1020 knows that all lower ephemeral numbers were issued.
    let late = cluster.add(1000 + COUNT, 0);
    for host in [0, 1, late] {
        let nodes: Vec<u32> = status(&mut cluster, host).iter().map(|status| status.node.0).collect();
        assert_eq!(nodes, [0, 1, 1000 + COUNT], "at host {host}");
        let knows = |node: u32| cluster.hosts[host].engine.knows(NodeId(node));
        assert_eq!([1000, 1000 + COUNT, 1001 + COUNT, 77].map(knows), [true, true, false, false]);
    }
    assert_eq!(lost_names(&mut cluster, late).len(), COUNT as usize);
    assert_eq!(cluster.command(late, Command::ForgetNode(NodeId(1003))), Ok(Outcome::Done));
    assert_eq!(refusal(&mut cluster, late, "salt 03"), ErrorReply::NotFound);
    assert_eq!(loss(&mut cluster, late, "salt 04").0.node, NodeId(1004));
}
