//! `halite ls`: lists the regions, or the servers, that have names.

use std::path::Path;

use futures_util::future::try_join;
use halite::{ListedRegions, Lost, LostRegion, NamedServer, RegionInfo, UnreachableRegion};
use serde::Serialize;

use super::regions::{RegionJson, holders};
use super::status::hexadecimal;
use crate::args::Ls;
use crate::bytes::ByteCount;
use crate::client;
use crate::letters;
use crate::loss::{self, LossJson};
use crate::output;
use crate::table::{Align, Table};

/// Lists regions by name: available regions, regions whose home is unreachable, regions with damaged records, and lost
/// regions.
pub fn run(dir: &Path, args: &Ls) -> anyhow::Result<()> {
    let client = client::attach(dir)?;
    if args.services {
        return print_servers(&client.session.servers(None)?, args.listing.json);
    }
    let session = client.session.as_async();
    let asked = client.session.block_on(try_join(session.list_all(), session.list_lost()))?;
    let (ListedRegions { regions, unreachable, damaged }, lost) = asked;
    let mut text = String::new();
    if args.listing.json {
        text.extend(regions.iter().map(|region| output::json_line(&RegionJson::from(region)) + "\n"));
        text.extend(
            unreachable.iter().map(|region| output::json_line(&UnreachableJson::from(region)) + "\n"),
        );
        text.extend(
            damaged.iter().map(|name| output::json_line(&DamagedJson { name, damaged: true }) + "\n"),
        );
        text.extend(lost.iter().map(|region| output::json_line(&LostJson::from(region)) + "\n"));
    } else {
        text.push_str(&table(&regions).to_string());
        if !unreachable.is_empty() {
            text.push_str(&format!("\n{}", unreachable_table(&unreachable)));
        }
        if !damaged.is_empty() {
            text.push_str(&format!("\n{}", damaged_table(&damaged)));
        }
        if !lost.is_empty() {
            text.push_str(&format!("\n{}", lost_table(&lost)));
        }
    }
    Ok(output::print(&text)?)
}

fn print_servers(servers: &[NamedServer], is_json: bool) -> anyhow::Result<()> {
    if is_json {
        let lines = servers.iter().map(|server| output::json_line(&ServerJson::from(server)) + "\n");
        return Ok(output::print(&lines.collect::<String>())?);
    }
    let mut table = Table::new(&[("service", Align::Left), ("node", Align::Right), ("shared", Align::Left)]);
    for server in servers {
        let shared = if server.is_shared { "yes" } else { "no" };
        table.row(vec![server.service.clone(), server.node.to_string(), shared.to_owned()]);
    }
    Ok(output::print(&table.to_string())?)
}

/// One JSON object for a server.
#[derive(Serialize, Debug)]
struct ServerJson<'a> {
    service: &'a str,
    node: u32,
    shared: bool,
}

impl<'a> From<&'a NamedServer> for ServerJson<'a> {
    fn from(server: &'a NamedServer) -> ServerJson<'a> {
        ServerJson { service: &server.service, node: server.node.0, shared: server.is_shared }
    }
}

/// One JSON object for a region whose home is unreachable.
#[derive(Serialize, Debug)]
struct UnreachableJson<'a> {
    name: &'a str,
    unreachable: HomeJson,
}

#[derive(Serialize, Debug)]
struct HomeJson {
    home: u32,
}

impl<'a> From<&'a UnreachableRegion> for UnreachableJson<'a> {
    fn from(region: &'a UnreachableRegion) -> UnreachableJson<'a> {
        UnreachableJson { name: &region.name, unreachable: HomeJson { home: region.home.0 } }
    }
}

fn unreachable_table(unreachable: &[UnreachableRegion]) -> Table {
    let mut table = Table::new(&[("unreachable", Align::Left), ("home", Align::Left)]);
    for region in unreachable {
        table.row(vec![region.name.clone(), format!("node {}", region.home)]);
    }
    table
}

/// One JSON object for a name with a damaged record.
#[derive(Serialize, Debug)]
struct DamagedJson<'a> {
    name: &'a str,
    damaged: bool,
}

fn damaged_table(damaged: &[String]) -> Table {
    let mut table = Table::new(&[("damaged in etcd", Align::Left)]);
    damaged.iter().for_each(|name| table.row(vec![name.clone()]));
    table
}

/// One JSON object for a lost region.
#[derive(Serialize, Debug)]
struct LostJson<'a> {
    name: &'a str,
    lost: WithNode,
}

#[derive(Serialize, Debug)]
struct WithNode {
    node: u32,
    incarnation: String,
    #[serde(flatten)]
    how: LossJson,
}

impl<'a> From<&'a LostRegion> for LostJson<'a> {
    fn from(region: &'a LostRegion) -> LostJson<'a> {
        let Lost { node, incarnation, cause, age } = region.lost;
        let how = LossJson::new(cause, age);
        LostJson {
            name: &region.name,
            lost: WithNode { node: node.0, incarnation: hexadecimal(incarnation), how },
        }
    }
}

fn lost_table(lost: &[LostRegion]) -> Table {
    let mut table = Table::new(&[("lost", Align::Left), ("why", Align::Left)]);
    for region in lost {
        table.row(vec![region.name.clone(), loss::in_words(&region.lost)]);
    }
    table
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
