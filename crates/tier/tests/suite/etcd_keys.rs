//! Keys in etcd that the store lost, that were edited by hand or restored, and keys that are no longer needed.

use crate::common;

use common::store::{Claims, Etcd, SECOND_NS, World, is_unavailable};
use common::{ARENA_BYTES, LEASE_NS};
use halite_tier::effect::{Command, Outcome};
use halite_tier::ids::NodeId;
use halite_tier::message::{ErrorReply, RegionCommand};
use halite_tier::news::News;

/// Returns the number of a node's news for which `is` returns true.
fn news_count(world: &World, host: usize, is: impl Fn(&News) -> bool) -> usize {
    world.cluster.hosts[host].news.iter().filter(|news| is(news)).count()
}

fn is_edited(news: &News) -> bool {
    matches!(news, News::EtcdEdited { .. })
}

/// Values written over a node's key: an end recorded by another node, an end written by hand, and garbage.
const EDITS: [&str; 4] = ["ended killed 7 by 0.64", "ended left 7", "ended badly", "hello"];

/// Nodes that are not connected to the node of an edited key ignore the edit, too.
#[test]
fn edited_records_of_unreachable_nodes_are_ignored() {
    let mut world = World::of(3);
    world.cluster.adapters = true;
    world.alloc(2, "a").unwrap();
    world.cluster.part(&[0, 1], &[2]);
    world.cluster.sleep(3 * LEASE_NS);
    for edit in ["ended left 7", "hello"] {
        world.etcd.revision += 1;
        world.etcd.keys.insert("/halite/test/homes/2.66".to_owned(), (edit.to_owned(), world.etcd.revision));
        assert_eq!(world.home_of(1, "a"), Err(ErrorReply::NotMet(NodeId(2)).into()), "{edit}");
        assert_eq!(world.alloc(1, "a"), Err(ErrorReply::NameTaken.into()), "{edit}");
        assert_eq!(world.command(1, Command::ListLost), Ok(Outcome::Lost(Vec::new())), "{edit}");
    }
    world.pass(20 * SECOND_NS);
    assert_eq!(world.etcd.keys["/halite/test/homes/2.66"].0, "lives");
}

/// A node that the others have declared dead, and that is not connected to them, must not record itself as alive.
#[test]
fn recorded_ends_are_not_overwritten() {
    let mut world = World::of(3);
    world.cluster.adapters = true;
    world.alloc(2, "a").unwrap();
    world.cluster.part(&[0, 1], &[2]);
    world.cluster.sleep(3 * LEASE_NS);
    world.command(1, Command::ForgetNode(NodeId(2))).unwrap();
    let key = "/halite/test/homes/2.66";
    assert!(world.etcd.keys[key].0.starts_with("ended unreachable"), "{:?}", world.etcd.keys[key]);
    world.pass(60 * SECOND_NS);
    assert!(world.etcd.keys[key].0.starts_with("ended unreachable"), "{:?}", world.etcd.keys[key]);
    assert!(is_unavailable(&world.alloc(2, "b")));
    let is_reported = |news: &News| matches!(news, News::EtcdEnded { by, .. } if by.node == NodeId(0));
    assert_eq!((news_count(&world, 2, is_reported), news_count(&world, 2, is_edited)), (1, 0));
    assert_eq!(world.names(), [""; 0]);
    world.alloc(1, "a").unwrap();
}

/// The restored store lists regions that were freed after the backup. Their homes release the names.
#[test]
fn homes_free_names_that_a_restore_brought_back() {
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
        world.pass(20 * SECOND_NS);
        assert_eq!(world.names(), ["stays"]);
        world.etcd = backup;
        world.pass(20 * SECOND_NS);
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

/// A killed command may have names of servers, locks and barriers. Its records are removed within minutes, even if node
/// 0 was down when the command ended.
#[test]
fn killed_commands_leave_no_records() {
    for is_without_first in [false, true] {
        let mut world = World::of(2);
        world.alloc(1, "stays").unwrap();
        if is_without_first {
            world.cluster.kill(0);
            world.run();
        }
        let command = world.cluster.add(1000, ARENA_BYTES);
        world.run();
        let register = Command::Register { service: "run".to_owned(), is_shared: false };
        world.command(command, register).unwrap();
        world.cluster.kill(command);
        world.run();
        if is_without_first {
            world.cluster.add(0, ARENA_BYTES);
            world.run();
        }
        world.pass(2 * SECOND_NS);
        world.pass(80 * SECOND_NS);
        world.pass(80 * SECOND_NS);
        let homes: Vec<&String> = world.etcd.keys.keys().filter(|key| key.contains("/homes/1000.")).collect();
        assert!(homes.is_empty(), "without node 0: {is_without_first}: {homes:?}");
        assert_eq!(world.names(), ["stays"], "without node 0: {is_without_first}");
    }
}

/// The record of numbers is outdated, missing, or garbage.
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

/// The store is restored to a time at which an incarnation was alive that no node knows any more.
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
    world.pass(30 * SECOND_NS);
    assert_eq!(world.home_of(1, "a"), Err(ErrorReply::UnknownNode(NodeId(2)).into()));
    assert_eq!(world.alloc(1, "a"), Err(ErrorReply::NameTaken.into()));
    // An incarnation without a key has ended if another incarnation has its number.
    world.etcd.keys.insert("/halite/test/names/of-none".to_owned(), ("abc.1 1.abc 0".to_owned(), 1));
    world.command(0, Command::ForgetName("of-none".to_owned())).unwrap();
    // A node whose place key exists may be alive but unreachable.
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
                world.execute_late();
                world.pass(SECOND_NS);
            }
        }
        claims.settle(&mut world);
        let names: Vec<String> = claims.held.keys().cloned().collect();
        assert_eq!(world.names(), names, "seed {seed}: unheld names are free");
    }
}
