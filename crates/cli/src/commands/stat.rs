//! `halite stat`: shows one region.

use std::path::Path;

use halite::RegionInfo;

use super::regions::RegionJson;
use crate::args::Stat;
use crate::bytes::ByteCount;
use crate::client;
use crate::letters;
use crate::output;
use crate::table::{Align, Table};

/// Shows a region without mapping it, so no permission is needed.
pub fn run(dir: &Path, args: &Stat) -> anyhow::Result<()> {
    let region = client::attach(dir)?.session.stat(&args.name)?;
    if args.listing.json {
        output::print_json(&RegionJson::from(&region))?;
    } else {
        output::print(&table(&region).to_string())?;
    }
    Ok(())
}

fn table(region: &RegionInfo) -> Table {
    let mut table = Table::new(&[("name", Align::Left), (region.name.as_deref().unwrap_or(""), Align::Left)]);
    let mut row = |what: &str, value: String| table.row(vec![what.to_owned(), value]);
    row("bytes", format!("{} ({})", region.len, ByteCount(region.len)));
    row("chunk", ByteCount(region.chunk_bytes).to_string());
    row("home", format!("node {}", region.home));
    for (node, bytes) in &region.nodes {
        row("held by", format!("node {node}: {bytes} bytes"));
    }
    for (node, bytes) in &region.unreachable {
        row("unreachable", format!("{bytes} bytes on node {node}, which the home cannot reach"));
    }
    for (node, bytes) in &region.lost {
        row("lost", format!("{bytes} bytes with node {node}, which is gone"));
    }
    row("owner", region.owner.clone());
    row("everyone", letters::format(region.everyone));
    for (who, permissions) in &region.grants {
        row("granted", format!("{who}: {}", letters::format(*permissions)));
    }
    let mappers: Vec<String> = region.mappers.iter().map(ToString::to_string).collect();
    let mapped_by = match &mappers[..] {
        [] => "no node".to_owned(),
        [one] => format!("node {one}"),
        _ => format!("nodes {}", mappers.join(", ")),
    };
    row("mapped by", mapped_by);
    row("epoch", region.epoch.to_string());
    row("sealed", if region.sealed { "yes" } else { "no" }.to_owned());
    table
}
