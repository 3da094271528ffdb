//! Formats losses of nodes and regions for users, in local time.

use std::time::Duration;

use chrono::{DateTime, Local, SecondsFormat};
use halite::{LossCause, Lost, RegionCause, RegionError};
use serde::Serialize;

/// The cause and time of a node's loss, as one JSON object.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct LossJson {
    cause: &'static str,
    at: String,
}

impl LossJson {
    /// Creates the description of a loss that happened `age` ago.
    pub fn new(cause: LossCause, age: Duration) -> LossJson {
        let at = time_before_now(age).to_rfc3339_opts(SecondsFormat::Secs, false);
        LossJson { cause: name(cause), at }
    }
}

fn name(cause: LossCause) -> &'static str {
    match cause {
        LossCause::Left => "left",
        LossCause::Exited => "exited",
        LossCause::Killed => "killed",
        LossCause::Unreachable => "unreachable",
    }
}

/// Formats the cause and time of a node's loss, for a table.
pub fn describe_briefly(cause: LossCause, age: Duration) -> String {
    let when = format_time(time_before_now(age), Local::now());
    match cause {
        LossCause::Left => format!("left {when}"),
        LossCause::Exited => format!("exited {when}"),
        LossCause::Killed => format!("exited {when}, killed"),
        LossCause::Unreachable => format!("unreachable since {when}"),
    }
}

/// Formats how a region was lost: its node, and the cause of that node's loss. An unreachable node counts as lost only
/// after a restart under its number, or after `halite forget`.
pub fn describe(lost: &Lost) -> String {
    let short = describe_briefly(lost.cause, lost.age);
    let end = if lost.cause == LossCause::Unreachable { ", then restarted or forgotten" } else { "" };
    format!("lost with node {} ({short}{end})", lost.node)
}

/// Replaces an error about a lost region by one that shows the time of the loss in local time.
pub fn explain(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<RegionError>() {
        Some(RegionError { operation, object, cause: RegionCause::Lost(lost) }) => {
            anyhow::anyhow!("cannot {operation} {object}: {}", describe(lost))
        }
        _ => error,
    }
}

/// Returns the local time `age` ago. Nodes report ages because their clocks differ. An age beyond the calendar gives
/// the calendar's start.
fn time_before_now(age: Duration) -> DateTime<Local> {
    let age = chrono::TimeDelta::from_std(age).unwrap_or(chrono::TimeDelta::MAX);
    Local::now().checked_sub_signed(age).unwrap_or(DateTime::UNIX_EPOCH.into())
}

/// Formats the time of day, with the date unless that is today.
fn format_time(moment: DateTime<Local>, now: DateTime<Local>) -> String {
    let is_today = moment.date_naive() == now.date_naive();
    moment.format(if is_today { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" }).to_string()
}
