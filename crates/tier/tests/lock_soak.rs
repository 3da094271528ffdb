//! Random locking, waiting, loss of interest, kills and restarts under random schedules: a lock has one holder at a
//! time, tokens rise, who follows a dead holder is told, and in the end nobody is stuck.

mod common;

use std::collections::BTreeMap;

use common::{ARENA_BYTES, Cluster};
use halite_tier::access::{Atomic, SlotRef};
use halite_tier::effect::{Command, OpId, Outcome, Release};
use halite_tier::ids::RegionId;
use halite_tier::lockword::{Holder, STATE_OFFSET, TOKENS_OFFSET, token_correction};
use halite_tier::names::Service;
use halite_tier::permissions::Permissions;

const NODES: usize = 4;
const TURNS: usize = 600;
const SEEDS: u64 = 60;
const NAME: &str = "soak";

/// Xorshift: a failing seed is all that is needed to see the same again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 8) % limit
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Stage {
    Opening(OpId),
    Idle,
    Waiting(OpId),
    Held,
    GivingUp(OpId),
}

/// A host's use of the lock, as a session makes it.
struct User {
    slot: Option<(SlotRef, RegionId)>,
    stage: Stage,
    /// The next attempt must go to the home, behind the news that the last is not wanted.
    detour: bool,
}

/// Who holds a lock, if anybody; the host may be dead.
#[derive(Default)]
struct Lock {
    holder: Option<usize>,
    token: u64,
}

struct Soak {
    seed: u64,
    random: Random,
    cluster: Cluster,
    users: BTreeMap<usize, User>,
    /// By region: a lock that is made anew after the death of its home is another.
    locks: BTreeMap<RegionId, Lock>,
    base_ns: u64,
    grants: u64,
    recovered: u64,
}

impl Soak {
    fn new(seed: u64) -> Soak {
        let mut cluster = Cluster::of(NODES);
        cluster.slow_wire = Some((seed as usize % 4, (seed / 4) as usize % 4));
        Soak {
            seed,
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            cluster,
            users: BTreeMap::new(),
            locks: BTreeMap::new(),
            base_ns: 1 << 61,
            grants: 0,
            recovered: 0,
        }
    }

    fn live(&mut self) -> usize {
        let hosts = 0..self.cluster.hosts.len();
        let live: Vec<usize> = hosts.filter(|host| self.cluster.hosts[*host].running).collect();
        live[self.random.below(live.len() as u64) as usize]
    }

    fn turn(&mut self) {
        self.base_ns += 1_000_000;
        let host = self.live();
        match self.random.below(100) {
            0 => self.kill_and_restart(host),
            _ => self.use_lock(host),
        }
        for _ in 0..self.random.below(20) {
            let pick = self.random.next();
            self.cluster.step_one(pick);
        }
        self.collect();
    }

    fn use_lock(&mut self, host: usize) {
        // As a driver does before it lets go of the engine.
        self.cluster.perform(host);
        let new = || User { slot: None, stage: Stage::Idle, detour: false };
        let user = self.users.entry(host).or_insert_with(new);
        match (user.stage, user.slot) {
            (Stage::Idle, None) => {
                let command = match self.random.below(2) {
                    0 => Command::Map { name: Service::Lock.region_name(NAME), wanted: Permissions::ATOMIC },
                    _ => Command::Anchor {
                        service: Service::Lock,
                        name: NAME.into(),
                        everyone: Permissions::ATOMIC,
                    },
                };
                user.stage = Stage::Opening(self.cluster.submit(host, command));
            }
            (Stage::Idle, Some((slot, region))) => self.lock(host, slot, region),
            (Stage::Held, Some((slot, region))) => self.unlock(host, slot, region),
            (Stage::Waiting(op), _) if self.random.below(4) == 0 => {
                (user.stage, user.detour) = (Stage::Idle, true);
                let now_ns = self.cluster.now_ns;
                // What was granted and not yet looked at is given back, as tickets do.
                match self.cluster.outcome(host, op) {
                    Some(Ok(Outcome::Locked { recovered, .. })) => {
                        let slot = user.slot.expect("a lock that is granted is open").0;
                        user.stage = Stage::GivingUp(self.cluster.submit(
                            host,
                            Command::Unlock {
                                slot,
                                release: if recovered { Release::Unused } else { Release::Used },
                            },
                        ));
                    }
                    Some(_) => {}
                    None => self.cluster.hosts[host].engine.abandon(now_ns, op),
                }
            }
            _ => {}
        }
    }

    fn atomic(&self, host: usize, slot: SlotRef, offset: u64, atomic: Atomic) -> Option<u64> {
        let host = &self.cluster.hosts[host];
        host.path.atomic(host.session, slot, offset, atomic).ok()
    }

    fn name_of(&self, host: usize) -> u64 {
        Holder::new(self.cluster.hosts[host].life, self.cluster.hosts[host].session).state()
    }

    fn lock(&mut self, host: usize, slot: SlotRef, region: RegionId) {
        let take = Atomic::CompareSwap { expected: 0, new: self.name_of(host) };
        let detour = self.users[&host].detour;
        if !detour && self.atomic(host, slot, STATE_OFFSET, take) == Some(0) {
            let add = |add| self.atomic(host, slot, TOKENS_OFFSET, Atomic::FetchAdd { add });
            if let Some(last) = add(1) {
                let correction = token_correction(last, || self.base_ns);
                add(correction);
                return self.granted(host, region, last + 1 + correction, false);
            }
        }
        let command = Command::Lock { slot, wait: self.random.below(4) > 0, base_ns: self.base_ns };
        self.user(host).stage = Stage::Waiting(self.cluster.submit(host, command));
    }

    fn user(&mut self, host: usize) -> &mut User {
        self.users.get_mut(&host).expect("it uses the lock")
    }

    fn granted(&mut self, host: usize, region: RegionId, token: u64, recovered: bool) {
        let lock = self.locks.entry(region).or_default();
        let seed = self.seed;
        assert!(token > lock.token, "seed {seed}: token {token} after {}", lock.token);
        if let Some(before) = lock.holder {
            assert!(!self.cluster.hosts[before].running, "seed {seed}: {host} holds what {before} holds");
            assert!(recovered, "seed {seed}: {host} must learn that {before} died");
        }
        (lock.holder, lock.token) = (Some(host), token);
        self.grants += 1;
        self.recovered += u64::from(recovered);
        let user = self.user(host);
        (user.stage, user.detour) = (Stage::Held, false);
    }

    fn unlock(&mut self, host: usize, slot: SlotRef, region: RegionId) {
        self.locks.get_mut(&region).expect("it was granted").holder = None;
        let name = self.name_of(host);
        let give_up = Atomic::CompareSwap { expected: name, new: 0 };
        let stage = match self.atomic(host, slot, STATE_OFFSET, give_up) {
            Some(before) if before == name => Stage::Idle,
            _ => Stage::GivingUp(self.cluster.submit(host, Command::Unlock { slot, release: Release::Used })),
        };
        self.user(host).stage = stage;
    }

    fn kill_and_restart(&mut self, host: usize) {
        let node = self.cluster.hosts[host].life.node.0;
        self.cluster.kill(host);
        self.users.remove(&host);
        for _ in 0..self.random.below(40) {
            let pick = self.random.next();
            self.cluster.step_one(pick);
        }
        self.cluster.add_late(node, ARENA_BYTES);
    }

    fn collect(&mut self) {
        for host in self.users.keys().copied().collect::<Vec<_>>() {
            let (Stage::Opening(op) | Stage::Waiting(op) | Stage::GivingUp(op)) = self.users[&host].stage
            else {
                continue;
            };
            let Some(outcome) = self.cluster.outcome(host, op) else { continue };
            match (outcome, self.users[&host].slot) {
                (Ok(Outcome::Mapped { slot, region }), _) => self.user(host).slot = Some((slot, region)),
                (Ok(Outcome::Locked { token, recovered }), Some((_, region))) => {
                    self.granted(host, region, token, recovered);
                    continue;
                }
                (Ok(_), _) => {}
                (Err(error), _) => {
                    let text = error.to_string();
                    if !text.contains("held") {
                        // The home is gone, and the lock with it.
                        self.user(host).slot = None;
                    }
                }
            }
            self.user(host).stage = Stage::Idle;
        }
    }

    /// Lets all who hold give up until nobody holds or waits.
    fn finish(mut self) -> (u64, u64) {
        for _ in 0..4 * NODES {
            self.cluster.run();
            self.collect();
            for host in self.users.keys().copied().collect::<Vec<_>>() {
                if let (Stage::Held, Some((slot, region))) = (self.users[&host].stage, self.users[&host].slot)
                {
                    self.unlock(host, slot, region);
                }
            }
        }
        for (host, user) in &self.users {
            assert_eq!(user.stage, Stage::Idle, "seed {}: host {host} is stuck", self.seed);
        }
        (self.grants, self.recovered)
    }
}

#[test]
fn a_lock_has_one_holder_at_a_time_and_nobody_is_stuck_whatever_happens() {
    let (mut grants, mut recovered) = (0, 0);
    for seed in 1..=SEEDS {
        let mut soak = Soak::new(seed);
        for _ in 0..TURNS {
            soak.turn();
        }
        let (more, of_the_dead) = soak.finish();
        (grants, recovered) = (grants + more, recovered + of_the_dead);
    }
    assert!(grants > SEEDS * 20 && recovered > 5, "{grants} grants, {recovered} of them recovered");
}
