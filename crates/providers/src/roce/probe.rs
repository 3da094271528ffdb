//! Capabilities of a host's UDP sockets, for checks before a node runs.

use std::io;
use std::net::IpAddr;

use super::ports::Ports;
use super::{Mtu, RoceConfig};

/// Capabilities of a UDP socket on this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SocketProbe {
    /// Most packets that the kernel takes in one piece (UDP_SEGMENT); 1 where it does not.
    pub train_packets: usize,
    /// Whether the kernel hands over packets in one piece (UDP_GRO).
    pub receives_trains: bool,
    /// Size of the receive buffer in bytes; the kernel allows as much again for its own bookkeeping.
    pub receive_bytes: usize,
    /// Size of the receive buffer that we request, in bytes.
    pub receive_bytes_wanted: usize,
    /// The most payload of a packet to each of the hosts that were asked about, in their order, as far as the system knows; `None`
    /// where it has no way to one.
    pub mtus: Vec<Option<Mtu>>,
}

/// Finds the capabilities of a socket bound to that address of this host.  Nothing is sent.
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
