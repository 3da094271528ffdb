//! The state of the network path to a peer.

use std::net::SocketAddr;

/// Packets to and from a peer since it was connected, and the windows of its lanes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    /// Maximum payload of a packet, in bytes (verbs' path MTU).
    pub mtu_bytes: u32,
    /// True if the MTU is known; probing takes a moment after connecting.
    pub is_known: bool,
    /// Packets sent, including repetitions.
    pub sent: u64,
    /// Packets sent again, because they or their acknowledgements were lost or late; without `repeats_single`, also the
    /// packets behind a lost one.
    pub repeated: u64,
    /// True if both ends retransmit single packets; otherwise a loss repeats all later packets as well.
    pub repeats_single: bool,
    /// Packets that arrived ahead of a lost or late one, and were kept.
    pub kept: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Packets received.
    pub arrived: u64,
    /// Received packets that had arrived before.
    pub duplicates: u64,
    /// Packets that may be in flight to the peer now, per lane.
    pub window_packets: Vec<u32>,
    /// Name of the congestion control of this end's packets.
    pub congestion: &'static str,
    /// Addresses of the packets: this end's, and the peer's.
    pub ends: (SocketAddr, SocketAddr),
    /// Source address of refused packets and their number, if packets of the peer came from another address: NAT
    /// changed it, or packets are replayed.
    pub elsewhere: Option<(SocketAddr, u64)>,
}
