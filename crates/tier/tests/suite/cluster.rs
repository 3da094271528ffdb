//! Scenarios of several engines: commands that cross, moves in any order of messages, and nodes that die midway.

use crate::common;

use common::{CHUNK_BYTES, Cluster, LEASE_NS, allocation, slot};
use fastrand::Rng;
use halite_tier::access::{Blocked, SlotRef};
use halite_tier::effect::{Command, Outcome, Placement};
use halite_tier::ids::{NodeId, Principal};
use halite_tier::message::{ErrorReply, RegionCommand};
use halite_tier::permissions::{Grantee, NAMED_MAX, Permissions};

const LEN: u64 = 3 * CHUNK_BYTES + 5;

fn run_on_region(cluster: &mut Cluster, host: usize, lh: SlotRef, order: RegionCommand) {
    assert_eq!(cluster.command(host, Command::RegionCommand(lh, order)), Ok(Outcome::Done));
}

/// A former home may have sent a command before it learned that it is not the home any more.
#[test]
fn queued_commands_are_checked_after_a_revoke() {
    let mut cluster = Cluster::of(3);
    let lh = cluster.alloc(1, "salt", LEN, Placement::Local);
    let bob = Principal("bob".into());
    let who = Grantee::Principal(bob.clone());
    run_on_region(
        &mut cluster,
        1,
        lh,
        RegionCommand::Grant { who: who.clone(), permissions: Permissions::all() },
    );
    cluster.hosts[2].session = cluster.hosts[2].engine.open_session(bob).unwrap();
    let handle_of_bob = cluster.map_for(2, "salt", Permissions::MASTER);
    cluster.held = vec![(1, 2)];
    let revoke = |who, permissions| Command::RegionCommand(lh, RegionCommand::Revoke { who, permissions });
    let long = cluster.submit(1, revoke(Grantee::Everyone, Permissions::ATOMIC));
    let revoking_master = cluster.submit(1, revoke(who, Permissions::MASTER));
    cluster.run();
    let waiting = [RegionCommand::Free, RegionCommand::Seal, RegionCommand::Move { to: NodeId(0) }]
        .map(|order| cluster.submit(2, Command::RegionCommand(handle_of_bob, order)));
    cluster.run();
    assert!(!cluster.has_ended(1, long) && waiting.iter().all(|op| !cluster.has_ended(2, *op)));
    cluster.held = vec![];
    cluster.run();
    assert_eq!(cluster.outcome(1, revoking_master), Some(Ok(Outcome::Done)));
    for op in waiting {
        let denied = ErrorReply::PermissionDenied { missing: Permissions::MASTER };
        assert_eq!(cluster.outcome(2, op), Some(Err(denied.into())));
    }
    cluster.write(1, lh, 0, b"not sealed");
    assert_eq!(cluster.info(1, "salt").home, NodeId(1));
}

#[test]
fn freed_memory_waits_for_cut_off_of_stopped_mapper() {
    let mut cluster = Cluster::of(3);
    let freeing = cluster.free_region_of_stopped_mapper(LEN);
    cluster.run();
    assert_eq!(cluster.outcome(0, freeing), None, "the stopped node has not acknowledged");
    cluster.sleep(2 * LEASE_NS);
    assert_eq!(cluster.outcome(0, freeing), None, "silence is no acknowledgement");
    cluster.sleep(4 * LEASE_NS);
    let refusal = Err(ErrorReply::PeerDown(NodeId(2)).into());
    assert_eq!(cluster.outcome(0, freeing), Some(refusal), "the wait is bounded");
    assert_eq!(cluster.memory(1), (LEN.next_multiple_of(64), 0));
    cluster.kill(2);
    assert_eq!(cluster.memory(1), (0, 0), "the command continues");
}

/// Past bug: the first message of the next home overtook the last message of the former home, and writes were lost.
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
        assert_eq!(cluster.info(2, "salt").home, NodeId(1), "seed {seed}");
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
    run_on_region(&mut cluster, 0, lh, RegionCommand::Grant { who: bob, permissions: Permissions::MASTER });
    run_on_region(&mut cluster, 0, lh, revoke);
}

#[test]
fn grants_per_region_are_limited() {
    let mut cluster = Cluster::of(1);
    let lh = cluster.alloc(0, "salt", LEN, Placement::Local);
    let granted = |number: usize| RegionCommand::Grant {
        who: Grantee::Principal(Principal(format!("user-{number}").as_str().into())),
        permissions: Permissions::READ,
    };
    for number in 0..NAMED_MAX - 1 {
        run_on_region(&mut cluster, 0, lh, granted(number));
    }
    let refused = cluster.command(0, Command::RegionCommand(lh, granted(NAMED_MAX)));
    assert_eq!(refused, Err(ErrorReply::TooManyGrants { max: NAMED_MAX as u64 }.into()));
    run_on_region(&mut cluster, 0, lh, granted(0));
}

/// Each time the listing node asks a home, the region has moved to the next home.
#[test]
fn list_includes_a_region_that_keeps_moving() {
    for moves in [1, 16, 17, 40] {
        let mut cluster = Cluster::of(3);
        let lh = cluster.alloc(1, "salt", LEN, Placement::Local);
        cluster.held = vec![(2, 1)];
        let op = cluster.submit(2, Command::List { after: None });
        cluster.run();
        for home in (0..moves).map(|turn| turn % 2) {
            run_on_region(&mut cluster, 1, lh, RegionCommand::Move { to: NodeId(home) });
            cluster.held = vec![(2, home as usize)];
            cluster.run();
        }
        cluster.held = vec![];
        cluster.run();
        let Some(Ok(Outcome::List { regions, unreachable, next: None, .. })) = cluster.outcome(2, op) else {
            panic!("the list has ended")
        };
        assert_eq!(regions.len() + unreachable.len(), 1, "{moves} moves: {regions:?}, {unreachable:?}");
    }
}

#[test]
fn anywhere_prefers_permanent_nodes() {
    let mut cluster = Cluster::of(1);
    cluster.add(1000, common::ARENA_BYTES);
    let command = cluster.add(1001, 0);
    let lh = cluster.alloc(command, "salt", LEN, Placement::Anywhere);
    assert_eq!(cluster.info(command, "salt").home, NodeId(0));
    cluster.alloc(command, "wide", LEN, Placement::Spread(Vec::new()));
    assert_eq!(cluster.info(command, "wide").nodes, vec![(NodeId(0), LEN)]);
    cluster.alloc(1, "own", LEN, Placement::Anywhere);
    assert_eq!(cluster.info(command, "own").home, NodeId(1000));
    run_on_region(&mut cluster, command, lh, RegionCommand::Free);
}

#[test]
fn anywhere_fills_nodes_evenly() {
    let mut cluster = Cluster::of(4);
    let len = common::ARENA_BYTES / 32;
    cluster.alloc(0, "first", len, Placement::Anywhere);
    assert_eq!(cluster.info(0, "first").home, NodeId(0), "own memory is the fastest");
    let is_even = |cluster: &mut Cluster, most: std::ops::RangeInclusive<u64>, of: u64| {
        for host in 0..4 {
            let regions = cluster.memory(host).0 / len;
            assert!(most.contains(&regions), "node {host} holds {regions} of {of} regions");
        }
    };
    for index in 0..23 {
        cluster.alloc(0, &format!("before a heartbeat {index}"), len, Placement::Anywhere);
    }
    is_even(&mut cluster, 3..=10, 24);
    cluster.pass(common::LEASE_NS);
    for index in 0..24 {
        cluster.alloc(0, &format!("after it {index}"), len, Placement::Anywhere);
    }
    is_even(&mut cluster, 8..=16, 48);
}

fn unnamed(cluster: &mut Cluster, host: usize, placement: Placement) -> SlotRef {
    slot(cluster.command(host, allocation(None, LEN, placement)))
}

fn set_name(lh: SlotRef, name: &str) -> Command {
    Command::RegionCommand(lh, RegionCommand::SetName { name: name.to_owned() })
}

#[test]
fn creator_dies_before_or_after_naming() {
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

/// A home that was lost before it answered may have allocated the region, even if all other homes refused.
#[test]
fn alloc_outcome_is_unknown_after_the_loss_of_a_home() {
    let mut cluster = Cluster::of(3);
    let without_memory = cluster.add(3, 0);
    cluster.held = vec![(without_memory, 0)];
    let asked = cluster.submit(without_memory, allocation(None, LEN, Placement::Anywhere));
    cluster.run();
    for node in [1, 2, 0] {
        cluster.kill(node);
    }
    cluster.run();
    assert_eq!(cluster.outcome(without_memory, asked), Some(Err(ErrorReply::PeerDown(NodeId(0)).into())));
    let again = cluster.command(without_memory, allocation(None, LEN, Placement::On(NodeId(1))));
    assert_eq!(again, Err(ErrorReply::NotMet(NodeId(1)).into()), "nothing was sent");
}
