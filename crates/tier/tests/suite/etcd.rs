//! Names in etcd: a stand-in store that is slow, fails, and may execute transactions without a reply, in virtual time.

use crate::common;

use common::store::{Claims, Fate, SECOND_NS, World, fails, is_unavailable, names_at};
use halite_tier::directory::{Step, Transaction};
use halite_tier::effect::{Command, CommandError, Outcome, Placement};
use halite_tier::ids::NodeId;
use halite_tier::message::{ErrorReply, Message, RegionCommand, Request, decode};
use halite_tier::permissions::Permissions;

/// The result of the first home's claim is unknown, so the error must not say that another region has the name.
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
        let stored = world.etcd.execute(&transaction);
        let is_claim =
            transaction.then.iter().any(|step| matches!(step, Step::Put(key, _) if key.ends_with("names/a")));
        let is_reply_lost = host == 0 && (is_claim || !is_first);
        is_first &= !is_claim;
        world.deliver(host, id, if is_reply_lost { fails(true) } else { Ok(stored) });
    }
    assert!(world.cluster.outcome(0, op).is_some_and(|outcome| is_unavailable(&outcome)));
    world.pass(SECOND_NS);
    assert_eq!(world.names(), [""; 0], "released");
    world.alloc(1, "a").unwrap();
}

/// A claim whose endpoint hangs is repeated at another endpoint. The first copy has no effect if it executes later.
#[test]
fn claims_that_hang_are_repeated_at_another_endpoint() {
    let mut world = World::of(2);
    let mut hangs = 2;
    let named = world.command_with(1, common::allocation(Some("a"), 4096, Placement::Local), |transaction| {
        let is_write = transaction.writes(true) && hangs > 0;
        hangs -= i32::from(is_write);
        if is_write { Fate::Hung } else { Fate::Done }
    });
    let Ok(Outcome::Mapped { slot, .. }) = named else { panic!("{named:?}") };
    assert_eq!((hangs, world.names()), (0, vec!["a".to_owned()]), "the claim and the next fence hang");
    world.command(1, Command::RegionCommand(slot, RegionCommand::Free)).unwrap();
    world.execute_late();
    assert_eq!(world.names(), [""; 0], "the late claim is void");
    world.alloc(0, "a").unwrap();
}

/// A name that is claimed again while its former node is being forgotten stays; the other names are removed.
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
    assert!(is_unavailable(&refused));
    assert_eq!(world.names(), ["a", "b", "c"]);
    world.pass(2 * SECOND_NS);
    assert_eq!(world.names(), [""; 0]);
    world.alloc(1, "a").unwrap();
    world.execute_late();
    assert_eq!(world.names(), ["a"], "late transactions have no effect");
}

/// A node asks the cached home of a name directly: in one round trip, without the store.
#[test]
fn known_names_are_found_without_the_store() {
    let mut world = World::of(4);
    let Ok(Outcome::Mapped { slot, .. }) = world.alloc(1, "a") else { panic!() };
    assert_eq!(world.home_of(2, "a"), Ok(NodeId(1)));
    let map = || Command::Map { name: "a".to_owned(), wanted: Permissions::MASTER };
    let no_transaction = |transaction: &Transaction| panic!("unexpected transaction: {transaction:?}");
    for host in [1, 2] {
        assert!(matches!(world.command_with(host, map(), no_transaction), Ok(Outcome::Mapped { .. })));
    }
    assert!(is_unavailable(&world.command_with(3, map(), |_| Fate::Refused)));
    // Later requests follow moves of the region.
    world.command(1, Command::RegionCommand(slot, RegionCommand::Move { to: NodeId(0) })).unwrap();
    match world.command_with(2, Command::Stat("a".to_owned()), no_transaction) {
        Ok(Outcome::Info(info)) => assert_eq!(info.home, NodeId(0)),
        other => panic!("{other:?}"),
    }
    world.cluster.record(2, 0);
    assert!(matches!(world.command_with(2, map(), no_transaction), Ok(Outcome::Mapped { .. })));
    let sent = world.cluster.recorded();
    let requests = sent.iter().map(|frame| decode(&frame[1..]).expect("a message"));
    let requests: Vec<Message> =
        requests.filter(|message| matches!(message, Message::Request { .. })).collect();
    assert!(matches!(&requests[..], [Message::Request { body: Request::Map { .. }, .. }]), "{requests:?}");
}

/// A cached name is stale once its region is freed, its home is dead, or another region has the name. The node then
/// asks the store.
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
    // The home renames its region, because another region claimed the name while the store lacked it.
    world.alloc(1, "b").unwrap();
    let mapped = |world: &mut World| match world
        .command(2, Command::Map { name: "b".to_owned(), wanted: Permissions::MASTER })
    {
        Ok(Outcome::Mapped { region, .. }) => region,
        other => panic!("{other:?}"),
    };
    let first = mapped(&mut world);
    world.etcd.keys.retain(|key, _| !key.contains("/names/"));
    world.alloc(0, "b").unwrap();
    world.command_with(1, Command::Stat("none".to_owned()), |_| Fate::Refused).unwrap_err();
    world.pass(2 * SECOND_NS);
    assert_ne!(mapped(&mut world), first);
    assert_eq!(world.home_of(2, "b"), Ok(NodeId(0)));
}

/// Past bug: a node found a name that its home was about to release, and used a region whose name another region got.
#[test]
fn names_unknown_to_their_home_are_not_found() {
    for fate in [Fate::ReplyLost, Fate::Late] {
        let mut world = World::of(2);
        let unnamed = world.command(0, common::allocation(None, 4096, Placement::Local));
        let Ok(Outcome::Mapped { slot, .. }) = unnamed else { panic!() };
        let naming = Command::RegionCommand(slot, RegionCommand::SetName { name: "a".to_owned() });
        assert!(is_unavailable(&world.command_with(0, naming.clone(), |_| fate)), "{fate:?}");
        world.execute_late();
        let map = || Command::Map { name: "a".to_owned(), wanted: Permissions::WRITE };
        let found = world.command_with(1, map(), |_| Fate::Done).err();
        assert_eq!(found, Some(ErrorReply::NotFound.into()), "{fate:?}");
        world.pass(SECOND_NS);
        assert!(world.names().is_empty(), "{fate:?}");
        world.command(0, naming).unwrap();
        assert!(matches!(world.command(1, map()), Ok(Outcome::Mapped { .. })));
    }
}

/// Returns a world in which two regions have moved from host 1, which has ended, to host 2, while the store has
/// executed no transaction.
fn world_with_unwritten_moves() -> World {
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

/// While the store lacks the new home of a region, the region is not reported as lost, and its name is not granted.
#[test]
fn unwritten_moves_do_not_lose_names() {
    let mut world = world_with_unwritten_moves();
    let claim = world.cluster.submit(0, common::allocation(Some("a"), 4096, Placement::Local));
    let find = world.cluster.submit(0, Command::Stat("b".to_owned()));
    let lost = world.cluster.submit(0, Command::ListLost);
    world.run_newest_first();
    assert_eq!(world.cluster.outcome(0, lost), Some(Ok(Outcome::Lost(Vec::new()))));
    assert!(world.cluster.outcome(0, find).is_some_and(|outcome| is_unavailable(&outcome)));
    assert_eq!(world.cluster.outcome(0, claim), Some(Err(ErrorReply::NameTaken.into())));
    world.pass(SECOND_NS);
    assert_eq!(world.home_of(0, "a"), Ok(NodeId(2)));
}

/// Whatever happens to transactions, no name leads to two regions, and no granted name belongs to another host.
#[test]
fn names_are_unique_under_store_failures() {
    for seed in 0..300 {
        let (mut world, mut claims) = (World::of(3), Claims::new(seed));
        for _ in 0..30 {
            claims.claim(&mut world, 3, true);
            if claims.is_one_in(4) {
                world.execute_late();
            }
            if claims.is_one_in(4) {
                world.pass(SECOND_NS);
            }
        }
        claims.settle(&mut world);
        let names: Vec<String> = claims.held.keys().cloned().collect();
        assert_eq!(world.names(), names, "seed {seed}: unheld names are free");
    }
}

/// If two clusters move their names to one prefix at the same time, the later move succeeds, and the other cluster
/// keeps its names.
#[test]
fn name_moves_fail_if_another_cluster_has_the_prefix() {
    let mut world = World::embedded(2);
    world.alloc(1, "a").unwrap();
    let mut third = World::embedded(1);
    third.alloc(0, "c").unwrap();
    let op = world.cluster.submit(0, Command::MoveNames(names_at("/halite/test")));
    for transaction in 1.. {
        world.cluster.run();
        let Some((host, id, asked)) = world.cluster.store.pop() else { break };
        if transaction == 3 {
            std::mem::swap(&mut world.etcd, &mut third.etcd);
            third.move_names(0).unwrap();
            std::mem::swap(&mut world.etcd, &mut third.etcd);
        }
        let stored = world.etcd.execute(&asked);
        world.deliver(host, id, Ok(stored));
    }
    match world.cluster.outcome(0, op) {
        Some(Err(CommandError::Refused(ErrorReply::NamesNotMoved { reason }))) => {
            assert!(reason.contains("another cluster"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(world.home_of(0, "a"), Ok(NodeId(1)));
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
                world.execute_late();
            }
            if claims.is_one_in(4) {
                world.pass(SECOND_NS);
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

/// Node 0 has all names again, including lost names, and no node uses the store.
#[test]
fn names_move_back_to_node_0() {
    let mut world = World::of(4);
    for (host, name) in [(1, "a"), (2, "b"), (3, "c")] {
        world.alloc(host, name).unwrap();
    }
    world.cluster.kill(3);
    world.run();
    let moved = world.command(1, Command::MoveNamesBack).unwrap();
    assert_eq!(moved, Outcome::NamesMoved { names: 2, lost: 1 });
    let mut without_store = |host: usize, command: Command| {
        world.command_with(host, command, |transaction| panic!("unexpected transaction: {transaction:?}"))
    };
    for host in 0..3 {
        let stat = |name: &str| Command::Stat(name.to_owned());
        assert!(matches!(without_store(host, stat("a")), Ok(Outcome::Info(info)) if info.home == NodeId(1)));
        let lost = without_store(host, stat("c"));
        assert!(matches!(lost, Err(CommandError::Refused(ErrorReply::Lost { .. }))), "{lost:?}");
        let claim = |name: &str| common::allocation(Some(name), 4096, Placement::Local);
        assert_eq!(without_store(host, claim("b")), Err(ErrorReply::NameTaken.into()));
        without_store(host, claim(&format!("new {host}"))).unwrap();
    }
    let again = without_store(2, Command::MoveNamesBack).unwrap();
    assert_eq!(again, Outcome::NamesMoved { names: 0, lost: 0 });
    match world.move_names(0) {
        Err(CommandError::Refused(ErrorReply::NamesNotMoved { reason })) => {
            assert!(reason.contains("another prefix"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

/// Whatever happens to transactions, in any number of attempts: no name leads to two regions, and none is lost.
#[test]
fn repeated_returns_keep_names_unique() {
    let (mut moved, mut refused) = (0, 0);
    for seed in 0..150 {
        let (mut world, mut claims, mut is_moved) = (World::of(3), Claims::new(seed), false);
        for _ in 0..40 {
            let moving = (!is_moved && claims.is_one_in(4)).then(|| {
                let host = claims.random.usize(..3);
                (host, world.cluster.submit(host, Command::MoveNamesBack))
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
                world.execute_late();
            }
            if claims.is_one_in(4) {
                world.pass(SECOND_NS);
            }
        }
        claims.settle(&mut world);
        if !is_moved {
            // A return whose last reply was lost may have succeeded.
            moved += usize::from(world.etcd.keys.contains_key("/halite/test/closed"));
        }
    }
    assert!(moved > 100 && refused > 50, "{moved} returns succeeded, {refused} were refused");
}
