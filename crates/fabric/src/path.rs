//! The state of the network path to a peer.

use std::net::SocketAddr;

/// Counters of the packets to and from a peer since it connected, and properties of the path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    /// Maximum payload of a packet, in bytes (verbs' path MTU).
    pub mtu_bytes: u32,
    /// True if the MTU has been measured; this takes some round trips after connecting.
    pub is_known: bool,
    /// Packets sent, including retransmissions.
    pub sent: u64,
    /// Packets retransmitted because they or their acknowledgements were lost or late. Without `repeats_single`, the
    /// packets that follow a lost one are included.
    pub repeated: u64,
    /// True if both ends use selective repeat; otherwise a loss causes retransmission of all later packets, too.
    pub repeats_single: bool,
    /// Packets that arrived before an earlier one, which was lost or late, and were kept.
    pub kept: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Packets received.
    pub arrived: u64,
    /// Received packets that had arrived before.
    pub duplicates: u64,
    /// Current maximum number of packets in flight to the peer, per lane.
    pub window_packets: Vec<u32>,
    /// Name of the congestion control algorithm for packets to the peer.
    pub congestion: &'static str,
    /// UDP addresses of this end and of the peer.
    pub ends: (SocketAddr, SocketAddr),
    /// If packets of the peer came from another address (NAT changed it, or an attacker replays packets) and were
    /// refused: that address, and the number of these packets.
    pub elsewhere: Option<(SocketAddr, u64)>,
}
