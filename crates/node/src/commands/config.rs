//! `halite config`: what is set, and who says so.

use std::path::Path;

use crate::args::Listing;
use crate::output;
use crate::settings::Setting;
use crate::table::{Align, Table};

/// Ordered by key.
pub fn run(dir: &Path, args: &Listing, mut settings: Vec<Setting>) -> anyhow::Result<()> {
    if let Some(setting) = settings.iter_mut().find(|setting| setting.key == "dir") {
        setting.value = Some(dir.display().to_string());
    }
    if args.json {
        let lines: String = settings.iter().map(|setting| output::json_line(setting) + "\n").collect();
        return Ok(output::print(&lines)?);
    }
    let mut table = Table::new(&[("key", Align::Left), ("value", Align::Left), ("source", Align::Left)]);
    for Setting { key, value, source } in settings {
        table.row(vec![key, value.unwrap_or_else(|| "-".to_owned()), source]);
    }
    Ok(output::print(&table.to_string())?)
}
