//! Keys in etcd that the store lost, that were edited by hand or restored, and keys that are no longer needed.

use crate::common;

use common::store::{A_SECOND_NS, Claims, Etcd, Fate, OUT, World};
use common::{ARENA_BYTES, LEASE_NS};
use halite_tier::directory::{Step, Transaction};
use halite_tier::effect::{Command, CommandError, Outcome, Placement};
use halite_tier::ids::NodeId;
use halite_tier::message::{ErrorReply, RegionCommand};
use halite_tier::news::News;

/// The entry of a name is overwritten with garbage: requests for the name report the key, `list` names it, and it can
/// be removed.
#[test]
fn overwritten_names_are_reported_and_removable() {
    let mut world = World::of(2);
    world.alloc(0, "a").unwrap();
    world.alloc(1, "b").unwrap();
    let key = "/halite/test/names/a".to_owned();
    world.etcd.keys.insert(key.clone(), ("hello".to_owned(), 99));
    let damaged = ErrorReply::NameDamaged { key: key.clone() };
    assert_eq!(world.home_of(1, "a"), Err(damaged.clone().into()));
    assert_eq!(world.alloc(1, "a"), Err(damaged.into()));
    assert_eq!(
        news_count(&world, 1, |news| matches!(news, News::EtcdDamaged { key: damaged } if *damaged == key)),
        1
    );
    let Ok(Outcome::List { regions, damaged, .. }) = world.command(1, Command::List) else { panic!() };
    assert_eq!((regions.len(), damaged), (1, vec!["a".to_owned()]));
    world.command(1, Command::ForgetName("a".to_owned())).unwrap();
    assert_eq!(world.names(), ["b"]);
    world.alloc(1, "a").unwrap();
}

/// Number of such news of a node.
fn news_count(world: &World, host: usize, is: impl Fn(&News) -> bool) -> usize {
    world.cluster.hosts[host].news.iter().filter(|news| is(news)).count()
}

fn is_restored(news: &News) -> bool {
    matches!(news, News::EtcdRestored { .. } | News::EtcdOther { .. })
}

fn is_edited(news: &News) -> bool {
    matches!(news, News::EtcdEdited { .. })
}

/// The end of a node as recorded by another node, by hand, and garbage.
const EDITS: [&str; 4] = ["ended killed 7 by 0.64", "ended left 7", "ended badly", "hello"];

/// A living node is recorded as dead: nodes paired with it lose nothing, and it rewrites its key.
#[test]
fn edits_of_living_nodes_are_repaired() {
    for edit in EDITS {
        let mut world = World::of(3);
        world.alloc(1, "a").unwrap();
        world.pass(A_SECOND_NS);
        let key = "/halite/test/homes/1.65".to_owned();
        assert_eq!(world.etcd.keys[&key].0, "lives");
        world.etcd.revision += 1;
        world.etcd.keys.insert(key.clone(), (edit.to_owned(), world.etcd.revision));
        assert_eq!(world.home_of(2, "a"), Ok(NodeId(1)), "{edit}");
        assert_eq!(world.alloc(2, "a"), Err(ErrorReply::NameTaken.into()), "{edit}");
        assert_eq!(world.command(0, Command::ListLost), Ok(Outcome::Lost(Vec::new())), "{edit}");
        world.pass(30 * A_SECOND_NS);
        assert_eq!(world.etcd.keys[&key].0, "lives", "{edit}");
        assert_eq!(news_count(&world, 1, is_edited), 1, "{edit}");
        assert_eq!(news_count(&world, 1, is_restored), 0, "{edit}");
        // A claim notices it as well, and succeeds.
        world.etcd.revision += 1;
        world.etcd.keys.insert(key.clone(), (edit.to_owned(), world.etcd.revision));
        world.alloc(1, "b").unwrap();
        assert_eq!(
            (world.etcd.keys[&key].0.as_str(), news_count(&world, 1, is_edited)),
            ("lives", 2),
            "{edit}"
        );
        // The same after a removal.
        world.etcd.revision += 1;
        world.etcd.keys.remove(&key);
        world.pass(30 * A_SECOND_NS);
        assert_eq!(
            (world.etcd.keys[&key].0.as_str(), news_count(&world, 1, is_edited)),
            ("lives", 3),
            "{edit}"
        );
        assert_eq!(news_count(&world, 1, is_restored), 0, "{edit}");
        assert_eq!(world.names(), ["a", "b"]);
    }
}

/// Nodes that are not connected to it do not believe the edit either.
#[test]
fn edits_of_unreachable_nodes_prove_nothing() {
    let mut world = World::of(3);
    world.cluster.adapters = true;
    world.alloc(2, "a").unwrap();
    world.cluster.part(&[0, 1], &[2]);
    world.cluster.sleep(3 * LEASE_NS);
    for edit in ["ended left 7", "hello"] {
        world.etcd.revision += 1;
        world.etcd.keys.insert("/halite/test/homes/2.66".to_owned(), (edit.to_owned(), world.etcd.revision));
        assert_eq!(world.home_of(1, "a"), Err(ErrorReply::PeerDown(NodeId(2)).into()), "{edit}");
        assert_eq!(world.alloc(1, "a"), Err(ErrorReply::NameTaken.into()), "{edit}");
        assert_eq!(world.command(1, Command::ListLost), Ok(Outcome::Lost(Vec::new())), "{edit}");
    }
    world.pass(20 * A_SECOND_NS);
    assert_eq!(world.etcd.keys["/halite/test/homes/2.66"].0, "lives");
}

/// A node that the others have declared dead, and that is not connected to them, must not record that it lives.
#[test]
fn ends_recorded_by_other_nodes_stand() {
    let mut world = World::of(3);
    world.cluster.adapters = true;
    world.alloc(2, "a").unwrap();
    world.cluster.part(&[0, 1], &[2]);
    world.cluster.sleep(3 * LEASE_NS);
    world.command(1, Command::ForgetNode(NodeId(2))).unwrap();
    let key = "/halite/test/homes/2.66";
    assert!(world.etcd.keys[key].0.starts_with("ended unreachable"), "{:?}", world.etcd.keys[key]);
    world.pass(60 * A_SECOND_NS);
    assert!(world.etcd.keys[key].0.starts_with("ended unreachable"), "{:?}", world.etcd.keys[key]);
    assert_eq!(world.alloc(2, "b"), OUT);
    let is_reported = |news: &News| matches!(news, News::EtcdEnded { by, .. } if by.node == NodeId(0));
    assert_eq!((news_count(&world, 2, is_reported), news_count(&world, 2, is_edited)), (1, 0));
    assert_eq!(world.names(), [""; 0]);
    world.alloc(1, "a").unwrap();
}

/// An earlier write arrives late, twice: the key has changed, but nothing was restored.
#[test]
fn late_own_writes_are_no_restore() {
    let mut world = World::of(1);
    world.alloc(0, "a").unwrap();
    let is_fence = |transaction: &Transaction| {
        transaction.then.iter().any(|step| matches!(step, Step::Put(key, _) if key.contains("/homes/")))
    };
    for _ in 0..2 {
        world.cluster.pass(20 * A_SECOND_NS);
        world.run_with(|asked| if is_fence(asked) { Fate::Late } else { Fate::Done });
    }
    world.pass(20 * A_SECOND_NS);
    world.write_late();
    world.pass(30 * A_SECOND_NS);
    assert_eq!((news_count(&world, 0, is_restored), news_count(&world, 0, is_edited)), (0, 0));
    world.alloc(0, "b").unwrap();
}

/// The restored store has a region that was freed since: its home releases the name.
#[test]
fn homes_free_names_revived_by_a_restore() {
    let free = Command::ForgetName("a".to_owned());
    for asker in [0, 1] {
        let mut world = World::of(3);
        let Ok(Outcome::Mapped { slot, .. }) = world.alloc(1, "a") else { panic!() };
        world.alloc(1, "stays").unwrap();
        let Ok(Outcome::Mapped { slot: moving, .. }) = world.alloc(1, "moves") else { panic!() };
        let to = RegionCommand::Move { to: NodeId(2) };
        world.command(1, Command::RegionCommand(moving, to)).unwrap();
        let backup = world.etcd.clone();
        world.command(1, Command::RegionCommand(slot, RegionCommand::Free)).unwrap();
        world.command(1, Command::RegionCommand(moving, RegionCommand::Free)).unwrap();
        world.pass(20 * A_SECOND_NS);
        assert_eq!(world.names(), ["stays"]);
        world.etcd = backup;
        world.pass(20 * A_SECOND_NS);
        assert_eq!(world.names(), ["a", "moves", "stays"]);
        // Its home or another node wants the name, for a new region or to remove it.
        world.command(asker, free.clone()).unwrap();
        world.alloc(asker, "moves").unwrap();
        assert_eq!(world.names(), ["moves", "stays"]);
        assert_eq!(world.home_of(2, "moves"), Ok(NodeId(asker as u32)));
        // Existing regions stay in any case.
        let forgotten = world.command(asker, Command::ForgetName("stays".to_owned()));
        assert_eq!(forgotten, Err(ErrorReply::NotFound.into()));
        assert_eq!(world.alloc(asker, "stays"), Err(ErrorReply::NameTaken.into()));
        assert_eq!(world.home_of(2, "stays"), Ok(NodeId(1)));
    }
}

/// A second name for a region was written by hand: it is cleared when wanted, and the region keeps its own.
#[test]
fn forged_second_names_are_freed() {
    let mut world = World::of(2);
    world.alloc(1, "a").unwrap();
    let of_a = world.etcd.keys["/halite/test/names/a"].clone();
    for (asker, name) in [(0, "x"), (1, "y")] {
        world.etcd.keys.insert(format!("/halite/test/names/{name}"), of_a.clone());
        world.command(asker, Command::ForgetName(name.to_owned())).unwrap();
        world.etcd.keys.insert(format!("/halite/test/names/{name}"), of_a.clone());
        world.alloc(asker, name).unwrap();
        assert_eq!(world.home_of(0, name), Ok(NodeId(asker as u32)));
        assert_eq!(world.home_of(0, "a"), Ok(NodeId(1)));
        assert_eq!(world.alloc(asker, "a"), Err(ErrorReply::NameTaken.into()));
    }
}

/// The record of numbers is outdated, gone, or garbage.
#[test]
fn used_numbers_are_never_reissued() {
    let key = "/halite/test/numbers".to_owned();
    for written in [Some("1"), Some("hello"), Some("-1"), None] {
        let mut world = World::of(3);
        match written {
            Some(text) => drop(world.etcd.keys.insert(key.clone(), (text.to_owned(), 1))),
            None => drop(world.etcd.keys.remove(&key)),
        }
        // The store lists an unconnected node.
        world.etcd.keys.insert("/halite/test/places/7".to_owned(), ("here".to_owned(), 1));
        let given = world.command(1, Command::TakeNumber);
        assert_eq!(given, Ok(Outcome::Number(NodeId(8))), "{written:?}");
        assert_eq!(world.etcd.keys[&key].0, "9", "{written:?}");
    }
}

/// The store is restored to when an incarnation lived that no node knows any more.
#[test]
fn names_of_unknown_incarnations_can_be_forgotten() {
    let mut world = World::of(3);
    for name in ["a", "b"] {
        world.alloc(2, name).unwrap();
    }
    let backup = world.etcd.clone();
    // The records of the incarnation itself are removed, too.
    let mut world = World::of(2);
    world.etcd = Etcd { cluster: 8, ..backup };
    world.pass(30 * A_SECOND_NS);
    assert_eq!(world.home_of(1, "a"), Err(ErrorReply::UnknownNode(NodeId(2)).into()));
    assert_eq!(world.alloc(1, "a"), Err(ErrorReply::NameTaken.into()));
    // An incarnation without a key, whose number another one has, is gone.
    world.etcd.keys.insert("/halite/test/names/of-none".to_owned(), ("abc.1 1.abc 0".to_owned(), 1));
    world.command(0, Command::ForgetName("of-none".to_owned())).unwrap();
    // A node that keeps its place may be alive but unreachable.
    let place = "/halite/test/places/2".to_owned();
    world.etcd.keys.insert(place.clone(), ("here".to_owned(), 1));
    let forget = Command::ForgetName("a".to_owned());
    assert_eq!(world.command(1, forget.clone()), Err(ErrorReply::NotFound.into()));
    let unknown = Err(ErrorReply::UnknownNode(NodeId(2)).into());
    assert_eq!(world.command(1, Command::ForgetNode(NodeId(2))), unknown);
    world.etcd.keys.remove(&place);
    world.command(1, forget).unwrap();
    assert_eq!(world.names(), ["b"]);
    world.command(1, Command::ForgetNode(NodeId(2))).unwrap();
    assert_eq!(world.names(), [""; 0]);
}

/// A former home does not report the name of a region that it handed over.
#[test]
fn moved_then_freed_regions_lose_their_names() {
    let mut world = World::of(2);
    let Ok(Outcome::Mapped { slot, .. }) = world.alloc(0, "a") else { panic!() };
    world.command(0, Command::RegionCommand(slot, RegionCommand::Move { to: NodeId(1) })).unwrap();
    world.command(0, Command::RegionCommand(slot, RegionCommand::Free)).unwrap();
    assert_eq!(world.names(), [""; 0]);
    for host in [0, 1] {
        world.command_with(host, Command::Stat("none".to_owned()), |_| Fate::Refused).unwrap_err();
    }
    world.pass(2 * A_SECOND_NS);
    assert_eq!(news_count(&world, 0, |news| *news == News::EtcdBack), 1);
    assert_eq!(world.names(), [""; 0]);
}

#[test]
fn restored_stores_are_detected_and_rewritten() {
    let mut world = World::of(2);
    world.alloc(0, "old").unwrap();
    let backup = world.etcd.clone();
    world.pass(20 * A_SECOND_NS);
    world.alloc(0, "new").unwrap();
    world.alloc(1, "other").unwrap();
    world.etcd = backup;
    world.alloc(0, "next").unwrap();
    world.alloc(1, "last").unwrap();
    let is_reported = |news: &News| matches!(news, News::EtcdRestored { .. });
    assert!(world.cluster.hosts.iter().all(|host| host.news.iter().any(is_reported)));
    assert_eq!(world.names(), ["last", "new", "next", "old", "other"]);
    // Another, empty store.
    world.etcd = Etcd { cluster: 8, revision: 1_000, ..Etcd::new() };
    world.alloc(0, "x").unwrap();
    world.alloc(1, "y").unwrap();
    assert_eq!(world.names(), ["last", "new", "next", "old", "other", "x", "y"]);
}

/// The records of incarnations, by number.
fn homes(world: &World) -> Vec<String> {
    let homes = world.etcd.keys.keys().filter_map(|key| key.strip_prefix("/halite/test/homes/"));
    homes.map(|home| home.split('.').next().unwrap().to_owned()).collect()
}

#[test]
fn unreferenced_incarnation_records_are_removed() {
    let mut world = World::of(4);
    world.alloc(2, "a").unwrap();
    world.pass(20 * A_SECOND_NS);
    assert_eq!(homes(&world), ["0", "1", "2", "3"]);
    for host in [2, 3] {
        world.cluster.kill(host);
    }
    world.run();
    world.pass(700 * A_SECOND_NS);
    assert_eq!(homes(&world), ["0", "1", "2"], "the lost name refers to it");
    assert!(matches!(world.home_of(1, "a"), Err(CommandError::Refused(ErrorReply::Lost { .. }))));
    world.command(1, Command::ForgetName("a".to_owned())).unwrap();
    world.pass(700 * A_SECOND_NS);
    assert_eq!(homes(&world), ["0", "1"]);
}

/// A leaving node records its end; if nothing is lost with it, it leaves no record.
#[test]
fn leaving_nodes_remove_keys_without_lost_names() {
    let mut world = World::of(3);
    world.alloc(1, "a").unwrap();
    assert_eq!(homes(&world), ["0", "1", "2"]);
    // All at once, as at the end of a whole cluster: no node is left to tidy up.
    for host in [0, 1, 2] {
        let now_ns = world.cluster.now_ns;
        world.cluster.hosts[host].engine.leave(now_ns);
    }
    world.run();
    assert!(world.cluster.hosts.iter().all(|host| host.engine.is_signed_off()));
    assert_eq!(homes(&world), ["1"]);
    assert!(world.etcd.keys["/halite/test/homes/1.65"].0.starts_with("ended left"));
}

/// Commands come and go by the thousand, and name nothing by themselves.
#[test]
fn ephemeral_nodes_without_names_write_nothing() {
    let mut world = World::of(1);
    let command = NodeId::EPHEMERAL_MIN.0 + 7;
    world.cluster.add(command, ARENA_BYTES);
    let app = world.cluster.hosts.len() - 1;
    world.pass(30 * A_SECOND_NS);
    let on = Placement::On(NodeId(0));
    world.command(app, common::allocation(Some("a"), 4096, on)).unwrap();
    assert_eq!(world.home_of(app, "a"), Ok(NodeId(0)));
    assert_eq!(homes(&world), ["0"]);
    // It learns all the same that the store is back.
    world.command_with(app, Command::Stat("b".to_owned()), |_| Fate::Refused).unwrap_err();
    world.pass(A_SECOND_NS);
    assert_eq!(news_count(&world, app, |news| *news == News::EtcdBack), 1);
    // Its own names are fenced, and its key goes with it.
    world.alloc(app, "own").unwrap();
    assert_eq!(homes(&world), ["0", &command.to_string()]);
}

/// A node was killed unseen: its records go, and those of living nodes stay.
#[test]
fn only_unrenewed_records_are_removed() {
    let mut world = World::of(2);
    world.etcd.keys.insert("/halite/test/homes/4711.abc".to_owned(), ("lives".to_owned(), 1));
    world.etcd.keys.insert("/halite/test/homes/17.abc".to_owned(), ("hello".to_owned(), 1));
    world.etcd.keys.insert("/halite/test/homes/19.abc".to_owned(), ("lives".to_owned(), 1));
    world.etcd.keys.insert("/halite/test/names/of-19".to_owned(), ("abc.1 19.abc 0".to_owned(), 1));
    world.pass(700 * A_SECOND_NS);
    assert_eq!(homes(&world), ["0", "1", "17", "19", "4711"], "they may still be rewritten");
    world.pass(100 * A_SECOND_NS);
    assert_eq!(homes(&world), ["0", "1", "19"], "a name refers to node 19");
}

/// Under any edits of keys of living nodes, and any outcomes of transactions in flight.
#[test]
fn names_are_unique_under_edits() {
    for seed in 0..200 {
        let (mut world, mut claims) = (World::of(3), Claims::new(seed));
        for _ in 0..30 {
            let fails = claims.is_one_in(3);
            claims.claim(&mut world, 3, fails);
            if claims.is_one_in(3) {
                let node = claims.random.usize(..3);
                let key = format!("/halite/test/homes/{node}.{:x}", 100 + node);
                let edit = EDITS[claims.random.usize(..EDITS.len())];
                world.etcd.revision += 1;
                world.etcd.keys.insert(key, (edit.to_owned(), world.etcd.revision));
            }
            if claims.is_one_in(4) {
                world.write_late();
                world.pass(A_SECOND_NS);
            }
        }
        claims.settle(&mut world);
        let names: Vec<String> = claims.held.keys().cloned().collect();
        assert_eq!(world.names(), names, "seed {seed}: unheld names are free");
    }
}
