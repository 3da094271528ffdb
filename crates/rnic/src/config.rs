//! Configuration of a queue pair: settings negotiated with the peer, and local ones.

use std::time::Duration;

use crate::congestion::Congestion;

/// Maximum payload of a packet (verbs' path MTU).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mtu {
    /// 256 bytes.
    Bytes256,
    /// 512 bytes.
    Bytes512,
    /// 1024 bytes.
    Bytes1024,
    /// 2048 bytes.
    Bytes2048,
    /// 4096 bytes.
    Bytes4096,
}

impl Mtu {
    /// All sizes, smallest first.
    pub const ALL: [Mtu; 5] = [Mtu::Bytes256, Mtu::Bytes512, Mtu::Bytes1024, Mtu::Bytes2048, Mtu::Bytes4096];

    /// Returns the size in bytes.
    pub fn bytes(self) -> u32 {
        256 << self as u32
    }
}

/// Limit after which the requester gives up and the connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retry {
    /// Maximum silence of a Halite peer. RNR NAKs are retried without limit.
    Lease(Duration),
    /// Limits of retransmissions, as in verbs.
    Count {
        /// Retransmissions of one packet.
        retries: u8,
        /// Wait for a response after each transmission.
        timeout: Duration,
        /// Retries after RNR NAKs; 7 means no limit.
        rnr_retries: u8,
    },
}

/// Configuration of one queue pair.
#[derive(Clone, Debug)]
pub struct Config {
    /// Negotiated with the peer.
    pub mtu: Mtu,
    /// Maximum local reads and atomics in flight, and with `selective` packets of their responses; at most the peer's
    /// `answers_max` (verbs' `max_rd_atomic`).
    pub reads_max: usize,
    /// Maximum reads and atomics of the peer in flight (verbs' `max_dest_rd_atomic`).
    pub answers_max: usize,
    /// Maximum posted requests.
    pub send_queue_max: usize,
    /// Maximum length of a message in bytes, in both directions.
    pub send_bytes_max: usize,
    /// True if the peer is a Halite peer: credits grant packets, and even an empty request needs a valid key. With
    /// other implementations, the queue pair neither sends nor obeys credits, and an empty request may name any key.
    pub grants: bool,
    /// Selective repeat: the responder keeps early packets, and the requester retransmits only lost ones. Negotiated;
    /// requires `grants`.
    pub selective: bool,
    /// The congestion controller, which bounds packets in flight besides the peer's grant. Requires `selective`.
    pub congestion: Congestion,
    /// True if responses report the wait of their request at the responder, so that its scheduling delay does not count
    /// as network delay. Negotiated; requires `selective`.
    pub tells_waits: bool,
    /// True to discover the path MTU, and to split longer packets into parts. Negotiated.
    pub finds_path: bool,
    /// Maximum packets per write message. One-packet messages have equal lengths and so form longer trains; one message
    /// per write costs a hardware adapter less.
    pub write_packets_max: u32,
    /// Maximum packets in the response to one read request, at most 64. With `selective`, each is a message of its own.
    pub read_packets_max: u32,
    /// Upper limit of the window that the peer grants, in packets; also the window itself if the peer sends no grants.
    /// `fills_path` allows more in flight.
    pub window_packets_max: u32,
    /// True to allow, beyond the grant, the bandwidth-delay product of the path in flight. Requires `selective`.
    pub fills_path: bool,
    /// Maximum packets in flight before the first grant: one, unless both ends guarantee room for more.
    pub first_packets_max: u32,
    /// Packets of read responses that the local receive buffer holds.
    pub room_packets: u32,
    /// Limit after which the requester gives up.
    pub retry: Retry,
    /// Wait that an RNR NAK requests from the peer.
    pub rnr_wait: Duration,
    /// Maximum delay of an acknowledgement that the peer did not request.
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

/// Saturates, so that a lease of [`Duration::MAX`] never expires.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
