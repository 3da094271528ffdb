//! Formats regions for `ls`, `stat` and errors of the commands.

use halite::{NodeId, RegionError, RegionInfo};
use serde::Serialize;

use crate::bytes::ByteCount;
use crate::letters;

/// A region as one JSON object.
#[derive(Serialize, Debug)]
pub struct RegionJson<'a> {
    name: Option<&'a str>,
    len: u64,
    chunk_bytes: u64,
    home: u32,
    nodes: Vec<Share>,
    unreachable: Vec<Share>,
    lost: Vec<Share>,
    owner: &'a str,
    everyone: String,
    grants: Vec<GrantJson<'a>>,
    mappers: Vec<u32>,
    epoch: u64,
    sealed: bool,
}

#[derive(Serialize, Debug)]
struct Share {
    node: u32,
    bytes: u64,
}

#[derive(Serialize, Debug)]
struct GrantJson<'a> {
    who: &'a str,
    permissions: String,
}

impl<'a> From<&'a RegionInfo> for RegionJson<'a> {
    fn from(region: &'a RegionInfo) -> RegionJson<'a> {
        let grant = |(who, permissions): &'a (String, _)| GrantJson {
            who,
            permissions: letters::format(*permissions),
        };
        RegionJson {
            name: region.name.as_deref(),
            len: region.len,
            chunk_bytes: region.chunk_bytes,
            home: region.home.0,
            nodes: shares(&region.nodes),
            unreachable: shares(&region.unreachable),
            lost: shares(&region.lost),
            owner: &region.owner,
            everyone: letters::format(region.everyone),
            grants: region.grants.iter().map(grant).collect(),
            mappers: region.mappers.iter().map(|node| node.0).collect(),
            epoch: region.epoch,
            sealed: region.sealed,
        }
    }
}

fn shares(shares: &[(NodeId, u64)]) -> Vec<Share> {
    shares.iter().map(|(node, bytes)| Share { node: node.0, bytes: *bytes }).collect()
}

/// Returns a function that makes an error name the command instead of the failed step: `cannot OPERATION OBJECT: ...`.
pub fn attempting(operation: &'static str, object: String) -> impl Fn(RegionError) -> RegionError {
    move |error| RegionError { operation, object: object.clone(), cause: error.cause }
}

/// Formats the nodes that hold bytes of the region, as `0,2`, and the number of missing bytes.
pub fn holders(region: &RegionInfo) -> String {
    let nodes: Vec<String> = region.nodes.iter().map(|(node, _)| node.to_string()).collect();
    let nodes = nodes.join(",");
    let sum = |shares: &[(NodeId, u64)]| shares.iter().map(|(_, bytes)| bytes).sum();
    let missing = [(sum(&region.unreachable), "unreachable"), (sum(&region.lost), "lost")];
    let missing = missing.iter().filter(|(bytes, _)| *bytes > 0);
    let missing: String = missing.map(|(bytes, how)| format!("; {} {how}", ByteCount(*bytes))).collect();
    nodes + &missing
}
