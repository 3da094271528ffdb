//! `halite ls`: the regions that have names.

use std::path::Path;

use halite::RegionInfo;

use super::regions::{RegionJson, holders};
use crate::args::Listing;
use crate::bytes::ByteCount;
use crate::client::Client;
use crate::letters;
use crate::output;
use crate::table::{Align, Table};

/// Ordered by name.
pub fn run(dir: &Path, args: &Listing) -> anyhow::Result<()> {
    let regions = Client::join(dir)?.session.list()?;
    if args.json {
        let lines = regions.iter().map(|region| output::json_line(&RegionJson::from(region)) + "\n");
        output::print(&lines.collect::<String>())?;
    } else {
        output::print(&table(&regions).to_string())?;
    }
    Ok(())
}

fn table(regions: &[RegionInfo]) -> Table {
    let columns = [
        ("name", Align::Left),
        ("bytes", Align::Right),
        ("size", Align::Right),
        ("nodes", Align::Left),
        ("owner", Align::Left),
        ("everyone", Align::Left),
    ];
    let mut table = Table::new(&columns);
    for region in regions {
        table.row(vec![
            region.name.clone().unwrap_or_default(),
            region.len.to_string(),
            ByteCount(region.len).to_string(),
            holders(region),
            region.owner.clone(),
            letters::format(region.everyone),
        ]);
    }
    table
}
