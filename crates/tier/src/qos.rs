//! Quality of service: a node delays operations of low priority, so that operations of high priority keep their share
//! of the node's link.
//!
//! [`Turns`] serve one direction of the link. The node reports the operations that it starts and completes, and learns
//! the time at which the next operation of a session may start. A `Shaper` sets the limits of the two priorities; it
//! knows no sessions.

mod sw_pri;
mod turns;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use self::sw_pri::SwPri;
pub use self::turns::Turns;

/// Minimum of [`Qos::rate`], in bytes per second: 8 Mbit/s.
pub const RATE_MIN: u64 = 1_000_000;
/// Maximum of [`Qos::rate`], in bytes per second: 8 Tbit/s.
pub const RATE_MAX: u64 = 1_000_000_000_000;

/// Unused time that a priority may make up for, in nanoseconds. It covers late timers.
const BURST_NS: u64 = 2_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// The priority of an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// The node delays the operation only under [`Policy::HwSep`], to keep the fixed share of high priority.
    #[default]
    High,
    /// The node may delay the operation under any policy except [`Policy::None`].
    Low,
}

/// How a node treats operations of different priorities; the policies are those of LITE (SOSP 2017), section 6.2.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The node treats all operations alike.
    #[default]
    None,
    /// Each priority has a fixed share of the link's rate: three quarters for high, a quarter for low. An unused share
    /// stays unused, as if an adapter reserved queue pairs for each priority.
    HwSep,
    /// The sender limits the rate of low priority while high priority uses much of the link, or while round trips of
    /// high priority grow.
    SwPri,
}

/// A node's settings for operations of different priorities.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Qos {
    /// The policy of the node.
    pub policy: Policy,
    /// Rate of the node's link, per direction, in bytes per second, from [`RATE_MIN`] to [`RATE_MAX`].
    /// [`Policy::HwSep`] requires it. Without it, [`Policy::SwPri`] uses the highest rate that it has seen in the last
    /// 10 s. A rate above the link's real rate raises all limits by the same factor.
    pub rate: Option<u64>,
}

/// The error for invalid settings of [`Qos`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum BadQos {
    /// The rate is below [`RATE_MIN`] or above [`RATE_MAX`].
    #[error("a rate of {rate} bytes/s is out of range; it must be from {RATE_MIN} to {RATE_MAX} bytes/s")]
    Rate {
        /// The refused rate, in bytes per second.
        rate: u64,
    },
    /// The policy [`Policy::HwSep`] requires a rate.
    #[error(
        "the policy hw-sep requires the rate of the link in bytes/s, because it does not measure it: add `--rate` to `halite set qos`, or `--link-rate` to the options of a node"
    )]
    RateNeeded,
}

impl Priority {
    /// Returns the priority's name in configurations and outputs.
    pub fn name(self) -> &'static str {
        match self {
            Priority::High => "high",
            Priority::Low => "low",
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Priority {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Priority, &'static str> {
        let all = [Priority::High, Priority::Low];
        all.into_iter().find(|priority| priority.name() == text).ok_or("the priority must be high or low")
    }
}

impl Policy {
    /// Returns the policy's name in configurations and outputs.
    pub fn name(self) -> &'static str {
        match self {
            Policy::None => "none",
            Policy::HwSep => "hw-sep",
            Policy::SwPri => "sw-pri",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Policy, &'static str> {
        let all = [Policy::None, Policy::HwSep, Policy::SwPri];
        all.into_iter()
            .find(|policy| policy.name() == text)
            .ok_or("the policy must be none, hw-sep or sw-pri")
    }
}

impl Qos {
    /// Checks the settings. Fails if the rate is out of range, or if the policy requires a rate and there is none.
    pub fn check(&self) -> Result<(), BadQos> {
        match (self.rate, self.policy) {
            (Some(rate), _) if !(RATE_MIN..=RATE_MAX).contains(&rate) => Err(BadQos::Rate { rate }),
            (None, Policy::HwSep) => Err(BadQos::RateNeeded),
            _ => Ok(()),
        }
    }

    /// Creates the turns of one direction of the link; returns `None` if the policy delays no operation. Fails if the
    /// settings are invalid.
    pub fn turns(&self, now_ns: u64) -> Result<Option<Turns>, BadQos> {
        self.check()?;
        let shaper: Box<dyn Shaper> = match self.policy {
            Policy::None => return Ok(None),
            Policy::HwSep => Box::new(HwSep { rate: self.rate.ok_or(BadQos::RateNeeded)? }),
            Policy::SwPri => Box::new(SwPri::new(now_ns, self.rate)),
        };
        Ok(Some(Turns::new(now_ns, shaper)))
    }
}

/// Limits the rates of the two priorities, for one direction of a node's link.
trait Shaper: Send + fmt::Debug {
    /// Moves the time forward, in nanoseconds on the node's clock. Ignores an earlier time than that of a previous call.
    fn advance(&mut self, _now_ns: u64) {}

    /// Returns the current rate limit of a priority, in bytes per second; `None` if the priority has no limit.
    fn limit(&self, priority: Priority) -> Option<u64>;

    /// Records that the limit has delayed an operation.
    fn on_delay(&mut self) {}

    /// Records that an operation on `bytes` bytes has completed.
    fn on_done(&mut self, _priority: Priority, _bytes: u64) {}

    /// Records the round-trip time of a short operation of high priority, in either direction of the link.
    fn on_round_trip(&mut self, _round_trip_ns: u64) {}
}

/// The shaper of [`Policy::HwSep`].
#[derive(Debug)]
struct HwSep {
    rate: u64,
}

impl Shaper for HwSep {
    fn limit(&self, priority: Priority) -> Option<u64> {
        let low = self.rate / 4;
        Some(if priority == Priority::Low { low } else { self.rate - low })
    }
}
