//! What a network knows of the way to a peer.

use std::net::SocketAddr;

/// Packets to a peer and from it, since it was connected, and how many may be under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    /// Most payload of a packet that comes through, in bytes (verbs' path MTU).
    pub mtu_bytes: u32,
    /// Whether that was found out yet: it takes a moment when two have met.
    pub is_known: bool,
    /// Packets that were sent, repetitions included.
    pub sent: u64,
    /// Of these, those that had been sent before: at least so many were lost, or late.
    pub repeated: u64,
    /// Whether both ends repeat single packets; else all behind one that is lost is sent again.
    pub repeats_single: bool,
    /// Packets that came before others that were lost or late, and were kept until those had come.
    pub kept: u64,
    /// How often an answer was waited for in vain.
    pub timeouts: u64,
    /// Packets that arrived.
    pub arrived: u64,
    /// Of these, those that had arrived before.
    pub duplicates: u64,
    /// Packets that may be under way to the peer now, in each lane.
    pub window_packets: Vec<u32>,
    /// From where to where they go: this end's address, and the peer's.
    pub ends: (SocketAddr, SocketAddr),
    /// From where packets of the peer came besides, and how many, all of which were refused: an address is translated on the way, or somebody repeats
    /// what it has seen.
    pub elsewhere: Option<(SocketAddr, u64)>,
}
