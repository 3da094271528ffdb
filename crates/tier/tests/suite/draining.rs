//! Scenarios of draining nodes: their data moves to others, and nothing is lost.

use crate::common;

use super::locks::{lock, lock_of_all, locked, submit_and_run, unlock};
use common::{ARENA_BYTES, CHUNK_BYTES, Cluster, LEASE_NS};
use halite_tier::access::SlotRef;
use halite_tier::effect::{Command, CommandError, Outcome, Placement};
use halite_tier::ids::NodeId;
use halite_tier::message::{Drained, ErrorReply, NodeState};

const WITHIN_NS: u64 = 100 * LEASE_NS;

fn drain(node: u32) -> Command {
    Command::Drain { node: NodeId(node), within_ns: WITHIN_NS, stays: false }
}

fn drained(outcome: Result<Outcome, CommandError>) -> Drained {
    match outcome {
        Ok(Outcome::Drained(drained)) => *drained,
        other => panic!("expected a drained node, not {other:?}"),
    }
}

/// Makes a node leave: delivers its notices, then ends its process.
fn leave(cluster: &mut Cluster, host: usize) {
    cluster.hosts[host].engine.leave(cluster.now_ns);
    cluster.run();
    cluster.kill(host);
    cluster.run();
}

fn region_on(cluster: &mut Cluster, name: &str, node: u32) -> SlotRef {
    let slot = cluster.alloc(0, name, 3 * CHUNK_BYTES, Placement::On(NodeId(node)));
    cluster.write(0, slot, 0, name.as_bytes());
    slot
}

#[test]
fn owners_drain_their_chunks_only() {
    let mut cluster = Cluster::of(4);
    let spread = Placement::Spread(vec![NodeId(2), NodeId(1), NodeId(3)]);
    let slot = cluster.alloc(0, "spread", 6 * CHUNK_BYTES, spread);
    let bytes: Vec<u8> = (0..6 * CHUNK_BYTES).map(|at| (at / CHUNK_BYTES) as u8 + 1).collect();
    cluster.write(0, slot, 0, &bytes);
    let outcome = drained(cluster.command(0, drain(1)));
    assert_eq!((outcome.moved, outcome.moved_bytes, outcome.left_count), (1, 2 * CHUNK_BYTES, 0));
    leave(&mut cluster, 1);
    let found = cluster.info(0, "spread");
    assert_eq!(found.home, NodeId(2), "the home stays");
    assert!(found.lost.is_empty() && found.nodes.iter().all(|(node, _)| *node != NodeId(1)), "{found:?}");
    assert_eq!(cluster.read(0, slot, 0, bytes.len()), bytes);
    assert_eq!(cluster.memory(0).1, 0);
}

/// The leave notice arrives before the messages of the next home.
#[test]
fn early_leave_notices_lose_no_regions() {
    let mut cluster = Cluster::of(3);
    let slot = region_on(&mut cluster, "a", 1);
    cluster.command(2, Command::Status).unwrap();
    let op = cluster.submit(0, drain(1));
    // Only node 2 has room for it.
    let filler = cluster.submit(0, common::allocation(None, ARENA_BYTES - CHUNK_BYTES, Placement::Local));
    while cluster.copies_under_way() == 0 && !cluster.has_ended(0, op) && cluster.step() {}
    cluster.held = vec![(2, 0)];
    cluster.run();
    cluster.hosts[1].engine.leave(cluster.now_ns);
    cluster.run();
    cluster.held.clear();
    cluster.run();
    assert!(cluster.outcome(0, filler).is_some());
    leave(&mut cluster, 1);
    assert_eq!(cluster.read(0, slot, 0, 1), b"a");
    assert_eq!(cluster.info(0, "a").home, NodeId(2));
}

#[test]
fn draining_nodes_refuse_new_regions() {
    let mut cluster = Cluster::of(3);
    region_on(&mut cluster, "a", 1);
    // One mapper acknowledges late.
    cluster.map(2, "a");
    cluster.held = vec![(2, 1)];
    let op = cluster.submit(0, drain(1));
    cluster.run();
    assert!(!cluster.has_ended(0, op));
    let allocation = |placement| common::allocation(None, CHUNK_BYTES, placement);
    let refused = cluster.command(0, allocation(Placement::On(NodeId(1))));
    assert_eq!(refused, Err(ErrorReply::Draining(NodeId(1)).into()));
    let partly = Placement::Spread(vec![NodeId(0), NodeId(1)]);
    let both = common::allocation(None, 2 * CHUNK_BYTES, partly);
    assert_eq!(cluster.command(0, both), Err(ErrorReply::Draining(NodeId(1)).into()));
    let local = cluster.command(1, allocation(Placement::Local));
    assert_eq!(local, Err(ErrorReply::Draining(NodeId(1)).into()));
    // This may choose node 2, whose answers are held.
    let elsewhere = cluster.submit(1, allocation(Placement::Anywhere));
    common::slot(cluster.command(0, allocation(Placement::Anywhere)));
    for host in [0, 1] {
        common::slot(cluster.command(host, allocation(Placement::Spread(Vec::new()))));
    }
    let Ok(Outcome::Status(nodes)) = cluster.command(0, Command::Status) else { panic!() };
    assert_eq!(nodes[1].state, NodeState::Draining);
    // A node that joins meanwhile learns of the drain.
    let late = cluster.add(7, 0);
    for _ in 0..4 {
        let lh = common::slot(cluster.command(late, allocation(Placement::Anywhere)));
        assert_ne!(cluster.extents(late, lh)[0].owner.node, NodeId(1));
    }
    cluster.held.clear();
    cluster.run();
    common::slot(cluster.outcome(1, elsewhere).unwrap());
    assert_eq!(drained(cluster.outcome(0, op).unwrap()).left_count, 0);
}

/// The deadline passes while a chunk is being copied.
#[test]
fn nothing_moves_after_a_refused_drain() {
    for home in [1, 2] {
        let mut cluster = Cluster::of(3);
        let chunks = Placement::Spread(vec![NodeId(home), NodeId(1)]);
        let slot = cluster.alloc(0, "a", 4 * CHUNK_BYTES, chunks);
        cluster.write(0, slot, 0, b"salt");
        let before = cluster.info(0, "a");
        let used: Vec<u64> = (0..3).map(|host| cluster.memory(host).0).collect();
        let within_ns = LEASE_NS / 4;
        let op = cluster.submit(0, Command::Drain { node: NodeId(1), within_ns, stays: true });
        cluster.slow_to_copy = true;
        while cluster.copies_under_way() == 0 && cluster.step() {}
        cluster.pass(within_ns);
        cluster.run();
        cluster.slow_to_copy = false;
        cluster.run();
        let outcome = drained(cluster.outcome(0, op).unwrap());
        assert_eq!((outcome.moved, outcome.left_count), (0, 1), "{outcome:?}");
        cluster.sleep(2 * LEASE_NS);
        let after = cluster.info(0, "a");
        assert_eq!((after.home, &after.nodes), (before.home, &before.nodes));
        assert_eq!(cluster.read(0, slot, 0, 4), b"salt");
        assert_eq!((0..3).map(|host| cluster.memory(host).0).collect::<Vec<_>>(), used);
        // A later drain moves the region.
        assert_eq!(drained(cluster.command(0, drain(1))).left_count, 0);
    }
}

// Locks.

#[test]
fn locks_move_with_holder_waiters_and_tokens() {
    let mut cluster = Cluster::of(4);
    let (slots, home) = lock_of_all(&mut cluster);
    let others: Vec<usize> = (0..4).filter(|host| *host != home).collect();
    let held = submit_and_run(&mut cluster, others[0], lock(slots[others[0]]));
    let (first, _) = locked(&mut cluster, others[0], held);
    let waiting = [1, 2].map(|index| submit_and_run(&mut cluster, others[index], lock(slots[others[index]])));
    let outcome = drained(cluster.command(others[0], drain(home as u32)));
    assert_eq!((outcome.moved, outcome.left_count), (1, 0), "{outcome:?}");
    assert!(!cluster.has_ended(others[1], waiting[0]), "the lock is held");
    leave(&mut cluster, home);
    assert!(!cluster.has_ended(others[1], waiting[0]) && !cluster.has_ended(others[2], waiting[1]));
    assert_eq!(cluster.command(others[0], unlock(slots[others[0]])), Ok(Outcome::Done));
    let ended: Vec<usize> =
        (0..2).filter(|index| cluster.has_ended(others[index + 1], waiting[*index])).collect();
    assert_eq!(ended.len(), 1, "one waiter holds it");
    let (next, last) = (ended[0], 1 - ended[0]);
    let (second, recovered) = locked(&mut cluster, others[next + 1], waiting[next]);
    assert!(second > first && !recovered);
    assert_eq!(cluster.command(others[next + 1], unlock(slots[others[next + 1]])), Ok(Outcome::Done));
    let (third, recovered) = locked(&mut cluster, others[last + 1], waiting[last]);
    assert!(third > second && !recovered);
}

/// The holder is connected to the former home but not to the next home, so it may still rely on the lock.
#[test]
fn moved_locks_wait_for_guards_of_unconnected_holders() {
    let mut cluster = Cluster::of(3);
    cluster.kills = false;
    cluster.adapters = true;
    let (slots, home) = lock_of_all(&mut cluster);
    let [holder, next] = match home {
        0 => [1, 2],
        1 => [0, 2],
        _ => [0, 1],
    };
    let op = submit_and_run(&mut cluster, holder, lock(slots[holder]));
    locked(&mut cluster, holder, op);
    cluster.part(&[holder], &[next]);
    cluster.sleep(2 * LEASE_NS);
    assert_eq!(drained(cluster.command(home, drain(home as u32))).left_count, 0);
    let waiting = submit_and_run(&mut cluster, next, lock(slots[next]));
    assert!(!cluster.has_ended(next, waiting), "its guard may not have expired");
    cluster.sleep(2 * LEASE_NS);
    assert!(locked(&mut cluster, next, waiting).1, "recovered");
}

/// A node that is cut off keeps trying until its deadline, because its regions are lost when it leaves.
#[test]
fn a_drain_waits_for_nodes_out_of_reach() {
    for heals in [true, false] {
        let mut cluster = Cluster::of(2);
        cluster.adapters = true;
        region_on(&mut cluster, "salt", 1);
        cluster.part(&[0], &[1]);
        // The other node is lost before the drain, or during it.
        cluster.sleep(if heals { 3 } else { 0 } * LEASE_NS);
        let draining =
            cluster.submit(1, Command::Drain { node: NodeId(1), within_ns: 8 * LEASE_NS, stays: false });
        cluster.sleep(4 * LEASE_NS);
        assert!(!cluster.has_ended(1, draining), "there is time left");
        if heals {
            cluster.cut.clear();
        }
        cluster.sleep(5 * LEASE_NS);
        let outcome = drained(cluster.outcome(1, draining).expect("the time is over"));
        assert_eq!((outcome.moved, outcome.left_count), if heals { (1, 0) } else { (0, 1) }, "{outcome:?}");
    }
}

/// The leave notice does not reach the directory's node, but a node that received it reports to the directory.
#[test]
fn leaving_behind_a_cut_link_is_reported_as_left() {
    let mut cluster = Cluster::of(3);
    cluster.adapters = true;
    cluster.part(&[0], &[1]);
    cluster.sleep(3 * LEASE_NS);
    let state = |cluster: &mut Cluster| match cluster.command(0, Command::Status) {
        Ok(Outcome::Status(nodes)) => nodes[1].state,
        other => panic!("{other:?}"),
    };
    assert_eq!(state(&mut cluster), NodeState::Unreachable);
    cluster.hosts[1].engine.leave(cluster.now_ns);
    cluster.run();
    cluster.stop(1);
    cluster.sleep(LEASE_NS);
    assert_eq!(state(&mut cluster), NodeState::Left);
}
