//! Scenarios of several engines: regions are shared, moved and freed, and nodes die.

use crate::common;

use common::{CHUNK_BYTES, Cluster, LEASE_NS, allocation, slot};
use fastrand::Rng;
use halite_tier::access::{Blocked, SlotRef};
use halite_tier::effect::{Command, CommandError, Outcome, Placement};
use halite_tier::ids::{NodeId, Principal};
use halite_tier::message::{ErrorReply, NodeState, RegionCommand, RegionInfo};
use halite_tier::permissions::{Grantee, Permissions};

const LEN: u64 = 3 * CHUNK_BYTES + 5;

fn pattern(seed: u8, len: u64) -> Vec<u8> {
    (0..len).map(|index| (index as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn info(cluster: &mut Cluster, host: usize, name: &str) -> RegionInfo {
    match cluster.command(host, Command::Stat(name.into())) {
        Ok(Outcome::Info(info)) => *info,
        other => panic!("stat answers {other:?}"),
    }
}

fn order(cluster: &mut Cluster, host: usize, lh: halite_tier::access::SlotRef, order: RegionCommand) {
    assert_eq!(cluster.command(host, Command::RegionCommand(lh, order)), Ok(Outcome::Done));
}

#[test]
fn writes_are_read_under_the_same_name() {
    let mut cluster = Cluster::of(3);
    let theirs = cluster.alloc(1, "salt", LEN, Placement::On(NodeId(2)));
    let ours = cluster.map(0, "salt");
    cluster.write(1, theirs, 7, b"crystals");
    assert_eq!(cluster.read(0, ours, 7, 8), b"crystals");
    let info = info(&mut cluster, 0, "salt");
    assert_eq!((info.home, info.nodes), (NodeId(2), vec![(NodeId(2), LEN)]));
    assert_eq!(info.mappers, vec![NodeId(1), NodeId(0)]);
}

#[test]
fn heartbeats_keep_idle_nodes_alive_and_asleep() {
    let mut cluster = Cluster::of(3);
    let rings = cluster.rings;
    cluster.sleep(10 * LEASE_NS);
    assert_eq!(cluster.rings, rings, "a heartbeat rings no doorbell");
    assert!(cluster.hosts[0].engine.is_connected_to(NodeId(2)));
    cluster.alloc(1, "salt", LEN, Placement::On(NodeId(2)));
    assert!(cluster.rings > rings, "a request rings the doorbell");
}

#[test]
fn spread_regions_are_dealt_out_and_freed_everywhere() {
    let mut cluster = Cluster::of(3);
    let nodes = vec![NodeId(2), NodeId(0), NodeId(1)];
    let lh = cluster.alloc(0, "wide", 7 * CHUNK_BYTES + 1, Placement::Spread(nodes));
    let bytes = pattern(1, 7 * CHUNK_BYTES + 1);
    cluster.write(0, lh, 0, &bytes);
    let other = cluster.map_for(1, "wide", Permissions::READ | Permissions::MASTER);
    assert_eq!(cluster.read(1, other, 0, bytes.len()), bytes);
    let info = info(&mut cluster, 0, "wide");
    assert_eq!(
        info.nodes,
        vec![(NodeId(0), 2 * CHUNK_BYTES + 1), (NodeId(1), 2 * CHUNK_BYTES), (NodeId(2), 3 * CHUNK_BYTES)]
    );
    order(&mut cluster, 1, other, RegionCommand::Free);
    for host in 0..3 {
        assert_eq!(cluster.memory(host), (0, 0), "host {host}");
    }
    assert!(matches!(
        cluster.hosts[0].path.read(cluster.hosts[0].session, lh, 0, &mut [0]),
        Err(Blocked::Stale)
    ));
}

#[test]
fn taken_names_cost_no_memory() {
    let mut cluster = Cluster::of(2);
    cluster.alloc(0, "salt", LEN, Placement::Local);
    let again = allocation(Some("salt"), LEN, Placement::Spread(vec![NodeId(1), NodeId(0)]));
    let before = cluster.memory(0);
    assert_eq!(cluster.command(1, again), Err(ErrorReply::NameTaken.into()));
    assert_eq!(cluster.memory(0), before);
    assert_eq!(cluster.memory(1), (0, 0));
}

#[test]
fn moves_keep_all_bytes_and_move_the_home() {
    let mut cluster = Cluster::of(3);
    let lh = cluster.alloc(0, "salt", LEN, Placement::On(NodeId(0)));
    let other = cluster.map(2, "salt");
    let bytes = pattern(2, LEN);
    cluster.write(2, other, 0, &bytes);
    order(&mut cluster, 0, lh, RegionCommand::Move { to: NodeId(1) });
    assert_eq!(cluster.read(0, lh, 0, LEN as usize), bytes);
    assert_eq!(cluster.read(2, other, 0, LEN as usize), bytes);
    let info = info(&mut cluster, 2, "salt");
    assert_eq!((info.home, info.nodes), (NodeId(1), vec![(NodeId(1), LEN)]));
    assert_eq!(cluster.memory(0), (0, 0));
    // The old node may die now, and the bytes survive.
    cluster.kill(0);
    cluster.run();
    assert_eq!(cluster.read(2, other, 0, LEN as usize), bytes);
}

#[test]
fn writes_during_a_move_are_kept() {
    let mut cluster = Cluster::of(3);
    let lh = cluster.alloc(0, "salt", LEN, Placement::On(NodeId(0)));
    let other = cluster.map(2, "salt");
    let mut model = pattern(3, LEN);
    cluster.write(0, lh, 0, &model);
    let op = cluster.submit(0, Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(1) }));
    let (mut written, mut blocked) = (0u64, 0u64);
    for round in 0.. {
        let more = cluster.step();
        let offset = (round * 977) % (LEN - 3);
        let (host, bytes) = (&cluster.hosts[2], [round as u8, 1, 2]);
        match host.path.write(host.session, other, offset, &bytes) {
            Ok(len) => {
                model[offset as usize..offset as usize + len].copy_from_slice(&bytes[..len]);
                written += 1;
            }
            Err(Blocked::Changing) => blocked += 1,
            Err(other) => panic!("a move caused {other:?}"),
        }
        if !more {
            break;
        }
    }
    assert_eq!(cluster.outcome(0, op), Some(Ok(Outcome::Done)));
    assert!(written > 0 && blocked > 0, "{written} writes, {blocked} blocked");
    assert_eq!(cluster.read(0, lh, 0, LEN as usize), model);
    assert_eq!(cluster.read(2, other, 0, LEN as usize), model);
}

#[test]
fn commands_during_a_move_run_at_the_next_home() {
    let mut cluster = Cluster::of(2);
    let lh = cluster.alloc(0, "salt", LEN, Placement::On(NodeId(0)));
    let moving = cluster.submit(0, Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(1) }));
    let freeing = cluster.submit(0, Command::RegionCommand(lh, RegionCommand::Free));
    cluster.run();
    assert_eq!(cluster.outcome(0, moving), Some(Ok(Outcome::Done)));
    assert_eq!(cluster.outcome(0, freeing), Some(Ok(Outcome::Done)));
    assert_eq!((cluster.memory(0), cluster.memory(1)), ((0, 0), (0, 0)));
}

/// A former home may have sent a command before it learned that it is not the home any more.
#[test]
fn queued_commands_are_checked_after_a_revoke() {
    let mut cluster = Cluster::of(3);
    let lh = cluster.alloc(1, "salt", LEN, Placement::Local);
    let bob = Principal("bob".into());
    let who = Grantee::Principal(bob.clone());
    order(&mut cluster, 1, lh, RegionCommand::Grant { who: who.clone(), permissions: Permissions::all() });
    cluster.hosts[2].session = cluster.hosts[2].engine.open_session(bob).unwrap();
    let his = cluster.map_for(2, "salt", Permissions::MASTER);
    cluster.held = vec![(1, 2)];
    let revoke = |who, permissions| Command::RegionCommand(lh, RegionCommand::Revoke { who, permissions });
    let long = cluster.submit(1, revoke(Grantee::Everyone, Permissions::ATOMIC));
    let deposing = cluster.submit(1, revoke(who, Permissions::MASTER));
    cluster.run();
    let waiting = [RegionCommand::Free, RegionCommand::Seal, RegionCommand::Move { to: NodeId(0) }]
        .map(|order| cluster.submit(2, Command::RegionCommand(his, order)));
    cluster.run();
    assert!(!cluster.has_ended(1, long) && waiting.iter().all(|op| !cluster.has_ended(2, *op)));
    cluster.held = vec![];
    cluster.run();
    assert_eq!(cluster.outcome(1, deposing), Some(Ok(Outcome::Done)));
    for op in waiting {
        let denied = ErrorReply::PermissionDenied { missing: Permissions::MASTER };
        assert_eq!(cluster.outcome(2, op), Some(Err(denied.into())));
    }
    cluster.write(1, lh, 0, b"not sealed");
    assert_eq!(info(&mut cluster, 1, "salt").home, NodeId(1));
}

#[test]
fn revoked_permissions_end_before_the_revoke_returns() {
    let mut cluster = Cluster::of(2);
    let lh = cluster.alloc(0, "salt", LEN, Placement::On(NodeId(0)));
    let bob = cluster.hosts[1].engine.open_session(Principal("bob".into())).unwrap();
    cluster.hosts[1].session = bob;
    let his = cluster.map(1, "salt");
    cluster.write(1, his, 0, b"x");
    order(
        &mut cluster,
        0,
        lh,
        RegionCommand::Revoke { who: Grantee::Everyone, permissions: Permissions::WRITE },
    );
    let host = &cluster.hosts[1];
    let refused = host.path.write(bob, his, 0, b"y");
    assert!(matches!(refused, Err(Blocked::Denied(Permissions::WRITE))), "{refused:?}");
    assert_eq!(cluster.read(1, his, 0, 1), b"x");
    let not_master = cluster.command(1, Command::RegionCommand(his, RegionCommand::Free));
    assert_eq!(not_master, Err(ErrorReply::PermissionDenied { missing: Permissions::MASTER }.into()));
    order(&mut cluster, 0, lh, RegionCommand::Seal);
    assert!(matches!(
        cluster.hosts[0].path.write(cluster.hosts[0].session, lh, 0, b"z"),
        Err(Blocked::Sealed)
    ));
}

#[test]
fn handles_to_dead_owners_are_down_then_stale() {
    let mut cluster = Cluster::of(3);
    let lh = cluster.alloc(0, "salt", LEN, Placement::On(NodeId(1)));
    let dead = cluster.hosts[1].incarnation;
    cluster.kill(1);
    cluster.run();
    let blocked = cluster.hosts[0].path.read(cluster.hosts[0].session, lh, 0, &mut [0]);
    assert!(matches!(blocked, Err(Blocked::Down(incarnation)) if incarnation == dead), "{blocked:?}");
    let gone = cluster.command(0, Command::Map { name: "salt".into(), wanted: Permissions::READ });
    let Err(CommandError::Refused(ErrorReply::Lost { home, .. })) = gone else { panic!("{gone:?}") };
    assert_eq!(home, dead);
    let order = cluster.command(0, Command::RegionCommand(lh, RegionCommand::Free));
    assert_eq!(order, Err(ErrorReply::PeerDown(NodeId(1)).into()));
    let again = cluster.add(1, common::ARENA_BYTES);
    assert_ne!(cluster.hosts[0].engine.incarnation_of(NodeId(1)), Some(dead));
    cluster.alloc(again, "salt", LEN, Placement::Local);
}

#[test]
fn chunks_of_dead_homes_are_freed_once_unmapped() {
    let mut cluster = Cluster::of(3);
    let nodes = vec![NodeId(1), NodeId(2)];
    let lh = cluster.alloc(0, "wide", 4 * CHUNK_BYTES, Placement::Spread(nodes));
    assert_eq!(cluster.memory(2), (2 * CHUNK_BYTES, 0));
    cluster.kill(1);
    cluster.run();
    assert_eq!(cluster.memory(2), (0, 0));
    let blocked = cluster.hosts[0].path.read(cluster.hosts[0].session, lh, CHUNK_BYTES, &mut [0]);
    assert!(matches!(blocked, Err(Blocked::Down(_))), "{blocked:?}");
}

#[test]
fn memory_of_stopped_writers_is_kept_until_cut_off() {
    let mut cluster = Cluster::of(3);
    let freeing = cluster.free_what_a_stopped_node_maps(LEN);
    cluster.run();
    assert_eq!(cluster.outcome(0, freeing), None, "the stopped node has not let go");
    cluster.sleep(2 * LEASE_NS);
    assert_eq!(cluster.outcome(0, freeing), None, "silence is no acknowledgement");
    cluster.sleep(4 * LEASE_NS);
    let refusal = Err(ErrorReply::PeerDown(NodeId(2)).into());
    assert_eq!(cluster.outcome(0, freeing), Some(refusal), "the wait is bounded");
    assert_eq!(cluster.memory(1), (LEN.next_multiple_of(64), 0));
    cluster.kill(2);
    assert_eq!(cluster.memory(1), (0, 0), "the command continues");
}

#[test]
fn only_nodes_silent_for_a_lease_die() {
    let mut cluster = Cluster::of(3);
    cluster.stop(2);
    cluster.sleep(3 * LEASE_NS);
    let Ok(Outcome::Status(all)) = cluster.command(0, Command::Status) else { panic!("no status") };
    let states: Vec<_> = all.iter().map(|status| (status.node.0, status.state)).collect();
    assert_eq!(states, [(0, NodeState::Alive), (1, NodeState::Alive), (2, NodeState::Dead)]);
}

#[test]
fn restarted_directories_learn_names_before_answering() {
    let mut cluster = Cluster::of(3);
    cluster.alloc(1, "salt", LEN, Placement::Local);
    let lh = cluster.alloc(2, "pepper", LEN, Placement::Local);
    cluster.kill(0);
    cluster.run();
    cluster.write(2, lh, 0, b"still here");
    let down = cluster.command(2, Command::Map { name: "salt".into(), wanted: Permissions::READ });
    assert_eq!(down, Err(ErrorReply::PeerDown(NodeId(0)).into()));
    let first = cluster.add(0, common::ARENA_BYTES);
    cluster.map(first, "salt");
    cluster.map(1, "pepper");
    let taken = cluster.command(first, allocation(Some("pepper"), 1, Placement::Local));
    assert_eq!(taken, Err(ErrorReply::NameTaken.into()));
}

#[test]
fn unnamed_regions_end_with_their_last_handle() {
    let mut cluster = Cluster::of(2);
    let alloc = allocation(None, LEN, Placement::On(NodeId(1)));
    let lh = slot(cluster.command(0, alloc.clone()));
    assert_eq!(cluster.command(0, Command::Unmap(lh)), Ok(Outcome::Done));
    assert_eq!(cluster.memory(1), (0, 0));
    assert_eq!(cluster.command(0, Command::Unmap(lh)), Err(CommandError::Stale));
    // Nor does it outlive the node that made it.
    cluster.command(0, alloc).unwrap();
    cluster.kill(0);
    cluster.run();
    let session = cluster.hosts[1].session;
    let op = cluster.hosts[1].engine.submit(0, session, Command::Status);
    cluster.run();
    let Some(Ok(Outcome::Status(all))) = cluster.outcome(1, op) else { panic!("no status") };
    assert_eq!(all.iter().find(|status| status.node == NodeId(1)).unwrap().bytes_used, 0);
}

#[test]
fn arenas_fill_up_and_report_missing_bytes() {
    let mut cluster = Cluster::of(1);
    let alloc = |len| allocation(None, len, Placement::Local);
    let refused = cluster.command(0, alloc(common::ARENA_BYTES + 1));
    let (wanted, available) = (common::ARENA_BYTES + 1, common::ARENA_BYTES);
    assert_eq!(refused, Err(ErrorReply::NoSpace { wanted, available }.into()));
    let lh = slot(cluster.command(0, alloc(common::ARENA_BYTES)));
    let bytes = pattern(9, common::ARENA_BYTES);
    cluster.write(0, lh, 0, &bytes);
    assert_eq!(cluster.read(0, lh, 0, bytes.len()), bytes);
}

#[test]
fn allocations_wait_for_memory_being_cleaned() {
    let mut cluster = Cluster::of(1);
    let alloc = allocation(None, common::ARENA_BYTES, Placement::Local);
    let lh = slot(cluster.command(0, alloc.clone()));
    cluster.slow_to_clean = true;
    order(&mut cluster, 0, lh, RegionCommand::Free);
    let second = cluster.submit(0, alloc);
    cluster.run();
    assert_eq!(cluster.outcome(0, second), None);
    cluster.clean();
    cluster.run();
    assert!(matches!(cluster.outcome(0, second), Some(Ok(Outcome::Mapped { .. }))));
}

/// Found as lost writes: the last message of a former home was overtaken by the first of the next one.
#[test]
fn writes_survive_repeated_moves_in_any_message_order() {
    for seed in 1..=150u64 {
        let mut random = Rng::with_seed(seed);
        let mut cluster = Cluster::of(4);
        let lh = cluster.alloc(0, "salt", LEN, Placement::On(NodeId(0)));
        let other = cluster.map(3, "salt");
        let mut model = vec![0; LEN as usize];
        cluster.slow_wire = Some((seed as usize % 3, 3));
        for destination in [1, 2, 0, 1] {
            let op = cluster
                .submit(0, Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(destination) }));
            // The next move starts as soon as this one has ended, with its messages still in flight.
            while !cluster.has_ended(0, op) {
                cluster.step_one(random.u64(..));
                for chunk in 0..4 {
                    let (offset, byte) = (chunk * CHUNK_BYTES + random.u64(..5), random.u8(..));
                    let host = &cluster.hosts[3];
                    match host.path.write(host.session, other, offset, &[byte]) {
                        Ok(_) => model[offset as usize] = byte,
                        Err(Blocked::Changing) => {}
                        Err(other) => panic!("seed {seed}: a move caused {other:?}"),
                    }
                }
            }
            assert_eq!(cluster.outcome(0, op), Some(Ok(Outcome::Done)), "seed {seed}");
        }
        cluster.run();
        assert!(cluster.read(0, lh, 0, LEN as usize) == model, "seed {seed}: writes are lost");
        assert!(cluster.read(3, other, 0, LEN as usize) == model, "seed {seed}: writes are lost");
        assert_eq!(info(&mut cluster, 2, "salt").home, NodeId(1), "seed {seed}");
    }
}

#[test]
fn the_last_master_cannot_be_revoked() {
    let mut cluster = Cluster::of(1);
    let lh = cluster.alloc(0, "salt", LEN, Placement::Local);
    let who = Grantee::Principal(Principal("ada".into()));
    let revoke = RegionCommand::Revoke { who, permissions: Permissions::MASTER };
    let refused = cluster.command(0, Command::RegionCommand(lh, revoke.clone()));
    assert_eq!(refused, Err(ErrorReply::LastMaster.into()));
    let bob = Grantee::Principal(Principal("bob".into()));
    order(&mut cluster, 0, lh, RegionCommand::Grant { who: bob, permissions: Permissions::MASTER });
    order(&mut cluster, 0, lh, revoke);
}

#[test]
fn anywhere_prefers_permanent_nodes() {
    let mut cluster = Cluster::of(1);
    cluster.add(1000, common::ARENA_BYTES);
    let command = cluster.add(1001, 0);
    let lh = cluster.alloc(command, "salt", LEN, Placement::Anywhere);
    assert_eq!(info(&mut cluster, command, "salt").home, NodeId(0));
    cluster.alloc(command, "wide", LEN, Placement::Spread(Vec::new()));
    assert_eq!(info(&mut cluster, command, "wide").nodes, vec![(NodeId(0), LEN)]);
    cluster.alloc(1, "own", LEN, Placement::Anywhere);
    assert_eq!(info(&mut cluster, command, "own").home, NodeId(1000));
    order(&mut cluster, command, lh, RegionCommand::Free);
}

fn unnamed(cluster: &mut Cluster, host: usize, placement: Placement) -> SlotRef {
    slot(cluster.command(host, allocation(None, LEN, placement)))
}

fn set_name(lh: SlotRef, name: &str) -> Command {
    Command::RegionCommand(lh, RegionCommand::SetName { name: name.to_owned() })
}

#[test]
fn late_names_follow_moves_and_restarts() {
    let mut cluster = Cluster::of(3);
    let lh = unnamed(&mut cluster, 1, Placement::On(NodeId(2)));
    // Two commands at once: the name is set where the region is then.
    cluster.submit(1, Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(1) }));
    let naming = cluster.submit(1, set_name(lh, "salt"));
    cluster.run();
    assert_eq!(cluster.outcome(1, naming), Some(Ok(Outcome::Done)));
    cluster.kill(0);
    cluster.run();
    let first = cluster.add(0, common::ARENA_BYTES);
    cluster.map(first, "salt");
}

#[test]
fn makers_die_before_or_after_naming() {
    let mut cluster = Cluster::of(3);
    for (step, survives) in [(false, false), (true, true)] {
        let client = cluster.add(1000 + u32::from(step), 0);
        let lh = unnamed(&mut cluster, client, Placement::On(NodeId(1)));
        cluster.submit(client, set_name(lh, "salt"));
        cluster.perform(client);
        if step {
            cluster.run();
        }
        cluster.kill(client);
        cluster.run();
        let found = cluster.command(2, Command::Stat("salt".into()));
        assert_eq!(found.is_ok(), survives, "{found:?}");
        assert_eq!(cluster.memory(1).0 > 0, survives);
    }
}

#[test]
fn names_wait_for_a_complete_directory() {
    let mut cluster = Cluster::of(2);
    let lh = unnamed(&mut cluster, 1, Placement::Local);
    cluster.kill(0);
    cluster.run();
    assert_eq!(cluster.command(1, set_name(lh, "salt")), Err(ErrorReply::PeerDown(NodeId(0)).into()));
    cluster.add(0, common::ARENA_BYTES);
    assert_eq!(cluster.command(1, set_name(lh, "\0lsalt")), Err(ErrorReply::Malformed.into()));
    assert_eq!(cluster.command(1, set_name(lh, "salt")), Ok(Outcome::Done));
}
