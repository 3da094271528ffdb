//! Names in etcd: a stand-in store that is slow, fails, and carries out what it has said nothing of, in virtual time.

mod common;

use std::collections::BTreeMap;

use common::{ARENA_BYTES, Cluster, LEASE_NS};
use halite_tier::directory::{Compare, EtcdDirectory, Pair, Step, StoreFailure, Stored, Transaction};
use halite_tier::effect::{Command, CommandError, Outcome, Placement};
use halite_tier::ids::{Incarnation, NodeId, NodeLife};
use halite_tier::message::{ErrorReply, LossCause, RegionCommand};
use halite_tier::news::News;

/// What of etcd is of importance here.
#[derive(Clone, Debug)]
struct Etcd {
    keys: BTreeMap<String, (String, u64)>,
    revision: u64,
    cluster: u64,
}

impl Etcd {
    fn new() -> Etcd {
        Etcd { keys: BTreeMap::new(), revision: 1, cluster: 7 }
    }

    fn carry_out(&mut self, transaction: &Transaction) -> Stored {
        let is_so = transaction.compares.iter().all(|compare| match compare {
            Compare::Absent(key) => !self.keys.contains_key(key),
            Compare::Present(key) => self.keys.contains_key(key),
            Compare::WrittenAt(key, at) => self.keys.get(key).is_some_and(|(_, written)| written == at),
            Compare::Holds(key, value) => self.keys.get(key).is_some_and(|(held, _)| held == value),
        });
        let branch = if is_so { &transaction.then } else { &transaction.otherwise };
        let writes = branch.iter().any(|step| matches!(step, Step::Put(..) | Step::Delete(_)));
        self.revision += u64::from(writes);
        let read = branch.iter().map(|step| self.step(step)).collect();
        Stored { is_so, read, revision: self.revision, cluster: self.cluster }
    }

    fn step(&mut self, step: &Step) -> Vec<Pair> {
        let pair = |(key, (value, at)): (&String, &(String, u64))| Pair {
            key: key.clone(),
            value: value.clone(),
            written_at: *at,
        };
        match step {
            Step::Put(key, value) => {
                self.keys.insert(key.clone(), (value.clone(), self.revision));
                Vec::new()
            }
            Step::Delete(key) => {
                self.keys.remove(key);
                Vec::new()
            }
            Step::Get(key) => {
                assert!(!key.is_empty(), "etcd has no empty key");
                self.keys.get_key_value(key).map(pair).into_iter().collect()
            }
            Step::List { prefix, after, limit } => {
                let is_in = |key: &&String| {
                    key.starts_with(prefix) && after.as_ref().is_none_or(|after| *key > after)
                };
                self.keys.iter().filter(|(key, _)| is_in(key)).take(*limit).map(pair).collect()
            }
        }
    }
}

/// What becomes of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Done,
    /// It does not arrive.
    Refused,
    /// It is carried out, and nobody hears of it.
    Unheard,
    /// Its sender gives it up, and it is carried out later.
    Late,
}

struct World {
    cluster: Cluster,
    etcd: Etcd,
    late: Vec<Transaction>,
}

fn fails(may_be_done: bool) -> Result<Stored, StoreFailure> {
    Err(StoreFailure { may_be_done, reason: "it is a trial".to_owned() })
}

impl World {
    fn of(count: u32) -> World {
        let mut cluster = Cluster::of(0);
        cluster.directory_of = Some(Box::new(|node| {
            // As the harness numbers lives.
            let life = NodeLife { node, incarnation: Incarnation(100 + u64::from(node.0)) };
            Box::new(EtcdDirectory::new(life, "/halite/test", 1_000))
        }));
        for node in 0..count {
            cluster.add(node, ARENA_BYTES);
        }
        let mut world = World { cluster, etcd: Etcd::new(), late: Vec::new() };
        world.pass(1);
        world
    }

    fn run(&mut self) {
        self.run_with(|_| Fate::Done);
    }

    /// Until nothing happens any more.
    fn run_with(&mut self, mut fate: impl FnMut(&Transaction) -> Fate) {
        loop {
            self.cluster.run();
            let asked = std::mem::take(&mut self.cluster.store);
            if asked.is_empty() {
                return;
            }
            for (host, id, transaction) in asked {
                let result = match fate(&transaction) {
                    Fate::Done => Ok(self.etcd.carry_out(&transaction)),
                    Fate::Refused => fails(false),
                    Fate::Unheard => {
                        self.etcd.carry_out(&transaction);
                        fails(true)
                    }
                    Fate::Late => {
                        self.late.push(transaction);
                        fails(true)
                    }
                };
                if self.cluster.hosts[host].running {
                    let now_ns = self.cluster.now_ns;
                    self.cluster.hosts[host].engine.handle_stored(now_ns, id, result);
                }
            }
        }
    }

    fn command(&mut self, host: usize, command: Command) -> Result<Outcome, CommandError> {
        self.command_with(host, command, |_| Fate::Done)
    }

    fn command_with(
        &mut self,
        host: usize,
        command: Command,
        fate: impl FnMut(&Transaction) -> Fate,
    ) -> Result<Outcome, CommandError> {
        let op = self.cluster.submit(host, command);
        self.run_with(fate);
        self.cluster.outcome(host, op).expect("it has ended")
    }

    fn alloc(&mut self, host: usize, name: &str) -> Result<Outcome, CommandError> {
        self.command(host, common::allocation(Some(name), 4096, Placement::Local))
    }

    fn home_of(&mut self, host: usize, name: &str) -> Result<NodeId, CommandError> {
        match self.command(host, Command::Stat(name.to_owned()))? {
            Outcome::Info(info) => Ok(info.home),
            other => panic!("{other:?}"),
        }
    }

    /// Time passes, so that a store that is back is noticed.
    fn pass(&mut self, duration_ns: u64) {
        self.cluster.pass(duration_ns);
        self.run();
    }

    fn write_late(&mut self) {
        for transaction in std::mem::take(&mut self.late) {
            self.etcd.carry_out(&transaction);
        }
    }

    fn names(&self) -> Vec<String> {
        let names = self.etcd.keys.keys().filter_map(|key| key.strip_prefix("/halite/test/names/"));
        names.map(str::to_owned).collect()
    }
}

const OUT: Result<Outcome, CommandError> = Err(CommandError::Refused(ErrorReply::DirectoryOut));
const A_SECOND_NS: u64 = 1_000_000_000;

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
    world.alloc(2, "a").unwrap();
    assert_eq!(world.home_of(0, "a"), Ok(NodeId(2)));
    assert_eq!(world.command(0, Command::ForgetName("a".to_owned())), Err(ErrorReply::NotFound.into()));
    world.command(0, Command::ForgetName("b".to_owned())).unwrap();
    assert_eq!(world.names(), ["a"]);
}

#[test]
fn a_region_that_moves_takes_its_name_along_and_lists_say_so() {
    let mut world = World::of(3);
    let Ok(Outcome::Mapped { slot, .. }) = world.alloc(0, "cart") else { panic!() };
    world.command(0, Command::RegionCommand(slot, RegionCommand::Move { to: NodeId(2) })).unwrap();
    world.cluster.kill(0);
    world.run();
    assert_eq!(world.home_of(1, "cart"), Ok(NodeId(2)));
    let Ok(Outcome::List { regions, unreachable }) = world.command(1, Command::List) else { panic!() };
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

#[test]
fn a_key_that_somebody_has_edited_is_an_error_and_no_other_region() {
    let mut world = World::of(2);
    world.alloc(0, "a").unwrap();
    world.etcd.keys.insert("/halite/test/names/a".to_owned(), ("hello".to_owned(), 99));
    assert_eq!(world.home_of(1, "a"), Err(ErrorReply::Malformed.into()));
    assert_eq!(world.alloc(1, "a"), Err(ErrorReply::NameTaken.into()));
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
    for seed in 0..300_u64 {
        let mut world = World::of(3);
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random >> 20
        };
        let mut held: BTreeMap<String, usize> = BTreeMap::new();
        for round in 0..30 {
            let (host, name) = ((next() % 3) as usize, format!("n{}", next() % 3));
            let claim = common::allocation(Some(&name), 4096, Placement::Local);
            let outcome = world.command_with(host, claim, |_| match next() % 8 {
                0 => Fate::Refused,
                1 => Fate::Unheard,
                2 => Fate::Late,
                _ => Fate::Done,
            });
            match outcome {
                Ok(Outcome::Mapped { slot, .. }) => {
                    let before = held.insert(name.clone(), host);
                    assert_eq!(before, None, "seed {seed}, round {round}: {name} was given twice");
                    if next() % 2 == 0 {
                        let free = Command::RegionCommand(slot, RegionCommand::Free);
                        world.command(host, free).unwrap();
                        held.remove(&name);
                    }
                }
                Ok(other) => panic!("{other:?}"),
                Err(CommandError::Refused(ErrorReply::NameTaken | ErrorReply::DirectoryOut)) => {}
                Err(other) => panic!("seed {seed}: {other:?}"),
            }
            if next() % 4 == 0 {
                world.write_late();
            }
            if next() % 4 == 0 {
                world.pass(A_SECOND_NS);
            }
        }
        world.write_late();
        for _ in 0..3 {
            world.pass(A_SECOND_NS + LEASE_NS);
        }
        let names: Vec<String> = held.keys().cloned().collect();
        assert_eq!(world.names(), names, "seed {seed}: what nobody has is free");
        for (name, host) in held {
            assert_eq!(world.home_of(0, &name), Ok(NodeId(host as u32)), "seed {seed}");
        }
    }
}
