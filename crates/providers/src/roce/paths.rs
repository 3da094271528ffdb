//! Stores the path MTU to each host, as the initial value for the next connection to this host.

use std::collections::BTreeMap;
use std::net::IpAddr;

use halite_rnic::Mtu;

/// Maximum number of hosts with a remembered path MTU.
const HOSTS_MAX: usize = 1024;

/// Path MTUs by host, only of hosts whose path MTU is below the agreed maximum.
#[derive(Debug, Default)]
pub(super) struct Paths(BTreeMap<IpAddr, Mtu>);

impl Paths {
    /// Returns the path MTU to a host, if an earlier connection found one below the agreed maximum.
    pub(super) fn mtu_to(&self, host: IpAddr) -> Option<Mtu> {
        self.0.get(&host).copied()
    }

    /// Records `found` as the path MTU to a host if it is below the `agreed` maximum; otherwise removes the host.
    pub(super) fn record(&mut self, host: IpAddr, found: Mtu, agreed: Mtu) {
        if found >= agreed {
            self.0.remove(&host);
        } else if self.0.len() < HOSTS_MAX || self.0.contains_key(&host) {
            self.0.insert(host, found);
        }
    }
}
