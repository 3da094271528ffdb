//! The limit of a store's memory, and what happens when it is reached.

use std::fmt;
use std::str::FromStr;

/// Limit of the memory of a store's entries and tables.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MemoryLimit {
    /// Bytes of all shards together; 0 for all memory of their nodes. Each shard has an equal part.
    pub bytes: u64,
    /// What happens when a shard reaches the limit.
    pub eviction: Eviction,
}

/// What happens to a request that takes memory beyond the limit. There is no eviction by use, because clients read
/// values without their owner, which thus does not know when they were used.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Eviction {
    /// The request is refused: `noeviction`.
    #[default]
    Never,
    /// The owner removes keys chosen at random: `allkeys-random`.
    Random,
    /// The owner removes the keys that expire first, and refuses the request if no key expires: `volatile-ttl`.
    SoonestExpiry,
}

impl Eviction {
    /// All policies, with the names that Redis gives them.
    pub(super) const NAMES: [(Eviction, &str); 3] = [
        (Eviction::Never, "noeviction"),
        (Eviction::Random, "allkeys-random"),
        (Eviction::SoonestExpiry, "volatile-ttl"),
    ];

    /// Returns the name that Redis gives the policy.
    pub fn name(self) -> &'static str {
        Eviction::NAMES[self as usize].1
    }
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The reason why a text is no eviction policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the policy must be one of the following: noeviction, allkeys-random, volatile-ttl")]
pub struct UnknownEviction;

impl FromStr for Eviction {
    type Err = UnknownEviction;

    fn from_str(text: &str) -> Result<Eviction, UnknownEviction> {
        let named = Eviction::NAMES.iter().find(|(_, name)| name.eq_ignore_ascii_case(text));
        named.map(|(eviction, _)| *eviction).ok_or(UnknownEviction)
    }
}
