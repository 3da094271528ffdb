//! `halite ls`: lists the regions, or the servers, that have names.

use std::io;
use std::path::Path;

use halite::{ListedRegions, Lost, LostRegion, NamedServer, RegionInfo, Session, UnreachableRegion};
use serde::Serialize;
use serde_json::json;

use super::regions::{RegionJson, command_error, holders};
use super::status::hexadecimal;
use crate::args::Ls;
use crate::bytes::ByteCount;
use crate::client;
use crate::letters;
use crate::loss::{self, LossJson};
use crate::output;
use crate::shell::shown;
use crate::table::{Align, Table};

/// Lists regions by name: available regions, regions whose home is unreachable, regions with damaged records, and lost
/// regions.
pub fn run(dir: &Path, args: &Ls) -> anyhow::Result<()> {
    let client = client::attach(dir)?;
    if args.services {
        return print_servers(&client.session.servers(None)?, args.listing.json);
    }
    client.session.block_on(print_regions(client.session.as_async(), args.listing.json))
}

async fn print_regions(session: &Session, is_json: bool) -> anyhow::Result<()> {
    let lost = session.list_lost().await.map_err(command_error("list", "regions".to_owned()))?;
    let mut listing = Listing::new(is_json);
    let mut pages = session.list_pages();
    while let Some(page) = pages.next().await? {
        listing.print(page)?;
    }
    listing.print_rest(&lost)
}

/// The listing as printed so far.
struct Listing {
    is_json: bool,
    regions: Table,
    unreachable: Table,
    damaged: Table,
    text: Vec<u8>,
}

impl Listing {
    fn new(is_json: bool) -> Listing {
        Listing {
            is_json,
            regions: Table::new(&REGION_COLUMNS),
            unreachable: Table::new(&[("unreachable", Align::Left), ("home", Align::Left)]),
            damaged: Table::new(&[("damaged in etcd", Align::Left)]),
            text: Vec::new(),
        }
    }

    fn json(&mut self, object: &impl Serialize) {
        serde_json::to_writer(&mut self.text, object)
            .expect("its keys are strings, and a vector takes all bytes");
        self.text.push(b'\n');
    }

    /// Prints the regions of a page. Tables of other names follow in [`Listing::print_rest`].
    fn print(&mut self, page: ListedRegions) -> io::Result<()> {
        self.text.clear();
        if self.is_json {
            page.regions.iter().for_each(|region| self.json(&RegionJson::from(region)));
            page.unreachable.iter().for_each(|UnreachableRegion { name, home }| {
                self.json(&json!({ "name": name, "unreachable": { "home": home.0 } }));
            });
            page.damaged.iter().for_each(|name| self.json(&DamagedJson { name, damaged: true }));
            return output::print_bytes(&self.text);
        }
        for UnreachableRegion { name, home } in page.unreachable {
            self.unreachable.row(vec![shown(&name).into_owned(), format!("node {home}")]);
        }
        page.damaged.iter().for_each(|name| self.damaged.cell(shown(name)));
        page.regions.iter().for_each(|region| add_region(&mut self.regions, region));
        output::print(&self.regions.take_text())
    }

    fn print_rest(mut self, lost: &[LostRegion]) -> anyhow::Result<()> {
        self.text.clear();
        if self.is_json {
            lost.iter().for_each(|region| self.json(&LostJson::from(region)));
        } else {
            let lost = lost_table(lost);
            for table in [&self.unreachable, &self.damaged, &lost].into_iter().filter(|table| table.len() > 0)
            {
                self.text.extend(format!("\n{table}").into_bytes());
            }
        }
        Ok(output::print_bytes(&self.text)?)
    }
}

fn print_servers(servers: &[NamedServer], is_json: bool) -> anyhow::Result<()> {
    if is_json {
        let lines = servers.iter().map(|server| output::json_line(&ServerJson::from(server)) + "\n");
        return Ok(output::print(&lines.collect::<String>())?);
    }
    let mut table = Table::new(&[("service", Align::Left), ("node", Align::Right), ("shared", Align::Left)]);
    for server in servers {
        let shared = if server.is_shared { "yes" } else { "no" };
        table.row(vec![shown(&server.service).into_owned(), server.node.to_string(), shared.to_owned()]);
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

/// One JSON object for a name with a damaged record.
#[derive(Serialize, Debug)]
struct DamagedJson<'a> {
    name: &'a str,
    damaged: bool,
}

/// One JSON object for a lost region.
#[derive(Serialize, Debug)]
struct LostJson<'a> {
    name: &'a str,
    lost: LossWithNode,
}

#[derive(Serialize, Debug)]
struct LossWithNode {
    node: u32,
    incarnation: String,
    #[serde(flatten)]
    loss: LossJson,
}

impl<'a> From<&'a LostRegion> for LostJson<'a> {
    fn from(region: &'a LostRegion) -> LostJson<'a> {
        let Lost { node, incarnation, cause, age } = region.lost;
        let loss = LossJson::new(cause, age);
        LostJson {
            name: &region.name,
            lost: LossWithNode { node: node.0, incarnation: hexadecimal(incarnation), loss },
        }
    }
}

fn lost_table(lost: &[LostRegion]) -> Table {
    let mut table = Table::new(&[("lost", Align::Left), ("why", Align::Left)]);
    for region in lost {
        table.row(vec![shown(&region.name).into_owned(), loss::describe(&region.lost)]);
    }
    table
}

const REGION_COLUMNS: [(&str, Align); 6] = [
    ("name", Align::Left),
    ("bytes", Align::Right),
    ("size", Align::Right),
    ("nodes", Align::Left),
    ("owner", Align::Left),
    ("everyone", Align::Left),
];

fn add_region(table: &mut Table, region: &RegionInfo) {
    table.cell(shown(region.name.as_deref().unwrap_or_default()));
    table.cell(region.len);
    table.cell(ByteCount(region.len));
    table.cell(holders(region));
    table.cell(&region.owner);
    table.cell(letters::display(region.everyone));
}
