//! Options for attached sessions: which users may attach, their principals and their quotas.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use halite::{Amounts, AttachMode, Config, PrincipalRule, Quota};

use crate::bytes::{ByteCount, ByteCountError};

/// Options of a node for attached sessions.
#[derive(Args, Clone, Debug)]
pub struct SessionOptions {
    /// Users that may attach sessions: 0600 for the user of the node, 0666 for all users of this host
    #[arg(long, env = "HALITE_ATTACH_MODE", value_name = "0600|0666", default_value_t = AttachMode::Owner)]
    pub attach_mode: AttachMode,
    /// Maximum amounts that each other user may use of a node: sessions, memory, operations, waits, objects, services,
    /// regions, region_bytes [default: see docs/operations.md; region_bytes: half of the arena]
    #[arg(long, env = "HALITE_QUOTAS", value_name = "NAME=AMOUNT", value_delimiter = ',')]
    pub quotas: Vec<QuotaOption>,
    /// Principals as which users and members of groups act [default: the name of the user]
    #[arg(
        long,
        env = "HALITE_PRINCIPALS",
        value_name = "user.NAME=PRINCIPAL|group.NAME=PRINCIPAL",
        value_delimiter = ','
    )]
    pub principals: Vec<PrincipalRule>,
    /// Principals whose operations have low priority, and cannot have high priority
    #[arg(
        long,
        env = "HALITE_LOW_PRIORITY",
        value_name = "PRINCIPAL",
        value_delimiter = ',',
        value_parser = principal
    )]
    pub low_priority: Vec<String>,
}

impl SessionOptions {
    /// Returns the flags that give a node these options.
    pub fn flags(&self) -> Vec<String> {
        let mut flags = vec!["--attach-mode".to_owned(), self.attach_mode.to_string()];
        let quotas: Vec<String> = self.quotas.iter().map(QuotaOption::to_string).collect();
        if !quotas.is_empty() {
            flags.extend(["--quotas".to_owned(), quotas.join(",")]);
        }
        let principals: Vec<String> = self.principals.iter().map(PrincipalRule::to_string).collect();
        if !principals.is_empty() {
            flags.extend(["--principals".to_owned(), principals.join(",")]);
        }
        if !self.low_priority.is_empty() {
            flags.extend(["--low-priority".to_owned(), self.low_priority.join(",")]);
        }
        flags
    }

    /// Returns the quotas of each user at a node with an arena of `arena_bytes`.
    pub fn amounts(&self, arena_bytes: u64) -> Amounts {
        let default = Config::QUOTAS.with(Quota::RegionBytes, arena_bytes / 2);
        self.quotas.iter().fold(default, |amounts, option| amounts.with(option.quota, option.amount))
    }
}

/// A quota that the user sets, such as `memory=256M`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuotaOption {
    quota: Quota,
    amount: u64,
}

/// The reason why a text is not a quota.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QuotaOptionError {
    /// The text has no `=`, or another name.
    #[error("expected NAME=AMOUNT with one of the names {}", names())]
    Malformed,
    /// The amount is not a number.
    #[error("{}: {source}", quota.name())]
    Amount {
        /// The quota with the invalid amount.
        quota: Quota,
        /// The reason why the amount is invalid.
        source: ByteCountError,
    },
}

/// Returns the name of a principal.
fn principal(text: &str) -> Result<String, &'static str> {
    if text.trim().is_empty() {
        Err("the name of a principal must not be blank")
    } else {
        Ok(text.to_owned())
    }
}

fn names() -> String {
    Quota::ALL.map(Quota::name).join(", ")
}

impl FromStr for QuotaOption {
    type Err = QuotaOptionError;

    fn from_str(text: &str) -> Result<QuotaOption, QuotaOptionError> {
        let (name, amount) = text.split_once('=').ok_or(QuotaOptionError::Malformed)?;
        let named = Quota::ALL.into_iter().find(|quota| quota.name() == name);
        let quota = named.ok_or(QuotaOptionError::Malformed)?;
        let ByteCount(amount) =
            amount.parse().map_err(|source| QuotaOptionError::Amount { quota, source })?;
        Ok(QuotaOption { quota, amount })
    }
}

impl fmt::Display for QuotaOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.quota.name(), self.amount)
    }
}
