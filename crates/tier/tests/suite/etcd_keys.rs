//! What a store has kept, forgotten or been told by others of names in etcd: keys that hands have written, stores that were restored, and keys that
//! nobody needs any more.

use crate::common;

use common::store::{A_SECOND_NS, Claims, Etcd, Fate, OUT, World};
use common::{ARENA_BYTES, LEASE_NS};
use halite_tier::directory::{Step, Transaction};
use halite_tier::effect::{Command, CommandError, Outcome, Placement};
use halite_tier::ids::NodeId;
use halite_tier::message::{ErrorReply, RegionCommand};
use halite_tier::news::News;

/// The entry of a name is overwritten with garbage: requests for the name report the key, `list` names it, and it can be removed.
#[test]
fn a_name_that_somebody_has_written_over_is_told_with_its_key_listed_and_removed() {
    let mut world = World::of(2);
    world.alloc(0, "a").unwrap();
    world.alloc(1, "b").unwrap();
    let key = "/halite/test/names/a".to_owned();
    world.etcd.keys.insert(key.clone(), ("hello".to_owned(), 99));
    let damaged = ErrorReply::NameDamaged { key: key.clone() };
    assert_eq!(world.home_of(1, "a"), Err(damaged.clone().into()));
    assert_eq!(world.alloc(1, "a"), Err(damaged.into()));
    assert_eq!(told(&world, 1, |news| matches!(news, News::EtcdDamaged { key: said } if *said == key)), 1);
    let Ok(Outcome::List { regions, damaged, .. }) = world.command(1, Command::List) else { panic!() };
    assert_eq!((regions.len(), damaged), (1, vec!["a".to_owned()]));
    world.command(1, Command::ForgetName("a".to_owned())).unwrap();
    assert_eq!(world.names(), ["b"]);
    world.alloc(1, "a").unwrap();
}

/// How many such news a node has told.
fn told(world: &World, host: usize, is: impl Fn(&News) -> bool) -> usize {
    world.cluster.hosts[host].news.iter().filter(|news| is(news)).count()
}

fn is_restored(news: &News) -> bool {
    matches!(news, News::EtcdRestored { .. } | News::EtcdOther { .. })
}

fn is_edited(news: &News) -> bool {
    matches!(news, News::EtcdEdited { .. })
}

/// As a node writes of the end of another, as a hand writes it, and nonsense.
const EDITS: [&str; 4] = ["ended killed 7 by 0.64", "ended left 7", "ended badly", "hello"];

/// A node lives, and somebody writes of it that it does not: those that hear it lose nothing, and it writes its key again.
#[test]
fn what_a_hand_writes_of_a_living_node_loses_none_of_its_names_and_is_mended_and_told_once() {
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
        assert_eq!(told(&world, 1, is_edited), 1, "{edit}");
        assert_eq!(told(&world, 1, is_restored), 0, "{edit}");
        // A claim notices it as well, and is carried out.
        world.etcd.revision += 1;
        world.etcd.keys.insert(key.clone(), (edit.to_owned(), world.etcd.revision));
        world.alloc(1, "b").unwrap();
        assert_eq!((world.etcd.keys[&key].0.as_str(), told(&world, 1, is_edited)), ("lives", 2), "{edit}");
        // And where it is removed.
        world.etcd.revision += 1;
        world.etcd.keys.remove(&key);
        world.pass(30 * A_SECOND_NS);
        assert_eq!((world.etcd.keys[&key].0.as_str(), told(&world, 1, is_edited)), ("lives", 3), "{edit}");
        assert_eq!(told(&world, 1, is_restored), 0, "{edit}");
        assert_eq!(world.names(), ["a", "b"]);
    }
}

/// Nor is it believed by those who do not hear the node.
#[test]
fn what_a_hand_writes_of_a_node_that_is_not_heard_proves_nothing() {
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

/// A node that the others have given up, and that does not hear them, is not to say that it lives.
#[test]
fn what_another_node_has_written_of_one_that_it_does_not_hear_stands_and_is_told_once() {
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
    let is_told = |news: &News| matches!(news, News::EtcdEnded { by, .. } if by.node == NodeId(0));
    assert_eq!((told(&world, 2, is_told), told(&world, 2, is_edited)), (1, 0));
    assert_eq!(world.names(), [""; 0]);
    world.alloc(1, "a").unwrap();
}

/// What was sent before comes late, twice: the key is another than was known, and nothing was restored.
#[test]
fn a_key_that_is_written_late_by_its_own_node_is_no_restored_store() {
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
    assert_eq!((told(&world, 0, is_restored), told(&world, 0, is_edited)), (0, 0));
    world.alloc(0, "b").unwrap();
}

/// The store is restored to when a region was there that is freed by now: its home says that there is none, and the name is free.
#[test]
fn a_name_that_a_restored_store_has_again_is_freed_by_its_home_when_somebody_wants_it() {
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
        // The name is wanted by its home or by another node, for a new region or to be removed.
        world.command(asker, free.clone()).unwrap();
        world.alloc(asker, "moves").unwrap();
        assert_eq!(world.names(), ["moves", "stays"]);
        assert_eq!(world.home_of(2, "moves"), Ok(NodeId(asker as u32)));
        // What there is stays, whatever is asked.
        let forgotten = world.command(asker, Command::ForgetName("stays".to_owned()));
        assert_eq!(forgotten, Err(ErrorReply::NotFound.into()));
        assert_eq!(world.alloc(asker, "stays"), Err(ErrorReply::NameTaken.into()));
        assert_eq!(world.home_of(2, "stays"), Ok(NodeId(1)));
    }
}

/// Somebody has written that a second name leads to a region: that is cleared when it is wanted, and the region keeps its own.
#[test]
fn a_second_name_of_a_region_that_a_hand_has_written_is_freed_and_the_region_stays() {
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

/// What is written of numbers is older than the nodes that have them, gone, or nonsense.
#[test]
fn no_number_that_a_node_has_is_given_again_whatever_is_written_of_numbers() {
    let key = "/halite/test/numbers".to_owned();
    for written in [Some("1"), Some("hello"), Some("-1"), None] {
        let mut world = World::of(3);
        match written {
            Some(text) => drop(world.etcd.keys.insert(key.clone(), (text.to_owned(), 1))),
            None => drop(world.etcd.keys.remove(&key)),
        }
        // Of one that nobody hears, the store says that it is there.
        world.etcd.keys.insert("/halite/test/places/7".to_owned(), ("here".to_owned(), 1));
        let given = world.command(1, Command::TakeNumber);
        assert_eq!(given, Ok(Outcome::Number(NodeId(8))), "{written:?}");
        assert_eq!(world.etcd.keys[&key].0, "9", "{written:?}");
    }
}

/// The store is restored to when an incarnation lived of which nobody knows any more.
#[test]
fn names_of_an_incarnation_that_nobody_knows_are_cleared_by_who_says_so() {
    let mut world = World::of(3);
    for name in ["a", "b"] {
        world.alloc(2, name).unwrap();
    }
    let backup = world.etcd.clone();
    // All that anybody knows of it goes with the others.
    let mut world = World::of(2);
    world.etcd = Etcd { cluster: 8, ..backup };
    world.pass(30 * A_SECOND_NS);
    assert_eq!(world.home_of(1, "a"), Err(ErrorReply::UnknownNode(NodeId(2)).into()));
    assert_eq!(world.alloc(1, "a"), Err(ErrorReply::NameTaken.into()));
    // Of a number that another incarnation has, one without a key is not there.
    world.etcd.keys.insert("/halite/test/names/of-none".to_owned(), ("abc.1 1.abc 0".to_owned(), 1));
    world.command(0, Command::ForgetName("of-none".to_owned())).unwrap();
    // As long as a node of that number keeps its place there, it may live where nobody hears it.
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

/// Its former home does not say of a region that was handed over what it is called.
#[test]
fn a_region_that_was_moved_and_freed_has_no_name_when_the_store_is_back() {
    let mut world = World::of(2);
    let Ok(Outcome::Mapped { slot, .. }) = world.alloc(0, "a") else { panic!() };
    world.command(0, Command::RegionCommand(slot, RegionCommand::Move { to: NodeId(1) })).unwrap();
    world.command(0, Command::RegionCommand(slot, RegionCommand::Free)).unwrap();
    assert_eq!(world.names(), [""; 0]);
    for host in [0, 1] {
        world.command_with(host, Command::Stat("none".to_owned()), |_| Fate::Refused).unwrap_err();
    }
    world.pass(2 * A_SECOND_NS);
    assert_eq!(told(&world, 0, |news| *news == News::EtcdBack), 1);
    assert_eq!(world.names(), [""; 0]);
}

#[test]
fn a_store_that_was_restored_is_recognised_and_told_what_it_has_forgotten() {
    let mut world = World::of(2);
    world.alloc(0, "old").unwrap();
    let backup = world.etcd.clone();
    world.pass(20 * A_SECOND_NS);
    world.alloc(0, "new").unwrap();
    world.alloc(1, "other").unwrap();
    world.etcd = backup;
    world.alloc(0, "next").unwrap();
    world.alloc(1, "last").unwrap();
    let is_told = |news: &News| matches!(news, News::EtcdRestored { .. });
    assert!(world.cluster.hosts.iter().all(|host| host.news.iter().any(is_told)));
    assert_eq!(world.names(), ["last", "new", "next", "old", "other"]);
    // Another one, with nothing in it.
    world.etcd = Etcd { cluster: 8, revision: 1_000, ..Etcd::new() };
    world.alloc(0, "x").unwrap();
    world.alloc(1, "y").unwrap();
    assert_eq!(world.names(), ["last", "new", "next", "old", "other", "x", "y"]);
}

/// What a node writes of itself, by its number.
fn homes(world: &World) -> Vec<String> {
    let homes = world.etcd.keys.keys().filter_map(|key| key.strip_prefix("/halite/test/homes/"));
    homes.map(|home| home.split('.').next().unwrap().to_owned()).collect()
}

#[test]
fn what_is_written_of_incarnations_goes_when_no_name_tells_of_them() {
    let mut world = World::of(4);
    world.alloc(2, "a").unwrap();
    world.pass(20 * A_SECOND_NS);
    assert_eq!(homes(&world), ["0", "1", "2", "3"]);
    for host in [2, 3] {
        world.cluster.kill(host);
    }
    world.run();
    world.pass(700 * A_SECOND_NS);
    assert_eq!(homes(&world), ["0", "1", "2"], "the name says with whom it was lost");
    assert!(matches!(world.home_of(1, "a"), Err(CommandError::Refused(ErrorReply::Lost { .. }))));
    world.command(1, Command::ForgetName("a".to_owned())).unwrap();
    world.pass(700 * A_SECOND_NS);
    assert_eq!(homes(&world), ["0", "1"]);
}

/// Who leaves says so by itself: what it had with it is lost, and where that is nothing, nothing is left of it.
#[test]
fn who_leaves_removes_its_key_unless_names_are_lost_with_it() {
    let mut world = World::of(3);
    world.alloc(1, "a").unwrap();
    assert_eq!(homes(&world), ["0", "1", "2"]);
    // All at once, as where a whole cluster ends: nobody is left who would tidy up.
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
fn who_comes_and_goes_and_names_nothing_writes_nothing() {
    let mut world = World::of(1);
    let command = NodeId::EPHEMERAL_MIN.0 + 7;
    world.cluster.add(command, ARENA_BYTES);
    let app = world.cluster.hosts.len() - 1;
    world.pass(30 * A_SECOND_NS);
    let on = Placement::On(NodeId(0));
    world.command(app, common::allocation(Some("a"), 4096, on)).unwrap();
    assert_eq!(world.home_of(app, "a"), Ok(NodeId(0)));
    assert_eq!(homes(&world), ["0"]);
    // It hears all the same that the store is back.
    world.command_with(app, Command::Stat("b".to_owned()), |_| Fate::Refused).unwrap_err();
    world.pass(A_SECOND_NS);
    assert_eq!(told(&world, app, |news| *news == News::EtcdBack), 1);
    // What it names by itself is fenced, and its key goes when it is gone.
    world.alloc(app, "own").unwrap();
    assert_eq!(homes(&world), ["0", &command.to_string()]);
}

/// A node was killed while nobody was there who would have written that: what it has written of itself goes, and that of those who live stays.
#[test]
fn what_nobody_has_renewed_goes_and_what_a_living_node_writes_stays() {
    let mut world = World::of(2);
    world.etcd.keys.insert("/halite/test/homes/4711.abc".to_owned(), ("lives".to_owned(), 1));
    world.etcd.keys.insert("/halite/test/homes/17.abc".to_owned(), ("hello".to_owned(), 1));
    world.etcd.keys.insert("/halite/test/homes/19.abc".to_owned(), ("lives".to_owned(), 1));
    world.etcd.keys.insert("/halite/test/names/of-19".to_owned(), ("abc.1 19.abc 0".to_owned(), 1));
    world.pass(700 * A_SECOND_NS);
    assert_eq!(homes(&world), ["0", "1", "17", "19", "4711"], "they may yet be written anew");
    world.pass(100 * A_SECOND_NS);
    assert_eq!(homes(&world), ["0", "1", "19"], "a name refers to it");
}

/// Under any edits of keys of living nodes, and any outcomes of transactions under way.
#[test]
fn no_name_is_given_to_two_while_somebody_edits_what_nodes_write_of_themselves() {
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
        assert_eq!(world.names(), names, "seed {seed}: what nobody has is free");
    }
}
