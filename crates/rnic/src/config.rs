//! What the two ends of a connection agree on, and what each decides by itself.

use std::time::Duration;

use crate::congestion::Congestion;

/// Most payload of a packet (verbs' path MTU).
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
    /// All of them, smallest first.
    pub const ALL: [Mtu; 5] = [Mtu::Bytes256, Mtu::Bytes512, Mtu::Bytes1024, Mtu::Bytes2048, Mtu::Bytes4096];

    /// How many bytes.
    pub fn bytes(self) -> u32 {
        256 << self as u32
    }
}

/// How long the requester tries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retry {
    /// Between our own ends: until nothing has been heard for so long.  A peer without a receive is waited for as long as it says so.
    Lease(Duration),
    /// As verbs have it.
    Count {
        /// How often the same packet is sent again.
        retries: u8,
        /// How long to wait for an answer each time.
        timeout: Duration,
        /// How often the peer may have no receive; 7 stands for any number.
        rnr_retries: u8,
    },
}

/// See the fields.
#[derive(Clone, Debug)]
pub struct Config {
    /// Agreed on.
    pub mtu: Mtu,
    /// Reads and atomics of ours that may be under way; at most what the peer answers (verbs' `max_rd_atomic`).
    pub reads_max: usize,
    /// Reads and atomics of the peer that may be under way (verbs' `max_dest_rd_atomic`).
    pub answers_max: usize,
    /// Requests that may be posted.
    pub send_queue_max: usize,
    /// Longest message, in both directions.
    pub send_bytes_max: usize,
    /// Whether the peer is one of our own ends: credits are grants of packets, and keys exist even where nothing is moved.  Towards
    /// others, none are given or heeded, and a request without bytes may have any key.
    pub grants: bool,
    /// Whether single packets are repeated: what comes before its turn is kept until then.  Both ends do so, or neither; and they
    /// grant.
    pub selective: bool,
    /// What decides how much may be under way in the network, if it is not the peer's grant alone; of those that repeat selectively.
    pub congestion: Congestion,
    /// Whether answers say how long what they answer has waited at their sender, so that the wait for its processor is no delay of the
    /// network's.  Both ends do so, or neither; and they repeat selectively.
    pub tells_waits: bool,
    /// Whether it is found out how long packets come through, and those that do not leave in parts.  Both ends do so, or neither.
    pub finds_path: bool,
    /// Most packets of a message into the peer's memory.  Packets of one length make longer trains where each is a message of its own,
    /// and an adapter has less to do where a write is one message.
    pub write_packets_max: u32,
    /// Most packets of the answer to one read request, likewise.
    pub read_packets_max: u32,
    /// Most packets under way, whatever the peer grants; and as many where nothing is granted.
    pub window_packets_max: u32,
    /// As many as may be under way before the peer has granted any: one, unless it has room for more in any case.
    pub first_packets_max: u32,
    /// Packets of answers to reads that our own receive buffer takes.
    pub room_packets: u32,
    /// How long we try.
    pub retry: Retry,
    /// What a peer is told to wait that finds no receive.
    pub rnr_wait: Duration,
    /// How long an acknowledgement may wait for which nobody asked.
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
            first_packets_max: 1,
            room_packets: 24,
            retry: Retry::Lease(Duration::from_secs(5)),
            rnr_wait: Duration::from_micros(640),
            ack_delay: Duration::from_micros(500),
        }
    }
}

/// As many as fit: a lease of [`Duration::MAX`] never ends.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
