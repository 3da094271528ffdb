//! Ways to a node: what it shows of where it is, and how that is dialled from here.
//!
//! ```text
//!   10.0.0.2:7000                                     over UDP, from any host
//!   10.0.0.2:7000 node-3.shm.sock@BOOT/DEVICE/INODE   over shared memory, too, by who has that cluster directory of that host
//!   10.0.0.2:7000,[fd00::2]:7000                      by either of these, the first if that can be
//!   node-3.shm.sock,node-3.roce.sock                  in its cluster directory, by each of its networks; there are no other hosts
//! ```
//!
//! Shared memory is tried first.  Where it cannot be had, say because the two are in different namespaces for processes, the next
//! way is.  What is shown in any other form is dialled as it stands.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;

use halite_tier::ids::NodeId;

use crate::cluster::cluster_dir::{ClusterDir, socket_name};
use crate::cluster::networks::Provider;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// See the module's documentation.  By default, whatever is shown is dialled as it stands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ways {
    providers: Vec<Provider>,
    /// This cluster directory of this host; `None` where no memory is shared with others.
    place: Option<String>,
}

impl Ways {
    /// Of a node with these networks that meets those of its cluster directory.
    pub(crate) fn on_one_host(providers: &[Provider]) -> Ways {
        Ways { providers: providers.to_vec(), place: None }
    }

    /// Of a node with these networks that meets other hosts.
    pub(crate) fn between_hosts(dir: &ClusterDir, providers: &[Provider]) -> Ways {
        // Who cannot tell where it is shares no memory with those of whom it hears.
        let place = providers.contains(&Provider::Shm).then(|| place(dir)).flatten();
        Ways { providers: providers.to_vec(), place }
    }

    /// What that node, which others dial in the cluster directory alone, shows.
    pub(crate) fn shown_in_directory(&self, node: NodeId) -> String {
        let sockets: Vec<String> = self.providers.iter().map(|network| socket_name(node, *network)).collect();
        sockets.join(",")
    }

    /// What that node, which other hosts dial at `host`, shows.
    pub(crate) fn shown(&self, host: &str, node: NodeId) -> String {
        match &self.place {
            Some(place) => format!("{host} {}@{place}", socket_name(node, Provider::Shm)),
            None => host.to_owned(),
        }
    }

    /// How who shows that is dialled, the best way first, as the fabric has it.
    pub(crate) fn to(&self, shown: &str) -> Vec<String> {
        let in_directory = self.in_directory(shown);
        if !in_directory.is_empty() {
            return in_directory;
        }
        let (host, socket) = shown.split_once(' ').unwrap_or((shown, ""));
        let shared = socket.split_once('@').filter(|(_, place)| Some(*place) == self.place.as_deref());
        let shared = shared.map(|(socket, _)| socket.to_owned()).filter(|socket| !socket.contains('/'));
        let over_udp = Some(host).filter(|host| !host.is_empty()).map(|host| self.to_host(host));
        shared.into_iter().chain(over_udp).collect()
    }

    /// By the sockets of a cluster directory that are shown, those of our own networks.
    fn in_directory(&self, shown: &str) -> Vec<String> {
        let of = |(index, provider): (usize, &Provider)| {
            let is_of = |socket: &&str| {
                socket.ends_with(&format!(".{provider}.sock")) && !socket.contains([':', '/'])
            };
            let socket = shown.split(',').find(is_of)?;
            // Who is dialled by no word of a network is dialled by the first.
            Some(if index == 0 { socket.to_owned() } else { format!("{provider}:{socket}") })
        };
        self.providers.iter().enumerate().filter_map(of).collect()
    }

    fn to_host(&self, host: &str) -> String {
        // Who is dialled by no word of a network is dialled by the first.
        let is_second = !matches!(self.providers[..], [] | [Provider::Roce, ..]);
        let is_address = host.split(',').all(|address| address.parse::<SocketAddr>().is_ok());
        if is_second && is_address { format!("{}:{host}", Provider::Roce) } else { host.to_owned() }
    }

    /// Whether who shows that is of our own cluster directory; of who shares no memory that cannot be told.
    pub(crate) fn is_here(&self, shown: &str) -> bool {
        let sockets = |shown: &str| {
            shown.split(',').all(|socket| socket.ends_with(".sock") && !socket.contains([':', '/']))
        };
        match shown.split_once('@') {
            Some((_, place)) => Some(place) == self.place.as_deref(),
            None => sockets(shown),
        }
    }

    /// Why a node that shows that is reached by that network; `None` where there is no choice.
    pub(crate) fn why(&self, provider: &str, shown: &str) -> Option<&'static str> {
        let ours = self.place.as_deref()?;
        let theirs = shown.split_once('@').map(|(_, place)| place);
        let boot = |place: &str| place.split_once('/').map(|(boot, _)| boot.to_owned());
        Some(match theirs {
            _ if provider == Provider::Shm.name() => "it is on this host, and in this cluster directory",
            None => "it shares no memory with others",
            Some(theirs) if theirs == ours => "it is on this host, but memory could not be shared with it",
            Some(theirs) if boot(theirs) == boot(ours) => "it is on this host, in another cluster directory",
            Some(_) => "it is on another host",
        })
    }
}

/// Where the host of a node that shows that is dialled, the best way first.
pub(crate) fn hosts_of(shown: &str) -> Vec<SocketAddr> {
    let host = shown.split(' ').next().unwrap_or_default();
    host.split(',').filter_map(|host| host.parse().ok()).collect()
}

/// As a node shows them.
pub(crate) fn list(hosts: &[SocketAddr]) -> String {
    hosts.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
}

/// Tells clusters apart that use one etcd: the nodes of one host share their cluster directory.  Nodes of several hosts are told apart by their secret
/// when they meet.
pub(crate) fn cluster_of(dir: &ClusterDir, is_spread: bool) -> String {
    match place(dir) {
        Some(place) if !is_spread => place,
        _ => "several hosts".to_owned(),
    }
}

/// What two directories have in common only if they are one.
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
        let shown = here.shown("10.0.0.2:7000", NodeId(3));
        assert_eq!(here.to(&shown), ["node-3.shm.sock", "roce:10.0.0.2:7000"]);
        for elsewhere in ["boot/1/3", "other/1/2"] {
            assert_eq!(ways(&[Shm, Roce], Some(elsewhere)).to(&shown), ["roce:10.0.0.2:7000"]);
        }
        assert_eq!(ways(&[Roce], None).to(&shown), ["10.0.0.2:7000"]);
        let several = "10.0.0.2:7000,[fd00::2]:7000";
        assert_eq!(list(&hosts_of(&here.shown(several, NodeId(3)))), several);
        assert_eq!(ways(&[Roce], None).to(several), [several], "one after the other");
        // One that no other host can dial.
        assert_eq!(here.to(&here.shown("", NodeId(3))), ["node-3.shm.sock"]);
    }

    #[test]
    fn paths_outside_the_directory_are_not_dialled() {
        let here = ways(&[Shm, Roce], Some("boot/1/2"));
        for shown in ["node-3.shm.sock", "roce:10.0.0.2:7000", "roce:node-3.roce.sock"] {
            assert_eq!(here.to(shown), [shown]);
            assert_eq!(Ways::default().to(shown), [shown]);
        }
        assert!(here.to(" ../node-3.shm.sock@boot/1/2").is_empty() && here.to("").is_empty());
        assert_eq!(here.to("[fd00::2]:7000 "), ["roce:[fd00::2]:7000"]);
    }
}
