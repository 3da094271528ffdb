//! Detects the capabilities of a host's UDP sockets, for checks before a node runs.

use std::io;
use std::net::IpAddr;

use super::ports::Ports;
use super::{Mtu, RoceConfig};

/// Capabilities of a UDP socket on this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SocketProbe {
    /// Maximum number of packets that the kernel takes in one call (UDP_SEGMENT); 1 without that feature.
    pub train_packets: usize,
    /// True if the kernel delivers several packets in one call (UDP_GRO).
    pub receives_trains: bool,
    /// Size of the receive buffer, in bytes; the kernel reserves as much again for its own bookkeeping.
    pub receive_bytes: usize,
    /// Size of the receive buffer that the fabric requests, in bytes.
    pub receive_bytes_wanted: usize,
    /// Maximum packet payload to each of the hosts, in the order of the argument, as far as the system knows it; `None`
    /// without a route.
    pub mtus: Vec<Option<Mtu>>,
}

/// Detects the capabilities of a socket bound to `address`, an address of this host, and the maximum payload of packets
/// to each of `hosts`. Sends nothing.
pub fn probe(address: IpAddr, hosts: &[IpAddr]) -> io::Result<SocketProbe> {
    let config = RoceConfig { address, ..RoceConfig::new("", "probe") };
    let ports = Ports::open(&config)?;
    let (train_packets, receives_trains, counted_bytes) = ports.first().offers();
    Ok(SocketProbe {
        train_packets,
        receives_trains,
        receive_bytes: counted_bytes / 2,
        receive_bytes_wanted: config.receive_bytes,
        mtus: hosts.iter().map(|host| ports.mtu_to(*host).ok()).collect(),
    })
}
