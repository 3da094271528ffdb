//! Quality of service: a node delays operations of low priority, so that operations of high priority keep their share
//! of the node's link.
//!
//! A [`Shaper`] serves one direction of the link. The node reports the operations that it starts and completes, and the
//! shaper returns the time at which the next operation may start. A shaper does not know peers, sessions or providers.

mod sw_pri;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use self::sw_pri::SwPri;

/// Minimum of [`Qos::rate`], in bytes per second: 8 Mbit/s.
pub const RATE_MIN: u64 = 1_000_000;
/// Maximum of [`Qos::rate`], in bytes per second: 8 Tbit/s.
pub const RATE_MAX: u64 = 1_000_000_000_000;

/// Maximum time until a delayed operation asks the shaper again, in nanoseconds. A changed policy or limit takes effect
/// within this time.
const RECHECK_NS: u64 = 10_000_000;
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
        "the policy hw-sep requires the rate of the link, because it does not measure the rate; set it in bytes/s"
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

    /// Creates the shaper for one direction of the link; returns `None` if the policy delays no operation. Fails if the
    /// settings are invalid.
    pub fn shaper(&self, now_ns: u64) -> Result<Option<Box<dyn Shaper>>, BadQos> {
        self.check()?;
        Ok(match self.policy {
            Policy::None => None,
            Policy::HwSep => Some(Box::new(HwSep::new(now_ns, self.rate.ok_or(BadQos::RateNeeded)?))),
            Policy::SwPri => Some(Box::new(SwPri::new(now_ns, self.rate))),
        })
    }
}

/// Decides when operations may start, for one direction of a node's link.
///
/// All times are in nanoseconds on the node's clock. If a call passes an earlier time than a previous call, the time of
/// the previous call applies.
pub trait Shaper: Send + fmt::Debug {
    /// Returns the time at which an operation of this priority may start. If this is `now_ns`, the operation may start
    /// at once; otherwise the caller asks again at the returned time.
    fn turn(&mut self, now_ns: u64, priority: Priority) -> u64;

    /// Records that an operation on `bytes` bytes has started.
    fn on_start(&mut self, now_ns: u64, priority: Priority, bytes: u64);

    /// Records that an operation on `bytes` bytes has completed.
    fn on_done(&mut self, now_ns: u64, priority: Priority, bytes: u64);

    /// Records the round-trip time of a short operation of high priority, in either direction of the link.
    fn on_round_trip(&mut self, now_ns: u64, round_trip_ns: u64);

    /// Returns the current rate limit of a priority, in bytes per second; `None` if the priority has no limit.
    fn limit(&self, priority: Priority) -> Option<u64>;
}

/// A token bucket for one priority. The balance is in bytes times nanoseconds: it grows by the rate in bytes per second
/// for each nanosecond, and an operation costs 10^9 per byte.
///
/// An operation may start while the balance is not negative; its cost is then subtracted. So operations of any length
/// can start, and their average rate stays within the limit.
#[derive(Clone, Copy, Default, Debug)]
struct Bucket {
    balance: i128,
    at_ns: u64,
}

impl Bucket {
    /// Returns the time at which an operation may start at `rate` bytes per second.
    fn turn(&mut self, now_ns: u64, rate: u64) -> u64 {
        self.refill(now_ns, rate);
        let wait_ns = (-self.balance).max(0).div_euclid(i128::from(rate.max(1))) as u64;
        match self.balance < 0 {
            true => now_ns.saturating_add((wait_ns + 1).min(RECHECK_NS)),
            false => now_ns,
        }
    }

    fn take(&mut self, now_ns: u64, rate: u64, bytes: u64) {
        self.refill(now_ns, rate);
        self.balance -= i128::from(bytes) * i128::from(SECOND_NS);
    }

    fn refill(&mut self, now_ns: u64, rate: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.at_ns);
        self.at_ns = self.at_ns.max(now_ns);
        let earned = i128::from(rate) * i128::from(elapsed_ns);
        self.balance = (self.balance + earned).min(i128::from(rate) * i128::from(BURST_NS));
    }

    /// Sets the balance to zero, which cancels all debt.
    fn clear(&mut self, now_ns: u64) {
        *self = Bucket { balance: 0, at_ns: now_ns };
    }
}

/// The shaper of [`Policy::HwSep`].
#[derive(Debug)]
struct HwSep {
    rate: u64,
    high: Bucket,
    low: Bucket,
}

impl HwSep {
    fn new(now_ns: u64, rate: u64) -> HwSep {
        let bucket = Bucket { balance: 0, at_ns: now_ns };
        HwSep { rate, high: bucket, low: bucket }
    }

    fn class(&mut self, priority: Priority) -> (&mut Bucket, u64) {
        let low = self.rate / 4;
        match priority {
            Priority::High => (&mut self.high, self.rate - low),
            Priority::Low => (&mut self.low, low),
        }
    }
}

impl Shaper for HwSep {
    fn turn(&mut self, now_ns: u64, priority: Priority) -> u64 {
        let (bucket, rate) = self.class(priority);
        bucket.turn(now_ns, rate)
    }

    fn on_start(&mut self, now_ns: u64, priority: Priority, bytes: u64) {
        let (bucket, rate) = self.class(priority);
        bucket.take(now_ns, rate, bytes);
    }

    fn on_done(&mut self, _now_ns: u64, _priority: Priority, _bytes: u64) {}

    fn on_round_trip(&mut self, _now_ns: u64, _round_trip_ns: u64) {}

    fn limit(&self, priority: Priority) -> Option<u64> {
        let low = self.rate / 4;
        Some(if priority == Priority::Low { low } else { self.rate - low })
    }
}
