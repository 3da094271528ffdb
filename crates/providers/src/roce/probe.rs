//! Detects the capabilities of this host's UDP sockets, for checks before a node starts.

use std::io;
use std::net::IpAddr;

use super::ports::Ports;
use super::{Mtu, RoceConfig};

/// Capabilities of a UDP socket on this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SocketProbe {
    /// Maximum number of packets that one system call sends (UDP_SEGMENT); 1 if the kernel lacks that feature.
    pub train_packets: usize,
    /// True if one system call receives several packets (UDP_GRO).
    pub receives_trains: bool,
    /// Size of the receive buffer that the system granted, in bytes. The kernel reserves twice this size, to cover its
    /// bookkeeping.
    pub receive_bytes: usize,
    /// Size of the receive buffer that the fabric requests, in bytes.
    pub receive_bytes_wanted: usize,
    /// For each host, in the order of the argument: the maximum packet payload to it, as far as the system knows;
    /// `None` if there is no route.
    pub mtus: Vec<Option<Mtu>>,
}

/// Detects the capabilities of a socket bound to `address`, an address of this host, and the maximum packet payload to
/// each of `hosts`. Sends nothing.
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
