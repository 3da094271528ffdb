//! Scenarios of regions whose owners allocate their pages before the first write.

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
fn populated_regions_exist_once_all_pages_do() {
    let mut cluster = Cluster::of(2);
    cluster.slow_to_populate = true;
    let op = cluster.submit(0, alloc("salt", both()));
    cluster.run();
    assert!(!cluster.has_ended(0, op), "the system was not asked yet");
    cluster.memory_left = LEN;
    cluster.populate();
    cluster.run();
    let lh = slot(cluster.outcome(0, op).expect("the region exists"));
    assert_eq!(cluster.memory_left, 0, "each byte was requested once");
    assert!(cluster.read(0, lh, 0, LEN as usize).iter().all(|byte| *byte == 0));
}

#[test]
fn refused_memory_is_an_error_and_keeps_nothing() {
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
fn anywhere_follows_available_memory() {
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
fn owners_free_populations_of_dead_homes() {
    let mut cluster = Cluster::of(3);
    cluster.slow_to_populate = true;
    cluster.submit(0, alloc("salt", Placement::Spread(vec![NodeId(1), NodeId(2)])));
    cluster.run();
    cluster.kill(1);
    cluster.run();
    // The driver of node 2 still touches that memory: it is not reused yet.
    assert!(cluster.memory(2).0 > 0);
    cluster.populate();
    cluster.run();
    assert_eq!(cluster.memory(2), (0, 0));
}
