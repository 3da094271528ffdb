//! `halite config`: settings and their sources.

use std::path::Path;

use halite::EtcdAddress;

use crate::args::Listing;
use crate::output::{self, UsageError};
use crate::settings::Setting;
use crate::table::{Align, Table};

/// Prints the settings by key; then fails if there are `complaints` about variables.
pub fn run(
    dir: &Path,
    args: &Listing,
    mut settings: Vec<Setting>,
    complaints: Vec<String>,
) -> anyhow::Result<()> {
    if let Some(setting) = settings.iter_mut().find(|setting| setting.key == "dir") {
        setting.value = Some(dir.display().to_string());
    }
    if let Some(directory) = settings.iter_mut().find(|setting| setting.key == "directory")
        && let Some(Ok(address)) = directory.value.as_deref().map(str::parse::<EtcdAddress>)
    {
        // Debug output omits the password.
        directory.value = Some(format!("{address:?}"));
    }
    if args.json {
        let lines: String = settings.iter().map(|setting| output::json_line(setting) + "\n").collect();
        output::print(&lines)?;
        return fail_on(&complaints);
    }
    let mut table = Table::new(&[("key", Align::Left), ("value", Align::Left), ("source", Align::Left)]);
    for Setting { key, value, source } in settings {
        table.row(vec![key, value.unwrap_or_else(|| "-".to_owned()), source]);
    }
    output::print(&table.to_string())?;
    fail_on(&complaints)
}

fn fail_on(complaints: &[String]) -> anyhow::Result<()> {
    match complaints {
        [] => Ok(()),
        _ => Err(UsageError(complaints.join("\nhalite: ")).into()),
    }
}
