//! Remembers the path MTU to other hosts, as the start value of the next connection.

use std::collections::BTreeMap;
use std::net::IpAddr;

use halite_rnic::Mtu;

/// Hosts of which that is remembered.
const HOSTS_MAX: usize = 1024;

/// Only of hosts to which less comes through than was agreed on.
#[derive(Debug, Default)]
pub(super) struct Paths(BTreeMap<IpAddr, Mtu>);

impl Paths {
    /// What has come through to a host, if it was less than was agreed on.
    pub(super) fn to(&self, host: IpAddr) -> Option<Mtu> {
        self.0.get(&host).copied()
    }

    /// So much came through, where so much was agreed on.
    pub(super) fn note(&mut self, host: IpAddr, found: Mtu, agreed: Mtu) {
        if found >= agreed {
            self.0.remove(&host);
        } else if self.0.len() < HOSTS_MAX || self.0.contains_key(&host) {
            self.0.insert(host, found);
        }
    }
}
