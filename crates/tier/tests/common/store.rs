//! A stand-in for etcd that is slow, fails, and may execute transactions without a reply, as the test decides.

use std::collections::BTreeMap;

use halite_tier::directory::{Compare, EtcdDirectory, Pair, Step, StoreFailure, Stored, Transaction};
use halite_tier::effect::{Command, CommandError, Outcome, Placement};
use halite_tier::ids::NodeId;
use halite_tier::message::{ErrorReply, NamesAt, RegionCommand};

use super::{ARENA_BYTES, Cluster, LEASE_NS};

/// The relevant state of etcd.
#[derive(Clone, Debug)]
pub struct Etcd {
    pub keys: BTreeMap<String, (String, u64)>,
    pub revision: u64,
    pub cluster: u64,
}

impl Etcd {
    pub fn new() -> Etcd {
        Etcd { keys: BTreeMap::new(), revision: 1, cluster: 7 }
    }

    pub fn execute(&mut self, transaction: &Transaction) -> Stored {
        let succeeded = transaction.compares.iter().all(|compare| match compare {
            Compare::Absent(key) => !self.keys.contains_key(key),
            Compare::Present(key) => self.keys.contains_key(key),
            Compare::WrittenAt(key, at) => self.keys.get(key).is_some_and(|(_, written)| written == at),
            Compare::Holds(key, value) => self.keys.get(key).is_some_and(|(held, _)| held == value),
        });
        let branch = if succeeded { &transaction.then } else { &transaction.otherwise };
        let writes = branch.iter().any(|step| matches!(step, Step::Put(..) | Step::Delete(_)));
        self.revision += u64::from(writes);
        let read = branch.iter().map(|step| self.step(step)).collect();
        Stored { succeeded, read, revision: self.revision, cluster: self.cluster }
    }

    pub fn step(&mut self, step: &Step) -> Vec<Pair> {
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
                let is_listed = |key: &&String| {
                    key.starts_with(prefix) && after.as_ref().is_none_or(|after| *key > after)
                };
                self.keys.iter().filter(|(key, _)| is_listed(key)).take(*limit).map(pair).collect()
            }
        }
    }
}

/// The fate of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Done,
    /// The transaction does not arrive.
    Refused,
    /// The store executes the transaction, and the reply is lost.
    ReplyLost,
    /// The sender gives up, and the store executes the transaction later.
    Late,
    /// The endpoint hangs: the store executes the transaction later. The sender knows another endpoint.
    Hung,
    /// The store is full: it executes only what needs no space.
    Full,
}

pub struct World {
    pub cluster: Cluster,
    pub etcd: Etcd,
    pub late: Vec<Transaction>,
}

pub fn fails(may_be_done: bool) -> Result<Stored, StoreFailure> {
    Err(StoreFailure { may_be_done, is_full: false, has_others: false, reason: "test failure".to_owned() })
}

impl World {
    /// Creates nodes whose names are in the store.
    pub fn of(count: u32) -> World {
        let mut cluster = Cluster::of(0);
        cluster.directory_of =
            Some(Box::new(|incarnation| Box::new(EtcdDirectory::new(incarnation, "/halite/test", 1_000))));
        for node in 0..count {
            cluster.add(node, ARENA_BYTES);
        }
        let mut world = World { cluster, etcd: Etcd::new(), late: Vec::new() };
        world.pass(1);
        world
    }

    /// Creates nodes with the embedded directory.
    pub fn embedded(count: u32) -> World {
        let mut cluster = Cluster::of(0);
        for node in 0..count {
            cluster.add(node, ARENA_BYTES);
        }
        World { cluster, etcd: Etcd::new(), late: Vec::new() }
    }

    /// Moves the names to the store, at the request of a session of `host`.
    pub fn move_names(&mut self, host: usize) -> Result<Outcome, CommandError> {
        self.command(host, Command::MoveNames(names_at("/halite/test")))
    }

    pub fn run(&mut self) {
        self.run_with(|_| Fate::Done);
    }

    /// Runs the cluster and the store until both are idle. `fate` decides what happens to each transaction.
    pub fn run_with(&mut self, mut fate: impl FnMut(&Transaction) -> Fate) {
        loop {
            self.cluster.run();
            let asked = std::mem::take(&mut self.cluster.store);
            if asked.is_empty() {
                return;
            }
            for (host, id, transaction) in asked {
                let result = match fate(&transaction) {
                    Fate::Full if transaction.writes(true) || transaction.writes(false) => {
                        let reason = "no room".to_owned();
                        Err(StoreFailure { may_be_done: false, is_full: true, has_others: false, reason })
                    }
                    Fate::Done | Fate::Full => Ok(self.etcd.execute(&transaction)),
                    Fate::Refused => fails(false),
                    Fate::ReplyLost => {
                        self.etcd.execute(&transaction);
                        fails(true)
                    }
                    Fate::Late => {
                        self.late.push(transaction);
                        fails(true)
                    }
                    Fate::Hung => {
                        self.late.push(transaction);
                        fails(true).map_err(|failure| StoreFailure { has_others: true, ..failure })
                    }
                };
                self.deliver(host, id, result);
            }
        }
    }

    /// Runs until idle; the store executes the newest pending transaction first.
    pub fn run_newest_first(&mut self) {
        while {
            self.cluster.run();
            !self.cluster.store.is_empty()
        } {
            let (host, id, transaction) = self.cluster.store.pop().expect("not empty");
            let stored = self.etcd.execute(&transaction);
            self.deliver(host, id, Ok(stored));
        }
    }

    pub fn deliver(&mut self, host: usize, id: u64, result: Result<Stored, StoreFailure>) {
        if self.cluster.hosts[host].running {
            let now_ns = self.cluster.now_ns;
            self.cluster.hosts[host].engine.handle_stored(now_ns, id, result);
        }
    }

    pub fn command(&mut self, host: usize, command: Command) -> Result<Outcome, CommandError> {
        self.command_with(host, command, |_| Fate::Done)
    }

    pub fn command_with(
        &mut self,
        host: usize,
        command: Command,
        fate: impl FnMut(&Transaction) -> Fate,
    ) -> Result<Outcome, CommandError> {
        let op = self.cluster.submit(host, command);
        self.run_with(fate);
        // Claims wait while the store is closed.
        let mut outcome = self.cluster.outcome(host, op);
        for _ in 0..10 {
            if outcome.is_none() {
                self.pass(SECOND_NS);
                outcome = self.cluster.outcome(host, op);
            }
        }
        outcome.expect("the command has ended")
    }

    pub fn alloc(&mut self, host: usize, name: &str) -> Result<Outcome, CommandError> {
        self.command(host, super::allocation(Some(name), 4096, Placement::Local))
    }

    pub fn home_of(&mut self, host: usize, name: &str) -> Result<NodeId, CommandError> {
        match self.command(host, Command::Stat(name.to_owned()))? {
            Outcome::Info(info) => Ok(info.home),
            other => panic!("{other:?}"),
        }
    }

    /// Advances time, so that the nodes notice that the store has recovered.
    pub fn pass(&mut self, duration_ns: u64) {
        self.cluster.pass(duration_ns);
        self.run();
    }

    pub fn execute_late(&mut self) {
        for transaction in std::mem::take(&mut self.late) {
            self.etcd.execute(&transaction);
        }
    }

    pub fn names(&self) -> Vec<String> {
        let names = self.etcd.keys.keys().filter_map(|key| key.strip_prefix("/halite/test/names/"));
        names.map(str::to_owned).collect()
    }
}

pub fn names_at(prefix: &str) -> NamesAt {
    NamesAt { address: format!("etcd://trial{prefix}"), prefix: prefix.to_owned() }
}

/// Returns true if a command failed because the store did.
pub fn is_unavailable(outcome: &Result<Outcome, CommandError>) -> bool {
    matches!(outcome, Err(CommandError::Refused(ErrorReply::DirectoryOut { .. })))
}

pub const SECOND_NS: u64 = 1_000_000_000;

/// Names that hosts claim and free at random, while transactions fail.
pub struct Claims {
    pub seed: u64,
    pub random: fastrand::Rng,
    /// The host that holds each name.
    pub held: BTreeMap<String, usize>,
}

impl Claims {
    pub fn new(seed: u64) -> Claims {
        Claims { seed, random: fastrand::Rng::with_seed(seed), held: BTreeMap::new() }
    }

    pub fn is_one_in(&mut self, count: u32) -> bool {
        self.random.u32(..count) == 0
    }

    /// A host claims one of `names` names, and frees half of those that it gets.
    pub fn claim(&mut self, world: &mut World, names: u32, fails: bool) {
        let Claims { seed, random, held } = self;
        let (host, name) = (random.usize(..3), format!("n{}", random.u32(..names)));
        let claim = super::allocation(Some(&name), 4096, Placement::Local);
        let outcome = world.command_with(host, claim, |_| match random.u32(..8) {
            0 if fails => Fate::Refused,
            1 if fails => Fate::ReplyLost,
            2 if fails => Fate::Late,
            _ => Fate::Done,
        });
        match outcome {
            Ok(Outcome::Mapped { slot, .. }) => {
                let before = held.insert(name.clone(), host);
                assert_eq!(before, None, "seed {seed}: {name} was given twice");
                if random.bool() {
                    world.command(host, Command::RegionCommand(slot, RegionCommand::Free)).unwrap();
                    held.remove(&name);
                }
            }
            Ok(other) => panic!("{other:?}"),
            Err(CommandError::Refused(ErrorReply::NameTaken | ErrorReply::DirectoryOut { .. })) => {}
            Err(other) => panic!("seed {seed}: {other:?}"),
        }
    }

    /// Executes late transactions, then checks that each held name leads to its holder.
    pub fn settle(&self, world: &mut World) {
        world.execute_late();
        for _ in 0..3 {
            world.pass(SECOND_NS + LEASE_NS);
        }
        for (name, host) in &self.held {
            assert_eq!(world.home_of(0, name), Ok(NodeId(*host as u32)), "seed {}: {name}", self.seed);
        }
    }
}
