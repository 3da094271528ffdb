//! Names in etcd: a stand-in store that is slow, fails, and may execute transactions without a reply, in virtual time.

use crate::common;

use common::store::{A_SECOND_NS, Claims, Etcd, Fate, OUT, World, fails, names_at};
use common::{ARENA_BYTES, LEASE_NS};
use halite_tier::directory::{Step, Transaction};
use halite_tier::effect::{Command, CommandError, Outcome, Placement};
use halite_tier::ids::NodeId;
use halite_tier::message::{ErrorReply, LossCause, NodeState, RegionCommand};
use halite_tier::news::News;
use halite_tier::permissions::Permissions;

#[test]
fn names_are_unique_until_their_region_is_freed() {
    let mut world = World::of(3);
    let Ok(Outcome::Mapped { slot, .. }) = world.alloc(1, "a") else { panic!() };
    assert_eq!(world.alloc(2, "a"), Err(ErrorReply::NameTaken.into()));
    assert_eq!(world.home_of(0, "a"), Ok(NodeId(1)));
    world.command(1, Command::RegionCommand(slot, RegionCommand::Free)).unwrap();
    assert!(world.names().is_empty());
    assert_eq!(world.home_of(0, "a"), Err(ErrorReply::NotFound.into()));
    world.alloc(2, "a").unwrap();
}

/// Found by a case of the public API: the next home was refused the name, which the home without room had not released
/// yet.
#[test]
fn names_follow_to_the_next_home_with_room() {
    let mut world = World::of(2);
    world.alloc(0, "small").unwrap();
    let large = common::allocation(Some("large"), ARENA_BYTES, Placement::Anywhere);
    let op = world.cluster.submit(0, large);
    world.run_newest_first();
    assert!(matches!(world.cluster.outcome(0, op), Some(Ok(Outcome::Mapped { .. }))));
    assert_eq!(world.home_of(0, "large"), Ok(NodeId(1)));
    assert_eq!(world.names(), ["large", "small"]);
}

/// Runs with a store that only the hosts selected by `reaches` can reach.
fn run_where(world: &mut World, reaches: impl Fn(usize) -> bool) {
    while {
        world.cluster.run();
        !world.cluster.store.is_empty()
    } {
        let (host, id, transaction) = world.cluster.store.remove(0);
        let result = if reaches(host) { Ok(world.etcd.carry_out(&transaction)) } else { fails(false) };
        world.tell(host, id, result);
    }
}

fn alloc_anywhere(
    world: &mut World,
    name: &str,
    reaches: impl Fn(usize) -> bool,
) -> Result<NodeId, CommandError> {
    let op = world.cluster.submit(0, common::allocation(Some(name), 4096, Placement::Anywhere));
    run_where(world, reaches);
    world.cluster.outcome(0, op).expect("it has ended")?;
    world.home_of(3, name)
}

#[test]
fn anywhere_skips_homes_without_the_store() {
    let mut world = World::of(5);
    assert_eq!(alloc_anywhere(&mut world, "a", |host| host != 0), Ok(NodeId(1)));
    // Once they know that they cannot reach it, they refuse at once.
    assert_eq!(alloc_anywhere(&mut world, "b", |host| host > 1), Ok(NodeId(2)));
    let out = Err(CommandError::Refused(ErrorReply::DirectoryOut));
    assert_eq!(alloc_anywhere(&mut world, "c", |_| false), out, "attempts are bounded");
    let asked = world
        .cluster
        .hosts
        .iter()
        .filter(|host| host.news.iter().any(|news| matches!(news, News::EtcdOut { .. })));
    assert_eq!(asked.count(), 3);
    world.pass(A_SECOND_NS);
    assert_eq!(alloc_anywhere(&mut world, "c", |_| true), Ok(NodeId(0)));
}

/// The first home's claim has an unknown result, so the name may not be reported as another region's.
#[test]
fn unknown_claims_are_not_reported_as_taken() {
    let mut world = World::of(2);
    let op = world.cluster.submit(0, common::allocation(Some("a"), 4096, Placement::Anywhere));
    let mut is_first = true;
    while {
        world.cluster.run();
        !world.cluster.store.is_empty()
    } {
        let (host, id, transaction) = world.cluster.store.remove(0);
        let stored = world.etcd.carry_out(&transaction);
        let is_claim =
            transaction.then.iter().any(|step| matches!(step, Step::Put(key, _) if key.ends_with("names/a")));
        let is_reply_lost = host == 0 && (is_claim || !is_first);
        is_first &= !is_claim;
        world.tell(host, id, if is_reply_lost { fails(true) } else { Ok(stored) });
    }
    assert_eq!(world.cluster.outcome(0, op), Some(OUT));
    world.pass(A_SECOND_NS);
    assert_eq!(world.names(), [""; 0], "released");
    world.alloc(1, "a").unwrap();
}

/// A requester refused for lack of space learns that, even if the name cannot be released.
#[test]
fn no_space_is_reported_while_the_store_is_away() {
    let mut world = World::of(1);
    world.alloc(0, "small").unwrap();
    let large = common::allocation(Some("large"), ARENA_BYTES, Placement::Local);
    let is_claim = |transaction: &Transaction| {
        transaction.then.iter().any(|step| matches!(step, Step::Put(key, _) if key.ends_with("large")))
    };
    let refused = world.command_with(0, large, |transaction| match is_claim(transaction) {
        true => Fate::Done,
        false => Fate::Refused,
    });
    assert!(matches!(refused, Err(CommandError::Refused(ErrorReply::NoSpace { .. }))), "{refused:?}");
    world.pass(A_SECOND_NS);
    assert_eq!(world.names(), ["small"], "released once the store is back");
}

#[test]
fn names_work_without_node_0() {
    let mut world = World::of(3);
    world.alloc(1, "a").unwrap();
    world.cluster.kill(0);
    world.run();
    assert_eq!(world.home_of(2, "a"), Ok(NodeId(1)));
    world.alloc(2, "b").unwrap();
    assert_eq!(world.home_of(1, "b"), Ok(NodeId(2)));
}

#[test]
fn names_of_dead_homes_are_lost_until_reclaimed() {
    let mut world = World::of(3);
    for name in ["a", "b"] {
        world.alloc(1, name).unwrap();
    }
    world.cluster.kill(1);
    world.run();
    match world.home_of(2, "a") {
        Err(CommandError::Refused(ErrorReply::Lost { home, loss })) => {
            assert_eq!((home.node, loss.cause), (NodeId(1), LossCause::Exited));
        }
        other => panic!("{other:?}"),
    }
    let Ok(Outcome::Lost(lost)) = world.command(0, Command::ListLost) else { panic!() };
    assert_eq!(lost.iter().map(|lost| lost.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    // Losses are not counted, so their number is unknown.
    let figures = world.cluster.hosts[0].engine.figures(world.cluster.now_ns).directory.unwrap();
    assert_eq!((figures.lost, figures.is_ready), (None, true));
    world.alloc(2, "a").unwrap();
    assert_eq!(world.home_of(0, "a"), Ok(NodeId(2)));
    assert_eq!(world.command(0, Command::ForgetName("a".to_owned())), Err(ErrorReply::NotFound.into()));
    world.command(0, Command::ForgetName("b".to_owned())).unwrap();
    assert_eq!(world.names(), ["a"]);
}

/// Names do not depend on node 0, so forgetting a node does not wait for it: a member is asked, and tells the others.
#[test]
fn nodes_are_forgotten_without_node_0() {
    let mut world = World::of(4);
    world.alloc(3, "lost").unwrap();
    world.alloc(1, "stays").unwrap();
    world.cluster.adapters = true;
    world.cluster.kills = false;
    for index in [3, 0] {
        let others: Vec<usize> = (0..4).filter(|other| *other != index).collect();
        world.cluster.part(&[index], &others);
        world.cluster.hosts[index].running = false;
        (0..12).for_each(|_| world.pass(LEASE_NS / 4));
    }
    let state = |world: &mut World, host: usize| match world.command(host, Command::Status) {
        Ok(Outcome::Status(nodes)) => nodes.iter().find(|it| it.node == NodeId(3)).map(|it| it.state),
        other => panic!("{other:?}"),
    };
    assert_eq!([1, 2].map(|host| state(&mut world, host)), [Some(NodeState::Unreachable); 2]);
    world.command(2, Command::ForgetNode(NodeId(3))).unwrap();
    assert_eq!(world.names(), ["stays"]);
    world.run();
    assert_eq!([1, 2].map(|host| state(&mut world, host)), [None; 2]);
    assert_eq!(
        world.command(2, Command::ForgetNode(NodeId(1))),
        Err(ErrorReply::NodeLives(NodeId(1)).into())
    );
    assert_eq!(
        world.command(2, Command::ForgetNode(NodeId(3))),
        Err(ErrorReply::UnknownNode(NodeId(3)).into())
    );
}

/// Forgetting a node is answered once its names are forgotten, and fails for an unknown node: as with names at node 0.
#[test]
fn forgetting_a_node_removes_its_names_first() {
    let mut world = World::of(3);
    let forget = |node: u32| Command::ForgetNode(NodeId(node));
    for index in 0..250 {
        world.alloc(2, &format!("lost-{index}")).unwrap();
    }
    world.alloc(1, "stays").unwrap();
    assert_eq!(world.command(1, forget(2)), Err(ErrorReply::NodeLives(NodeId(2)).into()));
    assert_eq!(world.command(1, forget(77)), Err(ErrorReply::UnknownNode(NodeId(77)).into()));
    world.cluster.kill(2);
    world.run();
    world.alloc(1, "lost-7").unwrap();
    world.command(1, forget(2)).unwrap();
    assert_eq!(world.command(0, Command::ListLost), Ok(Outcome::Lost(Vec::new())));
    assert_eq!(world.names(), ["lost-7", "stays"]);
    assert_eq!(world.command(1, forget(2)), Err(ErrorReply::UnknownNode(NodeId(2)).into()));
}

/// A name reclaimed while its former node is forgotten stays, and the others still go.
#[test]
fn names_reclaimed_while_forgetting_are_kept() {
    let mut world = World::of(3);
    for name in ["a", "b", "c"] {
        world.alloc(2, name).unwrap();
    }
    world.cluster.kill(2);
    world.run();
    let is_removal = |transaction: &Transaction| {
        transaction.then.iter().filter(|step| matches!(step, Step::Delete(_))).count() > 1
    };
    let refused =
        world.command_with(1, Command::ForgetNode(NodeId(2)), |transaction| match is_removal(transaction) {
            true => Fate::Late,
            false => Fate::Done,
        });
    assert_eq!(refused, Err(ErrorReply::DirectoryOut.into()));
    assert_eq!(world.names(), ["a", "b", "c"]);
    world.pass(2 * A_SECOND_NS);
    assert_eq!(world.names(), [""; 0]);
    world.alloc(1, "a").unwrap();
    world.write_late();
    assert_eq!(world.names(), ["a"], "late transactions have no effect");
}

#[test]
fn moved_regions_keep_names_in_the_store() {
    let mut world = World::of(3);
    let Ok(Outcome::Mapped { slot, .. }) = world.alloc(0, "cart") else { panic!() };
    world.command(0, Command::RegionCommand(slot, RegionCommand::Move { to: NodeId(2) })).unwrap();
    world.cluster.kill(0);
    world.run();
    assert_eq!(world.home_of(1, "cart"), Ok(NodeId(2)));
    let Ok(Outcome::List { regions, unreachable, .. }) = world.command(1, Command::List) else { panic!() };
    assert_eq!((regions.len(), unreachable.len()), (1, 0));
}

#[test]
fn without_the_store_only_new_names_fail() {
    let mut world = World::of(2);
    let Ok(Outcome::Mapped { slot, .. }) = world.alloc(0, "a") else { panic!() };
    let allocation = |name| common::allocation(Some(name), 4096, Placement::Local);
    assert_eq!(world.command_with(1, allocation("b"), |_| Fate::Refused), OUT);
    assert_eq!(world.command_with(1, Command::Stat("a".to_owned()), |_| Fate::Refused), OUT);
    assert!(world.cluster.hosts[1].news.iter().any(|news| matches!(news, News::EtcdOut { .. })));
    // Unnamed regions, and existing handles, still work.
    world.command_with(1, common::allocation(None, 4096, Placement::Local), |_| Fate::Refused).unwrap();
    world.cluster.write(0, slot, 0, b"goes on");
    world.pass(A_SECOND_NS);
    assert!(world.cluster.hosts[1].news.contains(&News::EtcdBack));
    assert_eq!(world.home_of(1, "a"), Ok(NodeId(0)));
    world.alloc(1, "b").unwrap();
}

/// The known home is asked at once, without the store.
#[test]
fn known_names_are_found_without_the_store() {
    let mut world = World::of(4);
    let Ok(Outcome::Mapped { slot, .. }) = world.alloc(1, "a") else { panic!() };
    assert_eq!(world.home_of(2, "a"), Ok(NodeId(1)));
    let map = || Command::Map { name: "a".to_owned(), wanted: Permissions::MASTER };
    let without_command = |transaction: &Transaction| panic!("unexpected transaction: {transaction:?}");
    for host in [1, 2] {
        assert!(matches!(world.command_with(host, map(), without_command), Ok(Outcome::Mapped { .. })));
    }
    assert_eq!(world.command_with(3, map(), |_| Fate::Refused).err(), Some(ErrorReply::DirectoryOut.into()));
    // Later requests follow its moves.
    world.command(1, Command::RegionCommand(slot, RegionCommand::Move { to: NodeId(0) })).unwrap();
    match world.command_with(2, Command::Stat("a".to_owned()), without_command) {
        Ok(Outcome::Info(info)) => assert_eq!(info.home, NodeId(0)),
        other => panic!("{other:?}"),
    }
}

/// What is known of a name is stale once its region is freed, its home is dead, or another region has it: then the
/// store is asked.
#[test]
fn stale_known_names_are_corrected() {
    let mut world = World::of(4);
    let Ok(Outcome::Mapped { slot, .. }) = world.alloc(1, "a") else { panic!() };
    assert_eq!(world.home_of(2, "a"), Ok(NodeId(1)));
    world.command(1, Command::RegionCommand(slot, RegionCommand::Free)).unwrap();
    assert_eq!(world.home_of(2, "a"), Err(ErrorReply::NotFound.into()));
    world.alloc(1, "a").unwrap();
    assert_eq!(world.home_of(2, "a"), Ok(NodeId(1)));
    let Ok(Outcome::Mapped { slot, .. }) =
        world.command(1, Command::Map { name: "a".to_owned(), wanted: Permissions::MASTER })
    else {
        panic!()
    };
    world.command(1, Command::RegionCommand(slot, RegionCommand::Free)).unwrap();
    world.alloc(3, "a").unwrap();
    assert_eq!(world.home_of(2, "a"), Ok(NodeId(3)));
    world.cluster.kill(3);
    world.run();
    assert!(matches!(world.home_of(2, "a"), Err(CommandError::Refused(ErrorReply::Lost { .. }))));
    // Its home has renamed the region, since another claimed the name while the store had lost it.
    world.alloc(1, "b").unwrap();
    assert_eq!(world.home_of(2, "b"), Ok(NodeId(1)));
    world.etcd.keys.retain(|key, _| !key.contains("/names/"));
    world.alloc(0, "b").unwrap();
    world.command_with(1, Command::Stat("none".to_owned()), |_| Fate::Refused).unwrap_err();
    world.pass(2 * A_SECOND_NS);
    assert_eq!(world.home_of(2, "b"), Ok(NodeId(0)));
}

#[test]
fn names_released_during_an_outage_become_free() {
    let mut world = World::of(2);
    let Ok(Outcome::Mapped { slot, .. }) = world.alloc(0, "a") else { panic!() };
    let free = Command::RegionCommand(slot, RegionCommand::Free);
    world.command_with(0, free, |_| Fate::Refused).unwrap();
    assert_eq!(world.names(), ["a"]);
    world.pass(A_SECOND_NS);
    assert!(world.names().is_empty());
    world.alloc(1, "a").unwrap();
}

#[test]
fn late_claims_leave_no_names_behind() {
    for fate in [Fate::Unheard, Fate::Late] {
        let mut world = World::of(2);
        world.alloc(0, "before").unwrap();
        let claim = common::allocation(Some("a"), 4096, Placement::Local);
        let is_claim = |transaction: &Transaction| {
            transaction.then.iter().any(|step| matches!(step, Step::Put(key, _) if key.ends_with("/a")))
        };
        let outcome = world.command_with(0, claim, |asked| if is_claim(asked) { fate } else { Fate::Done });
        assert_eq!(outcome, OUT, "{fate:?}");
        world.pass(A_SECOND_NS);
        world.write_late();
        world.pass(A_SECOND_NS);
        assert_eq!(world.names(), ["before"], "{fate:?}");
        world.alloc(1, "a").unwrap();
        assert_eq!(world.alloc(0, "a"), Err(ErrorReply::NameTaken.into()));
    }
}

/// A node that found the name before its home released it used a region whose name another one got.
#[test]
fn names_unknown_to_their_home_lead_nowhere() {
    for fate in [Fate::Unheard, Fate::Late] {
        let mut world = World::of(2);
        let unnamed = world.command(0, common::allocation(None, 4096, Placement::Local));
        let Ok(Outcome::Mapped { slot, .. }) = unnamed else { panic!() };
        let naming = Command::RegionCommand(slot, RegionCommand::SetName { name: "a".to_owned() });
        assert_eq!(world.command_with(0, naming.clone(), |_| fate), OUT, "{fate:?}");
        world.write_late();
        let map = || Command::Map { name: "a".to_owned(), wanted: Permissions::WRITE };
        let found = world.command_with(1, map(), |_| Fate::Done).err();
        assert_eq!(found, Some(ErrorReply::NotFound.into()), "{fate:?}");
        world.pass(A_SECOND_NS);
        assert!(world.names().is_empty(), "{fate:?}");
        world.command(0, naming).unwrap();
        assert!(matches!(world.command(1, map()), Ok(Outcome::Mapped { .. })));
    }
}

/// Found with nodes cut off from etcd one by one: those that reached it took moved regions for lost.
#[test]
fn drained_names_survive_if_only_others_reach_the_store() {
    let mut world = World::of(3);
    for name in ["a", "b"] {
        world.alloc(1, name).unwrap();
    }
    let is_first = |host: usize| host == 0;
    let within_ns = 100 * LEASE_NS;
    let op = world.cluster.submit(1, Command::Drain { node: NodeId(1), within_ns, stays: false });
    run_where(&mut world, is_first);
    let Some(Ok(Outcome::Drained(drained))) = world.cluster.outcome(1, op) else { panic!() };
    assert_eq!((drained.moved, drained.left_count), (2, 0));
    world.cluster.hosts[1].engine.leave(world.cluster.now_ns);
    run_where(&mut world, is_first);
    world.cluster.kill(1);
    run_where(&mut world, is_first);
    for name in ["a", "b"] {
        let op = world.cluster.submit(0, common::allocation(Some(name), 4096, Placement::Local));
        run_where(&mut world, is_first);
        assert_eq!(world.cluster.outcome(0, op), Some(Err(ErrorReply::NameTaken.into())), "{name}");
    }
    world.pass(A_SECOND_NS);
    assert_eq!(world.names(), ["a", "b"]);
    for name in ["a", "b"] {
        assert_ne!(world.home_of(0, name), Ok(NodeId(1)));
    }
}

/// A region moved from host 1, which has ended, to host 2, as seen by host 0; the store has executed nothing since.
fn moved_and_not_written() -> World {
    let mut world = World::of(3);
    let slots = ["a", "b"].map(|name| match world.alloc(1, name) {
        Ok(Outcome::Mapped { slot, .. }) => slot,
        other => panic!("{other:?}"),
    });
    // Host 1 finds that it cannot reach the store.
    world.command_with(1, Command::Stat("none".to_owned()), |_| Fate::Refused).unwrap_err();
    for slot in slots {
        let order = RegionCommand::Move { to: NodeId(2) };
        world.cluster.submit(1, Command::RegionCommand(slot, order));
        world.cluster.run();
    }
    world.cluster.hosts[1].engine.leave(world.cluster.now_ns);
    world.cluster.run();
    world.cluster.kill(1);
    world.cluster.run();
    world
}

#[test]
fn moved_names_survive_if_only_others_reach_the_store() {
    let mut world = moved_and_not_written();
    run_where(&mut world, |host| host == 0);
    for name in ["a", "b"] {
        let op = world.cluster.submit(0, common::allocation(Some(name), 4096, Placement::Local));
        run_where(&mut world, |host| host == 0);
        assert_eq!(world.cluster.outcome(0, op), Some(Err(ErrorReply::NameTaken.into())), "{name}");
    }
    world.pass(A_SECOND_NS);
    assert_eq!(world.home_of(0, "a"), Ok(NodeId(2)));
}

/// The store lacks its new home: meanwhile it is neither reported as lost, nor is its name granted.
#[test]
fn unwritten_moves_do_not_lose_names() {
    let mut world = moved_and_not_written();
    let claim = world.cluster.submit(0, common::allocation(Some("a"), 4096, Placement::Local));
    let find = world.cluster.submit(0, Command::Stat("b".to_owned()));
    let lost = world.cluster.submit(0, Command::ListLost);
    world.run_newest_first();
    assert_eq!(world.cluster.outcome(0, lost), Some(Ok(Outcome::Lost(Vec::new()))));
    assert_eq!(world.cluster.outcome(0, find), Some(OUT));
    assert_eq!(world.cluster.outcome(0, claim), Some(Err(ErrorReply::NameTaken.into())));
    world.pass(A_SECOND_NS);
    assert_eq!(world.home_of(0, "a"), Ok(NodeId(2)));
}

#[test]
fn numbers_are_issued_once() {
    let mut world = World::of(3);
    let take = |world: &mut World, host| match world.command(host, Command::TakeNumber) {
        Ok(Outcome::Number(number)) => number,
        other => panic!("{other:?}"),
    };
    let given = [1, 2, 0, 1].map(|host| take(&mut world, host));
    assert_eq!(given, [3, 4, 5, 6].map(NodeId));
}

/// Whatever happens to transactions, no name leads to two regions, and no granted name belongs to another host.
#[test]
fn names_are_unique_under_store_failures() {
    for seed in 0..300 {
        let (mut world, mut claims) = (World::of(3), Claims::new(seed));
        for _ in 0..30 {
            claims.claim(&mut world, 3, true);
            if claims.is_one_in(4) {
                world.write_late();
            }
            if claims.is_one_in(4) {
                world.pass(A_SECOND_NS);
            }
        }
        claims.settle(&mut world);
        let names: Vec<String> = claims.held.keys().cloned().collect();
        assert_eq!(world.names(), names, "seed {seed}: unheld names are free");
    }
}

/// Starts commands at each step of a move of names, and checks that they succeed.
#[test]
fn names_move_under_load_without_failures() {
    let mut world = World::embedded(3);
    let mut slots = Vec::new();
    for index in 0..120 {
        let Ok(Outcome::Mapped { slot, .. }) = world.alloc(index % 3, &format!("n{index}")) else { panic!() };
        slots.push(slot);
    }
    for name in ["lost-a", "lost-b"] {
        world.alloc(2, name).unwrap();
    }
    let number = |world: &mut World| match world.command(1, Command::TakeNumber) {
        Ok(Outcome::Number(number)) => number,
        other => panic!("{other:?}"),
    };
    let before = number(&mut world);
    world.cluster.kill(2);
    world.run();
    let op = world.cluster.submit(1, Command::MoveNames(names_at("/halite/test")));
    let (mut begun, mut freed) = (Vec::new(), 0);
    while world.cluster.written_down.is_empty() {
        world.cluster.run();
        let asked = std::mem::take(&mut world.cluster.store);
        let free = Command::RegionCommand(slots[freed * 3], RegionCommand::Free);
        begun.push((0, world.cluster.submit(0, free)));
        for host in 0..2 {
            let alloc = common::allocation(Some(&format!("new-{host}-{freed}")), 4096, Placement::Local);
            begun.push((host, world.cluster.submit(host, alloc)));
            begun.push((host, world.cluster.submit(host, Command::Stat("n100".to_owned()))));
        }
        freed += 1;
        assert!(freed < 40, "the move terminates under load");
        for (host, id, transaction) in asked {
            let stored = world.etcd.carry_out(&transaction);
            let now_ns = world.cluster.now_ns;
            world.cluster.hosts[host].engine.handle_stored(now_ns, id, Ok(stored));
        }
    }
    world.run();
    for (host, op) in &begun {
        let outcome = world.cluster.outcome(*host, *op).expect("the command has ended");
        assert!(outcome.is_ok(), "{outcome:?}");
    }
    assert!(begun.len() > 10);
    assert!(matches!(world.cluster.outcome(1, op), Some(Ok(Outcome::NamesMoved { lost: 42, .. }))));
    let informed: Vec<usize> = world.cluster.written_down.iter().map(|(host, _)| *host).collect();
    assert_eq!(informed.len(), 2, "each once: {informed:?}");
    world.pass(A_SECOND_NS);
    // Now names do not depend on node 0.
    world.cluster.kill(0);
    world.run();
    assert_eq!(world.home_of(1, "n100"), Ok(NodeId(1)));
    assert_eq!(world.home_of(1, "new-1-0"), Ok(NodeId(1)));
    assert_eq!(world.alloc(1, "n100"), Err(ErrorReply::NameTaken.into()));
    assert!(matches!(
        world.home_of(1, "new-0-0"),
        Err(CommandError::Refused(ErrorReply::Lost { loss, .. })) if loss.cause == LossCause::Exited
    ));
    assert!(matches!(world.home_of(1, "lost-a"), Err(CommandError::Refused(ErrorReply::Lost { .. }))));
    // Names released meanwhile are free, and numbers continue.
    assert!(freed > 5);
    for step in 0..freed {
        assert_eq!(world.home_of(1, &format!("n{}", step * 3)), Err(ErrorReply::NotFound.into()));
    }
    assert!(number(&mut world) > before);
}

#[test]
fn interrupted_moves_of_names_can_be_repeated() {
    for broken_at in 0..8 {
        for fate in [Fate::Refused, Fate::Unheard, Fate::Late] {
            let mut world = World::embedded(2);
            for index in 0..120 {
                world.alloc(index % 2, &format!("n{index}")).unwrap();
            }
            let mut count = 0;
            let outcome = world.move_names(1, |_| {
                count += 1;
                if count == broken_at + 1 { fate } else { Fate::Done }
            });
            if count <= broken_at {
                continue;
            }
            let is_reported = |outcome: &Result<Outcome, CommandError>| {
                matches!(outcome, Err(CommandError::Refused(ErrorReply::NamesNotMoved { .. })))
            };
            // After the last transaction the move is done, and the next succeeds as usual.
            let what = format!("{fate:?} at {broken_at}: {outcome:?}");
            assert!(is_reported(&outcome) || outcome.is_ok(), "{what}");
            world.pass(A_SECOND_NS);
            assert_eq!(world.home_of(0, "n1"), Ok(NodeId(1)), "{what}");
            assert_eq!(world.alloc(0, "n1"), Err(ErrorReply::NameTaken.into()), "{what}");
            if outcome.is_err() {
                world.alloc(0, "meanwhile").unwrap();
                world.move_names(0, |_| Fate::Done).unwrap();
            }
            // Late transactions of the first attempt have no effect.
            world.write_late();
            world.pass(A_SECOND_NS);
            let mut names: Vec<String> = (0..120).map(|index| format!("n{index}")).collect();
            names.extend(outcome.is_err().then(|| "meanwhile".to_owned()));
            names.sort();
            assert_eq!(world.names(), names, "{what}");
            assert_eq!(world.home_of(0, "n1"), Ok(NodeId(1)), "{what}");
            // And the move is final.
            world.move_names(1, |_| Fate::Done).unwrap();
        }
    }
}

#[test]
fn restarted_node_0_repeats_a_move_of_names() {
    let mut world = World::embedded(3);
    for index in 0..120 {
        world.alloc(1 + index % 2, &format!("n{index}")).unwrap();
    }
    let op = world.cluster.submit(1, Command::MoveNames(names_at("/halite/test")));
    for _ in 0..4 {
        world.cluster.run();
        for (host, id, transaction) in std::mem::take(&mut world.cluster.store) {
            let stored = world.etcd.carry_out(&transaction);
            world.tell(host, id, Ok(stored));
        }
    }
    assert!(!world.names().is_empty(), "some names are written");
    world.cluster.kill(0);
    world.run();
    assert!(matches!(world.cluster.outcome(1, op), Some(Err(_))));
    world.cluster.add(0, ARENA_BYTES);
    world.run();
    world.alloc(2, "new").unwrap();
    world.move_names(1, |_| Fate::Done).unwrap();
    assert_eq!(world.names().len(), 121);
    assert_eq!(world.home_of(1, "new"), Ok(NodeId(2)));
}

#[test]
fn reconnected_nodes_learn_where_names_moved() {
    let mut world = World::embedded(3);
    world.cluster.adapters = true;
    world.alloc(2, "far").unwrap();
    world.cluster.part(&[0, 1], &[2]);
    world.cluster.sleep(3 * LEASE_NS);
    world.move_names(1, |_| Fate::Done).unwrap();
    world.alloc(1, "near").unwrap();
    world.cluster.cut.clear();
    world.cluster.sleep(3 * LEASE_NS);
    world.pass(A_SECOND_NS);
    assert_eq!(world.home_of(2, "near"), Ok(NodeId(1)));
    assert_eq!(world.home_of(1, "far"), Ok(NodeId(2)));
    assert_eq!(world.alloc(2, "near"), Err(ErrorReply::NameTaken.into()));
    // Homes report their names to a store that lost node 0's writes.
    world.etcd = Etcd { cluster: 8, revision: 1_000, ..Etcd::new() };
    world.pass(20 * A_SECOND_NS);
    assert_eq!(world.names(), ["far", "near"]);
}

#[test]
fn moves_are_refused_if_unreachable_or_taken() {
    let mut world = World::embedded(2);
    world.alloc(1, "a").unwrap();
    world.cluster.out_of_reach.push((1, names_at("/halite/test").address));
    let refused = |outcome: Result<Outcome, CommandError>| match outcome {
        Err(CommandError::Refused(ErrorReply::NamesNotMoved { reason })) => reason,
        other => panic!("{other:?}"),
    };
    assert!(refused(world.move_names(0, |_| Fate::Done)).contains("node 1 would not reach"));
    assert!(world.etcd.keys.is_empty());
    world.cluster.out_of_reach.clear();
    // Another cluster is there: its names are not touched.
    let mut other = World::of(2);
    other.alloc(1, "a").unwrap();
    world.etcd = other.etcd.clone();
    assert!(refused(world.move_names(0, |_| Fate::Done)).contains("another cluster"));
    assert_eq!(world.etcd.keys, other.etcd.keys);
    // A cluster starts there while names are moved.
    world.etcd = Etcd::new();
    let outcome = move_names_while(&mut world, 4, |etcd| {
        let lives = ("lives".to_owned(), etcd.revision);
        etcd.keys.insert("/halite/test/homes/0.abc".to_owned(), lives);
    });
    assert!(refused(outcome).contains("another cluster"));
    // Of two clusters that move to one place, the later wins, and the other stays unchanged.
    world.etcd = Etcd::new();
    let mut third = World::embedded(1);
    third.alloc(0, "c").unwrap();
    let outcome = move_names_while(&mut world, 3, |etcd| {
        std::mem::swap(etcd, &mut third.etcd);
        third.move_names(0, |_| Fate::Done).unwrap();
        std::mem::swap(etcd, &mut third.etcd);
    });
    assert!(refused(outcome).contains("another cluster"));
    assert_eq!(world.home_of(0, "a"), Ok(NodeId(1)));
}

/// Runs `happen` before the transaction of that number.
fn move_names_while(
    world: &mut World,
    before: u32,
    mut happens: impl FnMut(&mut Etcd),
) -> Result<Outcome, CommandError> {
    let mut count = 0;
    let op = world.cluster.submit(0, Command::MoveNames(names_at("/halite/test")));
    loop {
        world.cluster.run();
        let asked = std::mem::take(&mut world.cluster.store);
        if asked.is_empty() {
            return world.cluster.outcome(0, op).expect("the command has ended");
        }
        for (host, id, transaction) in asked {
            count += 1;
            if count == before {
                happens(&mut world.etcd);
            }
            let stored = world.etcd.carry_out(&transaction);
            world.tell(host, id, Ok(stored));
        }
    }
}

/// Whatever happens to transactions and to node 0, in any number of attempts: no name leads to two regions, and none is
/// lost.
#[test]
fn repeated_moves_keep_names_unique() {
    let (mut moved, mut refused) = (0, 0);
    for seed in 0..150 {
        let (mut world, mut claims, mut is_moved) = (World::embedded(3), Claims::new(seed), false);
        for _ in 0..40 {
            let moving = (!is_moved && claims.is_one_in(4)).then(|| {
                let host = claims.random.usize(..3);
                (host, world.cluster.submit(host, Command::MoveNames(names_at("/halite/test"))))
            });
            let fails = claims.random.bool();
            claims.claim(&mut world, 5, fails);
            match moving.map(|(host, op)| world.cluster.outcome(host, op).expect("the command has ended")) {
                Some(Ok(_)) => (is_moved, moved) = (true, moved + 1),
                Some(Err(CommandError::Refused(ErrorReply::NamesNotMoved { .. }))) => refused += 1,
                Some(Err(error)) => panic!("seed {seed}: {error:?}"),
                None => {}
            }
            if claims.is_one_in(3) {
                world.write_late();
            }
            if claims.is_one_in(4) {
                world.pass(A_SECOND_NS);
            }
        }
        claims.settle(&mut world);
        if is_moved {
            let names: Vec<String> = claims.held.keys().cloned().collect();
            assert_eq!(world.names(), names, "seed {seed}: unheld names are free");
        }
    }
    assert!(moved > 100 && refused > 50, "{moved} moves succeeded, {refused} were refused");
}

#[test]
fn full_stores_still_find_names() {
    let mut world = World::of(2);
    world.alloc(0, "a").unwrap();
    let store_news = |world: &World| {
        let is_about_store = |news: &&News| matches!(news, News::EtcdOut { .. } | News::EtcdBack);
        world.cluster.hosts[1].news.iter().filter(is_about_store).cloned().collect::<Vec<_>>()
    };
    let allocation = |name| common::allocation(Some(name), 4096, Placement::Local);
    for _ in 0..10 {
        assert_eq!(world.command_with(1, allocation("b"), |_| Fate::Full), OUT);
        let found = world.command_with(1, Command::Stat("a".to_owned()), |_| Fate::Full);
        assert!(matches!(found, Ok(Outcome::Info(info)) if info.home == NodeId(0)));
        // Nor does it test for space again.
        let mut asked = 0;
        let count = |transaction: &Transaction| {
            asked += usize::from(transaction.writes(true));
            Fate::Full
        };
        assert_eq!(world.command_with(1, allocation("c"), count), OUT);
        assert_eq!(asked, 0);
        world.pass_with(A_SECOND_NS, |_| Fate::Full);
    }
    assert_eq!(store_news(&world), [News::EtcdOut { reason: "no room".to_owned() }]);
    // There is space again.
    world.pass(A_SECOND_NS);
    assert_eq!(store_news(&world)[1..], [News::EtcdBack]);
    world.alloc(1, "b").unwrap();
}
