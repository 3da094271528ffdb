//! Stories of regions whose memory is taken from the system by the nodes that hold it, before anybody writes there.

use crate::common;

use common::{CHUNK_BYTES, Cluster, slot};
use halite_tier::effect::{Command, Placement};
use halite_tier::ids::NodeId;
use halite_tier::message::ErrorReply;
use halite_tier::permissions::Permissions;

const LEN: u64 = 10 * CHUNK_BYTES;

fn alloc(name: &str, placement: Placement) -> Command {
    Command::Alloc {
        name: Some(name.to_owned()),
        len: LEN,
        chunk_bytes: CHUNK_BYTES,
        placement,
        everyone: Permissions::empty(),
        populate: true,
    }
}

fn both() -> Placement {
    Placement::Spread(vec![NodeId(0), NodeId(1)])
}

#[test]
fn a_populated_region_is_there_only_when_every_owner_has_its_memory() {
    let mut cluster = Cluster::of(2);
    cluster.slow_to_populate = true;
    let op = cluster.submit(0, alloc("salt", both()));
    cluster.run();
    assert!(!cluster.has_ended(0, op), "nobody has asked the system yet");
    cluster.memory_left = LEN;
    cluster.populate();
    cluster.run();
    let lh = slot(cluster.outcome(0, op).expect("all is there"));
    assert_eq!(cluster.memory_left, 0, "each byte was asked for once");
    assert!(cluster.read(0, lh, 0, LEN as usize).iter().all(|byte| *byte == 0));
}

#[test]
fn memory_that_the_system_refuses_is_an_error_that_keeps_nothing() {
    let mut cluster = Cluster::of(2);
    cluster.memory_left = LEN / 2;
    let refused = cluster.command(0, alloc("salt", both()));
    let (wanted, given) = (LEN / 2, 0);
    assert_eq!(refused, Err(ErrorReply::OutOfMemory { node: NodeId(1), wanted, given }.into()));
    assert_eq!((cluster.memory(0), cluster.memory(1)), ((0, 0), (0, 0)));
    cluster.memory_left = LEN;
    slot(cluster.command(1, alloc("salt", both())));
}

#[test]
fn a_region_that_may_be_anywhere_goes_where_the_system_has_memory() {
    let mut cluster = Cluster::of(2);
    cluster.slow_to_populate = true;
    let op = cluster.submit(0, alloc("salt", Placement::Anywhere));
    cluster.run();
    cluster.memory_left = 0;
    cluster.populate();
    cluster.memory_left = LEN;
    cluster.slow_to_populate = false;
    cluster.run();
    let lh = slot(cluster.outcome(0, op).expect("the other node had memory"));
    assert_eq!(cluster.extents(0, lh)[0].owner.node, NodeId(1));
}

#[test]
fn an_owner_frees_what_it_populates_for_a_home_that_dies() {
    let mut cluster = Cluster::of(3);
    cluster.slow_to_populate = true;
    cluster.submit(0, alloc("salt", Placement::Spread(vec![NodeId(1), NodeId(2)])));
    cluster.run();
    cluster.kill(1);
    cluster.run();
    // The driver of node 2 still touches that memory: it is not given out again yet.
    assert!(cluster.memory(2).0 > 0);
    cluster.populate();
    cluster.run();
    assert_eq!(cluster.memory(2), (0, 0));
}
