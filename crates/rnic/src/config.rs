//! Configuration of a queue pair: settings negotiated with the peer, and local settings.

use std::time::Duration;

use crate::congestion::Congestion;

/// Maximum payload of a packet (verbs' path MTU). Halite peers encode it as its position in [`Mtu::ALL`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mtu {
    /// 256 bytes.
    Bytes256,
    /// 512 bytes.
    Bytes512,
    /// 1024 bytes.
    Bytes1024,
    /// 1408 bytes, which verbs do not have: the largest multiple of 128 that fits, with all headers of IPv4 or IPv6,
    /// into an Ethernet packet of 1500 bytes.
    Bytes1408,
    /// 2048 bytes.
    Bytes2048,
    /// 4096 bytes.
    Bytes4096,
}

impl Mtu {
    /// All sizes, smallest first.
    pub const ALL: [Mtu; 6] =
        [Mtu::Bytes256, Mtu::Bytes512, Mtu::Bytes1024, Mtu::Bytes1408, Mtu::Bytes2048, Mtu::Bytes4096];

    /// Returns the size in bytes.
    pub fn bytes(self) -> u32 {
        match self {
            Mtu::Bytes256 => 256,
            Mtu::Bytes512 => 512,
            Mtu::Bytes1024 => 1024,
            Mtu::Bytes1408 => 1408,
            Mtu::Bytes2048 => 2048,
            Mtu::Bytes4096 => 4096,
        }
    }
}

/// The limit at which the requester gives up and the connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retry {
    /// Maximum time without progress. Retries after RNR NAKs (receiver not ready) are unlimited.
    Lease(Duration),
    /// Maximum numbers of retransmissions, as in verbs.
    Count {
        /// Maximum number of retransmissions of one packet.
        retries: u8,
        /// Time to wait for a response after each transmission.
        timeout: Duration,
        /// Maximum number of retries after RNR NAKs; 7 means no limit.
        rnr_retries: u8,
    },
}

/// Configuration of one queue pair. The documentation of the crate defines *grant*, *train* and *lane*.
#[derive(Clone, Debug)]
pub struct Config {
    /// Maximum payload of a packet, negotiated with the peer.
    pub mtu: Mtu,
    /// Maximum number of this end's reads and atomics in flight (verbs' `max_rd_atomic`); at most the peer's
    /// `answers_max`. With `selective`, each packet of a read's response counts.
    pub reads_max: usize,
    /// Maximum number of the peer's reads and atomics in flight (verbs' `max_dest_rd_atomic`).
    pub answers_max: usize,
    /// Maximum number of posted requests that have not completed.
    pub send_queue_max: usize,
    /// Maximum length of a message in bytes, in both directions.
    pub send_bytes_max: usize,
    /// True if the peer is a Halite peer. Then acknowledgements carry grants, and even an empty request needs a valid
    /// key. With other implementations, the queue pair neither sends nor obeys grants, and an empty request may name
    /// any key.
    pub grants: bool,
    /// True for selective repeat: the responder keeps early packets, and the requester retransmits only lost packets.
    /// Negotiated with the peer; requires `grants`.
    pub selective: bool,
    /// The congestion controller, which limits the packets in flight in addition to the peer's grant. Requires
    /// `selective`.
    pub congestion: Congestion,
    /// True if each response contains the time for which its request waited at the responder, so that the requester
    /// does not count this time as network delay. Negotiated with the peer; requires `selective`.
    pub tells_waits: bool,
    /// True to discover the path MTU, and to send packets that exceed it in parts. Negotiated with the peer.
    pub finds_path: bool,
    /// Maximum packets per write message. With 1, all packets have equal headers and lengths, so more of them fit into
    /// one train. A higher value suits a hardware adapter, which processes a write faster as one message.
    pub write_packets_max: u32,
    /// Maximum packets in the response to one read request, at most 64. With `selective`, each packet of a response is
    /// a separate message.
    pub read_packets_max: u32,
    /// Maximum number of packets in flight, whatever the peer grants. Without grants, this is the window. `fills_path`
    /// allows more packets in flight.
    pub window_packets_max: u32,
    /// True to allow, in addition to the grant, as many packets in flight as the path itself holds (its bandwidth-delay
    /// product). Requires `selective`.
    pub fills_path: bool,
    /// Maximum packets in flight before the peer's first grant. Use 1 unless both ends guarantee room for more.
    pub first_packets_max: u32,
    /// Number of packets of read responses for which the local receive buffer has room.
    pub room_packets: u32,
    /// The limit at which the requester gives up and the connection ends.
    pub retry: Retry,
    /// Time that an RNR NAK (receiver not ready) asks the peer to wait before a retry.
    pub rnr_wait: Duration,
    /// Maximum delay of an acknowledgement that the peer has not requested.
    pub ack_delay: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            mtu: Mtu::Bytes1024,
            reads_max: 16,
            answers_max: 16,
            send_queue_max: 1024,
            send_bytes_max: 1 << 16,
            grants: true,
            selective: false,
            congestion: Congestion::Grant,
            tells_waits: false,
            finds_path: false,
            write_packets_max: u32::MAX,
            read_packets_max: u32::MAX,
            window_packets_max: 256,
            fills_path: false,
            first_packets_max: 1,
            room_packets: 24,
            retry: Retry::Lease(Duration::from_secs(5)),
            rnr_wait: Duration::from_micros(640),
            ack_delay: Duration::from_micros(500),
        }
    }
}

/// Returns the duration in ns. Saturates, so that a lease of [`Duration::MAX`] never expires.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
