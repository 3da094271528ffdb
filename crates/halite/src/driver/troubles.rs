//! Why other nodes are out of reach: how their connections ended, and why dials have failed since.

use std::collections::BTreeMap;

use halite_fabric::ConnectFailure;
use halite_tier::ids::NodeId;
use halite_tier::news::News;

/// Maximum number of nodes, and of addresses, whose troubles are kept. A node dials each known member again and again, so
/// the reasons that matter return.
const TROUBLES_MAX: usize = 256;

/// Reasons, as texts for users. A node's reasons are dropped when it pairs.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    /// How the last connection to a node has ended.
    ends: BTreeMap<NodeId, String>,
    /// Why the last dial of an announced address has failed.
    dials: BTreeMap<String, String>,
}

impl Troubles {
    /// Records the end of a connection, and drops the reasons of a node that has paired or left.
    pub(crate) fn record_news<'a>(&mut self, news: &News, address_of: impl Fn(NodeId) -> Option<&'a str>) {
        if let Some((process, reason)) = news.unreachable() {
            insert(&mut self.ends, process.incarnation.node, reason);
        } else if let News::Joined(process) | News::PairedAgain { process, .. } | News::Left(process) = news {
            self.ends.remove(&process.incarnation.node);
            address_of(process.incarnation.node).and_then(|address| self.dials.remove(address));
        }
    }

    /// Records that a dial of a node that announces `address` has failed.
    pub(crate) fn record_dial(&mut self, address: &str, failure: &ConnectFailure) {
        let reason = format!("no connection to {}: {}", failure.address, failure.reason);
        insert(&mut self.dials, address.to_owned(), reason);
    }

    /// Returns why a node that announces `address` is out of reach; `None` if that is unknown.
    pub(crate) fn of(&self, node: NodeId, address: Option<&str>) -> Option<String> {
        let dial = address.and_then(|address| self.dials.get(address));
        let known: Vec<&str> = self.ends.get(&node).into_iter().chain(dial).map(String::as_str).collect();
        (!known.is_empty()).then(|| known.join("; "))
    }
}

fn insert<K: Ord>(troubles: &mut BTreeMap<K, String>, key: K, reason: String) {
    troubles.insert(key, reason);
    if troubles.len() > TROUBLES_MAX {
        troubles.pop_first();
    }
}
