//! `halite sim qos`: each policy for operations of two priorities, in simulated time.

use std::fmt::Display;

use halite_sim::Profile;
use halite_trials::{AppsRow, QosRow};
use serde::Serialize;

use super::args::QosArgs;
use crate::{output, progress};

pub fn run(args: &QosArgs) -> anyhow::Result<()> {
    let profile = Profile::named(&args.profile)?;
    match args.apps {
        true => print(args, AppsRow::HEADING, || halite_trials::qos_apps(&profile)),
        false => print(args, QosRow::HEADING, || halite_trials::qos(&profile)),
    }
}

fn print<R>(args: &QosArgs, heading: &str, measure: impl FnOnce() -> Vec<R>) -> anyhow::Result<()>
where
    R: Display + Serialize,
{
    let spinner = progress::spinner("simulates three policies, for about half a minute");
    let rows = measure();
    spinner.finish_and_clear();
    match args.listing.json {
        true => rows.iter().try_for_each(output::print_json)?,
        false => output::print(&rows.iter().fold(heading.to_owned(), |text, row| format!("{text}{row}")))?,
    }
    Ok(())
}
