//! The state of the network path to a peer.

use std::net::SocketAddr;

/// Counters of the packets to and from a peer since it connected, and properties of the path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    /// Maximum payload of a packet, in bytes (verbs' path MTU).
    pub mtu_bytes: u32,
    /// True if the provider has measured the MTU, which takes some round trips after connecting.
    pub is_known: bool,
    /// Packets sent, including retransmissions.
    pub sent: u64,
    /// Packets retransmitted because they or their acknowledgements were lost or late. Without `repeats_single`, this
    /// includes the packets that followed a lost packet.
    pub repeated: u64,
    /// True if both ends use selective repeat. Otherwise, the loss of a packet causes the retransmission of all later
    /// packets, too.
    pub repeats_single: bool,
    /// Packets that arrived before an earlier packet, which was lost or late, and that this end kept.
    pub kept: u64,
    /// Number of retransmission timeouts.
    pub timeouts: u64,
    /// Number of times that the system refused to send a train (several packets in one system call), or that the path
    /// seemed to drop trains. After each of these, the fabric sends packets one by one for a while.
    pub trains_refused: u64,
    /// Packets received.
    pub arrived: u64,
    /// Received packets that were duplicates of earlier packets.
    pub duplicates: u64,
    /// Current maximum number of packets in flight to the peer, per lane.
    pub window_packets: Vec<u32>,
    /// Name of the congestion control algorithm for packets to the peer.
    pub congestion: &'static str,
    /// The ends that keep state for requests: `stateful` (both) or `stateless` (the requesting one).
    pub responder: &'static str,
    /// The reason for this mode.
    pub responder_reason: &'static str,
    /// UDP addresses of this end and of the peer.
    pub ends: (SocketAddr, SocketAddr),
    /// Source address of the last packet that came from another address than the peer offered, and the number of such
    /// packets; `None` if there were none. This end refuses them: a NAT changed their address, or an attacker replays
    /// packets.
    pub elsewhere: Option<(SocketAddr, u64)>,
}
