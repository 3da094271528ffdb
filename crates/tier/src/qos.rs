//! Priorities: when a node delays operations of low priority, so that those of high priority keep their share of a link.
//!
//! A [`Shaper`] decides for one direction of the node's link. It is handed the time and what the node sends and
//! completes, and returns when an operation may start. It does not know peers, sessions or providers.

mod sw_pri;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use self::sw_pri::SwPri;

/// Lowest and highest rate of [`Qos::rate`], in bytes per second: 8 Mbit/s and 8 Tbit/s.
pub const RATE_MIN: u64 = 1_000_000;
/// See [`RATE_MIN`].
pub const RATE_MAX: u64 = 1_000_000_000_000;

/// Longest time until a delayed operation asks again, in nanoseconds. A changed policy or limit takes effect within it.
const RECHECK_NS: u64 = 10_000_000;
/// Unused time for which a class may catch up, in nanoseconds. It covers late timers.
const BURST_NS: u64 = 2_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Priority of an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// The operation is not delayed, except by the fixed share of [`Policy::HwSep`].
    #[default]
    High,
    /// The node may delay the operation.
    Low,
}

/// How a node treats operations of different priority, as in LITE, section 6.2.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// All operations are equal.
    #[default]
    None,
    /// Each priority has a fixed share of the rate: three quarters for high, a quarter for low. An unused share stays
    /// unused, as with queue pairs that an adapter reserves.
    HwSep,
    /// The sender limits low priority while the load of high priority is high, or while its round trips grow.
    SwPri,
}

/// Policy of a node for operations of different priority.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Qos {
    /// The policy.
    pub policy: Policy,
    /// Rate of the node's link, per direction, in bytes per second, from [`RATE_MIN`] to [`RATE_MAX`]. Required by
    /// [`Policy::HwSep`]. Without it, [`Policy::SwPri`] takes the highest rate of the last 10 s. A rate beyond the link's
    /// makes the limits too generous by the same factor.
    pub rate: Option<u64>,
}

/// The settings of a policy are not valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum BadQos {
    /// The rate is out of range.
    #[error("a rate of {rate} bytes/s is out of range; it must be from {RATE_MIN} to {RATE_MAX} bytes/s")]
    Rate {
        /// The refused rate, in bytes per second.
        rate: u64,
    },
    /// The policy needs a rate.
    #[error("policy hw-sep divides the link's rate, which it does not measure; set the rate in bytes/s")]
    RateNeeded,
}

impl Priority {
    /// Returns the priority's name.
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
        all.into_iter().find(|priority| priority.name() == text).ok_or("it is neither high nor low")
    }
}

impl Policy {
    /// Returns the policy's name.
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
        all.into_iter().find(|policy| policy.name() == text).ok_or("it is neither none, hw-sep nor sw-pri")
    }
}

impl Qos {
    /// Checks the settings.
    pub fn check(&self) -> Result<(), BadQos> {
        match (self.rate, self.policy) {
            (Some(rate), _) if !(RATE_MIN..=RATE_MAX).contains(&rate) => Err(BadQos::Rate { rate }),
            (None, Policy::HwSep) => Err(BadQos::RateNeeded),
            _ => Ok(()),
        }
    }

    /// Creates the shaper of one direction; `None` if nothing is ever delayed.
    pub fn shaper(&self, now_ns: u64) -> Result<Option<Box<dyn Shaper>>, BadQos> {
        self.check()?;
        Ok(match self.policy {
            Policy::None => None,
            Policy::HwSep => Some(Box::new(HwSep::new(now_ns, self.rate.ok_or(BadQos::RateNeeded)?))),
            Policy::SwPri => Some(Box::new(SwPri::new(now_ns, self.rate))),
        })
    }
}

/// Decides when operations start, for one direction of a node's link.
///
/// Time is in nanoseconds on the node's clock. A time before an earlier one counts as that earlier one.
pub trait Shaper: Send + fmt::Debug {
    /// Returns when an operation may start: `now_ns` if at once, else a later time at which the caller asks again.
    fn turn(&mut self, now_ns: u64, priority: Priority) -> u64;

    /// Records that an operation on `bytes` bytes has started.
    fn on_start(&mut self, now_ns: u64, priority: Priority, bytes: u64);

    /// Records that an operation on `bytes` bytes has completed.
    fn on_done(&mut self, now_ns: u64, priority: Priority, bytes: u64);

    /// Records the round trip of a short operation of high priority, in either direction.
    fn on_round_trip(&mut self, now_ns: u64, round_trip_ns: u64);

    /// Returns the current limit of a priority, in bytes per second; `None` if it has no limit.
    fn limit(&self, priority: Priority) -> Option<u64>;
}

/// What a class may send, in byte nanoseconds: a byte is worth a second of a byte per second.
///
/// A class may start while it has no debt, and then owes the operation's bytes. So operations of any length start, and
/// their rate is kept on average.
#[derive(Clone, Copy, Default, Debug)]
struct Bucket {
    balance: i128,
    at_ns: u64,
}

impl Bucket {
    /// Returns when the class may start at `rate` bytes per second.
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

    /// Forgives all debt.
    fn clear(&mut self, now_ns: u64) {
        *self = Bucket { balance: 0, at_ns: now_ns };
    }
}

/// [`Policy::HwSep`].
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
