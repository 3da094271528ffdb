//! Ways to a node: the address that a node announces, and the addresses at which other nodes dial it.
//!
//! ```text
//!   10.0.0.2:7000                                     over UDP, from any host
//!   10.0.0.2:7000 node-3.shm.sock@BOOT/DEVICE/INODE   also over shared memory, from that cluster directory
//!   10.0.0.2:7000,[fd00::2]:7000                      at either address, the first if it works
//!   node-3.shm.sock,node-3.roce.sock                  in its cluster directory, over either network; no other hosts
//! ```
//!
//! A node dials over shared memory first. If this fails, for example because the two nodes are in different process
//! namespaces, it tries the next way. It dials an address in any other form unchanged.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;

use halite_tier::ids::NodeId;

use crate::cluster::cluster_dir::{ClusterDir, socket_name};
use crate::cluster::networks::Provider;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Converts the addresses that nodes announce to the addresses that this node dials. By default, changes no address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ways {
    providers: Vec<Provider>,
    /// Identity of the cluster directory on this host; `None` if the node shares no memory.
    place: Option<String>,
}

impl Ways {
    /// Returns the ways of a node with these networks that connects only to the nodes of its cluster directory.
    pub(crate) fn on_one_host(providers: &[Provider]) -> Ways {
        Ways { providers: providers.to_vec(), place: None }
    }

    /// Returns the ways of a node with these networks that connects to other hosts.
    pub(crate) fn between_hosts(dir: &ClusterDir, providers: &[Provider]) -> Ways {
        // A node that cannot identify its directory shares no memory.
        let place = providers.contains(&Provider::Shm).then(|| place(dir)).flatten();
        Ways { providers: providers.to_vec(), place }
    }

    /// Returns the address that a node without other hosts announces.
    pub(crate) fn announced_in_directory(&self, node: NodeId) -> String {
        let sockets: Vec<String> = self.providers.iter().map(|network| socket_name(node, *network)).collect();
        sockets.join(",")
    }

    /// Returns the address that a node announces if other hosts dial it at `host`.
    pub(crate) fn announced_address(&self, host: &str, node: NodeId) -> String {
        match &self.place {
            Some(place) => format!("{host} {}@{place}", socket_name(node, Provider::Shm)),
            None => host.to_owned(),
        }
    }

    /// Returns the addresses to dial for an announced address, best first, in the form that the fabric expects.
    pub(crate) fn to(&self, announced: &str) -> Vec<String> {
        let in_directory = self.in_directory(announced);
        if !in_directory.is_empty() {
            return in_directory;
        }
        let (host, socket) = announced.split_once(' ').unwrap_or((announced, ""));
        let shared = socket.split_once('@').filter(|(_, place)| Some(*place) == self.place.as_deref());
        let shared = shared.map(|(socket, _)| socket.to_owned()).filter(|socket| !socket.contains('/'));
        let over_udp = Some(host).filter(|host| !host.is_empty()).map(|host| self.to_host(host));
        shared.into_iter().chain(over_udp).collect()
    }

    /// Returns the sockets in the cluster directory that belong to this node's networks.
    fn in_directory(&self, announced: &str) -> Vec<String> {
        let of = |(index, provider): (usize, &Provider)| {
            let is_of = |socket: &&str| {
                socket.ends_with(&format!(".{provider}.sock")) && !socket.contains([':', '/'])
            };
            let socket = announced.split(',').find(is_of)?;
            // An address without the name of a network means the first network.
            Some(if index == 0 { socket.to_owned() } else { format!("{provider}:{socket}") })
        };
        self.providers.iter().enumerate().filter_map(of).collect()
    }

    fn to_host(&self, host: &str) -> String {
        // An address without the name of a network means the first network.
        let is_second = !matches!(self.providers[..], [] | [Provider::Roce, ..]);
        let is_address = host.split(',').all(|address| address.parse::<SocketAddr>().is_ok());
        if is_second && is_address { format!("{}:{host}", Provider::Roce) } else { host.to_owned() }
    }

    /// Returns true if the address belongs to this node's cluster directory; false if this node shares no memory,
    /// because it then cannot know.
    pub(crate) fn is_here(&self, announced: &str) -> bool {
        let sockets = |announced: &str| {
            announced.split(',').all(|socket| socket.ends_with(".sock") && !socket.contains([':', '/']))
        };
        match announced.split_once('@') {
            Some((_, place)) => Some(place) == self.place.as_deref(),
            None => sockets(announced),
        }
    }

    /// Returns the reason for reaching a node with that address over that network; `None` if there was no choice.
    pub(crate) fn reason(&self, provider: &str, announced: &str) -> Option<&'static str> {
        let ours = self.place.as_deref()?;
        let theirs = announced.split_once('@').map(|(_, place)| place);
        let boot = |place: &str| place.split_once('/').map(|(boot, _)| boot.to_owned());
        Some(match theirs {
            _ if provider == Provider::Shm.name() => {
                "the node is on this host, and in this cluster directory"
            }
            None => "the node shares no memory with other nodes",
            Some(theirs) if theirs == ours => {
                "the node is on this host, but memory could not be shared with it"
            }
            Some(theirs) if boot(theirs) == boot(ours) => {
                "the node is on this host, in another cluster directory"
            }
            Some(_) => "the node is on another host",
        })
    }
}

/// Returns the addresses at which other hosts dial the node, best first.
pub(crate) fn hosts_of(announced: &str) -> Vec<SocketAddr> {
    let host = announced.split(' ').next().unwrap_or_default();
    host.split(',').filter_map(|host| host.parse().ok()).collect()
}

/// Formats addresses as a node announces them.
pub(crate) fn list(hosts: &[SocketAddr]) -> String {
    hosts.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
}

/// Returns an identity that distinguishes clusters with the same etcd. For a cluster on one host, it is the identity of
/// the cluster directory; all clusters of several hosts share one value, and nodes tell these clusters apart by their
/// secrets when they connect.
pub(crate) fn cluster_of(dir: &ClusterDir, is_spread: bool) -> String {
    match place(dir) {
        Some(place) if !is_spread => place,
        _ => "several hosts".to_owned(),
    }
}

/// Returns the identity of a directory. Two paths have the same identity only if they lead to the same directory.
fn place(dir: &ClusterDir) -> Option<String> {
    let boot = std::fs::read_to_string(BOOT_ID).ok()?;
    let of = std::fs::metadata(dir.path()).ok()?;
    Some(format!("{}/{:x}/{:x}", boot.trim(), of.dev(), of.ino()))
}

#[cfg(test)]
mod tests {
    use Provider::{Roce, Shm};

    use super::*;

    fn ways(providers: &[Provider], place: Option<&str>) -> Ways {
        Ways { providers: providers.to_vec(), place: place.map(str::to_owned) }
    }

    #[test]
    fn memory_is_shared_within_one_directory() {
        let here = ways(&[Shm, Roce], Some("boot/1/2"));
        let announced = here.announced_address("10.0.0.2:7000", NodeId(3));
        assert_eq!(here.to(&announced), ["node-3.shm.sock", "roce:10.0.0.2:7000"]);
        for elsewhere in ["boot/1/3", "other/1/2"] {
            assert_eq!(ways(&[Shm, Roce], Some(elsewhere)).to(&announced), ["roce:10.0.0.2:7000"]);
        }
        assert_eq!(ways(&[Roce], None).to(&announced), ["10.0.0.2:7000"]);
        let several = "10.0.0.2:7000,[fd00::2]:7000";
        assert_eq!(list(&hosts_of(&here.announced_address(several, NodeId(3)))), several);
        assert_eq!(ways(&[Roce], None).to(several), [several], "the addresses stay in one list");
        // A node that no other host can dial.
        assert_eq!(here.to(&here.announced_address("", NodeId(3))), ["node-3.shm.sock"]);
    }

    #[test]
    fn paths_outside_the_directory_are_not_dialled() {
        let here = ways(&[Shm, Roce], Some("boot/1/2"));
        for announced in ["node-3.shm.sock", "roce:10.0.0.2:7000", "roce:node-3.roce.sock"] {
            assert_eq!(here.to(announced), [announced]);
            assert_eq!(Ways::default().to(announced), [announced]);
        }
        assert!(here.to(" ../node-3.shm.sock@boot/1/2").is_empty() && here.to("").is_empty());
        assert_eq!(here.to("[fd00::2]:7000 "), ["roce:[fd00::2]:7000"]);
    }
}
