//! `halite config`: what is set, and who says so.

use std::path::Path;

use crate::args::Listing;
use crate::output::{self, UsageError};
use crate::settings::{Setting, UnknownVariable};
use crate::table::{Align, Table};

/// Ordered by key.  Variables that nobody knows are an error, once all is printed.
pub fn run(
    dir: &Path,
    args: &Listing,
    mut settings: Vec<Setting>,
    unknown: &[UnknownVariable],
) -> anyhow::Result<()> {
    if let Some(setting) = settings.iter_mut().find(|setting| setting.key == "dir") {
        setting.value = Some(dir.display().to_string());
    }
    if args.json {
        let lines: String = settings.iter().map(|setting| output::json_line(setting) + "\n").collect();
        output::print(&lines)?;
        return complain(unknown);
    }
    let mut table = Table::new(&[("key", Align::Left), ("value", Align::Left), ("source", Align::Left)]);
    for Setting { key, value, source } in settings {
        table.row(vec![key, value.unwrap_or_else(|| "-".to_owned()), source]);
    }
    output::print(&table.to_string())?;
    complain(unknown)
}

fn complain(unknown: &[UnknownVariable]) -> anyhow::Result<()> {
    let complaints: Vec<String> = unknown.iter().map(ToString::to_string).collect();
    match complaints[..] {
        [] => Ok(()),
        _ => Err(UsageError(complaints.join("\nhalite: ")).into()),
    }
}
