//! What was lost, in words for users, and by their clock.

use std::time::Duration;

use chrono::{DateTime, Local, SecondsFormat};
use halite::{LossCause, Lost, RegionCause, RegionError};
use serde::Serialize;

/// How and when a node was lost, as one JSON object.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct LossJson {
    cause: &'static str,
    at: String,
}

impl LossJson {
    /// As of now.
    pub fn new(cause: LossCause, age: Duration) -> LossJson {
        let at = moment(age).to_rfc3339_opts(SecondsFormat::Secs, false);
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

/// How and when a node was lost, in few words.
pub fn in_short(cause: LossCause, age: Duration) -> String {
    let when = when(moment(age), Local::now());
    match cause {
        LossCause::Left => format!("left {when}"),
        LossCause::Exited => format!("exited {when}"),
        LossCause::Killed => format!("exited {when}, killed"),
        LossCause::Unreachable => format!("unreachable since {when}"),
    }
}

/// With whom a region was lost, and what has become of that node.
pub fn in_words(lost: &Lost) -> String {
    let short = in_short(lost.cause, lost.age);
    match lost.cause {
        LossCause::Unreachable => format!("node {} is {short}", lost.node),
        _ => format!("lost with node {} ({short})", lost.node),
    }
}

/// An error as people read it: of what was lost, by the clock on their wall.
pub fn explain(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<RegionError>() {
        Some(RegionError { operation, object, cause: RegionCause::Lost(lost) }) => {
            anyhow::anyhow!("cannot {operation} {object}: {}", in_words(lost))
        }
        _ => error,
    }
}

/// Other nodes tell an age, since clocks differ; an age before the beginning of time is as long ago as can be.
fn moment(age: Duration) -> DateTime<Local> {
    let age = chrono::TimeDelta::from_std(age).unwrap_or(chrono::TimeDelta::MAX);
    Local::now().checked_sub_signed(age).unwrap_or(DateTime::UNIX_EPOCH.into())
}

/// The time of day; with the day, unless that is today.
fn when(moment: DateTime<Local>, now: DateTime<Local>) -> String {
    let is_today = moment.date_naive() == now.date_naive();
    moment.format(if is_today { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" }).to_string()
}
