//! Stories of nodes that are drained: what they have goes to others, and nobody misses it.

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
        other => panic!("the node should be drained: {other:?}"),
    }
}

fn info(cluster: &mut Cluster, host: usize, name: &str) -> RegionInfo {
    match cluster.command(host, Command::Stat(name.to_owned())) {
        Ok(Outcome::Info(info)) => *info,
        other => panic!("{name} should be there: {other:?}"),
    }
}

/// The node says goodbye, and everybody hears it as late as can be: what it said of others comes by their wires.
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
fn regions_of_a_drained_node_live_on_with_their_names_handles_and_bytes() {
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
fn a_node_that_holds_a_part_of_regions_gives_up_that_part_and_the_rest_stays() {
    let mut cluster = Cluster::of(4);
    let spread = Placement::Spread(vec![NodeId(2), NodeId(1), NodeId(3)]);
    let slot = cluster.alloc(0, "spread", 6 * CHUNK_BYTES, spread);
    let bytes: Vec<u8> = (0..6 * CHUNK_BYTES).map(|at| (at / CHUNK_BYTES) as u8 + 1).collect();
    cluster.write(0, slot, 0, &bytes);
    let outcome = drained(cluster.command(0, drain(1)));
    assert_eq!((outcome.moved, outcome.moved_bytes, outcome.left_count), (1, 2 * CHUNK_BYTES, 0));
    leave(&mut cluster, 1);
    let found = info(&mut cluster, 0, "spread");
    assert_eq!(found.home, NodeId(2), "the home has nothing to do with that");
    assert!(found.lost.is_empty() && found.nodes.iter().all(|(node, _)| *node != NodeId(1)), "{found:?}");
    assert_eq!(cluster.read(0, slot, 0, bytes.len()), bytes);
    assert_eq!(cluster.memory(0).1, 0);
}

/// Who holds chunks frees them when their home ends.
#[test]
fn all_of_a_region_goes_with_its_home() {
    let mut cluster = Cluster::of(3);
    let slot = cluster.alloc(0, "two", 4 * CHUNK_BYTES, Placement::Spread(vec![NodeId(1), NodeId(2)]));
    cluster.write(0, slot, 0, &[7; 4 * CHUNK_BYTES as usize]);
    assert_eq!(drained(cluster.command(0, drain(1))).moved, 1);
    leave(&mut cluster, 1);
    assert_ne!(info(&mut cluster, 0, "two").home, NodeId(1));
    assert!(cluster.read(0, slot, 0, 4 * CHUNK_BYTES as usize).iter().all(|byte| *byte == 7));
}

/// What the new homes say is late everywhere, and the goodbye is not.
#[test]
fn who_hears_the_goodbye_before_the_next_home_does_not_take_regions_for_lost() {
    let mut cluster = Cluster::of(3);
    let slot = region_on(&mut cluster, "a", 1);
    cluster.command(2, Command::Status).unwrap();
    let op = cluster.submit(0, drain(1));
    // Room for it is at node 2 alone.
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
fn a_node_that_is_drained_takes_nothing_new_and_others_are_chosen() {
    let mut cluster = Cluster::of(3);
    region_on(&mut cluster, "a", 1);
    // Somebody is slow to let go.
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
    // Who joins meanwhile hears of it.
    let late = cluster.add(7, 0);
    for _ in 0..4 {
        let lh = common::slot(cluster.command(late, allocation(Placement::Anywhere)));
        assert_ne!(cluster.extents(late, lh)[0].owner.node, NodeId(1));
    }
    cluster.held.clear();
    cluster.run();
    assert_eq!(drained(cluster.outcome(0, op).unwrap()).left_count, 0);
}

/// Its word and the request cross: it is refused there, and goes to another node, for nobody has named that one.
#[test]
fn who_takes_any_node_takes_another_one_where_the_first_has_just_begun_to_leave() {
    let mut cluster = Cluster::of(2);
    let client = cluster.add(7, 0);
    cluster.submit(0, drain(0));
    let anywhere = cluster.submit(client, common::allocation(None, CHUNK_BYTES, Placement::Anywhere));
    cluster.run();
    let lh = common::slot(cluster.outcome(client, anywhere).expect("it has ended"));
    assert_eq!(cluster.extents(client, lh)[0].owner.node, NodeId(1));
}

#[test]
fn what_cannot_be_moved_is_named_with_the_reason_when_the_time_is_over() {
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
fn a_node_that_may_stay_goes_on_as_before_when_something_is_left() {
    let mut cluster = Cluster::of(2);
    region_on(&mut cluster, "a", 1);
    common::slot(cluster.command(0, common::allocation(None, ARENA_BYTES, Placement::Local)));
    let order = Command::Drain { node: NodeId(1), within_ns: WITHIN_NS, stays: true };
    assert_eq!(drained(cluster.command(0, order)).left_count, 1);
    common::slot(cluster.command(0, common::allocation(None, CHUNK_BYTES, Placement::On(NodeId(1)))));
}

#[test]
fn the_last_node_with_memory_has_nobody_to_bring_anything_to() {
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
        other => panic!("host {host} should hold the lock: {other:?}"),
    }
}

#[test]
fn a_lock_moves_with_its_holder_and_with_those_who_wait_and_tokens_rise() {
    let mut cluster = Cluster::of(4);
    let (slots, home) = anchors(&mut cluster, Service::Lock, "lock");
    let others: Vec<usize> = (0..4).filter(|host| *host != home).collect();
    let held = run(&mut cluster, others[0], lock(slots[others[0]]));
    let (first, _) = token(&mut cluster, others[0], held);
    let waiting = [1, 2].map(|index| run(&mut cluster, others[index], lock(slots[others[index]])));
    let outcome = drained(cluster.command(others[0], drain(home as u32)));
    assert_eq!((outcome.moved, outcome.left_count), (1, 0), "{outcome:?}");
    assert!(!cluster.has_ended(others[1], waiting[0]), "it is held");
    leave(&mut cluster, home);
    assert!(!cluster.has_ended(others[1], waiting[0]) && !cluster.has_ended(others[2], waiting[1]));
    let unlock = |host: usize| Command::Unlock { slot: slots[host], release: Release::Used };
    assert_eq!(cluster.command(others[0], unlock(others[0])), Ok(Outcome::Done));
    let ended: Vec<usize> =
        (0..2).filter(|index| cluster.has_ended(others[index + 1], waiting[*index])).collect();
    assert_eq!(ended.len(), 1, "one of them has it");
    let (next, last) = (ended[0], 1 - ended[0]);
    let (second, recovered) = token(&mut cluster, others[next + 1], waiting[next]);
    assert!(second > first && !recovered);
    assert_eq!(cluster.command(others[next + 1], unlock(others[next + 1])), Ok(Outcome::Done));
    let (third, recovered) = token(&mut cluster, others[last + 1], waiting[last]);
    assert!(third > second && !recovered);
}

#[test]
fn who_gives_up_waiting_while_the_lock_moves_is_not_given_it() {
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
    assert!(!token(&mut cluster, others[2], last).1, "nobody else was given it");
}

#[test]
fn those_at_a_barrier_that_moves_pass_it_together() {
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

/// The holder hears the old home and not the next one: it may be at work under its lock still.
#[test]
fn a_lock_is_not_taken_from_a_holder_whom_the_next_home_does_not_hear_before_its_guard_is_over() {
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
    assert!(!cluster.has_ended(next, waiting), "its guard may not be over");
    cluster.sleep(2 * LEASE_NS);
    assert!(token(&mut cluster, next, waiting).1, "and then it is recovered");
}
