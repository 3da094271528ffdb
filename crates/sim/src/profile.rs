//! Profiles: what hardware takes how long, as data.

use halite_fabric::Atomics;
use halite_rnic::Mtu;
use serde::Deserialize;

/// The costs and limits of one kind of hardware, which all hosts of a world have between them; the processes of a host may
/// have another, see [`crate::World::with_processes`].
///
/// Times are in nanoseconds, lengths in bytes.  Profiles are TOML files with exactly these fields; those of the tree
/// are in `crates/sim/profiles` and say where their numbers come from.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What the processor takes to write one work request.
    pub post_ns: u64,
    /// What it takes to tell the adapter of a list of them.
    pub doorbell_ns: u64,
    /// One crossing of the bus between adapter and memory.
    pub pcie_ns: u64,
    /// What 1 KiB takes on that bus, on either side.
    pub dma_ns_per_kib: u64,
    /// What an atomic takes at the adapter of its target.
    pub atomic_ns: u64,
    /// Who carries it out there.
    pub atomics: AtomicsBy,
    /// Who acknowledges what arrives.
    pub acknowledged: AcknowledgedBy,
    /// The latency of links, unless [`crate::World::set_link`] says otherwise.
    pub wire_ns: u64,
    /// Their bandwidth, unless that says otherwise.
    pub bandwidth_bytes_per_us: u64,
    /// What is around each datagram, which has the headers of its queue pair itself; or around each piece of a processor's copy.
    pub header_bytes: u64,
    /// The payload of a packet: writes land in pieces of that many bytes.
    pub mtu_bytes: u64,
    /// From the acknowledgement's arrival until the completion is in memory.
    pub completion_ns: u64,
    /// Until somebody who polls sees a completion.
    pub poll_ns: u64,
    /// Until somebody who sleeps on the armed doorbell is woken.
    pub interrupt_ns: u64,
    /// How long an adapter waits for an acknowledgement; queue pairs that processes drive measure round trips.
    pub retransmit_ns: u64,
    /// How often in vain before the connection is given up; by processes, after as long as that would take.
    pub retries_max: u32,
    /// How long a message waits that finds no receive posted.
    pub rnr_ns: u64,
    /// How many orders of requests there are between two peers: each has a queue pair of its own at either end.
    pub lanes: usize,
    /// Requests to one peer that may be outstanding in one of them.
    pub queue_depth: usize,
    /// Messages and immediates of one peer that may wait to be polled.
    pub receive_depth: usize,
    /// Largest inline source.
    pub inline_bytes_max: usize,
    /// Largest message.
    pub send_bytes_max: usize,
    /// Segments that one fabric can register.
    pub keys_max: usize,
    /// How long an attempt to connect may take.
    pub connect_timeout_ns: u64,
    /// How long after a crash its peers hear of it, if anything can reach them.
    pub notice_ns: u64,
    /// How a peer is cut off.
    pub cut_off: CutOffBy,
    /// What may be done to that end, where the peer must exit.
    pub fence: Fence,
    /// How long that takes.
    pub fence_ns: u64,
}

/// Who carries posted atomics out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AtomicsBy {
    /// In one piece with what processors do.
    Processor,
    /// The adapter of the target, which reads the word and writes it `atomic_ns` later, whatever else has changed it meanwhile.
    Adapter,
}

/// Who acknowledges requests, and answers them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AcknowledgedBy {
    /// An adapter, whatever becomes of the process whose memory it is; or, where processors copy, nobody.
    Adapter,
    /// The process itself, in software: nothing is sent, landed or answered while it stands still.
    Process,
}

impl From<AtomicsBy> for Atomics {
    fn from(by: AtomicsBy) -> Atomics {
        match by {
            AtomicsBy::Processor => Atomics::Processor,
            AtomicsBy::Adapter => Atomics::Adapter,
        }
    }
}

/// Who can keep a peer from touching our memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CutOffBy {
    /// Our own adapter: from then on it drops what the peer sends.
    Target,
    /// Only the end of the peer, as its own processor copies into our memory, stops and goes on with it.
    Exit,
}

/// What may be done to a peer that only its end cuts off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fence {
    /// Its host is brought down.
    Kill,
    /// Nothing.
    Never,
}

/// Why there is no such profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Not TOML, a field that is not known or is missing, or a value of the wrong type.
    #[error("cannot read a hardware profile: {0}")]
    Malformed(#[from] toml::de::Error),
    /// A value with which nothing would ever happen.
    #[error("cannot use a hardware profile: {field} is {value}; it must be {wanted}")]
    Value {
        /// Which.
        field: &'static str,
        /// What it is.
        value: u64,
        /// What would do.
        wanted: &'static str,
    },
    /// Where processors copy, there is no adapter to carry atomics out.
    #[error("cannot use a hardware profile: atomics by \"adapter\" need a cut_off by \"target\"")]
    NoAdapter,
    /// Where processors copy, nobody acknowledges.
    #[error("cannot use a hardware profile: acknowledged by \"process\" needs a cut_off by \"target\"")]
    NobodyAcknowledges,
    /// The queue pairs of `halite_rnic` have packets of certain lengths, and processes without an adapter no atomics of an adapter.
    #[error(
        "cannot use a hardware profile: a cut_off by \"target\" needs an mtu_bytes of 256, 512, 1024, 2048 or 4096, \
         and, acknowledged by \"process\", atomics by \"processor\""
    )]
    NoQueuePair,
    /// None of the tree has that name.
    #[error("there is no hardware profile {name:?}; there are {}", Profile::NAMES.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
    },
}

impl Profile {
    /// Names of the profiles in the tree.
    pub const NAMES: [&str; 5] = ["local", "local-torn", "rnic-100g", "rnic-100g-hca", "roce-100g"];

    /// Reads a profile.
    pub fn from_toml(text: &str) -> Result<Profile, ProfileError> {
        let profile: Profile = toml::from_str(text)?;
        profile.check()?;
        Ok(profile)
    }

    /// A profile of the tree.
    pub fn named(name: &str) -> Result<Profile, ProfileError> {
        match name {
            "local" => Ok(Profile::local()),
            "local-torn" => Ok(Profile::local_torn()),
            "rnic-100g" => Ok(Profile::rnic_100g()),
            "rnic-100g-hca" => Ok(Profile::rnic_100g_hca()),
            "roce-100g" => Ok(Profile::roce_100g()),
            _ => Err(ProfileError::Unknown { name: name.to_owned() }),
        }
    }

    /// Processes of one host that share memory.
    pub fn local() -> Profile {
        Profile::from_toml(include_str!("../profiles/local.toml")).expect("a test reads it")
    }

    /// Processes of one host whose copies are slow, and go on when everybody believes them dead.
    pub fn local_torn() -> Profile {
        Profile::from_toml(include_str!("../profiles/local-torn.toml")).expect("a test reads it")
    }

    /// Hosts with adapters of 100 Gb/s behind one switch.
    pub fn rnic_100g() -> Profile {
        Profile::from_toml(include_str!("../profiles/rnic-100g.toml")).expect("a test reads it")
    }

    /// The same, but with atomics that are the adapters' own, as verbs' `IBV_ATOMIC_HCA`.
    pub fn rnic_100g_hca() -> Profile {
        Profile { atomics: AtomicsBy::Adapter, ..Profile::rnic_100g() }
    }

    /// Hosts whose processes speak RoCEv2 over UDP themselves, by the queue pairs that they have in earnest.
    pub fn roce_100g() -> Profile {
        Profile::from_toml(include_str!("../profiles/roce-100g.toml")).expect("a test reads it")
    }

    /// Whether all values make sense.
    pub fn check(&self) -> Result<(), ProfileError> {
        let positive = [
            ("bandwidth_bytes_per_us", self.bandwidth_bytes_per_us),
            ("mtu_bytes", self.mtu_bytes),
            ("retransmit_ns", self.retransmit_ns),
            ("rnr_ns", self.rnr_ns),
            ("lanes", self.lanes as u64),
            ("queue_depth", self.queue_depth as u64),
            ("receive_depth", self.receive_depth as u64),
            ("keys_max", self.keys_max as u64),
            ("connect_timeout_ns", self.connect_timeout_ns),
        ];
        for (field, value) in positive {
            if value == 0 {
                return Err(ProfileError::Value { field, value, wanted: "at least 1" });
            }
        }
        if self.is_driven_by_process() && !self.is_adapter() {
            return Err(ProfileError::NobodyAcknowledges);
        }
        if self.atomics == AtomicsBy::Adapter && !self.is_adapter() {
            return Err(ProfileError::NoAdapter);
        }
        let has_packets = Mtu::ALL.iter().any(|mtu| u64::from(mtu.bytes()) == self.mtu_bytes);
        let is_atomic = self.atomics == AtomicsBy::Processor || !self.is_driven_by_process();
        if self.is_adapter() && !(has_packets && is_atomic) {
            return Err(ProfileError::NoQueuePair);
        }
        if self.lanes > 1 && !self.is_adapter() {
            let (field, value) = ("lanes", self.lanes as u64);
            return Err(ProfileError::Value { field, value, wanted: "1 where processors copy" });
        }
        let of_adapters = [
            ("pcie_ns", self.pcie_ns),
            ("dma_ns_per_kib", self.dma_ns_per_kib),
            ("completion_ns", self.completion_ns),
        ];
        for (field, value) in of_adapters {
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
        Ok(())
    }

    /// Whether adapters carry everything out, and not the processors of those who ask for it.
    pub fn is_adapter(&self) -> bool {
        self.cut_off == CutOffBy::Target
    }

    /// Whether processes drive the queue pairs of their lanes themselves, and what has been posted stands still with them.
    pub(crate) fn is_driven_by_process(&self) -> bool {
        self.acknowledged == AcknowledgedBy::Process
    }

    pub(crate) fn dma_ns(&self, len: u64) -> u64 {
        len * self.dma_ns_per_kib / 1024
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_of_the_tree_can_be_used() {
        for name in Profile::NAMES {
            assert!(Profile::named(name).unwrap().check().is_ok(), "{name}");
        }
        assert!(matches!(Profile::named("abacus"), Err(ProfileError::Unknown { .. })));
    }

    #[test]
    fn mistakes_in_a_profile_are_named() {
        let local = include_str!("../profiles/local.toml");
        let error = |text: &str| Profile::from_toml(text).unwrap_err().to_string();
        assert!(error(&format!("{local}\npots_ns = 3\n")).contains("pots_ns"));
        assert!(error(&local.replace("post_ns =", "# post_ns =")).contains("post_ns"));
        assert!(error(&local.replace("queue_depth = ", "queue_depth = 0 # ")).contains("queue_depth is 0"));
        assert!(error(&local.replace("mtu_bytes = ", "mtu_bytes = 12 # ")).contains("mtu_bytes is 12"));
        assert!(error("post_ns = \"soon\"").contains("post_ns"));
        assert!(error(&local.replace("\"processor\"", "\"adapter\"")).contains("cut_off"));
        assert!(
            error(&local.replace("acknowledged = \"adapter\"", "acknowledged = \"process\""))
                .contains("cut_off")
        );
        let roce = include_str!("../profiles/roce-100g.toml");
        assert!(error(&roce.replace("mtu_bytes = 4096", "mtu_bytes = 4000")).contains("mtu_bytes of 256"));
        assert!(error(&local.replace("lanes = 1", "lanes = 2")).contains("lanes is 2"));
        assert!(error(&local.replace("pcie_ns = 0", "pcie_ns = 9")).contains("pcie_ns is 9"));
    }
}
