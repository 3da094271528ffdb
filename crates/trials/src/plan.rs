//! Plans: what a trial consists of, as TOML.

use std::time::Duration;

use halite_sim::{Profile, ProfileError};
use serde::Deserialize;

use crate::harness::ARENA_BYTES;

/// A trial without its seed.
///
/// ```
/// let plan = halite_trials::Plan::from_toml("name = 'calm'\nnodes = 3\n").unwrap();
/// assert_eq!((plan.nodes, plan.sessions), (3, 2));
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// What people call it.
    pub name: String,
    /// How many nodes there are, from 1 to 1000.
    pub nodes: u32,
    /// Up to so many nodes are connected each to each; of more, each to the first and to those that it uses.
    #[serde(default = "defaults::full_mesh_nodes_max")]
    pub full_mesh_nodes_max: u32,
    /// Whether a joining node dials node 0 alone, which announces the others, as between hosts; else it dials every member.
    #[serde(default)]
    pub joins_by_first: bool,
    /// How many sessions each node has.
    #[serde(default = "defaults::sessions")]
    pub sessions: u32,
    /// For how long they work, in microseconds of simulated time.
    #[serde(default = "defaults::duration_us")]
    pub duration_us: u64,
    /// How long a silent node is taken to be alive, in microseconds.
    #[serde(default = "defaults::lease_us")]
    pub lease_us: u64,
    /// How long after another a node starts at most, in microseconds: all that it does time and again is so much later than the
    /// same of the other.
    #[serde(default)]
    pub start_gap_us: u64,
    /// After how long a connection that nobody answers is given up, in microseconds; two leases if that is not said.
    #[serde(default)]
    pub dial_us: Option<u64>,
    /// Bytes of the ring through which a node sends another its requests and messages: a power of two from 4096 to 2^30.
    #[serde(default = "defaults::ring_bytes")]
    pub ring_bytes: u64,
    /// The hardware between nodes, or between hosts if several nodes stand on one: the name of a profile of the simulator.
    #[serde(default = "defaults::profile")]
    pub profile: String,
    /// How nodes stand on hosts; each on one of its own if that is not said.
    #[serde(default)]
    pub hosts: Option<Hosts>,
    /// What stands between the nodes of one host: the name of a profile, of processes that share memory.
    #[serde(default)]
    pub host_profile: Option<String>,
    /// How many work requests a connection takes before its queue is full, if not as many as in the profile.
    #[serde(default)]
    pub queue_depth: Option<usize>,
    /// How many bytes a link carries in a microsecond, if not as many as in the profile.
    #[serde(default)]
    pub bandwidth_bytes_per_us: Option<u64>,
    /// By how many bytes arenas grow, at least: a power of two, at most a quarter of the arena.
    #[serde(default = "defaults::segment_bytes")]
    pub segment_bytes: u64,
    /// What sessions do, and how often.
    #[serde(default)]
    pub work: Work,
    /// What goes wrong, and how often.
    #[serde(default)]
    pub faults: Faults,
}

/// How nodes stand on hosts.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged)]
pub enum Hosts {
    /// On so many, to which they are dealt in turn.
    Dealt(u32),
    /// So many on each, in the order of their numbers.
    Filled(Vec<u32>),
}

/// Weights: a session does each in proportion.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Work {
    /// Regions: made, mapped, read, written, moved, granted, freed.
    pub regions: u32,
    /// Atomics on shared words.
    pub words: u32,
    /// Calls.
    pub calls: u32,
    /// Messages.
    pub messages: u32,
    /// Locks.
    pub locks: u32,
    /// Barriers.
    pub barriers: u32,
    /// Writes that notify watchers.
    pub watches: u32,
    /// Rights that are taken away while they are used.
    pub rights: u32,
    /// Homes that lose sight of who maps their regions, while both see who holds the bytes.
    pub apart: u32,
    /// The log of `halite-apps`: appended to, followed, trimmed.
    pub log: u32,
    /// Its key-value store, of which each node serves one: read and changed.
    pub kv: u32,
    /// Messages of which several are published one after the other.
    pub published: u32,
    /// How many accesses in a thousand touch many words.
    pub long_per_mille: u32,
    /// How many regions in a thousand are long: of many chunks, which lie on several nodes if the region is spread.
    pub long_regions_per_mille: u32,
    /// How many calls a session has under way at most.
    pub calls_posted_max: u32,
    /// How often in a thousand times calls that are under way together are posted together, and handlers receive and answer
    /// what waits together.
    pub batches_per_mille: u32,
    /// How long a session thinks between two operations at most, in microseconds.
    pub think_us_max: u64,
    /// How many operations in a thousand are given up in the middle.
    pub given_up_per_mille: u32,
}

/// Weights of what goes wrong, and how often anything does.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Microseconds between two faults, on average; 0 for none.
    pub gap_us: u64,
    /// A node dies, and comes back.
    pub crash: u32,
    /// A node leaves in peace, and comes back.
    pub leave: u32,
    /// A node stops, and goes on.
    pub pause: u32,
    /// Two nodes cannot reach each other for a while.
    pub partition: u32,
    /// One node does not reach another for a while, but is reached by it.
    pub one_way: u32,
    /// A link loses, repeats, reorders and damages packets for a while.
    pub noise: u32,
    /// A node's clock runs fast or slow.
    pub drift: u32,
    /// A host dies with all its nodes, of which nobody tells the others, and they come back.
    pub host_crash: u32,
    /// A node that only one other sees is forgotten, and comes back in another incarnation.
    pub forget: u32,
    /// How long something goes wrong at most, in hundredths of a lease.
    pub long_percent: u32,
    /// After so many microseconds nothing more goes wrong until there has been peace for two leases; 0 for never.
    pub spell_us: u64,
}

/// A minute: nothing in a trial takes longer.
const US_MAX: u64 = 60_000_000;
/// So small that any sum of them is a number.
const WEIGHT_MAX: u32 = 1_000_000;

mod defaults {
    use crate::harness::ARENA_BYTES;

    pub(super) fn sessions() -> u32 {
        2
    }
    pub(super) fn duration_us() -> u64 {
        4000
    }
    pub(super) fn full_mesh_nodes_max() -> u32 {
        64
    }

    pub(super) fn lease_us() -> u64 {
        1000
    }
    pub(super) fn ring_bytes() -> u64 {
        16 << 10
    }
    pub(super) fn segment_bytes() -> u64 {
        ARENA_BYTES / 4
    }
    pub(super) fn profile() -> String {
        "local".to_owned()
    }
}

impl Default for Work {
    fn default() -> Work {
        Work {
            regions: 8,
            words: 3,
            calls: 4,
            messages: 2,
            locks: 2,
            barriers: 1,
            watches: 2,
            rights: 1,
            apart: 0,
            log: 0,
            kv: 0,
            published: 0,
            long_per_mille: 125,
            long_regions_per_mille: 250,
            calls_posted_max: 4,
            batches_per_mille: 0,
            think_us_max: 10,
            given_up_per_mille: 60,
        }
    }
}

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            gap_us: 0,
            crash: 3,
            leave: 1,
            pause: 3,
            partition: 2,
            one_way: 1,
            noise: 3,
            drift: 1,
            host_crash: 0,
            forget: 0,
            long_percent: 300,
            spell_us: 0,
        }
    }
}

/// Why a text is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// It is not TOML, or has other fields than a plan.
    #[error("cannot read the plan: {0}")]
    Toml(#[from] toml::de::Error),
    /// A number that cannot be.
    #[error("cannot use plan {plan:?}: {what}")]
    Bad {
        /// The plan's name.
        plan: String,
        /// Which number, and what it may be.
        what: &'static str,
    },
    /// None of the tree has that name.
    #[error("there is no plan {name:?}; there are {}", Plan::names().collect::<Vec<_>>().join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// There is no such profile.
    #[error("cannot use plan {plan:?}: {source}")]
    Profile {
        /// The plan's name.
        plan: String,
        /// Which are there.
        source: ProfileError,
    },
}

impl Plan {
    /// Reads and checks a plan.
    pub fn from_toml(text: &str) -> Result<Plan, PlanError> {
        let plan: Plan = toml::from_str(text)?;
        plan.check()?;
        Ok(plan)
    }

    /// The same over other hardware, which stands between hosts if several nodes stand on one.
    pub fn over(mut self, profile: &str) -> Result<Plan, PlanError> {
        profile.clone_into(&mut self.profile);
        self.check()?;
        Ok(self)
    }

    fn check(&self) -> Result<(), PlanError> {
        let bad = |what| Err(PlanError::Bad { plan: self.name.clone(), what });
        let faults = &self.faults;
        match () {
            () if !(1..=1000).contains(&self.nodes) => bad("nodes must be from 1 to 1000"),
            () if !(1..=1000).contains(&self.sessions) => bad("sessions must be from 1 to 1000"),
            () if !(1..=US_MAX).contains(&self.duration_us) => bad("duration_us must be from 1 to 60000000"),
            () if !(100..=US_MAX).contains(&self.lease_us) => bad("lease_us must be from 100 to 60000000"),
            () if self.dial_us.is_some_and(|dial_us| !(10..=US_MAX).contains(&dial_us)) => {
                bad("dial_us must be from 10 to 60000000")
            }
            () if self.start_gap_us > US_MAX => bad("start_gap_us must be 60000000 at most"),
            () if !self.ring_bytes.is_power_of_two() || !(4096..=1 << 30).contains(&self.ring_bytes) => {
                bad("ring_bytes must be a power of two from 4096 to 1073741824")
            }
            () if !self.segment_bytes.is_power_of_two()
                || !(1 << 16..=ARENA_BYTES / 4).contains(&self.segment_bytes) =>
            {
                bad("segment_bytes must be a power of two from 65536 to 1048576")
            }
            () if self.queue_depth.is_some_and(|depth| !(4..=1 << 20).contains(&depth)) => {
                bad("queue_depth must be from 4 to 1048576")
            }
            () if self.bandwidth_bytes_per_us.is_some_and(|bytes| !(1..=1 << 20).contains(&bytes)) => {
                bad("bandwidth_bytes_per_us must be from 1 to 1048576")
            }
            () if !(2..=1000).contains(&self.work.calls_posted_max) => {
                bad("calls_posted_max must be from 2 to 1000")
            }
            () if self.work.batches_per_mille > 1000 => bad("batches_per_mille must be 1000 at most"),
            () if self.work.long_per_mille > 1000 => bad("long_per_mille must be 1000 at most"),
            () if self.work.long_regions_per_mille > 1000 => {
                bad("long_regions_per_mille must be 1000 at most")
            }
            () if self.work.think_us_max > US_MAX => bad("think_us_max must be 60000000 at most"),
            () if self.work.given_up_per_mille > 1000 => bad("given_up_per_mille must be 1000 at most"),
            () if !(1..=10_000).contains(&faults.long_percent) => bad("long_percent must be from 1 to 10000"),
            () if self.work.apart > 0 && (self.nodes < 3 || self.hosts.is_some()) => {
                bad("apart needs three nodes, each on a host of its own")
            }
            () if faults.spell_us > US_MAX => bad("spell_us must be 60000000 at most"),
            () if faults.spell_us > 0 && self.dial_us.is_none_or(|dial_us| dial_us > self.lease_us / 2) => {
                bad("spell_us needs a dial_us of half a lease at most")
            }
            () if faults.gap_us > US_MAX => bad("gap_us must be 60000000 at most"),
            () if self.work.weights().iter().chain(&faults.weights()).any(|weight| *weight > WEIGHT_MAX) => {
                bad("weights must be 1000000 at most")
            }
            () if self.work.weights().iter().sum::<u32>() == 0 => {
                bad("work needs at least one weight above 0")
            }
            () if faults.gap_us > 0 && faults.weights().iter().sum::<u32>() == 0 => {
                bad("faults with a gap need at least one weight above 0")
            }
            () => self.check_hosts(),
        }
    }

    fn check_hosts(&self) -> Result<(), PlanError> {
        let bad = |what| Err(PlanError::Bad { plan: self.name.clone(), what });
        let (across, within) = (self.profile()?, self.host_profile()?);
        let dealt = match &self.hosts {
            None if self.host_profile.is_some() => return bad("host_profile has no effect without hosts"),
            None if self.faults.host_crash > 0 => return bad("host_crash has no effect without hosts"),
            None => return Ok(()),
            Some(Hosts::Dealt(hosts)) => (1..=self.nodes).contains(hosts),
            Some(Hosts::Filled(hosts)) => {
                let nodes = hosts.iter().try_fold(0, |sum: u32, nodes| sum.checked_add(*nodes));
                nodes == Some(self.nodes) && !hosts.contains(&0)
            }
        };
        match () {
            () if !dealt => bad("hosts must be at most as many as nodes, or say how many nodes each has"),
            () if !across.is_adapter() => {
                bad("profile must be one with adapters when nodes are placed on hosts")
            }
            () if within.is_adapter() => bad("host_profile must be one of processes that share memory"),
            () => Ok(()),
        }
    }

    /// The hardware between nodes, or between hosts if several nodes stand on one.
    pub fn profile(&self) -> Result<Profile, PlanError> {
        self.hardware(&self.profile)
    }

    /// What stands between the nodes of one host, if several do.
    pub fn host_profile(&self) -> Result<Profile, PlanError> {
        self.hardware(self.host_profile.as_deref().unwrap_or("local"))
    }

    fn hardware(&self, name: &str) -> Result<Profile, PlanError> {
        let bad = |source| PlanError::Profile { plan: self.name.clone(), source };
        let profile = Profile::named(name).map_err(bad)?;
        Ok(Profile {
            queue_depth: self.queue_depth.unwrap_or(profile.queue_depth),
            bandwidth_bytes_per_us: self.bandwidth_bytes_per_us.unwrap_or(profile.bandwidth_bytes_per_us),
            ..profile
        })
    }

    /// The host of each node.
    pub(crate) fn hosts_of_nodes(&self) -> Vec<u32> {
        match &self.hosts {
            None => (0..self.nodes).collect(),
            Some(Hosts::Dealt(hosts)) => (0..self.nodes).map(|node| node % hosts).collect(),
            Some(Hosts::Filled(hosts)) => {
                let each = (0..).zip(hosts);
                each.flat_map(|(host, nodes)| std::iter::repeat_n(host, *nodes as usize)).collect()
            }
        }
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_micros(self.lease_us)
    }
}

impl Work {
    /// In the order of the fields.
    pub(crate) fn weights(&self) -> [u32; 12] {
        let Work {
            regions,
            words,
            calls,
            messages,
            locks,
            barriers,
            watches,
            rights,
            apart,
            log,
            kv,
            published,
            ..
        } = *self;
        [regions, words, calls, messages, locks, barriers, watches, rights, apart, log, kv, published]
    }
}

impl Faults {
    /// Whether connections end although both ends live.
    pub(crate) fn break_links(&self) -> bool {
        self.gap_us > 0 && self.partition + self.one_way + self.noise + self.forget > 0
    }

    /// In the order of the fields.
    pub(crate) fn weights(&self) -> [u32; 9] {
        let Faults { crash, leave, pause, partition, one_way, noise, drift, host_crash, forget, .. } = *self;
        [crash, leave, pause, partition, one_way, noise, drift, host_crash, forget]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_dealt_to_hosts_or_fill_one_after_the_other() {
        let hosts = |said: &str| {
            let text = format!("name = 'x'\nnodes = 5\nprofile = 'rnic-100g'\n{said}");
            Plan::from_toml(&text).unwrap().hosts_of_nodes()
        };
        assert_eq!(hosts(""), [0, 1, 2, 3, 4]);
        assert_eq!(hosts("hosts = 2"), [0, 1, 0, 1, 0]);
        assert_eq!(hosts("hosts = [2, 2, 1]"), [0, 0, 1, 1, 2]);
    }

    #[test]
    fn a_plan_that_cannot_be_is_refused_with_the_reason() {
        let refusal = |text: &str| Plan::from_toml(text).unwrap_err().to_string();
        assert!(refusal("nodes = 3").contains("name"));
        assert!(refusal("name = 'x'\nnodes = 0").contains("nodes must be"));
        assert!(refusal("name = 'x'\nnodes = 1\nspeed = 7").contains("speed"));
        assert!(refusal("name = 'x'\nnodes = 1\nprofile = 'abacus'").contains("abacus"));
        assert!(refusal("name = 'x'\nnodes = 1\nqueue_depth = 3").contains("queue_depth must be"));
        assert!(
            refusal("name = 'x'\nnodes = 1\nbandwidth_bytes_per_us = 0")
                .contains("bandwidth_bytes_per_us must")
        );
        assert!(refusal("name = 'x'\nnodes = 1\nsegment_bytes = 3").contains("segment_bytes must be"));
        let mixed = |rest: &str| refusal(&format!("name = 'x'\nnodes = 3\nprofile = 'rnic-100g'\n{rest}"));
        for hosts in ["4", "0", "[2, 2]", "[3, 0]", "[4294967295, 4]"] {
            assert!(mixed(&format!("hosts = {hosts}")).contains("hosts must be"), "{hosts}");
        }
        assert!(mixed("host_profile = 'local'").contains("without hosts"));
        assert!(mixed("faults = { host_crash = 1 }").contains("without hosts"));
        assert!(mixed("hosts = 2\nhost_profile = 'rnic-100g'").contains("share memory"));
        assert!(refusal("name = 'x'\nnodes = 3\nhosts = 2").contains("one with adapters"));
        assert!(
            refusal("name = 'x'\nnodes = 1\n[work]\nbatches_per_mille = 1001")
                .contains("batches_per_mille must be")
        );
        assert!(
            refusal(
                "name = 'x'\nnodes = 1\n[work]\nregions=0\nwords=0\ncalls=0\nmessages=0\nlocks=0\nbarriers=0\nwatches=0\nrights=0"
            )
            .contains("weight")
        );
    }
}
