//! Detects the capabilities of this host's UDP sockets, for checks before a node starts.

use std::io;
use std::net::IpAddr;

use super::ports::Ports;
use super::{Mtu, RoceConfig};

/// Capabilities of a UDP socket on this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SocketProbe {
    /// Maximum number of packets that one system call sends (UDP_SEGMENT); 1 if the kernel lacks this feature.
    pub train_packets: usize,
    /// True if one system call can receive several packets (UDP_GRO).
    pub receives_trains: bool,
    /// Size of the receive buffer that the system granted, in bytes. The kernel reserves twice this size, for its
    /// bookkeeping.
    pub receive_bytes: usize,
    /// Size of the receive buffer that the fabric requests by default, in bytes.
    pub receive_bytes_wanted: usize,
    /// The maximum packet payload to each of the hosts, in the order of the argument, as far as the system knows;
    /// `None` for a host without a route.
    pub mtus: Vec<Option<Mtu>>,
}

/// Detects the capabilities of a socket bound to `address`, an address of this host, and the maximum packet payload to
/// each of `hosts`. Sends no packets.
pub fn probe(address: IpAddr, hosts: &[IpAddr]) -> io::Result<SocketProbe> {
    let config = RoceConfig { address, ..RoceConfig::new("", "probe") };
    let ports = Ports::open(&config)?;
    let (train_packets, receives_trains, counted_bytes) = ports.first().capabilities();
    Ok(SocketProbe {
        train_packets,
        receives_trains,
        receive_bytes: counted_bytes / 2,
        receive_bytes_wanted: config.receive_bytes,
        mtus: hosts.iter().map(|host| ports.mtu_to(*host).ok()).collect(),
    })
}
