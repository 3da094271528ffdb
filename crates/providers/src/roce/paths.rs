//! What came through to other hosts: where the next connection to one of them begins.

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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn host(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn less_than_was_agreed_on_is_remembered_until_all_comes_through() {
        let mut paths = Paths::default();
        assert_eq!(paths.to(host(1)), None);
        paths.note(host(1), Mtu::Bytes1024, Mtu::Bytes4096);
        assert_eq!((paths.to(host(1)), paths.to(host(2))), (Some(Mtu::Bytes1024), None));
        paths.note(host(1), Mtu::Bytes512, Mtu::Bytes4096);
        assert_eq!(paths.to(host(1)), Some(Mtu::Bytes512));
        paths.note(host(1), Mtu::Bytes1024, Mtu::Bytes1024);
        assert_eq!(paths.to(host(1)), None);
    }

    #[test]
    fn of_many_hosts_the_first_are_remembered() {
        let mut paths = Paths::default();
        (0..2000).for_each(|number| paths.note(host(number), Mtu::Bytes256, Mtu::Bytes4096));
        assert_eq!(paths.0.len(), HOSTS_MAX);
        paths.note(host(5), Mtu::Bytes512, Mtu::Bytes4096);
        assert_eq!((paths.to(host(5)), paths.to(host(1999))), (Some(Mtu::Bytes512), None));
    }
}
