//! Plans: the parameters of a trial, as TOML.

use std::time::Duration;

use halite::Policy;
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
    /// Name of the plan.
    pub name: String,
    /// Number of nodes, from 1 to 1000.
    pub nodes: u32,
    /// Maximum number of nodes with a full mesh of connections; in a larger cluster, a node connects to the first node,
    /// and to others on first use.
    #[serde(default = "defaults::full_mesh_nodes_max")]
    pub full_mesh_nodes_max: u32,
    /// True if a joining node dials only node 0, which announces the others, as between hosts; otherwise it dials all.
    #[serde(default)]
    pub joins_by_first: bool,
    /// Number of sessions per node.
    #[serde(default = "defaults::sessions")]
    pub sessions: u32,
    /// Simulated time for which sessions work, in microseconds.
    #[serde(default = "defaults::duration_us")]
    pub duration_us: u64,
    /// Duration of a lease, in microseconds.
    #[serde(default = "defaults::lease_us")]
    pub lease_us: u64,
    /// Maximum delay between the starts of two nodes, in microseconds; the delay also shifts their periodic work.
    #[serde(default)]
    pub start_gap_us: u64,
    /// Timeout of a dial, in microseconds; two leases by default.
    #[serde(default)]
    pub dial_us: Option<u64>,
    /// Bytes of the ring for requests and messages from one node to another: a power of two from 4096 to 2^30.
    #[serde(default = "defaults::ring_bytes")]
    pub ring_bytes: u64,
    /// Profile of the hardware between nodes, or between hosts if `hosts` is set.
    #[serde(default = "defaults::profile")]
    pub profile: String,
    /// Placement of nodes on hosts; by default, each node has its own host.
    #[serde(default)]
    pub hosts: Option<Hosts>,
    /// Profile of the hardware between the nodes of one host. In this profile, processes share memory.
    #[serde(default)]
    pub host_profile: Option<String>,
    /// Maximum number of work requests in a connection's queue; by default, the number in the profile.
    #[serde(default)]
    pub queue_depth: Option<usize>,
    /// Bandwidth of a link in bytes per microsecond; by default, the bandwidth in the profile.
    #[serde(default)]
    pub bandwidth_bytes_per_us: Option<u64>,
    /// Policy of all nodes for sessions of two priorities; every second session of a node then has low priority. By
    /// default, no session has.
    #[serde(default)]
    pub qos: Option<Policy>,
    /// Minimum number of bytes by which an arena grows: a power of two, at most a quarter of the arena.
    #[serde(default = "defaults::segment_bytes")]
    pub segment_bytes: u64,
    /// Weights of the operations that sessions execute at random.
    #[serde(default)]
    pub work: Work,
    /// Weights of faults.
    #[serde(default)]
    pub faults: Faults,
}

/// Placement of nodes on hosts.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged)]
pub enum Hosts {
    /// Nodes are assigned to this number of hosts in turn.
    Dealt(u32),
    /// Each host gets this many nodes, in the order of their numbers.
    Filled(Vec<u32>),
}

/// Weights of the operations that sessions execute at random.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Work {
    /// Weight of operations on regions: alloc, map, read, write, move, grant, free.
    pub regions: u32,
    /// Weight of atomics on shared words.
    pub words: u32,
    /// Weight of calls.
    pub calls: u32,
    /// Weight of messages.
    pub messages: u32,
    /// Weight of operations on locks.
    pub locks: u32,
    /// Weight of barriers.
    pub barriers: u32,
    /// Weight of writes that notify watchers.
    pub watches: u32,
    /// Weight of scenes in which permissions are revoked while they are used.
    pub rights: u32,
    /// Weight of scenes in which a home and a mapper lose their connection while both reach the node that holds the
    /// bytes.
    pub apart: u32,
    /// Weight of operations on the log of `halite-apps`: append, follow, trim.
    pub log: u32,
    /// Weight of reads and changes of the key-value stores of `halite-apps`, one per node.
    pub kv: u32,
    /// Weight of published messages, several in sequence.
    pub published: u32,
    /// Accesses per thousand that access many words.
    pub long_per_mille: u32,
    /// Regions per thousand that are long. A long region has many chunks, on several nodes if the region is spread.
    pub long_regions_per_mille: u32,
    /// Maximum number of outstanding calls of a session.
    pub calls_posted_max: u32,
    /// Calls per thousand that are posted, received and answered in batches.
    pub batches_per_mille: u32,
    /// Maximum pause between two operations of a session, in microseconds.
    pub think_us_max: u64,
    /// Operations per thousand that are cancelled midway.
    pub given_up_per_mille: u32,
}

/// Weights and frequency of faults.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Mean time between two faults, in microseconds. With 0, there are no faults.
    pub gap_us: u64,
    /// Weight of crashes of a node, which then restarts.
    pub crash: u32,
    /// Weight of departures of a node, which then restarts.
    pub leave: u32,
    /// Weight of stops of a node, which is later resumed.
    pub pause: u32,
    /// Weight of faults in which two nodes lose both directions of their link for a while.
    pub partition: u32,
    /// Weight of faults in which two nodes lose one direction of their link for a while.
    pub one_way: u32,
    /// Weight of faults in which a link loses, duplicates, reorders and corrupts packets for a while.
    pub noise: u32,
    /// Weight of faults in which a node's clock runs fast or slow.
    pub drift: u32,
    /// Weight of crashes of a host with all its nodes, without notice to others; the nodes then restart.
    pub host_crash: u32,
    /// Weight of faults in which the cluster forgets a node that only one other node reaches. The node then restarts in
    /// another incarnation.
    pub forget: u32,
    /// Maximum duration of a fault, in hundredths of a lease.
    pub long_percent: u32,
    /// Length of a period with faults, in microseconds. After each such period, faults pause until two leases of
    /// peace, in which everything alive must work, have passed. With 0, faults never pause.
    pub spell_us: u64,
}

/// Maximum value of fields in microseconds: a minute, longer than any trial.
const US_MAX: u64 = 60_000_000;
/// Maximum weight; small enough that sums do not overflow.
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

/// The reason why a text is not a plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The text is not TOML, or has unknown fields.
    #[error("cannot read the plan: {0}")]
    Toml(#[from] toml::de::Error),
    /// A number is out of range.
    #[error("cannot use plan {plan:?}: {what}")]
    Bad {
        /// Name of the plan.
        plan: String,
        /// The number, and its range.
        what: &'static str,
    },
    /// No built-in plan has that name.
    #[error("there is no plan {name:?}; the plans are {}", Plan::names().collect::<Vec<_>>().join(", "))]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// The profile does not exist.
    #[error("cannot use plan {plan:?}: {source}")]
    Profile {
        /// Name of the plan.
        plan: String,
        /// Error of the profile, which lists the known profiles.
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

    /// Returns the same plan with another profile, which applies between hosts if `hosts` is set.
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
        let is_valid = match &self.hosts {
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
            () if !is_valid => bad(
                "hosts must be a number up to the number of nodes, or a list with the number of nodes on each host",
            ),
            () if !across.is_adapter() => bad("profile must be one with adapters if `hosts` is set"),
            () if within.is_adapter() => bad("host_profile must be one of processes that share memory"),
            () => Ok(()),
        }
    }

    /// Returns the hardware between nodes, or between hosts if `hosts` is set.
    pub fn profile(&self) -> Result<Profile, PlanError> {
        self.hardware(&self.profile)
    }

    /// Returns the hardware between the nodes of one host.
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

    /// Returns the host of each node.
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
    /// Returns the weights in the order of the fields.
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
    /// Returns true if faults end connections of living nodes.
    pub(crate) fn break_links(&self) -> bool {
        self.gap_us > 0 && self.partition + self.one_way + self.noise + self.forget > 0
    }

    /// Returns the weights in the order of the fields.
    pub(crate) fn weights(&self) -> [u32; 9] {
        let Faults { crash, leave, pause, partition, one_way, noise, drift, host_crash, forget, .. } = *self;
        [crash, leave, pause, partition, one_way, noise, drift, host_crash, forget]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_assigned_to_hosts_in_turn_or_in_order() {
        let hosts = |line: &str| {
            let text = format!("name = 'x'\nnodes = 5\nprofile = 'rnic-100g'\n{line}");
            Plan::from_toml(&text).unwrap().hosts_of_nodes()
        };
        assert_eq!(hosts(""), [0, 1, 2, 3, 4]);
        assert_eq!(hosts("hosts = 2"), [0, 1, 0, 1, 0]);
        assert_eq!(hosts("hosts = [2, 2, 1]"), [0, 0, 1, 1, 2]);
    }

    #[test]
    fn an_invalid_plan_is_refused_with_the_reason() {
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
