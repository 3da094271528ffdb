//! Formats regions for `ls`, `stat` and errors of the commands.

use std::fmt;

use halite::{NodeId, RegionError, RegionInfo};
use serde::{Serialize, Serializer};

use crate::bytes::ByteCount;
use crate::letters;

/// A region as one JSON object.
#[derive(Serialize, Debug)]
pub struct RegionJson<'a> {
    name: Option<&'a str>,
    len: u64,
    chunk_bytes: u64,
    home: u32,
    nodes: Shares<'a>,
    unreachable: Shares<'a>,
    lost: Shares<'a>,
    owner: &'a str,
    everyone: String,
    grants: Vec<GrantJson<'a>>,
    mappers: Vec<u32>,
    epoch: u64,
    sealed: bool,
}

/// The bytes of a region on each node.
#[derive(Debug)]
struct Shares<'a>(&'a [(NodeId, u64)]);

impl Serialize for Shares<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|(node, bytes)| Share { node: node.0, bytes: *bytes }))
    }
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
            nodes: Shares(&region.nodes),
            unreachable: Shares(&region.unreachable),
            lost: Shares(&region.lost),
            owner: &region.owner,
            everyone: letters::format(region.everyone),
            grants: region.grants.iter().map(grant).collect(),
            mappers: region.mappers.iter().map(|node| node.0).collect(),
            epoch: region.epoch,
            sealed: region.sealed,
        }
    }
}

/// Returns a function that makes an error name the command instead of the failed step: `cannot OPERATION OBJECT: ...`.
pub fn command_error(operation: &'static str, object: String) -> impl Fn(RegionError) -> RegionError {
    move |error| RegionError { operation, object: object.clone(), cause: error.cause }
}

/// Formats the nodes that hold bytes of the region, as `0,2`, and the number of missing bytes.
pub fn holders(region: &RegionInfo) -> impl fmt::Display {
    fmt::from_fn(|f| {
        for (index, (node, _)) in region.nodes.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{node}")?;
        }
        for (shares, how) in [(&region.unreachable, "unreachable"), (&region.lost, "lost")] {
            let bytes = shares.iter().map(|(_, bytes)| bytes).sum();
            if bytes > 0 {
                write!(f, "; {} {how}", ByteCount(bytes))?;
            }
        }
        Ok(())
    })
}
