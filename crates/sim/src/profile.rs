//! Hardware profiles: the costs and limits of adapters, links and processors, as data.

use std::ops::RangeInclusive;

use halite_fabric::Atomics;
use halite_rnic::Mtu;
use serde::Deserialize;

/// The costs and limits of the hardware between all hosts of a world. Another profile may apply between the processes
/// of one host; see [`crate::World::with_processes`].
///
/// Times are in nanoseconds, lengths in bytes. Profiles are TOML files with exactly these fields. Those in
/// `crates/sim/profiles` give the sources of their numbers.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Processor time to write one work request.
    pub post_ns: u64,
    /// Processor time to ring the adapter's doorbell for a list of requests.
    pub doorbell_ns: u64,
    /// Time of one crossing of the bus between adapter and memory.
    pub pcie_ns: u64,
    /// Time on the bus between adapter and memory per KiB, at either end.
    pub dma_ns_per_kib: u64,
    /// Time that the target's adapter takes to execute an atomic.
    pub atomic_ns: u64,
    /// The unit that executes posted atomics at the target.
    pub atomics: AtomicsBy,
    /// The unit that acknowledges requests at the target.
    pub acknowledged: AcknowledgedBy,
    /// Default latency of links; see [`crate::World::set_link`].
    pub wire_ns: u64,
    /// Default bandwidth of links.
    pub bandwidth_bytes_per_us: u64,
    /// Bytes per datagram on the wire, in addition to the packet of a queue pair. If processors copy: bytes per piece
    /// on the wire, in addition to the copied bytes.
    pub header_bytes: u64,
    /// Maximum payload of a packet. A longer write lands in pieces of this size.
    pub mtu_bytes: u64,
    /// Time from the arrival of the acknowledgement until the completion is in memory.
    pub completion_ns: u64,
    /// Time from the arrival of a completion in memory until a polling thread sees it.
    pub poll_ns: u64,
    /// Time from a ring of the armed doorbell until the sleeping thread runs.
    pub interrupt_ns: u64,
    /// Retransmission timeout of adapters; queue pairs that processes drive measure round trips instead.
    pub retransmit_ns: u64,
    /// Maximum number of retransmissions before the connection ends. Processes that drive queue pairs end the
    /// connection after the time that this many retransmissions take.
    pub retries_max: u32,
    /// Delay before a message that found no posted receive is retried.
    pub rnr_ns: u64,
    /// Number of lanes between two peers. Each lane has a queue pair at either end, and keeps its own requests in
    /// order.
    pub lanes: usize,
    /// Maximum number of outstanding requests of one peer in one lane.
    pub queue_depth: usize,
    /// Maximum number of messages and immediates of one peer that wait to be polled.
    pub receive_depth: usize,
    /// Maximum length of an inline source, in bytes.
    pub inline_bytes_max: usize,
    /// Maximum length of a message, in bytes.
    pub send_bytes_max: usize,
    /// Maximum number of registered segments of one fabric.
    pub keys_max: usize,
    /// Time limit of an attempt to connect.
    pub connect_timeout_ns: u64,
    /// Time from a process's crash until its peers are notified, if a message can reach them.
    pub notice_ns: u64,
    /// The mechanism that revokes a peer's access to this process's memory.
    pub cut_off: CutOffBy,
    /// The permitted action against a peer whose access ends only with its process.
    pub fence: Fence,
    /// Time that the action of `fence` takes.
    pub fence_ns: u64,
    /// The time T of lanes without connection state at the responder (`halite_rnic::stateless`), which processes drive;
    /// if absent, lanes are queue pairs.
    #[serde(default)]
    pub effect_life_ns: Option<u64>,
    /// Units and caches of the adapter; if absent, an adapter handles any number of packets at once.
    #[serde(default)]
    pub adapter: Option<Adapter>,
    /// The processors of a host, for programs that charge their own instructions; see [`Processor::runs_ns`]. The
    /// fabric does not use them.
    #[serde(default)]
    pub processor: Option<Processor>,
}

/// Units and caches inside an adapter; see `net/stages.rs` for their use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapter {
    /// Time that the sending or the receiving unit needs for one packet, except acknowledgements.
    pub packet_ns: u64,
    /// Additional time to start reading a payload that is not inline. A unit hides this time if the previous packet
    /// belongs to the same queue pair and has just left.
    pub gather_ns: u64,
    /// Time for which a unit stalls after a cache miss, to read the entry from the host's memory.
    pub fetch_ns: u64,
    /// Maximum number of queue pairs whose state is cached.
    pub cached_connections: u64,
    /// Maximum number of cached memory keys.
    pub cached_keys: u64,
    /// Maximum number of cached page-table entries.
    pub cached_pages: u64,
    /// Time to take a posted receive, for each message and each write with immediate.
    pub receive_ns: u64,
    /// Time for which a thread that waits for events polls before it sleeps: events in this time cost `poll_ns`, later
    /// ones `interrupt_ns`.
    pub spin_ns: u64,
}

/// The processors of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// Clock rate in MHz.
    pub clock_mhz: u64,
    /// Instructions per 1,000 cycles.
    pub instructions_per_kilocycle: u64,
    /// Time of one system call, there and back.
    pub system_call_ns: u64,
    /// Time to register memory with the adapter, without the time for its pages.
    pub register_ns: u64,
    /// Additional time to register one page of 4 KiB.
    pub register_page_ns: u64,
    /// Time to deregister memory, without the time for its pages.
    pub deregister_ns: u64,
    /// Additional time to deregister one page of 4 KiB.
    pub deregister_page_ns: u64,
}

impl Processor {
    /// Returns the time in ns that this number of instructions takes.
    pub fn runs_ns(&self, instructions: u64) -> u64 {
        instructions * 1_000_000 / (self.clock_mhz * self.instructions_per_kilocycle)
    }

    /// Returns the number of cycles that pass in `ns`.
    pub fn cycles(&self, ns: u64) -> f64 {
        ns as f64 * self.clock_mhz as f64 / 1000.0
    }
}

/// The unit that executes posted atomics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AtomicsBy {
    /// A processor. Posted atomics are also atomic with respect to the accesses of processors.
    Processor,
    /// The adapter of the target, which reads the word and writes it `atomic_ns` later, and overwrites changes made in
    /// between.
    Adapter,
}

/// The unit that acknowledges and answers requests at their target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AcknowledgedBy {
    /// The adapter acknowledges, even while its process is stopped. Profiles in which processors copy also have this
    /// value, but use no acknowledgements.
    Adapter,
    /// The process acknowledges, in software. While it is stopped, it sends, receives and answers nothing.
    Process,
}

/// Allowed ranges of values, far beyond any hardware. They prevent arithmetic overflow and the exhaustion of memory.
const COST_NS: RangeInclusive<u64> = 0..=1_000_000_000;
const TIMER_NS: RangeInclusive<u64> = 1_000..=1_000_000_000_000;
const CACHED: RangeInclusive<u64> = 1..=1 << 24;
/// Clock rate in MHz, and instructions per 1,000 cycles.
const RATE: RangeInclusive<u64> = 1..=100_000;

impl From<AtomicsBy> for Atomics {
    fn from(by: AtomicsBy) -> Atomics {
        match by {
            AtomicsBy::Processor => Atomics::Processor,
            AtomicsBy::Adapter => Atomics::Adapter,
        }
    }
}

/// The mechanism that revokes a peer's access to this process's memory (a cut-off).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CutOffBy {
    /// This process's own adapter drops all packets of the peer.
    Target,
    /// The exit of the peer's process: the peer's processor copies into this process's memory, and may stop and resume
    /// at any time.
    Exit,
}

/// The permitted action against a peer whose access to memory ends only with its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fence {
    /// Bring the peer's host down.
    Kill,
    /// No action is permitted.
    Never,
}

/// The reason why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The text is not TOML, has an unknown field, lacks a field, or has a value of the wrong type.
    #[error("cannot read a hardware profile: {0}")]
    Malformed(#[from] toml::de::Error),
    /// A value does not fit the values of other fields.
    #[error("cannot use a hardware profile: {field} is {value}; it must be {wanted}")]
    Value {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: u64,
        /// The allowed values.
        wanted: &'static str,
    },
    /// A value is out of its range.
    #[error("cannot use a hardware profile: {field} is {value}; it must be between {} and {}", range.start(), range.end())]
    Range {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: u64,
        /// The allowed values.
        range: RangeInclusive<u64>,
    },
    /// The profile names the adapter as executor of atomics, but processors copy, so there is no adapter.
    #[error("cannot use a hardware profile: atomics = \"adapter\" requires cut_off = \"target\"")]
    NoAdapter,
    /// The profile names the process as acknowledging unit, but requests are not acknowledged if processors copy.
    #[error("cannot use a hardware profile: acknowledged = \"process\" requires cut_off = \"target\"")]
    NotAcknowledged,
    /// Queue pairs of `halite_rnic` require certain packet sizes, and processes without an adapter cannot use an
    /// adapter's atomics.
    #[error(
        "cannot use a hardware profile: with cut_off = \"target\", mtu_bytes must be 256, 512, 1024, 2048 or 4096; \
         with acknowledged = \"process\", atomics must be \"processor\""
    )]
    NoQueuePair,
    /// The profile has stateless lanes, but no process drives them.
    #[error("cannot use a hardware profile: effect_life_ns requires acknowledged = \"process\"")]
    NotStateless,
    /// The profile has units of an adapter, but no adapter executes its requests.
    #[error(
        "cannot use a hardware profile: [adapter] requires cut_off = \"target\" and acknowledged = \"adapter\""
    )]
    NoUnits,
    /// No profile has this name.
    #[error("there is no hardware profile {name:?}; the profiles are {}", Profile::NAMES.join(", "))]
    Unknown {
        /// The requested name.
        name: String,
    },
}

impl Profile {
    /// Names of the built-in profiles.
    pub const NAMES: [&str; 9] = [
        "local",
        "local-torn",
        "rnic-100g",
        "rnic-100g-hca",
        "roce-100g",
        "roce-100g-stateless",
        "cx3-40g",
        "connectib-fdr",
        "cx6dx-100g",
    ];

    /// Parses a profile in TOML, and checks it with [`Profile::check`].
    pub fn from_toml(text: &str) -> Result<Profile, ProfileError> {
        let profile: Profile = toml::from_str(text)?;
        profile.check()?;
        Ok(profile)
    }

    /// Returns the built-in profile of this name. Fails if no profile has this name.
    pub fn named(name: &str) -> Result<Profile, ProfileError> {
        match name {
            "rnic-100g-hca" => Ok(Profile::rnic_100g_hca()),
            "roce-100g-stateless" => Ok(Profile::roce_100g_stateless()),
            _ => Profile::from_toml(Profile::toml(name)?),
        }
    }

    /// Returns the TOML text of the built-in profile of this name, with comments that give the sources of its values.
    /// Fails if no profile has this name.
    pub fn toml(name: &str) -> Result<&'static str, ProfileError> {
        Ok(match name {
            "local" => include_str!("../profiles/local.toml"),
            "local-torn" => include_str!("../profiles/local-torn.toml"),
            "rnic-100g" | "rnic-100g-hca" => include_str!("../profiles/rnic-100g.toml"),
            "roce-100g" | "roce-100g-stateless" => include_str!("../profiles/roce-100g.toml"),
            "cx3-40g" => include_str!("../profiles/cx3-40g.toml"),
            "connectib-fdr" => include_str!("../profiles/connectib-fdr.toml"),
            "cx6dx-100g" => include_str!("../profiles/cx6dx-100g.toml"),
            _ => return Err(ProfileError::Unknown { name: name.to_owned() }),
        })
    }

    /// Returns the profile of processes of one host that share memory.
    pub fn local() -> Profile {
        Profile::built_in("local")
    }

    /// Returns the profile of processes of one host that copy slowly, and may continue to copy after peers have
    /// declared them dead.
    pub fn local_torn() -> Profile {
        Profile::built_in("local-torn")
    }

    /// Returns the profile of hosts with adapters of 100 Gb/s behind one switch.
    pub fn rnic_100g() -> Profile {
        Profile::built_in("rnic-100g")
    }

    /// Returns [`Profile::rnic_100g`] with atomics that are atomic only among themselves (verbs' `IBV_ATOMIC_HCA`).
    pub fn rnic_100g_hca() -> Profile {
        Profile { atomics: AtomicsBy::Adapter, ..Profile::rnic_100g() }
    }

    /// Returns the profile of hosts whose processes drive RoCEv2 over UDP in software.
    pub fn roce_100g() -> Profile {
        Profile::built_in("roce-100g")
    }

    /// Returns [`Profile::roce_100g`] with lanes without connection state at the responder. The time until a peer that
    /// does not answer counts as dead is 10 ms, four times T: so a request may also expire, and be sent anew.
    pub fn roce_100g_stateless() -> Profile {
        Profile { effect_life_ns: Some(2_500_000), retries_max: 20, ..Profile::roce_100g() }
    }

    fn built_in(name: &str) -> Profile {
        Profile::named(name).expect("tests check the built-in profiles")
    }

    /// Checks that all values are in range and fit together. Fails at the first value that does not.
    pub fn check(&self) -> Result<(), ProfileError> {
        self.check_ranges()?;
        if self.is_driven_by_process() && !self.is_adapter() {
            return Err(ProfileError::NotAcknowledged);
        }
        if self.atomics == AtomicsBy::Adapter && !self.is_adapter() {
            return Err(ProfileError::NoAdapter);
        }
        let has_valid_mtu = Mtu::ALL.iter().any(|mtu| u64::from(mtu.bytes()) == self.mtu_bytes);
        let has_executor = self.atomics == AtomicsBy::Processor || !self.is_driven_by_process();
        if self.is_adapter() && !(has_valid_mtu && has_executor) {
            return Err(ProfileError::NoQueuePair);
        }
        if self.lanes > 1 && !self.is_adapter() {
            let (field, value) = ("lanes", self.lanes as u64);
            return Err(ProfileError::Value { field, value, wanted: "1 where processors copy" });
        }
        let adapter_costs = [
            ("pcie_ns", self.pcie_ns),
            ("dma_ns_per_kib", self.dma_ns_per_kib),
            ("completion_ns", self.completion_ns),
        ];
        for (field, value) in adapter_costs {
            if value > 0 && !self.is_adapter() {
                return Err(ProfileError::Value { field, value, wanted: "0 where processors copy" });
            }
        }
        if !self.mtu_bytes.is_multiple_of(8) {
            let (field, value) = ("mtu_bytes", self.mtu_bytes);
            return Err(ProfileError::Value {
                field,
                value,
                wanted: "a multiple of 8, so that words are not torn",
            });
        }
        if self.effect_life_ns.is_some() && !self.is_driven_by_process() {
            return Err(ProfileError::NotStateless);
        }
        match self.adapter {
            Some(_) if !self.is_adapter() || self.is_driven_by_process() => Err(ProfileError::NoUnits),
            _ => Ok(()),
        }
    }

    fn check_ranges(&self) -> Result<(), ProfileError> {
        let common = [
            ("post_ns", self.post_ns, COST_NS),
            ("doorbell_ns", self.doorbell_ns, COST_NS),
            ("pcie_ns", self.pcie_ns, COST_NS),
            ("dma_ns_per_kib", self.dma_ns_per_kib, COST_NS),
            ("atomic_ns", self.atomic_ns, COST_NS),
            ("wire_ns", self.wire_ns, COST_NS),
            ("bandwidth_bytes_per_us", self.bandwidth_bytes_per_us, 1..=10_000_000),
            ("header_bytes", self.header_bytes, 0..=1 << 16),
            ("mtu_bytes", self.mtu_bytes, 8..=1 << 30),
            ("completion_ns", self.completion_ns, COST_NS),
            ("poll_ns", self.poll_ns, COST_NS),
            ("interrupt_ns", self.interrupt_ns, COST_NS),
            ("retransmit_ns", self.retransmit_ns, TIMER_NS),
            ("retries_max", u64::from(self.retries_max), 0..=1_000),
            ("rnr_ns", self.rnr_ns, 1..=*COST_NS.end()),
            ("lanes", self.lanes as u64, 1..=64),
            ("queue_depth", self.queue_depth as u64, 1..=1 << 16),
            ("receive_depth", self.receive_depth as u64, 1..=1 << 20),
            ("inline_bytes_max", self.inline_bytes_max as u64, 0..=1 << 24),
            ("send_bytes_max", self.send_bytes_max as u64, 256..=1 << 30),
            ("keys_max", self.keys_max as u64, 1..=1 << 24),
            ("connect_timeout_ns", self.connect_timeout_ns, TIMER_NS),
            ("notice_ns", self.notice_ns, 0..=*TIMER_NS.end()),
            ("fence_ns", self.fence_ns, 0..=*TIMER_NS.end()),
        ];
        let lane_values = self.effect_life_ns.iter().map(|ns| ("effect_life_ns", *ns, TIMER_NS));
        let adapter_values = self.adapter.iter().flat_map(|adapter| {
            [
                ("adapter.packet_ns", adapter.packet_ns, COST_NS),
                ("adapter.gather_ns", adapter.gather_ns, COST_NS),
                ("adapter.fetch_ns", adapter.fetch_ns, COST_NS),
                ("adapter.cached_connections", adapter.cached_connections, CACHED),
                ("adapter.cached_keys", adapter.cached_keys, CACHED),
                ("adapter.cached_pages", adapter.cached_pages, CACHED),
                ("adapter.receive_ns", adapter.receive_ns, COST_NS),
                ("adapter.spin_ns", adapter.spin_ns, 0..=*TIMER_NS.end()),
            ]
        });
        let processor_values = self.processor.iter().flat_map(|processor| {
            [
                ("processor.clock_mhz", processor.clock_mhz, RATE),
                ("processor.instructions_per_kilocycle", processor.instructions_per_kilocycle, RATE),
                ("processor.system_call_ns", processor.system_call_ns, COST_NS),
                ("processor.register_ns", processor.register_ns, COST_NS),
                ("processor.register_page_ns", processor.register_page_ns, COST_NS),
                ("processor.deregister_ns", processor.deregister_ns, COST_NS),
                ("processor.deregister_page_ns", processor.deregister_page_ns, COST_NS),
            ]
        });
        let mut values = common.into_iter().chain(lane_values).chain(adapter_values).chain(processor_values);
        match values.find(|(_, value, range)| !range.contains(value)) {
            Some((field, value, range)) => Err(ProfileError::Range { field, value, range }),
            None => Ok(()),
        }
    }

    /// Returns true if adapters execute requests, and false if processors copy: the requester's processor copies the
    /// bytes to or from the target's memory.
    pub fn is_adapter(&self) -> bool {
        self.cut_off == CutOffBy::Target
    }

    /// Returns true if processes drive the queue pairs of their lanes, so that a stopped process also stops its queue
    /// pairs.
    pub(crate) fn is_driven_by_process(&self) -> bool {
        self.acknowledged == AcknowledgedBy::Process
    }

    pub(crate) fn dma_ns(&self, len: u64) -> u64 {
        len * self.dma_ns_per_kib / 1024
    }
}
