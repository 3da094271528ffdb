//! Names in etcd: a stand-in store that is slow, fails, and carries out what it has said nothing of, in virtual time.

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
fn a_name_is_given_once_whoever_asks_and_free_when_its_region_is() {
    let mut world = World::of(3);
    let Ok(Outcome::Mapped { slot, .. }) = world.alloc(1, "a") else { panic!() };
    assert_eq!(world.alloc(2, "a"), Err(ErrorReply::NameTaken.into()));
    assert_eq!(world.home_of(0, "a"), Ok(NodeId(1)));
    world.command(1, Command::RegionCommand(slot, RegionCommand::Free)).unwrap();
    assert!(world.names().is_empty());
    assert_eq!(world.home_of(0, "a"), Err(ErrorReply::NotFound.into()));
    world.alloc(2, "a").unwrap();
}

/// Found by a case of the public API: the next home was refused the name, which the one without room had not yet given back.
#[test]
fn a_region_that_has_no_room_at_one_home_has_its_name_at_the_next() {
    let mut world = World::of(2);
    world.alloc(0, "small").unwrap();
    let large = common::allocation(Some("large"), ARENA_BYTES, Placement::Anywhere);
    let op = world.cluster.submit(0, large);
    world.run_newest_first();
    assert!(matches!(world.cluster.outcome(0, op), Some(Ok(Outcome::Mapped { .. }))));
    assert_eq!(world.home_of(0, "large"), Ok(NodeId(1)));
    assert_eq!(world.names(), ["large", "small"]);
}

/// The store does for hosts what `reaches` says; the others do not reach it.
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
fn a_region_for_any_node_passes_over_homes_that_do_not_reach_the_store() {
    let mut world = World::of(5);
    assert_eq!(alloc_anywhere(&mut world, "a", |host| host != 0), Ok(NodeId(1)));
    // Once they know that they do not, they say so at once.
    assert_eq!(alloc_anywhere(&mut world, "b", |host| host > 1), Ok(NodeId(2)));
    let out = Err(CommandError::Refused(ErrorReply::DirectoryOut));
    assert_eq!(alloc_anywhere(&mut world, "c", |_| false), out, "not all are asked one behind the other");
    let asked = world
        .cluster
        .hosts
        .iter()
        .filter(|host| host.news.iter().any(|news| matches!(news, News::EtcdOut { .. })));
    assert_eq!(asked.count(), 3);
    world.pass(A_SECOND_NS);
    assert_eq!(alloc_anywhere(&mut world, "c", |_| true), Ok(NodeId(0)));
}

/// The first home has asked for the name, and nobody knows what has come of it: that is no reason to say that somebody else has it.
#[test]
fn a_name_that_a_home_out_of_reach_of_the_store_may_have_is_not_told_as_that_of_another_region() {
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
        let is_unheard = host == 0 && (is_claim || !is_first);
        is_first &= !is_claim;
        world.tell(host, id, if is_unheard { fails(true) } else { Ok(stored) });
    }
    assert_eq!(world.cluster.outcome(0, op), Some(OUT));
    world.pass(A_SECOND_NS);
    assert_eq!(world.names(), [""; 0], "it is given back");
    world.alloc(1, "a").unwrap();
}

/// Who is refused for want of room hears that, also where the name cannot be given back.
#[test]
fn a_region_without_room_is_refused_for_that_reason_while_the_store_is_away() {
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
    assert_eq!(world.names(), ["small"], "it is given back when the store is there again");
}

#[test]
fn names_are_given_and_found_while_node_0_is_away() {
    let mut world = World::of(3);
    world.alloc(1, "a").unwrap();
    world.cluster.kill(0);
    world.run();
    assert_eq!(world.home_of(2, "a"), Ok(NodeId(1)));
    world.alloc(2, "b").unwrap();
    assert_eq!(world.home_of(1, "b"), Ok(NodeId(2)));
}

#[test]
fn a_name_whose_home_has_died_is_lost_with_the_reason_until_it_is_taken_anew() {
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
    // Nobody counts them, so that nobody tells that there are none.
    let figures = world.cluster.hosts[0].engine.figures(world.cluster.now_ns).directory.unwrap();
    assert_eq!((figures.lost, figures.is_ready), (None, true));
    world.alloc(2, "a").unwrap();
    assert_eq!(world.home_of(0, "a"), Ok(NodeId(2)));
    assert_eq!(world.command(0, Command::ForgetName("a".to_owned())), Err(ErrorReply::NotFound.into()));
    world.command(0, Command::ForgetName("b".to_owned())).unwrap();
    assert_eq!(world.names(), ["a"]);
}

/// Where names do not depend on node 0, a dead node does not wait for it to be forgotten: a member is asked, and tells the others.
#[test]
fn a_node_is_forgotten_without_node_0_and_by_all_who_are_there() {
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

/// Who has a node forgotten is answered when its names are, and one that nobody knows is an error: as where node 0 has the names.
#[test]
fn a_node_is_forgotten_with_all_its_names_before_that_is_answered() {
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

/// A name that is taken anew while its former node is forgotten stays, and others go all the same.
#[test]
fn a_name_that_is_taken_while_its_node_is_forgotten_is_kept_and_the_rest_goes_when_the_store_is_back() {
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
    assert_eq!(world.names(), ["a"], "what comes late does nothing");
}

#[test]
fn a_region_that_moves_takes_its_name_along_and_lists_say_so() {
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
fn without_the_store_new_names_fail_with_an_error_of_their_own_and_nothing_else_does() {
    let mut world = World::of(2);
    let Ok(Outcome::Mapped { slot, .. }) = world.alloc(0, "a") else { panic!() };
    let allocation = |name| common::allocation(Some(name), 4096, Placement::Local);
    assert_eq!(world.command_with(1, allocation("b"), |_| Fate::Refused), OUT);
    assert_eq!(world.command_with(1, Command::Stat("a".to_owned()), |_| Fate::Refused), OUT);
    assert!(world.cluster.hosts[1].news.iter().any(|news| matches!(news, News::EtcdOut { .. })));
    // Without names, and with handles, all goes on.
    world.command_with(1, common::allocation(None, 4096, Placement::Local), |_| Fate::Refused).unwrap();
    world.cluster.write(0, slot, 0, b"goes on");
    world.pass(A_SECOND_NS);
    assert!(world.cluster.hosts[1].news.contains(&News::EtcdBack));
    assert_eq!(world.home_of(1, "a"), Ok(NodeId(0)));
    world.alloc(1, "b").unwrap();
}

/// Its home is asked at once: while the store is away, and without any question to it where it is there.
#[test]
fn a_name_that_was_used_before_is_found_without_the_store() {
    let mut world = World::of(4);
    let Ok(Outcome::Mapped { slot, .. }) = world.alloc(1, "a") else { panic!() };
    assert_eq!(world.home_of(2, "a"), Ok(NodeId(1)));
    let map = || Command::Map { name: "a".to_owned(), wanted: Permissions::MASTER };
    let unasked = |transaction: &Transaction| panic!("nothing is asked: {transaction:?}");
    for host in [1, 2] {
        assert!(matches!(world.command_with(host, map(), unasked), Ok(Outcome::Mapped { .. })));
    }
    assert_eq!(world.command_with(3, map(), |_| Fate::Refused).err(), Some(ErrorReply::DirectoryOut.into()));
    // It is followed where it goes.
    world.command(1, Command::RegionCommand(slot, RegionCommand::Move { to: NodeId(0) })).unwrap();
    match world.command_with(2, Command::Stat("a".to_owned()), unasked) {
        Ok(Outcome::Info(info)) => assert_eq!(info.home, NodeId(0)),
        other => panic!("{other:?}"),
    }
}

/// What was known of a name is out of date once its region is freed, its home is dead or it is another region's: then the store is asked.
#[test]
fn nobody_is_led_astray_by_where_a_name_was_before() {
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
    // Its region has another name at its home by now, since another was quicker while the store had forgotten it.
    world.alloc(1, "b").unwrap();
    assert_eq!(world.home_of(2, "b"), Ok(NodeId(1)));
    world.etcd.keys.retain(|key, _| !key.contains("/names/"));
    world.alloc(0, "b").unwrap();
    world.command_with(1, Command::Stat("none".to_owned()), |_| Fate::Refused).unwrap_err();
    world.pass(2 * A_SECOND_NS);
    assert_eq!(world.home_of(2, "b"), Ok(NodeId(0)));
}

#[test]
fn what_was_given_up_while_the_store_was_away_is_free_when_it_is_back() {
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
fn a_claim_of_which_nothing_was_heard_leaves_no_name_behind_however_late_it_comes() {
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

/// Who found the name before the home took it back used a region whose name another one got then.
#[test]
fn a_name_that_a_home_does_not_know_to_be_its_own_leads_nobody_to_the_region() {
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

/// Found with nodes that were cut off from etcd one by one: those that reached it took what had been moved for lost.
#[test]
fn what_a_drained_node_has_moved_keeps_its_name_also_where_only_others_reach_the_store() {
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

/// What has been moved from host 1, which has ended, to host 2, as host 0 is asked for it; the store has not done what it was asked for since.
fn moved_and_not_written() -> World {
    let mut world = World::of(3);
    let slots = ["a", "b"].map(|name| match world.alloc(1, name) {
        Ok(Outcome::Mapped { slot, .. }) => slot,
        other => panic!("{other:?}"),
    });
    // Host 1 finds that it does not reach the store.
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
fn what_was_moved_by_a_node_without_the_store_keeps_its_name_also_where_only_others_reach_that() {
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

/// The store has yet to be told where it is: who asks meanwhile is not told that it is lost, nor given its name.
#[test]
fn what_was_moved_and_is_not_written_yet_is_not_lost() {
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
fn numbers_are_given_once_and_none_that_anybody_has() {
    let mut world = World::of(3);
    let take = |world: &mut World, host| match world.command(host, Command::TakeNumber) {
        Ok(Outcome::Number(number)) => number,
        other => panic!("{other:?}"),
    };
    let given = [1, 2, 0, 1].map(|host| take(&mut world, host));
    assert_eq!(given, [3, 4, 5, 6].map(NodeId));
}

/// Whatever becomes of transactions, no name leads to two regions, and none that was answered for is anybody else's.
#[test]
fn no_name_is_ever_given_to_two_whatever_the_store_does() {
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
        assert_eq!(world.names(), names, "seed {seed}: what nobody has is free");
    }
}

/// Begins commands while names are being moved, at each step of that one, and sees them end well.
#[test]
fn names_are_moved_while_others_are_given_found_and_given_up_and_nothing_fails() {
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
        assert!(freed < 40, "it comes to an end, whatever others do");
        for (host, id, transaction) in asked {
            let stored = world.etcd.carry_out(&transaction);
            let now_ns = world.cluster.now_ns;
            world.cluster.hosts[host].engine.handle_stored(now_ns, id, Ok(stored));
        }
    }
    world.run();
    for (host, op) in &begun {
        let outcome = world.cluster.outcome(*host, *op).expect("it has ended");
        assert!(outcome.is_ok(), "{outcome:?}");
    }
    assert!(begun.len() > 10);
    assert!(matches!(world.cluster.outcome(1, op), Some(Ok(Outcome::NamesMoved { lost: 42, .. }))));
    let told: Vec<usize> = world.cluster.written_down.iter().map(|(host, _)| *host).collect();
    assert_eq!(told.len(), 2, "each once: {told:?}");
    world.pass(A_SECOND_NS);
    // Now node 0 is a node like any other.
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
    // What was freed meanwhile is free, and numbers go on.
    assert!(freed > 5);
    for step in 0..freed {
        assert_eq!(world.home_of(1, &format!("n{}", step * 3)), Err(ErrorReply::NotFound.into()));
    }
    assert!(number(&mut world) > before);
}

#[test]
fn a_move_that_was_interrupted_leaves_names_where_they_were_and_is_repeated() {
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
            let is_told = |outcome: &Result<Outcome, CommandError>| {
                matches!(outcome, Err(CommandError::Refused(ErrorReply::NamesNotMoved { .. })))
            };
            // Behind the last one, nodes have moved, and it is as any other time.
            let what = format!("{fate:?} at {broken_at}: {outcome:?}");
            assert!(is_told(&outcome) || outcome.is_ok(), "{what}");
            world.pass(A_SECOND_NS);
            assert_eq!(world.home_of(0, "n1"), Ok(NodeId(1)), "{what}");
            assert_eq!(world.alloc(0, "n1"), Err(ErrorReply::NameTaken.into()), "{what}");
            if outcome.is_err() {
                world.alloc(0, "meanwhile").unwrap();
                world.move_names(0, |_| Fate::Done).unwrap();
            }
            // What was sent by the first one comes late, and does nothing.
            world.write_late();
            world.pass(A_SECOND_NS);
            let mut names: Vec<String> = (0..120).map(|index| format!("n{index}")).collect();
            names.extend(outcome.is_err().then(|| "meanwhile".to_owned()));
            names.sort();
            assert_eq!(world.names(), names, "{what}");
            assert_eq!(world.home_of(0, "n1"), Ok(NodeId(1)), "{what}");
            // And it was done for good.
            world.move_names(1, |_| Fate::Done).unwrap();
        }
    }
}

#[test]
fn node_0_dies_while_it_moves_names_and_its_next_incarnation_moves_them() {
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
    assert!(!world.names().is_empty(), "some are written");
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
fn who_was_out_of_sight_while_names_were_moved_is_told_when_it_is_back() {
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
    // A store that forgets what it was told by node 0 is told by the homes.
    world.etcd = Etcd { cluster: 8, revision: 1_000, ..Etcd::new() };
    world.pass(20 * A_SECOND_NS);
    assert_eq!(world.names(), ["far", "near"]);
}

#[test]
fn names_stay_where_a_node_does_not_reach_the_store_or_another_cluster_has_the_place() {
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
    // One is founded there while names are moved.
    world.etcd = Etcd::new();
    let outcome = move_names_while(&mut world, 4, |etcd| {
        let lives = ("lives".to_owned(), etcd.revision);
        etcd.keys.insert("/halite/test/homes/0.abc".to_owned(), lives);
    });
    assert!(refused(outcome).contains("another cluster"));
    // Two that move to one place: the later one has it, and the other stays as it was.
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

/// Before the transaction of that number, something happens to the store.
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
            return world.cluster.outcome(0, op).expect("it has ended");
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

/// Whatever becomes of transactions and of node 0, and however often it is tried: no name leads to two regions, and none is lost.
#[test]
fn moves_that_fail_and_are_repeated_never_give_a_name_to_two() {
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
            match moving.map(|(host, op)| world.cluster.outcome(host, op).expect("it has ended")) {
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
            assert_eq!(world.names(), names, "seed {seed}: what nobody has is free");
        }
    }
    assert!(moved > 100 && refused > 50, "{moved} moves came about, and {refused} did not");
}

#[test]
fn a_store_without_room_finds_names_as_before_and_that_it_can_be_read_is_no_news() {
    let mut world = World::of(2);
    world.alloc(0, "a").unwrap();
    let said = |world: &World| {
        let is_of_it = |news: &&News| matches!(news, News::EtcdOut { .. } | News::EtcdBack);
        world.cluster.hosts[1].news.iter().filter(is_of_it).cloned().collect::<Vec<_>>()
    };
    let allocation = |name| common::allocation(Some(name), 4096, Placement::Local);
    for _ in 0..10 {
        assert_eq!(world.command_with(1, allocation("b"), |_| Fate::Full), OUT);
        let found = world.command_with(1, Command::Stat("a".to_owned()), |_| Fate::Full);
        assert!(matches!(found, Ok(Outcome::Info(info)) if info.home == NodeId(0)));
        // Nor is that a reason to ask for room again.
        let mut asked = 0;
        let count = |transaction: &Transaction| {
            asked += usize::from(transaction.writes(true));
            Fate::Full
        };
        assert_eq!(world.command_with(1, allocation("c"), count), OUT);
        assert_eq!(asked, 0);
        world.pass_with(A_SECOND_NS, |_| Fate::Full);
    }
    assert_eq!(said(&world), [News::EtcdOut { reason: "no room".to_owned() }]);
    // There is room again.
    world.pass(A_SECOND_NS);
    assert_eq!(said(&world)[1..], [News::EtcdBack]);
    world.alloc(1, "b").unwrap();
}
