//! Scenarios of draining nodes: their data moves to others, and nothing is lost.

use crate::common;

use common::{ARENA_BYTES, CHUNK_BYTES, Cluster, LEASE_NS};
use halite_tier::access::SlotRef;
use halite_tier::effect::{Command, CommandError, OpId, Outcome, Placement, Release};
use halite_tier::ids::NodeId;
use halite_tier::message::{Drained, ErrorReply, LeftoverCause, NodeState, RegionInfo};
use halite_tier::names::Service;
use halite_tier::permissions::Permissions;

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

fn info(cluster: &mut Cluster, host: usize, name: &str) -> RegionInfo {
    match cluster.command(host, Command::Stat(name.to_owned())) {
        Ok(Outcome::Info(info)) => *info,
        other => panic!("{name}: {other:?}"),
    }
}

/// The node leaves, and its goodbye arrives as late as possible: messages about other nodes arrive first on other
/// wires.
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
fn drained_regions_keep_names_handles_and_bytes() {
    let mut cluster = Cluster::of(3);
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let slots = names.map(|name| region_on(&mut cluster, name, 1));
    let theirs = cluster.map(2, "a");
    let outcome = drained(cluster.command(0, drain(1)));
    assert_eq!((outcome.moved, outcome.left_count), (10, 0), "{outcome:?}");
    assert_eq!(outcome.moved_bytes, 30 * CHUNK_BYTES);
    leave(&mut cluster, 1);
    for (name, slot) in names.iter().zip(slots) {
        assert_eq!(cluster.read(0, slot, 0, 1), name.as_bytes());
        assert_ne!(info(&mut cluster, 2, name).home, NodeId(1));
    }
    assert_eq!(cluster.read(2, theirs, 0, 1), b"a");
    let homes: Vec<NodeId> = names.iter().map(|name| info(&mut cluster, 0, name).home).collect();
    assert!(homes.contains(&NodeId(0)) && homes.contains(&NodeId(2)), "both have room: {homes:?}");
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
    let found = info(&mut cluster, 0, "spread");
    assert_eq!(found.home, NodeId(2), "the home stays");
    assert!(found.lost.is_empty() && found.nodes.iter().all(|(node, _)| *node != NodeId(1)), "{found:?}");
    assert_eq!(cluster.read(0, slot, 0, bytes.len()), bytes);
    assert_eq!(cluster.memory(0).1, 0);
}

/// Owners free chunks when their home ends.
#[test]
fn draining_a_home_moves_the_whole_region() {
    let mut cluster = Cluster::of(3);
    let slot = cluster.alloc(0, "two", 4 * CHUNK_BYTES, Placement::Spread(vec![NodeId(1), NodeId(2)]));
    cluster.write(0, slot, 0, &[7; 4 * CHUNK_BYTES as usize]);
    assert_eq!(drained(cluster.command(0, drain(1))).moved, 1);
    leave(&mut cluster, 1);
    assert_ne!(info(&mut cluster, 0, "two").home, NodeId(1));
    assert!(cluster.read(0, slot, 0, 4 * CHUNK_BYTES as usize).iter().all(|byte| *byte == 7));
}

/// Messages of the next homes are late everywhere, and the goodbye is not.
#[test]
fn goodbyes_before_the_next_home_lose_no_regions() {
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
    assert_eq!(info(&mut cluster, 0, "a").home, NodeId(2));
}

#[test]
fn draining_nodes_refuse_new_regions() {
    let mut cluster = Cluster::of(3);
    region_on(&mut cluster, "a", 1);
    // One mapper is slow to let go.
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
    for placement in [Placement::Anywhere, Placement::Spread(Vec::new())] {
        common::slot(cluster.command(0, allocation(placement.clone())));
        common::slot(cluster.command(1, allocation(placement)));
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
    assert_eq!(drained(cluster.outcome(0, op).unwrap()).left_count, 0);
}

/// The drain notice and the request cross: the request is refused and retried at another node, since it named none.
#[test]
fn anywhere_retries_after_a_crossing_drain() {
    let mut cluster = Cluster::of(2);
    let client = cluster.add(7, 0);
    cluster.submit(0, drain(0));
    let anywhere = cluster.submit(client, common::allocation(None, CHUNK_BYTES, Placement::Anywhere));
    cluster.run();
    let lh = common::slot(cluster.outcome(client, anywhere).expect("the command has ended"));
    assert_eq!(cluster.extents(client, lh)[0].owner.node, NodeId(1));
}

#[test]
fn leftovers_are_listed_with_causes_at_the_deadline() {
    let mut cluster = Cluster::of(2);
    region_on(&mut cluster, "a", 1);
    common::slot(cluster.command(0, common::allocation(None, ARENA_BYTES, Placement::Local)));
    let outcome = drained(cluster.command(0, drain(1)));
    let left = &outcome.left[0];
    assert_eq!((left.name.as_deref(), left.bytes), (Some("a"), 3 * CHUNK_BYTES));
    let is_full = |cause: &LeftoverCause| {
        matches!(cause, LeftoverCause::Refused(ErrorReply::NoSpace { .. }) | LeftoverCause::NoOtherNode)
    };
    assert!(is_full(&left.cause), "{left:?}");

    let mut cluster = Cluster::of(3);
    region_on(&mut cluster, "a", 1);
    cluster.map(2, "a");
    cluster.kills = false;
    cluster.stop(2);
    let op = cluster.submit(0, Command::Drain { node: NodeId(1), within_ns: LEASE_NS / 2, stays: false });
    cluster.run();
    assert!(!cluster.has_ended(0, op));
    cluster.sleep(LEASE_NS);
    let outcome = drained(cluster.outcome(0, op).unwrap());
    assert_eq!(outcome.left[0].cause, LeftoverCause::TimeOver);
}

#[test]
fn nodes_that_stay_resume_with_leftovers() {
    let mut cluster = Cluster::of(2);
    region_on(&mut cluster, "a", 1);
    common::slot(cluster.command(0, common::allocation(None, ARENA_BYTES, Placement::Local)));
    let order = Command::Drain { node: NodeId(1), within_ns: WITHIN_NS, stays: true };
    assert_eq!(drained(cluster.command(0, order)).left_count, 1);
    common::slot(cluster.command(0, common::allocation(None, CHUNK_BYTES, Placement::On(NodeId(1)))));
}

#[test]
fn the_last_memory_node_cannot_drain() {
    let mut cluster = Cluster::of(1);
    cluster.alloc(0, "a", CHUNK_BYTES, Placement::Local);
    let outcome = drained(cluster.command(0, drain(0)));
    assert_eq!((outcome.left_count, &outcome.left[0].cause), (1, &LeftoverCause::NoOtherNode));
}

// Locks and barriers.

fn anchors(cluster: &mut Cluster, service: Service, name: &str) -> (Vec<SlotRef>, usize) {
    let anchor = Command::Anchor { service, name: name.to_owned(), everyone: Permissions::ATOMIC };
    let mut slots = vec![common::slot(cluster.command(0, anchor))];
    for host in 1..cluster.hosts.len() {
        slots.push(cluster.map_for(host, &service.region_name(name), Permissions::ATOMIC));
    }
    let Ok(Outcome::Info(info)) = cluster.command(0, Command::StatHandle(slots[0])) else {
        panic!("no info")
    };
    (slots, info.home.0 as usize)
}

fn run(cluster: &mut Cluster, host: usize, command: Command) -> OpId {
    let op = cluster.submit(host, command);
    cluster.run();
    op
}

fn lock(slot: SlotRef) -> Command {
    Command::Lock { slot, wait: true, base_ns: 0 }
}

fn token(cluster: &mut Cluster, host: usize, op: OpId) -> (u64, bool) {
    match cluster.outcome(host, op) {
        Some(Ok(Outcome::Locked { token, recovered })) => (token, recovered),
        other => panic!("expected host {host} to hold the lock, not {other:?}"),
    }
}

#[test]
fn locks_move_with_holder_waiters_and_tokens() {
    let mut cluster = Cluster::of(4);
    let (slots, home) = anchors(&mut cluster, Service::Lock, "lock");
    let others: Vec<usize> = (0..4).filter(|host| *host != home).collect();
    let held = run(&mut cluster, others[0], lock(slots[others[0]]));
    let (first, _) = token(&mut cluster, others[0], held);
    let waiting = [1, 2].map(|index| run(&mut cluster, others[index], lock(slots[others[index]])));
    let outcome = drained(cluster.command(others[0], drain(home as u32)));
    assert_eq!((outcome.moved, outcome.left_count), (1, 0), "{outcome:?}");
    assert!(!cluster.has_ended(others[1], waiting[0]), "the lock is held");
    leave(&mut cluster, home);
    assert!(!cluster.has_ended(others[1], waiting[0]) && !cluster.has_ended(others[2], waiting[1]));
    let unlock = |host: usize| Command::Unlock { slot: slots[host], release: Release::Used };
    assert_eq!(cluster.command(others[0], unlock(others[0])), Ok(Outcome::Done));
    let ended: Vec<usize> =
        (0..2).filter(|index| cluster.has_ended(others[index + 1], waiting[*index])).collect();
    assert_eq!(ended.len(), 1, "one waiter holds it");
    let (next, last) = (ended[0], 1 - ended[0]);
    let (second, recovered) = token(&mut cluster, others[next + 1], waiting[next]);
    assert!(second > first && !recovered);
    assert_eq!(cluster.command(others[next + 1], unlock(others[next + 1])), Ok(Outcome::Done));
    let (third, recovered) = token(&mut cluster, others[last + 1], waiting[last]);
    assert!(third > second && !recovered);
}

#[test]
fn withdrawn_waiters_of_a_moving_lock_are_not_granted_it() {
    let mut cluster = Cluster::of(4);
    let (slots, home) = anchors(&mut cluster, Service::Lock, "lock");
    let others: Vec<usize> = (0..4).filter(|host| *host != home).collect();
    let held = run(&mut cluster, others[0], lock(slots[others[0]]));
    token(&mut cluster, others[0], held);
    for steps in 0..40 {
        let waiting = run(&mut cluster, others[1], lock(slots[others[1]]));
        let to = cluster.submit(others[2], Command::StatHandle(slots[others[2]]));
        cluster.run();
        let Some(Ok(Outcome::Info(info))) = cluster.outcome(others[2], to) else { panic!("no info") };
        let at = info.home;
        let order = Command::Drain { node: at, within_ns: WITHIN_NS, stays: true };
        let op = cluster.submit(others[2], order);
        for _ in 0..steps {
            cluster.step();
        }
        cluster.submit(others[1], Command::Withdraw(waiting));
        cluster.run();
        drained(cluster.outcome(others[2], op).unwrap());
        if steps == 0 {
            leave(&mut cluster, home);
            break;
        }
    }
    let unlock = Command::Unlock { slot: slots[others[0]], release: Release::Used };
    assert_eq!(cluster.command(others[0], unlock), Ok(Outcome::Done));
    let last = run(&mut cluster, others[2], lock(slots[others[2]]));
    assert!(!token(&mut cluster, others[2], last).1, "no other session was granted it");
}

#[test]
fn barriers_move_with_their_participants() {
    let mut cluster = Cluster::of(4);
    let (slots, home) = anchors(&mut cluster, Service::Barrier, "barrier");
    let others: Vec<usize> = (0..4).filter(|host| *host != home).collect();
    let arrive = |slot| Command::Arrive { slot, participants: 3, timeout_ns: 50 * LEASE_NS };
    let early = [0, 1].map(|index| run(&mut cluster, others[index], arrive(slots[others[index]])));
    assert_eq!(drained(cluster.command(others[2], drain(home as u32))).left_count, 0);
    leave(&mut cluster, home);
    assert!(!cluster.has_ended(others[0], early[0]));
    let last = run(&mut cluster, others[2], arrive(slots[others[2]]));
    for (index, op) in [early[0], early[1], last].into_iter().enumerate() {
        assert_eq!(cluster.outcome(others[index], op), Some(Ok(Outcome::Passed { round: 1 })));
    }
}

/// The holder is connected to the old home and not to the next one: it may still work under its lock.
#[test]
fn moved_locks_wait_for_guards_of_unconnected_holders() {
    let mut cluster = Cluster::of(3);
    cluster.kills = false;
    cluster.adapters = true;
    let (slots, home) = anchors(&mut cluster, Service::Lock, "lock");
    let [holder, next] = match home {
        0 => [1, 2],
        1 => [0, 2],
        _ => [0, 1],
    };
    let op = run(&mut cluster, holder, lock(slots[holder]));
    token(&mut cluster, holder, op);
    cluster.part(&[holder], &[next]);
    cluster.sleep(2 * LEASE_NS);
    assert_eq!(drained(cluster.command(home, drain(home as u32))).left_count, 0);
    let waiting = run(&mut cluster, next, lock(slots[next]));
    assert!(!cluster.has_ended(next, waiting), "its guard may not have expired");
    cluster.sleep(2 * LEASE_NS);
    assert!(token(&mut cluster, next, waiting).1, "recovered");
}
